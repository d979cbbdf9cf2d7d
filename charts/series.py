"""Points with short labels, and their series as the items that charts draw."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from perfdag.results.labels import point_settings
from perfdag.results.summary import PointState, Series, points_of
from perfdag.units import digits, plural, scaled, setting, short, with_spread

_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")
_INDEXED = re.compile(r"([a-z]+) (\d+)")
MARKS = {
    "fast": "smoke test: not comparable",
    "loadgen": "LoadGen says INVALID",
    "weights": "weights not verified",
}
"""Coordinates of figures that are not comparable or were not checked."""


@dataclass
class Cell:
    """A point with its label and the words in it. `why` is the reason for having no value."""

    state: PointState
    label: str
    why: str | None
    words: dict[str, str] = field(default_factory=dict)

    @property
    def noisy(self) -> bool:
        """Whether a sample was disturbed."""
        return bool(self.state.noise)


@dataclass(frozen=True)
class Item:
    """A series of a point as a chart draws it: the words that name it, and its numbers by key."""

    cell: Cell
    series: Series
    words: Mapping[str, str]
    numbers: Mapping[str, float]


def word(name: str, value: Any) -> str:
    """Return a setting as a suite writes it: `bs=4KiB`, `reverse`, `rate=50Mbit/s`."""
    return name if value is True or value == "true" else f"{name}={setting(name, value)}"


def amount(value: float, unit: str, metric: str = "") -> str:
    """Return a value for people, such as `46.2 kIOPS`. The space does not break."""
    return short(value, unit, metric).replace(" ", "\u00a0")


def spread_text(series: Series) -> str:
    """Return the spread in the unit of the median, such as `41.5 to 55 kIOPS, n=3`."""
    band, (factor, name) = series.band, scaled(series.unit, series.middle, series.metric)
    if band.n < 2:
        return f"n={band.n}"
    low, high = (digits(value / factor) for value in (band.low, band.high))
    return f"{low} to {high} {name}".rstrip() + f", n={band.n}"


def value_words(series: Series) -> str:
    """Return median, spread and n in one unit: `23.4 (22.9 to 23.8) Gbit/s, n=3`."""
    band, kind = series.band, (series.unit, series.metric)
    if band.n < 2:
        return f"{short(series.middle, *kind)}, n={band.n}"
    return f"{with_spread(series.middle, band.low, band.high, *kind)}, n={band.n}"


def read(rows: pa.Table) -> list[Cell]:
    """Return the points of the rows in their order, without warm-up."""
    return label_cells(points_of(rows))


def label_cells(states: Sequence[PointState]) -> list[Cell]:
    """Return points with labels: what varies within the entry.

    The name of the entry comes first where there are several entries.
    """
    entries: dict[str, list[PointState]] = {}
    for state in states:
        entries.setdefault(state.entry, []).append(state)
    words = {}
    for group in entries.values():
        for state, own in zip(group, _varied(group), strict=True):
            words[state.point] = own
    cells = []
    for state in states:
        label = " ".join(words[state.point].values())
        if len(entries) > 1 or not label:
            label = f"{state.entry}: {label}" if label else state.entry
        cells.append(Cell(state, _CONTROL.sub(" ", label), _why(state), words[state.point]))
    return cells


def _varied(states: Sequence[PointState]) -> list[dict[str, str]]:
    """Return the words that tell the points of an entry apart, by the name of the setting.

    Settings of the shape, and what is false or unset, are left out where the rest differs.
    """
    every = [point_settings(state.params, state.shape, state.pair) for state in states]
    names = sorted({name for own in every for name in own})
    names = [name for name in names if len({own.get(name) for own in every}) > 1]
    points = [{name: own[name] for name in names if name in own} for own in every]
    distinct = len({tuple(own.items()) for own in points})
    for left_out in (_of_shape, _unset):
        fewer = [{k: v for k, v in own.items() if not left_out(k, v)} for own in points]
        if len({tuple(own.items()) for own in fewer}) == distinct:
            points = fewer
    return [{name: word(name, value) for name, value in own.items()} for own in points]


def _of_shape(name: str, _: str) -> bool:
    return "." in name


def _unset(_: str, value: str) -> bool:
    return value in ("false", "null")


def _why(state: PointState) -> str | None:
    if state.statuses.get("ok"):
        return None
    words = ", ".join(sorted(state.statuses)) or "missing"
    return _CONTROL.sub(" ", f"{words}: {state.reasons[0]}") if state.reasons else words


def items_of(cells: Iterable[Cell], metric: str, stats: Collection[str] = ()) -> list[Item]:
    """Return the series of a metric that have values, of these statistics alone if named."""
    pairs = [
        (cell, series)
        for cell in cells
        for series in cell.state.series
        if series.metric == metric and series.values and (not stats or series.stat in stats)
    ]
    entries = len({cell.state.entry for cell, _ in pairs}) > 1
    found = []
    for cell, series in pairs:
        coords = {name: value for name, value in series.coords.items() if name not in MARKS}
        words = {"entry": cell.state.entry} if entries else {}
        words |= cell.words | {name: word(name, value) for name, value in coords.items()}
        words |= {"stat": series.stat} if series.stat != "value" else {}
        hosts = {"hosts.count": (cell.state.shape.get("hosts") or {}).get("count")}
        numbers = {
            name: float(value)
            for name, value in (cell.state.params | hosts | coords).items()
            if name in words and isinstance(value, int | float) and not isinstance(value, bool)
        }
        found.append(Item(cell, series, words, numbers))
    return found


def items_of_subjects(cells: Iterable[Cell], rows: pa.Table, metric: str) -> list[Item]:
    """Return the series of each worker, device or second of the valid samples.

    A subject such as `second 3` is the number 3 of the coordinate `second`.
    """
    mask = pc.and_(pc.equal(rows["metric"], metric), pc.equal(rows["status"], "ok"))
    mask = pc.and_(mask, pc.equal(rows["phase"], "measure"))
    own = rows.filter(pc.fill_null(pc.and_(mask, pc.is_valid(rows["subject"])), False))
    series: dict[tuple[str, str, str], Series] = {}
    # points_of leaves out the rows of subjects, which are series of their own here
    for row in own.to_pylist():
        key = row["point"], row["subject"], f"{row['stat']} {row['coords']}"
        if key not in series:
            match = _INDEXED.fullmatch(row["subject"])
            coords = {match[1]: int(match[2])} if match else {"subject": row["subject"]}
            coords |= {
                k: v for k, v in orjson.loads(row["coords"] or "{}").items() if k not in MARKS
            }
            series[key] = replace(Series.of(row), coords=coords, headline=False)
        series[key].values.append(row["value"])
    cells = [
        Cell(PointState(**{**vars(cell.state), "series": mine}), cell.label, None, cell.words)
        for cell in cells
        if (mine := [one for key, one in series.items() if key[0] == cell.state.point])
    ]
    return items_of(cells, metric)


def band_words(items: Iterable[Item]) -> str:
    """Return what a bar or band is: `bar: range of n=3`."""
    bands = [item.series.band for item in items if item.series.band.n > 1]
    if not bands:
        return "one sample each"
    kinds = {"range": "range", "interval": "95 % interval of the median"}
    names = " or ".join(dict.fromkeys(kinds.get(band.kind, band.kind) for band in bands))
    low, high = min(band.n for band in bands), max(band.n for band in bands)
    return f"spread: {names} of n={low}" + (f" to {high}" if high > low else "")


def notes(cells: Sequence[Cell], rows: pa.Table) -> str:
    """Return what a reader must know of the points, and the run and place."""
    lost = [f"{cell.label} ({cell.why.partition(':')[0]})" for cell in cells if cell.why]
    more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
    coords = {name for cell in cells for series in cell.state.series for name in series.coords}
    together = any(nodes and len(set(nodes)) < len(nodes) for nodes in rows["nodes"].to_pylist())
    parts = [
        f"no value: {', '.join(lost[:3])}{more}" if lost else "",
        "~: disturbed" if any(cell.noisy and not cell.why for cell in cells) else "",
        "hosts shared a node" if together else "",
        *(words for name, words in MARKS.items() if name in coords),
        runs_words(rows),
    ]
    return "; ".join(part for part in parts if part)


def runs_words(rows: pa.Table) -> str:
    """Return run and place: `run 20261120T020000Z-1a2b3c4d on node-1, node-2`."""
    runs = [name for name in pc.unique(rows["run_id"]).to_pylist() if name]
    run = f"run {runs[0]}" if len(runs) == 1 else plural(len(runs), "run") if runs else ""
    nodes = pc.unique(pc.list_flatten(rows["nodes"].combine_chunks())).to_pylist()
    places = [name for name in pc.unique(rows["cluster"]).to_pylist() if name]
    places = places or sorted(name for name in nodes if name)
    where = ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")
    return f"{run} on {where}" if run and where else run or where


def of_benchmark(table: pa.Table, name: str) -> pa.Table:
    """Return the rows of one benchmark."""
    return table.filter(pc.equal(table["benchmark"], name))
