"""Facts of a host: trees of /proc and /sys, this machine, its GPUs and their use."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from perfdag.hosts import facts, gpu_use as asking, local
from perfdag.hosts.facts import env_class, filesystem, gather
from perfdag.hosts.gpu_use import gpus
from perfdag.hosts.local import LocalHost
from tests.conftest import CommandLine, SuiteWriter
from tests.fakes.files import write_files, write_programs

SERVER = {
    "cpu_model": "Intel(R) Xeon(R) Gold 6338",
    "cpu_sockets": 2,
    "cpu_cores": 4,
    "cpu_threads": 8,
    "cpu_governor": "performance,powersave",
    # of all cores: another one may be limited
    "cpu_frequency_limits": [800_000_000, 3_200_000_000],
    "cpu_energy_preference": "balance_power",
    "cpu_boost": False,
    "numa_nodes": 2,
    "transparent_hugepages": "madvise",
    "hugepages": {"2048kB": 512},
    "clock_source": "hpet",
    # what does not affect the CPU is left out, because each kernel adds names
    "mitigations": {"mds": "Vulnerable"},
    "memory_bytes": 263921340 * 1024,
    "distribution": "Ubuntu 24.04.1 LTS",
    "nics": [
        {
            "name": "ens1",
            "driver": "mlx5_core",
            "model": "15b3:1017",
            "speed": 100_000_000_000,
            "mtu": 9000,
            "state": None,
        }
    ],
    "rdma": [
        {
            "name": "mlx5_0:1",
            "model": "MT4119",
            "firmware": "16.35.2000",
            "speed": 100_000_000_000,
            "state": "ACTIVE",
            "link_layer": "Ethernet",
        }
    ],
    "firmware": "1.12.1",
    "load": 1.0,
    "virtualisation": "none",
    # the others may hold passwords and addresses
    "kernel_options": "isolcpus=nohz,2-5 mitigations=off hugepagesz=1G",
    # of sysctl; what is not visible here is None
    "net.ipv4.tcp_rmem": "4096 131072 6291456",
    "net.core.default_qdisc": "fq",
    "net.core.rmem_max": None,
    "kernel.numa_balancing": "1",
    "vm.dirty_background_ratio": "10",
    # of cgroup; the limit is that of the pod, not at the root
    "version": 2,
    "cpu_limit": 4.0,
    "memory_limit_bytes": 1 << 30,
}

XEON = (
    "processor\t: {n}\nmodel name\t: Intel(R) Xeon(R) Gold 6338\nphysical id\t: {socket}\n"
    "core id\t: {core}\nflags\t: fpu {flag}\n\n"
)


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """Two sockets of two cores with two threads each, a fast NIC, a bridge that is none, cgroup
    version 2 limits on a parent.
    """
    cpus = [(n, n % 4 // 2, n % 2) for n in range(8)]
    root = write_files(
        tmp_path,
        {
            "proc/cpuinfo": "".join(
                XEON.format(n=n, socket=socket, core=core, flag="vmx") for n, socket, core in cpus
            ),
            "proc/meminfo": "MemTotal:       263921340 kB\nMemFree: 1 kB\n",
            "proc/self/cgroup": "0::/kubepods/pod1/a\n",
            "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
            "sys/fs/cgroup/kubepods/pod1/cpu.max": "400000 100000\n",
            "sys/fs/cgroup/kubepods/pod1/a/cpu.max": "max 100000\n",
            "sys/fs/cgroup/kubepods/pod1/a/memory.max": "1073741824\n",
            "sys/fs/cgroup/kubepods/memory.max": "max\n",
            "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.1 LTS"\n',
            "sys/class/net/ens1/speed": "100000\n",
            "sys/class/net/ens1/mtu": "9000\n",
            "sys/class/net/ens1/device/vendor": "0x15b3\n",
            "sys/class/net/ens1/device/device": "0x1017\n",
            "sys/class/infiniband/mlx5_0/fw_ver": "16.35.2000\n",
            "sys/class/infiniband/mlx5_0/hca_type": "MT4119\n",
            "sys/class/infiniband/mlx5_0/ports/1/rate": "100 Gb/sec (4X EDR)\n",
            "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
            "sys/class/infiniband/mlx5_0/ports/1/link_layer": "Ethernet\n",
            "sys/class/dmi/id/bios_version": "1.12.1\n",
            "proc/cmdline": "BOOT_IMAGE=/vmlinuz isolcpus=nohz,2-5 rd.iscsi.password=hunter2"
            " url=https://u:pw@host mitigations=off quiet hugepagesz=1G cc: secret end_cc\n",
            "proc/loadavg": "0.10 3.90 8.40 3/900 4711\n",
            "proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456\n",
            "proc/sys/net/core/default_qdisc": "fq\n",
            "sys/class/net/lo/mtu": "65536\n",
            "sys/class/net/cali0123/mtu": "1450\n",
            "sys/bus/pci/drivers/mlx5_core/bind": "",
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
            "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "powersave\n",
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq": "3200000\n",
            "sys/devices/system/cpu/cpu1/cpufreq/scaling_max_freq": "800000\n",
            "sys/devices/system/cpu/cpu1/cpufreq/energy_performance_preference": "balance_power\n",
            "sys/devices/system/cpu/intel_pstate/no_turbo": "1\n",
            "sys/devices/system/cpu/vulnerabilities/mds": "Vulnerable\n",
            "sys/devices/system/cpu/vulnerabilities/l1tf": "Not affected\n",
            "sys/devices/system/node/node0/cpulist": "0-3\n",
            "sys/devices/system/node/node1/cpulist": "4-7\n",
            "sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n",
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
            "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "512\n",
            "proc/sys/kernel/numa_balancing": "1\n",
            "proc/sys/vm/dirty_background_ratio": "10\n",
            "sys/class/dmi/id/sys_vendor": "Dell Inc.\n",
            "sys/class/dmi/id/product_name": "PowerEdge R650\n",
        },
    )
    device = root / "sys/class/net/ens1/device"
    (device / "driver").symlink_to(root / "sys/bus/pci/drivers/mlx5_core")
    return root


def test_a_server(server: Path) -> None:
    result = gather(server)
    result |= result["cgroup"] | result["sysctl"]
    assert {name: result[name] for name in SERVER} == SERVER
    assert facts.memory(server) == 1 << 30


ARM = "processor\t: {}\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n\n"


LIMITS = "sys/fs/cgroup/{}"


@pytest.mark.parametrize(
    ("files", "facts"),
    [
        pytest.param(
            {
                "proc/cpuinfo": XEON.format(n=0, socket=0, core=0, flag="hypervisor"),
                "sys/class/dmi/id/sys_vendor": "QEMU\n",
                "sys/class/dmi/id/product_name": "Standard PC (Q35 + ICH9, 2009)\n",
            },
            {"virtualisation": "QEMU Standard PC (Q35 + ICH9, 2009)"},
            id="guest",
        ),
        pytest.param(
            {
                "proc/cpuinfo": XEON.format(n=0, socket=0, core=0, flag="vmx"),
                "sys/class/dmi/id/sys_vendor": "Amazon EC2\n",
                "sys/class/dmi/id/product_name": "c5.metal\n",
            },
            {"virtualisation": "none"},
            id="bare metal of a cloud",
        ),
        pytest.param(
            {"sys/devices/system/cpu/cpufreq/boost": "1\n"}, {"cpu_boost": True}, id="AMD"
        ),
        pytest.param(
            {"proc/cpuinfo": ARM.format(0) + ARM.format(1)},
            {
                "cpu_model": "ARM implementer 0x41 part 0xd0c",
                "cpu_threads": 2,
                "cpu_cores": None,
            },
            id="arm64",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "9:name=systemd:/\n4:memory:/docker/abc\n1:cpu:/docker/abc\n",
                LIMITS.format("cpu/cpu.cfs_quota_us"): "150000\n",
                LIMITS.format("cpu/cpu.cfs_period_us"): "100000\n",
                LIMITS.format("memory/memory.limit_in_bytes"): "536870912\n",
            },
            {"version": 1, "cpu_limit": 1.5, "memory_limit_bytes": 1 << 29},
            id="cgroup version 1 in a container that sees the host's path",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:memory:/\n1:cpu:/\n",
                LIMITS.format("cpu/cpu.cfs_quota_us"): "-1\n",
                LIMITS.format("cpu/cpu.cfs_period_us"): "100000\n",
                LIMITS.format("memory/memory.limit_in_bytes"): "9223372036854771712\n",
            },
            {"cpu_limit": None, "memory_limit_bytes": None},
            id="no limit",
        ),
    ],
)
def test_other_machines(tmp_path: Path, files: dict[str, str], facts: dict[str, Any]) -> None:
    result = gather(write_files(tmp_path, files))
    guest = "hypervisor" in files.get("proc/cpuinfo", "")
    assert env_class(result).endswith("virtual") == guest
    result |= result["cgroup"]
    assert {name: result[name] for name in facts} == facts


def test_env_class_is_the_hardware_and_nothing_else(server: Path) -> None:
    facts = gather(server)
    expected = "Intel(R) Xeon(R) Gold 6338, 8 threads, 252 GiB, mlx5_core 100 Gbit/s"
    assert env_class(facts) == expected
    other = {
        **facts,
        "kernel": "9.9",
        "distribution": "Other",
        "host": "elsewhere",
        "cpu_governor": "x",
        "memory_bytes": facts["memory_bytes"] + 10**7,
    }
    assert env_class(other) == expected
    assert env_class(facts, other) == f"2 x [{expected}]"
    assert (
        env_class({**facts, "gpus": [{"name": "NVIDIA H200", "driver": "550.1"}]})
        == f"{expected}, NVIDIA H200"
    )
    assert env_class({}) == "unknown CPU"


def test_an_empty_tree_and_garbage_cost_nothing(tmp_path: Path) -> None:
    empty = gather(tmp_path)
    assert (empty["nics"], empty["rdma"], empty["kernel_options"]) == ([], [], None)
    junk = "\x00\xff: : -\n- -\n0::\n1:cpu\n"
    names = (
        "proc/cpuinfo",
        "proc/meminfo",
        "proc/self/cgroup",
        "etc/os-release",
        "sys/class/net/x/speed",
        "sys/class/infiniband/x/ports/1/rate",
        "proc/loadavg",
    )
    gather(write_files(tmp_path, dict.fromkeys(names, junk)))


def test_the_file_system_of_a_path_that_is_not_yet_there_and_the_disk_below_lvm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition queues as its disk does, and a volume has a read-ahead of its own."""
    mount = {"fstype": "ext4", "source": "/dev/dm-0", "target": "/", "options": "rw,relatime"}
    listed = {"filesystems": [{**mount, "maj:min": "253:0", "size": 4096, "avail": 1024}]}
    script = f"[ \"$7\" = '{tmp_path}' ] && echo '{json.dumps(listed)}'"
    write_programs(tmp_path / "bin", {"findmnt": script})
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    disk, volume = "sys/devices/pci/block/sda", "sys/devices/virtual/block/dm-0"
    root = write_files(
        tmp_path,
        {
            f"{disk}/queue/rotational": "1\n",
            f"{disk}/queue/scheduler": "none [bfq]\n",
            f"{disk}/queue/nr_requests": "64\n",
            f"{disk}/queue/nomerges": "0\n",
            f"{disk}/queue/write_cache": "write through\n",
            f"{disk}/queue/read_ahead_kb": "128\n",
            f"{disk}/device/model": "WDC WD40\n",
            f"{disk}/device/rev": "81.0\n",
            f"{disk}/sda1/x": "",
            f"{volume}/queue/scheduler": "none\n",
            f"{volume}/queue/read_ahead_kb": "4\n",
        },
    )
    for folder, link, target in (
        (root / "sys/dev/block", "253:0", volume),
        (root / volume / "slaves", "sda1", f"{disk}/sda1"),
    ):
        folder.mkdir(parents=True)
        (folder / link).symlink_to(root / target)
    path = tmp_path / "not" / "there"
    assert filesystem(path, root) == {
        "path": str(path),
        **{"type": "ext4", "device": "/dev/dm-0", "mount": "/", "options": "rw,relatime"},
        **{"rotational": True, "scheduler": "bfq", "disk": "WDC WD40", "disk_firmware": "81.0"},
        **{"read_ahead_bytes": 4096, "nr_requests": 64, "nomerges": 0},
        **{"write_cache": "write through", "total_bytes": 4096, "free_bytes": 1024},
    }
    listed["filesystems"][0] |= {
        "fstype": "zfs",
        "options": "rw,lowerdir=/s/7/fs:/s/6/fs,upperdir=/s/8/fs,workdir=/s/8/work,index=off",
    }
    write_programs(tmp_path / "bin", {"findmnt": f"echo '{json.dumps(listed)}'"})
    write_files(tmp_path, {"sys/module/zfs/version": "2.2.2-0ubuntu9\n"})
    facts = filesystem(path, root)
    assert facts["options"] == "rw,index=off", "where a container's layers lie is new in every run"
    assert facts["zfs_version"] == "2.2.2-0ubuntu9"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert set(filesystem(path, root).values()) == {str(path), None}


def test_this_machine_as_a_program() -> None:
    def asked(*words: str) -> dict[str, Any]:
        argv = [sys.executable, "-m", "perfdag.hosts.facts", *words]
        ran = subprocess.run(argv, capture_output=True, text=True, check=True)
        result: dict[str, Any] = json.loads(ran.stdout)
        return result

    here, root = asked(), asked("--filesystem", "/")
    assert here["kernel"] == os.uname().release
    assert min(here["cpu_threads"], here["memory_bytes"], root["total_bytes"]) >= 1
    assert (root["mount"], bool(root["type"])) == ("/", True)


def test_a_cgroup_without_files_is_told_and_not_taken_for_quiet(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    assert facts.unseen(tmp_path) == [], "a system without cgroups"
    (tmp_path / "proc/self/cgroup").write_text("0::/kubepods/x\n")
    absent = ["throttling by a CPU quota", "kills for a memory limit"]
    assert facts.unseen(tmp_path) == absent
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cgroup.controllers").touch()
    (tmp_path / "sys/fs/cgroup/cpu.stat").touch()
    assert facts.unseen(tmp_path) == []


@pytest.mark.parametrize(
    ("allowed", "limit", "used"),
    [(8, None, 8), (8, 4.0, 4), (8, 2.5, 2), (8, 0.5, 1), (2, 16.0, 2)],
)
def test_a_quota_counts_like_cpus(
    allowed: int, limit: float | None, used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "limits", lambda: {"cpus_allowed": allowed, "cpu_limit": limit})
    assert facts.cpus() == used


A100 = "NVIDIA A100-SXM4-40GB, 550.90.07, 40960, 400.00, Enabled, Disabled"


def fake_nvidia_smi(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *lines: str,
    listing: str = "",
    refuse: str = "no.such.field",
) -> None:
    table = "".join(f"{line}\n" for line in lines)
    write_files(folder, {"table": table, "listing": listing})
    refusal = f"""*{refuse}*) echo 'Field "{refuse}" is not a valid field to query.'; exit 2;;"""
    cases = f"-L) cat {folder}/listing;; {refusal} *) cat {folder}/table;;"
    write_programs(folder, {"nvidia-smi": f'case "$*" in {cases} esac'})
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_another_driver_of_a_gpu_shows_in_a_comparison(
    write_suite: SuiteWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    suite = str(write_suite.sleeps(1, 1))
    stores = [str(tmp_path / name) for name in ("first", "driver")]  # runs of a second: no order
    for store, line in zip(stores, (A100, A100.replace("550.90.07", "570.10")), strict=True):
        fake_nvidia_smi(tmp_path / "fake", monkeypatch, line, line)
        cli(["run", suite, "--store", store, "--no-report"])
    output = cli(["compare", "last", "last", "--store", stores[0], "--store-b", stores[1]]).out
    assert "gpus.NVIDIA A100-SXM4-40GB.driver: 550.90.07 -> 570.10" in output
    assert "env_class" not in output


def test_facts_of_a_gpu_have_units_and_mig_slices_are_hardware(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = (
        "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)\n  MIG 1g.5gb      Device  0: (UUID: MIG-1)\n"
        "  MIG 3g.20gb     Device  1: (UUID: MIG-2)\n"
    )
    fake_nvidia_smi(tmp_path, monkeypatch, A100.replace("Disabled", "Enabled"), listing=listing)
    (result,) = LocalHost().facts()["gpus"]
    assert (result["memory_bytes"], result["power_limit"], result["ecc"]) == (
        40960 * 2**20,
        400.0,
        "Enabled",
    )
    assert (
        env_class({"cpu_model": "C", "gpus": [result]})
        == "C, NVIDIA A100-SXM4-40GB (MIG 1g.5gb, 3g.20gb)"
    )


def test_an_old_driver_or_a_broken_one_costs_no_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvidia_smi(
        tmp_path,
        monkeypatch,
        "[Unknown Error], 440.1, [N/A], 70.00, [N/A]",
        refuse="mig.mode.current",
    )
    [device] = gpus(LocalHost()) or []
    assert (device["name"], device["driver"], device["memory_bytes"]) == (
        "unknown GPU",
        "440.1",
        None,
    )
    fake_nvidia_smi(tmp_path, monkeypatch, refuse="query")
    assert gpus(LocalHost()) is None
    assert env_class({"cpu_model": "C", "gpus": None}) == "C"
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert LocalHost().facts()["gpus"] == []


def test_a_driver_that_hangs_is_asked_once_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvidia_smi(tmp_path, monkeypatch)
    write_programs(tmp_path, {"nvidia-smi": f"echo call >>{tmp_path}/calls\nexec sleep 2"})
    monkeypatch.setattr(asking, "TIMEOUT", 0.2)
    # what SIGKILL is to a process that waits in the driver
    monkeypatch.setattr(local, "signal_tree", lambda *_: None)
    start = time.monotonic()
    result = LocalHost().facts()
    assert time.monotonic() - start < 1.5
    assert (tmp_path / "calls").read_text() == "call\n"
    assert result["gpus"] is None
    assert result["kernel"]
