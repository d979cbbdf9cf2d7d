"""imb: what its tables mean, that a fallback is invalid, and real runs over shared memory, TCP
and a remote shell.
"""

import dataclasses
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from perfdag.benchmark.contract import Gang, Output, Tool
from perfdag.hosts.local import LocalHost
from perfdag.outcome import Failed, Invalid, Measurement, Skip
from perfdag.shape import Shape, merge
from perfdag.steps.imb import GIB, KNOWN, Imb, ImbParams, wrong_placement
from perfdag.steps.mpi import intelmpi, openmpi
from tests.recorded.measured import values
from tests.recorded.record import load

IMB = Imb()


def replaced(output: Output, pattern: str, new: str | Callable[[re.Match[str]], str]) -> Output:
    text, count = re.subn(pattern, new, output.texts["stdout"], flags=re.M)
    assert count
    return dataclasses.replace(output, texts={**output.texts, "stdout": text})


def measurements_of(name: str) -> list[Measurement]:
    _, params, output, _ = load(f"imb/{name}")
    return IMB.parse(output, params)


def sizes(measurements: list[Measurement]) -> list[Any]:
    """Return the message sizes that have a latency."""
    result = (each.coords.get("message_bytes") for each in measurements if each.metric == "latency")
    return list(dict.fromkeys(result))


def test_every_size_has_latency_and_bandwidth() -> None:
    measurements = measurements_of("pingpong-tcp")
    assert sizes(measurements) == [0, *(2**log for log in range(11))]
    latency = values(measurements, "latency", "mean", message_bytes=1024)[0]
    assert values(measurements, "bandwidth", message_bytes=1024) == [pytest.approx(1024 / latency)]
    assert values(measurements, "zero_byte_latency") == values(
        measurements, "latency", "mean", message_bytes=0
    )
    assert values(measurements, "peak_bandwidth") == [max(values(measurements, "bandwidth"))]
    assert values(measurements, "half_bandwidth_size")[0] in sizes(measurements)


@pytest.mark.parametrize("name", ["pingpong-shm", "sendrecv-shm"])
def test_bandwidth_agrees_with_the_printed_column_whatever_an_mbyte_is(name: str) -> None:
    _, params, output, _ = load(f"imb/{name}")
    printed = re.findall(r"^\s+1024\s.*\s(\S+)$", output.texts["stdout"], re.M)[-1]
    measurements = IMB.parse(output, params)
    assert values(measurements, "bandwidth", message_bytes=1024) == [
        pytest.approx(float(printed) * 1e6, rel=0.02)
    ]
    in_mib = replaced(output, r"(\d+\.\d\d)$", lambda m: f"{float(m[1]) * 1e6 / 2**20:.2f}")
    assert IMB.parse(in_mib, params) == measurements


def test_collectives_have_extremes_over_the_ranks() -> None:
    measurements = measurements_of("allreduce-tcp")
    low, mean, high = (
        values(measurements, "latency", stat, message_bytes=1024)[0]
        for stat in ("min", "mean", "max")
    )
    assert low <= mean <= high
    assert values(measurements, "operation_time") == [mean]
    assert not values(measurements, "zero_byte_latency")
    # Allreduce adds floats: no messages of 1 and 2 bytes
    assert sizes(measurements) == [0, *(2**log for log in range(2, 11))]
    assert len(values(measurements_of("barrier-shm"), "operation_time")) == 1


@pytest.mark.parametrize(
    ("name", "pattern", "new", "message"),
    [
        pytest.param(
            "pingpong-shm",
            r"# Benchmarking(?s:.*)",
            "Invalid benchmark name nope\n",
            "no table of PingPong",
            id="a wrong name, though IMB exits 0",
        ),
        pytest.param(
            "allreduce-tcp",
            r"#processes = 2",
            "#processes = 4",
            "2 ranks were requested, IMB says 4",
            id="other ranks",
        ),
        pytest.param(
            "allreduce-tcp",
            r"^\s+64 .*\n",
            "",
            "lacks 1 of 10 message sizes, first 64",
            id="fewer sizes",
        ),
    ],
)
def test_a_table_of_something_else_fails(name: str, pattern: str, new: str, message: str) -> None:
    _, params, output, _ = load(f"imb/{name}")
    with pytest.raises(Failed, match=message):
        IMB.parse(replaced(output, pattern, new), params)


@pytest.mark.parametrize(
    ("name", "pattern", "new", "message"),
    [
        (
            "imb/pingpong-tcp",
            r"provider: tcp",
            "provider: verbs;ofi_rxm",
            "tcp was requested, MPI used verbs",
        ),
        ("imb/pingpong-tcp", r"^.*libfabric provider.*\n", "", "does not say"),
        ("imb/pingpong-tcp", r"\blo$", "cni0", "interface lo was requested, MPI used cni0"),
        ("imb/pingpong-shm", r"tuning_generic_shm", "tuning_generic_ofi", "does not say"),
    ],
)
def test_a_fallback_is_invalid_and_keeps_its_values(
    name: str, pattern: str, new: str, message: str
) -> None:
    _, params, output, _ = load(name)
    with pytest.raises(Invalid, match=message) as error:
        IMB.parse(replaced(output, pattern, new), params)
    assert error.value.measurements


@pytest.mark.parametrize(
    ("provider", "fits"),
    [("mlx", True), ("verbs;ofi_rxm", True), ("tcp", False), ("tcp;ofi_rxm", False)],
)
def test_rdma_is_what_the_provider_says(provider: str, fits: bool) -> None:
    log = f"[0] MPI startup(): libfabric provider: {provider}\n"
    assert (intelmpi.wrong_transport(log, "rdma") is None) == fits


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"benchmark": "PongPing"}, "'PingPong'"),
        ({"transport": "ucx"}, "'tcp', 'shm' or 'rdma'"),
        ({"mpi": "mpich"}, "'intel' or 'openmpi'"),
        ({"max_log": 31}, "less than or equal to 30"),
        ({"min_log": 5, "max_log": 4}, "above max_log"),
        ({"ranks": 3}, "exactly 2 ranks"),
        ({"benchmark": "Bcast", "ranks": 5, "ranks_per_host": 2}, "not a multiple"),
        ({"benchmark": "Allreduce", "max_log": 1}, "4-byte floats"),
        ({"program": "/opt/IMB"}, "mpi: openmpi"),
        (
            {"benchmark": "Alltoall", "ranks": 64, "max_log": 25},
            "IMB cannot count ranks x size of Alltoall then; at most 24 with 64 ranks",
        ),
        ({"benchmark": "Reduce_scatter", "ranks": 16, "max_log": 30}, "at most 28 with 16 ranks"),
    ],
)
def test_bad_params_are_refused_with_what_is_allowed(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ImbParams(**options)


@pytest.mark.parametrize(
    ("options", "hosts"),
    [
        ({}, 2),
        ({"transport": "shm"}, 1),
        ({"benchmark": "Alltoall", "ranks": 64, "ranks_per_host": 8}, 8),
        *(({"benchmark": "Bcast", "ranks": odd}, 2) for odd in (3, 5, 7)),
    ],
)
def test_shapes(options: dict[str, Any], hosts: int) -> None:
    assert IMB.shape(ImbParams(**options)) == {"hosts": {"count": hosts}}


@pytest.mark.parametrize(
    ("options", "hosts", "message"),
    [
        *(
            ({"benchmark": "Bcast", "ranks": odd}, 2, f"(or hosts.count) that divides {odd}")
            for odd in (3, 5, 7)
        ),
        *(({"benchmark": "Bcast", "ranks": odd}, odd, None) for odd in (3, 5, 7)),
        ({"transport": "shm"}, 2, "shm stays on one host"),
        ({"benchmark": "Bcast", "ranks": 4, "ranks_per_host": 4}, 2, "not 4 ranks_per_host"),
        ({"benchmark": "Bcast", "ranks": 3, "ranks_per_host": 1}, 2, "cannot be spread evenly"),
    ],
)
def test_hosts_that_cannot_share_the_ranks_are_refused(
    options: dict[str, Any], hosts: int, message: str | None
) -> None:
    problems = IMB.check(ImbParams(**options), Shape.model_validate({"hosts": {"count": hosts}}))
    assert [str(message) in problem for problem in problems[:1]] == [True] * bool(message)


def test_pairs_of_hosts_are_measured() -> None:
    pairs = Shape.model_validate({"hosts": {"count": 5, "pairs": "all"}})
    assert IMB.network == "pairs"
    assert IMB.check(ImbParams(), pairs.pair()) == []


def test_more_ranks_than_the_cpus_of_a_pod_are_refused_when_planning() -> None:
    params = ImbParams(benchmark="Allreduce", ranks=16, ranks_per_host=8)
    for resources, message in (
        ({"cpu": 1}, "resources.cpu 1"),
        ({"cpu": "7500m"}, "resources.cpu 7500m"),
        ({"requests": {"cpu": 1}, "limits": {"cpu": 4}}, "resources.cpu 4"),
        ({"cpu": "8"}, None),
        ({"cpu": 8.0}, None),
        ({"requests": {"cpu": 1}}, None),
    ):
        shape = Shape.model_validate({"hosts": {"count": 2}, "resources": resources})
        problems = IMB.check(params, shape)
        assert [
            f"on a cluster 8 processes in each pod, and {message}, would be" in problem
            for problem in problems
        ] == ([True] if message else [])
        assert IMB.check(params.model_copy(update={"oversubscribe": True}), shape) == []


@pytest.mark.parametrize(
    ("options", "fits"),
    [
        ({}, False),
        ({"resources": {"nvidia.com/gpu": 1}}, False),
        ({"resources": {"nvidia.com/mig-1g.5gb": 1, "cpu": 2}}, False),
        ({"network": {"name": "default/net"}}, True),
        ({"network": {"host": True}}, True),
        ({"resources": {"rdma/hca_shared_devices_a": 1}}, True),
    ],
)
def test_rdma_needs_a_device_that_is_no_gpu_and_the_right_to_lock_memory(
    options: dict[str, Any], fits: bool
) -> None:
    rdma = ImbParams(transport="rdma")
    requests = IMB.shape(rdma)
    assert requests == {"hosts": {"count": 2}, "privileges": ["rdma"]}
    problems = IMB.check(rdma, Shape.model_validate({**requests, **options}))
    assert ["transport: rdma needs an RDMA network" in problem for problem in problems[:1]] == (
        [] if fits else [True]
    )


class Named(LocalHost):
    """A host of this machine under another loopback address."""

    def __init__(self, address: str) -> None:
        super().__init__(address, address)


def gang(params: ImbParams, scratch: Path, addresses: tuple[str, ...] = (), **shape: Any) -> Gang:
    value = Shape.model_validate(merge(IMB.shape(params), shape))
    here = [LocalHost() for _ in range(value.hosts.count)]
    hosts = [Named(address) for address in addresses] if addresses else here
    return Gang(hosts, value, 60, str(scratch))


def real_gang(params: ImbParams, scratch: Path, **shape: Any) -> Gang:
    """Return hosts that have IMB, or skip the test."""
    local_gang = gang(params, scratch, **shape)
    if IMB._missing(local_gang, params):
        pytest.skip("IMB-MPI1 is not installed (pip install impi-rt)")
    return local_gang


def test_commands_name_the_hosts_and_the_interface(tmp_path: Path) -> None:
    params = ImbParams(
        benchmark="Alltoall", ranks=8, ranks_per_host=4, max_log=16, min_log=4, iterations=50
    )
    local_gang = gang(params, tmp_path, ("10.0.0.1", "10.0.0.2"), network={"interface": "net1"})
    rsh = intelmpi.rsh_script(local_gang)
    assert rsh is not None
    assert "perfdag step rsh" in Path(rsh).read_text()
    argv = intelmpi.mpirun(local_gang, "/opt/impi", 8, rsh)
    expected = (
        f"/opt/impi/bin/mpirun -n 8 -hosts 10.0.0.1,10.0.0.2 -ppn 4 -iface net1 -bootstrap-exec "
        f"{rsh}"
    )
    assert " ".join(argv) == expected
    assert " ".join(IMB.arguments(params)) == "Alltoall -npmin 8 -iter 50 -time 10 -msglog 4:16"
    env = intelmpi.environment(local_gang, "/opt/impi", "tcp")
    # one fabric for all ranks, collectives over it too, the interface by name, the libraries on
    # every rank
    assert env["I_MPI_FABRICS"] == "ofi"
    assert env["I_MPI_COLL_INTRANODE"] == "pt2pt"
    assert env["FI_TCP_IFACE"] == "net1"
    assert env["LD_LIBRARY_PATH"].startswith("/opt/impi/lib")


def test_open_mpi_over_rdma_has_no_shared_memory_between_ranks_of_a_host(tmp_path: Path) -> None:
    params = ImbParams(
        benchmark="Allreduce", ranks=4, transport="rdma", mpi="openmpi", program="/opt/IMB-MPI1"
    )
    argv, _ = IMB.openmpi_command(gang(params, tmp_path), params)
    assert "UCX_TLS=rc,dc,ud,self" in argv


def test_all_of_imbs_benchmarks_are_known_and_measure_the_sizes_that_are_expected(
    tmp_path: Path,
) -> None:
    """One run of IMB with all of them; each table is read by itself."""
    params = ImbParams(transport="shm", min_log=1, max_log=4, iterations=2, oversubscribe=True)
    local_gang = real_gang(params, tmp_path)
    root = intelmpi.root_of(local_gang.hosts[0])
    program = f"{root}/bin/IMB-MPI1"
    environment = intelmpi.environment(local_gang, root, "shm", True)
    listed = LocalHost().run([program, "-list"], timeout=30, env=environment)
    assert set(re.findall(r"^    (\w+)", listed.stdout, re.M)) == set(KNOWN)
    argv = [
        *intelmpi.mpirun(local_gang, root, 2, None),
        program,
        *IMB.arguments(params)[1:],
        *KNOWN,
    ]
    output = LocalHost().run(argv, timeout=60, env=environment).check("IMB").stdout
    head, *tables = re.split(r"(?=^# Benchmarking )", output, flags=re.M)
    assert [table.split()[2] for table in tables] == list(KNOWN)
    for table in tables:
        item = params.model_copy(update={"benchmark": table.split()[2]})
        assert IMB.parse(Output({"stdout": head + table}), item), item.benchmark


@pytest.mark.parametrize(
    ("options", "fabric", "metric", "least"),
    [
        (
            {"transport": "shm", "max_log": 4, "iterations": 20},
            "shm",
            "zero_byte_latency",
            0,
        ),
        (
            {"transport": "shm", "benchmark": "Barrier", "iterations": 20},
            "shm",
            "operation_time",
            0,
        ),
        # some 10 us over loopback, and 0.3 us in shared memory, which a collective must not use
        (
            {"benchmark": "Barrier", "ranks_per_host": 2, "iterations": 200},
            "tcp",
            "operation_time",
            2e-6,
        ),
    ],
)
def test_a_real_run_uses_the_fabric_that_was_asked(
    options: dict[str, Any], fabric: str, metric: str, least: float, tmp_path: Path
) -> None:
    params = ImbParams(**options, oversubscribe=True)
    output = IMB.measure(real_gang(params, tmp_path), params)
    assert fabric in output.facts["fabric"]
    assert values(IMB.parse(output, params), metric)[0] > least


def test_an_interface_that_is_not_there_is_noticed(tmp_path: Path) -> None:
    params = ImbParams(max_log=2, iterations=10, oversubscribe=True)
    local_gang = real_gang(params, tmp_path, network={"interface": "nope0"})
    with pytest.raises((Invalid, Failed), match=r"interface nope0 was requested|exited"):
        IMB.parse(IMB.measure(local_gang, params), params)


def test_ranks_on_two_hosts_are_started_by_the_remote_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hydra's bootstrap with a remote shell of ours that runs its command here: two addresses,
    one rank each.
    """
    params = ImbParams(max_log=2, iterations=10, oversubscribe=True)
    local_gang = real_gang(params, tmp_path, network={"interface": "lo"})
    local_gang.hosts = [LocalHost(), LocalHost("127.0.0.2")]
    shell, log = tmp_path / "shell", tmp_path / "log"
    words = 'while [ "${1#-}" != "$1" ]; do shift; done\n'
    shell.write_text(f'#!/bin/sh\n{words}echo "$1" >>{log}\nshift\nexec sh -c "$*"\n')
    shell.chmod(0o755)
    monkeypatch.setattr(intelmpi, "rsh_script", lambda gang: str(shell))
    output = IMB.measure(local_gang, params)
    assert values(IMB.parse(output, params), "zero_byte_latency")[0] > 0
    assert log.read_text().split() == ["127.0.0.2"]
    # the same output, had it been asked on two nodes: MPI names one
    output.facts["hosts"] = ["node-1", "node-2"]
    with pytest.raises(
        Invalid,
        match=(
            rf"2 ranks were requested on 2 nodes \(node-1, node-2\), MPI placed 2 on "
            rf"{os.uname().nodename}"
        ),
    ) as error:
        IMB.parse(output, params)
    assert error.value.measurements


@pytest.mark.parametrize(
    ("size", "line", "message"),
    [
        (
            512,
            'time-out.; Time limit (secs_per_sample * msg_sizes_list_len) is over; use "-time X"',
            "from 512 B on .time-out.: .*raise it",
        ),
        (
            1024,
            "int-overflow; The production rank*size caused int overflow;",
            "from 1024 B on .int-overflow.: .*lower max_log or ranks",
        ),
    ],
)
def test_what_ended_the_table_is_said(size: int, line: str, message: str) -> None:
    """The two lines are IMB 2021.11's own, for another size each, on a table that was recorded."""
    _, params, output, _ = load("imb/allreduce-tcp")
    ended = replaced(output, rf"^ +{size} [^#]*", f"          {size} {line}\n\n\n")
    with pytest.raises(Failed, match=message) as error:
        IMB.parse(ended, params)
    assert max(sizes(error.value.measurements)) == size // 2
    with pytest.raises(Failed, match="lacks 1 of"):
        IMB.parse(replaced(ended, r"^ +64 .*\n", ""), params)
    with pytest.raises(Invalid, match="tcp was requested, MPI used verbs") as wrong:
        IMB.parse(replaced(ended, "provider: tcp", "provider: verbs"), params)
    assert wrong.value.measurements == error.value.measurements


def test_imb_is_told_of_buffers_above_its_own_limit() -> None:
    many = ImbParams(benchmark="Alltoall", ranks=256, ranks_per_host=64)
    # as IMB says where it is out of memory: needed X= 2.001 GB
    assert many.memory() == 2 * 256 * 2**22 == 2 * GIB
    words = IMB.arguments(many)
    assert words[words.index("-mem") + 1] == "2.000001"
    assert "-mem" not in IMB.arguments(ImbParams())


@pytest.mark.parametrize(
    ("options", "own"),
    [
        ({"time_per_size": 600}, 600 * 22),
        ({"benchmark": "Barrier", "time_per_size": 600}, 600),
        ({"benchmark": "Bcast", "ranks": 1024}, 10 * 22),
    ],
)
def test_the_default_limit_leaves_imb_the_time_that_it_was_given(
    options: dict[str, Any], own: float
) -> None:
    assert IMB.limit(ImbParams(**options)) > own


def test_more_ranks_take_longer() -> None:
    two, many = (IMB.seconds(ImbParams(benchmark="Alltoall", ranks=ranks)) for ranks in (2, 256))
    assert many > 10 * two


def test_rdma_without_a_device_is_skipped(tmp_path: Path) -> None:
    if Path("/sys/class/infiniband").is_dir() and any(Path("/sys/class/infiniband").iterdir()):
        pytest.skip("there is an RDMA device here")
    with pytest.raises(Skip, match="no RDMA device"):
        IMB.require(gang(ImbParams(), tmp_path), ImbParams(transport="rdma", oversubscribe=True))


def test_openmpi_needs_an_imb_of_its_own_and_mpirun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(**options: str) -> list[str]:
        return [
            tool.program
            for tool in IMB._missing(
                gang(ImbParams(), tmp_path), ImbParams(mpi="openmpi", **options)
            )
        ]

    program = tmp_path / "bin/IMB-MPI1"
    program.parent.mkdir()
    monkeypatch.setenv("PATH", str(program.parent))
    assert lacking(program=str(program)) == [
        f"IMB-MPI1 built for Open MPI ({program}; that of impi-rt is for Intel MPI)",
        "mpirun",
    ]
    for name in (program, program.with_name("mpirun")):
        name.write_text("#!/bin/sh\n")
        name.chmod(0o755)
    assert lacking(program=str(program)) == []
    assert lacking() == [
        "IMB-MPI1 built for Open MPI (/opt/imb/IMB-MPI1; that of impi-rt is for Intel MPI)"
    ]


def test_where_there_is_no_impi_rt_the_advice_is_open_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    assert intelmpi.imb("Linux", "x86_64") == Tool("IMB-MPI1", {"pip": "impi-rt"})
    arm = intelmpi.imb("Linux", "aarch64")
    assert arm.advice.startswith(
        "there is no impi-rt for Linux on aarch64; set mpi: openmpi and name an IMB-MPI1"
    )
    monkeypatch.setattr(intelmpi, "IMB", arm)
    monkeypatch.setattr(LocalHost, "which", lambda self, program: None)
    with pytest.raises(Skip, match="no impi-rt for Linux on aarch64"):
        intelmpi.root_of(LocalHost())


def test_more_ranks_than_cpus_are_skipped_unless_asked_for(tmp_path: Path) -> None:
    params = ImbParams(benchmark="Bcast", ranks=4096, transport="shm")
    with pytest.raises(Skip, match="oversubscribe: true"):
        IMB.require(gang(params, tmp_path), params)


@pytest.mark.parametrize(
    ("hosts", "placed", "message"),
    [
        (["a", "b"], {"a": 2, "b": 2}, None),
        (
            ["a", "a"],
            {"pod-0": 2, "pod-1": 2},
            None,
        ),  # two pods of one node have names of their own
        (["a", "a"], {"a": 4}, None),
        (
            ["a", "b"],
            {"a": 3, "b": 1},
            "4 ranks were requested on 2 nodes (a, b), MPI placed 3 on a, 1 on b",
        ),
        (
            ["a", "b", "c", "d"],
            {"a": 2, "b": 2},
            "4 ranks were requested on 4 nodes (a, b, c, d), MPI placed 2 on a, 2 on b",
        ),
        (["a", "b"], {}, None),  # Open MPI over RDMA does not say
    ],
)
def test_ranks_that_did_not_run_where_they_were_asked_are_noticed(
    hosts: list[str], placed: dict[str, int], message: str | None
) -> None:
    assert wrong_placement(hosts, placed, 4) == message


@pytest.mark.parametrize(
    ("name", "way", "node"),
    [
        ("openmpi-tcp", "tcp", "vm"),
        ("openmpi-shm", "vader", "vm"),
        ("openmpi5-tcp", "tcp", "9295ae92d7f4"),
        ("openmpi5-shm", "sm", "9295ae92d7f4"),
    ],
)
def test_the_way_that_open_mpi_took_is_verified(name: str, way: str, node: str) -> None:
    benchmark: Any
    benchmark, params, output, _ = load(f"imb/{name}")
    log = output.texts["stdout"] + output.texts["stderr"]
    assert openmpi.btls(log) == {way}
    assert openmpi.nodes_of_ranks(log) == {0: node, 1: node}
    assert values(benchmark.parse(output, params), "zero_byte_latency")[0] > 0
    other = "shm" if way == "tcp" else "tcp"
    silent = dataclasses.replace(output, texts={**output.texts, "stderr": ""})
    for printed, transport, message in (
        (output, other, f"was requested, Open MPI used {way}"),
        (output, "rdma", "rdma was requested, Open MPI used ob1"),
        (silent, params.transport, "does not say what"),
    ):
        with pytest.raises(Invalid, match=message):
            benchmark.parse(printed, params.model_copy(update={"transport": transport}))
    log = log.replace(f"Using {way} btl", "Using other btl", 1)
    assert openmpi.wrong_transport(log, params.transport) == (
        f"{params.transport} was requested, Open MPI used {', '.join(sorted(['other', way]))}"
    )


@pytest.mark.parametrize(
    ("message", "version"),
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to ...", "Open MPI 4.1.4"),
        ("mpirun (Open MPI) 5.0.7rc2", "Open MPI 5.0.7rc2"),
    ],
)
def test_the_version_of_open_mpi_is_its_mpiruns(
    message: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "mpirun"
    program.write_text(f"#!/bin/sh\necho '{message}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert openmpi.version(LocalHost()) == version
    program.write_text("#!/bin/sh\necho 'Intel(R) MPI Library for Linux* OS, Version 2021.18'\n")
    with pytest.raises(Skip, match=r"is not Open MPI's \(Intel\(R\) MPI Library .*first on PATH"):
        openmpi.version(LocalHost())


@pytest.mark.skipif(
    "PERFDAG_IMB_OPENMPI" not in os.environ,
    reason="PERFDAG_IMB_OPENMPI names no IMB-MPI1 built for Open MPI",
)
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_real_run_with_open_mpi(transport: str, tmp_path: Path) -> None:
    options = {
        "mpi": "openmpi",
        "program": os.environ["PERFDAG_IMB_OPENMPI"],
        "max_log": 4,
        "iterations": 10,
        "oversubscribe": True,
    }
    params = ImbParams(transport=transport, **options)
    output = IMB.measure(gang(params, tmp_path), params)
    assert values(IMB.parse(output, params), "zero_byte_latency")[0] > 0
    assert re.fullmatch(r"IMB-MPI1, Open MPI \d+\.\d+\.\S+", output.tool)
