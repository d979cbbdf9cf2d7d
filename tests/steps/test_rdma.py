"""perftest: arguments, refusals, parsers on texts in its formats, and the real tool's error
path.
"""

import itertools
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from perfdag.benchmark.contract import Gang, Output
from perfdag.hosts.base import CommandResult
from perfdag.hosts.local import LocalHost, LocalProcess
from perfdag.outcome import Failed, Invalid, Skip
from perfdag.shape import Shape
from perfdag.steps import gpu_watch, rdma
from perfdag.steps.rdma import BandwidthParams, LatencyParams, RdmaBandwidth, RdmaLatency

RECORDED = Path(__file__).parent.parent / "recorded" / "perftest"


def text(name: str) -> str:
    return (RECORDED / name).read_text()


def figures(benchmark: Any, params: Any, client: str, report: str = "") -> dict[Any, float]:
    """Return the values by metric, statistic and message size."""
    return {
        (m.metric, m.stat, m.coords.get("message_bytes")): m.value
        for m in benchmark.parse(output(client, report), params)
    }


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    """Put shell scripts in place of programs."""
    for name, script in programs.items():
        program = folder / name.replace("nvidia_smi", "nvidia-smi")
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(LocalProcess, "await_listening", lambda *_: None)  # the tool is a text


def output(client: str, report: str = "") -> Output:
    return Output({"client0": client, "server0": client, "json0": report}, tool="perftest 6.06")


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
                "cuda": 1,
                "extra_args": ["--tclass=96"],
            },
            4096,
            "ib_send_bw|-c UD|-i 2|-n 25|-s 4096|-m 4096|-d mlx5_1|-x 3|-R|--use_cuda=1|-q 512|-b|"
            "--tclass=96",
        ),
        (
            RdmaLatency(),
            {"mode": "read", "duration": "10s", "sizes": [2]},
            2,
            "ib_read_lat -F -c RC -i 1|-D 10",
        ),
        (
            RdmaLatency(),
            {"mode": "atomic", "atomic": "CMP_AND_SWAP"},
            None,
            "ib_atomic_lat|-A CMP_AND_SWAP",
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
    ("bad", "message"),
    [
        ({"iterations": 4}, "greater than or equal to 5"),
        ({"mode": "read", "connection": "UC"}, "it has RC, XRC, DC"),
        ({"mode": "write", "connection": "UD"}, "has no connection UD"),
        ({"duration": "10s"}, "cannot time all sizes"),
        ({"duration": "1s", "sizes": [8]}, "3 s or more"),
        ({"duration": "3.5s", "sizes": [8]}, "takes whole seconds; use 3s or 4s"),
        (
            {"mode": "send", "connection": "UD", "sizes": [8192]},
            "8192 B is more than one datagram; UD ends at the path MTU, at most 4096 B",
        ),
        ({"mode": "send", "connection": "UD", "mtu": 1024, "sizes": [64, 2048]}, "at most 1024 B"),
        ({"mode": "atomic", "sizes": [64]}, "8 bytes"),
        ({"sizes": []}, "at least 1"),
        ({"mtu": 1500}, "4096"),
        ({"device": "mlx5_0 -x"}, "pattern"),
        ({"rdma_cm": True, "connection": "UC"}, "rdma_cm connects RC and UD only, not UC"),
        ({"gid_index": 65}, "less than or equal to 64"),
        ({"mode": "send", "connection": "XRC", "qps": 513}, "use 512 or fewer"),
        ({"mode": "send", "connection": "XRC", "qps": 11, "iterations": 10}, "use 10 or fewer"),
    ],
)
def test_bad_parameters_are_refused(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        BandwidthParams(**bad)


def test_buffers_in_a_gpu_cannot_be_polled_for_the_latency_of_a_write() -> None:
    with pytest.raises(ValidationError, match="use mode: read or send"):
        LatencyParams(cuda=0)
    assert LatencyParams(cuda=0, mode="read").cuda == BandwidthParams(cuda=0).cuda == 0


@pytest.mark.skipif(
    shutil.which("ib_write_bw") is None, reason="needs perftest: apt-get install perftest"
)
@pytest.mark.skipif(
    Path("/sys/class/infiniband").exists(), reason="this machine has an RDMA device"
)
def test_the_real_tools_take_exactly_the_combinations_that_are_accepted() -> None:
    """perftest reads its arguments before it looks for a device: with none it ends at once, and
    says which of the two was wrong.
    """

    def differs(benchmark: Any, **options: Any) -> str | None:
        try:
            model = benchmark.Params(**options)
        except ValidationError:
            model = benchmark.Params.model_construct(**benchmark.Params().model_dump() | options)
            accepted = False
        else:
            accepted = True
        argv = benchmark.arguments(model, model.runs()[0])
        result = subprocess.run(argv, capture_output=True, text=True, timeout=10)
        message = result.stdout + result.stderr
        return (
            None
            if any(words in message for words in rdma.NO_DEVICE) == accepted
            else f"{options}: {' '.join(argv)}: {message}"
        )

    both = (RdmaBandwidth(), RdmaLatency())
    ways = itertools.product(
        both, ("read", "write", "send", "atomic"), ("RC", "UC", "UD", "XRC", "DC"), (False, True)
    )
    values = [
        differs(benchmark, mode=mode, connection=way, rdma_cm=by_cm)
        for benchmark, mode, way, by_cm in ways
    ]
    for more in (
        {"gid_index": 64},
        {"gid_index": 65},
        {"iterations": 4},
        {"iterations": 100_000_000},
        {"duration": 3.0},
        {"duration": 3.0, "sizes": [64]},
        {"sizes": [1 << 30], "mtu": 256, "port": 255},
        {"mode": "atomic", "atomic": "CMP_AND_SWAP"},
        {"mode": "atomic", "duration": 10.0},
    ):
        values += [differs(benchmark, **more) for benchmark in both]
    values += [
        differs(both[0], **more) for more in ({"qps": 16384, "bidirectional": True}, {"qps": 16385})
    ]
    assert [measurement for measurement in values if measurement] == []


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
    at_10_gbit = messages * sum(value.expected_sizes()) * 8 / 10e9
    assert at_10_gbit < benchmark.seconds(value) < benchmark.limit(value)


def test_a_timed_run_takes_its_time_whatever_the_size() -> None:
    assert RdmaBandwidth().seconds(BandwidthParams(duration="10s", sizes=["8MiB"], qps=64)) == 14


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
    assert requests == {"hosts": {"count": 2}, "privileges": ["rdma"]}
    problems = benchmark.check(benchmark.Params(), Shape.model_validate({**requests, **options}))
    assert ["needs an RDMA network" in problem for problem in problems] == [True] * (not fits)


# -- parsers -------------------------------------------------------------------------------------


def test_bandwidth_of_all_sizes() -> None:
    by = figures(RdmaBandwidth(), BandwidthParams(), text("constructed-write-bw-all-26.04.txt"))
    assert len({size for _, _, size in by if size}) == 23
    for row, value in {
        ("bandwidth", "mean", 1 << 23): 97.5e9,
        ("bandwidth", "max", 1 << 23): 98.475e9,
        ("message_rate", "mean", 2): 4.2e6,
        ("highest_bandwidth", "value", None): 97.5e9,
    }.items():
        assert by[row] == pytest.approx(value, rel=1e-3)
    whole = output(text("constructed-write-bw-all-26.04.txt"))
    assert {m.n for m in RdmaBandwidth().parse(whole, BandwidthParams()) if m.stat == "mean"} == {
        1000
    }


def test_what_the_perftest_of_debian_13_prints_is_read() -> None:
    whole = text("printed-write-bw-all-25.01.txt")
    by = figures(RdmaBandwidth(), BandwidthParams(rdma_cm=True), whole)
    assert len({size for _, _, size in by if size}) == 23
    # below 0.1 Gb/s perftest prints six digits, and other columns
    assert by["bandwidth", "mean", 2] == pytest.approx(67.2e6)
    assert by["bandwidth", "max", 1 << 23] == pytest.approx(98.47e9)
    info = rdma.read_info(whole)
    assert (info["device"], info["mtu"], info["rdma_cm_qps"]) == ("mlx5_0", "4096[B]", "ON")
    by = figures(
        RdmaLatency(),
        LatencyParams(mode="read", rdma_cm=True),
        text("printed-read-lat-all-25.01.txt"),
    )
    stats = [by["latency", stat, 2] for stat in ("p50", "p99", "p99.9")]
    assert stats == pytest.approx([1.55e-6, 1.6e-6, 2.45e-6])


@pytest.mark.parametrize(
    ("benchmark", "params", "name", "value"),
    [
        (RdmaBandwidth(), {"sizes": [4096]}, "printed-write-bw-4096-25.01.json", 97.5e9),
        (RdmaBandwidth(), {"sizes": [4096]}, "constructed-write-bw-4096-26.04.json", 92.71e9),
        (RdmaLatency(), {"mode": "read", "sizes": [2]}, "printed-read-lat-2-25.01.json", 1.55e-6),
    ],
)
def test_json_is_read(benchmark: Any, params: dict[str, Any], name: str, value: float) -> None:
    [first, *_] = benchmark.parse(output("", text(name)), benchmark.Params(**params))
    assert first.value == pytest.approx(value)


def test_duration_mode_has_no_peak() -> None:
    params = BandwidthParams(duration="10s", sizes=[65536])
    by = figures(RdmaBandwidth(), params, text("constructed-write-bw-65536-duration.txt"))
    assert ("bandwidth", "mean", 65536) in by
    assert ("bandwidth", "max", 65536) not in by
    timed = LatencyParams(mode="send", duration="10s", sizes=[2])
    by = figures(RdmaLatency(), timed, text("constructed-send-lat-duration.txt"))
    assert by["latency", "mean", 2] == pytest.approx(1.56e-6)
    assert by["exchange_rate", "mean", 2] == pytest.approx(641025.64)


@pytest.mark.parametrize(
    ("iterations", "percentiles"),
    [(1000, {"p50", "p99", "p99.9"}), (500, {"p50", "p99"}), (400, {"p50"})],
)
def test_latency_of_all_sizes(iterations: int, percentiles: set[str]) -> None:
    whole = text("constructed-read-lat-all-26.04.txt").replace(" 1000  ", f" {iterations}  ")
    by = figures(RdmaLatency(), LatencyParams(mode="read", iterations=iterations), whole)
    assert by["lowest_latency", "value", 2] == pytest.approx(1.62e-6)
    assert by["latency", "p50", 2] == pytest.approx(1.62e-6)
    stats = {stat for metric, stat, _ in by if metric == "latency"}
    assert stats == {"min", "max", "mean", "stdev"} | percentiles


BANDWIDTH, LATENCY = "constructed-write-bw-all-26.04.txt", "constructed-read-lat-all-26.04.txt"


def test_columns_are_found_by_their_titles() -> None:
    text = (RECORDED / BANDWIDTH).read_text()
    wider = re.sub(r"^( #bytes|  ?\d+ )", r"\1   #sl ", text, flags=re.M)
    wider = re.sub(r"^(  ?\d+ ) *#sl ", r"\1   3 ", wider, flags=re.M)
    wider = wider.replace("MsgRate[Mpps]", "MsgRate[Mpps]    CPU_Util[%]")
    wider = re.sub(r"^(  ?\d+ .*\d)\s*$", r"\1  98.50", wider, flags=re.M)
    assert wider.count("98.50") == 23
    values = [
        RdmaBandwidth().parse(Output({"client0": each}, tool="x"), BandwidthParams())
        for each in (text, wider)
    ]
    assert values[0] == values[1]


@pytest.mark.parametrize(
    ("benchmark", "name", "old", "new", "message"),
    [
        (RdmaBandwidth(), BANDWIDTH, " 1000 ", " 10x0 ", "row that is not 5 numbers"),
        (RdmaBandwidth(), BANDWIDTH, "1000 ", "nan ", "row without a number"),
        (RdmaBandwidth(), BANDWIDTH, "Gb/sec", "Tb/sec", r"lacks BW peak\[Gb/sec\]"),
        (RdmaLatency(), LATENCY, " 1000 ", " 10x0 ", "row that is not 9 numbers"),
        (RdmaLatency(), LATENCY, "1000 ", "nan ", "row without a number"),
        (
            RdmaLatency(),
            LATENCY,
            "[usec]",
            "[cycles]",
            r"lacks t_min\[usec\], .*: #bytes .*t_typical\[cycles\]",
        ),
    ],
)
def test_garbled_reports_and_other_units_are_failed(
    benchmark: Any, name: str, old: str, new: str, message: str
) -> None:
    params = benchmark.Params(mode="read") if name == LATENCY else benchmark.Params()
    every = -1 if old.startswith(("[", "G")) else 1
    with pytest.raises(Failed, match=message):
        benchmark.parse(output(text(name).replace(old, new, every)), params)


def test_json_of_an_old_version_that_is_none_is_failed() -> None:
    with pytest.raises(Failed, match="no row for 1 of 1"):
        RdmaBandwidth().parse(
            output("", text("constructed-write-bw-4096-4.5.json")), BandwidthParams(sizes=[4096])
        )


@pytest.mark.parametrize(
    ("options", "old", "new", "message"),
    [
        (
            {"mtu": 4096},
            "4096[B]",
            "1024[B]",
            "4096[B] was requested as mtu, perftest used 1024[B]",
        ),
        ({"qps": 2}, "", "", "2 was requested as number of qps, perftest used 1"),
        ({"connection": "UC"}, "", "", "UC was requested as connection type, perftest used RC"),
        ({"device": "mlx5_1"}, "", "", "mlx5_1 was requested as device, perftest used mlx5_0"),
    ],
)
def test_what_perftest_says_it_used_must_be_what_was_asked(
    options: dict[str, Any], old: str, new: str, message: str
) -> None:
    whole = text(BANDWIDTH).replace(old, new) if old else text(BANDWIDTH)
    with pytest.raises(Invalid, match=re.escape(message)) as wrong:
        RdmaBandwidth().parse(output(whole), BandwidthParams(**options))
    assert wrong.value.measurements


@pytest.mark.parametrize(
    ("options", "connection", "qps"),
    [
        ({"mtu": 4096, "qps": 1, "connection": "RC", "device": "mlx5_0"}, "RC", 1),
        ({"connection": "DC", "mode": "read", "qps": 2, "bidirectional": True}, "DC", 4),
        ({"connection": "XRC", "qps": 2}, "XRC", 2),
    ],
)
def test_queue_pairs_of_both_directions_are_what_was_asked(
    options: dict[str, Any], connection: str, qps: int
) -> None:
    whole = text(BANDWIDTH).replace("qps   : 1\t\t", f"qps   : {qps}\t\t")
    whole = whole.replace("Connection type : RC", f"Connection type : {connection}")
    assert RdmaBandwidth().parse(output(whole), BandwidthParams(**options))


def test_every_run_of_several_sizes_is_looked_at() -> None:
    """A latency has two queue pairs with XRC and DC, which have one for each direction."""
    one = (
        text("constructed-send-lat-duration.txt")
        .replace("type : RC", "type : XRC")
        .replace("qps   : 1", "qps   : 2")
    )
    params = LatencyParams(mode="send", duration="10s", sizes=[2, 4], mtu=4096, connection="XRC")
    two = one.replace("\n 2     ", "\n 4     ")
    assert RdmaLatency().parse(Output({"client0": one, "client1": two}), params)
    with pytest.raises(Invalid, match="perftest used 2048"):
        RdmaLatency().parse(
            Output({"client0": one, "client1": two.replace("4096[B]", "2048[B]")}), params
        )


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
    monkeypatch.setattr(rdma, "missing_device", lambda host: None)
    shape = Shape.model_validate({"network": {"family": family}})
    gang = Gang([LocalHost("::1"), LocalHost("::1")], shape, 20, str(tmp_path))
    if error:
        with pytest.raises(Skip, match=error):
            RdmaBandwidth().require(gang, BandwidthParams())
        return
    RdmaBandwidth().require(gang, BandwidthParams())
    for argv in RdmaBandwidth().measure(gang, BandwidthParams()).argv:
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
    monkeypatch.setattr(rdma, "CM_READY", 0.05)
    benchmark, gang = RdmaBandwidth(), Gang([LocalHost(), LocalHost()], Shape(), 20, str(tmp_path))
    with pytest.raises(
        Skip,
        match=(
            r"ib_write_bw cannot run on .*: the node has no RDMA device: /sys/class/infiniband "
            r"is absent"
        ),
    ):
        benchmark.require(gang, BandwidthParams())
    # even where the look beforehand finds nothing amiss, the tool's own words end in a skip
    with pytest.raises(
        Skip,
        match=(
            r"finds no RDMA device on .*Did not detect devices|finds no RDMA device on .*: the "
            r"node has no RDMA device"
        ),
    ):
        benchmark.measure(gang, BandwidthParams())
    with pytest.raises(Skip, match="finds no RDMA device"):
        benchmark.measure(gang, BandwidthParams(rdma_cm=True))


def test_a_server_with_rdma_cm_is_waited_for_until_the_kernel_lists_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is composed in the format of iproute2's rdma/res-cmid.c; there was no device to
    record it from.
    """
    line = (
        "link mlx5_0/1 cm-idn 0 state LISTEN ps TCP pid 7 comm ib_write_bw src-addr "
        "0.0.0.0:20001 dst-addr 0.0.0.0:0 "
    )
    looked_once, refused = tmp_path / "asked", tmp_path / "refused"
    install(tmp_path, monkeypatch, rdma=f"[ -e {looked_once} ] && echo '{line}'\n: >{looked_once}")
    for ready, port, least, most in ((60, 20001, 0, 30), (0.05, 2000, 0.05, 30)):
        monkeypatch.setattr(rdma, "CM_READY", ready)
        start = time.monotonic()
        rdma.await_cm(LocalHost(), port)
        assert least <= time.monotonic() - start < most
    install(tmp_path, monkeypatch, rdma=f"echo again >>{refused}\nexit 1")
    rdma.await_cm(LocalHost(), 20001)
    assert refused.read_text() == "again\n", "where it may not look there is nothing to ask again"


def test_buffers_that_cannot_be_locked_say_what_to_do() -> None:
    message = (
        "Couldn't allocate MR\nfailed to create mr\nFailed to create MR\n"
        " Couldn't create IB resources\n"
    )
    finished, texts = CommandResult(["ib_read_bw"], 1, "", message, 0.1), {"client0": message}
    advice = (
        r"could not lock its buffers; the limit of locked memory on node-1 is \d+ .* raise "
        "LimitMEMLOCK"
    )
    with pytest.raises(Failed, match=advice):
        rdma.check_finished("ib_read_bw", LocalHost(name="node-1"), finished, texts)
    assert len(rdma.memlock(LocalHost()).split()) == 2


def test_the_recorded_error_is_known() -> None:
    assert any(words in text("no-device.txt") for words in rdma.NO_DEVICE)


SMI = """case "$*" in
*-L*) echo 'GPU 0: Tesla T4 (UUID: GPU-1)';;
*vbios*) echo "0, Tesla T4, GPU-1, 550.90, 90.04, 15360, 70.00, 1590, 5001, Enabled, Default, Enabled, 0, $(cat BROKEN || echo 0), [N/A], 3, 16"
echo "1, Tesla T4, GPU-2, 550.90, 90.04, 15360, 70.00, 1590, 5001, Enabled, Default, Enabled, 0, 0, [N/A], 3, 16";;
*) while :; do t='2026/11/22 12:00:00.000'; echo "0, 900, 5000, 60, 90, 99, 1024, MASK, $t"; echo "1, 900, 5000, 60, 90, 99, 1024, 0x4, $t"; case "$*" in *loop*) sleep 0.05;; *) exit 0;; esac; done;;
esac"""  # noqa: E501
CUDA_TOOL = """case "$*" in
*--help*) echo '--use_cuda=<id>';;
*--version*) echo 'Version: 6.06';;
*) [ "$CUDA_DEVICE_ORDER" = PCI_BUS_ID ] || exit 1; echo ERRORS >BROKEN; sleep 0.3; cat TABLE;;
esac"""


SLOWED = "GPU 0 was slowed down (hardware thermal slowdown)"


@pytest.mark.parametrize(
    ("nodes", "mask", "errors", "cuda", "visible", "message"),
    [
        pytest.param("ab", "0x40", 0, 0, "", f"a: {SLOWED}", id="a node each, slowed"),
        pytest.param(
            "aa",
            "0x4",
            2,
            0,
            "",
            "a (host 0): GPU 0 had 2 uncorrected memory errors meanwhile",
            id="pods of one node, memory broken",
        ),
        pytest.param("ab", "0x40", 2, 1, "", None, id="another GPU's faults"),
        pytest.param("ab", "0x40", 0, 1, "1,0", f"a: {SLOWED}", id="not known which GPU"),
    ],
)
def test_with_cuda_the_gpus_of_both_hosts_are_recorded_and_held_against_the_figures(
    nodes: str,
    mask: str,
    errors: int,
    cuda: int,
    visible: str,
    message: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = str(tmp_path / "broken")
    smi = SMI.replace("BROKEN", broken).replace("MASK", mask)
    tool = CUDA_TOOL.replace("BROKEN", broken).replace("ERRORS", str(errors))
    tool = tool.replace("TABLE", str(RECORDED / BANDWIDTH))
    install(tmp_path, monkeypatch, nvidia_smi=smi, ib_write_bw=tool)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(rdma, "missing_device", lambda host: None)
    benchmark, params = RdmaBandwidth(), BandwidthParams(cuda=cuda)
    gang = Gang([LocalHost(name=name) for name in nodes], Shape(), 20, str(tmp_path))
    names = ["a", "b"] if nodes == "ab" else ["a (host 0)", "a (host 1)"]
    benchmark.require(gang, params)
    result = benchmark.provenance(gang, params)["gpus"]
    assert [(host, gpus[0]["name"]) for host, gpus in result.items()] == [
        (name, "Tesla T4") for name in names
    ]
    built = benchmark.measure(gang, params)
    assert list(built.facts["gpu"]) == names
    if message is None:
        assert benchmark.parse(built, params)
        return
    with pytest.raises(Invalid, match=re.escape(message)) as wrong:
        benchmark.parse(built, params)
    assert wrong.value.measurements


def test_what_a_gpu_does_in_the_set_up_is_not_all_while_a_nic_uses_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is slow in two samples of its own work, and idle in the sixty of the NIC's."""
    line = "0, 900, 5000, 60, 90, 99, 1024, $mask, 2026/11/22 12:00:00.000"
    smi = f"""case "$*" in
*loop*) for mask in 0x40 0x40 $(yes 0x1 | head -60); do echo "{line}"; done; : >{tmp_path}/said.$PPID.$$; exec sleep 60;;
*vbios*) echo "0, Tesla T4, GPU-1, 550.90, 90.04, 15360, 70.00, 1590, 5001, Enabled, Default, Enabled, 0, 0, [N/A], 3, 16";;
esac"""  # noqa: E501
    tool = f"""case "$*" in
*--version*) echo 'Version: 6.06';;
*) while [ $(ls {tmp_path}/said.* | wc -l) -lt 2 ]; do sleep 0.01; done; cat {RECORDED / BANDWIDTH};;
esac"""  # noqa: E501
    install(tmp_path, monkeypatch, nvidia_smi=smi, ib_write_bw=tool)
    gang = Gang([LocalHost(name="a"), LocalHost(name="b")], Shape(), 20, str(tmp_path))
    value = RdmaBandwidth().measure(gang, BandwidthParams(cuda=0))
    assert [host["during"][0]["samples"] for host in value.facts["gpu"].values()] == [62, 62]
    assert RdmaBandwidth().parse(value, BandwidthParams(cuda=0))


@pytest.mark.parametrize(
    ("gpus", "index", "used"),
    [
        ([{"index": 0, "uuid": "GPU-1"}, {"index": 1, "uuid": "GPU-2"}], 1, {"GPU-2"}),
        ([{"index": 0, "uuid": "GPU-1"}, {"index": 1, "uuid": "GPU-2"}], 2, set()),
        ([{"error": "the driver does not answer"}], 0, set()),
        (
            [{"index": 0, "uuid": "GPU-1"}, {"index": 1, "uuid": "GPU-2", "mig": "Enabled"}],
            0,
            set(),
        ),
    ],
)
def test_of_mig_and_of_gpus_that_are_not_there_it_is_not_known_which_one_is_used(
    gpus: list[dict[str, Any]], index: int, used: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert (gpu_watch.uuids_of_device(LocalHost(), gpus, index) or set()) == used


@pytest.mark.parametrize(
    "word",
    [
        *("; rm -rf /", "--", "--qp=8", "-q8", "--iters=5", "--iter=5", "-b", "-Nb", "-R", "-p1"),
        *("--use_cuda_bus_id=0000:03:00.0", "-C", "--run_infinitely", "--out_json_file=/tmp/x"),
        *("--report-both", "--report-b", "--report-per-port", "--cpu_util", "-Z", "-eb", "-NH"),
        *("--report", "--use_rocm=0", "--output=latency", "--data_validation", "--new-option"),
    ],
)
def test_extra_args_that_perfdag_sets_or_reads_are_refused(word: str) -> None:
    with pytest.raises(ValidationError, match=r"pattern|a parameter sets this option"):
        BandwidthParams(extra_args=[word])


def test_other_extra_args_pass() -> None:
    free = ["--tclass=96", "-T96", "-S1", "-t512", "-e", "-N", "--ipv6", "--qp-timeout=14"]
    free += ["--use_cuda_dmabuf", "--report-counters=x"]
    assert BandwidthParams(extra_args=free).extra_args == free
    assert LatencyParams(extra_args=free).extra_args == free
