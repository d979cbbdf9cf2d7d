"""What the extended resources of a shape are for: GPUs, or devices of a network."""

import re
from collections.abc import Sequence

from perfdag.plan import Plan
from perfdag.shape import Shape

# nvidia.com/gpu, nvidia.com/gpu.shared, amd.com/gpu, nvidia.com/mig-1g.5gb, gpu.intel.com/i915
_GPU = re.compile(r"/gpu(\.|$)|/mig-|^gpu\.")
RDMA_WANTED = "needs an RDMA network: `network.name`, `network.host: true`, or a device resource such as `resources: {rdma/hca: 1}`"


def gpus(shape: Shape) -> list[str]:
    """Resources of the pods that are GPUs, by the names that the device plugins of NVIDIA, AMD and Intel give them."""
    return [name for name in shape.resources if _GPU.search(name)]


def without_gpu(plan: Plan, shapes: Sequence[Shape] | None = None) -> dict[str, str]:
    """Entries that use CUDA in pods which ask for no GPU, where a container sees none, and by which parameter they do."""
    shapes = shapes or [Shape.model_validate(each) for each in plan.shapes]
    found = {}
    for point in plan.points:
        if not gpus(shapes[point.shape]):
            if point.params.get("device") == "cuda":
                found[point.entry] = "device is cuda"
            elif point.params.get("cuda") is not None:
                found[point.entry] = f"cuda is {point.params['cuda']}"
    return dict(sorted(found.items()))


def has_rdma(shape: Shape) -> bool:
    """Whether the suite names a network or a device by which RDMA could go; any device but a GPU may be one."""
    device = any("/" in name and not _GPU.search(name) for name in shape.resources)
    return bool(shape.network.name or shape.network.host or device)
