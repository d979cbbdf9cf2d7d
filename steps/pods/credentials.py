"""The credentials of a measuring pod: the token, the store's keys and the SSH keys of the run.

A measured command has the uid of the process that starts it, so it could read any file or variable
of the container. So no Secret is mounted there: an init container copies files, and the step reads
them into memory and deletes them.
"""

import contextlib
import os
import pwd
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from perfdag.hosts.local import hidden
from perfdag.hosts.ssh import config_text
from perfdag.kube import config as kube_config
from perfdag.kube.config import SERVICE_ACCOUNT
from perfdag.redaction import register

OF_LEAD, OF_PEER = ("id", "ca.pub"), ("host", "host-cert.pub", "id.pub")
"""Files of a lead: the client's private key. Files of a peer: what its server needs.

The init container makes the peer's own host key. The key `ca` of the run signs it for the addresses
of the pod, and stays in the init container."""
USERS = Path("/var/lib/extrausers/passwd")
"""Further users by libnss-extrausers, which ignores uids below 500."""
GROUP = 100
"""The group `users`. The library ignores entries with another group below 500."""
_STAY = ("ca.crt", "namespace", *OF_LEAD, *OF_PEER)


HOME = Path("/tmp/perfdag-ssh")
"""The folder of this uid for keys and sockets: short, as socket paths have 107 bytes."""


class PeerError(Exception):
    """The peer cannot serve. The message says what is wrong and what to do."""


def install_keys(folder: Path, home: Path, names: Sequence[str]) -> None:
    """Copy keys to a folder of this uid. Raises PeerError.

    OpenSSH refuses a private key that its owner's group may read.
    """
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in names:
        source, target = folder / name, home / name
        if not source.is_file():
            raise PeerError(
                f"{source}: the key pair of the run is missing; "
                "did the plan step create its Secret?"
            )
        target.unlink(missing_ok=True)
        target.touch(0o600)
        target.write_bytes(source.read_bytes())


def make_keys(folder: Path) -> dict[str, str]:
    """Return the files of two key pairs: of the client, and of who signs host keys.

    Raises PeerError.
    """
    texts: dict[str, str] = {}
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in ("id", "ca"):
        path = folder / name
        path.unlink(missing_ok=True)
        keygen = subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "perfdag", "-f", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        if keygen.returncode != 0:
            raise PeerError(f"ssh-keygen: {keygen.stderr.strip()}")
        texts |= {name: path.read_text(), f"{name}.pub": path.with_name(f"{name}.pub").read_text()}
    return texts


def ensure_user() -> str:
    """Return the name of this uid, and add an entry to USERS if it has none. Raises PeerError.

    OpenSSH refuses a uid without an entry, which a cluster may choose at random. /etc/passwd is
    root's.
    """
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(os.getuid()).pw_name
    name, home = f"u{os.getuid()}", os.environ.get("HOME", "/tmp")
    try:
        with USERS.open("a") as file:
            file.write(f"{name}:x:{os.getuid()}:{GROUP}::{home}:/bin/sh\n")
    except OSError as error:
        raise PeerError(
            f"uid {os.getuid()} has no passwd entry and none can be added ({error.strerror}); "
            "run as uid 1000"
        ) from None
    return name


def client_config(folder: Path, home: Path) -> Path:
    """Write the ssh_config of a lead with its keys and return it. Raises PeerError."""
    install_keys(folder, home, OF_LEAD)
    known_hosts = home / "known_hosts"
    known_hosts.write_text(f"@cert-authority * {(home / 'ca.pub').read_text()}")
    config = home / "ssh_config"
    # a socket's path may have 107 bytes, and ssh adds 57 of its own
    sockets = Path(tempfile.mkdtemp(prefix="pd-", dir="/tmp"))
    config.write_text(config_text(home / "id", known_hosts, sockets, ensure_user()))
    return config


def take_credentials(folder: Path = SERVICE_ACCOUNT) -> None:
    """Read the token and the store's credentials, and delete their files.

    The names of the store's files are variables of the environment. SSH reads its keys from files,
    so these stay.
    """
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        if file.name in _STAY or not file.is_file():
            continue
        text = file.read_text()
        if file.name == "token":
            kube_config.pod_token = text.strip()
            register([text.strip()])
        else:
            os.environ[file.name] = text
            hidden.add(file.name)
            if not file.name.startswith("AWS_"):  # a region or an address is no secret
                register([text])
        file.unlink()
