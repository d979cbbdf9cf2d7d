"""The backend: asks a frontend for items, runs its workload on them and replies with the outcome.

A backend is one slot of a device: it runs one item at a time, and ends after the current one. The
workload is the built-in `sleep` or `usl`, or a command.
"""

import asyncio
import contextlib
import glob as globbing
import os
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL

from perfdag.steps.queue import protocol

FILENAME = "FILENAME"
BUILT_IN = {"sleep": 1, "usl": 3}
"""The built-in workloads, and the numbers that each takes."""
NUMBER = re.compile(r"(\d{1,9}(\.\d*)?|\.\d+)(e-\d+)?")
ANSWER_SECONDS = 10.0
"""Time of a frontend to answer."""


@dataclass(frozen=True, slots=True)
class ItemEnd:
    """How an item ended: return code, timeout (the limit in s if hit, else 0), error text or ""."""

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

    def __post_init__(self) -> None:
        head = self.command[0] if self.command else ""
        check_program(head)
        if head.startswith("/") and not os.access(head, os.X_OK):
            raise ValueError(f"workload {head} is not an executable file here")
        substitute(self.command, self.device)

    async def run(self, args: Sequence[str] | None, limit: float, running: int = 1) -> ItemEnd:
        """Run it once with the client's arguments and limit (seconds); the shorter limit applies.

        `running`: items that run in the queue; only `usl` uses it.
        """
        limit = shorter(self.limit, limit)
        try:
            argv = substitute([*self.command, *([] if self.ignore else args or [])], self.device)
            if argv[0] not in BUILT_IN:
                return await self._command(argv, limit)
            seconds, *law = _numbers(argv)
        except ValueError as error:
            return ItemEnd(1, 0.0, str(error))
        if law:
            sigma, kappa = law
            seconds *= 1 + sigma * (running - 1) + kappa * running * (running - 1)
        await asyncio.sleep(shorter(seconds, limit))
        return ItemEnd(0, limit, "Sleep timeout") if 0 < limit < seconds else ItemEnd()

    async def _command(self, argv: Sequence[str], limit: float) -> ItemEnd:
        """Run a command; kill what it started when it ends, is late or cancelled."""
        output = DEVNULL if self.null_out else None
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=DEVNULL if self.null_in else None,
                stdout=output,
                stderr=output,
                cwd=self.directory or None,
                start_new_session=True,
            )
        except OSError as error:
            return ItemEnd(127, 0.0, f"{argv[0]} did not start: {error.strerror}")
        try:
            async with asyncio.timeout(limit or None):
                code = await process.wait()
        except TimeoutError:
            return ItemEnd(124, limit, f"{argv[0]} ran past its limit of {limit:g} s")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        return ItemEnd(code, 0.0, f"{argv[0]} returned error code {code}" if code else "")


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
        missing = {"sleep": "Sleep time (seconds) argument missing"}
        raise ValueError(missing.get(name, "usl needs SECONDS SIGMA KAPPA"))
    numbers = args[: BUILT_IN[name]]
    for number in numbers:
        if not NUMBER.fullmatch(number):
            raise ValueError(f"invalid {name} time value '{number}'")
    return [float(arg) for arg in numbers]


class UnreachableError(Exception):
    """The frontend is unreachable or does not speak the protocol; the text is the reason."""


@dataclass
class Backend:
    """One worker of one queue. Times are in seconds.

    `backoff`: the n-th empty answer in a row waits n x `backoff`, at most `backoff_max`; 0 exits on
    an empty queue. `retry_seconds`: how long to retry a frontend that does not answer. `stopping`:
    set it to end after the current item.
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
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self) -> None:
        """Work until it is stopped, or until the queue is empty without back-off.

        Raises UnreachableError.
        """
        pause = self.backoff
        reached = time.monotonic()
        while not self.stopping.is_set():
            try:
                empty = not await self._serve_one()
                reached = time.monotonic()
            except (OSError, protocol.MalformedError) as error:
                if time.monotonic() - reached > self.retry_seconds:
                    raise UnreachableError(
                        f"frontend {self.frontend}: {str(error) or 'timed out'}"
                    ) from None
                await self.pause(0.2)
                continue
            if not empty:
                pause = self.backoff
            elif not self.backoff:
                return
            else:
                await self.pause(shorter(pause, self.backoff_max, self.workload.limit))
                pause += self.backoff

    async def _serve_one(self) -> bool:
        """Ask for an item, run it and reply; return False if the queue is empty."""
        host = self.frontend.host or "localhost"
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(host, self.frontend.port)
        try:
            writer.write(protocol.encode({"Queue": self.queue}))
            async with asyncio.timeout(ANSWER_SECONDS):
                item = await protocol.receive(reader, protocol.ITEM)
            if item["Empty"]:
                return False
            if item["Error"]:
                raise ConnectionRefusedError(item["Error"])
            began = time.perf_counter()
            outcome = await self.workload.run(item["Args"], item["Limit"], item["Running"])
            reply = {
                "Pod": self.pod,
                "Node": self.node,
                "Device": Path(self.workload.device).name,
                "Error": outcome.error,
                "Timeout": outcome.timeout,
                "Runtime": time.perf_counter() - began,
                "Retcode": outcome.retcode,
            }
            writer.write(protocol.encode_reply(reply))
            self.completed += 1
        finally:
            writer.close()
        await writer.wait_closed()
        return True

    async def pause(self, seconds: float) -> None:
        """Sleep, at most until it is stopped."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stopping.wait()
