"""The workload of an item: the built-in `sleep` and `usl`, or a command."""

import contextlib
import glob as globbing
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

FILENAME = "FILENAME"
BUILT_IN = ("sleep", "usl")


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
    arguments.
    `limit`: seconds, 0 for none. `ignore`: ignore the arguments that a client sends.
    """

    command: Sequence[str]
    device: str = ""
    limit: float = 0.0
    ignore: bool = False
    directory: str = ""
    null_in: bool = False
    null_out: bool = False
    environment: dict[str, str] = field(default_factory=dict)

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
            if argv[0] == "sleep":
                return _sleep(_numbers("sleep", argv[1:2], 1)[0], limit)
            if argv[0] == "usl":
                seconds, sigma, kappa = _numbers("usl", argv[1:4], 3)
                return _sleep(
                    seconds * (1 + sigma * (running - 1) + kappa * running * (running - 1)), limit
                )
        except ValueError as error:
            return Outcome(1, 0.0, str(error))
        return self._command(argv, limit)

    def _command(self, argv: Sequence[str], limit: float) -> Outcome:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL if self.null_in else None,
                stdout=subprocess.DEVNULL if self.null_out else None,
                stderr=subprocess.DEVNULL if self.null_out else None,
                cwd=self.directory or None,
                env={**os.environ, **self.environment} if self.environment else None,
                start_new_session=True,
            )
        except OSError as error:
            return Outcome(127, 0.0, f"{argv[0]} did not start: {error.strerror}")
        try:
            in_time = _wait(process, limit)
        finally:
            with contextlib.suppress(ProcessLookupError):  # also processes that the command left
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        if not in_time:
            return Outcome(124, limit, f"{argv[0]} ran past its limit of {limit:g} s")
        return Outcome(code, 0.0, f"{argv[0]} returned error code {code}" if code else "")


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
    if command[0] not in BUILT_IN:
        return None
    count = 1 if command[0] == "sleep" else 3
    return _numbers(command[0], command[1 : 1 + count], count)[0]


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


def device(pattern: str) -> str:
    """Return the first file that matches a glob pattern, "" without one.

    Raises ValueError without a match.
    """
    if not pattern:
        return ""
    matches = matching(pattern)
    if not matches:
        raise ValueError(f"no files matching glob pattern '{pattern}'")
    return str(Path(matches[0]))


def matching(pattern: str) -> list[str]:
    """Return the files that match a glob pattern, sorted."""
    return sorted(globbing.glob(pattern))  # noqa: PTH207 (a pattern may be absolute)


def _numbers(name: str, args: Sequence[str], count: int) -> list[float]:
    if name == "sleep" and not args:
        raise ValueError("Sleep time (seconds) argument missing")
    if len(args) != count:
        raise ValueError("usl needs three numbers: SECONDS SIGMA KAPPA")
    values = []
    for arg in args:
        try:
            values.append(float(arg))
        except ValueError:
            raise ValueError(f"invalid {name} time value '{arg}'") from None
        if not 0 <= values[-1] < 1e9:
            raise ValueError(f"invalid {name} time value '{arg}': not between 0 and 1e9")
    return values


def _sleep(seconds: float, limit: float) -> Outcome:
    if limit and seconds > limit:
        time.sleep(limit)
        return Outcome(0, limit, "Sleep timeout")
    time.sleep(seconds)
    return Outcome()


def _wait(process: subprocess.Popen[bytes], limit: float) -> bool:
    """Wait for the process, at most `limit` seconds (0: for ever); return whether it ended.

    Popen.wait with a timeout looks only every 50 ms, which would add to the time of an item.
    """
    handle = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        return bool(poll.poll(min(limit * 1000, 2**31 - 1) if limit else None))
    finally:
        os.close(handle)
