"""Charts of the deltas of workloads: time to the scheduling decision, and every stage apart.

The layout is that of the tool of Run:ai. All times are in seconds.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perfdag.charts import style
from perfdag.units import plural

Deltas = Sequence[tuple[str, Mapping[str, float | None]]]
"""(submit time in RFC 3339, delta name -> seconds or None) a workload, in order of submission."""
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


def _points_of(deltas: Deltas, name: str) -> tuple[list[int], list[float]]:
    pairs = [
        (place, value)
        for place, (_, delta) in enumerate(deltas)
        if (value := delta.get(name)) is not None
    ]
    return [place for place, _ in pairs], [value for _, value in pairs]


def _words(values: Sequence[float], total: int) -> str:
    unseen = f", {total - len(values)} unseen" if total > len(values) else ""
    if not values:
        return f"never seen in {plural(total, 'workload')}"
    return (
        f"median {np.median(values):.3g} s, mean {np.mean(values):.3g} s, n={len(values)}{unseen}"
    )


def _of(count: int, total: int | None) -> str:
    return plural(count, "workload") if total in (None, count) else f"{count} of {total} workloads"


@style.in_house_style
def general(deltas: Deltas, total: int | None = None, exclusions: Sequence[str] = ()) -> Figure:
    """Draw the time from submission to the scheduling decision, by order of submission.

    The row of the backend stands below it where it is known. `total` workloads were submitted, None
    for as many as in `deltas`. `exclusions` names why some are missing.
    """
    names = ["Total Pod Scheduling Decision", "Total Backend Job Creation"]
    panels = [name for name in names if _points_of(deltas, name)[1]] or names[:1]
    first = _points_of(deltas, panels[0])[1]
    title = (
        f"Submission to scheduling: median {np.median(first):.3g} s over "
        if first
        else "Submission to scheduling: "
    )
    title += _of(len(first), len(deltas) if total is None else total)
    fig, axes = style.figure(len(panels), (2.6,), title=title, subtitle="; ".join(exclusions))
    for ax, name in zip(axes, panels, strict=True):
        places, values = _points_of(deltas, name)
        plot_by_order(ax, places, values)
        ax.set_title(f"{name} from {_REFERENCE[name]}: {_words(values, len(deltas))}")
        ax.set_ylabel("seconds")
    axes[-1].set_xlabel("workload, in order of submission")
    return fig


@style.in_house_style
def detailed(deltas: Deltas, total: int | None = None, exclusions: Sequence[str] = ()) -> Figure:
    """Draw a row per stage: its delta over the time of submission, and a histogram.

    `total` and `exclusions` are those of `general`.
    """
    names = [
        name for name in _REFERENCE if not name.startswith("Total") and _points_of(deltas, name)[1]
    ]
    if not names:
        return style.no_data("no stage was seen")
    starts = [datetime.fromisoformat(text).timestamp() for text, _ in deltas]
    fig, axes = style.figure(
        len(names),
        (1.5,),
        2,
        title=f"{_of(len(deltas), total)}, stage by stage",
        subtitle="; ".join(["left: over the time of submission; right: how often", *exclusions]),
    )
    for number, name in enumerate(names):
        left, right = axes[2 * number], axes[2 * number + 1]
        places, values = _points_of(deltas, name)
        left.plot(
            [starts[place] - starts[0] for place in places],
            values,
            ".",
            markersize=3,
            color=style.SERIES[0],
        )
        left.set_title(f"{name} since {_REFERENCE[name]}")
        left.set_ylabel("seconds")
        right.hist(values, bins=min(30, max(5, len(values) // 5)), color=style.SERIES[0])
        right.set_title(_words(values, len(deltas)))
        right.set_ylabel("workloads")
    axes[-2].set_xlabel("seconds from the first submission")
    axes[-1].set_xlabel("seconds")
    return fig


def plot_by_order(ax: Axes, places: Sequence[int], values: Sequence[float], k: int = 0) -> None:
    """Draw values by order of submission, with a running median of many values."""
    ax.plot(
        places, values, ".", markersize=2.5, color=style.SERIES[k % len(style.SERIES)], alpha=0.7
    )
    if len(values) >= 50:
        width = max(5, len(values) // 40)
        centres = range(width, len(values) - width, width)
        middle = [float(np.median(values[c - width : c + width])) for c in centres]
        ax.plot([places[c] for c in centres], middle, color=style.INK, linewidth=1.3)
    ax.set_ylim(bottom=min(0.0, *values) if values else 0.0)
