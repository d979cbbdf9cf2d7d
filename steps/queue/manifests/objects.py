"""The Kubernetes objects of a set of queues, as plain data, in the order to apply them."""

import hashlib
import secrets

from perfdag.kube.resources import Object
from perfdag.steps.queue.manifests.deployments import (
    FRONTEND,
    PORTS,
    backend,
    client,
    frontend,
    meta,
)
from perfdag.steps.queue.manifests.model import Data, Queue, Queues
from perfdag.steps.queue.manifests.scalers import scaling


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
