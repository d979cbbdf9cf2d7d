"""fio: what its report means, what is refused, that its files are always gone, one host and two."""

import dataclasses
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
from pydantic import ValidationError

from perfdag.benchmark.contract import Gang, Output
from perfdag.hosts.base import CommandResult
from perfdag.hosts.local import LocalHost, filesystem
from perfdag.outcome import Failed, Invalid, Skip
from perfdag.shape import Shape, merge
from perfdag.stats.percentiles import needed
from perfdag.steps import fio
from perfdag.steps.fio import Fio, FioParams, FioTarget, job_file, options
from tests.recorded.measured import values
from tests.recorded.record import load, names

RECORDED = names("fio")
FIO = Fio()


def report_of(output: Output) -> dict[str, Any]:
    text = output.texts["client"]
    result: dict[str, Any] = json.loads(text[text.index("{\n") :])
    return result


def changed(output: Output, change: Callable[[dict[str, Any]], None]) -> Output:
    """Return an output whose report is changed."""
    report = report_of(output)
    change(report)
    return dataclasses.replace(output, texts={**output.texts, "client": json.dumps(report)})


def test_values_are_those_of_the_report_in_base_units() -> None:
    _, params, output = load("fio/randread")
    read = report_of(output)["jobs"][0]["read"]
    measurements = FIO.parse(output, params)
    for metric, stat, value in (
        ("iops", "value", read["iops"]),
        ("bandwidth", "value", read["bw_bytes"]),
        ("latency", "mean", read["lat_ns"]["mean"] / 1e9),
        ("completion_latency", "p99", read["clat_ns"]["percentile"]["99.000000"] / 1e9),
    ):
        assert values(measurements, metric, stat, direction="read") == [pytest.approx(value)]
    assert values(measurements, "submission_latency", "p50", direction="read")


@pytest.mark.parametrize("name", RECORDED)
def test_percentiles_are_refused_below_the_samples_they_need(name: str) -> None:
    _, params, output = load(name)
    for measurement in FIO.parse(output, params):
        if measurement.stat.startswith("p"):
            assert measurement.n is not None
            assert measurement.n >= needed(float(measurement.stat[1:]) / 100)


def test_both_directions_and_the_syncs_of_a_mixed_load() -> None:
    _, params, output = load("fio/randrw-psync-fsync")
    measurements = FIO.parse(output, params)
    [read], [write] = (
        values(measurements, "iops", direction=direction) for direction in ("read", "write")
    )
    assert read > write
    assert values(measurements, "sync_latency", "mean")
    # psync submits and completes in one call: fio has no submission latency and there is no row of
    # zeros
    assert not values(measurements, "submission_latency", "mean", direction="read")


def test_two_hosts_have_rows_of_their_own_and_a_total() -> None:
    _, params, output = load("fio/two-hosts")
    measurements = FIO.parse(output, params)
    iops, late = (
        {each.subject: each.value for each in measurements if (each.metric, each.stat) == row}
        for row in (("iops", "value"), ("latency", "p99"))
    )
    assert list(iops) == list(late) == [None, "vm (host 0)", "vm (host 1)"]
    total, *own = iops.values()
    assert total == pytest.approx(sum(own), rel=0.05)
    total, *own = late.values()
    assert min(own) <= total <= max(own)
    assert 0 <= values(measurements, "start_skew")[0] < 5
    output.facts["started"] = ["100.0", "100.2"]
    with pytest.raises(
        Invalid, match=r"started within 0.20 s of each other, more than 10% of the 0.3"
    ) as wrong:
        FIO.parse(output, params)
    assert values(wrong.value.measurements, "start_skew") == [pytest.approx(0.2)]


def test_percentiles_from_a_histogram_are_those_that_fio_computes() -> None:
    _, _, output = load("fio/two-hosts")
    text = output.texts["client"]
    report, _ = json.JSONDecoder().raw_decode(text, text.index("\n{") + 1)
    for client in report["client_stats"][:2]:
        for key in ("lat_ns", "clat_ns"):
            assert (
                fio.percentiles([client["read"][key]["bins"]]) == client["read"][key]["percentile"]
            )


def test_a_percentile_is_the_first_bin_that_reaches_its_share() -> None:
    merged = fio.percentiles([{"10": 30, "20": 20}, {"10": 20, "30": 30}])
    assert (merged["50.000000"], merged["90.000000"]) == (10.0, 30.0)


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("randread", lambda report: report["jobs"][0].update(error=28), "error 28"),
        (
            "randread",
            lambda report: report["jobs"][0]["read"].update(total_ios=0),
            "completed no read",
        ),
        (
            "randread",
            lambda report: report["jobs"][0]["read"].update(runtime=120),
            r"0\.12 s of 0\.3 s",
        ),
        ("two-hosts", lambda report: report["client_stats"].pop(0), "1 jobs, 2"),
    ],
)
def test_a_job_that_did_not_do_what_was_asked_fails(
    name: str, change: Callable[[dict[str, Any]], None], match: str
) -> None:
    _, params, output = load(f"fio/{name}")
    with pytest.raises(Failed, match=match):
        FIO.parse(changed(output, change), params)


def as_fio_2(report: dict[str, Any]) -> None:
    """KiB/s under `bw` alone, microseconds under lat, clat and slat, no `sync`."""
    job = report["jobs"][0]
    read = job["read"]
    del job["sync"], read["bw_bytes"]
    for kind in ("lat", "clat", "slat"):
        block = read.pop(f"{kind}_ns")
        old = {key: block[key] / 1000 for key in ("min", "max", "mean", "stddev")}
        read[kind] = old | {
            "percentile": {p: item / 1000 for p, item in block["percentile"].items()}
        }


def until(is_over: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not is_over():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_fio_2_is_read_in_its_own_units() -> None:
    _, params, output = load("fio/randread")
    new, old = FIO.parse(output, params), FIO.parse(changed(output, as_fio_2), params)
    for metric, stat in (("bandwidth", "value"), ("latency", "mean"), ("latency", "p99")):
        assert values(old, metric, stat, direction="read") == pytest.approx(
            values(new, metric, stat, direction="read"), rel=1e-3 if metric == "bandwidth" else 1e-6
        )


def test_warnings_before_the_report_are_skipped() -> None:
    _, params, output = load("fio/randread")
    warned = {"client": "fio: {something} is deprecated\nnote: both\n" + output.texts["client"]}
    assert FIO.parse(dataclasses.replace(output, texts=warned), params) == FIO.parse(output, params)


def test_options_say_every_parameter() -> None:
    params = FioParams(
        rw="randrw",
        rwmixread=70,
        percentage_random=80,
        bs="16KiB",
        size="64MiB",
        iodepth=32,
        ioengine="io_uring",
        numjobs=4,
        nrfiles=2,
        thread=True,
        runtime="1500ms",
        ramp="2s",
        fsync=8,
    )
    place = FioTarget(LocalHost(), "/mnt/a:b", None, {})
    expected = {
        "directory": r"/mnt/a\:b",
        "rw": "randrw",
        "rwmixread": "70",
        "percentage_random": "80",
        "bs": "16384",
        "size": "67108864",
        "iodepth": "32",
        "ioengine": "io_uring",
        "numjobs": "4",
        "nrfiles": "2",
        "thread": "1",
        "direct": "1",
        "fsync": "8",
        "time_based": "1",
        "runtime": "1500000us",
        "ramp_time": "2000000us",
    }
    assert expected.items() <= dict(options(params, place)).items()
    first, *lines = job_file(params, place).splitlines()
    assert first == "[worker]"
    assert "exec_prerun=date +%s.%N" in lines
    assert "time_based" not in dict(options(FioParams(runtime=None), place))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rw": "rw,readwrite"}, "'randrw'"),
        ({"ioengine": "aio"}, "'io_uring'"),
        ({"directory": "/a", "file": "/b"}, "exclude each other"),
        ({"directory": "relative"}, "pattern"),
        *(
            ({"file": path}, "pattern")  # fio would write to another file, which may hold data
            for path in ("/a\nrw=write", "/a;b", "/a#b", "/a/$ncpus", "/a\\", "/a ")
        ),
        ({"ioengine": "psync", "iodepth": 8}, "one I/O in flight"),
        (
            {"iodepth": 8, "direct": False},
            (
                "iodepth 8: through the page cache libaio has one I/O in flight; use direct: "
                "true, io_uring"
            ),
        ),
        ({"ioengine": "mmap"}, "direct: false"),
        ({"bs": 1000}, "multiple of 512"),
        ({"size": "4KiB", "bs": "1MiB"}, "less than one I/O"),
        ({"rw": "read", "percentage_random": 50}, "not random"),
        ({"rwmixread": 101}, "less than or equal to 100"),
        ({"runtime": "-1s"}, "duration"),
        ({"blocksize": 4096}, "Extra inputs"),
        (
            {"prefill": True, "file": "/dev/sdz"},
            "prefill writes over /dev/sdz; set overwrite: true",
        ),
    ],
)
def test_bad_params_are_refused_with_what_is_allowed(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FioParams(**changes)


def test_readwrite_is_rw() -> None:
    assert FioParams(rw="readwrite") == FioParams(rw="rw")
    assert FioParams(rw="randrw", rwmixread=100).directions == ("read",)
    assert FioParams(rw="trimwrite").directions == ("trim", "write")


RAW_CLAIM = {"volume": {"mode": "Block", "claim": "precious"}}


@pytest.mark.parametrize(
    ("params", "shape", "message"),
    [
        ({"rw": "trim"}, {}, "block device"),
        (
            {"size": "2GiB"},
            {"volume": {"size": "1GiB"}},
            "size x numjobs is 2147483648 B, volume.size 1073741824 B",
        ),
        (
            {"size": "600MiB"},
            {"volume": {"access": "ReadWriteMany"}, "hosts": {"count": 2}},
            "size x numjobs x 2 hosts is 1258291200 B",
        ),
        (
            {"size": "600MiB"},
            {"volume": {"size": "1GiB", "claim": "kept"}, "hosts": {"count": 2}},
            "size x numjobs x 2 hosts is",
        ),
        ({"size": "2GiB"}, {"volume": {"kind": "emptyDir"}}, "volume.size"),
        (
            {"size": "2GiB"},
            {"volume": {"kind": "hostPath", "path": "/mnt/data", "size": "1GiB"}},
            "volume.size",
        ),
        (
            {"size": "2GiB", "numjobs": 4},
            {"volume": {"mode": "Block"}},
            "size is 2147483648 B, volume.size",
        ),
        ({"nrfiles": 2}, {"volume": {"mode": "Block"}}, "Block"),
        ({"file": "/dev/sdz"}, {"hosts": {"count": 2}}, "several hosts"),
        ({"rw": "randwrite"}, RAW_CLAIM, "claim precious exists"),
        ({"prefill": True}, RAW_CLAIM, "or set overwrite: true"),
        ({}, {"hosts": {"cpus": {"server": "0"}}}, "pin client"),
        ({}, {"hosts": {"count": 2, "cpus": {"client": "0"}}}, "pin server"),
        ({}, {}, None),
        ({"size": "600MiB"}, {"volume": {"size": "1GiB"}, "hosts": {"count": 2}}, None),
        # the default of volume.size says nothing of them
        ({"size": "4GiB"}, {"volume": {"kind": "hostPath", "path": "/mnt/data"}}, None),
        ({"size": "4GiB"}, {"volume": {"claim": "kept"}}, None),
        ({"size": "4GiB"}, {"volume": {"claim": "kept", "mode": "Block"}}, None),
        ({}, RAW_CLAIM, None),
        ({"rw": "write", "prefill": True, "overwrite": True}, RAW_CLAIM, None),
        ({"iodepth": 8, "direct": False, "ioengine": "io_uring"}, {}, None),
        ({"rw": "randtrim"}, {"volume": {"mode": "Block", "size": "2GiB"}}, None),
    ],
)
def test_what_cannot_be_is_refused_at_plan(
    params: dict[str, Any], shape: dict[str, Any], message: str | None
) -> None:
    problems = FIO.check(FioParams(**params), Shape.model_validate(shape))
    assert [str(message) in problem for problem in problems] == [True] * bool(message)


def gang(scratch: Path, count: int = 1, **shape: Any) -> Gang:
    hosts = [LocalHost() for _ in range(count)]
    return Gang(
        hosts, Shape.model_validate(merge({"hosts": {"count": count}}, shape)), 30, str(scratch)
    )


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("perfdag-fio"))


@pytest.fixture
def local_gang(tmp_path: Path) -> Gang:
    machines = gang(tmp_path)
    if FIO.missing(machines, FioParams()):
        pytest.skip("fio is not installed")
    return machines


SMALL: dict[str, Any] = {"size": "4MiB", "runtime": "200ms", "direct": False, "ioengine": "psync"}


@pytest.mark.parametrize(
    ("params", "directions"),
    [
        ({"rw": "randrw"}, ["read", "write"]),
        ({"rw": "randwrite", "prefill": True}, ["write"]),
    ],
)
def test_a_real_run_leaves_no_file(
    params: dict[str, Any], directions: list[str], local_gang: Gang, tmp_path: Path
) -> None:
    requested = FioParams(**params, **SMALL)
    output = FIO.run(local_gang, requested)
    measurements = FIO.parse(output, requested)
    assert all(values(measurements, "iops", direction=each)[0] > 0 for each in directions)
    assert output.facts["filesystem"]["type"]
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("hosts", "timeout", "params", "message"),
    [
        (1, 0.5, {"rw": "write", "runtime": "20s"}, "did not end within"),
        (
            2,
            0.3,
            {"rw": "read", "size": "2GiB"},
            r"laying out files on .* did not end within \d\.\d s",
        ),
        (1, 30, {"size": "4PiB"}, r"has \d+ B free, fio needs \d+ B"),
        (1, 30, {"directory": "/no/such/folder"}, "does not exist"),
    ],
)
@pytest.mark.usefixtures("local_gang")
def test_a_run_that_fails_says_why_and_leaves_no_file(
    hosts: int, timeout: float, params: dict[str, Any], message: str, tmp_path: Path
) -> None:
    machines = dataclasses.replace(gang(tmp_path, hosts), timeout=timeout)
    with pytest.raises(Failed, match=message):
        FIO.run(machines, FioParams(**SMALL | params))
    assert left(tmp_path) == []


@pytest.fixture
def device(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A loop device on a file of 8 MiB that has no block yet, and the file."""
    backing = Path("/var/tmp") / f"perfdag-test-{tmp_path.parent.name}-{os.getpid()}"
    backing.touch()
    os.truncate(backing, 8 << 20)
    output = subprocess.run(
        ["losetup", "-f", "--show", str(backing)], capture_output=True, text=True, check=False
    )
    if output.returncode != 0:
        backing.unlink()
        pytest.skip("losetup is not allowed here")
    yield output.stdout.strip(), backing
    subprocess.run(["losetup", "-d", output.stdout.strip()], check=True)
    backing.unlink()


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("losetup") is None,
    reason="loop devices need root and losetup",
)
def test_reads_of_a_block_device_meet_data_once_it_is_prefilled(
    local_gang: Gang, device: tuple[str, Path]
) -> None:
    name, backing = device
    volume = dataclasses.replace(local_gang, volume=name)
    params = FioParams(rw="randread", **SMALL)
    FIO.parse(FIO.run(volume, params), params)
    assert backing.stat().st_blocks == 0, "without it fio reads holes"
    filled = params.model_copy(update={"prefill": True})
    FIO.parse(FIO.run(volume, filled), filled)
    assert backing.stat().st_blocks * 512 >= filled.size


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("losetup") is None,
    reason="loop devices need root and losetup",
)
@pytest.mark.parametrize(
    ("changes", "by"),
    [({"rw": "randwrite"}, "randwrite"), ({"rw": "read", "prefill": True}, "prefill")],
)
def test_the_device_of_an_existing_claim_is_not_written_over(
    local_gang: Gang, device: tuple[str, Path], changes: dict[str, Any], by: str
) -> None:
    name, backing = device
    claimed = Shape.model_validate({"volume": {"mode": "Block", "claim": "precious"}})
    volume = dataclasses.replace(local_gang, volume=name, shape=claimed)
    with pytest.raises(Failed, match=f"{name} on .* exists and {by} would destroy its data"):
        FIO.run(volume, FioParams(**changes, **SMALL))
    assert backing.stat().st_blocks == 0
    params = FioParams(**changes, **SMALL, overwrite=True)
    FIO.parse(FIO.run(volume, params), params)
    assert backing.stat().st_blocks > 0


@pytest.mark.usefixtures("local_gang")
def test_files_of_several_hosts_are_laid_out_before_the_measured_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = create_autospec(LocalHost.serve, side_effect=LocalHost.serve)
    monkeypatch.setattr(LocalHost, "serve", serve)
    params = FioParams(rw="randread", **SMALL)
    output = FIO.run(gang(tmp_path, 2), params)
    commands = [call.args[1] for call in serve.call_args_list]
    assert ["--create_only=1" in argv for argv in commands] == [True, True, False, False]
    # the server runs the jobs of whoever connects
    assert all(argv[1].startswith("--server=ip:127.0.0.1,") for argv in commands[2:])
    assert left(tmp_path) == []
    first, second = map(float, output.facts["started"])
    assert abs(first - second) < 30, "each host printed when its jobs began"
    # on a busy machine they begin further apart than a tenth of so short a run
    output.facts["started"] = [str(first), str(first)]
    measurements = FIO.parse(output, params)
    assert len(values(measurements, "iops")) == 3
    assert values(measurements, "start_skew") == [0.0]


class Pod:
    """A pod of a node: its files are made on this machine, and nothing but mkdir succeeds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.put, self.remove = LocalHost().put, LocalHost().remove

    def run(self, argv: Any, **changes: Any) -> CommandResult:
        return CommandResult(list(argv), int(argv[0] != "mkdir"), "", "", 0.0)


@pytest.mark.parametrize(
    ("volume", "nodes", "kind", "message"),
    [
        ({}, "aabb", "ext4", None),  # a claim of its own for each
        ({"access": "ReadWriteMany"}, "abcd", "nfs4", "(size x numjobs x 4 hosts)"),
        ({"claim": "kept"}, "aaaa", "ext4", "(size x numjobs x 4 hosts)"),
        ({"kind": "hostPath", "path": "/mnt"}, "abcd", "ext4", None),
        (
            {"kind": "hostPath", "path": "/mnt"},
            "abcc",
            "ext4",
            "needs 4380866642 B (size x numjobs x 2 hosts)",
        ),
        ({"kind": "emptyDir"}, "aaab", "ext4", "(size x numjobs x 3 hosts)"),
        ({"kind": "emptyDir", "medium": "Memory"}, "aaab", "tmpfs", None),
        (None, "aabc", "overlay", "(size x numjobs x 2 hosts)"),
        (None, "aabc", "tmpfs", None),
        (None, "Aabc", "tmpfs", None),
        (None, "AAAA", "tmpfs", "(size x numjobs x 4 hosts)"),
        ({"kind": "hostPath", "path": "/mnt"}, "abcc", "tmpfs", "(size x numjobs x 2 hosts)"),
        ({"kind": "hostPath", "path": "/mnt"}, "abcd", "nfs4", "(size x numjobs x 4 hosts)"),
        (
            {"kind": "hostPath", "path": "/mnt"},
            "abcd",
            "fuse.glusterfs",
            "(size x numjobs x 4 hosts)",
        ),
        ({"kind": "hostPath", "path": "/mnt"}, "abcd", "fuseblk", None),
        (None, "Aabc", "lustre", "(size x numjobs x 4 hosts)"),
        ({}, "abcd", "nfs4", None),  # a claim of its own for each, of one server
    ],
)
def test_room_is_counted_for_the_hosts_that_share_it(
    volume: dict[str, Any] | None,
    nodes: str,
    kind: str,
    message: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    described = {"type": kind, "mount": "/perfdag/volume", "free_bytes": 4_000_000_000}
    monkeypatch.setattr(fio, "filesystem", lambda host, path: described)
    shape = Shape.model_validate(
        {"hosts": {"count": 4}}
        | ({"volume": {"size": "5GiB", **volume}} if volume is not None else {})
    )
    mounted = str(tmp_path / "volume") if volume is not None else None
    # upper case: this machine, or the pod in which the lead runs
    hosts: Any = [LocalHost(name=node.lower()) if node.isupper() else Pod(node) for node in nodes]
    four = Gang(hosts, shape, 60, str(tmp_path / "scratch"), mounted)
    params = FioParams(size="2GiB", direct=False)
    if message is None:
        with fio.prepared_targets(four, params) as places:
            assert len(places) == 4
        return
    with pytest.raises(Failed) as full, fio.prepared_targets(four, params):
        pass
    assert message in str(full.value)


def test_direct_io_in_memory_is_skipped(local_gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        fio,
        "filesystem",
        lambda host, path: {"type": "tmpfs", "mount": "/dev/shm", "free_bytes": 1 << 40},
    )
    with pytest.raises(Skip, match="direct: false"):
        FIO.run(local_gang, FioParams(directory=local_gang.scratch))


def test_scratch_in_memory_gives_way_to_a_disk(
    local_gang: Gang, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fio, "filesystem", lambda host, path: {"type": "tmpfs"})
    assert fio.target_directory(local_gang, FioParams(), local_gang.hosts[0]) == "/var/tmp"
    assert (
        fio.target_directory(local_gang, FioParams(direct=False), local_gang.hosts[0])
        == local_gang.scratch
    )


def test_data_of_others_is_neither_overwritten_nor_removed(
    local_gang: Gang, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"data" * 2048)
    with pytest.raises(Failed, match="would destroy its data"):
        FIO.run(local_gang, FioParams(rw="write", file=str(precious), **SMALL))
    params = FioParams(rw="read", file=str(precious), **{**SMALL, "size": "8KiB"})
    FIO.parse(FIO.run(local_gang, params), params)
    assert precious.read_bytes() == b"data" * 2048


def test_a_file_or_device_shorter_than_size_is_refused(
    local_gang: Gang, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = tmp_path / "short"
    short.write_bytes(b"data" * 1024)
    with pytest.raises(Failed, match="holds 4096 B, size is 4194304 B"):
        FIO.run(local_gang, FioParams(rw="read", file=str(short), **SMALL))
    assert short.stat().st_size == 4096
    monkeypatch.setattr(
        fio, "filesystem", lambda host, path: {"type": "block", "total_bytes": 1 << 20}
    )
    with pytest.raises(Failed, match="holds 1048576 B"):
        FIO.run(local_gang, FioParams(rw="read", file="/dev/null", **SMALL))


def test_a_file_of_its_own_is_removed(local_gang: Gang, tmp_path: Path) -> None:
    with pytest.raises(
        Failed, match=f"folder {tmp_path}/typo of file {tmp_path}/typo/made does not exist"
    ):
        FIO.run(local_gang, FioParams(rw="write", file=str(tmp_path / "typo/made"), **SMALL))
    assert not (tmp_path / "typo").exists()
    params = FioParams(rw="write", file=str(tmp_path / "made"), **SMALL)
    FIO.parse(FIO.run(local_gang, params), params)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("ext4", None),
        ("xfs", None),
        ("overlay", "file system below"),
        ("fuse.glusterfs", "program behind"),
        ("zfs", "cache"),
    ],
)
@pytest.mark.parametrize("direct", [True, False])
def test_what_direct_io_may_not_be_is_told_of_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, message: str | None, direct: bool
) -> None:
    result = filesystem(LocalHost(), str(tmp_path))
    monkeypatch.setattr(
        fio, "filesystem", lambda host, path: {**result, "type": kind}
    )  # a fake mount
    gang = Gang([LocalHost()], Shape(), 30, str(tmp_path))
    with fio.prepared_targets(
        gang, FioParams(direct=direct, size=4096, directory=str(tmp_path))
    ) as [place]:
        requested = place.described.get("direct_io")
    assert (requested is None) if message is None or not direct else message in str(requested)


@pytest.mark.parametrize(
    ("barred", "writes", "word"),
    [("-r", False, "read"), ("-w", True, "written"), ("-w", False, None)],
)
def test_a_device_of_somebody_else_is_skipped_with_the_way_to_it(
    barred: str, writes: bool, word: str | None
) -> None:
    class Others(LocalHost):
        """This machine, where one may not do one thing with a device."""

        def run(self, argv: Any, **options: Any) -> Any:
            return super().run(["false" if argv[:2] == ["test", barred] else "true"], **options)

    if word is None:
        fio.check_access(Others(), "/dev/some", writes)
        return
    with pytest.raises(
        Skip,
        match=rf"/dev/some on .* may not be {word} by this user; in pods add privileges: \[block\]",
    ):
        fio.check_access(Others(), "/dev/some", writes)
