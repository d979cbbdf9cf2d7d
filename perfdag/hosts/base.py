"""The contract of a host: where the commands of a benchmark run.

A benchmark does not know whether a host is this machine or a pod on another node.
"""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Protocol, Self

from perfdag.hosts.processes import Proto
from perfdag.outcome import Failed

Argv = Sequence[str]


@dataclass(frozen=True)
class Finished:
    """A command that ended: `code` is negative for a signal, `seconds` is wall time on a monotonic clock."""

    argv: list[str]
    code: int
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool = False

    def tail(self, limit: int = 400) -> str:
        """The end of what it said, stderr first, for a row's error."""
        said = self.stderr.strip() or self.stdout.strip()
        return said if len(said) <= limit else "..." + said[-limit:]

    def check(self, what: str) -> "Finished":
        """Itself, or Failed with the exit code and the tail of what it said."""
        if self.timed_out:
            raise Failed(
                f"{what} did not end within {self.seconds:.1f} s: {self.tail()}", self.texts()
            )
        if self.code != 0:
            raise Failed(f"{what} exited {self.code}: {self.tail()}", self.texts())
        return self

    def texts(self) -> dict[str, str]:
        """Its outputs by name, for the raw part of a sample."""
        return {"stdout": self.stdout, "stderr": self.stderr}


class Server(Protocol):
    """A command that keeps running beside the sample; ended by `stop` or on leaving the `with` block."""

    def __enter__(self) -> "Server": ...
    def __exit__(self, *_: object) -> None: ...
    def stop(self, grace: float = 2.0) -> Finished:
        """End it (SIGTERM, after `grace` seconds SIGKILL, the whole process group) and return what it said. Safe to call twice."""
        ...

    def wait(self, timeout: float, grace: float = 2.0) -> Finished:
        """Wait up to `timeout` seconds for it to end by itself, then stop it with that `grace`."""
        ...


class Host(Protocol):
    """A machine or pod where commands run."""

    @property
    def name(self) -> str:
        """Node name (on this machine: the host name)."""
        ...

    @property
    def address(self) -> str:
        """Address on the measured network."""
        ...

    def run(
        self,
        argv: Argv,
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        cpus: str | None = None,
        stdin: bytes | None = None,
    ) -> Finished:
        """Run to the end in a process group of its own; the group is killed at `timeout` seconds."""
        ...

    def serve(
        self,
        argv: Argv,
        *,
        port: int | None = None,
        proto: Proto = "tcp",
        ready: float = 10.0,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        cpus: str | None = None,
    ) -> Server:
        """Start a server and wait until `port` is in the socket table (never by connecting).

        Raises Failed with its stderr, or where somebody listens on `port` already.
        """
        ...

    def free_port(self, proto: Proto = "tcp") -> int:
        """A port nobody listens on now."""
        ...

    def which(self, program: str) -> str | None:
        """Path of a program on this host, or None."""
        ...

    def put(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a file, making its folder. Raises Failed."""
        ...

    def get(self, path: str) -> bytes:
        """Read a file. Raises Failed where it is not there."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file or a folder with all in it; absent is fine."""
        ...

    def facts(self) -> dict[str, Any]:
        """Provenance of this host: kernel, CPU, memory, NIC ... (perfdag.hosts.facts)."""
        ...


class ServerProcess:
    """A server that `Host.serve` started (see Server); `popen` is its process here, of which `out` and `err` are the output files.

    A kind of host says how its processes are signalled.
    """

    def __init__(
        self, argv: list[str], popen: "subprocess.Popen[bytes]", out: IO[bytes], err: IO[bytes]
    ) -> None:
        self.argv, self._popen, self._out, self._err = argv, popen, out, err
        self._start = time.monotonic()
        self._finished: Finished | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _terminate(self) -> None:
        """Send SIGTERM."""
        raise NotImplementedError

    def _kill(self) -> None:
        """Send SIGKILL to what is left."""
        raise NotImplementedError

    def _exit_code(self, timed_out: bool) -> int:
        """Wait for the end and return the exit code; `timed_out`: it outlived SIGTERM."""
        raise NotImplementedError

    def _check_connection(self, finished: Finished) -> None:
        """Raise Infrastructure if the server ended because its host is out of reach."""

    def alive(self) -> bool:
        """Return whether it still runs."""
        return self._popen.poll() is None

    def stop(self, grace: float = 2.0) -> Finished:
        """End it: SIGTERM, after `grace` seconds SIGKILL. Return what it said."""
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
            self._finished = Finished(
                self.argv, code, texts[0], texts[1], time.monotonic() - self._start, timed_out
            )
        return self._finished

    def wait(self, timeout: float, grace: float = 2.0) -> Finished:
        """Wait up to `timeout` seconds for it to end by itself, then stop it with that `grace`."""
        try:
            self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            return self.stop(grace)
        return self.stop(0)

    def await_listening(self, listens: Callable[[], bool], where: str, ready: float) -> None:
        """Wait up to `ready` seconds until `listens` is true; `where` names the port. Stop the server and raise Failed if it is not."""
        deadline = time.monotonic() + ready
        pause = 0.001
        try:
            while True:
                somebody = listens()
                if (
                    not self.alive()
                ):  # asked after the table: who listens may be another, who was faster
                    finished = self.stop(0)
                    self._check_connection(finished)
                    raise Failed(
                        f"{self.argv[0]} ended (exit {finished.code}) before it listened on {where}: {finished.tail()}"
                    )
                if somebody:
                    return
                if time.monotonic() > deadline:
                    raise Failed(
                        f"{self.argv[0]} did not listen on {where} within {ready:g} s: {self.stop(0).tail()}"
                    )
                time.sleep(pause)
                pause = min(pause * 1.5, 0.05)
        except BaseException:
            self.stop(0)
            raise
