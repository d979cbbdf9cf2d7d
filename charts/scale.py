"""Charts of runs at scale: stages of objects, API calls, and the deltas of workloads.

All times are in seconds. Objects that did not reach a stage are left out and counted, never drawn
as 0.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perfdag.benchmark.contract import SIMULATED
from perfdag.charts import style
from perfdag.units import plural

CALLS = 6
"""Bars of the most frequent requests."""
_TOTAL = re.compile(r".*_to_|^workload_")
"""What precedes the name of another stage in that of a total."""
_SAMPLE = ("run_id", "variant", "point", "repetition", "phase")
"""What tells one sample from another; its sample_id does not, which is of each object."""
_OBJECTS = ("object_latency", "object_time", "object_missing")
_REFERENCE = {
    "Workload Creation": "Workload Submission",
    "Job Creation": "Workload Creation",
    "First Pod Creation": "Job Creation",
    "Last Pod Creation": "Job Creation",
    "Pod Group Creation": "First Pod Creation",
    "Pod Scheduling Decision": "Pod Group Creation",
    "First Eviction": "Pod Group Creation",
    "First PVC Bind Request": "Pod Group Creation",
    "First PVC Bind": "First PVC Bind Request",
    "Backend Job Creation": "Pod Group Creation",
    "Total Pod Scheduling Decision": "Workload Submission",
    "Total Backend Job Creation": "Workload Submission",
}
Deltas = Sequence[tuple[str, Mapping[str, float | None]]]
"""(submit time in RFC 3339, delta name -> seconds or None) a workload, in order of submission."""


@dataclass
class Stage:
    """One stage of a run, with lists of one item per object that reached it.

    `order` is the place in the order of submission, `at` the time since the first submission, and
    `seconds` the time since the stage before. `missing` objects never reached it.
    """

    name: str
    since: str
    order: list[int] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    missing: int = 0

    @property
    def label(self) -> str:
        """Its name with the number of objects that never reached it."""
        return self.name.replace("_", " ") + (f" ({self.missing} never)" if self.missing else "")


def of_results(rows: pa.Table) -> list[tuple[str, int, int, list[Stage]]]:
    """Return entry, size, number of samples and the stages of the last sample, by entry and size.

    They are the metrics of _OBJECTS, with a subject per object. Repetitions are not mixed.
    """
    own = rows.filter(pc.is_in(rows["metric"], pa.array(_OBJECTS)))
    columns = ["entry", "metric", "subject", "coords", "value", *_SAMPLE]
    sizes: dict[tuple[str, int], dict[tuple[Any, ...], list[Any]]] = {}
    for row in own.select(columns).to_pylist():
        coords = orjson.loads(row["coords"] or "{}")
        if row["value"] is not None:
            samples = sizes.setdefault((row["entry"], int(coords.get("count", 0))), {})
            samples.setdefault(tuple(row[name] for name in _SAMPLE), []).append((row, coords))
    groups = []
    for (entry, count), samples in sizes.items():
        newest = list(samples.values())[-1]
        subjects = sorted({row["subject"] for row, _ in newest}, key=_natural)
        groups.append((entry, count or len(subjects), len(samples), _stages(newest, subjects)))
    return groups


def _natural(name: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", name)]


def _stages(
    rows: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]], subjects: Sequence[str]
) -> list[Stage]:
    place = {subject: order for order, subject in enumerate(subjects)}
    stages: dict[str, Stage] = {}
    for row, coords in rows:
        stage = stages.setdefault(coords["stage"], Stage(coords["stage"], coords.get("since", "")))
        if row["metric"] == "object_missing":
            stage.missing += 1
        elif row["metric"] == "object_time":
            stage.at.append(row["value"])
        else:
            stage.order.append(place[row["subject"]])
            stage.seconds.append(row["value"])
    return list(stages.values())


def calls_of(rows: pa.Table) -> dict[tuple[str, str, int], dict[str, float]]:
    """Return API requests: (entry, vms or objects, number of them) -> request -> count.

    They are the metric api_calls. The last sample counts.
    """
    calls: dict[tuple[str, str, int], dict[str, float]] = defaultdict(dict)
    own = rows.filter(pc.equal(rows["metric"], "api_calls"))
    for row in own.select(["entry", "coords", "value"]).to_pylist():
        if row["value"] is not None:
            coords = orjson.loads(row["coords"] or "{}")
            phase = f"{coords['phase']}: " if "phase" in coords else ""
            of = "vms" if "vms" in coords else "objects"
            calls[row["entry"], of, int(coords[of])][phase + coords["call"]] = row["value"]
    return calls


def _moments(stages: Sequence[Stage]) -> list[Stage]:
    """Return the stages that were reached, without totals, which repeat another stage."""
    names = {stage.name for stage in stages if stage.at}
    totals = {stage.name: _TOTAL.sub("", stage.name) for stage in stages}
    return [s for s in stages if s.at and (totals[s.name] == s.name or totals[s.name] not in names)]


@style.in_house_style
def timeline(stages: Sequence[Stage], caption: str = "") -> Figure:
    """Draw when objects reached each stage: first to last, with the middle half and the median.

    Totals are left out.
    """
    moments = _moments(stages)
    if not moments:
        return style.no_data("no stage was reached")
    last = max(moments, key=lambda stage: max(stage.at))
    fig, (ax,) = style.figure(
        heights=(0.34 * len(moments) + 0.9,),
        title=f"The last object reached {last.name.replace('_', ' ')} after {max(last.at):.3g} s",
        subtitle=f"line: first to last object; bar: middle half; tick: median; {caption}",
    )
    for row, stage in enumerate(reversed(moments)):
        low, quarter, middle, three, high = np.percentile(stage.at, [0, 25, 50, 75, 100])
        ax.plot([low, high], [row, row], color=style.SERIES[0], linewidth=1)
        ax.barh(row, three - quarter, left=quarter, height=0.5, color=style.SERIES[0], alpha=0.5)
        ax.plot([middle], [row], "|", color=style.INK, markersize=11, markeredgewidth=2)
    ax.set_yticks(range(len(moments)), [stage.label for stage in reversed(moments)])
    ax.set_xlabel("seconds from the first submission")
    ax.set_xlim(left=0)
    return fig


@style.in_house_style
def ecdf(stages: Sequence[Stage], caption: str = "") -> Figure:
    """Draw the share of objects by time, for each stage.

    Objects that did not reach a stage keep its curve below 1.
    """
    reached = [stage for stage in _moments(stages) if stage.seconds]
    if not reached:
        return style.no_data("no stage was reached")
    medians = {stage.name: float(np.median(stage.seconds)) for stage in reached}
    slow = max(medians, key=lambda name: medians[name])
    title = f"Slowest stage: {slow.replace('_', ' ')}, median {medians[slow]:.3g} s"
    fig, (ax,) = style.figure(heights=(3.4,), title=title, subtitle=caption)
    for k, stage in enumerate(stage for stage in stages if stage.seconds):
        times, total = sorted(stage.seconds), len(stage.seconds) + stage.missing
        shares = [(i + 1) / total for i in range(len(times))]
        look = {key: value for key, value in style.look(k).items() if key != "marker"}
        ax.step(times, shares, where="post", label=stage.label, **look)
    ax.set_xlabel("seconds since the stage before")
    ax.set_ylabel("share of objects")
    ax.set_ylim(0, 1.02)
    style.legend_beside(ax)
    return fig


@style.in_house_style
def by_order(stages: Sequence[Stage], caption: str = "") -> Figure:
    """Draw the latency of each stage by order of submission: does it grow with the objects?"""
    reached = [stage for stage in stages if stage.seconds]
    if not reached:
        return style.no_data("no stage was reached")
    title, subtitle = "Latency by order of submission", f"line: running median; {caption}"
    fig, axes = style.figure(len(reached), (1.5,), 1, title, subtitle, sharex=True)
    for k, (ax, stage) in enumerate(zip(axes, reached, strict=True)):
        _by_order(ax, stage.order, stage.seconds, k)
        since = f"{stage.label} since {stage.since.replace('_', ' ')}"
        ax.set_title(style.wrap(since, 40 if style.is_narrow() else 90))
        ax.set_ylabel("seconds")
    axes[-1].set_xlabel("object, in order of submission")
    return fig


def _by_order(ax: Axes, places: Sequence[int], values: Sequence[float], k: int = 0) -> None:
    """Draw values by order of submission, with a running median of many values."""
    colour = style.SERIES[k % len(style.SERIES)]
    ax.plot(places, values, ".", markersize=2.5, color=colour, alpha=0.7)
    if len(values) >= 50:
        width = max(5, len(values) // 40)
        centres = range(width, len(values) - width, width)
        middle = [float(np.median(values[c - width : c + width])) for c in centres]
        ax.plot([places[c] for c in centres], middle, color=style.INK, linewidth=1.3)
    ax.set_ylim(bottom=min(0.0, *values) if values else 0.0)


@style.in_house_style
def api_calls(calls: Mapping[str, float], count: int, of: str, caption: str = "") -> Figure:
    """Draw the most frequent requests of a run with `count` VMs (or `of` objects)."""
    what = {"vms": "VM", "objects": "object"}[of]
    names = sorted(calls, key=lambda name: -calls[name])[:CALLS]
    title = f"{calls[names[0]] / count:.3g} x {names[0]} for each {what} at {count} {what}s"
    heights = (0.6 + 0.3 * len(names),)
    fig, (ax,) = style.figure(heights=heights, title=title, subtitle=caption)
    bars = ax.barh(names, [calls[name] for name in names], color=style.SERIES[0], height=0.7)
    ax.bar_label(bars, padding=3, fmt="{:.0f}")
    ax.invert_yaxis()
    ax.set_xlabel("requests")
    ax.margins(x=0.1)
    return fig


def drawings(rows: pa.Table) -> Iterator[tuple[str, Figure]]:
    """Yield charts of objects and API calls: a set for each entry and size."""
    fake = any(SIMULATED in (text or "") for text in rows["tool"].unique().to_pylist())
    alone = f"; {SIMULATED}: the control plane alone" if fake else ""
    groups, calls = of_results(rows), calls_of(rows)
    charts = {"lifecycle": timeline, "ecdf": ecdf, "order": by_order}
    for entry, count, samples, stages in groups:
        own = f"-{entry}-{count}" if len(groups) > 1 else ""
        newest = f", the last of {samples} samples" if samples > 1 else ""
        caption = f"{entry}: {plural(count, 'object')}{newest}{alone}"
        for name, draw in charts.items():
            yield f"{name}{own}", draw(stages, caption)
    for (entry, of, count), own_calls in calls.items():
        name = f"api-calls-{entry}-{count}" if len(calls) > 1 else "api-calls"
        yield name, api_calls(own_calls, count, of, f"{entry}{alone}")


def _points_of(deltas: Deltas, name: str) -> tuple[list[int], list[float]]:
    every = [(place, delta.get(name)) for place, (_, delta) in enumerate(deltas)]
    pairs = [(place, value) for place, value in every if value is not None]
    return [place for place, _ in pairs], [value for _, value in pairs]


def _words(values: Sequence[float], total: int) -> str:
    unseen = f", {total - len(values)} unseen" if total > len(values) else ""
    middle, mean = np.median(values or [np.nan]), np.mean(values or [np.nan])
    return f"median {middle:.3g} s, mean {mean:.3g} s, n={len(values)}{unseen}"


def _of(count: int, total: int | None) -> str:
    return plural(count, "workload") if total in (None, count) else f"{count} of {total} workloads"


@style.in_house_style
def general(deltas: Deltas, total: int | None = None, exclusions: Sequence[str] = ()) -> Figure:
    """Draw the time from submission to the scheduling decision, by order of submission.

    The row of the backend stands below it where it is known. `total` workloads were submitted, None
    for as many as in `deltas`. `exclusions` names why some are missing. The layout of this chart
    and of `detailed` is that of the tool of Run:ai.
    """
    names = ["Total Pod Scheduling Decision", "Total Backend Job Creation"]
    panels = [name for name in names if _points_of(deltas, name)[1]] or names[:1]
    first = _points_of(deltas, panels[0])[1]
    middle = f"median {np.median(first):.3g} s over " if first else ""
    count = _of(len(first), len(deltas) if total is None else total)
    title = f"Submission to scheduling: {middle}{count}"
    fig, axes = style.figure(len(panels), (2.6,), title=title, subtitle="; ".join(exclusions))
    for ax, name in zip(axes, panels, strict=True):
        places, values = _points_of(deltas, name)
        _by_order(ax, places, values)
        ax.set_title(f"{name} from {_REFERENCE[name]}: {_words(values, len(deltas))}")
        ax.set_ylabel("seconds")
    axes[-1].set_xlabel("workload, in order of submission")
    return fig


@style.in_house_style
def detailed(deltas: Deltas, total: int | None = None, exclusions: Sequence[str] = ()) -> Figure:
    """Draw a row per stage: its delta over the time of submission, and a histogram.

    `total` and `exclusions` are those of `general`.
    """
    names = [name for name in _REFERENCE if _points_of(deltas, name)[1]]
    names = [name for name in names if not name.startswith("Total")]
    if not names:
        return style.no_data("no stage was seen")
    starts = [datetime.fromisoformat(text).timestamp() for text, _ in deltas]
    title = f"{_of(len(deltas), total)}, stage by stage"
    subtitle = "; ".join(["left: over the time of submission; right: how often", *exclusions])
    fig, axes = style.figure(len(names), (1.5,), 2, title, subtitle)
    for left, right, name in zip(axes[::2], axes[1::2], names, strict=True):
        places, values = _points_of(deltas, name)
        at = [starts[place] - starts[0] for place in places]
        left.plot(at, values, ".", markersize=3, color=style.SERIES[0])
        left.set_title(f"{name} since {_REFERENCE[name]}")
        left.set_ylabel("seconds")
        right.hist(values, bins=min(30, max(5, len(values) // 5)), color=style.SERIES[0])
        right.set_title(_words(values, len(deltas)))
        right.set_ylabel("workloads")
    axes[-2].set_xlabel("seconds from the first submission")
    axes[-1].set_xlabel("seconds")
    return fig
