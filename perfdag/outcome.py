"""The outcome of a sample: its measurements, or the error why it has no valid value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

VERDICT = "verdict"
"""The metric of a benchmark's own verdict."""
VerdictWord = Literal["failed", "inconclusive", "passed"]
VERDICT_VALUES: dict[VerdictWord, float] = {"failed": 0.0, "inconclusive": 0.5, "passed": 1.0}


@dataclass(frozen=True)
class Measurement:
    """One value of one metric.

    `coords` are coordinates that the tool reports (message_bytes, direction). `n` counts the
    observations behind the value. `subject` names the part of the sample that it belongs to.
    `note` says what a number cannot, such as the figure that decided a verdict. `step` is by how
    much the tool's clock or its print can be off, in the unit of the value.
    """

    metric: str
    value: float
    stat: str = "value"
    coords: Mapping[str, Any] = field(default_factory=dict)
    n: int | None = None
    subject: str | None = None
    note: str | None = None
    step: float = 0.0


def verdict(
    word: VerdictWord, rule: str, note: str, coords: Mapping[str, Any] | None = None
) -> Measurement:
    """Return the verdict of a benchmark by one of its rules; `note` has the figure that decided."""
    return Measurement(VERDICT, VERDICT_VALUES[word], coords=coords or {}, subject=rule, note=note)


class SampleError(Exception):
    """A sample without a valid value.

    `texts` holds the output of the tools. `measurements` holds the values that could be read. They
    become rows with the status of the sample.
    """

    status: ClassVar[str] = "failed"

    def __init__(
        self,
        reason: str,
        texts: Mapping[str, str] | None = None,
        measurements: Sequence[Measurement] = (),
    ) -> None:
        super().__init__(reason)
        self.texts = dict(texts or {})
        self.measurements = list(measurements)


class Failed(SampleError):
    """The tool failed or did not print what its parameters imply."""


class Skip(SampleError):
    """The sample cannot be measured here, as a tool, a device or a right is missing."""

    status = "skipped"


class Invalid(SampleError):
    """The tool ran, but did not measure what the sample claims."""

    status = "invalid"


class Infrastructure(SampleError):
    """A fault of the infrastructure, such as a lost peer. The sample is retried `retries` times.

    Its rows are `failed` if no retry helps.
    """

    status = "infrastructure"
