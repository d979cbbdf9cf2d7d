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
from perfdag.hosts.base import Finished
from perfdag.hosts.local import LocalHost, LocalProcess
from perfdag.outcome import Failed, Invalid, Skip
from perfdag.shape import Shape
from perfdag.steps import gpu_watch
from perfdag.steps.rdma import report, verbs
from perfdag.steps.rdma.bandwidth import BandwidthParams, RdmaBandwidth
from perfdag.steps.rdma.latency import LatencyParams, RdmaLatency

RECORDED = Path(__file__).parent.parent / "recorded" / "perftest"


def text(name: str) -> str:
    return (RECORDED / f"{name}").read_text()


def output(client: str, report: str = "") -> Output:
    return Output({"client0": client, "server0": client, "json0": report}, tool="perftest 6.06")


# -- parameters ----------------------------------------------------------------------------------


def test_defaults_are_1000_iterations_and_one_queue_pair_over_all_sizes() -> None:
    argv = RdmaBandwidth().arguments(BandwidthParams(), None)
    assert argv[0] == "ib_write_bw"
    assert argv[argv.index("-n") + 1] == "1000"
    assert argv[argv.index("-q") + 1] == "1"
    assert "-a" in argv


def test_every_parameter_reaches_the_command() -> None:
    params = BandwidthParams(
        mode="send", iterations=25, qps=512, sizes=["4KiB"], mtu=4096, connection="UD", device="mlx5_1", port=2, gid_index=3, rdma_cm=True,  # noqa: E501
        bidirectional=True, cuda=1, extra_args=["--tclass=96"],
    )  # fmt: skip
    argv = " ".join(RdmaBandwidth().arguments(params, 4096))
    for part in (
        "ib_send_bw",
        "-c UD",
        "-i 2",
        "-n 25",
        "-s 4096",
        "-m 4096",
        "-d mlx5_1",
        "-x 3",
        "-R",
        "--use_cuda=1",
        "-q 512",
        "-b",
    ):
        assert f" {part} " in f" {argv} "
    assert argv.endswith("--tclass=96")
    assert RdmaLatency().arguments(LatencyParams(mode="read", duration="10s", sizes=[2]), 2)[
        0:6
    ] == [
        "ib_read_lat",
        "-F",
        "-c",
        "RC",
        "-i",
        "1",
    ]
    assert "-D 10" in " ".join(
        RdmaLatency().arguments(LatencyParams(mode="read", duration="10s", sizes=[2]), 2)
    )
    atomic = RdmaLatency().arguments(LatencyParams(mode="atomic", atomic="CMP_AND_SWAP"), None)
    assert atomic[0] == "ib_atomic_lat"
    assert atomic[atomic.index("-A") + 1] == "CMP_AND_SWAP"
    assert "-a" not in atomic


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
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=10)
        message = ended.stdout + ended.stderr
        return (
            None
            if any(words in message for words in verbs.NO_DEVICE) == accepted
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
def test_a_suite_without_a_network_or_device_is_refused(benchmark: Any) -> None:
    params = benchmark.Params()
    requests = benchmark.shape(params)
    assert requests == {"hosts": {"count": 2}, "privileges": ["rdma"]}
    assert "needs an RDMA network" in benchmark.check(params, Shape.model_validate(requests))[0]
    for options in (
        {"network": {"name": "default/mlnx-net"}},
        {"network": {"host": True}},
        {"resources": {"rdma/hca_shared_devices_a": 1}},
    ):
        assert benchmark.check(params, Shape.model_validate({**requests, **options})) == []
    for name in (
        "cpu",
        "nvidia.com/gpu",
        "nvidia.com/gpu.shared",
        "nvidia.com/mig-1g.5gb",
        "gpu.intel.com/i915",
    ):
        assert (
            "needs an RDMA network"
            in benchmark.check(params, Shape.model_validate({**requests, "resources": {name: 2}}))[
                0
            ]
        )


# -- parsers -------------------------------------------------------------------------------------


def test_bandwidth_of_all_sizes() -> None:
    measurements = RdmaBandwidth().parse(
        output(text("constructed-write-bw-all-26.04.txt")), BandwidthParams()
    )
    by = {(m.metric, m.stat, m.coords.get("message_bytes")): m for m in measurements}
    assert len({key[2] for key in by if key[2]}) == 23
    assert by["bandwidth", "mean", 1 << 23].value == pytest.approx(97.5e9)
    assert by["bandwidth", "max", 1 << 23].value == pytest.approx(98.475e9, rel=1e-3)
    assert by["message_rate", "mean", 2].value == pytest.approx(4.2e6)
    assert by["highest_bandwidth", "value", None].value == pytest.approx(97.5e9, rel=1e-3)
    assert by["bandwidth", "mean", 2].n == 1000


def test_what_the_perftest_of_debian_13_prints_is_read() -> None:
    whole = text("printed-write-bw-all-25.01.txt")
    by = {
        (m.metric, m.stat, m.coords.get("message_bytes")): m.value
        for m in RdmaBandwidth().parse(output(whole), BandwidthParams(rdma_cm=True))
    }
    assert len({key[2] for key in by if key[2]}) == 23
    # below 0.1 Gb/s perftest prints six digits, and other columns
    assert by["bandwidth", "mean", 2] == pytest.approx(67.2e6)
    assert by["bandwidth", "max", 1 << 23] == pytest.approx(98.47e9)
    info = report.read_info(whole)
    assert (info["device"], info["mtu"], info["rdma_cm_qps"]) == ("mlx5_0", "4096[B]", "ON")

    latency = LatencyParams(mode="read", rdma_cm=True)
    table = RdmaLatency().parse(output(text("printed-read-lat-all-25.01.txt")), latency)
    stats = {m.stat: m.value for m in table if m.coords.get("message_bytes") == 2}
    assert (stats["p50"], stats["p99"], stats["p99.9"]) == pytest.approx((1.55e-6, 1.6e-6, 2.45e-6))

    sized = BandwidthParams(sizes=[4096])
    json_bw = RdmaBandwidth().parse(output("", text("printed-write-bw-4096-25.01.json")), sized)
    assert json_bw[0].value == pytest.approx(97.5e9)
    small = LatencyParams(mode="read", sizes=[2])
    json_lat = RdmaLatency().parse(output("", text("printed-read-lat-2-25.01.json")), small)
    assert json_lat[0].value == pytest.approx(1.55e-6)


def test_megabytes_of_old_versions_are_mebibytes() -> None:
    params = BandwidthParams(mode="read", iterations=25, qps=512, sizes=[65536])
    values = {
        (m.metric, m.stat): m.value
        for m in RdmaBandwidth().parse(output(text("constructed-read-bw-65536-4.5.txt")), params)
    }
    assert values["bandwidth", "mean"] == pytest.approx(11648.70 * 2**20 * 8)
    # the rate times the size gives the same, which proves the unit
    assert values["message_rate", "mean"] * 65536 * 8 == pytest.approx(
        values["bandwidth", "mean"], rel=1e-4
    )


def test_duration_mode_has_no_peak() -> None:
    params = BandwidthParams(duration="10s", sizes=[65536])
    result = {
        (m.metric, m.stat)
        for m in RdmaBandwidth().parse(
            output(text("constructed-write-bw-65536-duration.txt")), params
        )
    }
    assert ("bandwidth", "mean") in result
    assert ("bandwidth", "max") not in result


def test_json_is_read_where_it_is_json_and_the_text_otherwise() -> None:
    params = BandwidthParams(sizes=[4096])
    new = RdmaBandwidth().parse(output("", text("constructed-write-bw-4096-26.04.json")), params)
    assert {(m.metric, m.stat): m.value for m in new}["bandwidth", "mean"] == pytest.approx(92.71e9)
    with pytest.raises(Failed, match="no row for 1 of 1"):
        RdmaBandwidth().parse(output("", text("constructed-write-bw-4096-4.5.json")), params)


def test_latency_of_all_sizes() -> None:
    measurements = RdmaLatency().parse(
        output(text("constructed-read-lat-all-26.04.txt")), LatencyParams(mode="read")
    )
    by = {(m.metric, m.stat, m.coords.get("message_bytes")): m.value for m in measurements}
    assert by["lowest_latency", "value", 2] == pytest.approx(1.62e-6)
    assert by["latency", "p50", 2] == pytest.approx(1.62e-6)
    assert {stat for metric, stat, _ in by if metric == "latency"} == {
        "min",
        "max",
        "p50",
        "mean",
        "stdev",
        "p99",
        "p99.9",
    }
    few = text("constructed-read-lat-all-26.04.txt").replace(" 1000  ", " 500  ")
    stats = {
        m.stat
        for m in RdmaLatency().parse(output(few), LatencyParams(mode="read", iterations=500))
        if m.metric == "latency"
    }
    assert "p99.9" not in stats
    assert "p99" in stats
    fewer = text("constructed-read-lat-all-26.04.txt").replace(" 1000  ", " 400  ")
    stats = {
        m.stat
        for m in RdmaLatency().parse(output(fewer), LatencyParams(mode="read", iterations=400))
        if m.metric == "latency"
    }
    assert "p99" not in stats


def test_latency_in_duration_mode() -> None:
    params = LatencyParams(mode="send", duration="10s", sizes=[2])
    values = {
        (m.metric, m.stat): m.value
        for m in RdmaLatency().parse(output(text("constructed-send-lat-duration.txt")), params)
    }
    assert values["latency", "mean"] == pytest.approx(1.56e-6)
    assert values["exchange_rate", "mean"] == pytest.approx(641025.64)


def test_cut_and_garbled_reports_are_failed() -> None:
    for benchmark, params, name in (
        (RdmaBandwidth(), BandwidthParams(), "constructed-write-bw-all-26.04.txt"),
        (RdmaLatency(), LatencyParams(mode="read"), "constructed-read-lat-all-26.04.txt"),
    ):
        whole = text(name)
        for cut in (0, 200, len(whole) // 2, whole.rindex("8388608"), whole.rindex("8388608") + 30):
            with pytest.raises(Failed):
                benchmark.parse(output(whole[:cut]), params)  # type: ignore[attr-defined]
        with pytest.raises(Failed, match=r"not numbers|row of"):
            benchmark.parse(output(whole.replace(" 1000 ", " 10x0 ", 1)), params)  # type: ignore[attr-defined]
        with pytest.raises(Failed, match="row of"):
            benchmark.parse(output(whole.replace("1000 ", "nan ", 1)), params)  # type: ignore[attr-defined]


def test_an_unknown_unit_is_failed() -> None:
    with pytest.raises(Failed, match="no unit"):
        RdmaBandwidth().parse(
            output(text("constructed-write-bw-all-26.04.txt").replace("Gb/sec", "Tb/sec")),
            BandwidthParams(),
        )


def test_cycles_are_no_microseconds() -> None:
    whole = text("constructed-read-lat-all-26.04.txt").replace("[usec]", "[cycles]")
    with pytest.raises(Failed, match=r"another unit than usec: #bytes .*t_typical\[cycles\]"):
        RdmaLatency().parse(output(whole), LatencyParams(mode="read"))


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
        ({"mtu": 4096, "qps": 1, "connection": "RC", "device": "mlx5_0"}, "", "", None),
        (
            {"connection": "DC", "mode": "read", "qps": 2, "bidirectional": True},
            "qps   : 1\t\t",
            "qps   : 4\t\t",
            None,
        ),
        ({"connection": "XRC", "qps": 2}, "qps   : 1\t\t", "qps   : 2\t\t", None),
    ],
)
def test_what_perftest_says_it_used_must_be_what_was_asked(
    options: dict[str, Any], old: str, new: str, message: str | None
) -> None:
    whole = (
        text("constructed-write-bw-all-26.04.txt").replace(old, new)
        if old
        else text("constructed-write-bw-all-26.04.txt")
    )
    if message is None:
        whole = whole.replace("Connection type : RC", f"Connection type : {options['connection']}")
        assert RdmaBandwidth().parse(output(whole), BandwidthParams(**options))
        return
    with pytest.raises(Invalid, match=re.escape(message)) as wrong:
        RdmaBandwidth().parse(output(whole), BandwidthParams(**options))
    assert wrong.value.measurements


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


@pytest.mark.parametrize("knows", [True, False])
def test_over_ipv6_both_sides_negotiate_over_it_or_the_sample_is_skipped(
    knows: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"""case "$*" in
*--help*) echo '{"--ipv6-addr (SYMMETRIC)" if knows else "--ipv6  Use IPv6 GID"}';;
*--version*) echo 'Version: 6.20';;
*) cat {RECORDED / "constructed-write-bw-all-26.04.txt"};;
esac"""
    (tmp_path / "ib_write_bw").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "ib_write_bw").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(verbs, "lacks", lambda host: None)
    monkeypatch.setattr(LocalProcess, "await_listening", lambda *_: None)  # the tool here is a text
    benchmark = RdmaBandwidth()
    for family in ("ipv4", "ipv6"):
        gang = Gang(
            [LocalHost("::1"), LocalHost("::1")],
            Shape.model_validate({"network": {"family": family}}),
            20,
            str(tmp_path),
        )
        if family == "ipv6" and not knows:
            with pytest.raises(
                Skip,
                match=(
                    r"ib_write_bw on .* negotiates over IPv4 only; use a perftest of 23\.07 or "
                    r"later"
                ),
            ):
                benchmark.prepare(gang, BandwidthParams())
            continue
        benchmark.prepare(gang, BandwidthParams())
        for argv in benchmark.run(gang, BandwidthParams()).argv:
            assert ("--ipv6-addr" in argv, "--ipv6" in argv) == (family == "ipv6",) * 2


def test_the_link_is_read_from_the_head() -> None:
    result = report.read_info(text("constructed-write-bw-all-26.04.txt"))
    assert result["device"] == "mlx5_0"
    assert result["mtu"] == "4096[B]"
    assert result["link_type"] == "Ethernet"


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
    monkeypatch.setattr(verbs, "CM_READY", 0.05)
    benchmark, gang = RdmaBandwidth(), Gang([LocalHost(), LocalHost()], Shape(), 20, str(tmp_path))
    with pytest.raises(
        Skip,
        match=(
            r"ib_write_bw cannot run on .*: the node has no RDMA device: /sys/class/infiniband "
            r"is absent"
        ),
    ):
        benchmark.prepare(gang, BandwidthParams())
    # even where the look beforehand finds nothing amiss, the tool's own words end in a skip
    with pytest.raises(
        Skip,
        match=(
            r"finds no RDMA device on .*Did not detect devices|finds no RDMA device on .*: the "
            r"node has no RDMA device"
        ),
    ):
        benchmark.run(gang, BandwidthParams())
    with pytest.raises(Skip, match="finds no RDMA device"):
        benchmark.run(gang, BandwidthParams(rdma_cm=True))


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
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "rdma").write_text(
        f"#!/bin/sh\n[ -e {tmp_path}/asked ] && echo '{line}'\n: >{tmp_path}/asked\n"
    )
    (tmp_path / "rdma").chmod(0o755)
    for ready, port, least, most in ((60, 20001, 0, 30), (0.05, 2000, 0.05, 30)):
        monkeypatch.setattr(verbs, "CM_READY", ready)
        start = time.monotonic()
        verbs.await_cm(LocalHost(), port)
        assert least <= time.monotonic() - start < most
    (tmp_path / "rdma").write_text(f"#!/bin/sh\necho again >>{tmp_path}/refused\nexit 1\n")
    verbs.await_cm(LocalHost(), 20001)
    assert (
        tmp_path / "refused"
    ).read_text() == "again\n"  # where it may not look there is nothing to ask again


def test_the_recorded_error_is_known() -> None:
    assert any(words in text("no-device.txt") for words in verbs.NO_DEVICE)


def test_buffers_that_cannot_be_locked_say_what_to_do() -> None:
    message = (
        "Couldn't allocate MR\nfailed to create mr\nFailed to create MR\n"
        " Couldn't create IB resources\n"
    )
    finished = Finished(["ib_read_bw"], 1, "", message, 0.1)
    with pytest.raises(
        Failed,
        match=(
            r"could not lock its buffers; the limit of locked memory on node-1 is \d+ .* raise "
            r"LimitMEMLOCK"
        ),
    ):
        verbs.check_finished(
            "ib_read_bw", LocalHost(name="node-1"), finished, {"client0": message, "server0": ""}
        )


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


@pytest.mark.parametrize(
    ("nodes", "names", "mask", "errors", "cuda", "visible", "message"),
    [
        (
            ("a", "b"),
            ["a", "b"],
            "0x40",
            0,
            0,
            "",
            "GPU 0 was slowed down (hardware thermal slowdown)",
        ),
        (
            ("a", "a"),
            ["a (host 0)", "a (host 1)"],
            "0x4",
            2,
            0,
            "",
            "GPU 0 had 2 uncorrected memory error(s) meanwhile",
        ),
        (("a", "b"), ["a", "b"], "0x40", 2, 1, "", None),
        (
            ("a", "b"),
            ["a", "b"],
            "0x40",
            0,
            1,
            "1,0",
            "GPU 0 was slowed down (hardware thermal slowdown)",
        ),
    ],
    ids=[
        "a node each, slowed",
        "pods of one node, memory broken",
        "another GPU's faults",
        "not known which GPU",
    ],
)
def test_with_cuda_the_gpus_of_both_hosts_are_recorded_and_held_against_the_figures(
    nodes: tuple[str, str],
    names: list[str],
    mask: str,
    errors: int,
    cuda: int,
    visible: str,
    message: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {
        "TABLE": RECORDED / "constructed-write-bw-all-26.04.txt",
        "BROKEN": tmp_path / "broken",
        "MASK": mask,
        "ERRORS": errors,
    }
    for name, script in (("nvidia-smi", SMI), ("ib_write_bw", CUDA_TOOL)):
        for word, value in options.items():
            script = script.replace(word, str(value))
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(verbs, "lacks", lambda host: None)
    monkeypatch.setattr(LocalProcess, "await_listening", lambda *_: None)  # the tool here is a text
    benchmark, params = RdmaBandwidth(), BandwidthParams(cuda=cuda)
    gang = Gang([LocalHost(name=name) for name in nodes], Shape(), 20, str(tmp_path))
    benchmark.prepare(gang, params)
    result = benchmark.provenance(gang, params)["gpus"]
    assert {host: gpus[0]["name"] for host, gpus in result.items()} == dict.fromkeys(
        names, "Tesla T4"
    )
    built = benchmark.run(gang, params)
    assert list(built.facts["gpu"]) == names
    if message is None:
        assert benchmark.parse(built, params)
        return
    with pytest.raises(Invalid, match=re.escape(f"{names[0]}: {message}")) as wrong:
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
*) while [ $(ls {tmp_path}/said.* | wc -l) -lt 2 ]; do sleep 0.01; done; cat {RECORDED / "constructed-write-bw-all-26.04.txt"};;
esac"""  # noqa: E501
    for name, script in (("nvidia-smi", smi), ("ib_write_bw", tool)):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(LocalProcess, "await_listening", lambda *_: None)  # the tool here is a text
    benchmark, params = RdmaBandwidth(), BandwidthParams(cuda=0)
    value = benchmark.run(
        Gang([LocalHost(name="a"), LocalHost(name="b")], Shape(), 20, str(tmp_path)), params
    )
    assert [host["during"][0]["samples"] for host in value.facts["gpu"].values()] == [62, 62]
    assert benchmark.parse(value, params)


def test_of_mig_and_of_gpus_that_are_not_there_it_is_not_known_which_one_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    result = [{"index": 0, "uuid": "GPU-1"}, {"index": 1, "uuid": "GPU-2"}]
    assert gpu_watch.uuids_of_device(LocalHost(), result, 1) == {"GPU-2"}
    assert not gpu_watch.uuids_of_device(LocalHost(), result, 2)
    assert not gpu_watch.uuids_of_device(LocalHost(), [{"error": "the driver does not answer"}], 0)
    assert not gpu_watch.uuids_of_device(
        LocalHost(), [result[0], {**result[1], "mig": "Enabled"}], 0
    )


def test_memlock_is_recorded() -> None:
    assert len(verbs.memlock(LocalHost()).split()) == 2
