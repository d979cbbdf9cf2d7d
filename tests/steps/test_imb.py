"""imb and the MPI libraries: command lines, what is refused, and real runs over shared memory, TCP
and a remote shell.
"""

import os
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from perfdag.benchmark.contract import Failed, Gang, Invalid, NotInstalled, Skip
from perfdag.hosts.base import CommandResult
from perfdag.hosts.local import LocalHost
from perfdag.identity import merge
from perfdag.shape import Shape
from perfdag.steps import imb, mpi
from perfdag.steps.imb import GIB, KNOWN, Imb, ImbParams, arguments
from tests.conftest import CommandLine, SuiteWriter
from tests.fakes.files import write_programs
from tests.recorded.measured import values
from tests.recorded.record import load

IMB = Imb()


def test_a_line_that_is_no_row_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording, warning = load("imb/pingpong-shm"), "[node-0:123] Read -1, expected 4096"
    text = re.sub(
        r"(?m)^ +64 ", lambda row: f"{warning}\n{row[0]}", recording.output.texts["stdout"]
    )
    gang = Gang([LocalHost()], Shape(), 10, str(tmp_path))
    result = CommandResult([], 0, text, "", 1.0)
    monkeypatch.setattr(LocalHost, "run", lambda *words, **options: result)
    monkeypatch.setattr(mpi, "intel_root", lambda host: "/opt/intel")
    rows = IMB.run(gang, recording.params)
    assert rows == recording.parse(recording.output.texts, recording.params)


@pytest.mark.parametrize(
    ("provider", "fits"),
    [("mlx", True), ("verbs;ofi_rxm", True), ("tcp", False), ("tcp;ofi_rxm", False)],
)
def test_rdma_is_what_the_provider_says(provider: str, fits: bool) -> None:
    log = f"[0] MPI startup(): libfabric provider: {provider}\n"
    assert (mpi.wrong_transport(log, "rdma", openmpi=False) is None) == fits


@pytest.mark.parametrize(
    ("options", "shape", "code"),
    [
        *(
            ({"benchmark": "Bcast", "ranks": n}, {"hosts": {"count": 2}}, "uneven-ranks")
            for n in (3, 5)
        ),
        *(({"benchmark": "Bcast", "ranks": n}, {"hosts": {"count": n}}, None) for n in (3, 5)),
        ({"transport": "shm"}, {"hosts": {"count": 2}}, "shm-between-hosts"),
        (
            {"benchmark": "Bcast", "ranks": 4, "ranks_per_host": 4},
            {"hosts": {"count": 2}},
            "other-ranks-per-host",
        ),
        # a quota of the pod's CPUs would throttle the ranks
        ({}, {"hosts": {"count": 1}, "resources": {"cpu": "1500m"}}, "cpu-quota"),
        ({}, {"hosts": {"count": 1}, "resources": {"requests": {"cpu": 1}}}, None),
        ({}, {"hosts": {"count": 1}, "resources": {"cpu": 2.0}}, None),
        ({"oversubscribe": True}, {"hosts": {"count": 1}, "resources": {"cpu": 1}}, None),
        # rdma needs a device that is no GPU
        ({"transport": "rdma"}, {"hosts": {"count": 2}}, "no-rdma"),
        *(
            ({"transport": "rdma"}, {"hosts": {"count": 2}, "resources": {name: 1}}, code)
            for name, code in (
                ("nvidia.com/gpu", "no-rdma"),
                ("nvidia.com/mig-1g.5gb", "no-rdma"),
                ("rdma/hca_shared_devices_a", None),
            )
        ),
        ({"transport": "rdma"}, {"hosts": {"count": 2}, "network": {"host": True}}, None),
        ({"transport": "rdma"}, {"hosts": {"count": 2}, "network": {"name": "a/net"}}, None),
    ],
)
def test_hosts_that_cannot_run_the_ranks_are_refused_when_planning(
    options: dict[str, Any], shape: dict[str, Any], code: str | None
) -> None:
    problems = IMB.check(ImbParams(**options), Shape.model_validate(shape))
    assert [problem.code for problem in problems] == [code] * bool(code)


def gang(params: ImbParams, scratch: Path, addresses: tuple[str, ...] = (), **shape: Any) -> Gang:
    value = Shape.model_validate(merge(IMB.shape(params), shape))
    here = [LocalHost() for _ in range(value.hosts.count)]
    hosts = [LocalHost(address, address) for address in addresses] if addresses else here
    return Gang(hosts, value, 60, str(scratch))


def real_gang(params: ImbParams, scratch: Path, **shape: Any) -> Gang:
    """Return hosts that have IMB, or skip the test."""
    local_gang = gang(params, scratch, **shape)
    try:
        IMB.require(local_gang, params)
    except Skip as reason:
        pytest.skip(str(reason))
    return local_gang


def test_commands_name_the_hosts_and_the_interface(tmp_path: Path) -> None:
    params = ImbParams(
        benchmark="Alltoall", ranks=8, ranks_per_host=4, max_log=16, min_log=4, iterations=50
    )
    local_gang = gang(params, tmp_path, ("10.0.0.1", "10.0.0.2"), network={"interface": "net1"})
    argv = mpi.intel_mpirun(local_gang, "/opt/impi", 8)
    rsh = f"{tmp_path}/rsh"
    assert "perfdag step rsh" in Path(rsh).read_text()
    expected = (
        f"/opt/impi/bin/mpirun -n 8 -hosts 10.0.0.1,10.0.0.2 -ppn 4 -iface net1 -bootstrap-exec "
        f"{rsh}"
    )
    assert " ".join(argv) == expected
    assert " ".join(arguments(params)) == "Alltoall -npmin 8 -iter 50 -time 10 -msglog 4:16"
    env = mpi.intel_environment(local_gang, "/opt/impi", "tcp")
    # one fabric for all ranks, collectives over it too, the interface by name, the libraries on
    # every rank
    assert env["I_MPI_FABRICS"] == "ofi"
    assert env["I_MPI_COLL_INTRANODE"] == "pt2pt"
    assert env["FI_TCP_IFACE"] == "net1"
    assert env["LD_LIBRARY_PATH"].startswith("/opt/impi/lib")


def test_all_of_imbs_benchmarks_are_known_and_measure_the_sizes_that_are_expected(
    tmp_path: Path,
) -> None:
    """One run of IMB with all of them; each table is read by itself."""
    params = ImbParams(transport="shm", min_log=1, max_log=4, iterations=2, oversubscribe=True)
    local_gang = real_gang(params, tmp_path)
    root = mpi.intel_root(local_gang.hosts[0])
    program = f"{root}/bin/IMB-MPI1"
    environment = mpi.intel_environment(local_gang, root, "shm", True)
    listed = LocalHost().run([program, "-list"], timeout=30, env=environment)
    assert set(re.findall(r"^    (\w+)", listed.stdout, re.M)) == set(KNOWN)
    argv = [
        *mpi.intel_mpirun(local_gang, root, 2),
        program,
        *arguments(params)[1:],
        *KNOWN,
    ]
    output = LocalHost().run(argv, timeout=60, env=environment).check("IMB").stdout
    head, *tables = re.split(r"(?=^# Benchmarking )", output, flags=re.M)
    assert [table.split()[2] for table in tables] == list(KNOWN)
    for table in tables:
        item = params.model_copy(update={"benchmark": table.split()[2]})
        assert imb.parse({"stdout": head + table}, item), item.benchmark


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
    local_gang = real_gang(params, tmp_path)
    assert values(IMB.run(local_gang, params), metric)[0] > least
    assert fabric in local_gang.output.facts["fabric"]


def test_an_interface_that_is_not_there_is_noticed(tmp_path: Path) -> None:
    params = ImbParams(max_log=2, iterations=10, oversubscribe=True)
    local_gang = real_gang(params, tmp_path, network={"interface": "nope0"})
    with pytest.raises((Invalid, Failed), match=r"interface nope0 was requested|exited"):
        IMB.run(local_gang, params)


def test_ranks_on_two_hosts_are_started_by_the_remote_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hydra's bootstrap with a remote shell of ours that runs its command here: two addresses,
    one rank each.
    """
    params = ImbParams(max_log=2, iterations=10, oversubscribe=True)
    local_gang = real_gang(params, tmp_path, network={"interface": "lo"})
    local_gang.hosts = [LocalHost(), LocalHost("127.0.0.2")]
    log, put = tmp_path / "log", LocalHost.put
    words = 'while [ "${1#-}" != "$1" ]; do shift; done\n'
    shell = f'#!/bin/sh\n{words}echo "$1" >>{log}\nshift\nexec sh -c "$*"\n'.encode()
    monkeypatch.setattr(
        LocalHost, "put", lambda self, path, data, mode: put(self, path, shell, mode)
    )
    assert values(IMB.run(local_gang, params), "zero_byte_latency")[0] > 0
    assert log.read_text().split() == ["127.0.0.2"]
    # the same run, had it been asked on two nodes: MPI names one
    local_gang.hosts = [LocalHost(name="node-1"), LocalHost("127.0.0.2", "node-2")]
    with pytest.raises(Invalid, match=rf"MPI placed 2 on {os.uname().nodename}") as error:
        IMB.run(local_gang, params)
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
    _, params, output, parse = load("imb/allreduce-tcp")
    text = output.texts["stdout"]
    ended = re.sub(rf"(?m)^ +{size} [^#]*", f"          {size} {line}\n\n\n", text)
    with pytest.raises(Failed, match=message) as error:
        parse({"stdout": ended}, params)
    largest = max(row.coords.get("message_bytes", 0) for row in error.value.measurements)
    assert largest == size // 2
    with pytest.raises(Failed, match=r"\d of \d+ message sizes"):
        parse({"stdout": re.sub(r"(?m)^ +64 .*\n", "", ended)}, params)
    with pytest.raises(Invalid) as wrong:
        parse({"stdout": ended.replace("provider: tcp", "provider: verbs")}, params)
    assert wrong.value.measurements == error.value.measurements


def test_imb_is_told_of_buffers_above_its_own_limit() -> None:
    many = ImbParams(benchmark="Alltoall", ranks=256, ranks_per_host=64)
    # as IMB says where it is out of memory: needed X= 2.001 GB
    assert many.memory() == 2 * 256 * 2**22 == 2 * GIB
    words = arguments(many)
    assert words[words.index("-mem") + 1] == "2.000001"
    assert "-mem" not in arguments(ImbParams())


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


@pytest.mark.skipif(
    Path("/sys/class/infiniband").exists(), reason="this machine has an RDMA device"
)
def test_rdma_without_a_device_is_skipped(tmp_path: Path) -> None:
    with pytest.raises(Skip, match="no RDMA device"):
        IMB.require(gang(ImbParams(), tmp_path), ImbParams(transport="rdma", oversubscribe=True))


def test_openmpi_needs_an_imb_of_its_own_and_mpirun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotInstalled) as error:
        IMB.require(gang(ImbParams(), tmp_path), ImbParams(mpi="openmpi", oversubscribe=True))
    assert [tool.program for tool in error.value.tools] == ["/opt/imb/IMB-MPI1", "mpirun"]
    assert "not installed (build IMB-MPI1 for Open MPI" in str(error.value)


STATUS = "Name:\tcat\nPid:\t77\nCpus_allowed:\tff\nCpus_allowed_list:\t{}\nMems_allowed:\t1\n"


class Pod:
    """A pod on a node, and the CPUs that it may run on."""

    def __init__(self, name: str, cpus: str) -> None:
        self.name, self.text = name, STATUS.format(cpus)

    def run(self, argv: list[str], **_: object) -> CommandResult:
        return CommandResult(argv, 0, self.text, "", 0.0)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (("a", "0-3"), ("a", "4-7"), None),  # CPUs of their own
        (("a", "0-3"), ("a", "0-3"), "a has 4 CPUs for 8 processes"),  # the node's, shared
        (("a", "0-7"), ("a", "0-7"), None),
        (("a", "0-7"), ("a", "6-7"), "a has 2 CPUs for 4 processes"),
        (("a", "0-1,4-5"), ("a", "2-3,6-7"), None),
        (("a", "0-3"), ("b", "0-3"), None),
        (("a", "0-3"), ("b", "0-2"), "b has 3 CPUs for 4 processes"),
    ],
)
def test_each_pod_and_each_node_has_cpus_for_its_ranks(
    first: tuple[str, str], second: tuple[str, str], message: str | None
) -> None:
    hosts: list[Any] = [Pod(*first), Pod(*second)]
    with pytest.raises(Skip, match=message) if message else nullcontext():
        mpi.require(hosts, 8, False, "tcp")
    mpi.require(hosts, 8, True, "tcp")


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
            "MPI placed 3 on a, 1 on b",
        ),
        (
            ["a", "b", "c", "d"],
            {"a": 2, "b": 2},
            "MPI placed 2 on a, 2 on b",
        ),
        (["a", "b"], {}, None),  # Open MPI over RDMA does not say
    ],
)
def test_ranks_that_did_not_run_where_they_were_asked_are_noticed(
    hosts: list[str], placed: dict[str, int], message: str | None
) -> None:
    nodes = [node for node, count in placed.items() for _ in range(count)]
    log = "".join(
        f"[0] MPI startup(): {rank}       77       {node}  {{0}}\n"
        for rank, node in enumerate(nodes)
    )
    found = mpi.wrong_placement(log, [LocalHost(name=name) for name in hosts], 4)
    assert (found is None) if message is None else str(found).endswith(message)


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
    _, params, output, parse = load(f"imb/{name}")
    log = output.texts["stdout"] + output.texts["stderr"]
    assert f"Using {way} btl" in log
    assert mpi.wrong_placement(log, [LocalHost(name="a"), LocalHost(name="b")], 2) == (
        f"2 ranks were requested on 2 nodes (a, b), MPI placed 2 on {node}"
    )
    mixed = output.texts["stderr"].replace(f"Using {way} btl", "Using other btl", 1)
    for stderr, transport in (
        (output.texts["stderr"], "shm" if way == "tcp" else "tcp"),
        (output.texts["stderr"], "rdma"),
        ("", params.transport),
        (mixed, params.transport),
    ):
        texts = {**output.texts, "stderr": stderr}
        with pytest.raises(Invalid):
            parse(texts, params.model_copy(update={"transport": transport}))


INTEL = "echo 'Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 2'"


@pytest.mark.parametrize(
    ("scripts", "taken"),
    [
        ({"mpirun": "echo 'mpirun (Open MPI) 4.1.4'"}, ("mpirun", "4.1.4")),
        ({"mpirun": "echo 'mpirun (Open MPI) 5.0.7rc2'"}, ("mpirun", "5.0.7rc2")),
        (
            {"mpirun": "echo MPICH", "mpirun.openmpi": "echo 'mpirun.openmpi (OpenRTE) 4.1.4'"},
            ("mpirun.openmpi", "4.1.4"),
        ),
        ({"mpirun": "echo 'HYDRA build details:'"}, None),
    ],
)
def test_the_mpirun_of_open_mpi_is_found_behind_that_of_an_activated_environment(
    scripts: dict[str, str],
    taken: tuple[str, str] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write_suite: SuiteWriter,
    cli: CommandLine,
) -> None:
    first = write_programs(tmp_path / "activated", {"mpirun": INTEL})
    second = write_programs(tmp_path / "bin", {"IMB-MPI1": "", **scripts})
    monkeypatch.setenv("PATH", f"{first}:{second}")
    for program in ("sh", "head", "cat"):
        (second / program).symlink_to(f"/bin/{program}")
    params = f"{{mpi: openmpi, program: {second}/IMB-MPI1, oversubscribe: true}}"
    suite = write_suite(f"name: mpi\nentries:\n  - {{benchmark: imb, params: {params}}}\n")
    printed = cli(["doctor", str(suite)], 0 if taken else 1).out
    if taken:
        program, version = taken
        assert f"ok       {second}/{program} (Open MPI {version}), for imb\n" in printed
    else:
        assert f"{first}/mpirun: Intel(R) MPI Library" in printed
        assert f"{second}/mpirun: HYDRA build details:" in printed


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
    local_gang = gang(params, tmp_path)
    assert values(IMB.run(local_gang, params), "zero_byte_latency")[0] > 0
    assert re.fullmatch(r"IMB-MPI1, Open MPI \d+\.\d+\.\S+", local_gang.output.tool)
