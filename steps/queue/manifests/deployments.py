"""The Deployments of a set of queues: frontend, backends and clients."""

from typing import Any

from perfdag.kube.resources import Object
from perfdag.steps.queue.manifests.model import Queue, Queues

FRONTEND = "perfdag-queue-frontend"
PORTS = {"clients": 9997, "metrics": 9998, "workers": 9999}


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
