"""One OpenSSH connection to a peer, shared by all commands and opened with retries.

A new connection costs about 200 ms, a command over the shared one about 10 ms.
"""

import contextlib
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Literal

from perfdag.hosts.base import CommandResult
from perfdag.hosts.environment import measured_environment
from perfdag.outcome import Infrastructure

CONNECT_SECONDS = 10


def config_text(identity: Path, known_hosts: Path, sockets: Path, user: str) -> str:
    """Return an ssh_config for all peers.

    It has the run's key, checked host certificates, and one connection a peer.
    """
    return f"""Host *
  User {user}
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


class Connection:
    """The connection to the sshd at `address`; `config` is a file of config_text()."""

    def __init__(self, address: str, name: str, config: Path, port: int) -> None:
        self.address, self.name, self.port = address, name, port
        self._config = config
        self._master: subprocess.Popen[bytes] | None = None

    def argv(self, line: str) -> list[str]:
        """Return the command that runs a line of shell on the peer."""
        return [*self._ssh(), self.address, line]

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
                    f"no ssh to {self.name} ({self.address} port {self.port})"
                    f" within {patience:g} s: {reason}"
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 1.0)

    def _open(self) -> str | None:
        self.close()
        resolved = subprocess.run(
            [*self._ssh(), "-G", self.address], capture_output=True, text=True, check=False
        )
        if resolved.returncode != 0:
            return resolved.stderr.strip()
        settings = dict(line.partition(" ")[::2] for line in resolved.stdout.splitlines())
        socket = Path(settings["controlpath"])
        with tempfile.TemporaryFile() as log:
            master = subprocess.Popen(
                [*self._ssh(), "-M", "-N", self.address],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=measured_environment(),
            )
            for _ in range(int(CONNECT_SECONDS / 0.02) + 100):
                if master.poll() is not None:
                    log.seek(0)
                    lines = log.read().decode(errors="replace").strip().splitlines()
                    return (
                        lines[-1]
                        if lines
                        else f"ssh ended (exit {master.returncode}) and said nothing"
                    )
                if socket.exists():  # ssh makes it after the authentication
                    self._master = master
                    return None
                time.sleep(0.02)
            master.kill()
            master.wait()
            return "no answer"

    def _order(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Give an order to the process that holds the shared connection."""
        return subprocess.run(
            [*self._ssh(), "-O", *arguments, self.address],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=measured_environment(),
            check=False,
        )

    def forward(self, order: Literal["forward", "cancel"], own: int, port: int) -> None:
        """Start or end the forwarding of a port of this machine to one of the peer.

        Both are ports of 127.0.0.1. Raises Infrastructure.
        """
        ports = f"127.0.0.1:{own}:127.0.0.1:{port}"
        done = self._order(order, "-o", "ClearAllForwardings=no", "-L", ports)
        if done.returncode != 0:
            raise Infrastructure(f"ssh to {self.name} forwards no port: {done.stderr.strip()}")

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
        return not self.is_closed() and self._order("check").returncode == 0

    def _ssh(self) -> list[str]:
        return ["ssh", "-F", str(self._config), "-p", str(self.port)]

    def run(self, line: str, timeout: float, stdin: bytes | None = None) -> CommandResult:
        """Run a line of shell on the peer for at most `timeout` seconds.

        Raises Infrastructure if the connection broke.
        """
        command = self.argv(line)
        start = time.monotonic()
        try:
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
            out, err = (
                (error.stdout or b"").decode(errors="replace"),
                (error.stderr or b"").decode(errors="replace"),
            )
            return CommandResult(command, -9, out, err, time.monotonic() - start, True)
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        if done.returncode == 255 and not self.alive():
            raise Infrastructure(
                f"ssh to {self.name} ({self.address}) broke: {err.strip() or 'no reason given'}"
            )
        return CommandResult(
            command, exit_code(done.returncode), out, err, time.monotonic() - start
        )


def exit_code(code: int) -> int:
    """Return the negative number of a signal for the shell's 128 + n, as local commands do."""
    return 128 - code if 128 < code <= 192 else code
