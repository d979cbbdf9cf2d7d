"""history, compare, ab and baseline as commands, on synthetic stores; charts by their artists;
the roll-up.
"""

import json
import math
import re
import signal
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from perfdag.analysis import medians
from perfdag.analysis.compare import analyse, compare_selections
from perfdag.analysis.history import noise_report, recent_rows, series_of
from perfdag.analysis.verdict import Tuning
from perfdag.commands.main import main
from perfdag.plan import make_plan, stored_duet
from perfdag.results.run_store import RunStore, SelectionError, stored_plan
from perfdag.results.selections import select
from perfdag.steps.loop import MeasuringLoop
from perfdag.store.base import FolderStore, Store, StoreError
from perfdag.store.s3 import open_store
from perfdag.suite.load import parse_suite
from tests.conftest import CommandLine
from tests.stats.synthetic import nights, put, rows, run_id, step


def test_the_roll_up_says_what_the_files_say(store: Store) -> None:
    nights(store, 40, step)
    plain = medians.read_run_medians(store, "net")
    assert store.list("rollups") == [
        "rollups/net/2026-01.parquet",
        "rollups/net/2026-02.parquet",
    ]
    repeated = medians.read_run_medians(store, "net")
    assert repeated.runs == plain.runs
    assert repeated.series == plain.series
    for name in ("value", "low", "high", "n"):
        np.testing.assert_array_equal(getattr(repeated, name), getattr(plain, name))


def test_a_roll_up_that_lacks_runs_or_is_damaged_is_only_a_cache(store: Store) -> None:
    nights(store, 10, step)
    medians.read_run_medians(store, "net")
    nights(store, 12, step)  # two more nights, and the old ones written again alike
    assert len(medians.read_run_medians(store, "net").runs) == 12
    store.put("rollups/net/2026-01.parquet", b"nonsense")
    assert len(medians.read_run_medians(store, "net").runs) == 12
    store.delete(f"results/net/2026-01/{run_id(11)}.parquet")
    assert len(medians.read_run_medians(store, "net").runs) == 11


def test_a_roll_up_of_another_version_is_not_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights(store, 3, step)
    medians.read_run_medians(store, "net")
    nights(store, 3, lambda night, point: 2 * step(night, point))
    assert medians.read_run_medians(store, "net").value.max() < 1.2e10, "the roll-up is read"
    monkeypatch.setattr(medians, "VERSION", medians.VERSION + 1)
    assert medians.read_run_medians(store, "net").value.max() > 1.8e10


def test_rows_of_another_program_are_named_and_left_out(store: Store) -> None:
    nights(store, 2, step)
    key = put(store, rows(2, {"x=1": [1.0]}))
    foreign = pq.read_table(pa.BufferReader(store.get(key)))
    column = foreign.schema.get_field_index("run_id")
    sink = pa.BufferOutputStream()
    pq.write_table(foreign.set_column(column, "run_id", pa.array([None], pa.string())), sink)
    store.put(key, sink.getvalue().to_pybytes())
    stored = medians.read_run_medians(store, "net")
    assert (stored.damaged, [run.run_id for run in stored.runs]) == ([key], [run_id(0), run_id(1)])


def test_repetitions_are_worth_it_until_runs_differ_more(store: Store) -> None:
    """Samples differ by 10 %, runs by 9 %: 1.57 s^2 / R is equal to that between runs for 7."""
    for night in range(30):
        middle = 100 * math.exp(0.062 * (-1) ** night)
        values = {"size=1": [0.9 * middle, middle, 1.1 * middle]}
        put(store, rows(night, values, metric="wall_time", unit="s", better="lower"))
    stored = medians.read_run_medians(store, "net")
    series = series_of(stored, Tuning())
    [noise] = noise_report(series, recent_rows(store, stored, series))
    assert (noise.within, noise.between) == pytest.approx((0.1, 0.09), abs=0.003)
    assert noise.repetitions == 7


def test_a_run_reads_only_what_the_roll_up_lacks(
    store: FolderStore, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["run", "--store", store.root, "--no-report", "--", "true"]
    for _ in range(4):
        cli(command)
    earlier = set(store.list("results")[:-1])
    read = set()
    get = FolderStore.get

    def noted(store: FolderStore, key: str) -> bytes:
        read.add(key)
        return get(store, key)

    monkeypatch.setattr(FolderStore, "get", noted)
    cli(command)
    assert not earlier & read


def test_figures_of_a_removed_run_that_come_again_stand_in_its_history(cli: CommandLine) -> None:
    def history_of(value: int) -> list[float]:
        Path("boot.csv").write_text(f"time,series,value,unit\n2026-01-02,a,{value},s\n")
        cli(["import", "history", "boot.csv"])
        [series] = json.loads(cli(["history", "boot", "--json"]).out)["series"]
        values: list[float] = series["values"]
        return values

    assert history_of(1) == [1]
    cli(["rm", "last"])
    assert history_of(2) == [2]


def test_runs_of_an_older_version_lack_what_came_later(store: Store) -> None:
    nights(store, 3, step)
    key = f"results/net/2026-01/{run_id(1)}.parquet"
    older = pq.read_table(pa.BufferReader(store.get(key))).drop_columns(["pair", "tool"])
    sink = pa.BufferOutputStream()
    pq.write_table(older, sink, store_schema=False)
    store.put(key, sink.getvalue().to_pybytes())
    result = medians.read_run_medians(store, "net")
    assert result.damaged == []
    assert len(result.runs) == 3
    assert np.isfinite(result.value).all()


def test_a_series_in_another_unit_is_named_and_not_mixed(store: Store, cli: CommandLine) -> None:
    for night in (0, 1, 40):
        put(store, rows(night, {"streams=1": [1e10] * 3}))
    put(store, rows(2, {"streams=1": [1.25e9] * 3}, unit="B/s"))
    put(store, rows(60, {"streams=1": [1.25e9] * 3}, unit="B/s"))  # of another month
    for _ in range(2):  # a roll-up forgets nothing of it
        result = medians.read_run_medians(store, "net")
        assert [run for run in result.runs if run.run_id == run_id(2)]
        assert result.value[0][np.isfinite(result.value[0])].tolist() == [1e10] * 3
        unit = f"run {run_id(2)} and 1 more: iperf throughput in B/s, in bit/s before"
        assert result.damaged == [unit]
    assert "in B/s, in bit/s before" in cli(["history", "net", "--store", store.root]).err


def test_medians_and_spread_of_a_run(store: Store) -> None:
    values = {"streams=1": [5.0, 1.0, 3.0], "streams=2": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]}
    put(store, rows(0, values))
    result = medians.read_run_medians(store, "net")
    figures = np.stack([result.n, result.value, result.low, result.high])[:, :, 0].T.tolist()
    # 8 values: ranks 1 and 8 cover 99 %
    assert sorted(figures) == [[3, 3.0, 1.0, 5.0], [8, 4.5, 1.0, 8.0]]


def test_warmups_failures_subjects_and_ab_are_not_history(store: Store) -> None:
    outcome = rows(0, {"streams=1": [1.0, 2.0, 9.0, 9.0]})
    outcome[2]["phase"], outcome[3]["subject"] = "warmup", "pod-1"
    put(store, outcome)
    put(store, rows(1, {"streams=1": [1.0]}, trigger="ab", variant="A"))
    put(store, rows(2, {"streams=1": [np.nan, np.nan]}))
    result = medians.read_run_medians(store, "net")
    assert [run.run_id for run in result.runs] == [run_id(0), run_id(2)]
    assert result.value[0, 0] == 1.5
    assert np.isnan(result.value[0, 1])
    assert next(iter(result.runs[1].points.values()))[:3] == (0, 2, "failed: it would not start")


@pytest.mark.parametrize(
    ("selection", "runs"),
    [
        ("last", [39]),
        ("last~3", [36]),
        (run_id(5)[:12], [5]),
        ("suite=net month=2026-01", [*range(27)]),
        ("since=2026-02-01,until=2026-02-03", [27, 28, 29]),
        ("suite=net newest=2", [38, 39]),
    ],
)
def test_selections(store: Store, selection: str, runs: list[int]) -> None:
    nights(store, 40, step)
    assert select(RunStore(store), selection).runs == tuple(map(run_id, runs))


@pytest.mark.parametrize(
    ("selection", "output"),
    [
        ("suite=nte", "did you mean net?"),
        ("mnth=2026-01", "did you mean month?"),
        ("month=January", "write a month as 2026-10"),
        ("since=yesterday", "write a day as"),
        ("month=2027-01", "40 runs from 2026-01-05 to 2026-02-13"),
        ("last~99", "has 40 runs"),
        ("2026", "40 runs begin so"),
        ("20260101", "newest: "),
        ("baseline:v1", "`perfdag baseline set NAME RUN --store .* makes one"),
    ],
)
def test_a_selection_of_nothing_is_refused(store: Store, selection: str, output: str) -> None:
    nights(store, 40, step)
    with pytest.raises(SelectionError, match=output):
        select(RunStore(store), selection)


def test_variants_and_rechecks_are_not_the_last_run(store: Store, cli: CommandLine) -> None:
    put(store, rows(22, {"streams=1": [1.0] * 3}, trigger="ab", variant="A"))
    root = ["--store", store.root]
    for command in (["check", "last"], ["history", "net"]):
        assert "only runs of" in cli([*command, *root], 2).err
    nights(store, 20, step)
    for night in (20, 21):
        put(store, rows(night, {"streams=8": [8e9] * 3}, trigger="recheck"))
    for selection, runs in (
        ("last", (19,)),
        ("last~1", (18,)),
        ("suite=net newest=2", (18, 19)),
        (run_id(21), (21,)),
    ):
        assert select(RunStore(store), selection).runs == tuple(map(run_id, runs))
    with pytest.raises(SelectionError, match="has 20 runs"):
        select(RunStore(store), "last~20")
    with pytest.raises(SelectionError, match="only runs of `perfdag ab` and rechecks"):
        select(RunStore(store), "since=2026-01-25")
    assert main(["check", "last", *root]) == 0
    variant = f"run {run_id(22)} is one variant of `perfdag ab`"
    for command in (["check"], ["compare", "last"], ["baseline", "set", "v1"]):
        assert variant in cli([*command, run_id(22), *root], 2).err


def test_which_node_leads_a_gang_is_no_difference(store: Store, cli: CommandLine) -> None:
    facts = {"n1": {"host": "pod-1", "kernel": "6.1"}, "n2": {"host": "pod-2", "kernel": "6.8"}}

    def measure(night: int, lead: str, peer: str) -> None:
        env = {**facts[lead], "peers": {peer: facts[peer]}}
        put(store, rows(night, {"streams=1": [1.0, 2.0]}, env=env, nodes=(lead, peer)))

    measure(0, "n1", "n2")
    measure(1, "n2", "n1")
    command = ["compare", "last~1", "last", "--store", store.root]
    assert "no recorded difference" in cli(command).out
    facts["n2"]["kernel"] = "6.12"
    measure(2, "n1", "n2")
    assert "differs  kernel of node n2: 6.8 -> 6.12\n" in cli(command).out


FILESYSTEM = {"path": "/tmp/x", "mount": "/mnt", "scheduler": "none", "free_bytes": 1}


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        pytest.param(
            {"sample": {"filesystem": FILESYSTEM}},
            {"sample": {"filesystem": FILESYSTEM | {"scheduler": "bfq", "free_bytes": 2}}},
            "differs  filesystem /mnt.scheduler: none -> bfq",
            id="the scheduler of the disk that a sample used",
        ),
        pytest.param(
            {"sample": {"filesystem": [FILESYSTEM, FILESYSTEM]}, "peers": {"n2": {}}},
            {
                "sample": {"filesystem": [FILESYSTEM, FILESYSTEM | {"scheduler": "bfq"}]},
                "peers": {"n2": {}},
            },
            "differs  filesystem /mnt.scheduler: none -> bfq | none",
            id="that of one of several hosts",
        ),
        pytest.param(
            {"cpu_boost": None},
            {"cpu_boost": None, "numa_nodes": 2},
            "no recorded difference\nnot known here: cpu_boost, numa_nodes",
            id="what could not be read, or only by a newer perfdag",
        ),
        pytest.param(
            {"gpus": [{"name": "A100", "driver": "1"}, {"name": "L4", "driver": "1"}]},
            {"gpus": [{"name": "A100", "driver": "1"}]},
            "differs  gpus.L4: present -> absent",
            id="a device that is gone",
        ),
        pytest.param({}, {}, "nothing was recorded", id="imported figures"),
    ],
)
def test_compare_names_what_is_recorded_to_differ_and_what_is_not_known(
    before: dict[str, Any], after: dict[str, Any], text: str, store: Store, cli: CommandLine
) -> None:
    for night, env in enumerate((before, after)):
        nodes = ("n1", *env.get("peers", {})) if env else ()
        own = rows(night, {"streams=1": [1.0, 2.0]}, nodes=nodes, tool=None, env_class=None)
        put(store, [row | {"env": json.dumps(env)} for row in own])
    assert text in cli(["compare", "last~1", "last", "--store", store.root]).out


def test_a_headline_that_cannot_be_judged_fails_only_where_that_is_asked(
    store: Store, cli: CommandLine
) -> None:
    for night, value in enumerate([100.0, 250.0, 40.0] * 5):
        put(store, rows(night, {"streams=1": [value], "streams=2": [100.0]}))
    check = ["check", "last", "--store", store.root]
    out = cli(check).out
    assert "unclear: 1 same, 1 cannot be judged (15 runs of history)" in out
    assert re.search(r"gate passed .* \(1 of 2 headlines cannot be judged\)", out)
    assert "gate UNCLEAR" in cli([*check, "--unclear", "fail", "--junit", "check.xml"], 5).out
    junit = Path("check.xml").read_text()
    assert '<property name="headlines" value="1 same, 1 cannot be judged" />' in junit
    assert 'failures="1" errors="0" skipped="0"' in junit


def test_a_fact_that_is_new_in_every_run_is_no_cause(store: Store, cli: CommandLine) -> None:
    nights(store, 40, step, env=lambda n: {"kernel": "6.1", "claim": f"pvc-{n}"})
    changed = re.findall(r" changed (.*)", cli(["history", "net", "--store", store.root]).out)
    assert set(changed) == {"no recorded difference"}


def test_compare_finds_the_step_and_what_changed(store: Store, cli: CommandLine) -> None:
    nights(store, 40, step, env=lambda n: {"kernel": "6.1.119" if n >= 34 else "6.1.112"})
    command = ["compare", run_id(30), "last", "--store", store.root]
    outcome = json.loads(cli([*command, "--json"]).out)
    assert outcome["changes"]["values"] == {"kernel": ["6.1.112", "6.1.119"]}
    words = {
        item["label"]: item["verdict"]["kind"]
        for item in outcome["series"]
        if item["info"]["metric"] == "throughput"
    }
    assert words == {
        "iperf throughput, 8 streams": "worse",
        "iperf throughput, 1 stream": "same",
        "iperf throughput, 4 streams": "same",
    }
    assert outcome["series"][0]["verdict"]["kind"] == "worse"
    assert "differs  kernel: 6.1.112 -> 6.1.119" in cli([*command, "--gate"], 3).out


@pytest.mark.parametrize(
    ("tools", "sides"),
    [(("KubeVirt v1.7.0", "simulated"), ["B"]), (("simulated", "simulated"), ["A", "B"])],
)
def test_compare_says_which_side_ran_on_simulated_nodes(
    store: Store, cli: CommandLine, tools: tuple[str, str], sides: list[str]
) -> None:
    for night, tool in enumerate(tools):
        name = tool.replace("simulated", "perfdag, simulated nodes")
        put(store, rows(night, {"streams=1": [1.0] * 3}, tool=name))
    command = ["compare", run_id(0), run_id(1), "--store", store.root]
    assert f"simulated nodes in {' and '.join(sides)}: " in cli(command).out
    assert json.loads(cli([*command, "--json"]).out)["simulated"] == sides


def test_what_single_objects_said_is_searched_too(store: Store, cli: CommandLine) -> None:
    """Of a sample that is ok: a search for capacity ends at the size that fails."""
    failures: dict[str, Any] = {"metric": "failures", "unit": "1", "headline": False}
    message = '{"message":"exceeded quota: q"}'
    put(store, rows(0, {"streams=1": [1.0]}))
    put(
        store,
        rows(1, {"streams=1": [1.0]})
        + rows(1, {"streams=1": [7.0]}, coords=message, **failures)
        # by a benchmark whose failures have no words
        + rows(1, {"streams=1": [5.0]}, coords='{"replicas":2}', subject="node-1", **failures),
    )
    command = ["history", "net", "--store", store.root, "--failures"]
    assert "1 message of objects" in cli(command).out
    out = cli([*command, "QUOTA"]).out
    assert out.count("7 objects  exceeded quota: q") == 1
    assert "0 points with samples that were not ok, 1 message of objects" in out
    assert "0 messages" in cli([*command, "nowhere"]).out


def test_compare_skips_nothing_in_silence(store: Store, cli: CommandLine) -> None:
    nights(store, 20, step)
    put(
        store,
        rows(20, {"streams=1": [1e10] * 3, "streams=4": [np.nan] * 3, "streams=16": [2e10] * 3}),
    )
    put(store, rows(21, {"streams=1": [5.0] * 3}, unit="B/s"))
    out = cli(["compare", run_id(19), run_id(20), "--store", store.root]).out
    names = "iperf throughput, 4 streams; iperf throughput, 8 streams"
    assert f"only in A (missing in B): {names}" in out
    assert "only in B (new): iperf throughput, 16 streams" in out
    assert "B: iperf, 4 streams: 3 of 3 samples, failed: it would not start" in out
    assert (
        "unit bit/s in A and B/s in B, not compared"
        in cli(["compare", run_id(20), run_id(21), "--store", store.root]).out
    )


def test_compare_names_a_changed_parameter_first_and_compares_over_it(
    store: Store, cli: CommandLine
) -> None:
    points = ["streams=1,duration=1", "streams=4,duration=1"]
    nights(store, 20, lambda n, p: 1e10, points=points, env=lambda n: {"kernel": "6.1.112"})
    later = {
        name.replace("duration=1", "duration=2"): [8e9] * 3
        for name in [*points, "streams=8,duration=1"]
    }
    put(store, rows(20, later, env={"kernel": "6.1.119"}))
    out = cli(["compare", run_id(19), "last", "--store", store.root]).out
    assert out.index("differs  iperf.duration: 1 -> 2") < out.index(
        "differs  kernel: 6.1.112 -> 6.1.119"
    )
    assert "only in A" not in out
    assert "only in B (new): iperf throughput, 8 streams" in out
    outcome = json.loads(cli(["compare", run_id(19), "last", "--store", store.root, "--json"]).out)
    assert outcome["parameters"] == {"iperf.duration": ["1", "2"]}
    # the noise is that of the 19 nights before the change
    assert {item["label"]: item["verdict"]["kind"] for item in outcome["series"]} == {
        "iperf throughput, 1 stream": "worse",
        "iperf throughput, 4 streams": "worse",
    }


def test_compare_honours_the_checks_of_the_suite(store: Store, cli: CommandLine) -> None:
    nights(store, 20, lambda n, p: 1e10, points=["streams=1"], noise=0.001)
    for night in (20, 21, 22):
        put(store, rows(night, {"streams=1": [9.7e9] * 3}))

    def word() -> str:
        command = ["compare", run_id(19), "last", "--store", store.root, "--json"]
        return str(json.loads(cli(command).out)["series"][0]["verdict"]["kind"])

    assert word() == "same"
    text = "name: net\nentries:\n  - {benchmark: command, name: iperf, params: {argv: [ls]}}\n"
    plan = make_plan(parse_suite(text), run_id=run_id(22))
    plan.suite_text += "checks:\n  - {entry: iperf, metric: throughput, min_effect: 2%}\n"
    store.put(f"runs/{run_id(22)}/plan.json", plan.dump())
    assert word() == "worse"


def test_two_runs_are_compared_and_a_damaged_file_is_named(store: Store, cli: CommandLine) -> None:
    put(store, rows(0, {"streams=1": [1e10]}))
    put(store, rows(1, {"streams=1": [1.1e10]}))
    store.put(f"results/net/2026-01/{run_id(2)}.parquet", b"PAR1")
    text = "cannot tell: +10.0 %, but changes below +22.2 % drown in the noise; more runs or"
    for command in (["compare", run_id(0), run_id(1)], ["history", "net"]):
        assert text in " ".join(cli([*command, "--store", store.root]).out.split())
    assert "damaged" in cli(["compare", run_id(2), run_id(1), "--store", store.root], 2).err


def test_equal_nights_are_equal_and_selections_tell_the_noise_themselves(store: Store) -> None:
    nights(store, 40, lambda n, p: 1e10)
    for a, b in (("month=2026-01", "month=2026-02"), (run_id(10), run_id(35))):
        outcome = compare_selections(
            (store, select(RunStore(store), a)), (store, select(RunStore(store), b))
        )
        assert {row.verdict.kind for row in outcome.series} == {"same"}


def test_two_clusters_by_a_baseline(store: Store, tmp_path: Path) -> None:
    nights(store, 20, lambda n, p: 1e10)
    green = open_store(str(tmp_path / "green"))
    nights(green, 20, lambda n, p: 8e9, seed=1, cluster="green")
    assert main(["baseline", "set", "acceptance", "month=2026-01", "--store", store.root]) == 0
    a, b = select(RunStore(store), "baseline:acceptance"), select(RunStore(green), "last")
    outcome = compare_selections((store, a), (green, b))
    assert {row.verdict.kind for row in outcome.series} == {"worse"}


def test_a_baseline_is_shown_with_its_runs(store: Store, cli: CommandLine) -> None:
    nights(store, 5, lambda n, p: 1e10)
    root = ["--store", store.root]
    assert main(["baseline", "set", "v1", "month=2026-01", "--note", "site acceptance", *root]) == 0
    shown = " ".join(cli(["baseline", "show", *root]).out.split())
    assert f"v1 net 5 runs {run_id(0)} to {run_id(4)} site acceptance" in shown
    names = json.loads(cli(["baseline", "show", "--json", *root]).out)
    assert names["v1"]["net"]["runs"] == [run_id(night) for night in range(5)]
    assert "v1" in cli(["compare", "baseline:v2", "last", *root], 2).err, "the nearest name"


@pytest.mark.parametrize("slow", [f"n{i}" for i in (0, 11)])
def test_a_slow_node_of_twelve_that_take_turns_is_named_by_history(
    store: Store, slow: str, cli: CommandLine
) -> None:
    rng = np.random.default_rng(1)
    for night in range(60):
        node = f"n{night % 12}"
        speed = 1e10 * (0.9 if node == slow else 1.0) * np.exp(rng.normal(0, 0.01))
        values = {"streams=1": speed * np.exp(rng.normal(0, 0.01, 4))}
        env = {"cpu_governor": "powersave" if node == slow else "performance"}
        put(store, rows(night, values, nodes=[node], env=env))
    differs = "cpu_governor powersave (others performance)"
    outcome = json.loads(cli(["history", "net", "--store", store.root, "--json", "--noise"]).out)
    assert outcome["series"][0]["steps"] == []
    assert len(outcome["runs"]) == 60
    assert {(item["outlier"]["node"], item["differs"]) for item in outcome["nodes"]} == {
        (slow, differs)
    }
    [noise] = outcome["noise"]
    assert noise["within"] == pytest.approx(0.01, rel=0.4)
    assert noise["between"] == outcome["series"][0]["levels"][0]["noise"]
    assert re.findall(
        r"^node (n\d+): -\d+\.\d % against the other nodes \(worse\).*\n +differs: (.+)",
        cli(["history", "net", "--store", store.root]).out,
        re.MULTILINE,
    ) == [(slow, differs)]
    assert "0 points" in cli(["history", "net", "--store", store.root, "--failures", "route"]).out


@pytest.mark.parametrize(
    ("slow", "named"), [(range(65, 110), {"n2"}), (range(60), set())], ids=["slow by now", "mended"]
)
def test_a_node_is_what_its_newest_runs_say(
    store: Store, slow: Collection[int], named: set[str], cli: CommandLine
) -> None:
    rng = np.random.default_rng(2)
    for night in range(110):
        outcome = []
        for node in ("n0", "n1", "n2", "n3", *(["gone"] if night < 4 else [])):
            speed = 0.85e10 if node == "n2" and night in slow else 1e10
            values = {"streams=1": [speed * np.exp(rng.normal(0, 0.01))]}
            outcome += rows(night, values, nodes=[node])
        put(store, outcome)
    outcome = json.loads(cli(["history", "net", "--store", store.root, "--json"]).out)
    assert {item["outlier"]["node"] for item in outcome["nodes"]} == named


def test_history_of_nothing(store: Store, cli: CommandLine) -> None:
    assert main(["history", "net", "--store", store.root]) == 2
    nights(store, 2, step)
    for argv, output in (
        (["nett"], "did you mean net?"),
        (["net", "--cluster", "green"], "no run matches"),
        (["net", "--only", "x*"], "no series has such a name"),
    ):
        assert output in cli(["history", *argv, "--store", store.root], 2).err


AB = """\
name: duel
entries:
  - benchmark: command
    params: {argv: [sleep, "0.01"], expected: 0.01}
"""


@pytest.mark.slow
def test_ab_finds_a_real_difference_and_resumes(tmp_path: Path, cli: CommandLine) -> None:
    (tmp_path / "duel.yaml").write_text(AB)
    outcome = json.loads(
        cli(
            ["ab", "duel.yaml", "--b", "command.argv=[sleep, '0.2']", "--blocks", "8", "--json"]
        ).out
    )
    [line] = [item for item in outcome["series"] if item["info"]["metric"] == "wall_time"]
    assert line["paired"]["kind"] == "worse"
    assert line["paired"]["p"] == pytest.approx(2 / 256)
    assert line["paired"]["effect"] > 1
    assert set(outcome["blocks"]) <= {"ABBA", "BAAB"}
    assert json.loads(cli(["ab", "--resume", outcome["a"]["run_id"], "--json"]).out) == outcome
    out = cli(["ab", "--resume", outcome["a"]["run_id"], "--markdown", "--card"]).out
    assert re.search(
        r"^\| command wall time.* \| [\d.]+ ms \| 2[\d.]+ ms \| \+.* % \| .* \| 0\.0078 \| "
        r"worse \|$",
        out,
        re.MULTILINE,
    ), out
    out = cli(["ab", "--resume", outcome["a"]["run_id"], "--within", "5%", "--markdown"], 3).out
    assert "| verdict | cost within 5 % |" in out
    assert re.search(
        r"\| worse \| \+[\d.]+ % \(\+[\d.]+ % to \+[\d.]+ %\) beyond \|$", out, re.MULTILINE
    ), out
    [line] = json.loads(
        cli(["ab", "--resume", outcome["a"]["run_id"], "--within", "9900%", "--json"]).out
    )["series"]
    assert (line["cost"]["kind"], line["cost"]["limit"]) == ("within", 99)
    assert (
        cli(["ab", "duel.yaml", "--b", "command.argv=[ls]", "--within", "half"], 2).err
        == "perfdag ab: --within: not a share: 'half'; write it as 5% or 0.05\n"
    )
    assert main(["history", "duel"]) == 2  # an ab is no night
    store = open_store(None)
    assert store.get(f"runs/{outcome['a']['run_id']}/card.png").startswith(b"\x89PNG")
    key = next(key for key in store.list("results") if outcome["a"]["run_id"] in key)
    store.put(key, b"PAR1 not really")
    a, b = (stored_plan(store, outcome[side]["run_id"]) for side in "ab")
    assert analyse(store, stored_duet(a, b), Tuning()).damaged == [key]


def away(self: FolderStore, key: str, data: bytes, put: Any = FolderStore.put) -> None:
    if "/parts/" in key:
        raise StoreError("store elsewhere: it is away")
    put(self, key, data)


@pytest.mark.parametrize(
    ("of", "name", "does", "code"),
    [
        (MeasuringLoop, "measure", lambda *_, **__: signal.raise_signal(signal.SIGTERM), 130),
        (FolderStore, "put", away, 4),
    ],
)
def test_ab_stopped_says_how_to_go_on(
    of: type, name: str, does: Any, code: int, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    Path("duel.yaml").write_text(AB)
    monkeypatch.setattr(of, name, does)
    options = ["--b", "command.expected=1", "--blocks", "8", "--store", "elsewhere"]
    go_on = r"(?m)Continue: perfdag ab --resume (\S+a) --store elsewhere$"
    assert re.search(go_on, cli(["ab", "duel.yaml", *options], code).err)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["ab", "duel.yaml"], "the variants do not differ"),
        (["ab"], "name a suite file"),
        (["ab", "duel.yaml", "--a", "command.nothing=1"], "nothing"),
        (["ab", "duel.yaml", "--a", "command.expected=1", "--blocks", "3"], "--blocks: 3: 8 to 40"),
    ],
)
def test_ab_refuses(argv: list[str], message: str, tmp_path: Path, cli: CommandLine) -> None:
    (tmp_path / "duel.yaml").write_text(AB)
    assert message in cli(argv, 2).err
