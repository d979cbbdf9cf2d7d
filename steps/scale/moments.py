"""Points in time from several clocks, and the differences between them."""

from dataclasses import dataclass

from perfdag.steps.scale.stages import whole_second


@dataclass(frozen=True)
class Clocks:
    """What turns a record's times into Unix time of this machine's clock.

    `mono_to_unix_ns` is added to a monotonic time; `server_ahead_s` is the server's clock minus ours; `lag_s` the p99 of the watch.
    """

    mono_to_unix_ns: int
    server_ahead_s: float = 0.0
    lag_s: float | None = None

    @property
    def ahead_ns(self) -> int:
        """The server's clock minus ours in ns."""
        return round(self.server_ahead_s * 1e9)


@dataclass(frozen=True)
class Moment:
    """When a stage was reached, in Unix ns (0: not known): by receive time, which is of our clock, by the API and by an Event, as they say
    it; theirs is `ahead` of ours."""

    received: int = 0
    api: int = 0
    event: int = 0
    ahead: int = 0

    @property
    def best(self) -> int:
        """The most precise of the three, by our clock."""
        server_time = self.event or self.api
        return self.received or (server_time - self.ahead if server_time else 0)

    @property
    def served(self) -> int:
        """The same by the server's clock: a whole second of the API stays one."""
        return self.best + self.ahead if self.best else 0


def difference(start: Moment, end: Moment, clocks: Clocks) -> tuple[float, float | None, str] | None:
    """Seconds from start to end on the best clock both have, its error bar in seconds, and the clock's name; None where there is none."""
    if start.received and end.received:
        return (end.received - start.received) / 1e9, clocks.lag_s, "receive"
    if start.api and end.api:
        if whole_second(start.api) or whole_second(end.api):
            return _whole_seconds(start.api, end.api), 1.0, "api"
        return (end.api - start.api) / 1e9, 1e-6, "api"
    if start.best and end.best:
        return _whole_seconds(start.served, end.served), 1.0, "mixed"
    return None


def _whole_seconds(start: int, end: int) -> float:
    """Whole seconds between two times of the clock that cut one of them: only one cut would add or take half a second, on the average,
    and the seconds of another clock would add or take more."""
    second = 1_000_000_000
    return float(end // second - start // second)
