"""The measured storage of a shape."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from perfdag.pod_text import FOLDER, LabelKey, LabelValue, Name, ObjectName, Strict
from perfdag.quantities import Quantity, parse_quantity
from perfdag.units import Size

Access = Literal["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"]


class LabelExpression(Strict):
    """A condition for labels, as in Kubernetes."""

    key: LabelKey
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[LabelValue] | None = None


class VolumeSelector(Strict):
    """The labels of existing volumes, as in Kubernetes."""

    matchLabels: dict[LabelKey, LabelValue] | None = None
    matchExpressions: list[LabelExpression] | None = None


class DataSource(Strict):
    """The object whose data a new volume gets, as in Kubernetes."""

    apiGroup: Name | None = None
    kind: Name
    name: Name


class ClaimStorage(Strict):
    """The size of a claim, as in Kubernetes."""

    storage: Quantity


class ClaimResources(Strict):
    """The sizes of a claim, as in Kubernetes."""

    requests: ClaimStorage
    limits: ClaimStorage | None = None


class ClaimTemplate(Strict):
    """The spec of a PersistentVolumeClaim. Its fields are those of Kubernetes 1.34."""

    accessModes: Annotated[list[Access], Field(min_length=1, max_length=1)] | None = None
    resources: ClaimResources | None = None
    storageClassName: LabelValue | None = None
    volumeMode: Literal["Filesystem", "Block"] | None = None
    volumeName: ObjectName | None = None
    volumeAttributesClassName: ObjectName | None = None
    selector: VolumeSelector | None = None
    dataSource: DataSource | None = None
    dataSourceRef: DataSource | None = None

    def keys(self) -> dict[str, Any]:
        """Return the keys of a volume that say the same as this spec."""
        access = self.accessModes and self.accessModes[0].replace("OncePod", "Once")
        size = self.resources and int(parse_quantity(self.resources.requests.storage))
        keys = {
            "storage_class": self.storageClassName,
            "access": access,
            "mode": self.volumeMode,
            "size": size,
        }
        return {key: value for key, value in keys.items() if value}

    def existing(self) -> list[str]:
        """Return the names of the existing objects whose data the pod gets."""
        sources = (self.dataSource, self.dataSourceRef)
        names = [self.volumeName, *(source.name for source in sources if source)]
        return [name for name in names if name]


class Volume(Strict):
    """The measured storage: a claim for each pod (RWO) or all (RWX), hostPath or emptyDir."""

    kind: Literal["claim", "hostPath", "emptyDir"] = Field("claim", description="kind of volume")
    storage_class: ObjectName | None = Field(
        None, description="StorageClass of a new claim; unset: the default of the cluster"
    )
    size: Size = Field(1 << 30, description="bytes, or text such as 5GiB")
    access: Literal["ReadWriteOnce", "ReadWriteMany"] = Field(
        "ReadWriteOnce", description="ReadWriteMany: all hosts share one claim"
    )
    mode: Literal["Filesystem", "Block"] = Field(
        "Filesystem", description="Block: a raw device; needs privileges: [block]"
    )
    path: str | None = Field(
        None,
        pattern=FOLDER,
        description="hostPath: the folder on the node, writable for uid 1000 "
        "(one that is absent is made for root alone); recorded as reused",
    )
    medium: Literal["", "Memory"] = Field("", description="emptyDir: Memory for a tmpfs")
    claim: ObjectName | None = Field(
        None,
        description="an existing claim, used and not deleted; "
        "recorded as reused (env.sample.volume_reused)",
    )

    claim_template: ClaimTemplate | None = Field(
        None,
        description="the spec of a PersistentVolumeClaim, for what the other keys cannot say; "
        "a claim for each pod, or for all (ReadWriteMany)",
    )

    @model_validator(mode="before")
    @classmethod
    def _take_keys(cls, raw: Any) -> Any:
        template = raw.get("claim_template") if isinstance(raw, dict) else None
        try:
            return {**ClaimTemplate.model_validate(template).keys(), **raw} if template else raw
        except ValidationError:
            return raw  # reported at its own path

    @model_validator(mode="after")
    def _check_template(self) -> Self:
        if self.claim_template is None:
            return self
        if self.kind != "claim" or self.claim:
            raise ValueError("claim_template makes a new claim; leave out kind and claim")
        for key, value in self.claim_template.keys().items():
            if getattr(self, key) != value:
                raise ValueError(f"claim_template has another {key}: {value}; leave out {key}")
        return self

    @property
    def known_size(self) -> int | None:
        """The size in bytes, or None for an existing claim or folder without a `size`."""
        existing = self.kind == "hostPath" or self.claim is not None
        return None if existing and "size" not in self.model_fields_set else self.size

    @property
    def batch_claim(self) -> bool:
        """Whether the pods of a batch share a claim that is created for them."""
        return self.common and not self.claim

    @property
    def created(self) -> bool:
        """Whether each batch has claims of its own."""
        return self.kind == "claim" and self.claim is None

    @property
    def common(self) -> bool:
        """Whether all pods of a gang share the volume, on whatever nodes they are."""
        return self.kind == "claim" and (self.claim is not None or self.access == "ReadWriteMany")
