"""Charts of runs at scale: stages of objects, and the deltas of workloads.

All times are in seconds. Objects that did not reach a stage are left out and counted, never drawn
as 0.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.figure import Figure

from perfdag.benchmark.contract import SIMULATED
from perfdag.charts import style
from perfdag.identity import grouped
from perfdag.results.summary import PointState
from perfdag.units import plural

TOTAL = ".*_to_|^workload_"
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
Deltas = Sequence[Mapping[str, float | None]]
"""Delta name -> seconds or None of each workload, in order of submission."""


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
    def text(self) -> str:
        """Median, mean and number of its times: `median 2 s, mean 2.1 s, n=7`."""
        median = f"median {np.median(self.seconds):.3g} s"
        return f"{median}, mean {np.mean(self.seconds):.3g} s, n={len(self.seconds)}"


def of_results(rows: pa.Table) -> list[tuple[str, int, int, list[Stage]]]:
    """Return entry, size, number of samples and the stages of the last sample, by entry and size.

    They are the metrics of _OBJECTS, with a subject per object. Repetitions are not mixed.
    """
    of_objects = rows.filter(pc.is_in(rows["metric"], pa.array(_OBJECTS)))
    columns = ["entry", "metric", "subject", "coords", "value", *_SAMPLE]
    measured = [
        row | {"coords": orjson.loads(row["coords"] or "{}")}
        for row in of_objects.select(columns).to_pylist()
        if row["value"] is not None
    ]
    sizes = grouped(measured, lambda row: (row["entry"], int(row["coords"].get("count", 0))))
    groups = []
    for (entry, count), of_size in sizes.items():
        samples = grouped(of_size, lambda row: tuple(row[name] for name in _SAMPLE))
        *_, newest = samples.values()
        objects = {row["subject"] for row in newest}
        groups.append((entry, count or len(objects), len(samples), _stages(newest, objects)))
    return groups


def _stages(rows: Iterable[Mapping[str, Any]], objects: Iterable[str]) -> list[Stage]:
    """Return the stages in the rows of a sample. The numbers in its name order an object."""
    submitted = sorted(objects, key=lambda name: list(map(int, re.findall(r"\d+", name))))
    place = {name: order for order, name in enumerate(submitted)}
    stages: dict[str, Stage] = {}
    for row in rows:
        name = row["coords"]["stage"]
        stage = stages.setdefault(name, Stage(name, row["coords"].get("since", "")))
        if row["metric"] == "object_missing":
            stage.missing += 1
        elif row["metric"] == "object_time":
            stage.at.append(row["value"])
        else:
            stage.order.append(place[row["subject"]])
            stage.seconds.append(row["value"])
    return list(stages.values())


@style.house()
def timeline(stages: Sequence[Stage], caption: str = "") -> Figure:
    """Draw when objects reached each stage: first to last, with the middle half and the median.

    Totals are left out, because they repeat another stage.
    """
    reached = [stage for stage in stages if stage.at]
    names = {stage.name for stage in reached}
    # A name that is no total stays as it is, so a stage is not compared with itself.
    moments = [s for s in reached if re.sub(TOTAL, "", s.name) not in names - {s.name}]
    if not moments:
        return style.no_data("no stage was reached")
    last = max(moments, key=lambda stage: max(stage.at))
    title = f"The last object reached {last.name.replace('_', ' ')} after {max(last.at):.3g} s"
    fig, (ax,) = style.figure(
        [0.34 * len(moments) + 0.9],
        title,
        ["line: first to last object; bar: middle half; tick: median", caption],
    )
    moments.reverse()  # Rows count from below.
    blue = style.SERIES[0]
    for row, stage in enumerate(moments):
        low, lower, middle, upper, high = np.percentile(stage.at, [0, 25, 50, 75, 100])
        ax.plot([low, high], [row, row], color=blue, linewidth=1)
        ax.barh(row, upper - lower, left=lower, height=0.5, color=blue, alpha=0.5)
        ax.plot([middle], [row], "|", color=style.INK, markersize=11, markeredgewidth=2)
    ax.set_yticks(range(len(moments)), [stage.label for stage in moments])
    ax.set(xlabel="seconds from the first submission", xlim=(0, None))
    return fig


@style.house()
def by_order(stages: Sequence[Stage], title: str, remarks: Sequence[str]) -> Figure:
    """Draw the latency of each stage by order of submission: does it grow with the objects?"""
    reached = [stage for stage in stages if stage.seconds]
    if not reached:
        return style.no_data("no stage was reached")
    title = title or f"{reached[-1].label}: {reached[-1].text}"
    fig, axes = style.figure([1.5] * len(reached), title, remarks, sharex=True)
    for number, (ax, stage) in enumerate(zip(axes, reached, strict=True)):
        color, _, _ = style.look(number)
        values = stage.seconds
        ax.plot(stage.order, values, ".", markersize=2.5, color=color, alpha=0.7, clip_on=False)
        if len(values) >= 50:
            width = max(5, len(values) // 40)
            centres = range(width, len(values) - width, width)
            middle = [float(np.median(values[c - width : c + width])) for c in centres]
            ax.plot([stage.order[c] for c in centres], middle, color=style.INK, linewidth=1.3)
        ax.set_ylim(bottom=min(0.0, *values))
        name = f"{stage.label} since {stage.since.replace('_', ' ')}: {stage.text}"
        ax.set_title(style.wrap(name, 40 if style.is_narrow() else 90))
        ax.set_ylabel("seconds")
    axes[-1].set_xlabel("order of submission")
    return fig


def drawings(_: Sequence[PointState], rows: pa.Table) -> Iterator[tuple[str, Figure]]:
    """Yield charts of objects: a set for each entry and size."""
    fake = any(SIMULATED in (text or "") for text in rows["tool"].unique().to_pylist())
    alone = f"; {SIMULATED}: the control plane alone" if fake else ""
    groups = of_results(rows)
    for entry, count, samples, stages in groups:
        group = f"-{entry}-{count}" if len(groups) > 1 else ""
        newest = f", the last of {samples} samples" if samples > 1 else ""
        caption = f"{entry}: {plural(count, 'object')}{newest}{alone}"
        yield f"lifecycle{group}", timeline(stages, caption)
        yield f"order{group}", by_order(stages, "", ["line: running median", caption])


def _of(count: int, total: int) -> str:
    return plural(count, "workload") if total == count else f"{count} of {total} workloads"


def workloads(deltas: Deltas, total: int, exclusions: Sequence[str], *, detailed: bool) -> Figure:
    """Draw the times of workloads by order of submission: until scheduled, or stage by stage.

    The row of the backend stands below that of scheduling where it is known. `total` workloads were
    submitted, and `exclusions` names why some are missing.
    """
    stages = []
    for name, since in _REFERENCE.items():
        # Those named Total count from the submission, the others from the stage before.
        if name.startswith("Total") != detailed:
            times = {order: seconds.get(name) for order, seconds in enumerate(deltas)}
            seen = {order: value for order, value in times.items() if value is not None}
            missing = len(deltas) - len(seen)
            stages.append(
                Stage(name, since, order=[*seen], seconds=[*seen.values()], missing=missing)
            )
    if detailed:
        slowest = max(stages, key=lambda stage: np.median(stage.seconds or [0.0]))
        title = (
            f"{_of(len(deltas), total)}: {slowest.label} takes longest, "
            f"median {np.median(slowest.seconds or [0.0]):.3g} s"
        )
        return by_order(stages, title, exclusions)
    seconds = next(stage.seconds for stage in stages if "Scheduling" in stage.name)
    middle = f"median {np.median(seconds):.3g} s over " if seconds else ""
    title = f"Submission to scheduling: {middle}{_of(len(seconds), total)}"
    return by_order(stages, title, exclusions)
