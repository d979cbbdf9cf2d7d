"""Figures of a run: its gates, its result, its measurements, and KubeVirt's audit of it.

A gate compares a figure with a value or with a multiple of another figure. Missing data is a
breach. A gate on an unknown figure is refused before the run.
"""

import difflib
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from perfdag.benchmark.contract import (
    Measurement,
    Metric,
    ShortForm,
    VerdictWord,
    own_verdict,
    verdict,
)
from perfdag.stats.robust import needed
from perfdag.steps.scale import prometheus
from perfdag.steps.scale.api_metrics import CREATION, DELETION, VERBS, latencies
from perfdag.steps.scale.generate import without_name
from perfdag.steps.scale.objects import Step
from perfdag.steps.scale.rows import Row, Summary

_REQUESTS = {
    "api_p99": "api",
    "api_list_p99": "api_list",
    f"{DELETION}/api_p99": f"{DELETION}/api",
    f"{DELETION}/api_list_p99": f"{DELETION}/api_list",
}
"""Percentile -> what the number of its requests (`_requests`) and an upper bound of the slowest
(`_slowest`) begin with. With too few requests for a percentile, the bound can show that a gate
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
    """`metric op value`, or `metric op value * other`."""

    metric: str
    op: str
    value: float
    other: str | None = None

    def __str__(self) -> str:
        multiple = f" * {self.other}" if self.other else ""
        return f"{self.metric} {self.op} {self.value:g}{multiple}"


@dataclass(frozen=True)
class Verdict:
    """The outcome of a gate. `passed` is None without data, which counts as a breach.

    `lack` says why there is no data.
    """

    gate: Gate
    value: float | None
    threshold: float | None
    passed: bool | None
    lack: str = ""

    def figures(self) -> str:
        """Return the figures that decided, or why they did not."""
        return self.lack or f"{self.value:.6g} against {self.threshold:.6g}"

    def __str__(self) -> str:
        outcome = {True: ", passed", False: ", BREACHED", None: ""}[self.passed]
        return f"gate {self.gate}: {self.figures()}{outcome}"


def parse_gate(text: str) -> Gate:
    """Parse a gate such as `api_p99 < 1`. Raises ValueError with the expected form."""
    form = r"\s*([\w./:-]+)\s*(<=|>=|<|>)\s*([\d.eE+-]+)\s*(?:\*\s*([\w./:-]+)\s*)?"
    match = re.fullmatch(form, text)
    try:
        if not match:
            raise ValueError
        return Gate(match[1], match[2], float(match[3]), match[4])
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


def evaluate(gates: Sequence[Gate], figures: Mapping[str, float | None]) -> list[Verdict]:
    """Compare all gates with the figures of a run; NaN counts as absent."""
    by_key = {key: figures[name] for key, name in audit_percentiles(figures).items()}
    values = {
        name: value
        for name, value in {**figures, **by_key}.items()
        if value is not None and not math.isnan(value)
    }
    return [_verdict(gate, values) for gate in gates]


def _verdict(gate: Gate, values: Mapping[str, float]) -> Verdict:
    value = values.get(gate.metric)
    base = values.get(gate.other) if gate.other else 1.0
    requests = _REQUESTS.get(gate.metric, "")
    slowest = values.get(f"{requests}_slowest")
    lack = f"no data for {gate.metric if value is None else gate.other}"
    # Too few requests for a percentile still pass a limit that not even the slowest exceeds.
    if value is None and slowest is not None and gate.op in ("<", "<=") and not gate.other:
        value = slowest if _OPS[gate.op](slowest, gate.value) else None
        count = values.get(f"{requests}_requests", 0.0)
        lack = f"{count:g} requests are too few for a p99, the slowest took up to {slowest:g} s"
    if value is None or base is None:
        return Verdict(gate, value, None, None, lack)
    threshold = gate.value * base
    return Verdict(gate, value, threshold, _OPS[gate.op](value, threshold))


_RUN_FIGURES = {
    "throughput_mean",
    "throughput_best_5s",
    "success_ratio",
    "create_ratio",
    "censored",
    "left_behind",
    "watch_lag_p99",
    "create_rate",
}
_PACED_FIGURES = {"schedule_held", "submit_lag"}
"""Figures of an open loop."""
_PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_COUNT = re.compile(rf"({DELETION}/)?({'|'.join(VERBS)})-[a-z0-9.]+(/[a-z]+)?-count")


def check(
    gates: Iterable[Gate],
    scenario: str,
    steps: Iterable[Step],
    extra: Iterable[str],
    *,
    paced: bool,
    components: bool = False,
    count: float = math.inf,
) -> None:
    """Raise ValueError for a gate on a figure that the scenario lacks, or that has too few objects.

    `extra` are figures of the scenario. `paced` means an open loop. `components` is whether
    Prometheus is queried. `count` is the fewest objects of a size.
    """
    stages = {f"{step.name}_{stat}": p for step in steps for stat, p in _PERCENTILES.items()}
    stages |= {key: stages[name] for key, name in audit_percentiles(stages).items()}
    calls = latencies([])
    names = {*_RUN_FIGURES, *stages, *calls, *(f"{DELETION}/{name}" for name in calls), *extra}
    if paced:
        names |= _PACED_FIGURES
    for gate in gates:
        for name in filter(None, (gate.metric, gate.other)):
            least = needed(stages.get(name, 0.5))
            if least > count:
                raise ValueError(
                    f"the gate on {name} can have no data: it needs {least} objects, and {count:g} "
                    "are planned"
                )
            _check_figure(name, names, scenario, components)


def _check_figure(name: str, names: Set[str], scenario: str, components: bool) -> None:
    """Raise ValueError for a figure that is none of `names` and not Prometheus'."""
    if name in prometheus.FIGURES or prometheus.is_request_count(name):
        if not components:
            raise ValueError(f"the gate on {name} needs a Prometheus: set `prometheus`")
    elif name not in names and not _COUNT.fullmatch(name):
        examples = {"CREATE-pods-count", "PATCH-virtualmachineinstances-count"}
        candidates = sorted(names | prometheus.FIGURES | examples)
        near = difflib.get_close_matches(name, candidates, 1, 0.0)
        raise ValueError(f"no figure of {scenario} is called {name}; the nearest is {near[0]}")


@dataclass
class Result:
    """One scenario at one size.

    `figures` are in SI units (None: no data).
    """

    scenario: str
    count: int
    run: str
    rows: list[Row]
    stages: list[Summary]
    figures: dict[str, float | None]
    facts: dict[str, Any]
    verdicts: list[Verdict] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    """Why the figures are void or no later size was measured, or empty."""

    @property
    def breached(self) -> list[Verdict]:
        """Gates that failed or had no data."""
        return [verdict for verdict in self.verdicts if not verdict.passed]

    @property
    def incomplete(self) -> bool:
        """Whether an object did not reach the goal, or was left behind."""
        return bool(self.figures["left_behind"]) or self.figures["success_ratio"] != 1.0

    @property
    def late(self) -> bool:
        """Whether an open loop did not hold its rate."""
        return any(batch["held"] is False for batch in self.facts["generator"])


METRICS = (
    Metric(
        "stage_latency",
        "s",
        "lower",
        "time since the previous stage, over all objects (coords: stage, since)",
        lowest=-math.inf,
    ),
    Metric(
        "object_latency",
        "s",
        "lower",
        "time since the previous stage of one object",
        lowest=-math.inf,
    ),
    Metric(
        "object_time",
        "s",
        "lower",
        "when an object reached a stage, from the first submission",
        lowest=-math.inf,  # an API time of whole seconds may be before the submission
    ),
    Metric(
        "object_missing",
        "s",
        "none",
        "time that an object waited for a stage that it never reached",
        label="wait for a stage",
    ),
    Metric(
        "throughput",
        "1/s",
        "higher",
        "objects that reached the goal a second: mean, and the best 5 s",
        counts="objects",
    ),
    Metric(
        "create_rate",
        "1/s",
        "none",
        "objects created a second",
        counts="objects",
        label="creations",
    ),
    Metric(
        "success_ratio",
        "1",
        "higher",
        "objects that reached the goal, of those planned",
        highest=1,
        counts="share",
        label="objects that reached the goal",
    ),
    Metric(
        "create_ratio",
        "1",
        "higher",
        "creations accepted, of those planned",
        highest=1,
        counts="share",
        label="creations accepted",
    ),
    Metric(
        "schedule_held",
        "1",
        "higher",
        "share of its rate that the open loop reached",
        counts="share",
        label="rate held",
    ),
    Metric(
        "submit_lag",
        "s",
        "lower",
        "how late creations were sent (open loop)",
        lowest=-math.inf,
        label="submission lag",
    ),
    Metric(
        "left_behind",
        "1",
        "lower",
        "objects still there after deletion",
        label="objects left behind",
    ),
    Metric(
        "api_latency",
        "s",
        "lower",
        "p99 of API requests of one kind (coords: call; phase: deletion)",
        elapsed=False,  # the buckets of its histogram are as wide as a minute
        label="p99 API latency",
    ),
    Metric(
        "api_p99",
        "s",
        "lower",
        "p99 of the slowest kind of single-object API request (coords of the deletion: phase)",
        elapsed=False,
        label="p99 of the slowest API request",
    ),
    Metric(
        "api_calls",
        "1",
        "none",
        "API requests of one kind (coords: call, vms or objects; phase: deletion)",
        label="API requests",
    ),
    Metric(
        "failures",
        "1",
        "lower",
        "objects that were refused or missed the goal, by reason (coords: message)",
        label="failed objects",
    ),
    Metric(
        "watch_lag",
        "s",
        "lower",
        "p99 of the time from a due change to its watch event",
        lowest=-math.inf,
    ),
    Metric(
        "component",
        "1",
        "none",
        "figures from Prometheus (coords: figure; the unit is in its name)",
    ),
    own_verdict("every gate holds; missing data fails a gate"),
)
COORDS = ("stage", "since", "phase", "call", "figure", "message", "vms", "objects")
SHORT_FORMS: Mapping[str, ShortForm] = {
    "template": "{}",
    "count": "{} objects",
    "counts": "counts {}",
    "scenario": "{}",
    "arrival": {"closed": "closed loop", "constant": "constant rate", "batch": "one batch"},
    "rate": "{}/s",
    "parallel": "{} at once",
    "replicas": "{} replicas",
    "per_node": "{} a node",
    "gpus": "{} GPUs",
    "churn": "churn {}",
    "goal": "until {}",
    "stage": "{}",
    "since": "since {}",
    "phase": "{}",
    "call": "{}",
    "figure": "{}",
    "message": "{}",
    "vms": "{} VMs",
    "objects": "{} objects",
}
MAX_MESSAGES = 50
"""Distinct messages that are kept."""
MAX_CALLS = 40
"""Kinds of API request of each phase that are kept."""
CHURN = ("churn_cycles", "churn_throughput")
"""Figures of a steady state."""
_SINGLE = ("create_rate", "success_ratio", "create_ratio", "schedule_held", "left_behind")
_NAMED = {
    "throughput_mean": ("throughput", "mean"),
    "throughput_best_5s": ("throughput", "best_5s"),
    "submit_lag": ("submit_lag", "p99"),
    "api_p99": ("api_p99", "p99"),
    "watch_lag_p99": ("watch_lag", "p99"),
    **{name: (name, "value") for name in (*_SINGLE, *CHURN)},
}
"""Figure -> metric and statistic."""


def measurements(
    result: Result, headline: str, coords: Mapping[str, Any], size: Mapping[str, int]
) -> list[Measurement]:
    """Return the measurements of one size: stages, figures, API calls, objects, gates, failures.

    The percentiles of the stage `headline` are a metric of that name. `coords` are those of all
    rows, `size` the coordinate of API requests.
    """
    rows: list[Measurement] = []
    for stage in result.stages:
        of_stage = {**coords, "stage": stage.stage, "since": stage.since}
        n = stage.count["ok"] + stage.count["censored"]
        for stat, value in stage.seconds.items():
            if value is not None:
                rows.append(Measurement("stage_latency", value, stat, of_stage, n))
                if stage.stage == headline and stat in _PERCENTILES:
                    rows.append(Measurement(headline, value, stat, coords, n))
    for figure, value in result.figures.items():
        if value is None:
            continue
        name = figure.removeprefix(f"{DELETION}/")
        of_phase = {**coords, "phase": DELETION} if name != figure else coords
        if name in _NAMED:
            metric, stat = _NAMED[name]
            rows.append(Measurement(metric, value, stat, of_phase))
        elif call := call_name(name):
            rows.append(Measurement("api_calls", value, coords={**of_phase, "call": call, **size}))
        elif name in prometheus.FIGURES or prometheus.is_request_count(name):
            rows.append(Measurement("component", value, coords={**of_phase, "figure": name}))
    for phase, of_phase in ((CREATION, coords), (DELETION, {**coords, "phase": DELETION})):
        calls = [c for c in result.calls if c["phase"] == phase and c["p99_s"] is not None]
        for c in calls[:MAX_CALLS]:
            of_call = {**of_phase, "call": c["call"]}
            rows.append(Measurement("api_latency", c["p99_s"], "p99", of_call, c["count"]))
    rows += _object_measurements(result.rows, coords)
    for gate in result.verdicts:
        passed: VerdictWord = "passed" if gate.passed else "failed"
        rows.append(verdict(passed, str(gate.gate), gate.figures(), coords))
    rows += [
        Measurement("failures", float(count), coords={**coords, "message": text})
        for text, count in messages(result.rows).most_common(MAX_MESSAGES)
    ]
    return rows


def _object_measurements(rows: Sequence[Row], coords: Mapping[str, Any]) -> list[Measurement]:
    """Return the times of single objects: two rows per stage, 0.3 MB for 2,000 workloads."""
    first = min((row.submitted for row in rows if row.submitted), default=0.0)
    measured = []
    for row in rows:
        of_row = {**coords, "stage": row.stage, "since": row.since}
        values = {"object_latency" if row.status == "ok" else "object_missing": row.seconds}
        if row.status == "ok" and row.reached:
            values["object_time"] = row.reached - first
        measured += [
            Measurement(metric, value, coords=of_row, subject=row.name)
            for metric, value in values.items()
            if value is not None
        ]
    return measured


def call_name(figure: str) -> str:
    """Return the kind of request that a figure counts. Audit aliases of POST and PUT give none."""
    if not _COUNT.fullmatch(figure) or figure.startswith(("CREATE-", "UPDATE-")):
        return ""
    return figure.removesuffix("-count")


def messages(rows: Sequence[Row]) -> Counter[str]:
    """Count the failed and censored objects by message, without object names."""
    bad = {row.name: row for row in rows if row.error and row.status in ("failed", "censored")}
    return Counter(without_name(row.error or "", row.name) for row in bad.values())


def failure_text(rows: Sequence[Row], notes: Sequence[str]) -> str:
    """Return failure messages, most frequent first, and the notes, for a sample's error."""
    parts = [f"{count} x {text}" for text, count in messages(rows).most_common(5)]
    return "; ".join([*parts, *notes])


_AUDIT_STAGES = {
    "creation_to_running": "vmiCreationToRunningSeconds",
    "deletion_to_succeeded": "vmiDeletionToSucceededSeconds",
    "deletion_to_failed": "vmiDeletionToFailedSeconds",
}
"""Stages of VMIs. Those of a VM or a replica set begin with `vmi_`."""


def audit_percentiles(figures: Container[str]) -> dict[str, str]:
    """Return the percentiles of VMIs among figures, by the key of KubeVirt's audit."""
    names = {
        f"{key}{stat.upper()}": f"{stage}_{stat}"
        for stage, key in _AUDIT_STAGES.items()
        for stat in _PERCENTILES
    }
    names |= {key: f"vmi_{name}" for key, name in names.items() if f"vmi_{name}" in figures}
    return {key: name for key, name in names.items() if name in figures}


def audit_of(result: Result) -> dict[str, Any]:
    """Return the values of a result as KubeVirt's tools/perfscale-audit writes them.

    Figures of our own have other names.
    """
    percentiles = {figure: key for key, figure in audit_percentiles(result.figures).items()}

    def key_of(figure: str) -> str:
        return percentiles.get(figure) or audit_key(figure)

    values = {
        key_of(name): value
        for name, value in result.figures.items()
        if name in percentiles
        or name in prometheus.AUDIT_QUERIES
        or name.endswith("-count")
        or prometheus.is_request_count(name)
    }
    return audit_values(values, result.verdicts, key_of)


def audit_values(
    values: Mapping[str, float | None],
    verdicts: Iterable[Verdict],
    key_of: Callable[[str], str] = str,
) -> dict[str, dict[str, Any]]:
    """Return values with what gates say of them, as KubeVirt's audit writes them.

    `key_of` returns the key of a gate's figure. What has no data has no key or no `value`, because
    the audit's readers take null for 0.
    """
    entries = {key: {"value": value} for key, value in values.items() if value is not None}
    # Of several gates on a metric, a breach comes last and is shown. A gate sees the whole run.
    for gate_verdict in sorted(verdicts, key=lambda verdict: not verdict.passed):
        gate = gate_verdict.gate
        value = gate_verdict.value
        limit = gate_verdict.threshold
        threshold: dict[str, Any] = {
            "thresholdValue": limit,
            "thresholdExceeded": not gate_verdict.passed,
        }
        if gate.other:
            ratio = value * gate.value / limit if limit and value is not None else None
            threshold |= {"thresholdMetric": key_of(gate.other), "thresholdRatio": ratio}
        entry = {"value": value, "thresholdResult": _with_data(threshold)}
        entries[key_of(gate.metric)] = _with_data(entry)
    return entries


def _with_data(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def audit_key(figure: str) -> str:
    """Return the audit's key of a figure.

    The audit counts requests of KubeVirt's pods; those of all clients get a prefix.
    """
    if figure.startswith(f"{prometheus.REQUESTS}/"):
        return f"{figure.removeprefix(f'{prometheus.REQUESTS}/')}-count"
    return f"apiserver/{figure}" if _COUNT.fullmatch(figure) else figure
