"""GPUs and RDMA devices: what a shape asks for, and what the GPUs did while a tool used them."""

import contextlib
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfdag.hosts import gpu_use
from perfdag.hosts.base import Host
from perfdag.plan.plan import Plan
from perfdag.shape import Shape
from perfdag.units import plural

# nvidia.com/gpu, nvidia.com/gpu.shared, amd.com/gpu, nvidia.com/mig-1g.5gb, gpu.intel.com/i915
_GPU = re.compile(r"/gpu(\.|$)|/mig-|^gpu\.")
RDMA_WANTED = (
    "needs an RDMA network: `network.name`, `network.host: true`,"
    " or a device resource such as `resources: {rdma/hca: 1}`"
)


def gpus(shape: Shape) -> list[str]:
    """Return the pods' GPU resources, by the names of NVIDIA's, AMD's and Intel's plugins."""
    return [name for name in shape.resources.both if _GPU.search(name)]


def without_gpu(plan: Plan, shapes: Sequence[Shape] | None = None) -> dict[str, str]:
    """Return the entries that use CUDA although their pods ask for no GPU, and why they do.

    A container without a GPU resource sees no GPU.
    """
    shapes = shapes or plan.shapes
    entries = {}
    for point in plan.points:
        if not gpus(shapes[point.shape]):
            if point.params.get("device") == "cuda":
                entries[point.entry] = "device is cuda"
            elif point.params.get("cuda") is not None:
                entries[point.entry] = f"cuda is {point.params['cuda']}"
    return dict(sorted(entries.items()))


def has_rdma(shape: Shape) -> bool:
    """Whether the suite names a network or a device that RDMA may use.

    Any extended resource except a GPU counts.
    """
    device = any("/" in name and not _GPU.search(name) for name in shape.resources.both)
    return bool(shape.network.name or shape.network.host or device)


PCI_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""Environment in which CUDA numbers the GPUs as nvidia-smi does.

Without it, the fastest GPU comes first."""


@dataclass
class Watch:
    """The GPUs of hosts, by the names of gpu_use.by_name().

    `hosts` has the `gpus` of a host. After the block it also has what they did, and `against`:
    why the figures are not the devices' own. `used` takes the uuids of the GPUs that the tool
    used; if it is empty, all GPUs of a host are judged. `spans` takes, by host, when the tool
    measured; if it is empty, the whole block is judged.
    """

    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    spans: defaultdict[str, list[gpu_use.Span]] = field(default_factory=lambda: defaultdict(list))

    @property
    def against(self) -> str | None:
        """Return why the figures are not the devices' own; of several hosts, with their names."""
        reasons = {
            name: facts["against"] for name, facts in self.hosts.items() if facts.get("against")
        }
        several = len(self.hosts) > 1
        return (
            "; ".join(f"{name}: {why}" if several else why for name, why in reasons.items()) or None
        )


def uuids_of_device(host: Host, gpus: Sequence[Mapping[str, Any]], index: int) -> set[str]:
    """Return the uuid of the GPU that a tool in PCI_ORDER uses as CUDA device `index`.

    `gpus` are the host's (gpu_use.facts). The set is empty if the uuid is not known: no GPU
    has the index, CUDA_VISIBLE_DEVICES gives other numbers, or with MIG a device is a slice.
    """
    uuids = {gpu["uuid"] for gpu in gpus if gpu.get("index") == index and "uuid" in gpu}
    renumbered = host.run(["printenv", "CUDA_VISIBLE_DEVICES"], timeout=10).stdout.strip()
    sliced = any(gpu.get("mig") == "Enabled" for gpu in gpus)
    return set() if len(uuids) != 1 or renumbered or sliced else uuids


@contextlib.contextmanager
def watched(
    hosts: Sequence[Host],
    before: Mapping[str, list[dict[str, Any]]] | None = None,
    computes: bool = True,
    timed: bool = True,
) -> Iterator[Watch]:
    """Watch the GPUs of the hosts in the block.

    `before` has gpu_use.facts() of the hosts by the same names, if they are known.
    `computes` is as in gpu_use.watched(), `timed` as in reason_against().
    """
    named = gpu_use.by_name(hosts)
    watch = Watch(
        {
            name: {"gpus": before[name] if before else gpu_use.facts(host)}
            for name, host in named.items()
        }
    )
    with contextlib.ExitStack() as stack:
        sampled = {
            name: stack.enter_context(gpu_use.watched(host, watch.spans[name], computes))
            for name, host in named.items()
        }
        yield watch
    for name, host in named.items():
        facts, during = watch.hosts[name], sampled[name]["during"]
        own = {
            gpu["index"] for gpu in gpu_use.used(facts["gpus"], watch.used) if "index" in gpu
        } or {gpu["index"] for gpu in during}
        facts |= sampled[name] | {
            "slowed": gpu_use.slowed([gpu for gpu in during if gpu["index"] in own])
        }
        facts["against"] = reason_against(facts, gpu_use.facts(host), own, timed)


def reason_against(
    facts: dict[str, Any], after: Sequence[dict[str, Any]], own: Collection[int], timed: bool = True
) -> str | None:
    """Return why figures of the used GPUs (by index) are not the devices' own, or None.

    They were slowed or not observed (if figures are `timed`), or had memory errors meanwhile.
    """
    if timed and facts.get("slowed"):
        return str(facts["slowed"])
    if timed and not any(gpu["index"] in own for gpu in facts.get("during", ())):
        return f"what the GPU's clocks did is not known: {facts.get('error', 'no samples')}"
    before = {gpu.get("index"): gpu.get("ecc_uncorrected", 0) for gpu in facts["gpus"]}
    for gpu in after:
        index = gpu.get("index")
        if index in own and (errors := gpu.get("ecc_uncorrected", 0) - before.get(index, 0)) > 0:
            return (
                f"GPU {index} had {plural(errors, 'uncorrected memory error')} meanwhile:"
                " its memory is broken"
            )
    return None
