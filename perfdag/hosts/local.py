"""Hosts: where a benchmark's commands run. A benchmark never knows whether a host is this machine or a pod on another node."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, Self

from perfdag.benchmark.contract import Failed
from perfdag.hosts.processes import Proto, descendants, holders, listening, marked, signal_tree

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


class LocalProcess(ServerProcess):
    """A server on this machine."""

    _below: Collection[int] = ()

    def _terminate(self) -> None:
        self._below = descendants(self._popen.pid)  # once it is gone they are children of another
        signal_tree(self._popen.pid, signal.SIGTERM)

    def _kill(self) -> None:
        signal_tree(self._popen.pid, signal.SIGKILL, self._below)

    def _exit_code(self, timed_out: bool) -> int:
        return self._popen.wait()


def _rest(popen: "subprocess.Popen[bytes]") -> tuple[bytes, bytes]:
    """What a killed command wrote. A daemon of its own that left the tree holds the pipes open: it is killed too."""
    try:
        return popen.communicate(timeout=0.5)
    except subprocess.TimeoutExpired:
        for pipe in (popen.stdout, popen.stderr):
            for pid in holders(pipe.fileno()) if pipe else ():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
    try:
        return popen.communicate(timeout=2.0)
    except (
        subprocess.TimeoutExpired
    ) as error:  # another user's process has them: what came so far is what there is
        return error.output or b"", error.stderr or b""


class LocalHost:
    """This machine (or this pod). Commands run in a session of their own; they and all below them end with perfdag, kill -9 included."""

    def __init__(self, address: str = "127.0.0.1", name: str | None = None) -> None:
        self._address, self._name = address, name or socket.gethostname()

    @property
    def name(self) -> str:
        return self._name

    @property
    def address(self) -> str:
        return self._address

    def _start(
        self,
        argv: Argv,
        env: Mapping[str, str] | None,
        cwd: str | None,
        cpus: str | None,
        stdin: Any,
        out: Any,
        err: Any,
    ) -> "subprocess.Popen[bytes]":
        path = (env or {}).get("PATH")
        program, pin = (
            shutil.which(argv[0], path=path),
            shutil.which("taskset", path=path) if cpus else None,
        )
        if program is None:
            raise Failed(f"{argv[0]}: not found on {self.name}")
        if cpus and pin is None:
            raise Failed(
                f"taskset: not found on {self.name}, and hosts.cpus is set; install util-linux, or leave hosts.cpus out"
            )
        full = [*([pin, "-c", cpus] if pin and cpus else []), program, *argv[1:]]
        # LC_ALL: tools print numbers and words by locale, parsers read one form
        environment = {**os.environ, "LC_ALL": "C.UTF-8", **(env or {})}
        try:
            environment |= marked()
            return subprocess.Popen(
                full,
                env=environment,
                cwd=cwd,
                stdin=stdin,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        except OSError as error:
            raise Failed(
                f"{argv[0]}: cannot be started on {self.name}: {error.strerror}"
            ) from error

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
        start = time.monotonic()
        popen = self._start(
            argv,
            env,
            cwd,
            cpus,
            subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            subprocess.PIPE,
            subprocess.PIPE,
        )
        timed_out = False
        try:
            try:
                out, err = popen.communicate(stdin, timeout)
            except subprocess.TimeoutExpired:
                timed_out = True
                signal_tree(popen.pid, signal.SIGKILL)
                out, err = _rest(popen)
        except BaseException:
            signal_tree(popen.pid, signal.SIGKILL)
            popen.wait()
            raise
        seconds = time.monotonic() - start
        return Finished(
            list(argv),
            popen.returncode,
            out.decode(errors="replace"),
            err.decode(errors="replace"),
            seconds,
            timed_out,
        )

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
    ) -> LocalProcess:
        if port is not None and listening(port, proto):
            raise Failed(
                f"{proto} port {port} is in use on {self.name}; end who listens there, or use another port"
            )
        # files, not pipes: a server that talks a lot must not block on a full pipe nobody reads
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - closed when it ends
        server = LocalProcess(
            list(argv), self._start(argv, env, cwd, cpus, subprocess.DEVNULL, out, err), out, err
        )
        if port is not None:
            server.await_listening(lambda: listening(port, proto), f"{proto} port {port}", ready)
        return server

    def free_port(self, proto: Proto = "tcp") -> int:
        with socket.socket(
            socket.AF_INET, socket.SOCK_STREAM if proto == "tcp" else socket.SOCK_DGRAM
        ) as probe:
            probe.bind(("", 0))
            return int(probe.getsockname()[1])

    def which(self, program: str) -> str | None:
        return shutil.which(program)

    def put(self, path: str, data: bytes, mode: int = 0o644) -> None:
        target = Path(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            target.chmod(mode)
        except OSError as error:
            raise Failed(f"writing {path} on {self.name}: {error.strerror}") from error

    def get(self, path: str) -> bytes:
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise Failed(f"{path} on {self.name}: {error.strerror}") from error

    def remove(self, path: str) -> None:
        target = Path(path)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                target.unlink()

    def facts(self) -> dict[str, Any]:
        from perfdag.hosts.facts import gather

        return gather()
