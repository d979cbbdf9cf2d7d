"""Series as the items that charts draw, what tells these items apart, and the titles of charts.

A title says a result, so that a reader who reads nothing else knows it: `title("PingPong", items,
x="bytes")` may give `PingPong latency: TCP is 3 to 40 times RDMA`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from perfdag.benchmark.registry import metric_label, point_words
from perfdag.identity import grouped
from perfdag.results.schema import is_valid
from perfdag.results.summary import PointState, RunSeries
from perfdag.units import digits, scaled, short, with_spread

SWEPT = 3
"""Fewest values of a number that make a line."""
MARKS = {
    "fast": "smoke test: not comparable",
    "loadgen": "LoadGen says INVALID",
}
"""Coordinates of figures that are not comparable or were not checked."""
BANDS = {"range": "range of the samples", "interval": "95 % interval of the median"}
LETTERS = 70
"""Most letters of a title, which is one line of half a page."""
MORE_WORK = 50
"""A growth of this many times is that of the work, such as of larger messages, and no result."""


@dataclass(frozen=True)
class Item:
    """A series of a point as a chart draws it: by setting, the labels that name it, and numbers."""

    state: PointState
    series: RunSeries
    labels: Mapping[str, str]
    numbers: Mapping[str, float]

    @classmethod
    def of(cls, state: PointState, series: RunSeries) -> "Item":
        """Return a series of a point with its entry, its differences, and its coordinates."""
        coords = {name: value for name, value in series.coords.items() if name not in MARKS}
        labels = {"entry": state.entry} | state.words | point_words(state.benchmark, coords)
        if series.stat != "value":
            labels["stat"] = series.stat
        hosts = state.shape.get("hosts") or {}
        settings = state.params | {"hosts.count": hosts.get("count")} | coords
        numbers = {
            name: float(value)
            for name, value in settings.items()
            if name in labels and isinstance(value, int | float) and not isinstance(value, bool)
        }
        return cls(state, series, labels, numbers)

    def named(self, keys: Iterable[str]) -> str:
        """Return its name by some of its labels."""
        texts = [self.labels[key] for key in keys if key in self.labels]
        return ", ".join(texts).replace("subject=", "") or self.state.entry

    @property
    def value(self) -> float:
        """The median."""
        return self.series.middle

    @property
    def text(self) -> str:
        """The median for people."""
        return amount(self.value, self.series.display_unit)

    @property
    def full_text(self) -> str:
        """The median, its spread and n in one unit: `23.4 (22.9 to 23.8) Gbit/s, n=3`."""
        band = self.series.band
        unit = self.series.display_unit
        return f"{with_spread(band.middle, band.low, band.high, unit)}, n={band.n}"

    @property
    def usable(self) -> bool:
        """Whether its samples are close enough for a median to say something."""
        return not self.series.unusable

    @property
    def mark(self) -> Literal["median", "disturbed", "unusable"]:
        """How its median is marked."""
        if not self.usable:
            return "unusable"
        return "disturbed" if self.state.noise else "median"


Items = Sequence[Item]


def amount(value: float, unit: str) -> str:
    """Return a value for people, such as `46.2 kIOPS`. The space does not break."""
    return short(value, unit).replace(" ", "\u00a0")


def figures_of(series: RunSeries) -> tuple[str, str, str]:
    """Return median, spread and unit for people: `23.4`, `22.9 to 23.8` of several, `Gbit/s`."""
    band = series.band
    factor, unit = scaled(series.display_unit, band.middle)
    spread = f"{digits(band.low / factor)} to {digits(band.high / factor)}" if band.n > 1 else ""
    return digits(band.middle / factor), spread, unit


def items_of(states: Iterable[PointState], metric: str, stats: Collection[str] = ()) -> list[Item]:
    """Return the series of a metric that have values, of these statistics alone if named."""
    measured = [
        (state, line)
        for state in states
        for line in state.series
        if line.metric == metric and line.values
    ]
    return [Item.of(state, line) for state, line in measured if not stats or line.stat in stats]


def items_of_subjects(states: Iterable[PointState], rows: pa.Table, metric: str) -> list[Item]:
    """Return the series of each worker, device or second of the valid samples.

    A subject such as `second 3` is the number 3 of the coordinate `second`.
    """
    is_subject = pc.and_(pc.equal(rows["metric"], metric), pc.is_valid(rows["subject"]))
    measured = rows.filter(pc.fill_null(pc.and_(is_subject, is_valid(rows)), False))
    points: dict[str, dict[tuple[str, str, str], RunSeries]] = {}
    # points_of leaves out the rows of subjects, which are series of their own here
    for row in measured.to_pylist():
        key = row["subject"], row["stat"], row["coords"]
        of_point = points.setdefault(row["point"], {})
        if key not in of_point:
            name, _, number = row["subject"].partition(" ")
            subject = {name: int(number)} if number.isdecimal() else {"subject": row["subject"]}
            series = RunSeries.of(row)
            of_point[key] = replace(series, coords=subject | series.coords)
        of_point[key].values.append(row["value"])
    return [
        Item.of(state, series)
        for state in states
        for series in points.get(state.point, {}).values()
    ]


def by_name(items: Items, keys: Collection[str]) -> dict[str, list[Item]]:
    """Return items by their names of some labels."""
    return grouped(items, lambda item: item.named(keys))


def values_of(items: Items, key: str) -> set[str | None]:
    """Return the labels of the items for one setting, None where one has it not."""
    return {item.labels.get(key) for item in items}


def varied(items: Items) -> list[str]:
    """Return the names of the labels that tell the items apart, in their order."""
    names = dict.fromkeys(chain.from_iterable(item.labels for item in items))
    telling = [name for name in names if len(values_of(items, name)) > 1]
    numbers = set(chain.from_iterable(item.numbers for item in items))
    for name in reversed(telling):
        rest = [key for key in telling if key != name]
        if name not in numbers and len(by_name(items, rest)) == len(by_name(items, telling)):
            telling = rest  # such as the direction, where the pattern says it
    return telling


def swept(items: Items, preferred: str = "") -> str:
    """Return the number over which most items are lines, or an empty text."""
    lengths = {}
    for key in sorted(set(chain.from_iterable(item.numbers for item in items))):
        length = _swept_values(items, key, 2 if key == preferred else SWEPT)
        if length:
            lengths[key] = length
    if preferred in lengths:
        return preferred
    return max(lengths, key=lambda key: lengths[key], default="")


def _swept_values(items: Items, key: str, fewest: int) -> int:
    """Return how many values of a number make lines of most items, 0 where they do not."""
    with_key = [item for item in items if key in item.numbers]
    names = set(chain.from_iterable(item.labels for item in with_key)) - {key}
    lines = [{item.numbers[key] for item in line} for line in by_name(with_key, names).values()]
    long = [line for line in lines if len(line) >= fewest]
    return len(set().union(*long)) if 2 * sum(map(len, long)) >= len(items) else 0


def metric_of(items: Items) -> str:
    """Return what people call the metric of some items, with what all share of it."""
    first = items[0].series
    labels = {item.series.label for item in items}
    label = labels.pop() if len(labels) == 1 else metric_label(first.benchmark, first.metric)
    return label or first.entry


def spread_text(items: Items) -> str:
    """Return what a bar or band is, and how unusable values are marked: `spread: range of n=3`."""
    bands = [item.series.band for item in items if item.series.band.n > 1]
    if not bands:
        return "one sample each"
    kinds = " or ".join(dict.fromkeys(BANDS.get(band.kind, band.kind) for band in bands))
    counts = sorted({band.n for band in bands})
    text = f"spread: {kinds}, n={counts[0]}"
    if counts[1:]:
        text += f" to {counts[-1]}"
    return text if all(item.usable for item in items) else f"{text}; faint: unusable"


def notes(states: Sequence[PointState], rows: pa.Table) -> Iterator[str]:
    """Yield what a reader must know of the points: failures, disturbances, shared nodes."""
    missing = [f"{state.title} ({state.why.partition(':')[0]})" for state in states if state.why]
    if missing:
        further = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        yield f"no value: {', '.join(missing[:3])}{further}"
    if any(state.noise and not state.why for state in states):
        yield "hollow: disturbed"
    if any(nodes and len(set(nodes)) < len(nodes) for nodes in rows["nodes"].to_pylist()):
        yield "hosts shared a node"
    series = chain.from_iterable(state.series for state in states)
    coords = set(chain.from_iterable(line.coords for line in series))
    yield from [text for name, text in MARKS.items() if name in coords]


def title(name: str, items: Items, x: str = "", pair: str = "", ideal: str = "") -> str:
    """Return the strongest claim about the items of a chart that has room.

    `name` is that of the chart beside others, such as a protocol, `x` the number that was swept,
    `pair` a setting with two values, and `ideal` what would be linear.
    """
    usable = [item for item in items if item.usable and (not x or x in item.numbers)]
    subject = metric_of(usable or items)
    if name:
        series = items[0].series
        subject = f"{name} {metric_label(series.benchmark, series.metric)}"
    if not usable:
        return f"{subject}: unusable"[:LETTERS]
    for text in _claims(usable, x, pair, ideal):
        claim = text if text[:1].isdigit() else f"{subject}{text}"
        if text and len(claim) <= LETTERS:
            return claim
    return subject[:LETTERS]


def _claims(items: Items, x: str, pair: str, ideal: str) -> Iterator[str]:
    """Yield claims about usable items, the strongest first; empty where one cannot be made."""
    keys = [key for key in varied(items) if key != x]
    lines = by_name(items, keys)
    if ideal:
        yield _scaling(lines.values(), x, ideal)
    if pair:
        yield _comparison(by_name(items, [pair]), [key for key in keys if key != pair])
    if x:
        yield _comparison(lines, [x])
        yield _growth(lines.values(), x)
    else:
        yield ": " + ", ".join(f"{item.named(keys)} {item.text}" for item in items)
    yield _best(items)
    ends = dict.fromkeys([min(items, key=_value).text, max(items, key=_value).text])
    yield f": {' to '.join(ends)}"


def _value(item: Item) -> float:
    return item.value


def span(values: Iterable[float]) -> str:
    """Return the least and the largest of some numbers, or the one that they are."""
    ordered = sorted(values)
    return " to ".join(dict.fromkeys([digits(ordered[0]), digits(ordered[-1])]))


def _comparison(groups: dict[str, list[Item]], keys: list[str]) -> str:
    """Return how the second of two groups compares to the first, where both have a point."""
    if len(groups) != 2:
        return ""
    (base, before), (name, after) = groups.items()
    values = {item.named(keys): item.value for item in before}
    pairs = [(item.value, values.get(item.named(keys))) for item in after]
    ratios = [value / first for value, first in pairs if first]
    if not ratios:
        return ""
    if min(ratios) > 0.5 and max(ratios) < 1:
        return f": {name} is {span(100 - 100 * ratio for ratio in ratios)}\u00a0% below {base}"
    if min(ratios) > 1 and max(ratios) < 2:
        return f": {name} is {span(100 * ratio - 100 for ratio in ratios)}\u00a0% above {base}"
    return f": {name} is {span(ratios)} times {base}"


def _growth(lines: Iterable[list[Item]], x: str) -> str:
    """Return how all lines change between their ends, where these are the same."""
    ratios = []
    ends = set()
    for line in lines:
        first, last = _ends(line, x)
        ends.add((first.labels[x], last.labels[x]))
        if first.value and first is not last:
            ratios.append(last.value / first.value)
    if len(ends) != 1 or not ratios or max(ratios) > MORE_WORK:
        return ""
    ((begin, end),) = ends
    if min(ratios) > 0.9 and max(ratios) < 1.1:
        return f" is alike at {begin} and {end}"
    return f" at {end}: {span(ratios)} times that at {begin}"


def _best(items: Items) -> str:
    """Return the best value and its point."""
    better = items[0].series.better
    if better not in ("higher", "lower"):
        return ""
    best = max(items, key=_value) if better == "higher" else min(items, key=_value)
    return f": best {best.text} with {best.named(varied(items))}"


def _scaling(lines: Iterable[list[Item]], x: str, ideal: str) -> str:
    """Return how much of linear scaling the lines have at the largest x."""
    ends = [_ends(line, x) for line in lines]
    furthest = max((last for _, last in ends), key=lambda item: item.numbers[x])
    shares = []
    for first, last in ends:
        if last.numbers[x] == furthest.numbers[x]:
            faster = last.value / first.value if ideal == "rate" else first.value / last.value
            shares.append(round(100 * faster * first.numbers[x] / last.numbers[x]))
    return f"{span(shares)}\u00a0% of linear scaling at {furthest.labels[x]}"


def _ends(line: Iterable[Item], x: str) -> tuple[Item, Item]:
    """Return the items of a line with the least and the largest x."""
    ordered = sorted(line, key=lambda item: item.numbers[x])
    return ordered[0], ordered[-1]
