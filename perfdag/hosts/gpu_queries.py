"""Queries of the NVIDIA driver of a host, before and during a sample.

Source: `nvidia-smi --query-gpu`, whose fields `nvidia-smi --help-query-gpu` lists. Values that a
device lacks read `[Not Supported]` or `[N/A]`, and are left out. A version refuses a whole query
for one unknown field, so the query is repeated without it. Clocks are in Hz, power in W,
temperatures in degrees Celsius, memory in bytes, times in seconds since the epoch.
"""

import contextlib
import re
import statistics
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from perfdag.hosts.base import Finished, Host
from perfdag.hosts.gpus import parse, query

STATIC = {
    "index": "index",
    "name": "name",
    "uuid": "uuid",
    "driver": "driver_version",
    "vbios": "vbios_version",
    "memory": "memory.total",
    "power_limit": "power.limit",
    "sm_clock_max": "clocks.max.sm",
    "memory_clock_max": "clocks.max.memory",
    "persistence": "persistence_mode",
    "compute_mode": "compute_mode",
    "ecc": "ecc.mode.current",
    "ecc_corrected": "ecc.errors.corrected.volatile.total",
    "ecc_uncorrected": "ecc.errors.uncorrected.volatile.total",
    "mig": "mig.mode.current",
    "pcie_generation": "pcie.link.gen.current",
    "pcie_width": "pcie.link.width.current",
}
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
_RENAMED = {
    "clocks_throttle_reasons.active": "clocks_event_reasons.active"
}  # drivers from 535 on have both
_REFUSED = re.compile(r'Field "([^"]+)" is not a valid field to query')
REASONS = {
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
SLOWED = (
    "hardware slowdown",
    "software thermal slowdown",
    "hardware thermal slowdown",
    "hardware power brake",
)
"""Reasons that invalidate a figure. A loaded GPU normally runs at its power cap."""
_IDLE = 0x1
Span = tuple[float, float]
"""Start and end of a run in seconds since the epoch, by its host's clock."""
PERIOD = 0.5
MARGIN = 0.05
"""Fraction of the samples that may show a slowdown."""
LASTING = 2
"""Samples that must show a slowdown, if there are as many."""


def known(host: Host, fields: dict[str, str]) -> tuple[dict[str, str], Finished]:
    """Return the fields that the host's nvidia-smi knows, and its answer to their query."""
    queried = dict(fields)
    while True:
        finished = host.run(query(queried), timeout=20)
        refused = _REFUSED.search(finished.stdout + finished.stderr) if finished.code != 0 else None
        name = next(
            (name for name, field in queried.items() if refused and field == refused[1]), None
        )
        if name is None:
            return queried, finished
        if queried[name] in _RENAMED:
            queried[name] = _RENAMED[queried[name]]
        else:
            del queried[name]


def facts(host: Host) -> list[dict[str, Any]]:
    """Return static facts of each GPU of a host, or one `error` if the driver does not answer.

    The list is empty without a driver.
    """
    if host.which("nvidia-smi") is None:
        return []
    fields, finished = known(host, STATIC)
    return parse(finished.stdout, fields) if finished.code == 0 else [{"error": finished.tail(200)}]


def problem(host: Host) -> str | None:
    """Return why a host cannot use CUDA and what to do, or None if a GPU answers."""
    if host.which("nvidia-smi") is None:
        return (
            f"no NVIDIA driver on {host.name} (nvidia-smi is missing): install the driver; "
            "in a pod ask for nvidia.com/gpu in resources, "
            "and let the cluster run nvidia-device-plugin"
        )
    finished: Finished = host.run(["nvidia-smi", "-L"], timeout=20)
    if finished.code != 0:
        return f"the NVIDIA driver on {host.name} does not answer: {finished.tail(200)}"
    if "GPU " not in finished.stdout:
        return f"the NVIDIA driver on {host.name} shows no GPU: ask for nvidia.com/gpu in resources"
    return None


def by_name(hosts: Sequence[Host]) -> dict[str, Host]:
    """Return the hosts by name. Hosts on one node have their rank in the name.

    Each of their pods has GPUs of its own.
    """
    found = [host.name for host in hosts]
    return {
        f"{host.name} (host {place})" if found.count(host.name) > 1 else host.name: host
        for place, host in enumerate(hosts)
    }


@contextlib.contextmanager
def watched(
    host: Host, spans: Sequence[Span] = (), computes: bool = True
) -> Iterator[dict[str, Any]]:
    """Sample clocks, power and throttle reasons twice a second in the block.

    After it the dictionary has `during`, a summary for each GPU, and `slowed`, why the figure is
    not that of the device. `spans` are the runs that count, without set-up; the block may fill
    them. If `computes` is False, other devices use the GPU's memory, and idle samples count too.
    `untold` names missing fields, `error` is the reason for an empty answer.
    """
    found: dict[str, Any] = {}
    fields, answered = known(host, DYNAMIC)
    # The times of nvidia-smi have no zone.
    with host.serve(
        [*query(fields), f"--loop-ms={round(PERIOD * 1000)}"], env={"TZ": "UTC0"}
    ) as sampling:
        yield found
        sampler = sampling.stop()
    found["during"] = during(sampler.stdout, fields, spans, computes)
    found["slowed"] = slowed(found["during"])
    untold = sorted(DYNAMIC.keys() - fields.keys())
    found |= {"untold": untold} if untold else {}
    if not found["during"]:
        found["error"] = (answered if answered.code != 0 else sampler).tail(
            200
        ) or "nvidia-smi said nothing"


def during(
    text: str, fields: dict[str, str], spans: Sequence[Span] = (), computes: bool = True
) -> list[dict[str, Any]]:
    """Return a summary for each GPU of the samples in `spans`, or of all samples without spans.

    It has the lowest, median and highest value of each field and the share of throttle reasons. If
    there are several runs, it also has the share in the run with the most. If the tool `computes`,
    idle samples do not count.
    """
    by_index: dict[int, list[dict[str, Any]]] = {}
    for sample in parse(text, fields):
        by_index.setdefault(int(sample.get("index", 0)), []).append(sample)
    return [
        _of_one(index, samples, spans, _working if computes else list)
        for index, samples in sorted(by_index.items())
    ]


Samples = Sequence[dict[str, Any]]


def _of_one(
    index: int,
    samples: Samples,
    spans: Sequence[Span],
    counting: Callable[[Samples], list[dict[str, Any]]],
) -> dict[str, Any]:
    # a sample stands for half a period before and after it
    within = [
        [
            each
            for each in samples
            if start - PERIOD / 2 <= each.get("time", 0.0) <= end + PERIOD / 2
        ]
        for start, end in spans
    ]
    runs = [counting(each) for each in within if each] or [counting(samples)]
    counted = list(
        {id(each): each for run in runs for each in run}.values()
    )  # runs beside each other share theirs
    found = {"index": index, "samples": len(counted), **_summary(counted)}
    if len(runs) > 1:
        shares = [
            {text: share for text, share in _throttled(each).items() if _lasting(share, len(each))}
            for each in runs
        ]
        found["throttled_most"] = {
            text: max(each.get(text, 0.0) for each in shares)
            for text in sorted({t for each in shares for t in each})
        }
    return found


def _working(samples: Samples) -> list[dict[str, Any]]:
    """Those in which the GPU was not idle; all where it was in each."""
    return [each for each in samples if not each.get("reasons", 0) & _IDLE] or list(samples)


def _lasting(share: float, samples: int) -> bool:
    return round(share * samples) >= min(LASTING, samples)


def _summary(samples: Samples) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in DYNAMIC:
        values = [each[name] for each in samples if name in each]
        if values and name not in ("index", "reasons", "time"):
            found[name] = {
                "low": min(values),
                "median": statistics.median(values),
                "high": max(values),
            }
    return {**found, "throttled": _throttled(samples)}


def _throttled(samples: Samples) -> dict[str, float]:
    masks = [each["reasons"] for each in samples if "reasons" in each]
    shares = {
        text: sum(bool(mask & bit) for mask in masks) / len(masks)
        for bit, text in REASONS.items()
        if masks and bit != _IDLE
    }
    return {text: share for text, share in shares.items() if share > 0}


def used(gpus: Sequence[dict[str, Any]], uuids: Collection[str]) -> list[dict[str, Any]]:
    """Return the GPUs with one of these uuids, or all GPUs if none has one."""
    return [each for each in gpus if each.get("uuid") in uuids] or list(gpus)


def slowed(summaries: Sequence[dict[str, Any]]) -> str | None:
    """Return why a slowdown invalidates the figure, or None.

    It must affect more than 5 % of the samples of a run, and more than one sample.
    """
    for each in summaries:
        whole = {
            text: share
            for text, share in each.get("throttled", {}).items()
            if _lasting(share, each["samples"])
        }
        bad = {
            text: share
            for text, share in each.get("throttled_most", whole).items()
            if text in SLOWED and share > MARGIN
        }
        if bad:
            text, share = max(bad.items(), key=lambda item: item[1])
            what = "one of its runs" if "throttled_most" in each else "the sample"
            return (
                f"GPU {each['index']} was slowed down ({text}) in {share * 100:.0f} % of {what}: "
                "mend cooling or power"
            )
    return None
