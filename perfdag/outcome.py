"""The outcome of a sample: its measurements, or the error that explains why it has no valid value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True)
class Measurement:
    """One value of one metric. `coords` are produced by the tool (message_bytes, direction), `n` counts the observations behind it."""

    metric: str
    value: float
    stat: str = "value"
    coords: Mapping[str, Any] = field(default_factory=dict)
    n: int | None = None
    subject: str | None = None


class SampleError(Exception):
    """A sample that yields no valid value. `texts` keeps what the tools said, `measurements` what was read all the same: rows of its status."""

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
    """It cannot be measured here, and that is nobody's fault: a tool, a device or a right is missing."""

    status = "skipped"


class Invalid(SampleError):
    """It ran, but what it measured is not what it claims. `measurements` keeps the values that were read, to be marked invalid."""

    status = "invalid"


class Infrastructure(SampleError):
    """A fault of the machinery (a peer is gone, ssh broke), not of what is measured: the sample is retried `retries` times."""
