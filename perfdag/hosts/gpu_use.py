"""NVIDIA GPUs: what a host has, and what they did while a tool used them."""

import contextlib
import csv
import io
import math
import os
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from perfdag.hosts.base import CommandResult, Host, in_clean_environment
from perfdag.identity import grouped
from perfdag.units import plural

_KEPT = {
    **{name: name for name in ("name", "driver")},
    "memory": "memory_bytes",
    **{name: name for name in ("power_limit", "ecc", "mig")},
}
"""Fields of STATIC that the facts of a host have, by the names that they have there."""
_READ: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("name", "uuid", "driver", "vbios"), str),
    **dict.fromkeys(("persistence", "compute_mode", "ecc", "mig"), str),
    **dict.fromkeys(("index", "ecc_corrected", "ecc_uncorrected"), int),
    **dict.fromkeys(("memory", "memory_used"), lambda mebibytes: int(float(mebibytes) * 2**20)),
    **dict.fromkeys(
        ("sm_clock", "memory_clock", "sm_clock_max", "memory_clock_max"),
        lambda megahertz: float(megahertz) * 1e6,
    ),
    "utilisation": lambda percent: float(percent) * 0.01,
    "reasons": lambda mask: int(mask, 16),
    "time": lambda text: (
        datetime.strptime(text, "%Y/%m/%d %H:%M:%S.%f").replace(tzinfo=UTC).timestamp()
    ),
}
"""How the text of a field becomes its value; the others are numbers."""
LIST = in_clean_environment("nvidia-smi", "-L")
TIMEOUT = 10.0
"""Timeout of a query in seconds, less than that of SshHost.facts."""


def gpus(host: Host) -> list[dict[str, Any]] | None:
    """Return the GPUs of a host with nvidia-smi that a process may use, with their MIG slices.

    None if the driver does not answer.
    """
    fields, answer = queried(host, {name: STATIC[name] for name in _KEPT})
    if answer.code != 0:
        return None
    devices = [
        {"name": "unknown GPU"}
        | {_KEPT[name]: row.get(name) for name in fields if name in row or name != "name"}
        for row in parse(answer.stdout, fields)
    ]
    if any(device.get("mig") == "Enabled" for device in devices):
        listing = host.run(LIST, timeout=TIMEOUT).stdout
        for device, slices in zip(devices, _slices(listing), strict=False):
            device["slices"] = slices
    return devices


def query(fields: dict[str, str]) -> list[str]:
    """Return the argv of nvidia-smi for these fields, as our names to its names."""
    return in_clean_environment(
        "nvidia-smi",
        f"--query-gpu={','.join(fields.values())}",
        "--format=csv,noheader,nounits",
    )


def parse(text: str, fields: dict[str, str]) -> list[dict[str, Any]]:
    """Return a dictionary for each line of nvidia-smi, without unknown values.

    Lines of another width are errors, and are skipped. Clocks are in Hz, memory in bytes, power in
    W, times in seconds since the epoch. Utilisation is a fraction.
    """
    rows = []
    for cells in csv.reader(io.StringIO(text), skipinitialspace=True):
        if len(cells) == len(fields):
            values = {
                name: _value(name, cell.strip()) for name, cell in zip(fields, cells, strict=True)
            }
            rows.append({name: value for name, value in values.items() if value is not None})
    return rows


def _value(name: str, cell: str) -> Any:
    if cell.startswith("[") or cell in ("", "N/A"):
        return None
    try:
        return _READ.get(name, float)(cell)
    except ValueError:
        return None


def _slices(listing: str) -> list[list[str]]:
    """Return the MIG profiles of each GPU of `nvidia-smi -L`, in its order."""
    slices: list[list[str]] = []
    for line in listing.splitlines():
        if line.startswith("GPU "):
            slices.append([])
        elif slices and (profile := re.match(r"\s+MIG (\S+)", line)):
            slices[-1].append(profile[1])
    return slices


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
_REFUSED = re.compile(r'Field "([^"]+)" is not a valid field to query')


def queried(host: Host, fields: dict[str, str]) -> tuple[dict[str, str], CommandResult]:
    """Return the fields that the host's nvidia-smi has, and its answer to their query."""
    fields = dict(fields)
    while True:
        finished = host.run(query(fields), timeout=TIMEOUT)
        refused = _REFUSED.search(finished.stdout + finished.stderr) if finished.code != 0 else None
        names = [name for name, field in fields.items() if refused and field == refused[1]]
        if not names:
            return fields, finished
        if fields[names[0]] == DYNAMIC["reasons"]:  # drivers from 535 on have both names
            fields[names[0]] = "clocks_event_reasons.active"
        else:
            del fields[names[0]]


def facts(host: Host) -> list[dict[str, Any]]:
    """Return static facts of each GPU of a host, or one `error` if the driver does not answer.

    The list is empty without a driver.
    """
    if host.which("nvidia-smi") is None:
        return []
    fields, finished = queried(host, STATIC)
    return parse(finished.stdout, fields) if finished.code == 0 else [{"error": finished.tail(200)}]


def problem(host: Host) -> str | None:
    """Return why a host cannot use CUDA and what to do, or None if a GPU answers."""
    if host.which("nvidia-smi") is None:
        return (
            f"no NVIDIA driver on {host.name} (nvidia-smi is missing): install the driver; "
            "in a pod ask for nvidia.com/gpu in resources, "
            "and let the cluster run nvidia-device-plugin"
        )
    finished: CommandResult = host.run(LIST, timeout=TIMEOUT)
    if finished.code != 0:
        return f"the NVIDIA driver on {host.name} does not answer: {finished.tail(200)}"
    if "GPU " not in finished.stdout:
        return f"the NVIDIA driver on {host.name} shows no GPU: ask for nvidia.com/gpu in resources"
    return None


def visible(host: Host) -> list[str]:
    """Return the uuids of the NVIDIA GPUs that a CUDA program sees on a host.

    CUDA_VISIBLE_DEVICES has positions or the beginnings of uuids. CUDA shows nothing of what stands
    behind a choice that names no device, and no device at all if one is chosen twice.
    """
    listing = _listing(host)
    uuids = re.findall(r"^GPU \d+: .*\(UUID: (\S+)\)", listing, re.M)
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return uuids
    by_position = {str(position): uuid for position, uuid in enumerate(uuids)}
    shown = list[str]()
    for choice in chosen.replace(" ", "").split(","):
        begins = re.search(rf"UUID: ({re.escape(choice)}[^)]*)", listing) if "-" in choice else None
        uuid = begins[1] if begins else by_position.get(choice)
        if uuid is None:
            break
        shown.append(uuid)
    return shown if len(set(shown)) == len(shown) else []


def count(host: Host, resource: str) -> int:
    """Return how many devices of a GPU resource, such as nvidia.com/gpu, a host has."""
    if "nvidia" not in resource:  # the kernel's driver makes a render node for each
        return host.run(["ls", "/dev/dri"], timeout=TIMEOUT).stdout.count("renderD")
    _, is_slice, profile = resource.partition("/mig-")
    if is_slice:
        return sum(slices.count(profile) for slices in _slices(_listing(host)))
    return len(visible(host))


def _listing(host: Host) -> str:
    if host.which("nvidia-smi") is None:
        return ""
    return host.run(LIST, timeout=TIMEOUT).stdout


def by_name(hosts: Sequence[Host]) -> dict[str, Host]:
    """Return the hosts by name. Hosts on one node have their rank in the name.

    Each of their pods has GPUs of its own.
    """
    names = [host.name for host in hosts]
    return {
        f"{host.name} (host {place})" if names.count(host.name) > 1 else host.name: host
        for place, host in enumerate(hosts)
    }


def used(gpus: Sequence[dict[str, Any]], uuids: Collection[str]) -> list[dict[str, Any]]:
    """Return the GPUs with one of these uuids, or all GPUs if none has one."""
    return [gpu for gpu in gpus if gpu.get("uuid") in uuids] or list(gpus)


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
    """The GPUs of hosts, by the names of `by_name`.

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
        if len(self.hosts) > 1:
            return "; ".join(f"{name}: {reason}" for name, reason in reasons.items()) or None
        return next(iter(reasons.values()), None)


@contextlib.contextmanager
def watched(hosts: Sequence[Host]) -> Iterator[Watch]:
    """Sample clocks, power and throttle reasons of the hosts' GPUs twice a second in the block."""
    named = by_name(hosts)
    watch = Watch({name: {"gpus": facts(host)} for name, host in named.items()})
    loop = f"--loop-ms={round(_PERIOD * 1000)}"
    answers = {name: queried(host, DYNAMIC) for name, host in named.items()}
    with contextlib.ExitStack() as stack:
        # The times of nvidia-smi have no zone: a clean environment is in UTC.
        samplers = {
            name: stack.enter_context(host.serve([*query(answers[name][0]), loop]))
            for name, host in named.items()
        }
        yield watch
        sampled = {name: sampler.stop() for name, sampler in samplers.items()}
    for name, host in named.items():
        observed = watch.hosts[name]
        fields, answer = answers[name]
        observed["during"] = during(sampled[name].stdout, fields, watch.spans[name])
        if missing := sorted(DYNAMIC.keys() - fields.keys()):
            observed["untold"] = missing
        if not observed["during"]:
            printed = (answer if answer.code != 0 else sampled[name]).tail(200)
            observed["error"] = printed or "nvidia-smi said nothing"
        observed["against"] = reason_against(
            observed, facts(host), used(observed["gpus"], watch.used)
        )


def reason_against(
    facts: Mapping[str, Any], after: Sequence[dict[str, Any]], used: Sequence[dict[str, Any]]
) -> str | None:
    """Return why figures of the used GPUs are not the devices' own, or None.

    They were slowed, lost or not observed, or had memory errors meanwhile.
    """
    indices = {gpu["index"] for gpu in used if "index" in gpu}
    during = [gpu for gpu in facts["during"] if gpu["index"] in indices or not indices]
    if not during:
        return f"what the GPU's clocks did is not known: {facts.get('error', 'no samples')}"
    present = {_identity(gpu) for gpu in after}
    if error := next((gpu["error"] for gpu in after if "error" in gpu), None):
        return f"{LOST}: {error}"
    if gone := [gpu for gpu in used if "index" in gpu and _identity(gpu) not in present]:
        return f"{LOST}: nvidia-smi lists GPU {gone[0]['index']} no more"
    if error := next((gpu["lost"] for gpu in during if "lost" in gpu), None):
        return f"{LOST}: {error}"
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


LOST = "the GPU was lost while it was measured"
_ERRORS = re.compile(
    r"(?i)unable to determine the device handle|gpu is lost|unknown error|no devices were found"
    r"|failed to initialize nvml"
)
"""What nvidia-smi prints instead of a row; other lines, such as a warning, say nothing of it."""


def _identity(gpu: Mapping[str, Any]) -> object:
    return gpu.get("uuid", gpu.get("index"))


def during(text: str, fields: dict[str, str], spans: Sequence[Span] = ()) -> list[dict[str, Any]]:
    """Return a summary for each GPU of the samples in `spans`, or of all samples without spans.

    It has the lowest, median and highest value of each field, the share of throttle reasons, and
    `slowed` if they invalidate a figure. Idle samples do not count. `lost` has the last of several
    errors that were printed instead.
    """
    errors = [line.strip() for line in text.splitlines() if _ERRORS.search(line)]
    last_error = {"lost": errors[-1][:200]} if len(errors) >= _LASTING else {}
    by_index = grouped(parse(text, fields), lambda sample: int(sample.get("index", 0)))
    return [
        _of_one(index, samples, spans) | last_error for index, samples in sorted(by_index.items())
    ]


def _of_one(index: int, samples: Samples, spans: Sequence[Span]) -> dict[str, Any]:
    runs = [_working(run) for run in (_within(samples, *span) for span in spans) if run]
    runs = runs or [_working(samples)]
    # Runs at the same time share samples.
    counted = list({id(sample): sample for sample in chain.from_iterable(runs)}.values())
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
        where = f"in {share * 100:.0f} % of {'one of its runs' if len(runs) > 1 else 'the sample'}"
        summary["slowed"] = f"GPU {index} was slowed down ({text}) {where}: mend cooling or power"
    return summary


def _within(samples: Samples, start: float, end: float) -> Samples:
    """Return the samples of a span. A sample stands for half a period before and after it."""
    half = _PERIOD / 2
    return [item for item in samples if start - half <= item.get("time", 0.0) <= end + half]


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
    """Return the share of the samples that each throttle reason was there in."""
    masks = [sample["reasons"] for sample in samples if "reasons" in sample]
    reasons = {text: bit for bit, text in _REASONS.items() if bit != _IDLE}
    counts = {text: sum(bool(mask & bit) for mask in masks) for text, bit in reasons.items()}
    return {text: count / len(masks) for text, count in counts.items() if count}
