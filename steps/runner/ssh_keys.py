"""The SSH key pair of a run, and the configuration of the client that uses it."""

import contextlib
import os
import pwd
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from perfdag.hosts.ssh_connection import ALIAS, config_text
from perfdag.steps.runner.pod_context import KEYS, scratch_home


class PeerError(Exception):
    """The peer cannot serve. The message says what is wrong and what to do."""


@dataclass(frozen=True)
class Keys:
    """The folder of the run's keys: private keys `id` and `host`, each with its .pub file."""

    folder: Path

    def install(self, home: Path) -> None:
        """Copy the keys to a folder of this uid. Raises PeerError.

        OpenSSH refuses a private key that its owner's group may read.
        """
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in ("id", "host", "id.pub", "host.pub"):
            source = self.folder / name
            if not source.is_file():
                raise PeerError(
                    f"{source}: the key pair of the run is missing; "
                    "did the plan step create its Secret?"
                )
            target = home / name
            target.unlink(missing_ok=True)
            target.touch(0o600)
            target.write_bytes(source.read_bytes())


def make_keys(folder: Path) -> dict[str, str]:
    """Return a key pair and a host key, by file name. Raises PeerError if ssh-keygen fails."""
    texts: dict[str, str] = {}
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in ("id", "host"):
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
    """Return the name of this uid, and add a passwd entry if it has none. Raises PeerError.

    OpenSSH refuses a uid without an entry, which a cluster may choose at random.
    """
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(os.getuid()).pw_name
    name, home = f"u{os.getuid()}", os.environ.get("HOME", "/tmp")
    try:
        with Path("/etc/passwd").open("a") as file:
            file.write(f"{name}:x:{os.getuid()}:{os.getgid()}::{home}:/bin/sh\n")
    except OSError as error:
        raise PeerError(
            f"uid {os.getuid()} has no passwd entry and none can be added ({error.strerror}); "
            "run as uid 1000"
        ) from None
    return name


def client_config(keys: Keys, home: Path) -> Path:
    """Write the lead's ssh_config below `home` and return it. Raises PeerError."""
    keys.install(home)
    known_hosts = home / "known_hosts"
    known_hosts.write_text(f"{ALIAS} {(home / 'host.pub').read_text()}")
    config = home / "ssh_config"
    # a socket's path may have 107 bytes, and ssh adds 57 of its own
    sockets = Path(tempfile.mkdtemp(prefix="pd-", dir="/tmp"))
    config.write_text(config_text(home / "id", known_hosts, sockets, ensure_user()))
    return config


def lead_config() -> Path:
    """Write the ssh_config of this pod as a lead and return it. Raises PeerError."""
    return client_config(Keys(KEYS), scratch_home() / "lead")
