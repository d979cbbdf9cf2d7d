"""Gates: a metric compared with a value or with a multiple of another metric.

Missing data is a breach.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

_FORM = re.compile(
    r"\s*([\w./:-]+)\s*(<=|>=|<|>)\s*(?:([\d.eE+-]+)|([\d.eE+-]+)\s*\*\s*([\w./:-]+))\s*"
)
_NEVER_ABOVE = {
    f"{phase}{name}_p99": f"{phase}{name}_slowest"
    for phase in ("", "deletion/")
    for name in ("api", "api_list")
}
"""Upper bounds that replace a percentile with too few requests. They can only show that a gate
passed.
"""
_OPS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Gate:
    """`metric op value`, or `metric op ratio * other`."""

    metric: str
    op: str
    value: float
    other: str | None = None

    def __str__(self) -> str:
        return f"{self.metric} {self.op} {self.value:g}" + (
            f" * {self.other}" if self.other else ""
        )


@dataclass(frozen=True)
class Verdict:
    """The outcome of a gate. `passed` is None without data, which counts as a breach."""

    gate: Gate
    value: float | None
    threshold: float | None
    passed: bool | None

    @property
    def ratio(self) -> float | None:
        """The metric as a multiple of the gate's other metric; None without data."""
        if self.value is None or not self.threshold:
            return None
        return self.value * self.gate.value / self.threshold

    def figures(self) -> str:
        """Return the figures that decided, or which one was absent."""
        if self.passed is None:
            return f"no data for {self.gate.metric if self.value is None else self.gate.other}"
        return f"{self.value:.6g} against {self.threshold:.6g}"

    def __str__(self) -> str:
        outcome = {True: ", passed", False: ", BREACHED", None: ""}[self.passed]
        return f"gate {self.gate}: {self.figures()}{outcome}"


def parse_gate(text: str) -> Gate:
    """Parse a gate such as `api_p99 < 1`. Raises ValueError with the expected form."""
    match = _FORM.fullmatch(text)
    try:
        if not match:
            raise ValueError
        return Gate(match[1], match[2], float(match[3] or match[4]), match[5])
    except ValueError:
        raise ValueError(
            f"not a gate: {text!r}; write METRIC < VALUE, or METRIC < RATIO * METRIC"
        ) from None


def check_gates(texts: list[str]) -> list[str]:
    """Return the texts of gates. Raises ValueError for one that is no gate."""
    for text in texts:
        parse_gate(text)
    return texts


SLO = (Gate("api_p99", "<", 1.0), Gate("api_list_p99", "<", 30.0))
"""Limits of the Kubernetes API in seconds (kubernetes/community, slos/api_call_latency.md)."""


def with_slo(own: Sequence[Gate]) -> list[Gate]:
    """Return the API limits and the own gates. An own gate replaces a limit on the same metric."""
    metrics = {gate.metric for gate in own}
    return [*(limit for limit in SLO if limit.metric not in metrics), *own]


def evaluate(gates: Sequence[Gate], figures: Mapping[str, float | None]) -> list[Verdict]:
    """Compare all gates with the figures of a run; NaN counts as absent."""
    return [_evaluate(gate, figures) for gate in gates]


def _evaluate(gate: Gate, figures: Mapping[str, float | None]) -> Verdict:
    value = _present(figures.get(gate.metric))
    most = _present(figures.get(_NEVER_ABOVE.get(gate.metric, "")))
    if (
        value is None
        and most is not None
        and gate.op in ("<", "<=")
        and not gate.other
        and _OPS[gate.op](most, gate.value)
    ):
        return Verdict(gate, most, gate.value, True)
    base = _present(figures.get(gate.other)) if gate.other else 1.0
    if value is None or base is None:
        return Verdict(gate, value, None, None)
    threshold = gate.value * base
    return Verdict(gate, value, threshold, _OPS[gate.op](value, threshold))


def _present(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


def breaches(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return the verdicts that did not pass."""
    return [verdict for verdict in verdicts if not verdict.passed]
