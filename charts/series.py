"""Points with short labels and their series, which charts draw."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from perfdag.digest import canonical
from perfdag.results.summary import PointState, Series, point_labels, summarise
from perfdag.units import plural, scaled, short

_SIZES = re.compile(r"\b((?:bs|size|\w*_?bytes|window|length|file_?size|message)=)(\d{4,})\b")
SWEPT = 3
"""Values of a parameter that make a line."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")
_SHAPE_KEY = re.compile(r"(?:^| )[a-z_]+\.[\w.]+=\S+")
_UNSET = re.compile(r"(?:^| )[\w.]+=(?:false|null)(?= |$)")
_RATES = re.compile(r"\b(rate=)(\d{4,})\b")
_TRUE = re.compile(r"\b([\w.]+)=true\b")


OPERATIONS = {
    "iops": "IOPS",
    "message_rate": "messages/s",
    "samples_rate": "samples/s",
    "throughput": "items/s",
}
"""What a metric in 1/s counts; others count operations."""


def unit_for(largest: float, unit: str, metric: str = "") -> tuple[float, str]:
    """Return (factor, name) of the unit for values up to `largest`: kIOPS, µs, GB/s."""
    factor, name = scaled(unit, largest)
    if unit == "1/s":
        name = name.removesuffix("/s") + OPERATIONS.get(metric, "op/s")
    return factor, "µs" if name == "us" else name


def digits(value: float) -> str:
    """Return a number of three significant digits without an exponent where that is readable."""
    text = f"{value:.3g}"
    return f"{float(text):.0f}" if "e+" in text and abs(value) < 1e9 else text


def amount(value: float, unit: str, metric: str = "") -> str:
    """Return a value for people, such as `46.2 kIOPS`. The space does not break."""
    factor, name = unit_for(value, unit, metric)
    return f"{digits(value / factor)}\u00a0{name}".rstrip("\u00a0")


def spread_text(series: Series) -> str:
    """Return the spread in the unit of the median, such as `41.5 to 55 kIOPS, n=3`."""
    band, (factor, name) = series.band, unit_for(series.middle, series.unit, series.metric)
    if band.n < 2:
        return f"n={band.n}"
    low, high = (digits(value / factor) for value in (band.low, band.high))
    return f"{low} to {high} {name}, n={band.n}".replace(" ,", ",")


@dataclass
class Cell:
    """A point in a chart with its label. `why` is the reason for having no valid sample."""

    state: PointState
    label: str
    why: str | None

    @property
    def noisy(self) -> bool:
        """Whether a sample was disturbed."""
        return bool(self.state.noise)

    def series(self, metric: str, stat: str | None = None) -> list[Series]:
        """Return the series of that metric (and statistic), in the order of the rows."""
        return [
            series
            for series in self.state.series
            if series.metric == metric and stat in (None, series.stat)
        ]

    def first(self, metric: str, stat: str | None = None) -> Series | None:
        """Return the first series of that metric (and statistic) that has values."""
        return next((series for series in self.series(metric, stat) if series.values), None)

    def middle(self, metric: str, stat: str | None = None) -> float | None:
        """Return the median of the first series that has values, or None without one."""
        series = self.first(metric, stat)
        return series.middle if series else None


def with_latencies(cells: Iterable[Cell], stats: Collection[str]) -> list[Cell]:
    """Return the points with these statistics alone of their latency."""
    return [
        replace(
            cell,
            state=replace(
                cell.state,
                series=[
                    series
                    for series in cell.state.series
                    if series.metric != "latency" or series.stat in stats
                ],
            ),
        )
        for cell in cells
    ]


def noise_words(cells: Iterable[Cell], mark: str = "~ and hollow") -> str:
    """Return what the mark of disturbed points means, or an empty text if there are none."""
    return f"{mark}: a sample was disturbed" if any(cell.noisy for cell in cells) else ""


def failed_labels(cells: Iterable[Cell]) -> list[str]:
    """Return the labels of the points without a valid sample, with the status of their samples."""
    return [f"{cell.label}: {cell.why.partition(':')[0]}" for cell in cells if cell.why]


def read(rows: pa.Table) -> list[Cell]:
    """Return the points of the rows in their order, without warm-up."""
    return label_cells(summarise(rows))


def valid(rows: pa.Table, *metrics: str) -> pa.Table:
    """Return the rows of these metrics of valid samples without warm-up.

    Unlike `read`, it includes the rows of single pods and devices.
    """
    mask = pc.is_in(rows["metric"].cast(pa.string()), pa.array(metrics))
    mask = pc.and_(
        mask, pc.and_(pc.equal(rows["status"], "ok"), pc.equal(rows["phase"], "measure"))
    )
    return rows.filter(pc.fill_null(mask, False))


def label_cells(states: Sequence[PointState]) -> list[Cell]:
    """Return points with labels: what varies within the entry.

    The name of the entry comes first where there are several entries.
    """
    labels = point_labels(states)
    entries: dict[str, list[PointState]] = {}
    for one_state in states:
        entries.setdefault(one_state.entry, []).append(one_state)
    short_of = {}
    for group in entries.values():
        for state, label in zip(
            group, _brief([labels[one_state.point] for one_state in group]), strict=True
        ):
            short_of[state.point] = label
    cells = []
    for one_state in states:
        label = short_of[one_state.point]
        if len(entries) > 1 or not label:
            label = f"{one_state.entry}: {label}" if label else one_state.entry
        cells.append(Cell(one_state, _CONTROL.sub(" ", label), _why(one_state)))
    return cells


def _brief(labels: list[str]) -> list[str]:
    """Shorten labels: sizes and rates with units, `reverse=true` as `reverse`.

    False, null and shape keys are left out where the labels still differ.
    """
    labels = [
        _SIZES.sub(lambda match: match[1] + short(float(match[2]), "B").replace(" ", ""), label)
        for label in labels
    ]
    labels = [
        _RATES.sub(lambda match: match[1] + short(float(match[2]), "bit/s").replace(" ", ""), label)
        for label in labels
    ]
    distinct = len(set(labels))
    for pattern in (_SHAPE_KEY, _UNSET):
        fewer = [" ".join(pattern.sub("", label).split()) for label in labels]
        if len(set(fewer)) == distinct:
            labels = fewer
    return [_TRUE.sub(r"\1", label) for label in labels]


def _why(state: PointState) -> str | None:
    if state.statuses.get("ok"):
        return None
    words = ", ".join(sorted(state.statuses)) or "missing"
    return _CONTROL.sub(" ", f"{words}: {state.reasons[0]}") if state.reasons else words


def words_without(cell: Cell, names: Collection[str]) -> str:
    """Return the label of a point without these parameters or shape keys."""
    return " ".join(
        word for word in cell.label.split(" ") if word.partition("=")[0] not in names
    ).strip(": ")


def alike(cells: Sequence[Cell], but: Collection[str]) -> list[list[Cell]]:
    """Return groups of points that differ only in these parameters and in the number of hosts."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        params = {name: value for name, value in cell.state.params.items() if name not in but}
        shape = {
            **cell.state.shape,
            "hosts": {k: v for k, v in cell.state.shape.get("hosts", {}).items() if k != "count"},
        }
        groups.setdefault(canonical([params, shape]), []).append(cell)
    return list(groups.values())


def metrics(cells: Iterable[Cell]) -> list[str]:
    """Return the metrics of the points, headlines first, then in the order of the rows."""
    headlines: dict[str, bool] = {}
    for cell in cells:
        for series in cell.state.series:
            headlines[series.metric] = headlines.get(series.metric, False) or series.headline
    return sorted(headlines, key=lambda name: not headlines[name])


def band_words(
    series_drawn: Iterable[Series], median_mark: str = "dot", band_mark: str = "bar"
) -> str:
    """Return what the marks mean: `dot: median; bar: range (min to max) of n=3`."""
    kinds: dict[str, list[int]] = {}
    for series in series_drawn:
        band = series.band
        if band.n:
            name = (
                "range (min to max)"
                if band.kind == "range"
                else "interval of the median (95 % or more)"
            )
            name = "none, one sample," if band.n == 1 else name
            kinds.setdefault(name, []).append(band.n)
    words = []
    for name, counts in kinds.items():
        low, high = min(counts), max(counts)
        words.append(f"{name} of n={low}" if low == high else f"{name} of n={low} to {high}")
    return f"{median_mark}: median; {band_mark}: {', or '.join(words)}" if words else ""


def runs_words(rows: pa.Table) -> str:
    """Return run and place: `run 20261120T020000Z-1a2b3c4d on node-1, node-2`."""
    runs = [name for name in pc.unique(rows["run_id"]).to_pylist() if name]
    run = f"run {runs[0]}" if len(runs) == 1 else plural(len(runs), "run") if runs else ""
    places = [name for name in pc.unique(rows["cluster"]).to_pylist() if name] or _nodes(rows)
    where = ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")
    return f"{run} on {where}" if run and where else run or where


def _nodes(rows: pa.Table) -> list[str]:
    names = pc.unique(pc.list_flatten(rows["nodes"].combine_chunks()))
    return sorted(name for name in names.to_pylist() if name)


def nodes_used(rows: pa.Table) -> dict[str, int]:
    """Return point -> how many nodes its hosts used, the fewest over its samples.

    Points whose rows name no node are left out.
    """
    counts: dict[str, int] = {}
    for point, nodes in zip(rows["point"].to_pylist(), rows["nodes"].to_pylist(), strict=True):
        if nodes:
            counts[point] = min(len(set(nodes)), counts.get(point, len(nodes)))
    return counts


def hosts_words(count: int, nodes: int | None = None) -> str:
    """Return `2 hosts`, or `2 hosts on 1 node` where hosts shared nodes."""
    hosts = plural(count, "host")
    return f"{hosts} on {plural(nodes, 'node')}" if nodes and nodes < count else hosts


def value_words(series: Series) -> str:
    """Return median, spread and n in one unit: `23.4 (22.9 to 23.8) Gbit/s, n=3`."""
    band = series.band
    if band.kind == "none":
        return "no value"
    middle, low, high = (
        short(value, series.unit) for value in (series.middle, band.low, band.high)
    )
    number, _, unit = middle.rpartition(" ") if " " in middle else (middle, "", "")
    if unit and low.endswith(f" {unit}") and high.endswith(f" {unit}"):
        low, high = low.removesuffix(f" {unit}"), high.removesuffix(f" {unit}")
        middle, unit = number, f" {unit}"
    else:
        unit = ""
    return f"{middle} ({low} to {high}){unit}, n={band.n}" if band.n > 1 else f"{middle}{unit}, n=1"


def of_benchmark(table: pa.Table, name: str) -> pa.Table:
    """Return the rows of one benchmark."""
    return table.filter(pc.equal(table["benchmark"], name))


def sweep(series: Iterable[Series]) -> str | None:
    """Return the numeric coordinate with the most values, at least four, or None."""
    values: dict[str, set[Any]] = {}
    for one_series in series:
        for name, value in one_series.coords.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                values.setdefault(name, set()).add(value)
    long = {name: len(points) for name, points in values.items() if len(points) >= 4}
    return max(long, key=lambda name: long[name]) if long else None


def swept_param(cells: Sequence[Cell]) -> str | None:
    """Return the numeric parameter with the most values over which most points are lines, or None.

    A line has at least three points that differ in nothing else.
    """
    long = {}
    for name in set.intersection(*(set(cell.state.params) for cell in cells)) if cells else ():
        lines: dict[str, set[float]] = {}
        for group in alike(cells, (name,)):
            own = [cell.state.params[name] for cell in group]
            if all(isinstance(value, int | float) and not isinstance(value, bool) for value in own):
                lines[group[0].state.point] = set(own)
        sweeps = [values for values in lines.values() if len(values) >= SWEPT]
        if 2 * sum(map(len, sweeps)) >= len(cells):
            long[name] = len(set().union(*sweeps))
    return max(sorted(long), key=lambda name: long[name]) if long else None
