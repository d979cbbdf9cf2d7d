#!/usr/bin/env bash
# ResNet-50 on one T4 of Google Kubernetes Engine: cluster, drivers, image, run, results, and the cluster deleted.
#
#   PROJECT=my-project examples/gke.sh            results in results/baseline/; about 20 minutes, and 0.54 USD an hour meanwhile
#   PROJECT=my-project KEEP=1 examples/gke.sh     leave the cluster, to run again with `kubectl apply -f`
#
# ZONE, CLUSTER, REGISTRY and RESULTS have defaults below. It needs gcloud, kubectl, and a builder for images/build.
# Unverified: written from the documentation of these tools, and never run against GKE.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
project=${PROJECT:?the Google Cloud project that pays} zone=${ZONE:-us-central1-a} cluster=${CLUSTER:-gpu-benchmark}
registry=${REGISTRY:-gcr.io/$project} results=${RESULTS:-results/baseline}
at=(--project="$project" --zone="$zone")

delete() {
  [[ -n ${KEEP:-} ]] || gcloud container clusters delete "$cluster" "${at[@]}" --quiet
}

# gpu-driver-version lets GKE install NVIDIA's driver; its device plugin is part of GKE
gcloud container clusters create "$cluster" "${at[@]}" --machine-type=n1-standard-4 --num-nodes=1 \
  --accelerator=type=nvidia-tesla-t4,count=1,gpu-driver-version=default
trap delete EXIT
gcloud container clusters get-credentials "$cluster" "${at[@]}"

gcloud auth configure-docker --quiet "${registry%%/*}"
REGISTRY=$registry TAG=1 PUSH=1 "$root/images/build" base resnet50

until [[ -n $(kubectl get nodes -o jsonpath='{.items[*].status.allocatable.nvidia\.com/gpu}') ]]; do
  echo "waiting for the driver on the node"
  sleep 10
done
sed "s|localhost/perfdag-resnet50:1|$registry/perfdag-resnet50:1|" "$root/deploy/job.yaml" | kubectl apply -f -
until end=$(kubectl get job/perfdag-gpu -o jsonpath='{.status.conditions[*].type}' | grep -oE 'Complete|Failed'); do
  kubectl logs --tail=1 job/perfdag-gpu || true # the pod may not have started yet
  sleep 10
done
mkdir -p "$results"
kubectl logs job/perfdag-gpu | tee "$results/log.txt"
sed -n '/^{/,$p' "$results/log.txt" >"$results/benchmark_results.json"
echo "results: $results/benchmark_results.json"
[[ $end == Complete ]] # it is Failed where a sample is
