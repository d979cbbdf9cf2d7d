"""fio: what its report means, what is refused, that its files are always gone, one host and two."""

import dataclasses
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest

from perfdag.benchmark.contract import Failed, Gang, Invalid, Measurement, Skip
from perfdag.hosts.base import CommandResult
from perfdag.hosts.local import LocalHost
from perfdag.identity import merge
from perfdag.shape import Shape
from perfdag.steps import fio
from perfdag.steps.fio import Fio, FioParams, Target, job_file, options
from tests.recorded.measured import values
from tests.recorded.recordings import CASES

FIO = Fio()


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
    place = Target(LocalHost(), "/mnt/a:b", None, {})
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
    printed = {name: str(value) for name, value in options(params, place).items()}
    assert expected.items() <= printed.items()
    first, *lines = job_file(params, place).splitlines()
    assert first == "[worker]"
    assert "exec_prerun=date +%s.%N" in lines
    assert "time_based" not in options(FioParams(runtime=None), place)


def test_readwrite_is_rw() -> None:
    assert FioParams(rw="readwrite") == FioParams(rw="rw")
    assert FioParams(rw="randrw", rwmixread=100).kinds == ("read",)
    assert FioParams(rw="trimwrite").kinds == ("trim", "write")


RAW_CLAIM = {"volume": {"mode": "Block", "claim": "precious"}}


@pytest.mark.parametrize(
    ("params", "shape", "code"),
    [
        ({"rw": "trim"}, {}, "no-block-device"),
        ({"size": "2GiB"}, {"volume": {"size": "1GiB"}}, "small-volume"),
        (
            {"size": "600MiB"},
            {"volume": {"access": "ReadWriteMany"}, "hosts": {"count": 2}},
            "small-volume",
        ),
        (
            {"size": "600MiB"},
            {"volume": {"size": "1GiB", "claim": "kept"}, "hosts": {"count": 2}},
            "small-volume",
        ),
        ({"size": "2GiB"}, {"volume": {"kind": "emptyDir"}}, "small-volume"),
        (
            {"size": "2GiB"},
            {"volume": {"kind": "hostPath", "path": "/mnt/data", "size": "1GiB"}},
            "small-volume",
        ),
        ({"size": "2GiB", "numjobs": 4}, {"volume": {"mode": "Block"}}, "small-volume"),
        ({"nrfiles": 2}, {"volume": {"mode": "Block"}}, "block-volume"),
        ({"file": "/dev/sdz"}, {"hosts": {"count": 2}}, "shared-file"),
        ({"rw": "randwrite"}, RAW_CLAIM, "claim-overwritten"),
        ({"prefill": True}, RAW_CLAIM, "claim-overwritten"),
        ({}, {"hosts": {"cpus": {"server": "0"}}}, "unused-pin"),
        ({}, {"hosts": {"count": 2, "cpus": {"client": "0"}}}, "unused-pin"),
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
    params: dict[str, Any], shape: dict[str, Any], code: str | None
) -> None:
    problems = FIO.check(FioParams(**params), Shape.model_validate(shape))
    assert [problem.code for problem in problems] == [code] * bool(code)


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
    if not shutil.which("fio"):
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
    measurements = FIO.run(local_gang, FioParams(**params, **SMALL))
    assert all(values(measurements, "iops", direction=each)[0] > 0 for each in directions)
    assert local_gang.output.facts["filesystem"]["type"]
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
        (1, 30, {"directory": "/no/such/folder"}, "No such file"),
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
    FIO.run(volume, params)
    assert backing.stat().st_blocks == 0, "without it fio reads holes"
    filled = params.model_copy(update={"prefill": True})
    FIO.run(volume, filled)
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
    FIO.run(volume, FioParams(**changes, **SMALL, overwrite=True))
    assert backing.stat().st_blocks > 0


@pytest.mark.usefixtures("local_gang")
def test_files_of_several_hosts_are_laid_out_before_the_measured_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = create_autospec(LocalHost.serve, side_effect=LocalHost.serve)
    monkeypatch.setattr(LocalHost, "serve", serve)
    hosts = gang(tmp_path, 2)
    with suppress(Invalid):  # on a busy machine they begin further apart than a tenth of the run
        FIO.run(hosts, FioParams(rw="randread", **SMALL))
    commands = [call.args[1] for call in serve.call_args_list]
    assert ["--create_only=1" in argv for argv in commands] == [True, True, False, False]
    # the server runs the jobs of whoever connects
    assert all(argv[1].startswith("--server=ip:127.0.0.1,") for argv in commands[2:])
    assert left(tmp_path) == []
    first, second = (host["started"] for host in json.loads(hosts.output.texts["hosts"]))
    assert abs(first - second) < 30, "each host printed when its jobs began"


def test_direct_io_in_memory_is_skipped(local_gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        fio,
        "filesystem",
        lambda host, path: {"type": "tmpfs", "mount": "/dev/shm", "free_bytes": 1 << 40},
    )
    with pytest.raises(Skip, match="direct: false"):
        FIO.run(local_gang, FioParams(directory=local_gang.scratch))


def test_a_file_system_without_room_for_all_jobs_is_refused(
    local_gang: Gang, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each job writes as much, so the size of one would fit."""
    facts = {"type": "ext4", "mount": "/data", "free_bytes": 6 << 20}
    monkeypatch.setattr(fio, "filesystem", lambda host, path: facts)
    params = FioParams(directory=local_gang.scratch, **{**SMALL, "numjobs": 2})
    with pytest.raises(Failed, match=r"/data on \S+ has 6291456 B free, fio needs 8388608 B"):
        FIO.run(local_gang, params)


def test_data_of_others_is_neither_overwritten_nor_removed(
    local_gang: Gang, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"data" * 2048)
    with pytest.raises(Failed, match="would destroy its data"):
        FIO.run(local_gang, FioParams(rw="write", file=str(precious), **SMALL))
    params = FioParams(rw="read", file=str(precious), **{**SMALL, "size": "8KiB"})
    FIO.run(local_gang, params)
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
    with pytest.raises(Failed):
        FIO.run(local_gang, FioParams(rw="write", file=str(tmp_path / "typo/made"), **SMALL))
    assert not (tmp_path / "typo").exists()
    FIO.run(local_gang, FioParams(rw="write", file=str(tmp_path / "made"), **SMALL))
    assert not (tmp_path / "made").exists()


def test_a_device_that_only_root_may_open_is_skipped_with_what_to_do() -> None:
    said = (
        "fio: failed opening blockdev /perfdag/volume for size check\n"
        "file:filesetup.c:799, func=open(/perfdag/volume), error=Permission denied\n"
    )
    with pytest.raises(Skip, match=r"add privileges: \[block\]"):
        fio._check_exit(CommandResult(["fio"], 1, "", said, 0.1))


def test_a_date_without_nanoseconds_is_read_in_whole_seconds() -> None:
    printed = {"busybox": "1764350000.%N\n", "macos": "1764350000.N\n", "gnu": "1764350000.25\n"}
    targets = []
    for name, text in printed.items():
        host = create_autospec(LocalHost, instance=True)
        host.name = name
        host.run.return_value = CommandResult([], 0, text, "", 0.1)
        targets.append(Target(host, "/x", None, {}))
    starts = fio.starts_of(targets, [*printed])
    assert [start["started"] for start in starts] == [1764350000.0, 1764350000.0, 1764350000.25]
    recording = CASES["fio/two-hosts"].load()
    first, second = json.loads(recording.output.texts["hosts"])
    second["started"] = first["started"] + 0.9
    late = recording.output.texts | {"hosts": json.dumps([first, second])}
    with pytest.raises(Invalid, match=r"the hosts started within 0\.90 s"):
        recording.parse(late, recording.params)


@pytest.mark.parametrize(
    ("facts", "direct", "cached"),
    [
        ({"type": "zfs"}, True, True),
        ({"type": "zfs", "zfs_version": "2.2.2-0ubuntu9.1"}, True, True),
        ({"type": "zfs", "zfs_version": "2.3.0-1"}, True, False),
        ({"type": "zfs", "zfs_version": "2.10.0-rc1"}, True, False),
        ({"type": "zfs"}, False, False),
        ({"type": "9p"}, True, True),
        ({"type": "fuse.sshfs"}, True, True),
        ({"type": "ext4"}, True, False),
    ],
)
def test_a_file_system_that_may_cache_direct_io_is_told(
    facts: dict[str, str], direct: bool, cached: bool
) -> None:
    kind = f"direct I/O: {facts['type']} may serve it from a cache, so that these are not the"
    notes = fio.cached_direct(FioParams(direct=direct, ioengine="psync"), [facts])
    assert notes == [f"{kind} disk's figures"] * cached


@pytest.mark.parametrize(("count", "few"), [(458, True), (459, False)])
def test_ios_that_are_too_few_for_a_p99_are_told(count: int, few: bool) -> None:
    means = [
        Measurement("latency", 1e-3, "mean", {"direction": direction}, n, subject)
        for direction, n, subject in (("read", count, None), ("write", 459, None), ("read", 1, "a"))
    ]
    note = "read: too few I/Os for p99, which needs 459 in a sample"
    assert [*fio.too_few(means)] == [note] * few
