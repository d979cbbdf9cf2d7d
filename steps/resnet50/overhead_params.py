"""Parameters of an overhead comparison."""

from pydantic import Field, model_validator

from perfdag.steps.resnet50.params import Workload
from perfdag.steps.resnet50.system_params import Text


class OverheadParams(Workload):
    """Baseline (plain) against treatment (wrapper, wrapper_env), in ABBA blocks."""

    pairs: int = Field(6, ge=2, le=200, description="pairs of one baseline and one treatment each")
    limit: float = Field(
        0.05, gt=0, lt=1, description="relative overhead that the treatment must stay under"
    )
    treatment_python: Text | None = Field(
        None,
        description="interpreter of the treatment if its path differs there,"
        " as in the pod that a wrapper enters; unset: python",
    )

    @model_validator(mode="after")
    def _treated(self) -> "OverheadParams":
        if not self.wrapper and not self.wrapper_env:
            raise ValueError("the treatment is not named: give wrapper (an argv) or wrapper_env")
        if self.scenario in ("find-peak", "accuracy"):
            raise ValueError("overhead compares offline, server or single-stream")
        return self
