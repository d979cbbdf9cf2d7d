"""Objects with which a cluster scales backends by the frontend's metrics.

They are a HorizontalPodAutoscaler with a custom or an external metric, or a CronJob whose backends
end when the queue is empty. A ConfigMap holds the rules of prometheus-adapter.
"""

from perfdag.kube.resources import Object
from perfdag.steps.queue.manifests.deployments import FRONTEND, backend
from perfdag.steps.queue.manifests.model import Queue, Queues

_PART = {"app.kubernetes.io/part-of": "perfdag-queue"}


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
