"""A Host that is a peer pod, reached by its OpenSSH server over one shared connection.

Every remote command leads a process group whose id it writes to a file. The lead can then end
it: a local timeout alone would leave it running.
"""

import contextlib
import os
import random
import secrets
import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from perfdag.hosts.base import Argv, CommandResult, Failed, Host, Infrastructure, Server
from perfdag.hosts.gpu_use import gpus
from perfdag.hosts.local import LocalHost, listening_ports, measured_environment

CONNECT_SECONDS = 10


def config_text(identity: Path, known_hosts: Path, sockets: Path) -> str:
    """Return an ssh_config for all peers.

    It has the run's key, a checked host key, and one connection a peer.
    """
    return f"""Host *
  IdentityFile {identity}
  IdentitiesOnly yes
  UserKnownHostsFile {known_hosts}
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  UpdateHostKeys no
  BatchMode yes
  ConnectTimeout {CONNECT_SECONDS}
  ServerAliveInterval 2
  ServerAliveCountMax 4
  ControlPath {sockets}/%C
  ForwardAgent no
  ForwardX11 no
  ClearAllForwardings yes
  LogLevel ERROR
"""


def exit_code(code: int) -> int:
    """Return the negative number of a signal for the shell's 128 + n, as local commands do."""
    return 128 - code if 128 < code <= 192 else code


LINE_TIMEOUT = 10.0  # seconds for a line of shell that measures nothing
_TABLES = "cat /proc/net/tcp /proc/net/tcp6 2>/dev/null; true"
_AWAIT = (
    "until grep -qsE ':%04X [0-9A-F]+:0000 0A' /proc/net/tcp /proc/net/tcp6"
    " || [ $((look += 1)) -gt 20 ]; do sleep 0.004; done; "
)
"""Looks for 0.1 s whether a port is listened on, as each look by an ssh of its own costs 15 ms."""
_PIDS = "${PERFDAG_PEER:-/tmp}/pids"
_MARK = "PERFDAG_RUN_BY"
_STRAYS = f"grep -lzxsF {_MARK}=%s /proc/[0-9]*/environ | cut -d / -f 3"
"""Prints the ids of what a command started, also in process groups and sessions of their own."""


class SshServer(Server):
    """A server on a peer. Its local process is the ssh session.

    `token` identifies its process group on the peer.
    """

    def __init__(
        self,
        host: "SshHost",
        argv: list[str],
        popen: "subprocess.Popen[bytes]",
        token: str,
        out: Any,
        err: Any,
    ) -> None:
        super().__init__(argv, popen, out, err)
        self._host, self._token = host, token

    def _terminate(self) -> None:
        self._host.signal(self._token, "TERM")

    def _kill(self) -> None:
        if self._popen.poll() != 0:  # one that succeeded leaves nothing, and a line costs 15 ms
            self._host.signal(self._token, "KILL")

    def _exit_code(self, timed_out: bool) -> int:
        try:
            self._popen.wait(5)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        return -9 if timed_out else exit_code(self._popen.returncode)

    def _check_connection(self, finished: CommandResult) -> None:
        if finished.code == 255 and not self._host.alive():
            raise Infrastructure(f"ssh to {self._host.name} broke: {finished.tail()}")


class SshHost(Host):
    """A peer with sshd on `port` of the address `at`; `name` is its node.

    `address` is its address on the measured network, by default that of sshd. `config` is a file
    of config_text().
    """

    def __init__(self, address: str, name: str, config: Path, port: int = 2222) -> None:
        super().__init__(address, name)
        self.at, self.port, self._config = address, port, config
        self._master: subprocess.Popen[bytes] | None = None
        self._used: set[int] = set()
        self._free: int | None = None
        self._paths: dict[str, str] = {}

    def connect(self, patience: float) -> None:
        """Open the shared connection within `patience` seconds. Raises Infrastructure."""
        deadline = time.monotonic() + patience
        pause = 0.05
        while True:
            reason = self._open()
            if reason is None:
                return
            if time.monotonic() > deadline:
                raise Infrastructure(
                    f"no ssh to {self.name} ({self.at} port {self.port})"
                    f" within {patience:g} s: {reason}"
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 1.0)

    def _open(self) -> str | None:
        """Start the process that holds the shared connection; return why there is none, or None."""
        self.close()
        # After the authentication it takes commands, and then runs this one (ssh_config(5)).
        tell = ("-o", "PermitLocalCommand=yes", "-o", "LocalCommand=echo connected")
        with tempfile.TemporaryFile() as log:
            master = subprocess.Popen(
                [*self._ssh(), "-M", "-N", *tell, self.at],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=measured_environment(),
            )
            limit = threading.Timer(CONNECT_SECONDS + 2, master.kill)
            limit.start()
            assert master.stdout
            connected = master.stdout.readline()
            limit.cancel()
            if connected:
                self._master = master
                return None
            code = master.wait()
            log.seek(0)
            lines = log.read().decode(errors="replace").strip().splitlines()
            return lines[-1] if lines else f"ssh ended (exit {code}) and said nothing"

    def _order(self, *arguments: str) -> CommandResult:
        """Give an order to the process that holds the shared connection."""
        return LocalHost().run([*self._ssh(), "-O", *arguments, self.at], timeout=LINE_TIMEOUT)

    def close(self) -> None:
        """Close the shared connection."""
        if self._master is not None:
            self._master.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._master.wait(2)
            self._master = None

    def is_closed(self) -> bool:
        """Whether ssh gave the shared connection up; no process is started to find out."""
        return self._master is None or self._master.poll() is not None

    def alive(self) -> bool:
        """Whether the shared connection takes commands."""
        return not self.is_closed() and self._order("check").code == 0

    def _ssh(self) -> list[str]:
        return ["ssh", "-F", str(self._config), "-p", str(self.port)]

    def argv(self, line: str) -> list[str]:
        """Return the command that runs a line of shell on the peer."""
        return [*self._ssh(), self.at, line]

    def _shell(self, line: str, timeout: float, stdin: bytes | None = None) -> CommandResult:
        """Run a line of shell on the peer for at most `timeout` seconds.

        Raises Infrastructure if the connection broke.
        """
        command = self.argv(line)
        timed_out = False
        start = time.monotonic()
        try:
            # LocalHost would kill what holds the pipes after a timeout, which is the shared
            # connection: ssh hands it the pipes of each command
            done = subprocess.run(
                command,
                input=stdin,
                stdin=subprocess.DEVNULL if stdin is None else None,
                capture_output=True,
                timeout=timeout,
                env=measured_environment(),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            timed_out = True
            done = subprocess.CompletedProcess(
                command, -9, error.stdout or b"", error.stderr or b""
            )
        seconds = time.monotonic() - start
        printed = done.stderr.decode(errors="replace")
        if done.returncode == 255 and not self.alive():
            raise Infrastructure(
                f"ssh to {self.name} ({self.at}) broke: {printed.strip() or 'no reason given'}"
            )
        return CommandResult(
            command,
            exit_code(done.returncode),
            done.stdout.decode(errors="replace"),
            printed,
            seconds,
            timed_out=timed_out,
        )

    def _sh(self, line: str) -> str:
        return self._shell(line, LINE_TIMEOUT).stdout

    def clean(self) -> None:
        """Kill what an earlier lead left running."""
        self._sh(
            f'for f in {_PIDS}/*; do [ -f "$f" ] && kill -s KILL -- "-$(cat "$f")" 2>/dev/null;'
            ' rm -f "$f"; done; true'
        )

    def dismiss(self, code: int) -> None:
        """Tell the peer to end with that exit code."""
        # Rename the file, since the peer reads it as soon as it exists.
        with contextlib.suppress(Infrastructure, Failed):
            self._sh(f'cd "$PERFDAG_PEER" && echo {code} >told && mv told done')

    def signal(self, token: str, name: str) -> None:
        """Signal the process group of a command; SIGKILL also reaches what left the group."""
        with contextlib.suppress(Infrastructure, Failed):
            file = f'"{_PIDS}/{token}"'
            line = f'[ -f {file} ] && kill -s {name} -- "-$(cat {file})" 2>/dev/null'
            last = f"; rm -f {file}; kill -s KILL $({_STRAYS % token}) 2>/dev/null"
            self._sh(f"{line}{last if name == 'KILL' else ''}; true")

    def _line(
        self,
        argv: Argv,
        env: Mapping[str, str] | None,
        cwd: str | None,
        cpus: str | None,
        token: str,
    ) -> str:
        full = ["taskset", "-c", cpus, *argv] if cpus else list(argv)
        # sshd sets its own environment, so the command's environment is sent with it.
        ours = {
            name: os.environ[name]
            for name in ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "I_MPI_ROOT")
            if name in os.environ
        }
        environment = {"LC_ALL": "C.UTF-8", **ours, **(env or {}), _MARK: token}
        assignments = [f"{name}={value}" for name, value in environment.items()]
        command = shlex.join(["env", "-u", "PERFDAG_PEER", *assignments, *full])
        inside = f"cd {shlex.quote(cwd)} && {command}" if cwd else command
        # The shell stays as leader of the group. Ended by a signal it would exit with 255, which
        # is also ssh's own failure. After SIGTERM the file stays, as SIGKILL may have to follow to
        # what the command started.
        file = f'"{_PIDS}/{token}"'
        return (
            f'trap signalled=1 TERM; [ -d "{_PIDS}" ] || mkdir -p "{_PIDS}"; echo $$ >{file}; '
            f'{inside}; c=$?; [ "$signalled" ] || rm -f {file}; exit $c'
        )

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
        token = secrets.token_hex(8)
        result = self._shell(self._line(argv, env, cwd, cpus, token), timeout, stdin)
        if result.timed_out:
            self.signal(token, "KILL")
        elif result.code == 127 and "No such file or directory" in result.stderr:
            raise Failed(f"{argv[0]}: not found on {self.name}")
        return replace(result, argv=list(argv))

    def serve(
        self,
        argv: Argv,
        *,
        port: int | None = None,
        ready: float = 10.0,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        cpus: str | None = None,
    ) -> SshServer:
        # What `free_port` returned last was free a moment ago, and a look costs 15 ms.
        is_free = port == self._free
        self._free = None
        if port is not None and not is_free and port in self.used_ports():
            raise Failed(
                f"tcp port {port} is in use on {self.name}; end who listens there,"
                " or use another port"
            )
        token = secrets.token_hex(8)
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - closed when it ends
        popen = subprocess.Popen(
            self.argv(self._line(argv, env, cwd, cpus, token)),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=measured_environment(),
        )
        server = SshServer(self, list(argv), popen, token, out, err)
        if port is not None:
            server.await_listening(lambda: port in self.used_ports(port), f"tcp port {port}", ready)
        return server

    def used_ports(self, awaited: int | None = None) -> set[int]:
        """Return the TCP ports that the peer listens on; look for 0.1 s for an `awaited` one."""
        self._used = listening_ports(self._sh((_AWAIT % awaited if awaited else "") + _TABLES))
        return self._used

    def free_port(self) -> int:
        """Return a port of a Service, or a free one below the range for outgoing connections.

        The ports in use are those of the last look, and the next server does not look again.
        """
        if self.forwarding:
            return self.forwarding.port()
        used = self._used or self.used_ports()
        ports = iter(lambda: random.randint(10000, 32000), None)
        self._free = next(port for port in ports if port not in used)
        return self._free

    @contextlib.contextmanager
    def forwarded(self, port: int) -> Iterator[int]:
        own = LocalHost().free_port()
        forward = ("-o", "ClearAllForwardings=no", "-L", f"127.0.0.1:{own}:127.0.0.1:{port}")
        done = self._order("forward", *forward)
        if done.code != 0:
            raise Infrastructure(f"ssh to {self.name} forwards no port: {done.stderr.strip()}")
        try:
            yield own
        finally:
            self._order("cancel", *forward)

    def which(self, program: str) -> str | None:
        if program not in self._paths:
            result = self.run(["sh", "-c", 'command -v "$1"', "sh", program], timeout=15)
            if result.code != 0:
                return None
            self._paths[program] = result.stdout.strip()
        return self._paths[program]

    def facts(self) -> dict[str, Any]:
        result = self.run(["python3", "-m", "perfdag.hosts.facts"], timeout=30)
        facts: dict[str, Any] = orjson.loads(result.stdout) if result.code == 0 else {}
        return facts and {**facts, "gpus": gpus(self) if self.which("nvidia-smi") else []}
