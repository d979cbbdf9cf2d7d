"""Titles of charts: each says a result, so that a reader who reads nothing else knows it.

`title("PingPong", items, x="bytes")` may give `PingPong latency: TCP is 3 to 40 times RDMA`.
"""

from collections.abc import Iterable, Iterator

from perfdag.benchmark.registry import metric_label
from perfdag.charts.series import Item, Items, by_name, metric_of, varied
from perfdag.units import digits

LETTERS = 70
"""Most letters of a title, which is one line of half a page."""

MORE_WORK = 50
"""A growth of this many times is that of the work, such as of larger messages, and no result."""


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
