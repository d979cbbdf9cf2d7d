"""Series as the items that charts draw, and what tells these items apart."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from perfdag.benchmark.registry import metric_label, point_words
from perfdag.results.schema import is_valid
from perfdag.results.summary import PointState, Series, unusable
from perfdag.units import short, with_spread

SWEPT = 3
"""Fewest values of a number that make a line."""
MARKS = {
    "fast": "smoke test: not comparable",
    "loadgen": "LoadGen says INVALID",
    "weights": "weights not verified",
}
"""Coordinates of figures that are not comparable or were not checked."""
BANDS = {"range": "range of the samples", "interval": "95 % interval of the median"}


@dataclass(frozen=True)
class Item:
    """A series of a point as a chart draws it: the words that name it, and its numbers by key."""

    state: PointState
    series: Series
    words: Mapping[str, str]
    numbers: Mapping[str, float]

    def named(self, keys: Iterable[str]) -> str:
        """Return its name by some of its words."""
        words = [self.words[key] for key in keys if key in self.words]
        return ", ".join(words).replace("subject=", "") or self.state.entry

    @property
    def value(self) -> float:
        """The median."""
        return self.series.middle

    @property
    def text(self) -> str:
        """The median for people."""
        return amount(self.series.middle, self.series.display_unit)

    @property
    def usable(self) -> bool:
        """Whether its samples are close enough for a median to say something."""
        return not unusable(self.series)

    @property
    def mark(self) -> Literal["median", "disturbed", "unusable"]:
        """How its median is marked."""
        if not self.usable:
            return "unusable"
        return "disturbed" if self.state.noise else "median"

    def without(self, key: str) -> "Item":
        """Return it without one of its words."""
        return replace(self, words={name: text for name, text in self.words.items() if name != key})


Items = Sequence[Item]
Lines = Mapping[str, Items]
"""Items by the name of their line, row or panel."""


def amount(value: float, unit: str) -> str:
    """Return a value for people, such as `46.2 kIOPS`. The space does not break."""
    return short(value, unit).replace(" ", "\u00a0")


def value_words(series: Series) -> str:
    """Return median, spread and n in one unit: `23.4 (22.9 to 23.8) Gbit/s, n=3`."""
    band = series.band
    return f"{with_spread(series.middle, band.low, band.high, series.display_unit)}, n={band.n}"


def items_of(states: Iterable[PointState], metric: str, stats: Collection[str] = ()) -> list[Item]:
    """Return the series of a metric that have values, of these statistics alone if named."""
    pairs = []
    for state in states:
        for series in state.series:
            if series.metric == metric and series.values and (not stats or series.stat in stats):
                pairs.append((state, series))
    several = len({state.entry for state, _ in pairs}) > 1
    return [
        _item(state, series, {"entry": state.entry} if several else {}) for state, series in pairs
    ]


def _item(state: PointState, series: Series, entry: dict[str, str]) -> Item:
    coords = {name: value for name, value in series.coords.items() if name not in MARKS}
    words = entry | state.words | point_words(state.benchmark, coords)
    if series.stat != "value":
        words["stat"] = series.stat
    hosts = {"hosts.count": (state.shape.get("hosts") or {}).get("count")}
    numbers = {
        name: float(value)
        for name, value in (state.params | hosts | coords).items()
        if name in words and isinstance(value, int | float) and not isinstance(value, bool)
    }
    return Item(state, series, words, numbers)


def items_of_subjects(states: Iterable[PointState], rows: pa.Table, metric: str) -> list[Item]:
    """Return the series of each worker, device or second of the valid samples.

    A subject such as `second 3` is the number 3 of the coordinate `second`.
    """
    of_subject = pc.and_(pc.equal(rows["metric"], metric), pc.is_valid(rows["subject"]))
    own = rows.filter(pc.fill_null(pc.and_(of_subject, is_valid(rows)), False))
    points: dict[str, dict[tuple[str, str, str], Series]] = {}
    # points_of leaves out the rows of subjects, which are series of their own here
    for row in own.to_pylist():
        key = row["subject"], row["stat"], row["coords"]
        series = points.setdefault(row["point"], {})
        if key not in series:
            name, _, number = row["subject"].partition(" ")
            subject = {name: int(number)} if number.isdecimal() else {"subject": row["subject"]}
            coords = subject | orjson.loads(row["coords"] or "{}")
            series[key] = replace(Series.of(row), coords=coords, headline=False)
        series[key].values.append(row["value"])
    of_subjects = [
        replace(state, series=list(points[state.point].values()))
        for state in states
        if state.point in points
    ]
    return items_of(of_subjects, metric)


def by_name(items: Items, keys: Collection[str]) -> dict[str, list[Item]]:
    """Return items by their names of some words."""
    named: dict[str, list[Item]] = {}
    for item in items:
        named.setdefault(item.named(keys), []).append(item)
    return named


def values_of(items: Items, key: str) -> set[str | None]:
    """Return the values of one word of the items, None where one has it not."""
    return {item.words.get(key) for item in items}


def varied(items: Items) -> list[str]:
    """Return the names of the words that tell the items apart, in their order."""
    names = dict.fromkeys(chain.from_iterable(item.words for item in items))
    telling = [name for name in names if len(values_of(items, name)) > 1]
    numbers = set(chain.from_iterable(item.numbers for item in items))
    for name in [name for name in reversed(telling) if name not in numbers]:
        rest = [other for other in telling if other != name]
        if len(by_name(items, rest)) == len(by_name(items, telling)):
            telling = rest  # such as the direction, where the pattern says it
    return telling


def swept(items: Items, preferred: str = "") -> str:
    """Return the number over which most items are lines, or an empty text."""
    lengths = {}
    for key in sorted(set(chain.from_iterable(item.numbers for item in items))):
        fewest = 2 if key == preferred else SWEPT
        lengths[key] = _swept_values(items, key, fewest)
    if lengths.get(preferred):
        return preferred
    longest = max(lengths, key=lambda key: lengths[key], default="")
    return longest if lengths.get(longest) else ""


def _swept_values(items: Items, key: str, fewest: int) -> int:
    """Return how many values of a number make lines of most items, 0 where they do not."""
    with_key = [item for item in items if key in item.numbers]
    names = dict.fromkeys(chain.from_iterable(item.words for item in with_key))
    count = 0
    values: set[float] = set()
    for line in by_name(with_key, names.keys() - {key}).values():
        of_line = {item.numbers[key] for item in line}
        if len(of_line) >= fewest:
            values |= of_line
            count += len(of_line)
    return len(values) if 2 * count >= len(items) else 0


def metric_of(items: Items) -> str:
    """Return what people call the metric of some items, with what all share of it."""
    first = items[0].series
    labels = {item.series.label for item in items}
    return (
        first.label if len(labels) == 1 else metric_label(first.benchmark, first.metric)
    ) or first.entry


def band_words(items: Items) -> str:
    """Return what a bar or band is, and how unusable values are marked: `spread: range of n=3`."""
    bands = [item.series.band for item in items if item.series.band.n > 1]
    if not bands:
        return "one sample each"
    kinds = " or ".join(dict.fromkeys(BANDS.get(band.kind, band.kind) for band in bands))
    low = min(band.n for band in bands)
    high = max(band.n for band in bands)
    faint = "" if all(item.usable for item in items) else "; faint: unusable"
    return f"spread: {kinds}, n={low}" + (f" to {high}" if high > low else "") + faint


def notes(states: Sequence[PointState], rows: pa.Table) -> str:
    """Return what a reader must know of the points: failures, disturbances, shared nodes."""
    lost = [f"{state.title} ({state.why.partition(':')[0]})" for state in states if state.why]
    parts = []
    if lost:
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        parts.append(f"no value: {', '.join(lost[:3])}{more}")
    if any(state.noise and not state.why for state in states):
        parts.append("hollow: disturbed")
    if any(nodes and len(set(nodes)) < len(nodes) for nodes in rows["nodes"].to_pylist()):
        parts.append("hosts shared a node")
    series = chain.from_iterable(state.series for state in states)
    coords = set(chain.from_iterable(one.coords for one in series))
    return "; ".join([*parts, *(text for name, text in MARKS.items() if name in coords)])
