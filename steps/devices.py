"""The purpose of a shape's extended resources: GPUs, or devices of a network."""

import re
from collections.abc import Sequence

from perfdag.plan.plan import Plan
from perfdag.shape import Shape

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
