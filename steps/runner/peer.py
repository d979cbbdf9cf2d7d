"""A peer of a gang: an OpenSSH server for the lead, until the lead lets it go or is heard no more."""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from perfdag.hosts.processes import descendants
from perfdag.hosts.ssh_connection import ALIAS, config_text
from perfdag.kube.client import Kube, KubeError, run_with_client
from perfdag.kube.pods import RANK, read_pod, selector
from perfdag.signals import end_once
from perfdag.steps.runner.pod_context import PodContext

RETRYABLE = 75  # EX_TEMPFAIL: the gang may be tried again
REFUSED = 77  # EX_NOPERM: another attempt would be refused too
LOST_SECONDS = 30.0
ASK_SECONDS = 5.0
SSHD = "/usr/sbin/sshd"


def lead_ended(here: PodContext, batch: int, attempt: int) -> int | None:
    """What a peer of that gang ends with once the pod of rank 0 has ended: 0 where it measured all, else RETRYABLE. None: it has not, or the
    API server does not say.
    """

    async def phases(kube: Kube) -> set[str]:
        wanted = f"{selector(here.run_id, here.workflow, batch, attempt)},{RANK}=0"
        listed = await kube.list(await kube.resource("v1", "Pod"), here.namespace, labels=wanted)
        return {read_pod(each).phase for each in listed}

    try:
        found = run_with_client(phases, retries=0)
    except KubeError:
        return None
    return 0 if "Succeeded" in found else RETRYABLE if "Failed" in found else None


class PeerError(Exception):
    """The peer cannot serve: what is wrong and what to do."""


@dataclass(frozen=True)
class Keys:
    """Where the run's key pair lies: `id` and `host` are private keys, each with its .pub beside it."""

    folder: Path

    def install(self, home: Path) -> None:
        """Copy them to a folder of our own: OpenSSH refuses a private key that its owner's group may read. Raises PeerError."""
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in ("id", "host", "id.pub", "host.pub"):
            source = self.folder / name
            if not source.is_file():
                raise PeerError(
                    f"{source}: the run's key pair is not there; did the plan step make its Secret?"
                )
            target = home / name
            target.unlink(missing_ok=True)
            target.touch(0o600)
            target.write_bytes(source.read_bytes())


def make_keys(folder: Path) -> dict[str, str]:
    """A key pair of the run and a host key for its peers, by file name. Raises PeerError where ssh-keygen fails."""
    made: dict[str, str] = {}
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in ("id", "host"):
        path = folder / name
        path.unlink(missing_ok=True)
        said = subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "perfdag", "-f", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        if said.returncode != 0:
            raise PeerError(f"ssh-keygen: {said.stderr.strip()}")
        made |= {name: path.read_text(), f"{name}.pub": path.with_name(f"{name}.pub").read_text()}
    return made


def user() -> str:
    """This uid's name, giving an arbitrary uid a passwd entry first: OpenSSH works for nobody without one. Raises PeerError."""
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(os.getuid()).pw_name
    name = f"u{os.getuid()}"
    try:
        with Path("/etc/passwd").open("a") as file:
            file.write(
                f"{name}:x:{os.getuid()}:{os.getgid()}::{os.environ.get('HOME', '/tmp')}:/bin/sh\n"
            )
    except OSError as error:
        raise PeerError(
            f"uid {os.getuid()} has no passwd entry and none can be added ({error.strerror}); run as uid 1000"
        ) from None
    return name


def client_config(keys: Keys, home: Path) -> Path:
    """Write the lead's ssh_config below `home` and return it. Raises PeerError."""
    keys.install(home)
    known = home / "known_hosts"
    known.write_text(f"{ALIAS} {(home / 'host.pub').read_text()}")
    config = home / "ssh_config"
    # a socket's path may have 107 bytes, and ssh adds 57 of its own
    sockets = Path(tempfile.mkdtemp(prefix="pd-", dir="/tmp"))
    config.write_text(config_text(home / "id", known, sockets, user()))
    return config


def _server_config(home: Path, port: int) -> str:
    return f"""Port {port}
HostKey {home}/host
AuthorizedKeysFile {home}/id.pub
StrictModes no
UsePAM no
PidFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
AllowTcpForwarding no
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
    keys: Keys,
    home: Path,
    port: int,
    pending_limit: float,
    lost_limit: float = LOST_SECONDS,
    ended: Callable[[], int | None] = lambda: None,
) -> int:
    """Run sshd until the lead dismisses this peer, with the code it says, or RETRYABLE: none spoke for `pending_limit` s, or it was silent
    for `lost_limit` s.

    `ended` is asked now and then while no lead is connected: what this peer ends with since its lead has ended and nobody will come, or
    None. Raises PeerError where sshd cannot start.
    """
    if shutil.which(SSHD) is None:
        raise PeerError(f"{SSHD} is not in this image; install openssh-server in it")
    keys.install(home)
    user()
    done = home / "done"
    done.unlink(missing_ok=True)
    config = home / "sshd_config"
    config.write_text(_server_config(home, port))
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(parents=True, exist_ok=True, mode=0o755)
    end_once(stop)
    sshd = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)])
    try:
        return _until_dismissed(sshd, done, pending_limit, lost_limit, ended)
    finally:
        left = descendants(sshd.pid)
        sshd.terminate()
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, 9)
        sshd.wait()


def stop(number: int, frame: FrameType | None) -> None:
    """End in order on a signal, to be tried again."""
    raise SystemExit(RETRYABLE)


def _until_dismissed(
    sshd: "subprocess.Popen[bytes]",
    done: Path,
    pending_limit: float,
    lost_limit: float,
    ended: Callable[[], int | None],
) -> int:
    heard, spoke, asked = time.monotonic(), False, 0.0
    while not done.exists():
        if sshd.poll() is not None:
            raise PeerError(
                f"sshd ended (exit {sshd.returncode}); its reason is above. Is its port taken?"
            )
        now = time.monotonic()
        if descendants(sshd.pid):
            heard, spoke = now, True
        elif now - heard > (lost_limit if spoke else pending_limit):
            return RETRYABLE
        elif now - asked > ASK_SECONDS:
            asked = now
            if (code := ended()) is not None:
                return code
        time.sleep(0.2)
    return int(done.read_text())
