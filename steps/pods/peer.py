"""A peer of a gang: an OpenSSH server for the lead.

It ends when the lead dismisses it, when the lead is silent for too long, or when the lead has
ended: Argo creates a peer that was deleted again in the same attempt.
"""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from perfdag.hosts.local import descendants, measured_environment
from perfdag.kube.client import Kube, KubeError, run_with_client
from perfdag.kube.patch import RANK
from perfdag.kube.pods import read_pod, selector
from perfdag.signals import end_once
from perfdag.steps.pods.context import EXIT_RETRYABLE, PodContext, exit_retryable
from perfdag.steps.pods.credentials import OF_PEER, PeerError, ensure_user, install_keys

LOST_SECONDS = 30.0
ASK_SECONDS = 5.0
SSHD = "/usr/sbin/sshd"


class LeadWatch:
    """Watches the pod of the lead of one attempt at a batch."""

    def __init__(self, context: PodContext, batch: int, attempt: int) -> None:
        self._namespace, self._seen = context.namespace, 0.0
        own = selector(context.run_id, context.workflow, batch, attempt)
        self._labels = f"{own},{RANK}=0"

    def exit_code(self) -> int | None:
        """Return what a peer ends with since its lead has ended: 0 or EXIT_RETRYABLE.

        None: the lead runs or was not created, or the API server does not answer. A lead that was
        deleted has ended, unless Argo creates its pod again, as it does with one that never ran.
        """

        async def phases_of_lead(kube: Kube) -> set[str]:
            kind = await kube.resource("v1", "Pod")
            pods = await kube.list(kind, self._namespace, labels=self._labels)
            return {read_pod(pod).phase for pod in pods}

        try:
            phases = run_with_client(phases_of_lead, retries=0)
        except KubeError:
            return None
        now = time.monotonic()
        if phases:
            self._seen = now
            return 0 if "Succeeded" in phases else EXIT_RETRYABLE if "Failed" in phases else None
        return EXIT_RETRYABLE if self._seen and now - self._seen > LOST_SECONDS else None


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
    lead_exit_code: Callable[[], int | None] = lambda: None,
) -> int:
    """Run sshd at `addresses` until the lead dismisses this peer, and return the exit code.

    `folder` has the keys. The code is EXIT_RETRYABLE if no lead connects for `pending_limit` s, or
    if the lead is silent for `lost_limit` s. While no lead is connected, `lead_exit_code` is called
    every few seconds; a code that is not None ends the peer. Raises PeerError if sshd does not
    start.
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
    last_contact, last_question, limit = time.monotonic(), 0.0, pending_limit
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
            elif time.monotonic() - last_question > ASK_SECONDS:
                last_question = time.monotonic()
                if (code := lead_exit_code()) is not None:
                    return code
            time.sleep(0.2)
        return int(done.read_text())
    finally:
        sessions = descendants(sshd.pid)
        sshd.terminate()
        for pid in sessions:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, 9)
        sshd.wait()
