"""This machine as a host of benchmarks."""

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any, cast

from perfdag.hosts import facts as host_facts
from perfdag.hosts.base import Argv, CommandResult, Failed, Host, Server, Usage
from perfdag.units import parse_cpu_list

_REMOTE_SHELL = ("PERFDAG_SSH_CONFIG", "PERFDAG_SSH_PORTS", "PERFDAG_IPS")
"""Addresses and a path, without which an MPI launcher reaches no peer by `perfdag step rsh`."""
hidden: set[str] = set()
"""More variables that measured processes do not get, by name."""


def measured_environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a measured process: that of perfdag without its secrets.

    `variables` are added, or replace inherited ones.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name in _REMOTE_SHELL or not (name.startswith(("AWS_", "PERFDAG_")) or name in hidden)
    }
    # Tools print numbers and words by locale, and parsers read those of LC_ALL=C.UTF-8.
    return {**inherited, "LC_ALL": "C.UTF-8", **(variables or {})}


_KILL_THE_LAST_LINE = """\
while read -r line; do groups=$line; done
for group in $groups; do kill -s KILL -- "-$group"; done
"""
_groups: set[int] = set()
_telling = threading.Lock()


def _end_with_perfdag(group: int, *, ended: bool = False) -> None:
    """Have a process group killed once this process ends, even if it ends by SIGKILL.

    A group that has `ended` is forgotten, since its id may be used again.

    A shell in a session of its own waits for the end. PR_SET_PDEATHSIG would reach the leader of
    the group alone and not its workers, and Python can set it only by a slow fork (3 to 9 ms
    instead of 0.7 ms), which would be part of each measured time.
    """
    with _telling, contextlib.suppress(OSError):  # the shell was killed
        (_groups.discard if ended else _groups.add)(group)
        _waiting_shell().write(f"{' '.join(map(str, _groups))}\n".encode())


@cache
def _waiting_shell() -> IO[bytes]:
    """Start the shell and return its standard input, the pipe that ends with this process."""
    shell = subprocess.Popen(
        ["/bin/sh", "-c", _KILL_THE_LAST_LINE],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={},
        start_new_session=True,
    )
    assert shell.stdin
    return shell.stdin


def descendants(pid: int) -> list[int]:
    """Return the ids of the descendants of a process, also of those that left its process group.

    The kernel lists the children of each thread (proc(5), CONFIG_PROC_CHILDREN). This is faster
    than a scan of all processes, of which a busy node has thousands.
    """
    children: list[int] = []
    with contextlib.suppress(OSError):  # the process ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                children += map(int, (thread / "children").read_text().split())
    return [*children, *(pid for child in children for pid in descendants(child))]


def signal_tree(pid: int, number: signal.Signals, descendant_pids: Iterable[int] = ()) -> None:
    """Signal a process group, the descendants of its leader, and `descendant_pids`, former ones."""
    for target in (*descendants(pid), *descendant_pids, -pid):  # kill(2): -pid is the group
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(target, number)


def holders(pipe: int) -> list[int]:
    """Return the other processes that have the pipe of a file descriptor open (proc(5))."""
    pids = []
    with contextlib.suppress(OSError):
        target = os.readlink(f"/proc/self/fd/{pipe}")  # noqa: PTH115 - `pipe:[1234]` is no path
        for folder in Path("/proc").glob("[0-9]*/fd"):
            with contextlib.suppress(OSError):
                if int(folder.parent.name) != os.getpid() and any(
                    os.readlink(link) == target  # noqa: PTH115
                    for link in folder.iterdir()
                ):
                    pids.append(int(folder.parent.name))
    return pids


def listening_ports(table: str) -> set[int]:
    """Return the ports that are listened on by the text of /proc/net/tcp or tcp6 (proc(5))."""
    rows = (line.split() for line in table.splitlines())
    return {
        int(row[1].rpartition(":")[2], 16)
        for row in rows
        if len(row) > 3 and row[3] == "0A" and ":" in row[1]  # TCP_LISTEN
    }


def listening(port: int) -> bool:
    """Return whether a TCP port is listened on on this machine."""
    tables = [host_facts.read_text(Path("/proc/net") / name) for name in ("tcp", "tcp6")]
    return any(port in listening_ports(table or "") for table in tables)


class _Process(subprocess.Popen[bytes]):
    """A command whose end is read by wait4(2), which also tells what it used.

    Popen waits by this method alone while it communicates. A wait beside it would leave nothing to
    read, and Popen takes that for exit code 0.
    """

    rusage: resource.struct_rusage | None = None

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        try:
            pid, status, rusage = os.wait4(self.pid, wait_flags)
        except ChildProcessError:  # SIGCHLD is ignored, so the kernel kept nothing
            return self.pid, 0
        if pid == self.pid:
            self.rusage = rusage
        return pid, status

    @property
    def usage(self) -> Usage | None:
        """What the command used until it ended, None while it is not known to have ended."""
        if self.rusage is None:
            return None
        inherited = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peak = self.rusage.ru_maxrss
        return Usage(
            user=self.rusage.ru_utime,
            system=self.rusage.ru_stime,
            involuntary_switches=self.rusage.ru_nivcsw,
            peak_memory=peak * 1024 if peak > inherited else None,  # of KiB (getrusage(2))
        )

    def holder(self) -> str:
        """Return a process that has the output open although the command ended, or an empty text.

        Such as `sleep (pid 4711)`.
        """
        if self.poll() is None:
            return ""
        pipes = [pipe for pipe in (self.stdout, self.stderr) if pipe and not pipe.closed]
        for pid in {pid for pipe in pipes for pid in holders(pipe.fileno())}:
            return f"{host_facts.read_text(Path(f'/proc/{pid}/comm')) or 'a process'} (pid {pid})"
        return "another process"


class LocalProcess(Server):
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
        _end_with_perfdag(self._popen.pid, ended=True)
        return code


def _rest(popen: "subprocess.Popen[bytes]") -> tuple[bytes, bytes]:
    """Return what a killed command wrote.

    A daemon that left the process tree may hold the pipes open, and is killed too.
    """
    try:
        return popen.communicate(timeout=0.5)
    except subprocess.TimeoutExpired:
        for pipe in (popen.stdout, popen.stderr):
            for pid in holders(pipe.fileno()) if pipe and not pipe.closed else ():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
    try:
        return popen.communicate(timeout=2.0)
    except subprocess.TimeoutExpired as error:
        # A process of another user holds the pipes.
        return error.output or b"", error.stderr or b""


class LocalHost(Host):
    """This machine, or this pod.

    Commands run in sessions of their own, whose process groups end with perfdag, even if it is
    killed by SIGKILL.
    """

    def __init__(self, address: str = "127.0.0.1", name: str | None = None) -> None:
        super().__init__(address, name or socket.gethostname())

    def _start(
        self,
        argv: Argv,
        env: Mapping[str, str] | None,
        cwd: str | None,
        cpus: str | None,
        stdin: Any,
        out: Any,
        err: Any,
    ) -> _Process:
        path = (env or {}).get("PATH")
        # Popen would search the PATH of perfdag, and not that of the command.
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
            popen = _Process(
                full,
                env=measured_environment(env),
                cwd=cwd,
                stdin=stdin,
                stdout=out,
                stderr=err,
                start_new_session=True,  # a group of its own, and Ctrl-C does not reach it
            )
        except OSError as error:
            raise Failed(
                f"{argv[0]}: cannot be started on {self.name}: {error.strerror}"
            ) from error
        _end_with_perfdag(popen.pid)
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
        holder = ""
        try:
            try:
                out, err = popen.communicate(stdin, timeout)
            except subprocess.TimeoutExpired:
                timed_out = True
                holder = popen.holder()
                signal_tree(popen.pid, signal.SIGKILL)
                out, err = _rest(popen)
        except BaseException:
            signal_tree(popen.pid, signal.SIGKILL)
            popen.wait()
            raise
        finally:
            _end_with_perfdag(popen.pid, ended=True)
        seconds = time.monotonic() - start
        return CommandResult(
            list(argv),
            popen.returncode,
            out.decode(errors="replace"),
            err.decode(errors="replace"),
            seconds,
            timed_out,
            popen.usage,
            holder,
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

    def facts(self) -> dict[str, Any]:
        facts = {**host_facts.gather(), "gpus": []}
        if self.which("nvidia-smi"):
            from perfdag.hosts.gpu_use import gpus  # most hosts have none

            facts["gpus"] = gpus(self)
        return facts


@cache  # every sample would cost a command over ssh
def allowed_cpus(host: Host, pins: str | None = None) -> frozenset[int]:
    """Return the CPUs that a process of a host may use; none where the system does not say.

    It is the kernel's answer (proc(5)): nproc prints OMP_NUM_THREADS, if there is one.
    """
    status = host.run(["cat", "/proc/self/status"], timeout=10, cpus=pins).stdout
    cpus = re.search(r"(?m)^Cpus_allowed_list:\s*(\S+)$", status)
    return frozenset(parse_cpu_list(cpus[1]) if cpus else ())


def filesystem(host: Host, path: str) -> dict[str, Any]:
    """Return the facts of the file system of a path on that host. Raises Failed."""
    if isinstance(host, LocalHost):
        return host_facts.filesystem(path)
    finished = host.run(["python3", "-m", "perfdag.hosts.facts", "--filesystem", path], timeout=30)
    finished.check(f"asking {host.name} what holds {path}")
    return cast(dict[str, Any], json.loads(finished.stdout))
