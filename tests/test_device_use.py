"""The use of GPUs by three readers. No GPU was here: outputs follow the tools' documentation."""

import json
import os
import time
from pathlib import Path

import pytest

from perfdag.cli import main
from perfdag.hosts import device_use
from perfdag.hosts.device_use import Counters, DeviceUse
from perfdag.hosts.local import LocalHost
from tests.conftest import CommandLine

NVIDIA = """\
0, 1500, 5000, 60.50, 70, 99, 1024, 0x0000000000000000, 2026/11/22 12:00:00.000
1, 1500, 5000, 20.50, 40, 0, 10, 0x0000000000000001, 2026/11/22 12:00:00.000
0, 1500, 5000, 62.50, 70, 97, 2048, 0x0000000000000000, 2026/11/22 12:00:00.500
1, 1500, 5000, [N/A], 40, 0, 10, 0x0000000000000001, 2026/11/22 12:00:00.500
"""
XPU = """\
Timestamp, DeviceId, GPU Utilization (%), GPU Power (W), GPU Memory Used (MiB)
06:14:46.000,    0, 95.00, 80.10, 500.25
06:14:46.000,    1, N/A, 14.61, N/A
06:14:47.000,    0, 97.00, 82.10, 600.50
06:14:47.000,    1, N/A, 14.59, N/A
06:14:48.0
"""


def tools(folder: Path, monkeypatch: pytest.MonkeyPatch, **outputs: str) -> None:
    """Put programs in the PATH that print a text, and then wait for their end."""
    for name, text in outputs.items():
        program = folder / name.replace("_", "-")
        (folder / f"{name}.txt").write_text(text)
        program.write_text(
            f"#!/bin/sh\ncat {folder}/{name}.txt\ncase $* in *loop*|*dump*) sleep 60;; esac\n"
        )
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def tree(folder: Path, files: dict[str, str], drivers: dict[str, str]) -> Path:
    """A sysfs with render nodes of drivers, and files of their devices."""
    for node, driver in drivers.items():
        device = folder / "class/drm" / node / "device"
        device.mkdir(parents=True, exist_ok=True)
        if not (device / "driver").exists():
            (folder / "drivers" / driver).mkdir(parents=True, exist_ok=True)
            (device / "driver").symlink_to(folder / "drivers" / driver)
    for name, text in files.items():
        file = folder / "class/drm" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return folder


def test_the_tools_of_nvidia_and_intel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools(tmp_path, monkeypatch, nvidia_smi=NVIDIA, xpu_smi=XPU)
    with device_use.watched(LocalHost(), None) as use:
        time.sleep(0.5)
    assert use["nvidia0"] == DeviceUse(pytest.approx(0.98), 2048 * 2**20, 61.5)
    assert use["nvidia1"] == DeviceUse(0.0, 10 * 2**20, 20.5)
    assert use["xpu0"] == DeviceUse(pytest.approx(0.96), 600.5 * 2**20, pytest.approx(81.1))
    assert use["xpu1"] == DeviceUse(None, None, pytest.approx(14.6))
    assert use.keys() == {"nvidia0", "nvidia1", "xpu0", "xpu1"}


@pytest.mark.parametrize(
    ("text", "use"),
    [
        ("", {}),
        ("Error: no device\n", {}),
        ("Timestamp, DeviceId\n06:14:46.000, 0\n", {}),
        ("Timestamp, DeviceId, GPU Power (W)\n06:14:46.000, 0, 9\n", {"xpu0": DeviceUse(power=9)}),
    ],
)
def test_what_xpu_smi_does_not_say_is_unknown(text: str, use: dict[str, DeviceUse]) -> None:
    assert device_use.from_xpu_smi(text) == use


def test_counters_of_i915_and_xe(tmp_path: Path) -> None:
    drivers = {"renderD128": "i915", "renderD129": "xe", "renderD130": "amdgpu"}
    i915, xe = "renderD128/device", "renderD129/device"
    files = {
        f"{i915}/drm/card0/gt/gt0/rc6_residency_ms": "1000",
        f"{i915}/drm/card0/gt/gt1/rc6_residency_ms": "9000",
        f"{i915}/hwmon/hwmon3/name": "i915_gt0",
        f"{i915}/hwmon/hwmon3/energy1_input": "1",
        f"{i915}/hwmon/hwmon4/name": "i915",
        f"{i915}/hwmon/hwmon4/energy1_input": "5000000",
        f"{xe}/tile0/gt0/gtidle/idle_residency_ms": "200",
        f"{xe}/hwmon/hwmon5/name": "xe",
        "renderD130/device/hwmon/hwmon6/energy1_input": "7",
    }
    before = device_use.read_counters(tree(tmp_path, files, drivers))
    assert before == {
        "renderD128": Counters((1000, 9000), 5000000),
        "renderD129": Counters((200,), None),
    }
    files[f"{i915}/drm/card0/gt/gt0/rc6_residency_ms"] = "1500"
    files[f"{i915}/drm/card0/gt/gt1/rc6_residency_ms"] = "11000"
    files[f"{i915}/hwmon/hwmon4/energy1_input"] = "65000000"
    files[f"{xe}/tile0/gt0/gtidle/idle_residency_ms"] = "2300"
    after = device_use.read_counters(tree(tmp_path, files, drivers))
    assert device_use.from_counters(before, after, 2.0) == {
        "renderD128": DeviceUse(0.75, None, 30.0),
        "renderD129": DeviceUse(0.0, None, None),  # idle for longer than the clock says
    }
    assert device_use.from_counters({}, after, 2.0) == {}
    assert device_use.read_counters(tmp_path / "none") == {}


def test_once_reports_what_an_item_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    tools(tmp_path, monkeypatch, nvidia_smi=NVIDIA)
    script = (
        "x=$(head -c 60000000 /dev/zero | tr '\\0' x); i=0; while [ $i -lt 100000 ]; do "
        "i=$((i+1)); done"
    )
    argv = ["queue", "backend", "--once", "--report", "--", "/bin/sh", "-c", script]
    used = json.loads(cli(argv).out)
    assert 0 < used["cpu_seconds"] <= 2 * used["seconds"]
    assert used["cpus"] == pytest.approx(used["cpu_seconds"] / used["seconds"])
    assert used["memory_bytes"] is None or used["memory_bytes"] > 60e6
    assert used["devices"]["nvidia0"]["power"] == 61.5
    assert main([*argv[:-1], "exit 3"]) == 1
    assert (
        "--report needs --once" in cli(["queue", "backend", "--report", "--", "sleep", "1"], 2).err
    )
