"""Points with short labels, and their series as the items that charts draw."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from perfdag.benchmark.registry import point_words
from perfdag.results.summary import PointState, Series, unusable
from perfdag.units import digits, plural, scaled, short, with_spread

MARKS = {
    "fast": "smoke test: not comparable",
    "loadgen": "LoadGen says INVALID",
    "weights": "weights not verified",
}
"""Coordinates of figures that are not comparable or were not checked."""


@dataclass(frozen=True)
class Item:
    """A series of a point as a chart draws it: the words that name it, and its numbers by key."""

    state: PointState
    series: Series
    words: Mapping[str, str]
    numbers: Mapping[str, float]


def amount(value: float, unit: str) -> str:
    """Return a value for people, such as `46.2 kIOPS`. The space does not break."""
    return short(value, unit).replace(" ", "\u00a0")


def spread_text(series: Series) -> str:
    """Return the spread in the unit of the median, such as `41.5 to 55 kIOPS, n=3`."""
    band = series.band
    factor, name = scaled(series.display_unit, series.middle)
    if band.n < 2:
        return f"n={band.n}"
    low, high = (digits(value / factor) for value in (band.low, band.high))
    return f"{low} to {high} {name}".rstrip() + f", n={band.n}"


def value_words(series: Series) -> str:
    """Return median, spread and n in one unit: `23.4 (22.9 to 23.8) Gbit/s, n=3`."""
    band = series.band
    return f"{with_spread(series.middle, band.low, band.high, series.display_unit)}, n={band.n}"


def items_of(states: Iterable[PointState], metric: str, stats: Collection[str] = ()) -> list[Item]:
    """Return the series of a metric that have values, of these statistics alone if named."""
    pairs = [
        (state, series)
        for state in states
        for series in state.series
        if series.metric == metric and series.values and (not stats or series.stat in stats)
    ]
    entries = len({state.entry for state, _ in pairs}) > 1
    found = []
    for state, series in pairs:
        coords = {name: value for name, value in series.coords.items() if name not in MARKS}
        words = {"entry": state.entry} if entries else {}
        words |= state.words | point_words(state.benchmark, coords)
        words |= {"stat": series.stat} if series.stat != "value" else {}
        hosts = {"hosts.count": (state.shape.get("hosts") or {}).get("count")}
        numbers = {
            name: float(value)
            for name, value in (state.params | hosts | coords).items()
            if name in words and isinstance(value, int | float) and not isinstance(value, bool)
        }
        found.append(Item(state, series, words, numbers))
    return found


def items_of_subjects(states: Iterable[PointState], rows: pa.Table, metric: str) -> list[Item]:
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
            name, _, number = row["subject"].partition(" ")
            coords = {name: int(number)} if number.isdecimal() else {"subject": row["subject"]}
            coords |= {
                k: v for k, v in orjson.loads(row["coords"] or "{}").items() if k not in MARKS
            }
            series[key] = replace(Series.of(row), coords=coords, headline=False)
        series[key].values.append(row["value"])
    states = [
        replace(state, series=mine)
        for state in states
        if (mine := [one for key, one in series.items() if key[0] == state.point])
    ]
    return items_of(states, metric)


def band_words(items: Iterable[Item]) -> str:
    """Return what a bar or band is, and the mark of what is unusable: `spread: range of n=3`."""
    items = list(items)
    bands = [item.series.band for item in items if item.series.band.n > 1]
    if not bands:
        return "one sample each"
    kinds = {"range": "range", "interval": "95 % interval of the median"}
    names = " or ".join(dict.fromkeys(kinds.get(band.kind, band.kind) for band in bands))
    low, high = min(band.n for band in bands), max(band.n for band in bands)
    crossed = "; ×: unusable" if any(unusable(item.series) for item in items) else ""
    return f"spread: {names} of n={low}" + (f" to {high}" if high > low else "") + crossed


def notes(states: Sequence[PointState], rows: pa.Table) -> str:
    """Return what a reader must know of the points, and the run and place."""
    lost = [f"{state.title} ({state.why.partition(':')[0]})" for state in states if state.why]
    more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
    coords = {name for state in states for series in state.series for name in series.coords}
    together = any(nodes and len(set(nodes)) < len(nodes) for nodes in rows["nodes"].to_pylist())
    parts = [
        f"no value: {', '.join(lost[:3])}{more}" if lost else "",
        "~: disturbed" if any(state.noise and not state.why for state in states) else "",
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
