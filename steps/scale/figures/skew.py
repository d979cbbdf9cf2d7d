"""How late receipts were at least, and how far the clocks of nodes and controllers are off.

An API time is truncated to the second, so `receive - (API time + 1 s)` is a lower bound of the lag.
The least of `receive - API time` over many stamps of a component is its own lag less the lead of
its clock. Compared with the least of the API server's stamps, that is the lead of its clock.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from perfdag.steps.scale.figures.rows import Row
from perfdag.steps.scale.model.chains import Step
from perfdag.steps.scale.model.operations import OLD

SERVER = "kube-apiserver"
WORST_CLOCKS = 20
"""Number of clocks in the facts of a run: those that are off the most."""
CLEAR = 1.0
"""Seconds beyond its bound from which a component's clock gets a note."""
_BY_SERVER = ("created", "deleting", "scheduled")
"""Stages of a pod, and the first two of any object, that the API server stamps."""
_BY_HANDLER = ("running", "succeeded", "failed", "ready", "paused")


@dataclass(frozen=True)
class Skew:
    """A component's clock minus the API server's, in seconds, within +- `bound_s`."""

    ahead_s: float
    bound_s: float
    stamps: int


@dataclass(frozen=True)
class _Stamp:
    """The receipt of a change, in seconds after its API time by the server's clock."""

    component: str
    after: float
    whole: bool
    error: float


def component_of(kind: str, stage: str, node: str | None) -> str:
    """Return whose clock stamps a stage of an object of `kind` on `node`."""
    kind = kind.removeprefix(OLD)
    if stage in _BY_SERVER and (kind == "Pod" or stage != "scheduled"):
        return SERVER
    if kind == "Pod":
        return f"kubelet of {node}" if node else "kube-scheduler"
    if kind == "VirtualMachineInstance":
        return f"virt-handler of {node}" if stage in _BY_HANDLER else "virt-controller"
    return f"controller of {kind}"


def _stamps(
    rows: Iterable[Row], steps: Mapping[str, Step], ahead: float
) -> Iterator[tuple[Row, _Stamp]]:
    for row in rows:
        if row.receive_time and row.api_time:
            step = steps[row.stage]
            after = row.receive_time - (row.api_time - ahead)
            name = component_of(step.kind, step.stage, row.node)
            error = row.resolution_s or 0.0
            yield row, _Stamp(name, after, row.api_time.is_integer(), error)


def mark_late(rows: Sequence[Row], steps: Iterable[Step], ahead: float) -> dict[str, Skew]:
    """Set `late_s` of rows whose lag was above their error bar, and return the skew of all clocks.

    `ahead` is the server's clock minus ours in seconds.
    """
    by_name = {step.name: step for step in steps}
    stamps = {(row.index, row.stage): stamp for row, stamp in _stamps(rows, by_name, ahead)}
    skews = _skews(stamps.values())
    for row in rows:
        if row.source != "receive" or row.resolution_s is None:
            continue
        ends = [stamps.get((row.index, stage)) for stage in (row.since, row.stage)]
        worst = max((_least_lag(stamp, skews) for stamp in ends if stamp), default=0.0)
        row.late_s = worst if worst > row.resolution_s else None
    return skews


def _skews(stamps: Iterable[_Stamp]) -> dict[str, Skew]:
    by_component: dict[str, list[_Stamp]] = defaultdict(list)
    for stamp in stamps:
        by_component[stamp.component].append(stamp)
    server = by_component.get(SERVER)
    if not server:
        return {}
    base = _least(server).after
    return {
        name: Skew(base - _least(own).after, _doubt(server) + _doubt(own), len(own))
        for name, own in by_component.items()
        if name != SERVER
    }


def _least(stamps: Sequence[_Stamp]) -> _Stamp:
    return min(stamps, key=lambda stamp: stamp.after)


def _doubt(stamps: Sequence[_Stamp]) -> float:
    """Return the error of the least: its lag, and how far n truncated times are from a second."""
    truncated = 1 / (len(stamps) + 1) if any(stamp.whole for stamp in stamps) else 0.0
    return truncated + _least(stamps).error


def _least_lag(stamp: _Stamp, skews: Mapping[str, Skew]) -> float:
    """Return a lower bound of the lag in seconds. A clock that is behind makes no lag."""
    skew = skews.get(stamp.component)
    behind = max(0.0, -skew.ahead_s) if skew else 0.0
    return stamp.after - (1.0 if stamp.whole else 0.0) - behind


def clock_notes(skews: Mapping[str, Skew]) -> list[str]:
    """Return a note on the clock that is off the most, if it is off beyond doubt."""
    off = [
        (abs(skew.ahead_s), name)
        for name, skew in skews.items()
        if abs(skew.ahead_s) - skew.bound_s > CLEAR
    ]
    if not off:
        return []
    worst, name = max(off)
    side = "ahead of" if skews[name].ahead_s > 0 else "behind"
    return [
        f"the clock of {name} is {worst:.1f} s {side} the API server's: its API times are off by "
        f"as much ({len(off)} of {len(skews)} clocks are off)"
    ]


def most_off(skews: Mapping[str, Skew]) -> dict[str, dict[str, float]]:
    """Return the clocks that are off the most, by component."""
    ordered = sorted(skews.items(), key=lambda item: -abs(item[1].ahead_s))
    return {name: asdict(skew) for name, skew in ordered[:WORST_CLOCKS]}
