"""resnet50-interference: a matrix of the rate and tail of each copy, alone and together."""

import json
import statistics
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pyarrow as pa
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from perfdag.charts import style
from perfdag.charts.benchmarks.resnet50_marks import with_marks
from perfdag.charts.benchmarks.sweeps import FIGURES
from perfdag.charts.series import read, runs_words
from perfdag.units import short

Column = tuple[str, str | None, str, str]
TAILS = {"server": "p99", "single-stream": "p90", "offline": "time a sample"}
"""What `tail` is of a scenario."""
_BLUE_FOR_NO_LOSS = LinearSegmentedColormap.from_list("kept", ["#d55e00", "#f3ece4", "#c9dfee"])
_RATIOS = {"rate_kept", "tail_inflation", "p99_inflation"}


def columns(scenario: str, p99: bool) -> list[Column]:
    """Return metric, moment, heading and unit of each column, with p99 where it is not the tail."""
    tail = TAILS.get(scenario, "tail")
    columns_shown: list[Column] = [
        ("rate", "alone", "rate alone", "1/s"),
        ("rate", "together", "rate together", "1/s"),
        ("rate_kept", None, "rate kept", "1"),
        ("tail", "alone", f"{tail} alone", "s"),
        ("tail", "together", f"{tail} together", "s"),
        ("tail_inflation", None, f"{tail} inflation", "1"),
    ]
    return (
        [*columns_shown, ("p99_inflation", None, "p99 inflation", "1")]
        if p99 and tail != "p99"
        else columns_shown
    )


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """Yield a matrix per point. A point without a valid sample is a figure with the reason."""
    cells = read(rows)
    cut = f"first {FIGURES} of {len(cells)} points" if len(cells) > FIGURES else ""
    where = style.caption(cut, runs_words(rows))
    values, coords = _by_copy(rows, {cell.state.point for cell in cells if cell.why})
    for number, cell in enumerate(cells[:FIGURES]):
        slug = "matrix" if len(cells) == 1 else f"matrix-{number + 1}"
        copies = values.get(cell.state.point)
        if not copies:
            yield slug, style.no_data(f"{cell.label}: {cell.why or 'no copy was measured'}")
            continue
        over_all = {
            series.metric: series.middle
            for series in cell.series("fairness") + cell.series("aggregate")
            if series.values
        }
        label, scenario = (
            with_marks(cell.label, coords[cell.state.point]),
            str(cell.state.params.get("scenario", "offline")),
        )
        yield slug, _matrix(label, scenario, copies, over_all, cell.why, where)


def _by_copy(
    rows: pa.Table, without: Collection[str]
) -> tuple[dict[str, dict[str, dict[tuple[str, str | None], float]]], dict[str, dict[str, Any]]]:
    """Return point -> copy -> (metric, moment) -> median, and point -> coordinates.

    Only valid samples count. For points in `without`, which have no valid sample, all samples
    count.
    """
    table = rows.select(
        ["point", "subject", "metric", "coords", "value", "phase", "status"]
    ).to_pylist()
    lists: dict[str, dict[str, dict[tuple[str, str | None], list[float]]]] = {}
    coords: dict[str, dict[str, Any]] = {}
    for row in table:
        counts = row["phase"] == "measure" and (row["status"] == "ok" or row["point"] in without)
        if counts and row["subject"] and row["value"] is not None:
            row_coords = json.loads(row["coords"] or "{}")
            coords.setdefault(row["point"], {}).update(row_coords)
            key = (row["metric"], row_coords.get("when"))
            lists.setdefault(row["point"], {}).setdefault(row["subject"], {}).setdefault(
                key, []
            ).append(row["value"])
    values = {
        point: {
            copy: {key: statistics.median(samples) for key, samples in keys.items()}
            for copy, keys in sorted(copies.items())
        }
        for point, copies in lists.items()
    }
    return values, coords


def _matrix(
    label: str,
    scenario: str,
    copies: Mapping[str, Mapping[tuple[str, str | None], float]],
    over_all: Mapping[str, float],
    why: str | None,
    where: str,
) -> Figure:
    fairness = over_all.get("fairness")
    title = f"{label}: {_finding(scenario, copies, over_all.get('aggregate'))}"
    late = [
        copy for copy, copy_values in copies.items() if copy_values.get(("valid", "together")) == 0
    ]
    notes = [
        f"fairness (Jain) {fairness:.3f}" if fairness is not None else "",
        f"LoadGen says INVALID together of {', '.join(late)}" if late else "",
        "no valid sample: " + why if why else "",
        where,
    ]
    headings = columns(
        scenario, any(("p99_inflation", None) in copy_values for copy_values in copies.values())
    )
    subtitle = "; ".join(note[:160] for note in notes if note)
    fig, (ax,) = style.figure(heights=(0.75 + 0.42 * len(copies),), title=title, subtitle=subtitle)
    ax.set_xlim(0, len(headings))
    ax.set_ylim(len(copies), 0)
    for row, copy_values in enumerate(copies.values()):
        for column, (metric, when, _, unit) in enumerate(headings):
            value = copy_values.get((metric, when))
            shade = _shade(metric, value)
            ax.add_patch(_square(column, row, shade))
            ax.text(
                column + 0.5,
                row + 0.5,
                short(value, unit),
                ha="center",
                va="center",
                fontsize=9,
                color=style.INK if shade == style.PAPER else style.ON_PALE,
            )
    ax.set_xticks([i + 0.5 for i in range(len(headings))], [name for _, _, name, _ in headings])
    ax.set_yticks([i + 0.5 for i in range(len(copies))], list(copies))
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.grid(visible=False)
    for side in ("bottom", "left"):
        ax.spines[side].set_visible(False)
    return fig


def _finding(
    scenario: str,
    copies: Mapping[str, Mapping[tuple[str, str | None], float]],
    together: float | None,
) -> str:
    metric = "tail_inflation" if scenario == "server" else "rate_kept"
    ratios = [
        copy_values[(metric, None)]
        for copy_values in copies.values()
        if (metric, None) in copy_values
    ]
    if scenario == "server":  # its rates are those of the schedule, whatever the others cost
        return (
            f"p99 of each of {len(copies)} copies is {_range(ratios, 1, '.2f', 'times')} that alone"
        )
    text = f"each of {len(copies)} copies keeps {_range(ratios, 100, '.0f', '%')} of its rate"
    return text if together is None else f"{text}; all together do {together:.2f} times one alone"


def _shade(metric: str, value: float | None) -> Any:
    """Return the colour of a ratio: blue for no loss, vermilion for half, white otherwise."""
    if value is None or metric not in _RATIOS or value <= 0:
        return style.PAPER
    ratio = value if metric == "rate_kept" else 1 / value
    return _BLUE_FOR_NO_LOSS(min(1.0, max(0.0, (ratio - 0.4) / 0.6)))


def _square(column: int, row: int, colour: Any) -> Any:
    return Rectangle((column, row), 1, 1, facecolor=colour, edgecolor=style.PAPER, linewidth=2)


def _range(values: list[float], factor: float, form: str, unit: str) -> str:
    if not values:
        return f"an unknown number of {unit}" if unit == "times" else "an unknown part"
    low, high = (format(value * factor, form) for value in (min(values), max(values)))
    return f"{high} {unit}" if low == high else f"{low} to {high} {unit}"
