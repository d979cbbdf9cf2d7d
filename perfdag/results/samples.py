"""Samples as the measuring loop stores them, and why one is missing.

A sample is `runs/<run_id>/parts/<point>-<repetition>.json`, and a retry replaces the file. A pod
that cannot start, a node that dies and a budget that ends are noticed in different places, and each
writes a `MissingReason` as a note in the store. The watchdog has no access to the store: it writes
an annotation of the Workflow, which the last step copies. Collect calls
`reason_for` for every sample that is not stored.
"""

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Literal

import orjson

from perfdag.benchmark.contract import (
    Benchmark,
    Failed,
    Invalid,
    Measurement,
    Metric,
    metrics_by_name,
)
from perfdag.benchmark.declarations import contradiction
from perfdag.redaction import map_texts, redact_json
from perfdag.store.base import Store
from perfdag.units import impossible


@dataclass
class SampleRecord:
    """One sample.

    `rows` are its measurements with unit and direction, `texts` the outputs of the tools. Times are
    UTC in ISO 8601.
    """

    point: str
    repetition: int
    status: str
    error: str | None = None
    started_at: str = ""
    finished_at: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    commands: list[list[str]] = field(default_factory=list)
    tool: str = ""
    benchmark_version: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    noise: str | None = None
    nodes: list[str] = field(default_factory=list)
    env: dict[str, Any] = field(default_factory=dict)
    env_class: str = ""
    batch: int = 0
    order_index: int = 0
    attempt: int = 1
    where: dict[str, Any] = field(default_factory=dict)

    def dump(self) -> bytes:
        """Return the sample as JSON, without the known secret values.

        Of a name that is not UTF-8, as Linux allows, the other bytes are written in hexadecimal.
        """
        fields = {"schema": 1, **vars(self)}
        try:
            data = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
        except TypeError:
            # A text with bytes that are not UTF-8, such as the name of a file, shows these as \xff.
            readable = map_texts(
                fields, lambda text: os.fsencode(text).decode(errors="backslashreplace")
            )
            data = orjson.dumps(readable, option=orjson.OPT_SORT_KEYS)
        return redact_json(data)


def read_sample(data: bytes) -> SampleRecord:
    """Return a sample from its JSON. Raises ValueError where it is damaged."""
    raw = orjson.loads(data)
    try:
        return SampleRecord(**{name: raw[name] for name in raw if name != "schema"})
    except TypeError as error:
        raise ValueError(str(error)) from None


def as_rows(
    benchmark: Benchmark[Any],
    measurements: Sequence[Measurement],
    params: Mapping[str, Any] | None = None,
    wall: float = math.inf,
) -> list[dict[str, Any]]:
    """Return the rows of a sample with these params, which took `wall` seconds.

    Raises Failed for an undeclared metric, a value that the metric cannot have, and statistics out
    of order. Raises Invalid for a headline that the tool knows to less than 1 part in
    `Metric.steps`, for figures that contradict each other, and for a time above `wall`.
    """
    declared = metrics_by_name(benchmark, params)
    rows = []
    for measurement in measurements:
        metric = declared.get(measurement.metric)
        if metric is None:
            raise Failed(
                f"no metric {measurement.metric!r} is declared, only {', '.join(declared)}"
            )
        check_possible(metric, measurement)
        if metric.headline and measurement.subject is None:
            check_resolution(metric, measurement)
        if metric.unit == "s" and metric.elapsed:
            check_duration(measurement, wall)
        rows.append(as_row(metric, measurement))
    check_order(measurements)
    if params is not None:
        identities = benchmark.identities(benchmark.Params.model_validate(params))
        if problem := contradiction(identities, measurements):
            raise Invalid(f"the figures contradict each other: {problem}")
    return rows


def as_row(metric: Metric, measurement: Measurement) -> dict[str, Any]:
    """Return a measurement with what is declared of its metric."""
    columns: dict[str, Any] = {
        "metric": metric.name,
        "stat": measurement.stat,
        "value": float(measurement.value),
        "unit": metric.unit,
        "better": metric.better,
        "headline": metric.headline and measurement.subject is None,
    }
    if measurement.coords:
        columns["coords"] = dict(measurement.coords)
    for name in ("n", "subject", "note"):
        value = getattr(measurement, name)
        if value is not None:
            columns[name] = value
    return columns


_ORDERED = re.compile(r"min|mean|max|p\d+(\.\d+)?")
_BIN = 0.1
"""Share of a value that a bin of a tool's histogram may span, as netperf's do."""
_CLOCKS = 0.01
"""Share by which clocks may differ."""
_WHOLE_SECOND = 1.0
"""The step of the API server's times, in s."""


def check_possible(metric: Metric, measurement: Measurement) -> None:
    """Raise Failed for a value that the metric cannot have, Invalid for a headline without work."""
    most = metric.highest * (1 + 1e-9)  # a share of 1 may be a rounding error above it
    if not metric.lowest <= measurement.value <= most or math.isinf(measurement.value):
        raise Failed(
            f"{metric.name} cannot be {measurement.value:g} {metric.unit}: it is a number from"
            f" {metric.lowest:g} to {metric.highest:g}"
        )
    problem = impossible(measurement.value, metric.unit, metric.better)
    if problem and metric.headline and measurement.subject is None:
        raise Invalid(f"{metric.name}: {problem}")


def check_resolution(metric: Metric, measurement: Measurement) -> None:
    """Raise Invalid for a headline of which the tool's clock or print knows too little."""
    if measurement.step * metric.steps > abs(measurement.value):
        raise Invalid(
            f"{metric.name} is {measurement.value:g} {metric.unit}, and the tool's clock or print"
            f" can be off by {measurement.step:g}, more than 1 part in {metric.steps};"
            " measure more or longer"
        )


def check_duration(measurement: Measurement, wall: float) -> None:
    """Raise Invalid for a time that is longer than the whole sample took."""
    if measurement.value > wall * (1 + _CLOCKS) + _WHOLE_SECOND:
        raise Invalid(
            f"{measurement.metric} is {measurement.value:g} s, but the whole sample took"
            f" {wall:g} s by this host's clock"
        )


def check_order(measurements: Sequence[Measurement]) -> None:
    """Raise Failed where a percentile of a figure is above a higher one, or a mean above a max."""
    figures: dict[tuple[Any, ...], dict[str, float]] = {}
    for measurement in measurements:
        if _ORDERED.fullmatch(measurement.stat):
            coords = tuple(sorted(measurement.coords.items()))
            figure = figures.setdefault((measurement.metric, measurement.subject, coords), {})
            figure[measurement.stat] = measurement.value
    for (metric, *_), values in figures.items():
        for low, high in _neighbours(values):
            if values[low] - _BIN * abs(values[low]) > values[high]:
                raise Failed(
                    f"{metric} cannot have {low} {values[low]:g} and {high} {values[high]:g}:"
                    " they are out of order"
                )


def _neighbours(values: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Yield pairs of statistics of which the first is at most the second."""
    percentiles = [stat for stat in values if stat.startswith("p")]
    percentiles.sort(key=lambda stat: float(stat[1:]))
    for order in (["min", *percentiles, "max"], ["min", "mean", "max"]):
        yield from pairwise(stat for stat in order if stat in values)


def headline(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the value of the first headline row of a sample, or None."""
    return next((row["value"] for row in rows if row["headline"]), None)


def now() -> str:
    """Return the time in UTC with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def sample_key(run_id: str, name: str) -> str:
    """Return the key of a sample. `name` is that of Plan.key."""
    return f"runs/{run_id}/parts/{name}.json"


def stored_samples(store: Store, run_id: str) -> set[str]:
    """Return the names of the stored samples of a run. Raises StoreError."""
    keys = store.list(f"runs/{run_id}/parts")
    return {key.rpartition("/")[2].removesuffix(".json") for key in keys}


def read_samples(
    store: Store, run_id: str, names: Sequence[str], damaged: list[str]
) -> Iterator[tuple[str, SampleRecord]]:
    """Yield the stored samples of these names; add the names of unreadable ones to `damaged`."""
    contents = store.get_many([sample_key(run_id, name) for name in names])
    for name, (_, data) in zip(names, contents, strict=True):
        try:
            record = read_sample(data)
        except ValueError:
            damaged.append(name)
        else:
            yield name, record


def delete_damaged_samples(store: Store, run_id: str) -> list[str]:
    """Delete the unreadable samples of a run and return their names. Raises StoreError.

    A resumed run measures them again. Every sample is read, which takes about as long as
    collecting.
    """
    damaged: list[str] = []
    for _ in read_samples(store, run_id, sorted(stored_samples(store, run_id)), damaged):
        pass
    for name in damaged:
        store.delete(sample_key(run_id, name))
    return damaged


Kind = Literal["budget", "sample", "batch", "plan", "workflow"]
PRECEDENCE: Mapping[Kind, str] = {
    "budget": "its gang measured until the budget was spent, so a note of its batch is older",
    "sample": "when and where the sample was measured when its pod ended",
    "batch": "why the pods of its batch did not start or ended early",
    "plan": "why the cluster refused the run as a whole",
    "workflow": "what ended the Workflow early",
}
"""The kinds of reason in order of precedence, and what each says about a sample."""

NOTES = "perfdag/notes"
"""Annotation of a Workflow: its owner, then the reasons by batch.

The watchdog writes it. The retryStrategy of a batch reads which batches are FINAL, and the last
step the reasons."""
FINAL = " final"
"""The end of the key of a batch that no retry can repair. No reason has such a key in its text,
because JSON escapes the quotes of a text."""
NOTE_LENGTH, NOTES_LENGTH = 400, 60_000
"""Limits of the annotation, as objects are limited: characters of a reason, and of all."""


@dataclass(frozen=True)
class MissingReason:
    """Why samples are missing. `status` is that of their rows."""

    kind: Kind
    status: str
    text: str
    batch: int | None = None
    """The batch in the run's plan. None: the reason holds for all samples of the run."""
    samples: tuple[str, ...] = ()
    """The samples that the reason `sample` is about, by their names in the store."""
    attempt: int | None = None
    """The attempt at the batch, from 1, that measured these samples."""
    node: str | None = None
    """The node of its lead."""

    @property
    def name(self) -> str:
        """The name of its note. A newer one of that name replaces it."""
        parts = (self.kind, self.batch, self.attempt)
        return "-".join(str(part) for part in parts if part is not None)


def budget_spent(seconds: float, batch: int | None = None) -> MissingReason:
    """Return the reason of samples that the budget of a run, in seconds, left unmeasured."""
    return MissingReason("budget", "skipped", f"the budget of {seconds:g} s was spent", batch)


UNKNOWN = MissingReason("workflow", "missing", "planned, but no result was stored")
"""The reason of samples about which nothing is known."""


def reason_for(
    reasons: Iterable[MissingReason], batch: int | None, sample: str = ""
) -> MissingReason:
    """Return why a sample of `batch` is missing: the first reason by PRECEDENCE that applies.

    `sample` is its name in the store. The last attempt at it counts, with what ended its pod.
    """
    rank = list(PRECEDENCE)
    matching = sorted(
        (
            reason
            for reason in reasons
            if reason.batch in (None, batch)
            and (reason.kind != "sample" or sample in reason.samples)
        ),
        key=lambda reason: (rank.index(reason.kind), -(reason.attempt or 0)),
    )
    if not matching:
        return UNKNOWN
    first = matching[0]
    of_pods = [reason.text for reason in matching if reason.kind != "sample"]
    if first.samples and of_pods:
        return replace(first, text=f"{first.text}: {of_pods[0]}")
    return first


def write_reason(store: Store, run_id: str, reason: MissingReason) -> None:
    """Write a reason into the store. Raises StoreError."""
    batches = None if reason.batch is None else [reason.batch]
    note: dict[str, Any] = {"status": reason.status, "reason": reason.text, "batches": batches}
    if reason.kind == "sample":
        note |= {"samples": reason.samples, "attempt": reason.attempt, "node": reason.node}
    data = redact_json(orjson.dumps(note, option=orjson.OPT_SORT_KEYS))
    store.put(f"runs/{run_id}/notes/{reason.name}.json", data)


def forget_reasons(store: Store, run_id: str, name: str = "") -> None:
    """Remove the reason with a name, or all of a run that is resumed. Raises StoreError."""
    store.delete(f"runs/{run_id}/notes" + (f"/{name}.json" if name else ""))


def stored_reasons(store: Store, run_id: str) -> list[MissingReason]:
    """Return the reasons of a run that are in the store. Raises StoreError."""
    reasons = []
    for key, data in store.get_many(store.list(f"runs/{run_id}/notes")):
        note = orjson.loads(data)
        name = key.rpartition("/")[2]
        kind = next(kind for kind in PRECEDENCE if name.startswith(kind))
        reason = MissingReason(
            kind,
            note["status"],
            note["reason"],
            batch=(note["batches"] or [None])[0],
            samples=tuple(note.get("samples", ())),
            attempt=note.get("attempt"),
            node=note.get("node"),
        )
        reasons.append(reason)
    return reasons


def as_annotation(
    owner: str, texts: Mapping[int, str], final: Set[int] = frozenset()
) -> dict[str, str | None]:
    """Return the annotation with the reasons of batches; it is None where there is nothing to say.

    `owner` identifies the Workflow and its attempt, and is the start of the annotation. No retry
    can repair the batches `final`. Reasons are truncated, so that those of all batches fit.
    """
    batches = sorted(texts.keys() | final)
    length = min(NOTE_LENGTH, NOTES_LENGTH // max(len(batches), 1))
    notes = {
        f"{batch}{FINAL if batch in final else ''}": texts.get(batch, "")[:length]
        for batch in batches
    }
    return {NOTES: f"{owner}{orjson.dumps(notes).decode()}" if notes else None}


def from_annotations(owner: str, annotations: Mapping[str, Any]) -> tuple[dict[int, str], set[int]]:
    """Return the reasons by batch number, and the batches that no retry can repair.

    There are none if the annotation has another owner.
    """
    value = annotations.get(NOTES) or ""
    notes = orjson.loads(value.removeprefix(owner)) if value.startswith(owner) else {}
    texts = {int(key.removesuffix(FINAL)): text for key, text in notes.items() if text}
    return texts, {int(key.removesuffix(FINAL)) for key in notes if key.endswith(FINAL)}
