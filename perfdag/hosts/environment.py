"""The environment of measured processes, which holds no secret of perfdag."""

import os
from collections.abc import Mapping

_PREFIXES = ("AWS_", "PERFDAG_")
_REMOTE_SHELL = ("PERFDAG_SSH_CONFIG", "PERFDAG_SSH_PORTS", "PERFDAG_IPS")
"""Addresses and a path, without which an MPI launcher reaches no peer by `perfdag step rsh`."""
hidden: set[str] = set()
"""More variables that measured processes do not get, by name."""


def measured_environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a measured process: that of perfdag without its secrets.

    `variables` are added, or replace inherited ones.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name in _REMOTE_SHELL or not (name.startswith(_PREFIXES) or name in hidden)
    }
    # Tools print numbers and words by locale, and parsers read those of LC_ALL=C.UTF-8.
    return {**inherited, "LC_ALL": "C.UTF-8", **(variables or {})}
