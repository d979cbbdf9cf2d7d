"""Rights of the queues' benchmarks in the namespaces of the queues."""

from typing import Any

READ_RULES: tuple[dict[str, Any], ...] = (
    {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "list"]},
    {"apiGroups": ["apps"], "resources": ["replicasets"], "verbs": ["list"]},
    {"apiGroups": ["autoscaling"], "resources": ["horizontalpodautoscalers"], "verbs": ["list"]},
    {"apiGroups": ["batch"], "resources": ["cronjobs"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["services/proxy"], "verbs": ["get", "create"]},
    {
        "apiGroups": [""],
        "resources": ["secrets"],
        "resourceNames": ["perfdag-queue-token"],
        "verbs": ["get"],
    },
)
"""Find a Deployment, its pods and what scales it, and drive the client of its queue."""
