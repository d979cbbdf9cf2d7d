"""The contract of a host: where the commands of a benchmark run, and how a sample fails.

    with server_host.serve(["iperf3", "-s", "-p", str(port)], port=port):
        client_host.run(["iperf3", "-c", address, "-p", str(port)], timeout=20).check("iperf3")

A benchmark does not know whether a host is this machine or a pod on another node.
"""

import itertools
import re
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import IO, Any, ClassVar

from perfdag.redaction import redact

MANAGERS = ("apt", "dnf", "zypper", "pacman", "brew", "pip")
"""Package managers that a tool may name; the first one on the machine is used."""


def install_command(packages: Mapping[str, str]) -> str:
    """Return the command that installs a tool with a package manager of this machine.

    `packages` maps package managers to names. Without one of these managers, return all commands.
    """
    # an environment that uv made has no pip
    pip = (
        f"{sys.executable} -m pip install"
        if find_spec("pip")
        else f"uv pip install --python {sys.executable}"
    )
    commands = {
        "apt": ("apt-get", "apt-get install"),
        "dnf": ("dnf", "dnf install"),
        "zypper": ("zypper", "zypper install"),
        "pacman": ("pacman", "pacman -S"),
        "brew": ("brew", "brew install"),
        "pip": (sys.executable, pip),
    }
    for manager, (program, command) in commands.items():
        if manager in packages and shutil.which(program):
            return f"{command} {packages[manager]}"
    alternatives = [f"{commands[manager][1]} {package}" for manager, package in packages.items()]
    return ", ".join(alternatives) or "not packaged"


class SampleError(Exception):
    """A sample without a valid value.

    `texts` holds the output of the tools. `measurements` holds the values that could be read. They
    become rows with the status of the sample.
    """

    status: ClassVar[str] = "failed"

    def __init__(
        self,
        reason: str,
        texts: Mapping[str, str] | None = None,
        measurements: Sequence[Any] = (),
    ) -> None:
        super().__init__(reason)
        self.texts = dict(texts or {})
        self.measurements = list(measurements)


class Failed(SampleError):
    """The tool failed or did not print what its parameters imply."""


class Skip(SampleError):
    """The sample cannot be measured here, as a tool, a device or a right is missing."""

    status = "skipped"


class Invalid(SampleError):
    """The tool ran, but did not measure what the sample claims."""

    status = "invalid"


class Infrastructure(SampleError):
    """A fault of the infrastructure, such as a lost peer. The sample is retried `retries` times.

    Its rows are `failed` if no retry helps.
    """

    status = "infrastructure"


Argv = Sequence[str]


_ESCAPE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.?)", re.S)


def plain(text: str) -> str:
    """Return a tool's text without escape sequences and control characters; lines stay."""
    return "".join(c if c.isprintable() or c == "\n" else " " for c in _ESCAPE.sub("", text))


@dataclass(frozen=True)
class Usage:
    """What a process used, with the children that it waited for (wait4(2)).

    Times are CPU time in seconds. The kernel splits them by samples at its ticks, so the sum is
    exact and the parts are not. `peak_memory` is the largest resident set of one of the processes
    in bytes, and None where it cannot be told from that of perfdag, which a child inherits.
    """

    user: float
    system: float
    involuntary_switches: int
    peak_memory: int | None


@dataclass(frozen=True)
class CommandResult:
    """A command that ended.

    `code` is negative for a signal. `seconds` is wall time on a monotonic clock. `holder` is the
    process that kept the output open after the command had ended, until the timeout.
    """

    argv: list[str]
    code: int
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool = False
    usage: Usage | None = None
    """None on a host that is reached by SSH."""
    holder: str = ""

    @property
    def overdue(self) -> str:
        """What did not end in time, as the end of a sentence about the command."""
        if self.holder:
            return (
                f"ended, but {self.holder} held its output open for {self.seconds:.1f} s; "
                "redirect the output of what it leaves behind"
            )
        return f"did not end within {self.seconds:.1f} s"

    def tail(self, limit: int = 400) -> str:
        """Return the end of stderr, or of stdout if stderr is empty, for the error of a row."""
        output = redact(plain(self.stderr).strip() or plain(self.stdout).strip())
        return output if len(output) <= limit else "..." + output[-limit:]

    def check(self, what: str) -> "CommandResult":
        """Return the command if it succeeded. Raises Failed with the exit code and the output."""
        if self.timed_out:
            raise Failed(f"{what} {self.overdue}: {self.tail()}", self.texts())
        if self.code != 0:
            raise Failed(f"{what} exited {self.code}: {self.tail()}", self.texts())
        return self

    def texts(self) -> dict[str, str]:
        """Return the outputs by name, which a sample stores."""
        return {"stdout": self.stdout, "stderr": self.stderr}


class Server(AbstractContextManager["Server"]):
    """A command that runs beside the sample until `stop` or the end of the `with` block.

    `popen` is its process on this machine, with the output files `out` and `err`. Each kind of host
    defines how its processes are signalled.
    """

    def __init__(
        self, argv: list[str], popen: "subprocess.Popen[bytes]", out: IO[bytes], err: IO[bytes]
    ) -> None:
        self.argv, self._popen, self._out, self._err = argv, popen, out, err
        self._start = time.monotonic()
        self._finished: CommandResult | None = None

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def _terminate(self) -> None:
        """Send SIGTERM."""

    @abstractmethod
    def _kill(self) -> None:
        """Send SIGKILL to what is left."""

    @abstractmethod
    def _exit_code(self, timed_out: bool) -> int:
        """Wait for the end and return the exit code. `timed_out` tells that it outlived SIGTERM."""

    def _check_connection(self, finished: CommandResult) -> None:
        """Raise Infrastructure if the server ended because its host is out of reach."""

    def alive(self) -> bool:
        """Return whether the server still runs."""
        return self._popen.poll() is None

    def stop(self, grace: float = 2.0) -> CommandResult:
        """End the process group and return its output. A second call changes nothing.

        The processes get SIGTERM, and SIGKILL after `grace` seconds.
        """
        if self._finished is None:
            timed_out = False
            if self.alive():
                self._terminate()
                try:
                    self._popen.wait(grace)
                except subprocess.TimeoutExpired:
                    timed_out = True
            self._kill()
            code = self._exit_code(timed_out)
            texts = []
            for stream in (self._out, self._err):
                stream.seek(0)
                texts.append(stream.read().decode(errors="replace"))
                stream.close()
            self._finished = CommandResult(
                self.argv, code, texts[0], texts[1], time.monotonic() - self._start, timed_out
            )
        return self._finished

    def wait(self, timeout: float, grace: float = 2.0) -> CommandResult:
        """Wait up to `timeout` seconds for it to end by itself, then stop it with that `grace`."""
        try:
            self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            return self.stop(grace)
        return self.stop(0)

    def await_listening(self, listens: Callable[[], bool], where: str, ready: float) -> None:
        """Wait up to `ready` seconds until `listens` returns True. `where` names the port.

        Otherwise stops the server and raises Failed.
        """
        deadline = time.monotonic() + ready
        pause = 0.001
        try:
            while True:
                is_listening = listens()
                # Checked after the table, as another process may have taken the port first.
                if not self.alive():
                    finished = self.stop(0)
                    self._check_connection(finished)
                    raise Failed(
                        f"{self.argv[0]} ended (exit {finished.code}) before it listened on "
                        f"{where}: {finished.tail()}"
                    )
                if is_listening:
                    return
                if time.monotonic() > deadline:
                    raise Failed(
                        f"{self.argv[0]} did not listen on {where} within {ready:g} s: "
                        f"{self.stop(0).tail()}"
                    )
                time.sleep(pause)
                pause = min(pause * 1.5, 0.05)
        except BaseException:
            self.stop(0)
            raise


class Forwarding:
    """An address and the ports that it forwards to a host; each use takes the next port."""

    def __init__(self, address: str, ports: Sequence[int]) -> None:
        self.address = address
        self.ports = tuple(ports)
        self._next = itertools.cycle(self.ports)

    def port(self) -> int:
        """Return the port for the next server."""
        return next(self._next)


_CLEAN = (
    'exec env -i PATH="$PATH" LC_ALL=C.UTF-8 TZ=UTC0 '
    '${LD_LIBRARY_PATH:+LD_LIBRARY_PATH="$LD_LIBRARY_PATH"} "$@"'
)


def in_clean_environment(*argv: str) -> list[str]:
    """Return the command by which a program of ours answers as it does in any other shell.

    Variables of the user, such as LD_PRELOAD, stay away. Some nodes have the libraries of
    nvidia-smi in LD_LIBRARY_PATH alone.
    """
    return ["sh", "-c", _CLEAN, "sh", *argv]


@dataclass(eq=False)
class Host(ABC):
    """A machine or pod where commands run.

    `address` is that on the measured network, `name` that of the node, or the host name of this
    machine. `forwarding` is the Service by which clients reach its servers, if one does.
    """

    address: str
    name: str
    forwarding: Forwarding | None = field(default=None, init=False)

    @property
    def target(self) -> str:
        """The address where clients reach its servers: `address`, or that of a Service."""
        return self.forwarding.address if self.forwarding else self.address

    @abstractmethod
    def run(
        self,
        argv: Argv,
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        cpus: str | None = None,
        stdin: bytes | None = None,
    ) -> CommandResult:
        """Run a command in a process group of its own, which is killed after `timeout` seconds.

        Raises Failed if the program is not on the host, Infrastructure if the host is out of reach.
        """

    @abstractmethod
    def serve(
        self,
        argv: Argv,
        *,
        port: int | None = None,
        ready: float = 10.0,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        cpus: str | None = None,
    ) -> Server:
        """Start a server and wait up to `ready` seconds until `port` is in the socket table.

        Nothing connects to the port. Raises Failed with its stderr, or if the port is in use.
        """

    @abstractmethod
    def free_port(self) -> int:
        """Return a port that is free now, or one that a Service forwards."""

    @abstractmethod
    def forwarded(self, port: int) -> AbstractContextManager[int]:
        """Return a port of 127.0.0.1 here that leads to this port of 127.0.0.1 on the host."""

    @abstractmethod
    def which(self, program: str) -> str | None:
        """Return the path of a program on this host, or None."""

    def put(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a file and create its folder. Raises Failed."""
        script = 'mkdir -p "$(dirname "$1")" && cat >"$1" && chmod "$2" "$1"'
        self.run(["sh", "-c", script, "sh", path, f"{mode:o}"], timeout=120, stdin=data).check(
            f"writing {path} on {self.name}"
        )

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its content, if it exists."""
        self.run(["rm", "-rf", "--", path], timeout=60)

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return the facts of this host: kernel, CPU, memory, NICs ... (perfdag.hosts.facts)."""
