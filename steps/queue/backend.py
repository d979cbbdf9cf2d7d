"""The backend: asks a frontend for items, runs its workload on them and replies with the outcome.

A backend is one slot of a device, so it is blocking and single-threaded. SIGTERM ends it after the
current item.
"""

import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from perfdag.steps.queue import wire
from perfdag.steps.queue.workload import Workload, shorter

ANSWER_SECONDS = 10.0
"""Time of a frontend to answer."""


class UnreachableError(Exception):
    """The frontend is unreachable or does not speak the protocol; the text is the reason."""


@dataclass(frozen=True)
class Options:
    """How a backend asks for items. Times are in seconds.

    `backoff`: the n-th empty answer in a row waits n x `backoff`, at most `backoff_max`; 0 exits on
    an empty queue. `retry_seconds`: how long to retry a frontend that does not answer.
    """

    frontend: wire.Address
    queue: str
    pod: str
    node: str
    backoff: float = 0.0
    backoff_max: float = 5.0
    retry_seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.backoff < 0 or self.backoff_max < self.backoff:
            raise ValueError(
                f"back-off {self.backoff:g} s must be between 0 and its maximum "
                f"{self.backoff_max:g} s"
            )


class Backend:
    """One worker of one queue."""

    def __init__(self, options: Options, workload: Workload) -> None:
        self.options = options
        self.workload = workload
        self.completed = 0
        self.stopping = False
        self._wake, self._woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def stop(self, *_: object) -> None:
        """End after the current item; safe in a signal handler."""
        self.stopping = True
        os.write(self._woken, b"x")

    def catch_signals(self) -> None:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.stop)

    def serve(self) -> None:
        """Work until `stop`, or until the queue is empty without back-off.

        Raises UnreachableError.
        """
        last = time.monotonic()
        while not self.stopping:
            done = self.completed
            try:
                if not self._serve():
                    return
                last = time.monotonic()
            except (OSError, UnreachableError) as error:
                if self.completed > done:
                    last = time.monotonic()
                if time.monotonic() - last > self.options.retry_seconds:
                    raise UnreachableError(f"frontend {self.options.frontend}: {error}") from None
                self._pause(0.2)

    def work(self, item: wire.Message) -> wire.Message:
        """Run one item and return the reply."""
        began = time.perf_counter()
        running = int(item.get("Running") or 1)
        outcome = self.workload.run(
            wire.string_list(item, "Args"), wire.number(item, "Limit"), running
        )
        elapsed = time.perf_counter() - began
        return {
            "Pod": self.options.pod,
            "Node": self.options.node,
            "Device": Path(self.workload.device).name,
            "Error": outcome.error,
            "Timeout": outcome.timeout,
            "Runtime": elapsed,
            "Retcode": outcome.retcode,
        }

    def _serve(self) -> bool:
        """Ask for items until the backend ends; return False."""
        pause = self.options.backoff
        while not self.stopping:
            with socket.create_connection(
                (self.options.frontend.host or "localhost", self.options.frontend.port),
                ANSWER_SECONDS,
            ) as peer:
                peer.sendall(wire.encode({"Queue": self.options.queue}))
                item = _object(peer)
                if not wire.text(item, "Error"):
                    peer.settimeout(None)
                    peer.sendall(wire.fit_original(self.work(item)))
                    self.completed += 1
                    pause = self.options.backoff
                    continue
            if not item.get("Empty"):
                raise UnreachableError(item["Error"])
            if not self.options.backoff:
                return False
            self._pause(shorter(pause, self.options.backoff_max, self.workload.limit))
            pause += self.options.backoff
        return False

    def _pause(self, seconds: float) -> None:
        """Sleep, at most until `stop`."""
        if not self.stopping:
            select.select([self._wake], [], [], seconds)


def _object(peer: socket.socket) -> wire.Message:
    """Return the JSON object that a peer sends. Raises UnreachableError."""
    buffer = b""
    while True:
        data = peer.recv(4096)
        if not data:
            raise UnreachableError("connection closed before an answer")
        buffer += data
        try:
            return wire.decode(buffer)
        except wire.IncompleteError:
            continue
        except wire.MalformedError as error:
            raise UnreachableError(f"answer is not of the protocol: {error}") from None


def main(argument: str) -> int:
    """Run a backend from a JSON argument: the fields of Options, and `workload`."""
    fields = json.loads(argument)
    workload = Workload(**fields.pop("workload"))
    backend = Backend(Options(**{**fields, "frontend": wire.address(fields["frontend"])}), workload)
    backend.catch_signals()
    try:
        backend.serve()
    except UnreachableError as error:
        sys.stderr.write(f"{error}\n")
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
