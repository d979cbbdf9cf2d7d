"""A client's statistics by node and device: completed and failed work."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from perfdag.steps.queue.validate.steady_state import Stats


def subject(node: str, device: str) -> str:
    """Return the subject of a row: a node, or one of its devices."""
    return f"{node}/{device}" if device else node


def failures_by_subject(nodes: Mapping[str, Any]) -> dict[str, int]:
    """Return failed requests by subject, most first.

    Requests that reached no backend have no subject.
    """
    counts = {
        subject(name, device): count
        for name, node in nodes.items()
        for device, count in node["failed_devices"].items()
    }
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def failure_hint(stats: Stats) -> str:
    """Return the most frequent error of backends and the suspect devices, as text."""
    errors: Counter[str] = Counter()
    for node in stats["nodes"].values():
        errors.update(node["errors"])
    hint = f": {errors.most_common(1)[0][0]}" if errors else ""
    return hint + (f"; most on {' and '.join(stats['suspects'])}" if stats["suspects"] else "")


def count_pods(stats: Stats) -> int:
    """Return the number of backends that completed an item."""
    return sum(len(node["pods"]) for node in stats["nodes"].values())


def work_by_node(stats: Stats) -> dict[str, Any]:
    """Return completed and failed items by node and device."""
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
