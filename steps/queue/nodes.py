"""What a client's statistics say by node and device: who did the work, and where it failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from perfdag.steps.queue.steady import Stats


def subject(node: str, device: str) -> str:
    """The subject of a row: a node, or one device of it."""
    return f"{node}/{device}" if device else node


def failed(nodes: Mapping[str, Any]) -> dict[str, int]:
    """Failed requests by subject, most first. One that reached no backend is of no node, and only counted by its cause."""
    found = {
        subject(name, device): count
        for name, node in nodes.items()
        for device, count in node["failed_devices"].items()
    }
    return dict(sorted(found.items(), key=lambda pair: (-pair[1], pair[0])))


def blame(stats: Stats) -> str:
    """What the backends said most often, and the devices that fail more than the rest."""
    errors: Counter[str] = Counter()
    for node in stats["nodes"].values():
        errors.update(node["errors"])
    said = f": {errors.most_common(1)[0][0]}" if errors else ""
    return said + (f"; most on {' and '.join(stats['suspects'])}" if stats["suspects"] else "")


def pods(stats: Stats) -> int:
    """Backends that did any work."""
    return sum(len(node["pods"]) for node in stats["nodes"].values())


def spread(stats: Stats) -> dict[str, Any]:
    """Items done and failed by node, and by its devices."""
    return {
        name: {
            "success": node["success"],
            "failure": node["failure"],
            "devices": node["devices"],
            "failed_devices": node["failed_devices"],
            "pods": len(node["pods"]),
        }
        for name, node in sorted(stats["nodes"].items())
    }
