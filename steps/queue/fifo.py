"""One named queue: first in, first out, with counters that always add up.

At any moment ``accepted == success + failure + disconnected + waiting + running``. No input or output here.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from perfdag.steps.queue import wire
from perfdag.steps.queue.metrics import Histogram, WindowMax

clock = time.monotonic
DEVICES, NAME = 1024, 253
"""Devices that a queue counts apart, what is beyond is counted under an empty name; and the characters of a name that count."""


@dataclass(slots=True, eq=False)
class Item:
    """A request on its way; ``added`` and ``dispatched`` in seconds of the monotonic clock."""

    answer: Callable[[wire.Message], None]
    args: list[str] | None
    limit: float
    retries: int
    added: float
    dispatched: float = 0.0
    gone: bool = False


@dataclass(eq=False)
class Queue:
    """Items of one name. ``bound`` is the longest waiting line (0: none), ``window`` the maxima's seconds."""

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
        """Append an item; the caller has checked ``full``."""
        self.items.append(item)
        self.waiting += 1
        self.accepted += 1

    def take(self) -> Item | None:
        """The oldest item whose client is still there, now running; None where the queue is empty."""
        items = self.items
        while items:
            item = items.popleft()
            if not item.gone:
                self.waiting -= 1
                self.running += 1
                item.dispatched = now = clock()
                self.max_wait.add(
                    now - item.added, now
                )  # not at its end: a scaler has to see it while a long item runs
                return item
        return None

    def longest_wait(self, now: float) -> float:
        """The longest waiting time of the window in seconds, that of the oldest item which still waits included."""
        oldest = next((item for item in self.items if not item.gone), None)
        return max(self.max_wait.read(now), now - oldest.added if oldest else 0.0)

    def leave(self, item: Item) -> None:
        """The item's client is gone: drop it where it waits, else note that nobody wants the answer."""
        if item.gone:
            return
        item.gone = True
        item.args = None
        if item.dispatched:
            self.undelivered += 1
        else:
            self.waiting -= 1
            self.disconnected += 1
            if (
                len(self.items) > 2 * self.waiting + 64
            ):  # without backends nobody else would drop those that are gone
                self.items = deque(item for item in self.items if not item.gone)

    def lost(self, item: Item, why: str) -> bool:
        """No answer will come for a running item: put it back at the front where it may be retried (True), else fail."""
        if item.retries > 0 and not item.gone:
            item.retries -= 1
            item.dispatched = 0.0
            self.items.appendleft(item)
            self.running -= 1
            self.waiting += 1
            self.retried += 1
            return True
        self.fail(item, why)
        return False

    def finish(self, item: Item, answer: wire.Message) -> None:
        """Count the answer of a running item, add its waiting time (seconds) and pass it on."""
        now, run = clock(), answer["Runtime"]
        self.run.add(run)
        self.overhead.add(max(0.0, now - item.dispatched - run))
        self.max_run.add(run, now)
        self._end(item, answer, now)

    def fail(self, item: Item, why: str) -> None:
        """End a running item that no answer of a backend tells the run time of: it counts in no statistics of these."""
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
