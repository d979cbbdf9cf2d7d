"""What the GPUs of a host do meanwhile: utilisation, memory in use and power.

NVIDIA's are read with nvidia-smi (gpu_queries). Intel's are read with `xpu-smi dump` (Intel XPU
Manager, doc/smi_user_guide.md), or from the counters of the i915 and xe drivers in sysfs: energy
(Documentation/ABI/testing/sysfs-driver-intel-i915-hwmon and -xe-hwmon) and the time of a GT in its
idle state (rc6_residency_ms, gtidle/idle_residency_ms).
"""

import contextlib
import csv
import io
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from perfdag.hosts import gpu_queries
from perfdag.hosts.base import Host

_XPU = {
    "GPU Utilization (%)": "utilisation",
    "GPU Power (W)": "power",
    "GPU Memory Used (MiB)": "memory",
}
"""Columns of `xpu-smi dump -m 0,1,18`."""
_IDLE = {"i915": "drm/card*/gt/gt*/rc6_residency_ms", "xe": "tile*/gt*/gtidle/idle_residency_ms"}
"""Counters of idle milliseconds below a device, by its driver."""


@dataclass(frozen=True)
class DeviceUse:
    """Utilisation (0 to 1) and power (W) at the median or mean, memory (B) at its most.

    What a reader does not know is None.
    """

    utilisation: float | None = None
    memory: float | None = None
    power: float | None = None


@contextlib.contextmanager
def watched(host: Host, sysfs: Path | None = Path("/sys")) -> Iterator[dict[str, DeviceUse]]:
    """Watch the GPUs of a host in the block; after it, the dictionary has their use by device.

    ``sysfs``: of this machine, None for a host elsewhere. Names are those of device files:
    `nvidia0`, `renderD128`; of xpu-smi `xpu0`.
    """
    use: dict[str, DeviceUse] = {}
    intel = host.which("xpu-smi") is not None
    before = read_counters(sysfs) if sysfs and not intel else {}
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        nvidia = (
            stack.enter_context(gpu_queries.watched(host, computes=False))
            if host.which("nvidia-smi")
            else {}
        )
        dump = ["xpu-smi", "dump", "-d", "-1", "-m", "0,1,18", "-i", "1"]
        sampling = stack.enter_context(host.serve(dump)) if intel else None
        yield use
        seconds = time.monotonic() - start
        after = read_counters(sysfs) if sysfs and not intel else {}
        text = sampling.stop().stdout if sampling else ""
    use |= from_nvidia(nvidia) | from_xpu_smi(text) | from_counters(before, after, seconds)


def from_nvidia(watch: Mapping[str, list[dict[str, dict[str, float]]]]) -> dict[str, DeviceUse]:
    """Return the use by GPU from the result of gpu_queries.watched()."""
    return {
        f"nvidia{gpu['index']}": DeviceUse(
            gpu.get("utilisation", {}).get("median"),
            gpu.get("memory_used", {}).get("high"),
            gpu.get("power", {}).get("median"),
        )
        for gpu in watch.get("during", ())
    }


def from_xpu_smi(text: str) -> dict[str, DeviceUse]:
    """Return the use by GPU from the output of `xpu-smi dump`. Unknown cells are `N/A`."""
    samples: dict[str, dict[str, list[float]]] = {}
    for row in csv.DictReader(io.StringIO(text), skipinitialspace=True):
        device = (row.get("DeviceId") or "").strip()
        for column, name in _XPU.items():
            with contextlib.suppress(TypeError, ValueError):
                value = float(row.get(column) or "")
                samples.setdefault(f"xpu{device}", {}).setdefault(name, []).append(value)
    uses = {}
    for device, values in samples.items():
        utilisation, memory, power = (values.get(n) for n in ("utilisation", "memory", "power"))
        uses[device] = DeviceUse(
            statistics.median(utilisation) / 100 if utilisation else None,
            max(memory) * 2**20 if memory else None,
            statistics.median(power) if power else None,
        )
    return uses


@dataclass(frozen=True)
class Counters:
    """Counters of a GPU: idle milliseconds of each GT, and microjoules; None if unknown."""

    idle: tuple[int, ...]
    energy: int | None


def read_counters(sysfs: Path) -> dict[str, Counters]:
    """Return the counters of the GPUs of the drivers i915 and xe, by render node."""
    counters = {}
    for node in sorted((sysfs / "class/drm").glob("renderD*")):
        device = node / "device"
        driver = (device / "driver").resolve().name
        if driver in _IDLE:
            idle = [_number(path) for path in sorted(device.glob(_IDLE[driver]))]
            energy = [
                _number(path)
                for path in sorted(device.glob("hwmon/hwmon*/energy1_input"))
                if _text(path.with_name("name")) == driver  # i915 has one of each GT, too
            ]
            counters[node.name] = Counters(
                tuple(value for value in idle if value is not None), energy[0] if energy else None
            )
    return counters


def from_counters(
    before: Mapping[str, Counters], after: Mapping[str, Counters], seconds: float
) -> dict[str, DeviceUse]:
    """Return the use of GPUs between two readings; utilisation is that of the busiest GT.

    A GT counts as busy while it is awake, so utilisation is an upper bound.
    """
    uses = {}
    for name, last in after.items():
        first = before.get(name)
        if first is None or seconds <= 0:
            continue
        busy = [1 - (b - a) / 1000 / seconds for a, b in zip(first.idle, last.idle, strict=False)]
        power = None
        if first.energy is not None and last.energy is not None:
            power = (last.energy - first.energy) / 1e6 / seconds
        uses[name] = DeviceUse(
            min(1.0, max(0.0, *busy)) if busy else None,
            None,
            power if power is not None and power >= 0 else None,
        )
    return uses


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    try:
        return int(_text(path))
    except ValueError:
        return None
