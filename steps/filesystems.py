"""File systems of hosts: what holds a path there."""

import json
from typing import Any

from perfdag import facts
from perfdag.hosts import Host, LocalHost


def filesystem(host: Host, path: str) -> dict[str, Any]:
    """As facts.filesystem, of a path on that host. Raises Failed."""
    if isinstance(host, LocalHost):
        return facts.filesystem(path)
    asked = host.run(["python3", "-m", "perfdag.facts", "--filesystem", path], timeout=30)
    found: dict[str, Any] = json.loads(asked.check(f"asking {host.name} what holds {path}").stdout)
    return found
