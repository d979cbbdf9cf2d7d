"""Points in time from several clocks, and the differences between them."""

from dataclasses import dataclass

from perfdag.steps.scale.model.stages import whole_second


@dataclass(frozen=True)
class Clocks:
    """Conversion of a record's times to Unix time of this machine's clock.

    `mono_to_unix_ns` is added to a monotonic time. `server_ahead_s` is the server's clock minus
    ours.
    """

    mono_to_unix_ns: int
    server_ahead_s: float = 0.0

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
    ours.
    """

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


def difference(start: Moment, end: Moment) -> tuple[float, float | None, str] | None:
    """Return the difference in seconds, its resolution and its clock, on the best common clock.

    A difference of receive times has no resolution of its own: the lag of the watch bounds it.
    """
    if start.received and end.received:
        return (end.received - start.received) / 1e9, None, "receive"
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
