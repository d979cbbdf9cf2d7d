"""The GPUs of hosts while a tool works on them, and whether its figures are the devices' own: the judgement of steps/resnet50 for other tools."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfdag.hosts import gpu_queries
from perfdag.hosts.base import Host
from perfdag.steps.resnet50.launch import against

PCI_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""Environment in which CUDA numbers the GPUs as nvidia-smi does; by itself it puts the fastest first."""


@dataclass
class Watch:
    """`hosts`: by the host's name (gpu.by_name) its `gpus`, and after the block what they did and `against`, why the figures are not their own.

    `used` takes the uuids of the GPUs that the tool used; empty: not known, and all of a host are judged. `spans` takes when the tool measured;
    empty: not known, and all of the block is judged.
    """

    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    spans: list[gpu_queries.Span] = field(default_factory=list)

    @property
    def against(self) -> str | None:
        """What is held against the figures; named by the host where there are several."""
        said = {name: each["against"] for name, each in self.hosts.items() if each.get("against")}
        return (
            "; ".join(
                f"{name}: {why}" if len(self.hosts) > 1 else why for name, why in said.items()
            )
            or None
        )


def numbered(host: Host, found: Sequence[Mapping[str, Any]], index: int) -> set[str]:
    """The uuid of that of a host's GPUs (gpu.facts) which a tool in PCI_ORDER uses as CUDA device `index`; empty where that is not known: there is
    none, CUDA_VISIBLE_DEVICES gives other numbers, or with MIG a device is a slice.
    """
    uuids = {each["uuid"] for each in found if each.get("index") == index and "uuid" in each}
    renumbered = host.run(["printenv", "CUDA_VISIBLE_DEVICES"], timeout=10).stdout.strip()
    return (
        set()
        if len(uuids) != 1 or renumbered or any(each.get("mig") == "Enabled" for each in found)
        else uuids
    )


@contextlib.contextmanager
def watched(
    hosts: Sequence[Host],
    before: Mapping[str, list[dict[str, Any]]] | None = None,
    computes: bool = True,
) -> Iterator[Watch]:
    """Watch the GPUs of the hosts in the block. `before` is what gpu.facts said of them just now, by the same names; None: it is asked.
    `computes` is as in gpu.watched.
    """
    one_each = gpu_queries.by_name(hosts)
    watch = Watch(
        {
            name: {"gpus": before[name] if before else gpu_queries.facts(host)}
            for name, host in one_each.items()
        }
    )
    with contextlib.ExitStack() as stack:
        seen = {
            name: stack.enter_context(gpu_queries.watched(host, watch.spans, computes))
            for name, host in one_each.items()
        }
        yield watch
    for name, host in one_each.items():
        here, during = watch.hosts[name], seen[name]["during"]
        own = {
            each["index"] for each in gpu_queries.used(here["gpus"], watch.used) if "index" in each
        } or {each["index"] for each in during}
        here |= seen[name] | {
            "slowed": gpu_queries.slowed([each for each in during if each["index"] in own])
        }
        here["against"] = against(here, gpu_queries.facts(host), own)
