"""Gates: a metric compared with a value or with a multiple of another metric.

Missing data is a breach. A gate on an unknown figure is refused before the run.
"""

import difflib
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from perfdag.stats.robust import needed
from perfdag.steps.scale.figures import prometheus
from perfdag.steps.scale.figures.api_metrics import DELETION, VERBS, latencies
from perfdag.steps.scale.model.stages import VM_PHASES, Step

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


RUN = {
    "throughput_mean",
    "throughput_best_5s",
    "success_ratio",
    "create_ratio",
    "censored",
    "left_behind",
    "watch_lag_p99",
    "create_rate",
}
_PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
PACED = ("schedule_held", "submit_lag")
"""Figures of an open loop."""
_PHASES = tuple(f"{phase}-phase-count" for phase in VM_PHASES)
VMIS: dict[str, tuple[str, ...]] = {
    "burst": _PHASES,
    "ladder": _PHASES,
    "steady": ("churn_cycles", "churn_throughput", "stuck"),
}
"""Figures that scenarios of VMIs have besides."""
_COUNT = re.compile(rf"({DELETION}/)?({'|'.join(VERBS)})-[a-z0-9.]+(/[a-z]+)?-count")
_EXAMPLES = ("CREATE-pods-count", "PATCH-virtualmachineinstances-count")


def check(
    gates: Iterable[Gate],
    scenario: str,
    steps: Iterable[Step],
    extra: Iterable[str],
    *,
    paced: bool,
    components: bool | None = None,
    count: float = math.inf,
) -> None:
    """Raise ValueError for a gate on a figure that the scenario lacks, or that has too few objects.

    `extra` are figures of the scenario. `paced` means an open loop. `components` is whether
    Prometheus is queried (None: never). `count` is the fewest objects of a size.
    """
    stages = {f"{step.name}_{stat}": p for step in steps for stat, p in _PERCENTILES.items()}
    calls = latencies([])
    known = {
        *RUN,
        *stages,
        *calls,
        *(f"{DELETION}/{name}" for name in calls),
        *extra,
        *(PACED if paced else ()),
    }
    theirs = set[str]()
    if components is not None:
        theirs = prometheus.names() | prometheus.KEYS
    for name in [name for gate in gates for name in (gate.metric, gate.other) if name]:
        if (least := needed(stages.get(name, 0.5))) > count:
            raise ValueError(
                f"the gate on {name} can have no data: it needs {least} objects, and {count:g} are "
                "planned"
            )
        if name in known or _COUNT.fullmatch(name):
            continue
        if name in theirs or (components is not None and prometheus.is_request_count(name)):
            if not components:
                raise ValueError(
                    f"the gate on {name} needs a Prometheus: set `prometheus`, or remove the gate"
                )
            continue
        near = difflib.get_close_matches(name, sorted({*known, *theirs, *_EXAMPLES}), 1, 0.0)
        raise ValueError(f"no figure of {scenario} is called {name}; the nearest is {near[0]}")
