"""Pair the points of two runs when exactly one value of a parameter of an entry was changed.

A changed parameter makes a new point, which would otherwise have no counterpart.
"""

from collections.abc import Iterable

from perfdag.regress.series import SeriesInfo, settings_of

_Settings = dict[str, str]


def match(
    left: Iterable[SeriesInfo], right: Iterable[SeriesInfo]
) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """Return the pairs of points, and the parameters that were changed.

    The pairs are point of A -> point of B. A changed parameter is `entry.name` -> (value in A,
    value in B). A parameter is changed where all points of an entry have one value in A and another
    in B. Points that agree in everything else are a pair. A value that only one side has among
    several is a removed or new point.
    """
    a, b = _by_entry(left), _by_entry(right)
    shared = {point for points in a.values() for point in points} & {
        point for points in b.values() for point in points
    }
    pairs: dict[str, str] = {}
    differs: dict[str, tuple[str, str]] = {}
    for entry in a.keys() & b.keys():
        changed = _changed(list(a[entry].values()), list(b[entry].values()))
        if not changed:
            continue
        known = {
            _rest(flat, changed): point for point, flat in b[entry].items() if point not in shared
        }
        answers = {
            point: known[rest]
            for point, flat in a[entry].items()
            if point not in shared and (rest := _rest(flat, changed)) in known
        }
        if answers:
            pairs |= answers
            differs |= {f"{entry}.{name}": values for name, values in changed.items()}
    return pairs, dict(sorted(differs.items()))


def _by_entry(series: Iterable[SeriesInfo]) -> dict[str, dict[str, _Settings]]:
    points = {info.point: info for info in series}
    entries: dict[str, dict[str, _Settings]] = {}
    for point, info in points.items():
        set_values = {name: text for name, text in settings_of(info).items() if text != "null"}
        entries.setdefault(info.entry, {})[point] = set_values
    return entries


def _changed(a: list[_Settings], b: list[_Settings]) -> dict[str, tuple[str, str]]:
    """Return the names that have one value in A and another in B, `-` where unknown."""
    differs = {}
    for name in sorted({name for flat in (*a, *b) for name in flat}):
        before, after = ({flat.get(name, "-") for flat in side} for side in (a, b))
        if len(before) == len(after) == 1 and before != after:
            differs[name] = (before.pop(), after.pop())
    return differs


def _rest(flat: _Settings, changed: dict[str, tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, value) for name, value in flat.items() if name not in changed))
