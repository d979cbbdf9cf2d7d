"""The options of an installation."""

from dataclasses import dataclass, field
from typing import Any

from hera.workflows import WorkflowTemplate, models as m

from perfdag import IMAGES
from perfdag.kube.client import Object
from perfdag.kube.patch import STORE_ADDRESS

SHARED = {"app.kubernetes.io/name": "perfdag", "app.kubernetes.io/managed-by": "perfdag"}
"""The labels of objects that all installations of a cluster share."""


@dataclass(frozen=True)
class Installation:
    """The options of `perfdag install`. Times are in seconds."""

    namespace: str = "default"
    images: str = IMAGES
    store: str = ""
    store_secret: str = "perfdag-store"
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    namespaced: bool = False
    lock_namespace: str = "perfdag"
    """Installations with the same one measure in turn. The namespace need not exist."""
    parallel_batches: int = 1
    deadline: int = 7 * 86400
    pending_limit: int = 600
    """How long a pod that does not measure may wait to start."""
    keep: int = 7 * 86400
    """How long a Workflow stays after its end."""
    keep_pods: int = 600
    """How long a pod stays after its end, with its log and the claim that is its own."""
    network_policy: bool = True
    allow: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Benchmarks with rights of their own, and the namespaces where these hold."""

    def image(self, name: str) -> str:
        """Return the image with that name."""
        return self.images.replace("{name}", name)

    @property
    def labels(self) -> Object:
        """The labels of its own objects."""
        return {**SHARED, "app.kubernetes.io/instance": self.namespace}

    def template(self, name: str, description: str, **fields: Any) -> WorkflowTemplate:
        """Return an empty template of the installation, to add its steps to.

        A Workflow of it stays for a while, its pods for a shorter one, and no pod gets a sidecar.
        """
        return WorkflowTemplate(
            name=name,
            namespace=self.namespace,
            labels=self.labels,
            annotations={
                "workflows.argoproj.io/description": description,
                STORE_ADDRESS: self.store,
            },
            image_pull_secrets=[m.LocalObjectReference(name=name) for name in self.pull_secrets]
            or None,
            ttl_strategy=m.TTLStrategy(seconds_after_completion=self.keep),
            pod_gc=m.PodGC(strategy="OnPodCompletion", delete_delay_duration=f"{self.keep_pods}s"),
            pod_metadata=m.Metadata(
                annotations={"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled"}
            ),
            **fields,
        )
