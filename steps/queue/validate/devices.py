"""The devices of a step: seconds of an item on each, their use, and which of them limits it."""

import statistics
from collections.abc import Mapping
from typing import Any

from perfdag.hosts.device_use import DeviceUse

SATURATED = 0.95
"""Utilisation from which a device counts as saturated."""
SLOW = 1.25
"""Seconds of an item, relative to the other devices or to the step before, that are named."""


def subject(node: str, device: str) -> str:
    """Return the subject of a row: a node, or one of its devices."""
    return f"{node}/{device}" if device else node


def item_seconds(nodes: Mapping[str, Any]) -> dict[str, float]:
    """Return the mean seconds of an item by subject. Clients of older versions have none."""
    return {
        subject(name, device): seconds / node["devices"][device]
        for name, node in sorted(nodes.items())
        for device, seconds in node.get("run_seconds", {}).items()
        if node["devices"].get(device)
    }


def limits(
    items: Mapping[str, float], before: Mapping[str, float], uses: Mapping[str, DeviceUse]
) -> str:
    """Name the devices that limit a step: saturated, slower than others, or than before.

    `items` and `before`: seconds of an item by subject, in the step and in the one before.
    Return "" if no device stands out.
    """
    texts = [
        f"{name} is saturated ({100 * use.utilisation:.0f} % busy)"
        for name, use in uses.items()
        if use.utilisation is not None and use.utilisation >= SATURATED
    ]
    for name, seconds in items.items():
        others = [other for key, other in items.items() if key != name]
        if others and seconds > SLOW * (usual := statistics.median(others)):
            texts.append(
                f"{name} is slow (an item takes {seconds:.3g} s, on the others {usual:.3g} s)"
            )
    if not texts:
        texts = [
            f"an item takes {seconds / before[name]:.2f} times as long on {name} as in the step "
            "before"
            for name, seconds in items.items()
            if name in before and seconds > SLOW * before[name]
        ]
    return "; ".join(texts)
