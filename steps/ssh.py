"""A Host that is a peer pod, reached through its OpenSSH server: one connection a peer, shared by all commands.

Every remote command leads a process group whose id it leaves in a file, so that the lead can end it: a local timeout alone would
leave it running.
"""

import contextlib
import random
import secrets
import shlex
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from perfdag.benchmark import Failed, Infrastructure
from perfdag.hosts import Argv, Finished
from perfdag.processes import Proto, listening_ports
from perfdag.steps.ssh_connection import Connection, exit_code

_TABLES = "cat /proc/net/{proto} /proc/net/{proto}6 2>/dev/null; true"
_PIDS = "${PERFDAG_PEER:-/tmp}/pids"


class SshServer:
    """A server on a peer (see perfdag.hosts.Server)."""

    def __init__(
        self,
        host: "SshHost",
        argv: list[str],
        popen: "subprocess.Popen[bytes]",
        token: str,
        out: Any,
        err: Any,
    ) -> None:
        self.argv = argv
        self._host, self._popen, self._token, self._out, self._err = host, popen, token, out, err
        self._start = time.monotonic()
        self._finished: Finished | None = None

    def __enter__(self) -> "SshServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def alive(self) -> bool:
        """Whether its ssh session still runs."""
        return self._popen.poll() is None

    def stop(self, grace: float = 2.0) -> Finished:
        """End it: SIGTERM to its group, after `grace` seconds SIGKILL; returns what it said."""
        if self._finished is None:
            timed_out = False
            if self.alive():
                self._host.signal(self._token, "TERM")
                try:
                    self._popen.wait(grace)
                except subprocess.TimeoutExpired:
                    timed_out = True
            self._host.signal(self._token, "KILL")
            self._finish(timed_out)
        assert self._finished is not None
        return self._finished

    def wait(self, timeout: float, grace: float = 2.0) -> Finished:
        """Wait up to `timeout` seconds for it to end by itself, then stop it with that `grace`."""
        try:
            self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            return self.stop(grace)
        return self.stop(0)

    def _finish(self, timed_out: bool) -> None:
        try:
            self._popen.wait(5)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        texts = []
        for stream in (self._out, self._err):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
            stream.close()
        code = -9 if timed_out else exit_code(self._popen.returncode)
        self._finished = Finished(
            self.argv, code, texts[0], texts[1], time.monotonic() - self._start, timed_out
        )


class SshHost:
    """A peer at `address`, where sshd listens on `port`; `name` is its node. `config`: see Connection."""

    def __init__(
        self, address: str, name: str, config: Path, port: int = 2222, measured: str | None = None
    ) -> None:
        self._connection = Connection(address, name, config, port)
        self._measured = measured or address

    @property
    def name(self) -> str:
        """Its node's name."""
        return self._connection.name

    @property
    def address(self) -> str:
        """Its address on the measured network."""
        return self._measured

    @property
    def at(self) -> str:
        """The address where its sshd is reached."""
        return self._connection.address

    @property
    def port(self) -> int:
        """The port of its sshd."""
        return self._connection.port

    def measure(self, address: str) -> None:
        """Measure over another address than the one ssh uses."""
        self._measured = address

    def connect(self, patience: float) -> None:
        """Open the shared connection, trying for `patience` seconds. Raises Infrastructure with ssh's reason."""
        self._connection.connect(patience)

    def close(self) -> None:
        """Close the shared connection."""
        self._connection.close()

    def alive(self) -> bool:
        """Whether the shared connection stands."""
        return self._connection.alive()

    def clean(self) -> None:
        """Kill what an earlier lead left running."""
        self._sh(
            f'for f in {_PIDS}/*; do [ -f "$f" ] && kill -KILL -- "-$(cat "$f")" 2>/dev/null; rm -f "$f"; done; true',
            10,
        )

    def dismiss(self, code: int) -> None:
        """Tell the peer to end with that exit code."""
        with contextlib.suppress(
            Infrastructure, Failed
        ):  # renamed, since the peer reads it as soon as it is there
            self._sh(f'cd "$PERFDAG_PEER" && echo {code} >told && mv told done', 10)

    def ask(self, order: str, timeout: float) -> str:
        """Give the program that serves this peer an order and wait up to `timeout` seconds for its answer. Raises Infrastructure."""
        line = f'echo {shlex.quote(order)} >"$PERFDAG_PEER/orders" && cat "$PERFDAG_PEER/answers"'
        said = self._connection.run(line, timeout)
        if said.timed_out or said.code != 0:
            raise Infrastructure(
                f"{self.name} ({self.at}) gave no answer within {timeout:g} s: {said.tail()}"
            )
        return said.stdout.strip()

    def signal(self, token: str, name: str) -> None:
        """Signal the group of a command started here; one that ended already is fine."""
        with contextlib.suppress(Infrastructure, Failed):
            file = f'"{_PIDS}/{token}"'
            self._sh(f'[ -f {file} ] && kill -{name} -- "-$(cat {file})" 2>/dev/null; true', 10)

    def _line(
        self,
        argv: Argv,
        env: Mapping[str, str] | None,
        cwd: str | None,
        cpus: str | None,
        token: str,
    ) -> str:
        import os

        full = ["taskset", "-c", cpus, *argv] if cpus else list(argv)
        # sshd brings an environment of its own: what a command needs is sent with it
        ours = {
            name: os.environ[name]
            for name in ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "I_MPI_ROOT")
            if name in os.environ
        }
        environment = {"LC_ALL": "C.UTF-8", **ours, **(env or {})}
        words = shlex.join(
            ["env", *(f"{name}={value}" for name, value in environment.items()), *full]
        )
        inside = f"cd {shlex.quote(cwd)} && {words}" if cwd else words
        # the shell stays, as leader of the group: an exit by signal would reach us as 255, which is ssh's own failure
        file = f'"{_PIDS}/{token}"'
        return f'trap : TERM; mkdir -p "{_PIDS}"; echo $$ >{file}; {inside}; c=$?; rm -f {file}; exit $c'

    def _sh(self, line: str, timeout: float) -> str:
        return self._connection.run(line, timeout).stdout

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
        """Run to the end; on timeout (seconds) its group on the peer is killed.

        Raises Infrastructure where ssh broke, Failed where it is not found.
        """
        token = secrets.token_hex(8)
        said = self._connection.run(self._line(argv, env, cwd, cpus, token), timeout, stdin)
        if said.timed_out:
            self.signal(token, "KILL")
        elif said.code == 127 and "No such file or directory" in said.stderr:
            raise Failed(f"{argv[0]}: not found on {self.name}")
        return Finished(
            list(argv), said.code, said.stdout, said.stderr, said.seconds, said.timed_out
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
    ) -> SshServer:
        """Start a server and wait up to `ready` seconds until `port` is in the peer's socket table. Raises Failed, Infrastructure."""
        if port is not None and port in self._ports(proto):
            raise Failed(
                f"{proto} port {port} is in use on {self.name}; end who listens there, or use another port"
            )
        token = secrets.token_hex(8)
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - closed when it ends
        command = self._connection.argv(self._line(argv, env, cwd, cpus, token))
        popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        server = SshServer(self, list(argv), popen, token, out, err)
        try:
            if port is not None:
                self._await_listening(server, port, proto, ready)
        except BaseException:
            server.stop(0)
            raise
        return server

    def _await_listening(self, server: SshServer, port: int, proto: Proto, ready: float) -> None:
        deadline = time.monotonic() + ready
        pause = 0.002
        while True:
            somebody = port in self._ports(proto)
            if (
                not server.alive()
            ):  # asked after the table: who listens may be another, who was faster
                finished = server.stop(0)
                if finished.code == 255 and not self.alive():
                    raise Infrastructure(f"ssh to {self.name} broke: {finished.tail()}")
                raise Failed(
                    f"{server.argv[0]} ended (exit {finished.code}) before it listened on {proto} port {port}: {finished.tail()}"
                )
            if somebody:
                return
            if time.monotonic() > deadline:
                raise Failed(
                    f"{server.argv[0]} did not listen on {proto} port {port} within {ready:g} s: {server.stop(0).tail()}"
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)

    def _ports(self, proto: Proto) -> set[int]:
        return listening_ports(self._sh(_TABLES.format(proto=proto), 10), proto)

    def free_port(self, proto: Proto = "tcp") -> int:
        """A port nobody listens on now, below the kernel's range for outgoing connections."""
        taken = self._ports(proto)
        return next(
            port for port in iter(lambda: random.randint(10000, 32000), None) if port not in taken
        )

    def which(self, program: str) -> str | None:
        """Path of a program on the peer, or None."""
        said = self.run(["sh", "-c", 'command -v "$1"', "sh", program], timeout=15)
        return said.stdout.strip() or None if said.code == 0 else None

    def put(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a file, making its folder. Raises Failed."""
        script = 'mkdir -p "$(dirname "$1")" && cat >"$1" && chmod "$2" "$1"'
        self.run(["sh", "-c", script, "sh", path, f"{mode:o}"], timeout=120, stdin=data).check(
            f"writing {path} on {self.name}"
        )

    def get(self, path: str) -> bytes:
        """Read a file. Raises Failed where it is not there."""
        said = self.run(["base64", "-w0", path], timeout=120)
        if said.code != 0:
            raise Failed(f"{path} on {self.name}: {said.tail()}")
        import base64

        return base64.b64decode(said.stdout)

    def remove(self, path: str) -> None:
        """Remove a file or a folder with all in it; absent is fine."""
        self.run(["rm", "-rf", "--", path], timeout=60)

    def facts(self) -> dict[str, Any]:
        """Provenance of the peer."""
        said = self.run(["python3", "-m", "perfdag.facts"], timeout=30)
        facts: dict[str, Any] = orjson.loads(said.stdout) if said.code == 0 else {}
        return facts
