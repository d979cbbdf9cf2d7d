"""Parameters of an interference run."""

from typing import Literal

from pydantic import Field, model_validator

from perfdag.steps.resnet50.params import Workload


class InterferenceParams(Workload):
    """Copies of one workload on one device or node: each alone, then all at once."""

    copies: int = Field(
        2,
        ge=2,
        le=64,
        description="copies at once: on the gang's hosts in turn, or as processes of one host",
    )
    shared: Literal["device", "node"] | None = Field(
        None,
        description="what the copies are proven to share; unset: on cuda one GPU, else the node;"
        " node: GPUs of one node may differ",
    )
    memory_share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of the device's memory that a copy may see; more is invalid",
    )
    device_memory: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="bytes of the whole device; memory_share needs it",
    )

    @model_validator(mode="after")
    def _measured(self) -> "InterferenceParams":
        if self.scenario in ("find-peak", "accuracy"):
            raise ValueError("interference runs offline, server or single-stream")
        if self.memory_share is not None and self.device_memory is None:
            raise ValueError(
                "memory_share needs device_memory, bytes of the whole device:"
                " a copy cannot tell what was hidden from it"
            )
        return self
