"""`perfdag run` end to end with real processes: what is stored, what is resumed, what a kill
leaves.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from unittest.mock import Mock

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from perfdag import __file__ as package, __version__
from perfdag.commands.main import main
from perfdag.hosts import disturbance
from perfdag.plan import prepare_duet
from perfdag.results.collect import collect, gather
from perfdag.results.run_store import RunStore
from perfdag.results.schema import SAMPLES, load_rows
from perfdag.results.summary import points_of
from perfdag.runs.cluster import cluster_plan
from perfdag.store.base import FolderStore, StoreError
from perfdag.store.s3 import S3Store
from perfdag.suite.load import load_suite
from tests.conftest import CommandLine, SuiteWriter
from tests.fakes.process import PERFDAG


def test_a_row_says_when_in_the_order_its_sample_was_measured(measured: Path) -> None:
    rows = sorted(rows_of(measured), key=lambda row: str(row["started_at"]))
    assert [row["order_index"] for row in rows] == [*range(len(rows))]


def rows_of(store: Path) -> list[dict[str, object]]:
    """The rows of the run's samples: headlines, and those without a value."""
    files = list(store.glob("results/*/*/*.parquet"))
    assert len(files) == 1
    rows = pq.read_table(files[0]).to_pylist()
    return [row for row in rows if row["benchmark"] != "canary" and row["headline"] is not False]


def test_every_sample_is_a_row_and_a_failure_too(write_suite: SuiteWriter, tmp_path: Path) -> None:
    suite = write_suite(
        "name: mixed\nrepetitions: 2\nentries:\n"
        "  - {name: good, benchmark: command, params: {argv: [sleep, '0.01']}}\n"
        "  - {name: bad, benchmark: command, params: {argv: ['false']}}\n"
        "  - {name: absent, optional: true, benchmark: command, params: {argv: [nosuch]}}\n"
    )
    assert main(["run", str(suite), "--store", str(tmp_path / "store"), "--no-report"]) == 1
    rows = rows_of(tmp_path / "store")
    assert len(rows) == 6
    by_entry = {
        entry: [row for row in rows if row["entry"] == entry] for entry in ("good", "bad", "absent")
    }
    assert {row["status"] for row in by_entry["good"]} == {"ok"}
    assert all(0.01 <= row["value"] < 5 and row["unit"] == "s" for row in by_entry["good"])  # type: ignore[operator]
    assert {row["status"] for row in by_entry["bad"]} == {"failed"}
    assert all(row["value"] is None and "exited 1" in str(row["error"]) for row in by_entry["bad"])
    assert {row["status"] for row in by_entry["absent"]} == {"skipped"}


def test_a_run_with_a_report_parses_its_suite_and_summarises_its_points_once(
    write_suite: SuiteWriter, tmp_path: Path
) -> None:
    suite = write_suite(
        "name: once\nrepetitions: 2\nchecks: [{metric: wall_time, op: <, value: 1 min}]\nentries:\n"
        "  - {benchmark: command, params: {argv: ['true']}}\n"
    )
    parsed: list[str] = []
    summarised: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is yaml.compose.__code__:
            parsed.append(frame.f_locals["stream"])
        if event == "call" and frame.f_code is points_of.__code__ and frame.f_back:
            summarised.append(frame.f_back.f_code.co_name)

    sys.setprofile(note)
    try:
        main(["run", str(suite), "--store", str(tmp_path / "store")])
    finally:
        sys.setprofile(None)
    assert parsed.count(suite.read_text()) == 1
    assert summarised == ["summarise", "_canary"]


def test_no_parquet_is_read_before_the_first_run_of_a_suite_is_measured(
    write_suite: SuiteWriter, tmp_path: Path
) -> None:
    """What is measured may need the 40 MB of pyarrow."""
    code = """
import sys
from perfdag.runs import local
from perfdag.commands.main import main
from perfdag.hosts import disturbance
measure = local.measure_turns
def measure_and_print(*parameters):
    measure(*parameters)
    print("pyarrow" in sys.modules)
local.measure_turns = measure_and_print
main(["run", *sys.argv[1:], "--no-report"])
print("pyarrow" in sys.modules)
"""
    argv = [str(write_suite.sleeps(1, 1)), "--store", str(tmp_path / "store")]
    result = subprocess.run(
        [sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True
    )
    lines = result.stdout.splitlines()
    assert (lines[0], lines[-1]) == ("False", "True")


def test_an_image_without_matplotlib_keeps_the_result_and_says_where_a_report_is_drawn(
    write_suite: SuiteWriter,
    tmp_path: Path,
    cli: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    suite = write_suite.sleeps(1, 1)
    for module in [name for name in sys.modules if name.startswith("perfdag.charts")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    store = ["--store", str(tmp_path / "store")]
    ended = cli(["run", str(suite), *store])
    assert "wall time" in ended.out
    [row] = rows_of(tmp_path / "store")
    advice = (
        f"matplotlib is not installed here: run `perfdag report {row['run_id']} "
        f"--store {tmp_path / 'store'}` where it is"
    )
    for error in (ended.err, cli(["report", "last", *store], 2).err):
        assert error.splitlines()[-1] == f"perfdag: no report: {advice}"


def test_a_run_of_ab_or_of_a_cluster_is_not_resumed_by_run(
    write_suite: SuiteWriter, tmp_path: Path, cli: CommandLine
) -> None:
    """One variant measured alone would be analysed as if it had been measured beside the other."""
    store = FolderStore(str(tmp_path / "store"))
    file = write_suite.sleeps(1, 1)
    duet = prepare_duet(load_suite(file), load_suite(file), ("one", "two"), 8)
    submitted = cluster_plan(load_suite(str(file)))
    submitted.where = {"namespace": "bench"}
    for plans, command in (
        ([duet.a, duet.b], f"perfdag ab --resume {duet.a.run_id} --store {store.root}\n"),
        ([submitted], f"perfdag submit --resume {submitted.run_id} --namespace bench\n"),
    ):
        for plan in plans:
            store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
        resume = ["run", "--resume", plans[-1].run_id, "--store", store.root, "--no-report"]
        assert f"continue it: {command}" in cli(resume, 2).err
    assert [key for key in store.list("runs") if "/parts/" in key] == []


def test_the_table_of_a_point_with_values_has_why_others_of_its_samples_gave_none(
    write_suite: SuiteWriter, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A resumed run printed the line of a sample that failed in the go before, and this one only
    how many there are.
    """
    once = "import pathlib, sys; made = pathlib.Path(sys.argv[1]); made.mkdir(exist_ok=False)"
    suite = write_suite(
        "name: partly\nrepetitions: 2\nretries: 0\nentries:\n"
        f"  - {{benchmark: command, name: once, params: {{argv: [python3, -c, '{once}', "
        f"'{tmp_path}/made']}}}}\n"
    )
    store = str(tmp_path / "store")
    assert main(["run", str(suite), "--store", store, "--no-report"]) == 1
    capfd.readouterr()
    assert main(["run", "--resume", "last", "--store", store, "--no-report"]) == 1
    output = capfd.readouterr().out
    assert "1 ok, 1 failed" in output
    assert "FileExistsError: [Errno 17]" in next(
        line for line in output.splitlines() if line.startswith("once: python3 exited 1, not 0: ")
    )


def test_what_this_machine_cannot_give_is_skipped_and_every_row_says_where_and_with_what(
    write_suite: SuiteWriter, tmp_path: Path
) -> None:
    suite = write_suite(
        "name: elsewhere\nentries:\n"
        "  - {name: net, benchmark: iperf, params: {duration: 1s}, network: {interface: eth9}}\n"
        "  - {name: volume, benchmark: command, params: {argv: ['true']}, volume: {size: 1GiB}}\n"
    )
    assert main(["run", str(suite), "--store", str(tmp_path / "store"), "--no-report"]) == 1
    rows = load_rows(FolderStore(str(tmp_path / "store"))).to_pylist()
    skipped = {row["entry"]: row["error"] for row in rows if row["status"] == "skipped"}
    assert skipped == {
        "net": "network.interface: needs a cluster (perfdag submit)",
        "volume": "a volume: needs a cluster (perfdag submit)",
    }
    assert "canary" in {row["benchmark"] for row in rows}
    for row in rows:
        assert row["perfdag_version"] == __version__
        assert orjson.loads(row["env"])["kernel"]
        if (Path(package).resolve().parents[1] / ".git").exists():
            assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", row["git_sha"])


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a run of the suite `sleeps`."""
    folder = tmp_path_factory.mktemp("measured")
    suite, root = str(SuiteWriter(folder).sleeps()), str(folder / "store")
    assert main(["run", suite, "--store", root, "--no-report"]) == 0
    return folder / "store"


@pytest.fixture
def finished(measured: Path, tmp_path: Path) -> FolderStore:
    return FolderStore(str(shutil.copytree(measured, tmp_path / "store")))


def test_collecting_twice_gives_the_same_bytes_in_the_schema(finished: FolderStore) -> None:
    store, plan = finished, RunStore(finished).plan("last")
    key = collect(store, plan)[1].key
    first = store.get(key)
    time.sleep(0.01)
    collect(store, plan)
    assert store.get(key) == first
    assert load_rows(store).column_names == SAMPLES.names
    plain = pq.read_table(pa.BufferReader(first))
    assert plain.schema.equals(SAMPLES), plain.schema


def test_until_stops_at_the_precision_or_at_the_maximum(
    write_suite: SuiteWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = write_suite(
        "name: until\nentries:\n"
        "  - name: easy\n    benchmark: command\n    params: {argv: [sleep, '0.3']}\n"
        "    until: {relative_spread: 0.99, max_repetitions: 15}\n"
        "  - name: hard\n    benchmark: command\n    params: {argv: [sleep, '0.01']}\n"
        "    until: {relative_spread: 0.000001, max_repetitions: 8}\n"
    )
    assert main(["run", str(suite), "--store", str(tmp_path / "store"), "--no-report"]) == 0
    rows = rows_of(tmp_path / "store")
    assert sum(row["entry"] == "easy" for row in rows) == 6, (
        "six samples are the fewest that give an interval"
    )
    assert sum(row["entry"] == "hard" for row in rows) == 8
    assert "after 8 samples (goal: 0.0%)" in capsys.readouterr().out


def perfdag(*words: str, env: dict[str, str] | None = None) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [*PERFDAG, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=env,
    )


def samples(root: Path) -> set[str]:
    """Names of the parts that a store has, canaries left out."""
    return {
        file.name for file in root.glob("runs/*/parts/*.json") if not file.name.startswith("canary")
    }


KILLS = 5


@pytest.mark.slow
def test_kill_9_at_random_moments_loses_nothing_and_repeats_nothing(
    write_suite: SuiteWriter, tmp_path: Path
) -> None:
    """5 kills over a run of 30 samples. Each sample leaves one line in a log, so a sample
    measured twice shows.
    """
    log, root = tmp_path / "log", tmp_path / "store"
    variants = ", ".join(f"{{POINT: '{i}'}}" for i in range(15))
    script = 'sleep 0.1; printf "%s\\n" "$POINT" >> "$LOG"'
    suite = write_suite(
        f"name: killed\nrepetitions: 2\nentries:\n  - benchmark: command\n"
        f"    params: {{argv: [sh, -c, {json.dumps(script)}]}}\n"
        f"    permutations: {{product: {{env: [{variants}]}}}}\n"
    )
    dice = random.Random(7)
    environment = {**os.environ, "LOG": str(log)}
    arguments = ["run", str(suite), "--store", str(root), "--no-report"]
    stored_when_killed: set[str] = set()
    for _ in range(KILLS):
        process = perfdag(*arguments, env=environment)
        more = dice.randrange(
            3
            # samples that this round may finish; in a round without one the kill may come before
            # the first
        )
        goal, deadline = len(stored_when_killed) + more, time.monotonic() + 30
        while not list(root.glob("runs/*/plan.json")) or len(samples(root)) < goal:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(dice.uniform(0.0, 0.15) if more else dice.uniform(0.1, 0.6))
        assert process.poll() is None, "the run ended before it could be killed"
        process.send_signal(signal.SIGKILL)
        process.wait()
        now = samples(root)
        assert stored_when_killed <= now, "a stored sample vanished"
        stored_when_killed = now
        arguments = ["run", "--resume", "last", "--store", str(root), "--no-report"]
    assert perfdag(*arguments, env=environment).wait(120) == 0
    rows = rows_of(root)
    assert len(rows) == 30
    assert {row["status"] for row in rows} == {"ok"}
    assert len({(row["point"], row["repetition"]) for row in rows}) == 30
    # a sample is measured again only if the kill came before it was stored: at most one a kill
    assert 30 <= len(log.read_text().splitlines()) <= 30 + KILLS


def test_ctrl_c_ends_the_children_keeps_the_parts_and_exits_130(
    write_suite: SuiteWriter, tmp_path: Path
) -> None:
    root, long = tmp_path / "store", f"{50_000 + os.getpid() % 10_000}.25"
    suite = write_suite(
        "name: stopped\nrepetitions: 1\nentries:\n"
        "  - {name: quick, benchmark: command, params: {argv: [sleep, '0.01']}}\n"
        f"  - {{name: long, benchmark: command, params: {{argv: [sleep, '{long}']}}, "
        f"timeout: 1h}}\n"
    )
    process = perfdag("run", str(suite), "--store", str(root), "--no-report", "--set", "seed=1")
    deadline = time.monotonic() + 20
    while (
        subprocess.run(
            ["pgrep", "-f", f"sleep {long}"], capture_output=True, check=False
        ).returncode
        != 0
    ):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"--resume" in errors
    assert b"Traceback" not in errors
    assert (
        subprocess.run(
            ["pgrep", "-f", f"sleep {long}"], capture_output=True, check=False
        ).returncode
        == 1
    ), "the child was left running"


def test_a_store_that_refuses_a_sample_ends_the_run_and_resume_measures_that_sample_again(
    write_suite: SuiteWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    """The second sample is refused; it is the only one that is measured when the run goes on."""
    root, put, refused = tmp_path / "store", FolderStore.put, list[str]()

    def put_once(self: FolderStore, key: str, data: bytes) -> None:
        is_sample = "/parts/" in key and "canary" not in key
        if is_sample and not refused and self.list(key.rpartition("/")[0]):
            refused.append(key)
            raise StoreError(f"store {root}: the disk is full")
        put(self, key, data)

    monkeypatch.setattr(FolderStore, "put", put_once)
    suite = write_suite.sleeps(points=3, repetitions=1)
    errors = cli(["run", str(suite), "--store", str(root), "--no-report"], 4).err
    assert f"perfdag run: store {root}: the disk is full" in errors
    assert "--resume" in errors
    assert "Traceback" not in errors
    [key] = refused
    assert not (root / key).exists()
    before = {path: path.read_bytes() for path in root.glob("runs/*/parts/*.json")}
    assert main(["run", "--resume", "last", "--store", str(root), "--no-report"]) == 0
    assert json.loads((root / key).read_text())["status"] == "ok"
    assert {path: path.read_bytes() for path in before} == before, "nothing is measured twice"
    assert len(rows_of(root)) == 3


@pytest.mark.parametrize(
    "extra", ["", "defaults: {until: {relative_spread: 0.9, max_repetitions: 6}}\n"]
)
def test_a_damaged_part_is_measured_again_by_resume(
    write_suite: SuiteWriter, tmp_path: Path, extra: str, cli: CommandLine
) -> None:
    root = tmp_path / "store"
    suite = write_suite.sleeps(points=2, repetitions=2, extra=extra)
    assert main(["run", str(suite), "--store", str(root), "--no-report"]) == 0
    parts = sorted(root.glob("runs/*/parts/*.json"))
    sample, canary = (
        next(part for part in parts if part.name.startswith("canary") is kind)
        for kind in (False, True)
    )
    whole = {part: part.read_bytes() for part in parts if part not in (sample, canary)}
    sample.write_bytes(sample.read_bytes()[:100])
    canary.write_bytes(b"[]")
    errors = cli(["run", "--resume", "last", "--store", str(root), "--no-report"]).err
    assert "unreadable, measured again: 2 samples" in errors
    assert sample.stem in errors
    assert json.loads(sample.read_text())["status"] == "ok"
    assert {part: part.read_bytes() for part in whole} == whole, "nothing is measured twice"
    assert {row["status"] for row in rows_of(root)} == {"ok"}


def test_with_no_room_for_temporary_files_it_is_exit_4_and_resume_completes(
    write_suite: SuiteWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    suite, root = write_suite.sleeps(points=2, repetitions=1), tmp_path / "store"
    full = OSError(28, "No space left on device")
    figures = disturbance.canary() | {"disk": None}
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.TemporaryDirectory", Mock(side_effect=full))
        patch.setattr(disturbance, "canary", figures.copy)
        errors = cli(["run", str(suite), "--store", str(root), "--no-report"], 4).err
    assert "cannot create a temporary folder" in errors
    assert "--resume" in errors
    assert "Traceback" not in errors
    stored = json.loads(next(root.glob("runs/*/parts/canary*")).read_text())
    assert {row["metric"] for row in stored["rows"]} == {"cpu", "memory", "loopback", "steal"}
    assert stored["noise"] == "no canary of disk: the system refused it"
    assert main(["run", "--resume", "last", "--store", str(root), "--no-report"]) == 0
    assert {row["status"] for row in rows_of(root)} == {"ok"}


def test_a_damaged_part_is_missing_and_named(finished: FolderStore) -> None:
    root, plan = Path(finished.root), RunStore(finished).plan("last")
    victim = next(file for file in root.glob("runs/*/parts/*.json") if "canary" not in file.name)
    victim.write_text(victim.read_text()[:100])
    canary = next(root.glob("runs/*/parts/canary*.json"))
    canary.write_text("")
    table, collected = gather(finished, plan)
    assert collected.damaged == [victim.stem, canary.stem]
    assert table["status"].to_pylist().count("missing") == 1


def test_the_command_is_pinned_where_the_suite_says(
    write_suite: SuiteWriter, tmp_path: Path
) -> None:
    cpu = max(os.sched_getaffinity(0))
    suite = write_suite(
        "name: pinned\nentries:\n  - benchmark: command\n"
        "    params: {argv: [grep, Cpus_allowed_list, /proc/self/status]}\n"
        f"    hosts: {{cpus: {{client: '{cpu}'}}}}\n"
    )
    assert main(["run", str(suite), "--store", str(tmp_path), "--no-report"]) == 0
    (part,) = (
        json.loads(file.read_text())
        for file in tmp_path.glob("runs/*/parts/*.json")
        if "canary" not in file.name
    )
    assert part["texts"]["stdout"].split() == ["Cpus_allowed_list:", str(cpu)]


@pytest.mark.parametrize("verb", ["run", "submit"])
@pytest.mark.parametrize(
    ("beside", "word"),
    [
        (["--set", "repetitions=1"], "--set"),
        (["--only", "x"], "--only"),
        (["suite.yaml"], "SUITE"),
    ],
)
def test_nothing_that_would_be_ignored_stands_beside_resume(
    verb: str, beside: list[str], word: str, cli: CommandLine
) -> None:
    assert f"leave out {word}" in cli([verb, *beside, "--resume", "last"], 2).err


def test_two_commands_are_measured_in_turn_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.chdir(tmp_path)
    said = cli(["run", "--", "sleep", "0.1", ":::", "true"]).out.splitlines()[-1]
    assert re.fullmatch(r"true is [\d.]+ times faster than sleep 0.1 \(p 0.002\)", said)
    for words in (["true", ":::"], [":::", "true"], ["true", ":::", "true", ":::", "true"]):
        assert "perfdag run -- A ::: B" in cli(["run", "--", *words], 2).err
    assert "no program 'nonesuch' here" in cli(["run", "--", "true", ":::", "nonesuch"], 2).err


def test_an_unknown_run_names_the_nearest(finished: FolderStore, cli: CommandLine) -> None:
    known = RunStore(finished).plan("last").run_id
    plan = Path(finished.root) / "runs" / known / "plan.json"

    def refused(run: str) -> str:
        return cli(["collect", run, "--store", finished.root], 2).err

    assert f"did you mean {known}?" in refused(known[:-1] + "x")
    plan.write_text(plan.read_text().replace(known, "../x"))
    assert f"plan.json of {known} is damaged: run_id '../x'" in refused(known)
    assert "no run ../runs/" in refused(f"../runs/{known}")


@pytest.mark.cluster
def test_a_run_on_s3_has_the_same_rows(
    write_suite: SuiteWriter, tmp_path: Path, s3_root: str
) -> None:
    suite = write_suite.sleeps()
    assert main(["run", str(suite), "--store", s3_root, "--no-report"]) == 0
    assert main(["run", str(suite), "--store", str(tmp_path / "store"), "--no-report"]) == 0
    far, near = load_rows(S3Store(s3_root, 5)), load_rows(FolderStore(str(tmp_path / "store")))
    same = [
        "suite",
        "entry",
        "benchmark",
        "point",
        "params",
        "shape",
        "metric",
        "stat",
        "series_id",
        "unit",
        "better",
        "status",
        "repetition",
    ]
    assert sorted(map(str, far.select(same).to_pylist())) == sorted(
        map(str, near.select(same).to_pylist())
    )


def test_s3_that_cannot_be_reached_is_exit_4_in_one_line(
    write_suite: SuiteWriter, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    init = S3Store.__init__
    monkeypatch.setattr(S3Store, "__init__", lambda self, root, *_: init(self, root, 0.5))
    errors = cli(["run", str(write_suite.sleeps()), "--store", "s3://bucket/prefix"], 4).err
    assert "cannot be reached" in errors
    assert "Traceback" not in errors


def test_names_that_are_not_utf8_and_escape_sequences_of_a_tool_do_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    other = os.fsencode(tmp_path) + b"/caf\xe9"
    Path(os.fsdecode(other)).mkdir()
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\nprintf '\\033[31mboom\\007\\033]0;t\\007' >&2; exit 3\n")
    tool.chmod(0o755)
    fio = "{rw: read, size: 4MiB, runtime: 300ms, direct: false, ioengine: psync}"
    Path("s.yaml").write_text(
        f"name: s\nrepetitions: 1\nentries:\n  - {{benchmark: fio, params: {fio}}}\n"
    )
    for words, code, said in (
        (["s.yaml", "--store", other + b"/st"], 2, b"is not UTF-8"),
        (["--store", "st", "--", "printf", b"caf\xe9"], 2, b"is not UTF-8"),
        (["s.yaml", "--store", "st"], 0, b"1 ok"),
        (["--store", "st", "--", str(tool)], 1, b"not 0: boom\n"),
    ):
        ended = subprocess.run(
            [*PERFDAG, "run", "--no-report", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": os.fsdecode(other)},
        )
        assert (ended.returncode, said in ended.stdout) == (code, True), ended.stdout
        assert not re.search(rb"[\x07\x1b]", ended.stdout)
