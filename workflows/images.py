"""The pod that pulls an image on a node before the batches begin."""

import json

from hera.workflows import Container, Parameter
from hera.workflows import models as m

from perfdag.kube.config import SERVICE_ACCOUNT
from perfdag.kube.pod_security import step_pod_patch
from perfdag.workflows.containers import Installation, container, labels

PULL = ("image", "node", "shape")
"""Inputs of the pod. The plan step lists them for each image that a node lacks."""
_NODE, _TOLERATIONS = "@NODE@", "@TOLERATIONS@"


def pull_pod(installation: Installation) -> Container:
    """Return the template of the pod: it runs the image on the node, and prints its version.

    No scheduler places it: on a full node it fails at once, and the batches do not wait. It has the
    tolerations of the shape.
    """
    return container(
        installation,
        "pull-pod",
        (),
        store_env=False,
        image="{{inputs.parameters.image}}",
        args=["--version"],
        inputs=[Parameter(name=name) for name in PULL],
        service_account_name="perfdag-measure",
        # A mount at the path of the token keeps Kubernetes from mounting the token there.
        volumes=[m.Volume(name="no-token", empty_dir=m.EmptyDirVolumeSource())],
        volume_mounts=[m.VolumeMount(name="no-token", mount_path=str(SERVICE_ACCOUNT))],
        labels=labels("pull", "{{workflow.outputs.parameters.run}}"),
        pod_spec_patch=_patch(),
    )


def _patch() -> str:
    """Return an expression for the patch of the pod, with its node and its tolerations."""
    spec = step_pod_patch({"cpu": "10m", "memory": "32Mi"})
    spec |= {"nodeName": _NODE, "tolerations": _TOLERATIONS}
    # two closing braces would end the expression
    text = json.dumps(spec, separators=(",", ":"), sort_keys=True).replace("}", "} ")
    path = "'$['+inputs.parameters.shape+'].patch.tolerations'"
    tolerations = f"toJson(jsonpath(workflow.outputs.parameters.shapes, {path}))"
    placed = f"replace('{text}', '{_NODE}', inputs.parameters.node)"
    return f"{{{{=replace({placed}, '\"{_TOLERATIONS}\"', {tolerations})}}}}"
