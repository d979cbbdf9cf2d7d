"""Our ScaledObject and ScaledJob against KEDA's own definitions of them.

PERFDAG_TEST_KEDA names a checkout of https://github.com/kedacore/keda.
"""

import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from perfdag.steps.queue.manifests.model import Queues
from perfdag.steps.queue.manifests.objects import manifests

CHECKOUT = os.environ.get("PERFDAG_TEST_KEDA", "")
KINDS = {"keda": "ScaledObject", "keda-job": "ScaledJob"}
pytestmark = pytest.mark.skipif(
    not CHECKOUT, reason="KEDA's manifests were NOT validated: PERFDAG_TEST_KEDA names no checkout"
)


def schema(kind: str) -> dict[str, Any]:
    """Return the schema of a kind, which refuses fields that the API server would prune."""
    file = Path(CHECKOUT) / f"config/crd/bases/keda.sh_{kind.lower()}s.yaml"
    definition = yaml.safe_load(file.read_text())
    [version] = definition["spec"]["versions"]
    body: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    body["properties"]["metadata"]["x-kubernetes-preserve-unknown-fields"] = True
    result: dict[str, Any] = closed(body)
    return result


def closed(part: Any) -> Any:
    """Refuse unknown fields of every object whose fields are listed."""
    if isinstance(part, list):
        return [closed(item) for item in part]
    if not isinstance(part, dict):
        return part
    part = {key: closed(value) for key, value in part.items()}
    listed = isinstance(part.get("properties"), dict) and part.get("type") == "object"
    if listed and not part.get("x-kubernetes-preserve-unknown-fields"):
        part.setdefault("additionalProperties", False)
    return part


def scaler(by: str) -> dict[str, Any]:
    queue = {
        "name": "media",
        "command": ["/usr/bin/ffmpeg", "-i", "/data/in.mp4"],
        "limit": 60,
        "env": {"LIBVA_DRIVER_NAME": "iHD"},
        "resources": {"gpu.intel.com/i915": 1},
        "data": {"nfs_server": "192.0.2.1", "nfs_path": "/media"},
        "tolerations": [{"operator": "Exists"}],
        "autoscale": {"by": by, "least": 0, "most": 9},
    }
    objects = manifests(Queues.model_validate({"monitor": "monitoring", "queues": [queue]}))
    [body] = [body for body in objects if body["kind"] == KINDS[by]]
    return body


@pytest.mark.parametrize("by", KINDS)
def test_keda_admits_our_manifests(by: str) -> None:
    jsonschema.Draft202012Validator(schema(KINDS[by])).validate(scaler(by))


@pytest.mark.parametrize("by", KINDS)
@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "maxReplicaCount"), "nine"),
        (("spec", "maxReplicas"), 9),
        (("spec", "triggers"), None),
        (("spec", "triggers", 0, "metadata", "threshold"), 0.8),
    ],
)
def test_the_definitions_refuse_what_is_wrong(by: str, path: tuple[Any, ...], value: Any) -> None:
    body = part = scaler(by)
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema(KINDS[by])).validate(body)
