"""Charts of runs at scale: stages of objects, and the deltas of workloads.

All times are in seconds. Objects that did not reach a stage are left out and counted, never drawn
as 0.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.figure import Figure

from perfdag.benchmark.contract import SIMULATED
from perfdag.charts import style
from perfdag.results.summary import PointState
from perfdag.units import plural

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

    @property
    def words(self) -> str:
        """Median, mean and number of its times: `median 2 s, mean 2.1 s, n=7`."""
        middle, mean = np.median(self.seconds), np.mean(self.seconds)
        return f"median {middle:.3g} s, mean {mean:.3g} s, n={len(self.seconds)}"


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


def _moments(stages: Sequence[Stage]) -> list[Stage]:
    """Return the stages that were reached, without totals, which repeat another stage."""
    names = {stage.name for stage in stages if stage.at}
    totals = {stage.name: _TOTAL.sub("", stage.name) for stage in stages}
    return [s for s in stages if s.at and (totals[s.name] == s.name or totals[s.name] not in names)]


@style.house()
def timeline(stages: Sequence[Stage], caption: str = "") -> Figure:
    """Draw when objects reached each stage: first to last, with the middle half and the median.

    Totals are left out.
    """
    moments = _moments(stages)
    if not moments:
        return style.no_data("no stage was reached")
    last = max(moments, key=lambda stage: max(stage.at))
    fig, (ax,) = style.figure(
        [0.34 * len(moments) + 0.9],
        title=f"The last object reached {last.name.replace('_', ' ')} after {max(last.at):.3g} s",
        subtitle=f"line: first to last object; bar: middle half; tick: median; {caption}",
    )
    for row, stage in enumerate(reversed(moments)):
        low, quarter, middle, three, high = np.percentile(stage.at, [0, 25, 50, 75, 100])
        ax.plot([low, high], [row, row], color=style.SERIES[0], linewidth=1)
        ax.barh(row, three - quarter, left=quarter, height=0.5, color=style.SERIES[0], alpha=0.5)
        ax.plot([middle], [row], "|", color=style.INK, markersize=11, markeredgewidth=2)
    names = [stage.label for stage in reversed(moments)]
    ax.set(
        yticks=range(len(moments)), yticklabels=names, xlabel="seconds from the first submission"
    )
    ax.set_xlim(left=0)
    return fig


@style.house()
def by_order(stages: Sequence[Stage], title: str, subtitle: str = "") -> Figure:
    """Draw the latency of each stage by order of submission: does it grow with the objects?"""
    reached = [stage for stage in stages if stage.seconds]
    if not reached:
        return style.no_data("no stage was reached")
    title = title or f"{reached[-1].label}: {reached[-1].words}"
    fig, axes = style.figure([1.5] * len(reached), 1, title, subtitle, sharex=True)
    for k, (ax, stage) in enumerate(zip(axes, reached, strict=True)):
        colour = style.SERIES[k % len(style.SERIES)]
        values = stage.seconds
        since = stage.since.replace("_", " ")
        ax.plot(stage.order, values, ".", markersize=2.5, color=colour, alpha=0.7)
        if len(values) >= 50:
            width = max(5, len(values) // 40)
            centres = range(width, len(values) - width, width)
            middle = [float(np.median(values[c - width : c + width])) for c in centres]
            ax.plot([stage.order[c] for c in centres], middle, color=style.INK, linewidth=1.3)
        ax.set_ylim(bottom=min(0.0, *values))
        ax.set_title(
            style.wrap(
                f"{stage.label} since {since}: {stage.words}", 40 if style.is_narrow() else 90
            )
        )
        ax.set_ylabel("seconds")
    axes[-1].set_xlabel("order of submission")
    return fig


def drawings(_: Sequence[PointState], rows: pa.Table) -> Iterator[tuple[str, Figure]]:
    """Yield charts of objects: a set for each entry and size."""
    fake = any(SIMULATED in (text or "") for text in rows["tool"].unique().to_pylist())
    alone = f"; {SIMULATED}: the control plane alone" if fake else ""
    groups = of_results(rows)
    for entry, count, samples, stages in groups:
        own = f"-{entry}-{count}" if len(groups) > 1 else ""
        newest = f", the last of {samples} samples" if samples > 1 else ""
        caption = f"{entry}: {plural(count, 'object')}{newest}{alone}"
        yield f"lifecycle{own}", timeline(stages, caption)
        order = f"line: running median; {caption}"
        yield f"order{own}", by_order(stages, "", order)


def of_workloads(deltas: Deltas) -> list[Stage]:
    """Return the stages that workloads reached, in which `at` is the time of their submission."""
    starts = [datetime.fromisoformat(text).timestamp() for text, _ in deltas]
    stages = []
    for name, since in _REFERENCE.items():
        seen = [(i, one) for i, (_, own) in enumerate(deltas) if (one := own.get(name)) is not None]
        if seen:
            order, seconds = map(list, zip(*seen, strict=True))
            at = [starts[i] - starts[0] for i in order]
            stages.append(Stage(name, since, order, at, seconds, len(deltas) - len(seen)))
    return stages


def _of(count: int, total: int) -> str:
    return plural(count, "workload") if total == count else f"{count} of {total} workloads"


def general(deltas: Deltas, total: int, exclusions: Sequence[str]) -> Figure:
    """Draw the time from submission to the scheduling decision, by order of submission.

    The row of the backend stands below it where it is known. `total` workloads were submitted, and
    `exclusions` names why some are missing.
    """
    stages = [stage for stage in of_workloads(deltas) if stage.name.startswith("Total")]
    seconds = [one for stage in stages if "Scheduling" in stage.name for one in stage.seconds]
    middle = f"median {np.median(seconds):.3g} s over " if seconds else ""
    title = f"Submission to scheduling: {middle}{_of(len(seconds), total)}"
    return by_order(stages, title, "; ".join(exclusions))


def detailed(deltas: Deltas, total: int, exclusions: Sequence[str]) -> Figure:
    """Draw the delta of each stage by order of submission; see `general`."""
    stages = [stage for stage in of_workloads(deltas) if not stage.name.startswith("Total")]
    title = f"{_of(len(deltas), total)}, stage by stage"
    return by_order(stages, title, "; ".join(exclusions))
