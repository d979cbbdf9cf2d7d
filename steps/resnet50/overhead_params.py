"""Parameters of an overhead comparison."""

from pydantic import Field, model_validator

from perfdag.benchmark import contract
from perfdag.benchmark.rules import refuse
from perfdag.steps.resnet50.params import Workload
from perfdag.steps.resnet50.system_params import Text
from perfdag.units import Duration

ANTAGONISTS = ("server", "single-stream", "multi-stream")
"""Scenarios of a model beside another."""


class AntagonistParams(contract.Params):
    """The antagonist beside the program: a command, or another model."""

    command: list[Text] = Field(
        [], max_length=64, description="argv that lasts until it is stopped: stress-ng --cpu 2"
    )
    model: Workload | None = Field(
        None, description="another workload, with its own batch, runtime and device"
    )
    settle: Duration = Field(1.0, description="seconds between the start of command and the run")

    @model_validator(mode="after")
    def _one(self) -> "AntagonistParams":
        refuse(
            (
                bool(self.command) == (self.model is not None),
                "an antagonist is a command or a model: give one of them",
            ),
            (
                # Offline makes one query of all samples, and is idle meanwhile
                self.model is not None and self.model.scenario not in ANTAGONISTS,
                "a model beside another runs server, single-stream or multi-stream",
            ),
        )
        return self

    @property
    def title(self) -> str:
        """The first words of the command, or what the model is."""
        if self.model is None:
            return " ".join(self.command)[:40]
        return f"{self.model.runtime} {self.model.scenario} b{self.model.batch}"


class OverheadParams(Workload):
    """Baseline (plain) against treatment (wrapper, wrapper_env, antagonist), in ABBA blocks."""

    pairs: int = Field(6, ge=2, le=200, description="pairs of one baseline and one treatment each")
    limit: float = Field(
        0.05, gt=0, lt=1, description="relative overhead that the treatment must stay under"
    )
    treatment_python: Text | None = Field(
        None,
        description="interpreter of the treatment if its path differs there,"
        " as in the pod that a wrapper enters; unset: python",
    )

    antagonist: AntagonistParams | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="what runs beside the treatment, a cell of a matrix of interference",
    )

    @model_validator(mode="after")
    def _treated(self) -> "OverheadParams":
        if not (self.wrapper or self.wrapper_env or self.antagonist):
            raise ValueError(
                "the treatment is not named: give wrapper (an argv), wrapper_env or antagonist"
            )
        if self.scenario in ("find-peak", "accuracy"):
            raise ValueError("overhead compares offline, server or single-stream")
        return self
