"""The cluster part of `perfdag doctor`: API, Argo, rights, the store as a pod reaches it, nodes, storage classes, and what a suite's shapes ask for."""

import asyncio
import time
from typing import TYPE_CHECKING

from perfdag.app.cluster.view import of_another_version
from perfdag.app.doctor import store_claim
from perfdag.app.doctor.argo import ARGO, optional
from perfdag.app.doctor.argo import findings as argo
from perfdag.app.doctor.rights import account, needed, own
from perfdag.cli.doctor import Finding
from perfdag.kube.objects import Object

if TYPE_CHECKING:
    from perfdag.kube.client import Kube
    from perfdag.plan.plan import Plan
    from perfdag.shape import Shape
    from perfdag.steps.runner.feasibility import Requirement

POD_SECONDS = 60.0
_AGAIN = ", with the other options of the installation again"


def findings(plan: "Plan | None", root: str | None, namespace: str | None) -> list[Finding]:
    """Findings for the cluster that KUBECONFIG names; one `missing` where it is out of reach."""
    from perfdag.kube import client as kube

    try:
        return kube.run(lambda client: _look(client, plan, root, namespace or "perfdag"), retries=1)
    except kube.KubeError as error:
        return [
            Finding("missing", f"the cluster: {error}", "set KUBECONFIG to a cluster that answers")
        ]


async def _look(
    client: "Kube", plan: "Plan | None", root: str | None, namespace: str
) -> list[Finding]:
    version = await client.request("GET", "/version")
    found = [Finding("ok", f"Kubernetes {version['gitVersion']} at {client.cluster.server}")]
    if (int("".join(c for c in version["minor"] if c.isdigit())), version["major"]) < (29, "1"):
        found.append(
            Finding(
                "missing",
                f"Kubernetes {version['gitVersion']} is older than 1.29",
                "use a newer cluster",
            )
        )
    found += await argo(client)
    found += await _installed(client, namespace, root)
    found += _nodes(await optional(client, "v1", "Node"))
    return found + (await _wanted(client, plan, namespace) if plan else [])


async def _wanted(client: "Kube", plan: "Plan", namespace: str) -> list[Finding]:
    """What a suite asks of the cluster and of the installation."""
    from perfdag.kube.podspec import account_of, priority_class
    from perfdag.shape import Shape

    shapes = [Shape.model_validate(each) for each in plan.shapes]
    found = [*await asked(client, shapes, namespace), *no_gpu(plan, shapes)]
    found += await _priority(client, priority_class(plan.options.get("priority", 0)))
    for name in with_rights(plan):
        allow = f"perfdag install --namespace {namespace} --store ... --allow {name}"
        found.append(
            await account(
                client, namespace, account_of(name), needed()["perfdag-measure"], allow + _AGAIN
            )
        )
    return found


def with_rights(plan: "Plan") -> list[str]:
    """Benchmarks of which a point uses Kubernetes rights of its own, which `install --allow` grants."""
    from perfdag.benchmark import registry

    lent: set[str] = set()
    for point in plan.points:
        benchmark = registry.get(point.benchmark)
        if (
            benchmark.api
            and point.benchmark not in lent
            and benchmark.uses_api(benchmark.Params.model_validate(point.params))
        ):
            lent.add(point.benchmark)
    return sorted(lent)


async def _priority(client: "Kube", name: str) -> list[Finding]:
    from perfdag.steps.runner.feasibility import has_class

    if await has_class(client, name):
        return [Finding("ok", f"PriorityClass {name}")]
    do = f"perfdag install without --namespaced, as a cluster admin{_AGAIN}"
    return [
        Finding(
            "warn",
            f"PriorityClass {name} is not there, or may not be read; measuring pods then do without",
            do,
        )
    ]


async def _installed(client: "Kube", namespace: str, root: str | None) -> list[Finding]:
    install = f"perfdag install --namespace {namespace} --store ..."
    templates = [
        *(await optional(client, ARGO, "WorkflowTemplate", namespace) or []),
        *(await optional(client, ARGO, "ClusterWorkflowTemplate") or []),
    ]
    ours = [each for each in templates if each["metadata"]["name"] == "perfdag"]
    if not ours:
        return [Finding("missing", f"perfdag is not installed in namespace {namespace}", install)]
    if of_another_version(ours[0]["spec"]):
        return [
            Finding(
                "missing",
                f"perfdag in namespace {namespace} was installed by another version",
                install + _AGAIN,
            )
        ]
    found = [Finding("ok", f"perfdag is installed in namespace {namespace}")]
    found += await own(client, namespace)
    for name, rights in needed().items():
        found.append(await account(client, namespace, name, rights, install + _AGAIN))
    given = {
        each["name"]: each.get("value", "") for each in ours[0]["spec"]["arguments"]["parameters"]
    }
    root = root or given.get("store", "")
    parallel = next(
        each.get("parallelism") or 1
        for each in ours[0]["spec"]["templates"]
        if each["name"] == "batches"
    )
    found += await store_claim.findings(client, namespace, root, parallel)
    if not any(
        each.what.startswith("there is no claim") for each in found
    ):  # a pod would wait for it
        found.append(await _store(client, namespace, root, ours[0]["spec"]))
    return found


async def _store(client: "Kube", namespace: str, root: str, installed: Object) -> Finding:
    """Start a pod as a step's would be (`installed`: the template's spec), let it write and remove an object in the store, read what it
    says, delete it.
    """
    from perfdag.kube.podspec import STORE, claim_patch
    from perfdag.kube.security import hardened, helper, pod_security
    from perfdag.store.open import on_cluster

    if not on_cluster(root):
        why = f"pods have no store {root}" if root else "no store is named"
        return Finding("missing", why, "give --store s3://bucket/prefix or claim://NAME")
    container = next(
        each["container"] for each in installed["templates"] if each["name"] == "watchdog-pod"
    )
    main = {
        "name": "main",
        "image": container["image"],
        "imagePullPolicy": container.get("imagePullPolicy"),
        "command": ["perfdag", "step", "reach"],
        "env": [{"name": "PERFDAG_STORE", "value": root}, {"name": "HOME", "value": "/tmp"}],
        "envFrom": container.get("envFrom"),
        "securityContext": hardened(),
        "resources": helper(),
    }
    spec: Object = {
        "restartPolicy": "Never",
        "serviceAccountName": "perfdag-run",
        "imagePullSecrets": installed.get("imagePullSecrets") or [],
        "securityContext": pod_security(),
        "containers": [main],
        "automountServiceAccountToken": False,
    }
    if root.startswith("claim://"):
        spec["volumes"] = claim_patch(root.removeprefix("claim://"))["volumes"]
        main["volumeMounts"] = [{"name": "store", "mountPath": STORE}]
    made = await client.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"generateName": "perfdag-doctor-"},
            "spec": spec,
        },
        namespace,
    )
    try:
        return await _reached(client, made["metadata"]["name"], namespace, root)
    finally:
        await client.delete(
            await client.resource("v1", "Pod"), made["metadata"]["name"], namespace, grace=0
        )


async def _reached(client: "Kube", name: str, namespace: str, root: str) -> Finding:
    from perfdag.kube.pods import read, told

    kind = await client.resource("v1", "Pod")
    deadline = time.monotonic() + POD_SECONDS
    while True:
        [pod] = await told(client, namespace, [read(await client.get(kind, name, namespace))])
        if pod.phase in ("Succeeded", "Failed"):
            said = " ".join([line async for line in client.logs(name, namespace)])[-300:]
            if pod.phase == "Succeeded":
                return Finding("ok", f"store {root} is written and read from a pod")
            return Finding(
                "missing",
                f"store {root} from a pod: {said}",
                f"mend the store or its Secret (perfdag install --namespace {namespace} --store ...{_AGAIN})",
            )
        if pod.hopeless or time.monotonic() > deadline:
            return Finding(
                "missing",
                f"a pod in {namespace} did not start within {POD_SECONDS:g} s: {pod.trouble or pod.phase}",
                "mend what it says",
            )
        await asyncio.sleep(0.5)


def _nodes(nodes: list[Object] | None) -> list[Finding]:
    if nodes is None:
        return [
            Finding(
                "warn",
                "nodes cannot be read; rows will lack node types",
                f"perfdag install without --namespaced, as a cluster admin{_AGAIN}",
            )
        ]
    from perfdag.steps.runner.feasibility import real

    ours = real(nodes)
    ready = [
        each
        for each in ours
        if any(
            c["type"] == "Ready" and c["status"] == "True"
            for c in each["status"].get("conditions", [])
        )
    ]
    closed = [each["metadata"]["name"] for each in ready if each["spec"].get("unschedulable")]
    beside = f", {len(nodes) - len(ours)} simulated beside them" if len(nodes) > len(ours) else ""
    found = [
        Finding(
            "ok" if ready else "missing", f"{len(ready)} of {len(ours)} nodes are ready{beside}"
        )
    ]
    return found + ([Finding("warn", f"cordoned: {', '.join(closed[:5])}")] if closed else [])


def _plugin(resource: str) -> str:
    """What brings a device as a resource of nodes."""
    if resource.startswith("nvidia.com/"):
        return "install the NVIDIA driver on a node with the device and nvidia-device-plugin (or the GPU operator, which brings both)"
    return "install its device plugin on a node that has the device"


def no_gpu(plan: "Plan", shapes: "list[Shape]") -> list[Finding]:
    """Entries that run on CUDA in pods which ask for no GPU: a container sees none then."""
    from perfdag.steps import devices

    return [
        Finding(
            "missing",
            f"entry {name}: {why}, but its pods ask for no GPU",
            "resources: {nvidia.com/gpu: 1}",
        )
        for name, why in devices.without_gpu(plan, shapes).items()
    ]


async def asked(client: "Kube", shapes: "list[Shape]", namespace: str) -> list[Finding]:
    """What a suite's shapes ask of the cluster, told as the plan step will find it. Raises KubeError."""
    from perfdag.steps.runner.feasibility import answers, look

    room = await look(client)
    every = [each for shape in shapes for each in await answers(client, shape, room, namespace)]
    return [_told(each) for each in sorted(set(every), key=lambda each: (each.kind, each.what))]


def _told(answer: "Requirement") -> Finding:
    if answer.there:
        return Finding("ok", answer.what)
    if answer.there is None:
        return Finding(
            "warn",
            f"whether the cluster has {answer.what} is not known: it may not be read, or nodes are added on demand",
        )
    name = answer.what.partition(" ")[0]
    ways = {
        "class": "use one that is there, or make it",
        "resource": "set them aside on a node" if name.startswith("hugepages-") else _plugin(name),
        "spread": "fewer hosts, or placement: any",
        "amount": "ask for less, or add a node that has as much",
        "network": "install Multus and the NetworkAttachmentDefinition",
        "attachment": "make it, or name one that is there: kubectl get network-attachment-definitions --all-namespaces",
        "volcano": "install Volcano, or use scheduler: default",
    }
    return Finding("missing", answer.why, ways[answer.kind])
