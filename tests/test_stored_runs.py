"""The verbs of stored runs: `ls`, `show`, `open`, `rm`, `prune`, and what RUN means in each."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pytest

from perfdag.commands.main import main
from perfdag.plan import Plan, prepare_duet
from perfdag.results.collect import collect
from perfdag.results.run_store import RunStore, put_plan, stored_plan
from perfdag.runs import local
from perfdag.runs.finish import check_age
from perfdag.signals import EXIT_GATE
from perfdag.store.base import FolderStore, StoreError
from perfdag.suite.load import load_suite
from tests.conftest import CommandLine, SuiteWriter

SOON = f"{datetime.now(UTC) + timedelta(hours=6):%Y%m%dT%H%M%SZ}"
"""The time of a run that is newer than any other, on a machine whose clock is ahead of ours."""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two runs of the suite `sleeps`."""
    folder = tmp_path_factory.mktemp("measured")
    suite, root = str(SuiteWriter(folder).sleeps(2, 3)), str(folder / "store")
    with contextlib.chdir(folder):  # no work tree, which would be the revision of the runs
        assert [main(["run", suite, "--no-report", "--store", root]) for _ in range(2)] == [0, 0]
    return folder / "store"


@pytest.fixture
def store(measured: Path) -> FolderStore:
    """The default store, with those two runs."""
    shutil.copytree(measured, "perfdag-results")
    return FolderStore("./perfdag-results")


@pytest.mark.parametrize("argv", ["ls", "show last", "check last", "history sleeps", "site"])
def test_a_foreign_file_among_the_results_is_named_and_left_out(
    argv: str, store: FolderStore, cli: CommandLine
) -> None:
    rows = next(Path("perfdag-results/results").rglob("*.parquet"))
    misplaced = Path("perfdag-results/results/sleeps/1999-01", rows.name)
    misplaced.parent.mkdir()
    for foreign in (rows.with_name("part-00000.parquet"), misplaced):
        shutil.copy(rows, foreign)
    rows.with_name("notes.txt").touch()
    errors = cli([*argv.split(), "--store", str(Path(store.root).resolve())]).err.splitlines()
    named = "\n".join(sorted(line.partition(": results/")[2] for line in errors if "left" in line))
    right = f"results/sleeps/{rows.parent.name}"
    assert named == (
        f"sleeps/1999-01/{rows.name} is in the wrong folder; its place is {right}/{rows.name}\n"
        f"sleeps/{rows.parent.name}/part-00000.parquet has not the name of a run; move it elsewhere"
    )


def test_the_newest_run_and_its_suite_need_no_name(store: FolderStore, cli: CommandLine) -> None:
    for verb in ("show", "check", "history"):
        assert cli([verb]).out == cli([verb, "sleeps" if verb == "history" else "last"]).out
    wrong = cli(["history", "sleep"], 2).err
    assert "no results of suite sleep; did you mean sleeps? there are sleeps" in wrong


def test_a_run_is_named_by_each_workflow_that_measured_it(
    store: FolderStore, cli: CommandLine
) -> None:
    first, second = RunStore(store).suites_by_run
    for run, workflow in ((first, "perfdag-sleeps-4kx7p"), (second, "perfdag-sleeps-9wq2z")):
        plan = stored_plan(store, run)
        earlier = {"uid-1": {"workflow": f"{workflow}-before"}}
        plan.where = {"workflow": workflow, "workflow_uid": "uid-2", "before": earlier}
        put_plan(store, plan)
    sides = ["perfdag-sleeps-4kx7p", "perfdag-sleeps-9wq2z-before"]
    printed = cli(["compare", *sides]).out
    assert re.findall(r"^[AB]  sleeps  (.*)$", printed, re.M) == [first, second]
    assert json.loads(cli(["show", sides[0], "--json"]).out)["run_id"] == first
    assert "no run perfdag-sleeps-4kx7q" in cli(["show", "perfdag-sleeps-4kx7q"], 2).err


def add_duet(store: FolderStore, write_suite: SuiteWriter) -> Plan:
    """Store the plans of a run of `perfdag ab` that is newer than any other; return variant A."""
    loaded = load_suite(write_suite.sleeps(1, 1))
    duet = prepare_duet(loaded, loaded, ("one", "two"), 8)
    start, later = duet.a.run_id.partition("-")[0], SOON
    for plan in (duet.a, duet.b):
        run_id = plan.run_id.replace(start, later)
        store.put(f"runs/{run_id}/plan.json", plan.dump().replace(start.encode(), later.encode()))
    return stored_plan(store, duet.a.run_id.replace(start, later))


def copy_run(store: FolderStore, day: str) -> str:
    """Store a copy of the newest run that began on another day; return its id."""
    plan = RunStore(store).plan("last")
    run_id = f"{day}T020000Z-{plan.run_id[-8:]}"
    for key in store.list(f"runs/{plan.run_id}"):
        store.put(key.replace(plan.run_id, run_id), store.get(key))
    plan.run_id = run_id
    store.put(f"runs/{run_id}/plan.json", plan.dump())
    collect(store, plan)
    return run_id


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal on which no row of a table is folded, whatever a busy machine makes of a run."""
    monkeypatch.setenv("COLUMNS", "120")


@pytest.mark.usefixtures("wide")
def test_ls_shows_the_runs_of_a_store(
    store: FolderStore, write_suite: SuiteWriter, cli: CommandLine
) -> None:
    first, second = RunStore(store).suites_by_run
    duet = add_duet(store, write_suite)
    store.put(f"runs/{second}/report.html", b"")
    heading, *lines = cli(["ls"]).out.splitlines()
    assert heading.split() == [
        "run",
        "age",
        "suite",
        "kind",
        "samples",
        "trust",
        "verdict",
        "headline",
    ]
    cells = [re.split(r"  +", line) for line in lines if line.startswith("20")]
    assert [[row[0], *row[2:4]] for row in cells[:2]] == [
        [first, "sleeps", "6 ok"],
        [second, "sleeps", "6 ok"],
    ]
    assert all(row[4] in ("good", "noisy", "unusable") for row in cells[:2])
    assert cells[1][5] in ("worse", "better", "same", "unclear")
    assert cells[2][2:5] == ["sleeps", "ab", f"0 of {len(duet.order)} stored"]
    assert orjson.loads(cli(["ls", "--newest", "3", "--json"]).out)[0]["run_id"] == second
    assert "--newest 0: list at least one run" in cli(["ls", "--newest", "0"], 2).err
    store.put(f"runs/{duet.run_id}/plan.json", b"{")
    assert "plan.json is damaged" in cli(["ls", "--suite", "other"]).out


def test_a_store_without_runs_says_so(cli: CommandLine) -> None:
    assert cli(["ls"], 2).err == "perfdag ls: store ./perfdag-results has no run\n"


def test_show_prints_the_table_and_writes_nothing(store: FolderStore, cli: CommandLine) -> None:
    before = store.list("runs"), store.list("results")
    assert "wall time" in cli(["show", "last"]).out
    assert "CPU time" not in cli(["show", "last", "--metric", "wall_*"]).out
    assert "CPU time" in cli(["show", "last", "--all"]).out
    assert (store.list("runs"), store.list("results")) == before
    assert orjson.loads(cli(["show", "last", "--json"]).out)["statuses"] == {"ok": 6}


def test_open_gives_the_report_to_a_browser_and_prints_its_path(
    store: FolderStore, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = [*RunStore(store).suites_by_run][-1]
    (rows,) = [key for key in store.list("results") if run_id in key]
    data = store.get(rows)
    store.delete(rows)  # as of a run under way
    assert f"draw it: perfdag report {run_id}" in cli(["open", "last"], 2).err
    store.put(rows, data)
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    path = cli(["open", "last"]).out.strip()
    assert Path(path).samefile(f"perfdag-results/runs/{run_id}/report.html")
    assert opened == [Path(path).as_uri()]


@pytest.mark.parametrize("verb", ["show", "collect", "check", "open"])
def test_a_run_is_named_alike_in_every_verb(
    verb: str, store: FolderStore, cli: CommandLine
) -> None:
    old = copy_run(store, "20260102")
    store.put(f"runs/{old}/report.html", b"")
    assert main(["baseline", "set", "v1", "last~2"]) == 0
    for words in (old, "20260102", "last~2", "baseline:v1"):
        assert old in cli([verb, words]).out, words
    for words, message in {
        "20": "3 runs begin so",
        "last~3": "3 run",
        "baseline:v2": "no baseline v2",
        "nothing": "no run nothing",
    }.items():
        assert message in cli([verb, words], 2).err


@pytest.mark.parametrize("verb", ["show", "check"])
def test_last_is_explained_after_ab(
    verb: str,
    store: FolderStore,
    write_suite: SuiteWriter,
    cli: CommandLine,
) -> None:
    last, duet = [*RunStore(store).suites_by_run][-1], add_duet(store, write_suite)
    output = cli([verb, "last"])
    command = f"perfdag ab --resume {duet.run_id} --store ./perfdag-results"
    assert output.err == (
        f"note: `last` is {last}; the newer run of `perfdag ab` is shown by {command}\n"
    )
    assert last in output.out


@pytest.mark.parametrize("expired", ["/parts/", ""])
def test_every_verb_knows_the_runs_whose_samples_were_removed(
    expired: str, store: FolderStore, write_suite: SuiteWriter, cli: CommandLine
) -> None:
    """A bucket may expire `runs/`, or the samples in it, before the results."""
    old, whole = copy_run(store, "20200102"), [*RunStore(store).suites_by_run][-1]
    suite = str(write_suite.sleeps(2, 3))
    time.sleep(1 - time.time() % 1)  # ids order runs by the second
    assert main(["run", suite, "--only", "*POINT*1*", "--no-report", "--no-recheck"]) == 0
    *_, part = RunStore(store).suites_by_run

    def answers() -> list[object]:
        shown = [
            orjson.loads(cli(["show", run, "--json"]).out) for run in RunStore(store).suites_by_run
        ]
        listed = orjson.loads(cli(["ls", "--json"]).out)
        known = orjson.loads(cli(["history", "sleeps", "--json"]).out)["runs"]
        assert [run["run_id"] for run in listed] == known == [*RunStore(store).suites_by_run]
        return [shown, listed, cli(["check", "last"]).out]

    assert "kept" not in cli(["collect", whole]).out
    before, rows = answers(), {key: store.get(key) for key in store.list("results")}
    for key in store.list("runs"):
        if expired in key:
            store.delete(key)
    assert answers() == before
    for verb in ("show", "check"):
        output = cli([verb, "last"])
        note = f"note: `last` is {whole}; the newer run {part} measured a part of its suite\n"
        assert (whole in output.out, output.err) == (True, note)
    assert main(["report", whole]) == 0
    assert "kept as they were" in cli(["collect", whole]).out
    assert "cannot be resumed" in cli(["run", "--resume", whole], 2).err
    assert {key: store.get(key) for key in store.list("results")} == rows
    assert cli(["prune", "--keep", "90d"]).out.split()[:2] == [old, "1"]
    assert main(["rm", part]) == 0
    assert cli(["ls"]).out.count("6 ok") == len(RunStore(store).suites_by_run) == 2
    assert store.list(f"results/sleeps/{part[:4]}-{part[4:6]}") == [
        f"results/sleeps/{run[:4]}-{run[4:6]}/{run}.parquet"
        for run in RunStore(store).suites_by_run
    ]


@pytest.mark.usefixtures("wide")
def test_last_is_the_newest_run_with_rows_where_rows_are_read(
    store: FolderStore, cli: CommandLine
) -> None:
    whole, plan = [*RunStore(store).suites_by_run][-1], RunStore(store).plan("last")
    plan.run_id = SOON + plan.run_id[16:]
    store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
    assert re.search(rf"{plan.run_id} .* sleeps +0 of 6 stored", cli(["ls"]).out)
    output = cli(["check", "last"])
    note = f"note: `last` is {whole}; the newer run {plan.run_id} has no rows yet\n"
    assert (whole in output.out, output.err) == (True, note)
    assert "has samples but no results yet" in cli(["check", plan.run_id], 2).err


def test_a_run_of_the_future_is_neither_last_nor_keeps_a_suite_fresh(
    store: FolderStore, cli: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = RunStore(store).suites_by_run
    future = copy_run(store, "29990101")
    output = cli(["check", "last"])
    note = f"note: `last` is {second}; {future} is of the future, as its clock was wrong"
    assert (second in output.out, note in output.err) == (True, True), output
    assert RunStore(store).find("last~1") == first
    assert check_age(store, "last", "sleeps", -1) == EXIT_GATE
    assert f"STALE sleeps: run {second}" in capsys.readouterr().out
    for run in (first, second):
        cli(["rm", run])
    assert f"only runs of the future, such as {future}" in cli(["show", "last"], 2).err


def test_rm_removes_a_run_and_what_belongs_to_it(
    store: FolderStore, write_suite: SuiteWriter, cli: CommandLine
) -> None:
    first, second = RunStore(store).suites_by_run
    duet = add_duet(store, write_suite)
    assert main(["history", "sleeps"]) == 0  # which writes a roll-up
    assert main(["rm", first]) == 0
    assert main(["rm", duet.run_id]) == 0
    assert [*RunStore(store).suites_by_run] == [second]
    assert all(second in key for key in store.list("results"))
    assert first not in cli(["history", "sleeps"]).out
    assert main(["baseline", "set", "v1", "last"]) == 0
    assert f"run {second} belongs to baseline v1" in cli(["rm", "last"], 2).err
    assert [*RunStore(store).suites_by_run] == [second]


def test_a_run_that_measures_is_neither_removed_nor_measured_twice(
    write_suite: SuiteWriter, tmp_path: Path, cli: CommandLine
) -> None:
    root, output = tmp_path / "store", tmp_path / "output"
    perfdag = f"{sys.executable} -m perfdag"
    script = "".join(
        f"{perfdag} {words} --store {root} >> {output} 2>&1; "
        for words in ("rm last", "run --resume last")
    )
    argv = orjson.dumps(["sh", "-c", f"{script}true"]).decode()
    suite = write_suite(f"name: own\nentries: [{{benchmark: command, params: {{argv: {argv}}}}}]")
    cli(["run", str(suite), "--no-report", "--store", str(root)])
    [run_id] = RunStore(FolderStore(str(root))).suites_by_run
    reason = (
        f"another process of this machine measures run {run_id}; wait for it, or end it with Ctrl-C"
    )
    expected = [f"perfdag {verb}: {reason}" for verb in ("rm", "run")]
    assert output.read_text().splitlines() == expected
    assert main(["rm", run_id, "--store", str(root)]) == 0


@pytest.fixture
def lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERFDAG_LOCK")
    monkeypatch.setattr(local, "MEASURING", f"\0perfdag-test-{os.getpid()}")


@pytest.mark.usefixtures("lock")
def test_a_second_run_waits_for_the_first_and_says_for_whom(
    write_suite: SuiteWriter, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite, waits = str(write_suite.sleeps(1, 1)), list[float]()
    holding = local.alone_on_machine()
    holding.__enter__()

    def wait() -> None:
        waits.append(0)
        if len(waits) == 2:  # the first run ends
            holding.__exit__(None, None, None)

    monkeypatch.setattr(local, "wait", wait)
    lines = cli(["run", suite, "--no-report"]).err.splitlines()
    told = [line for line in lines if "waits for" in line]
    assert (len(waits), len(told)) == (2, 1)
    assert f"(pid {os.getpid()}), which measures on this machine" in told[0]


@contextlib.contextmanager
def another_run(force: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """A process that measures for a minute, and leaves one of its own that does not end with it."""
    code = (
        "import subprocess, sys, time; from perfdag.runs import local\n"
        f"local.MEASURING = chr(0) + {local.MEASURING[1:]!r}\n"
        f"with local.alone_on_machine({force}):\n"
        "    left = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "    print(left.pid, flush=True); time.sleep(60)"
    )
    Path("other.py").write_text(code)
    with subprocess.Popen([sys.executable, "other.py"], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        left = int(run.stdout.readline())
        try:
            yield run
        finally:
            run.kill()
            os.kill(left, signal.SIGKILL)


@pytest.mark.usefixtures("lock")
def test_force_goes_on_beside_another_run_and_trust_says_which(
    write_suite: SuiteWriter, cli: CommandLine
) -> None:
    suite = str(write_suite.sleeps(1, 1))
    with another_run() as other:
        output = cli(["run", suite, "--no-report", "--force"])
    named = f"other-run other.py (pid {other.pid})"
    assert named in next(line for line in output.out.splitlines() if line.startswith("trust"))
    assert f"{named} measures here too" in output.err
    assert "other-run" not in cli(["run", suite, "--no-report"]).out


@pytest.mark.usefixtures("lock")
def test_a_run_that_is_disturbed_by_a_forced_one_names_it() -> None:
    with local.alone_on_machine() as beside:
        with another_run(force=True) as other:
            assert beside() == f"other-run other.py (pid {other.pid})"
        assert beside() == ""


@pytest.mark.usefixtures("lock")
def test_a_dead_run_and_a_run_above_this_one_hold_nobody_up(
    write_suite: SuiteWriter, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a killed run leaves behind holds no lock, as a descriptor that it inherited would."""
    suite = str(write_suite.sleeps(1, 1))
    with another_run() as other:
        monkeypatch.setattr(local, "descendants", lambda pid: [os.getpid()] * (pid == other.pid))
        assert "other-run" in cli(["run", suite, "--no-report"]).out
        other.kill()
        other.wait()
        monkeypatch.setattr(local, "wait", lambda: pytest.fail("it waits"))
        assert "other-run" not in cli(["run", suite, "--no-report"]).out


@pytest.mark.parametrize("reached", range(4))
def test_a_second_rm_removes_what_a_failing_store_kept(
    store: FolderStore, reached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    recheck, plan = (stored_plan(store, run_id) for run_id in RunStore(store).suites_by_run)
    # one of its rechecks is gone
    plan.options.rechecks = ["20260101T000000Z-00000000", recheck.run_id]
    store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
    removed: list[str] = []

    def remove(self: FolderStore, prefix: str) -> None:
        if len(removed) == reached:
            raise StoreError("gone")
        removed.append(prefix)
        whole(self, prefix)

    whole = FolderStore.delete
    with monkeypatch.context() as away:
        away.setattr(FolderStore, "delete", remove)
        assert main(["rm", plan.run_id]) == 4
    assert main(["rm", plan.run_id]) == 0
    assert store.list("runs") == store.list("results") == []


VERDICT_KEYS = (
    "before earlier effect kind moved newest noise noisy notes runs seen since since_first "
    "since_last unit value why"
)
INFO_KEYS = (
    "benchmark benchmark_version better coords entry headline metric pair params point series_id "
    "shape span stat unit"
)
JSON_KEYS = {
    "show last": "exports gate points report rows run_id statuses suite trust verdicts",
    "show last points": "benchmark entry label metrics noise params point reasons statuses trust",
    "show last points metrics": (
        "better coords headline high label low median metric n nominal spread stat unit"
    ),
    "check last": (
        "alerts cases damaged passed rechecks report revision run_id runs series suite suspects "
        "verdict"
    ),
    "check last cases": "cause group key label name state text title",
    "check last series": "info label name text verdict",
    "check last series verdict": VERDICT_KEYS,
    "check last series info": INFO_KEYS,
    "compare last~1 last": "a b changes left_out parameters series simulated",
    "compare last~1 last series": "a b info label name note series_a verdict",
    "compare last~1 last series verdict": VERDICT_KEYS,
    "history sleeps": "nodes noise revisions runs series suite",
    "history sleeps series": "drift high info label levels low name steps text values verdict",
    "history sleeps series verdict": VERDICT_KEYS,
}
"""The keys of JSON by verb and place; other tools read them."""


@pytest.mark.parametrize("place", JSON_KEYS)
def test_json_has_these_keys(store: FolderStore, cli: CommandLine, place: str) -> None:
    parts = ["points", "metrics", "series", "cases", "verdict", "info"]
    words = place.split()
    data = orjson.loads(cli([*(word for word in words if word not in parts), "--json"]).out)
    for part in (word for word in words if word in parts):
        data = data[part]
        data = data[0] if isinstance(data, list) else data
    assert " ".join(sorted(data)) == JSON_KEYS[place]


def test_prune_removes_old_runs_and_keeps_baselines(store: FolderStore, cli: CommandLine) -> None:
    new = RunStore(store).suites_by_run
    old, kept = copy_run(store, "20200102"), copy_run(store, "20200103")
    damaged = copy_run(store, "20200104")
    assert main(["baseline", "set", "v1", kept]) == 0
    store.put(f"runs/{damaged}/plan.json", b"{")
    for options, left in ((["--dry-run"], [old, kept]), ([], [kept])):
        output = cli(["prune", "--keep", "90d", *options])
        assert output.out.split()[:2] == [old, "1"]
        assert f"kept {damaged}" in output.err
        assert [*RunStore(store).suites_by_run] == [*left, damaged, *new]
    assert main(["prune", "--keep", "9999999d"]) == 0
    assert [*RunStore(store).suites_by_run] == [kept, damaged, *new], (
        "longer than years of four digits"
    )
    cli(["prune", "--keep", "90 moons"], 2)
    absent = cli(["prune", "--keep", "90d", "--store", "nosuch"], 2).err
    assert absent == "perfdag prune: store nosuch has no run\n"


def test_prune_keeps_what_a_baseline_is_rechecked_by_and_a_run_that_may_still_measure(
    store: FolderStore, cli: CommandLine
) -> None:
    old, recheck = copy_run(store, "20200102"), copy_run(store, "20200103")
    plan = stored_plan(store, old)
    plan.options.rechecks = [recheck]
    store.put(f"runs/{old}/plan.json", plan.dump())
    assert main(["baseline", "set", "v1", old]) == 0
    assert main(["rm", recheck]) == 2
    yesterday = (datetime.now(UTC) - timedelta(days=1)).strftime("%Y%m%d")
    measuring = copy_run(store, yesterday)
    store.delete(f"results/sleeps/{yesterday[:4]}-{yesterday[4:6]}/{measuring}.parquet")
    assert f"kept {measuring}: it has no rows yet" in cli(["prune", "--keep", "1h"]).err
    assert [*RunStore(store).suites_by_run][:3] == [old, recheck, measuring]


@pytest.mark.parametrize(
    "argv", [["rm", "last", "--namespace", ""], ["rm", "", "--namespace", "x"]]
)
def test_an_empty_name_removes_nothing(
    store: FolderStore,
    argv: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = RunStore(store).suites_by_run
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    assert main(argv) in (2, 4)
    assert RunStore(store).suites_by_run == before
