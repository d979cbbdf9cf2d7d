"""The Kubernetes objects of a set of queues, as plain data, in the order to apply them."""

import hashlib
import secrets
from typing import Any

from perfdag.kube.client import Object
from perfdag.steps.queue.spec import Data, Queue, Queues

FRONTEND = "perfdag-queue-frontend"
PORTS = {"clients": 9997, "metrics": 9998, "workers": 9999}
_PART = {"app.kubernetes.io/part-of": "perfdag-queue"}


def manifests(queues: Queues, token: str | None = None) -> list[Object]:
    """Return all objects. `token`: of the clients (None: a new random one).

    Raises ValueError if two objects have the same name.
    """
    shared = "the frontend of all queues"
    owned = [(shared, body) for body in _shared(queues, token)]
    for queue in queues.queues:
        owned += [(f"queue {queue.name!r}", body) for body in _of_queue(queues, queue)]
    for owner, body in scaling(queues):
        owned.append((f"queue {owner.name!r}" if owner else shared, body))
    return _distinct(owned)


def _shared(queues: Queues, token: str | None) -> list[Object]:
    rootless = not any(queue.root for queue in queues.queues)
    objects = [_namespace(queues.namespace, rootless), _account(queues.namespace)]
    objects.append(_secret(queues.namespace, token or secrets.token_urlsafe(24)))
    objects += [*_network(queues), frontend(queues), _service(queues.namespace, FRONTEND, PORTS)]
    return objects + (_monitor(queues, queues.monitor) if queues.monitor else [])


def _of_queue(queues: Queues, queue: Queue) -> list[Object]:
    objects = _volume(queues.namespace, queue.data) if queue.data and queue.data.nfs_server else []
    objects += [backend(queues, queue), client(queues, queue)]
    objects.append(_service(queues.namespace, f"{queue.object_name}-client", {"control": 9996}))
    return [*objects, _ingress(queues, queue)] if queues.host_of(queue) else objects


def _distinct(owned: list[tuple[str, Object]]) -> list[Object]:
    """Return every object once, from (owner, object); queues may share an equal volume."""
    by_name: dict[tuple[str, str], tuple[str, Object]] = {}
    for owner, body in owned:
        kind, name = body["kind"], body["metadata"]["name"]
        other, existing = by_name.setdefault((kind, name), (owner, body))
        volume = kind.startswith("PersistentVolume")
        if existing is not body and not (volume and existing == body):
            what = (
                "a `claim` of its own, or one `data` for both"
                if volume
                else "another name for one of them"
            )
            raise ValueError(f"{other} and {owner} both define {kind} {name}: {what}")
    return [body for _, body in by_name.values()]


def _namespace(name: str, restricted: bool) -> Object:
    metadata = meta(None, name)
    metadata["labels"]["pod-security.kubernetes.io/enforce"] = (
        "restricted" if restricted else "baseline"
    )
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def _account(namespace: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": meta(namespace, "perfdag-queue"),
        "automountServiceAccountToken": False,
    }


def _secret(namespace: str, token: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": meta(namespace, "perfdag-queue-token"),
        "stringData": {"token": token},
    }


def _network(queues: Queues) -> list[Object]:
    """Admit pods of the queues to the frontend's queue ports, and any pod to its metrics.

    Clients and backends of the original are admitted too, by its own labels and namespaces.
    """
    own = {"podSelector": {"matchLabels": {"app.kubernetes.io/part-of": "perfdag-queue"}}}
    names = [
        f"scalability-tester-{program}-{queue.name}"
        for queue in queues.queues
        for program in ("backend", "client")
    ]
    original = {
        "podSelector": _one_of("app", names),
        "namespaceSelector": _one_of(
            "kubernetes.io/metadata.name",
            [queues.namespace, queues.monitor or "monitoring", "validation"],
        ),
    }
    inside = {"from": [own, original]}
    return [
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": meta(queues.namespace, FRONTEND),
            "spec": {
                "podSelector": {"matchLabels": {"app.kubernetes.io/name": FRONTEND}},
                "policyTypes": ["Ingress"],
                "ingress": [
                    {**inside, "ports": [{"port": PORTS["clients"]}, {"port": PORTS["workers"]}]},
                    {"ports": [{"port": PORTS["metrics"]}]},
                ],
            },
        }
    ]


def _one_of(label: str, values: list[str]) -> Object:
    return {"matchExpressions": [{"key": label, "operator": "In", "values": values}]}


def _service(namespace: str, name: str, ports: dict[str, int]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta(namespace, name),
        "spec": {
            "selector": {"app.kubernetes.io/name": name},
            "ports": [
                {"name": port, "port": number, "targetPort": number}
                for port, number in ports.items()
            ],
        },
    }


def _monitor(queues: Queues, prometheus: str) -> list[Object]:
    """Return a ServiceMonitor, and the permission of Prometheus to discover its targets."""
    namespace = queues.namespace
    rules = [
        {
            "apiGroups": [""],
            "resources": ["services", "endpoints", "pods"],
            "verbs": ["get", "list", "watch"],
        }
    ]
    rules.append(
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["get", "list", "watch"],
        }
    )
    group, name = "rbac.authorization.k8s.io", "perfdag-queue-monitor"
    subject = {"kind": "ServiceAccount", "name": queues.monitor_account, "namespace": prometheus}
    metadata = meta(namespace, FRONTEND)
    return [
        {
            "apiVersion": f"{group}/v1",
            "kind": "Role",
            "metadata": meta(namespace, name),
            "rules": rules,
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": meta(namespace, name),
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
            "subjects": [subject],
        },
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "ServiceMonitor",
            "metadata": {
                **metadata,
                "labels": {**metadata["labels"], **queues.monitor_labels},
            },
            "spec": {
                "selector": {"matchLabels": {"app.kubernetes.io/name": FRONTEND}},
                "namespaceSelector": {"matchNames": [namespace]},
                "endpoints": [{"port": "metrics", "interval": "5s", "honorLabels": False}],
            },
        },
    ]


def _volume(namespace: str, data: Data) -> list[Object]:
    # A claim names its volume, so every namespace needs its own volume.
    name = f"{data.claim}-{hashlib.sha256(namespace.encode()).hexdigest()[:8]}"
    shared = {"accessModes": ["ReadOnlyMany"], "storageClassName": "", "volumeMode": "Filesystem"}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": meta(None, name),
            "spec": {
                **shared,
                "capacity": {"storage": data.size},
                "persistentVolumeReclaimPolicy": "Retain",
                "mountOptions": ["hard", "ro"],
                "nfs": {"server": data.nfs_server, "path": data.nfs_path, "readOnly": True},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": meta(namespace, data.claim),
            "spec": {
                **shared,
                "volumeName": name,
                "resources": {"requests": {"storage": data.size}},
            },
        },
    ]


def _ingress(queues: Queues, queue: Queue) -> Object:
    name = f"{queue.object_name}-client"
    service = {"service": {"name": name, "port": {"number": 9996}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": meta(queues.namespace, name),
        "spec": {
            "ingressClassName": queues.ingress_class,
            "rules": [
                {
                    "host": queues.host_of(queue),
                    "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": service}]},
                }
            ],
        },
    }


def meta(namespace: str | None, name: str, **more: Any) -> Object:
    """Return the metadata of an object, cluster-wide without a namespace."""
    body: Object = {
        "name": name,
        "labels": {"app.kubernetes.io/part-of": "perfdag-queue", "app.kubernetes.io/name": name},
    }
    return {**body, **({"namespace": namespace} if namespace else {}), **more}


def pod(queues: Queues, name: str, container: Object, root: bool = False, **spec: Any) -> Object:
    """Return a pod template that PodSecurity `restricted` admits (`baseline` with root)."""
    security: Object = {"seccompProfile": {"type": "RuntimeDefault"}}
    selector = {**queues.node_selector, **spec.pop("nodeSelector", {})}
    spec |= {"nodeSelector": selector} if selector else {}
    security |= (
        {"runAsUser": 0}
        if root
        else {"runAsNonRoot": True, "runAsUser": 65534, "runAsGroup": 65534}
    )
    return {
        "metadata": {
            "labels": {"app.kubernetes.io/part-of": "perfdag-queue", "app.kubernetes.io/name": name}
        },
        "spec": {
            "serviceAccountName": "perfdag-queue",
            "automountServiceAccountToken": False,
            "securityContext": security,
            "containers": [
                {
                    "imagePullPolicy": queues.pull,
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    **container,
                }
            ],
            **spec,
        },
    }


def _deployment(namespace: str, name: str, replicas: int | None, template: Object) -> Object:
    spec: Object = {
        "selector": {"matchLabels": {"app.kubernetes.io/name": name}},
        "template": template,
    }
    if replicas is not None:
        spec["replicas"] = replicas
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta(namespace, name),
        "spec": spec,
    }


def _healthy(port: int) -> Object:
    return {"httpGet": {"path": "/healthz", "port": port}, "periodSeconds": 2, "timeoutSeconds": 2}


def frontend(queues: Queues) -> Object:
    """Return the Deployment of the frontend of all queues."""
    command = ["perfdag", "queue", "frontend"]
    command += ["--caddr", ":9997", "--maddr", ":9998", "--waddr", ":9999"]
    command += ["--qmax", str(queues.longest), "--retries", str(queues.retries)]
    command += ["--reply-timeout", f"{queues.reply_timeout:g}"] if queues.reply_timeout else []
    command += [queue.name for queue in queues.queues]
    container = {
        "name": "frontend",
        "image": queues.image,
        "command": command,
        "ports": [{"name": name, "containerPort": port} for name, port in PORTS.items()],
        "readinessProbe": _healthy(PORTS["metrics"]),
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
    }
    deployment = _deployment(queues.namespace, FRONTEND, 1, pod(queues, FRONTEND, container))
    deployment["spec"]["strategy"] = {"type": "Recreate"}  # two frontends would split a queue
    return deployment


def backend(queues: Queues, queue: Queue, exits: bool = False) -> Object:
    """Return the backends' Deployment; with `exits` they end on an empty queue, for Jobs."""
    command = ["perfdag", "queue", "backend", "--faddr", f"{FRONTEND}:9999", "--name", queue.name]
    command += ["--limit", f"{queue.limit:g}"]
    command += ["--node-env", "NODE_NAME", "--pod-env", "POD_NAME", "--null-in"]
    command += ["--backoff", "0"] if exits else ["--backoff", "0.05", "--backoff-max", "0.5"]
    command += ["--glob", queue.glob] if queue.glob else []
    command += ["--dir", queue.dir] if queue.dir else []
    command += ["--ignore"] if queue.ignore else []
    command += ["--null-out"] if queue.null_out else []
    fields = (("NODE_NAME", "spec.nodeName"), ("POD_NAME", "metadata.name"))
    container: Object = {
        "name": "backend",
        "image": queue.image or queues.image,
        "command": [*command, "--", *queue.command],
        "env": [
            *({"name": name, "value": value} for name, value in queue.env.items()),
            *(
                {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
                for name, path in fields
            ),
        ],
        "resources": {"requests": {**queue.requests, **queue.resources}, "limits": queue.resources},
    }
    spec: Object = {"terminationGracePeriodSeconds": queue.grace_seconds}
    if queue.data:
        container["volumeMounts"] = [
            {"name": "data", "mountPath": queue.data.mount, "readOnly": True}
        ]
        spec["volumes"] = [
            {
                "name": "data",
                "persistentVolumeClaim": {"claimName": queue.data.claim, "readOnly": True},
            }
        ]
    spec |= {"nodeSelector": queue.node_selector} if queue.node_selector else {}
    spec |= {"tolerations": queue.tolerations} if queue.tolerations else {}
    template = pod(queues, queue.object_name, container, queue.root, **spec)
    # With an autoscaler, the manifest must not reset the number of replicas.
    replicas = None if queue.autoscale.by in ("custom", "external") else queue.replicas
    return _deployment(queues.namespace, queue.object_name, replicas, template)


def client(queues: Queues, queue: Queue) -> Object:
    """Return the Deployment of a queue's client."""
    name = f"{queue.object_name}-client"
    command = ["perfdag", "queue", "client", "--caddr", ":9996", "--faddr", f"{FRONTEND}:9997"]
    command += ["--name", queue.name, "--req-now", str(queue.parallel)]
    command += ["--req-max", str(max(queue.parallel, queue.most_parallel))]
    # With a limit, the frontend drops backends that hang.
    command += ["--limit", f"{queue.limit:g}"] if queue.limit else []
    command += ["--", *queue.arguments] if queue.arguments else []
    token = {"name": "perfdag-queue-token", "key": "token"}
    container: Object = {
        "name": "client",
        "image": queues.image,
        "command": command,
        "env": [{"name": "PERFDAG_QUEUE_TOKEN", "valueFrom": {"secretKeyRef": token}}],
        "ports": [{"name": "control", "containerPort": 9996}],
        "readinessProbe": _healthy(9996),
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
    }
    return _deployment(queues.namespace, name, 1, pod(queues, name, container))


def scaling(queues: Queues) -> list[tuple[Queue | None, Object]]:
    """Return the scaling objects with their queues (None: shared)."""
    objects: list[tuple[Queue | None, Object]] = []
    for queue in queues.queues:
        by = queue.autoscale.by
        if by in ("custom", "external"):
            objects.append((queue, hpa(queues.namespace, queue)))
        elif by == "cron":
            objects.append((queue, _cron(queues, queue)))
    if any(queue.autoscale.by in ("custom", "external") for queue in queues.queues):
        objects.append((None, _adapter(queues.namespace)))
    return objects


def hpa(namespace: str, queue: Queue) -> Object:
    """Return the autoscaler of a queue: double or add 4 in 5 s, scale in after a stable window."""
    scale = queue.autoscale
    if scale.by == "custom":
        described = {"apiVersion": "v1", "kind": "Service", "name": FRONTEND}
        name = {"name": "hpa_queue_wait_time", "selector": {"matchLabels": {"name": queue.name}}}
        metric: Object = {
            "type": "Object",
            "object": {
                "describedObject": described,
                "metric": name,
                "target": {"type": "Value", "value": _quantity(scale.wait)},
            },
        }
    else:
        name = {"name": "hpa_queue_all", "selector": {"matchLabels": {"name": queue.name}}}
        target = {"type": "AverageValue", "averageValue": _quantity(scale.items)}
        metric = {"type": "External", "external": {"metric": name, "target": target}}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": queue.object_name, "namespace": namespace, "labels": _PART},
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "name": queue.object_name,
            },
            "minReplicas": max(1, scale.least),
            "maxReplicas": scale.most,
            "metrics": [metric],
            "behavior": _behavior(scale.window),
        },
    }


def _behavior(window: int) -> Object:
    double = {"type": "Percent", "value": 100, "periodSeconds": 5}
    four = {"type": "Pods", "value": 4, "periodSeconds": 5}
    return {
        "scaleDown": {"stabilizationWindowSeconds": window, "policies": [double]},
        "scaleUp": {
            "stabilizationWindowSeconds": 0,
            "selectPolicy": "Max",
            "policies": [double, four],
        },
    }


def _quantity(value: float) -> str:
    return f"{round(value * 1000)}m"


def _adapter(namespace: str) -> Object:
    """Return prometheus-adapter's rules for both kinds of metrics."""
    override = {
        "overrides": {"namespace": {"resource": "namespace"}, "service": {"resource": "service"}}
    }
    rules = [
        {
            "seriesQuery": f'{series}{{namespace="{namespace}"}}',
            "metricsQuery": f"max({series}{{<<.LabelMatchers>>}}) by (<<.GroupBy>>)",
            "name": {"matches": series, "as": alias},
            "resources": override,
        }
        for series, alias in (
            ("hpa_queue_all", "hpa_queue_all"),
            ("hpa_queue_waiting", "hpa_queue_wait_count"),
            ("hpa_queue_maxwait_seconds", "hpa_queue_wait_time"),
        )
    ]
    import yaml

    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "perfdag-queue-adapter-rules",
            "namespace": namespace,
            "labels": _PART,
        },
        "data": {
            "config.yaml": yaml.safe_dump({"rules": rules, "externalRules": rules}, sort_keys=False)
        },
    }


def _job(queues: Queues, queue: Queue, backends: int) -> Object:
    """Return the specification of a Job with so many backends, which end on an empty queue."""
    template = backend(queues, queue, exits=True)["spec"]["template"]
    template["spec"]["restartPolicy"] = "OnFailure"
    # The Deployment must not select these pods.
    template["metadata"]["labels"]["app.kubernetes.io/name"] += "-job"
    return {
        "ttlSecondsAfterFinished": 300,
        "parallelism": backends,
        "completions": backends,
        "backoffLimit": 6,
        "template": template,
    }


def _cron(queues: Queues, queue: Queue) -> Object:
    """Return a CronJob that starts backends at fixed times; they end when the queue is empty."""
    scale = queue.autoscale
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": queue.object_name, "namespace": queues.namespace, "labels": _PART},
        "spec": {
            "schedule": scale.schedule,
            "concurrencyPolicy": "Allow",
            "successfulJobsHistoryLimit": 1,
            "failedJobsHistoryLimit": 3,
            "jobTemplate": {"spec": _job(queues, queue, scale.parallelism)},
        },
    }
