"""GPUs and RDMA devices: what a shape asks for, and what the GPUs did while a tool used them."""

import contextlib
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
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


def without_gpu(plan: Plan, shapes: Sequence[Shape] | None = None) -> list[str]:
    """Return the entries that use CUDA although their pods ask for no GPU, sorted.

    A container without a GPU resource sees no GPU.
    """
    shapes = shapes or plan.shapes
    return sorted(
        {
            point.entry
            for point in plan.points
            if point.params.get("device") == "cuda" and not gpus(shapes[point.shape])
        }
    )


def has_rdma(shape: Shape) -> bool:
    """Whether the suite names a network or a device that RDMA may use.

    Any extended resource except a GPU counts.
    """
    device = any("/" in name and not _GPU.search(name) for name in shape.resources.both)
    return bool(shape.network.name or shape.network.host or device)


DYNAMIC = {
    "index": "index",
    "sm_clock": "clocks.sm",
    "memory_clock": "clocks.mem",
    "power": "power.draw",
    "temperature": "temperature.gpu",
    "utilisation": "utilization.gpu",
    "memory_used": "memory.used",
    "reasons": "clocks_throttle_reasons.active",
    "time": "timestamp",
}
_REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
}
"""Bits of clocks_throttle_reasons.active (nvml.h, nvmlClocksThrottleReasons)."""
_SLOWED = (
    "hardware slowdown",
    "software thermal slowdown",
    "hardware thermal slowdown",
    "hardware power brake",
)
"""Reasons that invalidate a figure. A loaded GPU normally runs at its power cap."""
_IDLE = 0x1
Span = tuple[float, float]
"""Start and end of a run in seconds since the epoch, by its host's clock."""
_PERIOD = 0.5
_MARGIN = 0.05
"""Fraction of the samples that may show a slowdown."""
_LASTING = 2
"""Samples that must show a slowdown, if there are as many."""
Samples = Sequence[dict[str, Any]]


@dataclass
class Watch:
    """The GPUs of hosts, by the names of gpu_use.by_name().

    `hosts` has the `gpus` of a host. After the block it also has `during`, what they did, and
    `against`, why the figures are not the devices' own; `untold` names the fields that the driver
    lacks, `error` is the reason for an empty answer. `used` takes the uuids of the GPUs that the
    tool used; if it is empty, all GPUs of a host are judged. `spans` takes, by host, when the tool
    measured; if it is empty, the whole block is judged.
    """

    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    spans: defaultdict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))

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


@contextlib.contextmanager
def watched(hosts: Sequence[Host]) -> Iterator[Watch]:
    """Sample clocks, power and throttle reasons of the hosts' GPUs twice a second in the block."""
    named = gpu_use.by_name(hosts)
    watch = Watch({name: {"gpus": gpu_use.facts(host)} for name, host in named.items()})
    loop = f"--loop-ms={round(_PERIOD * 1000)}"
    answers = {name: gpu_use.known(host, DYNAMIC) for name, host in named.items()}
    with contextlib.ExitStack() as stack:
        # The times of nvidia-smi have no zone.
        samplers = {
            name: stack.enter_context(
                host.serve([*gpu_use.query(answers[name][0]), loop], env={"TZ": "UTC0"})
            )
            for name, host in named.items()
        }
        yield watch
        sampled = {name: sampler.stop() for name, sampler in samplers.items()}
    for name, host in named.items():
        facts, (fields, answer) = watch.hosts[name], answers[name]
        facts["during"] = during(sampled[name].stdout, fields, watch.spans[name])
        if missing := sorted(DYNAMIC.keys() - fields.keys()):
            facts["untold"] = missing
        if not facts["during"]:
            told = (answer if answer.code != 0 else sampled[name]).tail(200)
            facts["error"] = told or "nvidia-smi said nothing"
        used = gpu_use.used(facts["gpus"], watch.used)
        facts["against"] = reason_against(facts, gpu_use.facts(host), used)


def reason_against(
    facts: Mapping[str, Any], after: Sequence[dict[str, Any]], used: Sequence[dict[str, Any]]
) -> str | None:
    """Return why figures of the used GPUs are not the devices' own, or None.

    They were slowed or not observed, or had memory errors meanwhile.
    """
    own = {gpu["index"] for gpu in used if "index" in gpu}
    during = [gpu for gpu in facts["during"] if gpu["index"] in own or not own]
    if not during:
        return f"what the GPU's clocks did is not known: {facts.get('error', 'no samples')}"
    if slow := next((gpu["slowed"] for gpu in during if "slowed" in gpu), None):
        return str(slow)
    before = {gpu.get("index"): gpu.get("ecc_uncorrected", 0) for gpu in used}
    for gpu in after:
        index = gpu.get("index")
        errors = gpu.get("ecc_uncorrected", 0) - before.get(index, math.inf)
        if errors > 0:
            return (
                f"GPU {index} had {plural(errors, 'uncorrected memory error')} meanwhile:"
                " its memory is broken"
            )
    return None


def during(text: str, fields: dict[str, str], spans: Sequence[Span] = ()) -> list[dict[str, Any]]:
    """Return a summary for each GPU of the samples in `spans`, or of all samples without spans.

    It has the lowest, median and highest value of each field, the share of throttle reasons, and
    `slowed` if they invalidate a figure. Idle samples do not count.
    """
    by_index: dict[int, list[dict[str, Any]]] = {}
    for sample in gpu_use.parse(text, fields):
        by_index.setdefault(int(sample.get("index", 0)), []).append(sample)
    return [_of_one(index, samples, spans) for index, samples in sorted(by_index.items())]


def _of_one(index: int, samples: Samples, spans: Sequence[Span]) -> dict[str, Any]:
    # a sample stands for half a period before and after it
    within = [
        [
            sample
            for sample in samples
            if start - _PERIOD / 2 <= sample.get("time", 0.0) <= end + _PERIOD / 2
        ]
        for start, end in spans
    ]
    runs = [_working(run) for run in within if run] or [_working(samples)]
    # Runs at the same time share samples.
    counted = list({id(sample): sample for run in runs for sample in run}.values())
    summary = {"index": index, "samples": len(counted), **_summary(counted)}
    lasting = [
        (share, text)
        for run in runs
        for text, share in _throttled(run).items()
        if text in _SLOWED
        and share > _MARGIN
        and round(share * len(run)) >= min(_LASTING, len(run))
    ]
    if lasting:
        share, text = max(lasting)
        what = f"in {share * 100:.0f} % of {'one of its runs' if len(runs) > 1 else 'the sample'}"
        summary["slowed"] = f"GPU {index} was slowed down ({text}) {what}: mend cooling or power"
    return summary


def _working(samples: Samples) -> list[dict[str, Any]]:
    """Return the samples in which the GPU worked, or all samples if it was idle in all."""
    return [sample for sample in samples if not sample.get("reasons", 0) & _IDLE] or list(samples)


def _summary(samples: Samples) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for name in DYNAMIC:
        values = [sample[name] for sample in samples if name in sample]
        if values and name not in ("index", "reasons", "time"):
            summary[name] = {
                "low": min(values),
                "median": statistics.median(values),
                "high": max(values),
            }
    return {**summary, "throttled": _throttled(samples)}


def _throttled(samples: Samples) -> dict[str, float]:
    masks = [sample["reasons"] for sample in samples if "reasons" in sample]
    shares = {
        text: sum(bool(mask & bit) for mask in masks) / len(masks)
        for bit, text in _REASONS.items()
        if masks and bit != _IDLE
    }
    return {text: share for text, share in shares.items() if share > 0}
