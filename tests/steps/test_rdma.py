"""perftest: arguments, refusals, parsers on texts in its formats, and the real tool's error
path.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest

from perfdag.benchmark.contract import Gang, Skip
from perfdag.hosts.local import LocalHost, LocalProcess
from perfdag.shape import Shape
from perfdag.steps import rdma
from perfdag.steps.rdma import BandwidthParams, RdmaBandwidth, RdmaLatency

RECORDED = Path(__file__).parent.parent / "recorded" / "perftest"
BANDWIDTH = "constructed-write-bw-all-26.04.txt"


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    """Put shell scripts in place of programs."""
    for name, script in programs.items():
        program = folder / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(LocalProcess, "await_listening", lambda *_: None)  # the tool is a text


# -- parameters ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("benchmark", "params", "size", "words"),
    [
        (RdmaBandwidth(), {}, None, "ib_write_bw|-n 1000|-q 1|-a"),
        (
            RdmaBandwidth(),
            {
                "mode": "send",
                "iterations": 25,
                "qps": 512,
                "sizes": ["4KiB"],
                "mtu": 4096,
                "connection": "UD",
                "device": "mlx5_1",
                "port": 2,
                "gid_index": 3,
                "rdma_cm": True,
                "bidirectional": True,
                "extra_args": ["--tclass=96"],
            },
            4096,
            "ib_send_bw|-c UD|-i 2|-n 25|-s 4096|-m 4096|-d mlx5_1|-x 3|-R|-q 512|-b|--tclass=96",
        ),
        (
            RdmaLatency(),
            {"mode": "read", "duration": "10s", "sizes": [2]},
            2,
            "ib_read_lat -F -c RC -i 1|-D 10",
        ),
    ],
)
def test_every_parameter_reaches_the_command(
    benchmark: Any, params: dict[str, Any], size: int | None, words: str
) -> None:
    argv = benchmark.arguments(benchmark.Params(**params), size)
    assert [part for part in words.split("|") if f" {part} " not in f" {' '.join(argv)} "] == []
    assert ("-a" in argv) == ("-a" in words.split("|")), "all sizes only where they are asked"


@pytest.mark.parametrize(
    ("benchmark", "params", "messages"),
    [
        (RdmaBandwidth(), {}, 1000),
        (RdmaBandwidth(), {"qps": 16, "iterations": 5000, "bidirectional": True}, 5000 * 16 * 2),
        (RdmaBandwidth(), {"qps": 512, "sizes": ["1MiB", "8MiB"]}, 1000 * 512),
        (
            RdmaBandwidth(),
            {"mode": "send", "connection": "UD", "iterations": 100_000_000},
            100_000_000,
        ),
        (RdmaLatency(), {"iterations": 100_000}, 100_000 * 2),
    ],
)
def test_the_default_limit_leaves_room_for_all_bytes_over_a_slow_link(
    benchmark: Any, params: dict[str, Any], messages: int
) -> None:
    value = benchmark.Params(**params)
    at_10_gbit = messages * sum(value.expected_sizes) * 8 / 10e9
    assert at_10_gbit < benchmark.seconds(value) < benchmark.limit(value)


@pytest.mark.parametrize("benchmark", [RdmaBandwidth(), RdmaLatency()])
@pytest.mark.parametrize(
    ("options", "fits"),
    [
        ({}, False),
        *(
            ({"resources": {name: 2}}, False)
            for name in (
                "cpu",
                "nvidia.com/gpu",
                "nvidia.com/gpu.shared",
                "nvidia.com/mig-1g.5gb",
                "gpu.intel.com/i915",
            )
        ),
        ({"network": {"name": "default/mlnx-net"}}, True),
        ({"network": {"host": True}}, True),
        ({"resources": {"rdma/hca_shared_devices_a": 1}}, True),
    ],
)
def test_a_suite_without_a_network_or_device_is_refused(
    benchmark: Any, options: dict[str, Any], fits: bool
) -> None:
    requests = benchmark.shape(benchmark.Params())
    assert requests == {"image": "perftest", "hosts": {"count": 2}, "privileges": ["rdma"]}
    problems = benchmark.check(benchmark.Params(), Shape.model_validate({**requests, **options}))
    assert [problem.code for problem in problems] == ["no-rdma"] * (not fits)


@pytest.mark.parametrize(
    ("family", "help_text", "error"),
    [
        ("ipv4", "--ipv6-addr (SYMMETRIC)", None),
        ("ipv4", "--ipv6  Use IPv6 GID", None),
        ("ipv6", "--ipv6-addr (SYMMETRIC)", None),
        (
            "ipv6",
            "--ipv6  Use IPv6 GID",
            r"ib_write_bw on .* negotiates over IPv4 only; use a perftest of 23\.07 or later",
        ),
    ],
)
def test_over_ipv6_both_sides_negotiate_over_it_or_the_sample_is_skipped(
    family: str,
    help_text: str,
    error: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = f"""case "$*" in
*--help*) echo '{help_text}';;
*--version*) echo 'Version: 6.20';;
*) cat {RECORDED / BANDWIDTH};;
esac"""
    install(tmp_path, monkeypatch, ib_write_bw=script)
    monkeypatch.setattr(rdma, "require_rdma", lambda host: None)
    shape = Shape.model_validate({"network": {"family": family}})
    gang = Gang([LocalHost("::1"), LocalHost("::1")], shape, 20, str(tmp_path))
    if error:
        with pytest.raises(Skip, match=error):
            RdmaBandwidth().require(gang, BandwidthParams())
        return
    RdmaBandwidth().require(gang, BandwidthParams())
    RdmaBandwidth().run(gang, BandwidthParams())
    for argv in gang.output.argv:
        assert ("--ipv6-addr" in argv, "--ipv6" in argv) == (family == "ipv6",) * 2


# -- the real tool without a device --------------------------------------------------------------


@pytest.mark.skipif(
    shutil.which("ib_write_bw") is None, reason="needs perftest: apt-get install perftest"
)
@pytest.mark.skipif(
    Path("/sys/class/infiniband").exists(), reason="this machine has an RDMA device"
)
def test_the_real_tool_without_a_device_is_skipped_with_what_the_node_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark, gang = RdmaBandwidth(), Gang([LocalHost(), LocalHost()], Shape(), 20, str(tmp_path))
    with pytest.raises(
        Skip,
        match=r" has no RDMA device: /sys/class/infiniband is absent",
    ):
        benchmark.require(gang, BandwidthParams())
    # even where the look beforehand finds nothing amiss, the tool's own words end in a skip
    for rdma_cm in (False, True):
        with pytest.raises(Skip, match="finds no RDMA device on "):
            benchmark.run(gang, BandwidthParams(rdma_cm=rdma_cm))
