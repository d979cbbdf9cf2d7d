"""Points in time from several clocks, and the differences between them."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from perfdag.steps.scale.model.stages import whole_second

NEAR = 500_000_000
"""Nanoseconds around a moment: heartbeats come twice a second."""


@dataclass(frozen=True)
class Clocks:
    """Conversion of a record's times to Unix time of this machine's clock.

    `mono_to_unix_ns` is added to a monotonic time. `server_ahead_s` is the server's clock minus
    ours. `lags` are by kind the watch lags of single heartbeats with their arrival (monotonic ns),
    in order. A kind without heartbeats of its own has the lags of the first.
    """

    mono_to_unix_ns: int
    server_ahead_s: float = 0.0
    lags: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)

    def lag_at(self, *moments: "Moment") -> float | None:
        """Return the largest lag in seconds of the heartbeats nearest to the receipt of moments.

        These are all within NEAR, and one before and after. Without heartbeats, it is None.
        """
        near: list[float] = []
        first_lags = next(iter(self.lags.values()), ())
        for moment in moments:
            lags = self.lags.get(moment.kind, first_lags)
            at, when = moment.received - self.mono_to_unix_ns, itemgetter(0)
            first = bisect_left(lags, at - NEAR, key=when)
            last = bisect_right(lags, at + NEAR, key=when)
            near += [lag for _, lag in lags[max(0, first - 1) : last + 1]]
        return max(near, default=None)

    def unix(self, mono_ns: int) -> float | None:
        """Return Unix seconds of a monotonic time in ns, or None for 0."""
        return (mono_ns + self.mono_to_unix_ns) / 1e9 if mono_ns else None

    @property
    def ahead_ns(self) -> int:
        """The server's clock minus ours in ns."""
        return round(self.server_ahead_s * 1e9)


@dataclass(frozen=True)
class Moment:
    """When a stage was reached, in Unix ns (0: unknown).

    `received` is by our clock. `api` and `event` are by the server's clock, which is `ahead` of
    ours. `kind` is that of the object.
    """

    received: int = 0
    api: int = 0
    event: int = 0
    ahead: int = 0
    kind: str = ""

    @property
    def best(self) -> int:
        """The most precise of the three, by our clock."""
        server_time = self.event or self.api
        return self.received or (server_time - self.ahead if server_time else 0)

    @property
    def served(self) -> int:
        """The same by the server's clock: a whole second of the API stays one."""
        return self.best + self.ahead if self.best else 0


def difference(
    start: Moment, end: Moment, clocks: Clocks
) -> tuple[float, float | None, str] | None:
    """Return the difference in seconds, its error bar and its clock, on the best common clock."""
    if start.received and end.received:
        lag = clocks.lag_at(start, end)
        return (end.received - start.received) / 1e9, lag, "receive"
    if start.api and end.api:
        if whole_second(start.api) or whole_second(end.api):
            return _whole_seconds(start.api, end.api), 1.0, "api"
        return (end.api - start.api) / 1e9, 1e-6, "api"
    if start.best and end.best:
        return _whole_seconds(start.served, end.served), 1.0, "mixed"
    return None


def _whole_seconds(start: int, end: int) -> float:
    """Return whole seconds between two times of one clock, both truncated.

    Truncating only one of them would bias the difference by half a second.
    """
    second = 1_000_000_000
    return float(end // second - start // second)
