"""The site of samples: the hosts of a machine or of a gang."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfdag.hosts.base import Host
from perfdag.shape import Shape


@dataclass
class Site:
    """The hosts for a shape, and the provenance of samples (image digest, Workflow)."""

    hosts_for: Callable[[Shape], Sequence[Host]]
    refuses: Callable[[Shape], str | None] = lambda shape: None
    """Returns why this site cannot measure the shape, or None."""
    volume: str | None = None
    """The folder where the volume of the shape is mounted."""
    where: dict[str, Any] = field(default_factory=dict)
    """Provenance of every sample."""
    misplacement: Callable[[Shape, Sequence[Host]], str | None] = lambda shape, hosts: None
    """Returns why the hosts break the placement of the shape, or None."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts of every sample."""
    advice: Callable[[Shape, str], str | None] = lambda shape, error: None
    """Returns what to do about the error of a sample, or None."""
    earlier_attempts: int = 0
    """Attempts at the batch before this one."""
    zones: Mapping[str, str] = field(default_factory=dict)
    """Zones by node name, if hosts are numbered by zone."""
    lost: Callable[[], str | None] = lambda: None
    """Called after a failed sample; returns why its failure does not count, or None."""


class GangLost(Exception):
    """A host is gone: the sample under way is not stored, and another gang may measure it."""
