"""The queues of a frontend: their items, counters and times, and the limits of its peers.

A queue is first in, first out. At any moment `accepted == success + failure + disconnected +
waiting + running`.
"""

import contextlib
import resource
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from perfdag.steps.queue import wire

clock = time.monotonic
DEVICES, NAME = 1024, 253
"""Devices with a counter of their own, further ones share an empty name.

And characters kept of a name.
"""


# Seconds: 250 us of dispatch up to an hour of transcoding, about three steps a decade.
BOUNDS = (
    0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 3600.0,
)  # fmt: skip
RESERVE = 384
"""Descriptors that are no peers: connections of the metrics port, listeners, files."""


class Histogram:
    """Counts of seconds in fixed buckets, with their sum."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one time."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds


class WindowMax:
    """The largest value of the last `window` seconds, in slices of a tenth of it."""

    __slots__ = ("slice", "slices")

    def __init__(self, window: float) -> None:
        self.slice = window / 10
        self.slices: deque[tuple[int, float]] = deque(maxlen=10)

    def add(self, value: float, now: float) -> None:
        """Note a value at `now`, in monotonic seconds."""
        key = int(now / self.slice)
        slices = self.slices
        if slices and slices[-1][0] == key:
            if value > slices[-1][1]:
                slices[-1] = (key, value)
        else:
            slices.append((key, value))

    def read(self, now: float) -> float:
        """Return the maximum at `now` (monotonic seconds), 0 if there is no value."""
        oldest = int(now / self.slice) - 9
        return max((value for key, value in self.slices if key >= oldest), default=0.0)


@dataclass(slots=True, eq=False)
class Item:
    """An open request; `added` and `dispatched` are seconds of the monotonic clock."""

    answer: Callable[[wire.Message], None]
    args: list[str] | None
    limit: float
    retries: int
    added: float
    dispatched: float = 0.0
    gone: bool = False


@dataclass(eq=False)
class Queue:
    """Items of one name.

    `bound`: the most that may wait (0: any). `window`: seconds that maxima cover.
    """

    name: str
    bound: int = 0
    window: float = 30.0
    items: deque[Item] = field(default_factory=deque)
    waiting: int = 0
    running: int = 0
    accepted: int = 0
    success: int = 0
    failure: int = 0
    disconnected: int = 0
    undelivered: int = 0
    retried: int = 0
    refused: int = 0
    devices: Counter[tuple[str, str]] = field(default_factory=Counter)
    max_run: WindowMax = field(init=False)
    max_wait: WindowMax = field(init=False)
    max_total: WindowMax = field(init=False)

    def __post_init__(self) -> None:
        self.max_run, self.max_wait, self.max_total = (WindowMax(self.window) for _ in range(3))
        self.wait, self.run, self.total, self.overhead = (Histogram() for _ in range(4))

    @property
    def full(self) -> bool:
        return 0 < self.bound <= self.waiting

    def put(self, item: Item) -> None:
        """Append an item; the caller has checked `full`."""
        self.items.append(item)
        self.waiting += 1
        self.accepted += 1

    def take(self) -> Item | None:
        """Return the oldest item whose client is connected and mark it running.

        None if there is none.
        """
        items = self.items
        while items:
            item = items.popleft()
            if not item.gone:
                self.waiting -= 1
                self.running += 1
                item.dispatched = now = clock()
                # Added at dispatch, not at the end: a scaler must see it while a long item runs.
                self.max_wait.add(now - item.added, now)
                return item
        return None

    def oldest_wait(self, now: float) -> float:
        """Return the seconds that the oldest waiting item has waited, 0 if none waits."""
        oldest = next((item for item in self.items if not item.gone), None)
        return now - oldest.added if oldest else 0.0

    def longest_wait(self, now: float) -> float:
        """Return the longest wait of the window in seconds, including items that still wait."""
        return max(self.max_wait.read(now), self.oldest_wait(now))

    def leave(self, item: Item) -> None:
        """Drop a waiting item whose client has left; of a running one, drop the answer later."""
        if item.gone:
            return
        item.gone = True
        item.args = None
        if item.dispatched:
            self.undelivered += 1
        else:
            self.waiting -= 1
            self.disconnected += 1
            if len(self.items) > 2 * self.waiting + 64:  # without backends, `take` never drops them
                self.items = deque(item for item in self.items if not item.gone)

    def lost(self, item: Item, why: str) -> None:
        """Put a running item without backend back at the front, or fail it without retries."""
        if item.retries > 0 and not item.gone:
            item.retries -= 1
            item.dispatched = 0.0
            self.items.appendleft(item)
            self.running -= 1
            self.waiting += 1
            self.retried += 1
        else:
            self.fail(item, why)

    def finish(self, item: Item, answer: wire.Message) -> None:
        """Count the answer of a running item, add its waiting time in seconds and pass it on."""
        now, run = clock(), answer["Runtime"]
        self.run.add(run)
        self.overhead.add(max(0.0, now - item.dispatched - run))
        self.max_run.add(run, now)
        self._end(item, answer, now)

    def fail(self, item: Item, why: str) -> None:
        """End a running item without a run time; it enters no statistics of run times."""
        self._end(item, wire.failure(why), clock())

    def _end(self, item: Item, answer: wire.Message, now: float) -> None:
        waited, total = item.dispatched - item.added, now - item.added
        answer["Waittime"] = waited
        self.running -= 1
        if wire.succeeded(answer):
            self.success += 1
            device = answer["Node"][:NAME], answer["Device"][:NAME]
            self.devices[
                device if device in self.devices or len(self.devices) < DEVICES else ("", "")
            ] += 1
        else:
            self.failure += 1
        self.wait.add(waited)
        self.total.add(total)
        self.max_total.add(total, now)
        if not item.gone:
            item.answer(answer)


@dataclass(frozen=True, slots=True)
class Limits:
    """The resources that peers may use. Times are in seconds, sizes in bytes.

    `queue`: items that wait in a queue (0: no bound). `peers`: open connections.
    `message_seconds`: time to complete a message.
    `retries`: times that an item is handed out again after its backend is lost.
    `reply_grace`: time after its limit until an item fails. `reply_seconds`: time of an item
    without a limit (0: no bound).
    """

    queue: int = 0
    peers: int = 8192
    message_seconds: float = 5.0
    retries: int = 0
    reply_grace: float = 30.0
    reply_seconds: float = 0.0
    interval: float = 0.0


def raise_file_limit(peers: int) -> None:
    """Raise the soft limit of open files for `peers` connections, up to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = peers + RESERVE if hard == resource.RLIM_INFINITY else min(peers + RESERVE, hard)
    if soft != resource.RLIM_INFINITY and soft < needed:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def connection_limit(peers: int) -> int:
    """Return `peers`, or fewer if the limit of open files admits only fewer."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return peers
    return max(1, min(peers, soft - min(RESERVE, soft // 2)))
