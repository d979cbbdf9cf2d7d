"""The backend: asks a frontend for items, runs its workload on them and replies with the outcome.

A backend is one slot of a device, so it is blocking and single-threaded. SIGTERM ends it after the
current item. The workload is the built-in `sleep` or `usl`, or a command.
"""

import contextlib
import glob as globbing
import math
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfdag.steps.queue import protocol

FILENAME = "FILENAME"
BUILT_IN = {"sleep": 1, "usl": 3}
"""The built-in workloads, and the numbers that each takes."""
ANSWER_SECONDS = 10.0
"""Time of a frontend to answer."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Return code, timeout (the limit in seconds if hit, else 0) and error text ("" for none)."""

    retcode: int = 0
    timeout: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class Workload:
    """A command with its device, limit and working directory.

    `command`: an absolute path or a built-in, with arguments. `device`: replaces FILENAME in
    arguments. `limit`: seconds, 0 for none. `ignore`: ignore the arguments that a client sends.
    """

    command: Sequence[str]
    device: str = ""
    limit: float = 0.0
    ignore: bool = False
    directory: str = ""
    null_in: bool = False
    null_out: bool = False
    running: set[subprocess.Popen[bytes]] = field(default_factory=set)

    def __post_init__(self) -> None:
        head = self.command[0] if self.command else ""
        check_program(head)
        if head.startswith("/") and not os.access(head, os.X_OK):
            raise ValueError(f"workload {head} is not an executable file here")
        substitute(self.command, self.device)

    def run(self, args: Sequence[str] | None, limit: float, running: int = 1) -> Outcome:
        """Run it once with the client's arguments and limit (seconds); the shorter limit applies.

        `running`: items that run in the queue; only `usl` uses it.
        """
        limit = shorter(self.limit, limit)
        try:
            argv = substitute([*self.command, *([] if self.ignore else args or [])], self.device)
            if argv[0] not in BUILT_IN:
                return self._command(argv, limit)
            seconds, *law = _numbers(argv)
        except ValueError as error:
            return Outcome(1, 0.0, str(error))
        if law:
            sigma, kappa = law
            seconds *= 1 + sigma * (running - 1) + kappa * running * (running - 1)
        time.sleep(shorter(seconds, limit))
        late = 0 < limit < seconds
        return Outcome(0, limit, "Sleep timeout") if late else Outcome()

    def _command(self, argv: Sequence[str], limit: float) -> Outcome:
        output = subprocess.DEVNULL if self.null_out else None
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL if self.null_in else None,
                stdout=output,
                stderr=output,
                cwd=self.directory or None,
                start_new_session=True,
            )
        except OSError as error:
            return Outcome(127, 0.0, f"{argv[0]} did not start: {error.strerror}")
        self.running.add(process)
        try:
            in_time = _wait(process, limit)
        finally:
            self.kill(process)
            code = process.wait()
            self.running.remove(process)
        if not in_time:
            return Outcome(124, limit, f"{argv[0]} ran past its limit of {limit:g} s")
        return Outcome(code, 0.0, f"{argv[0]} returned error code {code}" if code else "")

    def kill(self, *processes: subprocess.Popen[bytes]) -> None:
        """Kill commands, by default all that run, with the processes that they started."""
        for process in processes or tuple(self.running):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def check_program(program: str) -> None:
    """Raise ValueError for a workload that is neither an absolute path nor built in."""
    if program not in BUILT_IN and not program.startswith("/"):
        raise ValueError(
            f"workload {program!r} is neither an absolute path nor built in ({', '.join(BUILT_IN)})"
        )


def built_in_seconds(command: Sequence[str]) -> float | None:
    """Return the seconds of a built-in command alone, None for others.

    Raises ValueError if it cannot run.
    """
    check_program(command[0])
    return _numbers(command)[0] if command[0] in BUILT_IN else None


def shorter(*limits: float) -> float:
    """Return the smallest limit above 0, or 0 without one."""
    return min((limit for limit in limits if limit > 0), default=0.0)


def substitute(argv: Sequence[str], device: str) -> list[str]:
    """Replace FILENAME in argv by the device.

    Raises ValueError if argv needs a device and there is none.
    """
    if not device and any(FILENAME in arg for arg in argv):
        raise ValueError(f"{FILENAME} in args, but no file name to map to it")
    return [arg.replace(FILENAME, device) for arg in argv]


def find_device(pattern: str) -> str:
    """Return the first file that matches a glob pattern, "" without a pattern.

    Raises ValueError without a match.
    """
    matches = sorted(globbing.glob(pattern))  # noqa: PTH207 (a pattern may be absolute)
    if pattern and not matches:
        raise ValueError(f"no files matching glob pattern '{pattern}'")
    return matches[0] if pattern else ""


def _numbers(command: Sequence[str]) -> list[float]:
    """Return the numbers of a built-in. Raises ValueError."""
    name, *args = command
    if len(args) < BUILT_IN[name]:
        what = "Sleep time (seconds) argument missing"
        raise ValueError(what if name == "sleep" else "usl needs SECONDS SIGMA KAPPA")
    values = []
    for arg in args[: BUILT_IN[name]]:
        try:
            value = float(arg)
        except ValueError:
            value = math.nan
        if not 0 <= value < 1e9:
            raise ValueError(f"invalid {name} time value '{arg}'")
        values.append(value)
    return values


def _wait(process: subprocess.Popen[bytes], limit: float) -> bool:
    """Wait for the process, at most `limit` seconds (0: for ever); return whether it ended.

    Popen.wait with a timeout looks only every 50 ms, which would add to the time of an item.
    """
    handle = os.pidfd_open(process.pid)
    try:
        return bool(select.select([handle], [], [], limit or None)[0])
    finally:
        os.close(handle)


class UnreachableError(Exception):
    """The frontend is unreachable or does not speak the protocol; the text is the reason."""


@dataclass
class Backend:
    """One worker of one queue. Times are in seconds.

    `backoff`: the n-th empty answer in a row waits n x `backoff`, at most `backoff_max`; 0 exits on
    an empty queue. `retry_seconds`: how long to retry a frontend that does not answer.
    """

    frontend: protocol.Address
    queue: str
    pod: str
    node: str
    workload: Workload
    backoff: float = 0.0
    backoff_max: float = 5.0
    retry_seconds: float = 30.0
    completed: int = 0
    stopping: bool = False

    def stop(self, *_: object) -> None:
        """End after the current item; safe in a signal handler."""
        self.stopping = True

    def serve(self) -> None:
        """Work until `stop` or a signal, or until the queue is empty without back-off.

        Raises UnreachableError.
        """
        pause, reached = self.backoff, time.monotonic()
        while not self.stopping:
            try:
                empty = not self._serve_one()
                reached = time.monotonic()
            except (OSError, UnreachableError) as error:
                if time.monotonic() - reached > self.retry_seconds:
                    raise UnreachableError(f"frontend {self.frontend}: {error}") from None
                self.pause(0.2)
                continue
            if not empty:
                pause = self.backoff
            elif not self.backoff:
                return
            else:
                self.pause(shorter(pause, self.backoff_max, self.workload.limit))
                pause += self.backoff

    def _serve_one(self) -> bool:
        """Ask for an item, run it and reply; return False if the queue is empty."""
        address = (self.frontend.host or "localhost", self.frontend.port)
        with socket.create_connection(address, ANSWER_SECONDS) as peer:
            peer.sendall(protocol.encode({"Queue": self.queue}))
            item = _receive(peer)
            if item["Empty"]:
                return False
            if item["Error"]:
                raise UnreachableError(item["Error"])
            peer.settimeout(None)
            peer.sendall(protocol.encode_reply(self.work(item)))
            self.completed += 1
            return True

    def work(self, item: protocol.Message) -> protocol.Message:
        """Run one item and return the reply."""
        began = time.perf_counter()
        outcome = self.workload.run(item["Args"], item["Limit"], item["Running"])
        return {
            "Pod": self.pod,
            "Node": self.node,
            "Device": Path(self.workload.device).name,
            "Error": outcome.error,
            "Timeout": outcome.timeout,
            "Runtime": time.perf_counter() - began,
            "Retcode": outcome.retcode,
        }

    def pause(self, seconds: float) -> None:
        """Sleep, at most until `stop`."""
        end = time.monotonic() + seconds
        while not self.stopping and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))


def _receive(peer: socket.socket) -> protocol.Message:
    """Return the item that a frontend sends. Raises UnreachableError."""
    buffer = b""
    while data := peer.recv(4096):
        buffer += data
        try:
            return protocol.decode(buffer, protocol.ITEM)
        except protocol.IncompleteError:
            continue
        except protocol.MalformedError as error:
            raise UnreachableError(f"answer is not of the protocol: {error}") from None
    raise UnreachableError("connection closed before an answer")
