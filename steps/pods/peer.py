"""A peer of a gang, an OpenSSH server for the lead, and the keys of both.

It ends when the lead dismisses it, or when the lead is silent for too long. The watchdog ends it
where its lead has ended.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from perfdag.benchmark.contract import Infrastructure
from perfdag.hosts.local import descendants, measured_environment
from perfdag.hosts.ssh import config_text
from perfdag.signals import end_once
from perfdag.steps.pods.context import EXIT_RETRYABLE, exit_retryable

SSHD = "/usr/sbin/sshd"
HOME = Path("/tmp/perfdag-ssh")
"""The folder of this uid for keys and sockets: short, as socket paths have 107 bytes."""


def make_keys(folder: Path) -> dict[str, str]:
    """Make two key pairs of a run in an empty folder, of the client and of the hosts.

    Return their files.
    """
    for name in ("id", "host"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "perfdag", "-f", name]
        subprocess.run(argv, cwd=folder, check=True)
    return {file.name: file.read_text() for file in folder.iterdir()}


def install_keys(folder: Path, home: Path, names: Sequence[str]) -> None:
    """Copy keys to a folder of this uid. Raises Infrastructure.

    OpenSSH refuses a private key that its owner's group may read.
    """
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in names:
        source = folder / name
        target = home / name
        if not source.is_file():
            raise Infrastructure(
                f"{source}: the key pair of the run is missing; "
                "did the plan step create its Secret?"
            )
        target.touch(0o600)
        target.write_bytes(source.read_bytes())


def client_config(folder: Path, home: Path) -> Path:
    """Write the ssh_config of a lead with its keys and return it. Raises Infrastructure."""
    install_keys(folder, home, ("id", "host.pub"))
    known_hosts = home / "known_hosts"
    known_hosts.write_text(f"* {(home / 'host.pub').read_text()}")
    config = home / "ssh_config"
    # a socket's path may have 107 bytes, and ssh adds 57 of its own
    sockets = Path(tempfile.mkdtemp(prefix="pd-", dir="/tmp"))
    config.write_text(config_text(home / "id", known_hosts, sockets))
    return config


def _server_config(home: Path, addresses: Sequence[str], port: int) -> str:
    listen = (f"ListenAddress {address}" for address in addresses)
    return f"""Port {port}
{os.linesep.join(listen)}
HostKey {home}/host
AuthorizedKeysFile {home}/id.pub
StrictModes no
UsePAM no
PidFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
AllowTcpForwarding local
PermitOpen 127.0.0.1:*
AllowAgentForwarding no
AllowStreamLocalForwarding no
X11Forwarding no
PermitTunnel no
PrintMotd no
UseDNS no
MaxSessions 1000
MaxStartups 1000
ClientAliveInterval 5
ClientAliveCountMax 4
LogLevel ERROR
SetEnv PERFDAG_PEER={home}
"""


def serve(
    folder: Path,
    home: Path,
    addresses: Sequence[str],
    port: int,
    pending_limit: float,
    lost_limit: float = 30.0,
) -> int:
    """Run sshd at `addresses` until the lead dismisses this peer, and return the exit code.

    `folder` has the keys. The code is EXIT_RETRYABLE if no lead connects for `pending_limit` s, or
    if the lead is silent for `lost_limit` s. Raises Infrastructure if sshd does not start.
    """
    if shutil.which(SSHD) is None:
        raise Infrastructure(f"{SSHD} is not in this image; install openssh-server in it")
    install_keys(folder, home, ("host", "id.pub"))
    done = home / "done"
    done.unlink(missing_ok=True)
    config = home / "sshd_config"
    config.write_text(_server_config(home, addresses, port))
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(parents=True, exist_ok=True, mode=0o755)
    end_once(exit_retryable)
    sshd = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], env=measured_environment())
    last_contact = time.monotonic()
    limit = pending_limit
    try:
        while not done.exists():
            if sshd.poll() is not None:
                raise Infrastructure(
                    f"sshd ended (exit {sshd.returncode}); its reason is above. Is its port taken?"
                )
            if descendants(sshd.pid):
                last_contact = time.monotonic()
                limit = lost_limit
            elif time.monotonic() - last_contact > limit:
                return EXIT_RETRYABLE
            time.sleep(0.2)
        return int(done.read_text())
    finally:
        sessions = descendants(sshd.pid)
        sshd.terminate()
        for pid in sessions:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, 9)
        sshd.wait()
