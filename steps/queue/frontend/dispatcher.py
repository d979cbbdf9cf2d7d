"""The state of a frontend: its queues, the backends that wait, and the counters of its peers."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from perfdag.steps.queue import wire
from perfdag.steps.queue.frontend.connection_limits import connection_limit
from perfdag.steps.queue.frontend.fifo import Item, Queue


class Session(Protocol):
    """A peer that may be cut off."""

    def refuse(self, why: str) -> None:
        """Send the reason and close."""


class Worker(Protocol):
    """A backend that takes items."""

    def give(self, queue: Queue, item: Item) -> None:
        """Hand over an item."""

    def close(self, abort: bool = False) -> None:
        """Close the connection."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The resources that peers may use. Times are in seconds, sizes in bytes.

    ``queue``: items that wait in a queue (0: no bound). ``peers``: open connections.
    ``message_seconds``: time to complete a message. ``pipelined``: open requests of a connection.
    ``refusals``: requests of a connection that name no queue; an accepted request takes one back.
    ``retries``: times that an item is handed out again after its backend is lost.
    ``reply_grace``: time after its limit until an item fails. ``reply_seconds``: time of an item
    without a limit (0: no bound).
    """

    queue: int = 0
    peers: int = 8192
    message_seconds: float = 5.0
    message_bytes: int = wire.KEPT_BYTES
    unsent_bytes: int = 1 << 20
    pipelined: int = wire.MOST_PARALLEL
    refusals: int = 100
    retries: int = 0
    reply_grace: float = 30.0
    reply_seconds: float = 0.0
    window: float = 30.0
    interval: float = 0.0


class Dispatcher:
    """Queues by name, and what their peers share."""

    def __init__(self, names: Iterable[str], limits: Limits | None = None) -> None:
        self.limits = limits = limits or Limits()
        self.queues = {
            name: Queue(name, limits.queue, limits.interval or limits.window) for name in names
        }
        if not self.queues or "" in self.queues:
            raise ValueError("a frontend needs queue names, none of them empty")
        self.parked: dict[str, deque[Worker]] = {name: deque() for name in self.queues}
        self.incomplete: dict[Session, float] = {}
        self.busy: dict[Worker, float] = {}
        self.max_peers = connection_limit(limits.peers)
        self.peers = self.clients = self.workers = self.rejected = self.stuck = 0

    def put(self, queue: Queue, item: Item) -> None:
        """Queue an item, and hand one to a backend that waits."""
        queue.put(item)
        if self.parked[queue.name]:
            self.serve_parked(queue)

    def serve_parked(self, queue: Queue) -> None:
        """Hand waiting items to waiting backends, both first come, first served."""
        parked = self.parked[queue.name]
        while parked and (item := queue.take()) is not None:
            parked.popleft().give(queue, item)
