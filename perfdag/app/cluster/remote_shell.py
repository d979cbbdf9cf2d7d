"""The remote shell of an MPI launcher in the lead's pod of a gang."""

import os
from collections.abc import Mapping, Sequence
from typing import NoReturn

from perfdag.commands.options import CommandError

SSH_PORT = "2222"
"""Port of a peer that the environment does not list."""


def run_on_peer(argv: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by a command on a host: `argv` has options, the host and the command.

    Launchers pass options of ssh (-x, -q, -l USER). They are dropped: the lead's ssh configuration
    has its own. The command is joined, not quoted, as rsh does it. Raises CommandError.
    """
    config = environment.get("PERFDAG_SSH_CONFIG")
    if not config:
        raise CommandError(
            "`rsh` runs only in the lead's pod of a gang (PERFDAG_SSH_CONFIG is not set)"
        )
    rest = list(argv)
    while rest and rest[0].startswith("-"):
        rest = rest[2:] if rest[0] == "-l" else rest[1:]
    if len(rest) < 2:
        raise CommandError("`rsh` needs a host and a command")
    host, *command = rest
    if host in (*environment.get("PERFDAG_IPS", "").split(","), "localhost", "127.0.0.1"):
        os.execvp("sh", ["sh", "-c", " ".join(command)])
    # Hosts that share an address (a host network) are one host to MPI: the first port serves.
    peers = [item.split("=") for item in environment.get("PERFDAG_SSH_PORTS", "").split()]
    at, port = next((ssh for address, *ssh in peers if address == host), (host, SSH_PORT))
    os.execvp("ssh", ["ssh", "-F", config, "-p", port, at, *command])
