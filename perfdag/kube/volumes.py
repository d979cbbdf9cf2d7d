"""The volumes of a measuring pod, and the claims that its batch shares."""

from perfdag.kube.placeholders import BATCH
from perfdag.kube.resources import Object
from perfdag.shape import Shape
from perfdag.volume import Volume

VOLUME = "/perfdag/volume"


def add_volumes(shape: Shape, spec: Object, main: Object, workflow_uid: str) -> None:
    """Add the volumes of a shape to a pod spec and to its measuring container."""
    if shape.shm is not None:
        spec["volumes"].append(
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(shape.shm)}}
        )
        main["volumeMounts"].append({"name": "shm", "mountPath": "/dev/shm"})
    for name in shape.hugepages:
        size = name.removeprefix("hugepages-")
        volume = f"huge-{size.lower()}"
        spec["volumes"].append({"name": volume, "emptyDir": {"medium": f"HugePages-{size}"}})
        main["volumeMounts"].append({"name": volume, "mountPath": f"/dev/hugepages-{size}"})
    if shape.volume is None:
        return
    spec["volumes"].append({"name": "measured", **_source(shape.volume, workflow_uid)})
    if shape.volume.mode == "Block":
        main["volumeDevices"] = [{"name": "measured", "devicePath": VOLUME}]
    else:
        main["volumeMounts"].append({"name": "measured", "mountPath": VOLUME})


def _source(volume: Volume, workflow_uid: str) -> Object:
    if volume.kind == "hostPath":
        return {"hostPath": {"path": volume.path, "type": "DirectoryOrCreate"}}
    if volume.kind == "emptyDir":
        return {"emptyDir": {"medium": volume.medium, "sizeLimit": str(volume.size)}}
    if volume.claim:
        return {"persistentVolumeClaim": {"claimName": volume.claim}}
    if volume.batch_claim:
        return {"persistentVolumeClaim": {"claimName": shared_claim(workflow_uid, BATCH)}}
    return {"ephemeral": {"volumeClaimTemplate": {"spec": claim_spec(volume)}}}


def shared_claim(workflow_uid: str, batch: str) -> str:
    """Return the name of the claim that the pods of a batch share.

    The Workflow owns the claim, so a resumed run gets another one.
    """
    return f"perfdag-{workflow_uid}-b{batch}"


def claim_spec(volume: Volume) -> Object:
    """Return the spec of the claim of a volume."""
    spec: Object = {
        "accessModes": [volume.access],
        "volumeMode": volume.mode,
        "resources": {"requests": {"storage": str(volume.size)}},
    }
    if volume.storage_class:
        spec["storageClassName"] = volume.storage_class
    template = volume.claim_template
    return spec | (template.model_dump(mode="json", exclude_none=True) if template else {})
