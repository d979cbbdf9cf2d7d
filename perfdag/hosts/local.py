"""This machine as a host of benchmarks."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from perfdag.hosts.base import Argv, CommandResult, ServerProcess
from perfdag.hosts.environment import measured_environment
from perfdag.hosts.forwarding import Forwarding
from perfdag.hosts.processes import (
    descendants,
    ends_with_perfdag,
    has_ended,
    holders,
    listening,
    signal_tree,
)
from perfdag.outcome import Failed


class LocalProcess(ServerProcess):
    """A server on this machine."""

    _below: Collection[int] = ()

    def _terminate(self) -> None:
        # When the server is gone, its descendants have another parent.
        self._below = descendants(self._popen.pid)
        signal_tree(self._popen.pid, signal.SIGTERM)

    def _kill(self) -> None:
        signal_tree(self._popen.pid, signal.SIGKILL, self._below)

    def _exit_code(self, timed_out: bool) -> int:
        code = self._popen.wait()
        has_ended(self._popen.pid)
        return code


def _rest(popen: "subprocess.Popen[bytes]") -> tuple[bytes, bytes]:
    """Return what a killed command wrote.

    A daemon that left the process tree may hold the pipes open, and is killed too.
    """
    try:
        return popen.communicate(timeout=0.5)
    except subprocess.TimeoutExpired:
        for pipe in (popen.stdout, popen.stderr):
            for pid in holders(pipe.fileno()) if pipe else ():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
    try:
        return popen.communicate(timeout=2.0)
    except subprocess.TimeoutExpired as error:
        # A process of another user holds the pipes.
        return error.output or b"", error.stderr or b""


class LocalHost:
    """This machine, or this pod.

    Commands run in sessions of their own, whose process groups end with perfdag, even if it is
    killed by SIGKILL.
    """

    def __init__(self, address: str = "127.0.0.1", name: str | None = None) -> None:
        self._address, self._name = address, name or socket.gethostname()
        self.forwarding: Forwarding | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def address(self) -> str:
        return self._address

    @property
    def target(self) -> str:
        """The address where clients reach its servers."""
        return self.forwarding.address if self.forwarding else self.address

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
        program = shutil.which(argv[0], path=path)
        pin = shutil.which("taskset", path=path) if cpus else None
        if program is None:
            raise Failed(f"{argv[0]}: not found on {self.name}")
        if cpus and pin is None:
            raise Failed(
                f"taskset: not found on {self.name}, and hosts.cpus is set; "
                "install util-linux, or leave hosts.cpus out"
            )
        full = [*([pin, "-c", cpus] if pin and cpus else []), program, *argv[1:]]
        try:
            popen = subprocess.Popen(
                full,
                env=measured_environment(env),
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
        ends_with_perfdag(popen.pid)
        return popen

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
        finally:
            has_ended(popen.pid)
        seconds = time.monotonic() - start
        return CommandResult(
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
        ready: float = 10.0,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        cpus: str | None = None,
    ) -> LocalProcess:
        if port is not None and listening(port):
            raise Failed(
                f"tcp port {port} is in use on {self.name}; "
                "end the process that listens there, or use another port"
            )
        # A server with much output would block on a full pipe, so its output goes to files.
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        server = LocalProcess(
            list(argv), self._start(argv, env, cwd, cpus, subprocess.DEVNULL, out, err), out, err
        )
        if port is not None:
            server.await_listening(lambda: listening(port), f"tcp port {port}", ready)
        return server

    def free_port(self) -> int:
        if self.forwarding:
            return self.forwarding.port()
        with socket.socket() as probe:
            probe.bind(("", 0))
            return int(probe.getsockname()[1])

    @contextlib.contextmanager
    def forwarded(self, port: int) -> Iterator[int]:
        yield port

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
