"""A peer of a gang: an OpenSSH server for the lead.

It ends when the lead dismisses it, or when the lead is silent for too long. The watchdog ends the
peers of a lead that failed.
"""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from perfdag.hosts.local import descendants, measured_environment
from perfdag.signals import end_once
from perfdag.steps.pods.context import EXIT_RETRYABLE, exit_retryable
from perfdag.steps.pods.credentials import OF_PEER, PeerError, ensure_user, install_keys

LOST_SECONDS = 30.0
SSHD = "/usr/sbin/sshd"


def _server_config(home: Path, addresses: Sequence[str], port: int) -> str:
    listen = "\n".join(f"ListenAddress {address}" for address in addresses)
    return f"""Port {port}
{listen}
HostKey {home}/host
HostCertificate {home}/host-cert.pub
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
    lost_limit: float = LOST_SECONDS,
) -> int:
    """Run sshd at `addresses` until the lead dismisses this peer, and return the exit code.

    `folder` has the keys. The code is EXIT_RETRYABLE if no lead connects for `pending_limit` s, or
    if the lead is silent for `lost_limit` s. Raises PeerError if sshd does not start.
    """
    if shutil.which(SSHD) is None:
        raise PeerError(f"{SSHD} is not in this image; install openssh-server in it")
    install_keys(folder, home, OF_PEER)
    ensure_user()
    done = home / "done"
    done.unlink(missing_ok=True)
    config = home / "sshd_config"
    config.write_text(_server_config(home, addresses, port))
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(parents=True, exist_ok=True, mode=0o755)
    end_once(exit_retryable)
    sshd = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], env=measured_environment())
    last_contact, limit = time.monotonic(), pending_limit
    try:
        while not done.exists():
            if sshd.poll() is not None:
                raise PeerError(
                    f"sshd ended (exit {sshd.returncode}); its reason is above. Is its port taken?"
                )
            if descendants(sshd.pid):
                last_contact, limit = time.monotonic(), lost_limit
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
