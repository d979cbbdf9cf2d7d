"""The one verdict: the level rule, its kinds, and that every surface says the same."""

import importlib
import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, strategies as st

from perfdag.analysis.alerts import gate_lines
from perfdag.analysis.gate import judge_run
from perfdag.analysis.gate_result import GateResult, Rules, RunVerdicts, banner
from perfdag.analysis.history import Acknowledgement
from perfdag.analysis.verdict import Tuning, compare_sides, percent, verdict_of
from perfdag.benchmark.contract import Invalid, Measurement, Metric
from perfdag.charts.pages.site import read_script, write_site
from perfdag.commands.main import main
from perfdag.plan import make_plan, new_run_id
from perfdag.results.run_store import RunStore, stored_plan, with_history
from perfdag.results.samples import check_possible
from perfdag.results.schema import load_rows
from perfdag.results.summary import SERIES_COLUMNS, SeriesInfo, summarise
from perfdag.runs.finish import gate_of_run
from perfdag.stats.levels import Levels
from perfdag.stats.robust import spread
from perfdag.stats.scale import Nights
from perfdag.store.base import Store
from perfdag.store.s3 import open_store
from perfdag.suite.load import parse_suite
from perfdag.suite.model import Check
from tests.conftest import CommandLine
from tests.stats.receiver import Receiver
from tests.stats.synthetic import levels_of, noise_of, put, rows, run_id, slower

ROOT = Path(__file__).parents[2]
WOBBLE = (0.995, 1.0, 1.005, 1.0)
TIME: dict[str, Any] = {"entry": "work", "metric": "wall_time", "unit": "s", "better": "lower"}


def fill(store: Store, values: Sequence[float], **more: Any) -> None:
    """Write a run for each value, with noise of about 0.4 %. NaN: its sample failed."""
    for night, value in enumerate(values):
        put(store, rows(night, {"size=1": [value * WOBBLE[night % 4]]}, **{**TIME, **more}))


def gate_of(store: Store, night: int, accepted: list[Acknowledgement] | None = None) -> GateResult:
    return judge_run(store, "net", run_id(night), Rules([], accepted or []))


CASES: dict[str, tuple[Sequence[float], str]] = {
    "a first run": ([100], "unclear: no earlier run"),
    "a second like it": ([100] * 2, "same (+22.2 % would be seen)"),
    "much slower in the second": ([100, 172], "worse +72.9 %"),
    "a little slower in the second": (
        [100, 110],
        "cannot tell: +10.6 %, but changes below +22.2 % drown in the noise; more runs or "
        "`perfdag ab` decide",
    ),
    "ten alike": ([100] * 10, "same (+9.2 % would be seen)"),
    "one slow run": ([100] * 10 + [140], "unclear: +40.7 %; 1 of 3 nights beyond 9.2 %"),
    "two slow runs": (
        [100] * 10 + [140] * 2,
        "unclear: +40.0 %; 2 of 3 nights beyond 9.2 %",
    ),
    "three slow runs": ([100] * 10 + [140] * 3, "worse +40.0 % since 2026-01-15 (3 runs)"),
    "it stays open": ([100] * 10 + [140] * 40, "worse +40.0 % since 2026-01-15 (40 runs)"),
    "three fast runs": ([100] * 10 + [60] * 3, "better -40.0 % since 2026-01-15 (3 runs)"),
    "a new good level": ([100] * 10 + [60] * 31, "same (+5.0 % would be seen)"),
    "worse than the new level": (
        [100] * 10 + [60] * 10 + [100] * 3,
        "worse +66.7 % since 2026-01-25 (3 runs)",
    ),
    "an end by halves": (
        [100] * 10 + [140] * 9 + [120] * 4,
        "worse +20.0 % since 2026-01-15 (13 runs)",
    ),
    "back at the good level": ([100] * 10 + [140] * 9 + [120] * 4 + [100] * 3, "same ("),
    "slow again after an end by halves": (
        [100] * 20 + [130] * 40 + [120] * 4 + [100] * 3 + [125] * 10,
        "worse +25.0 % since 2026-03-13 (10 runs)",
    ),
    "one 0 in an alert": (
        [100] * 30 + [10] * 12 + [13] * 6 + [0],
        "worse +30.0 % since 2026-02-16 (7 runs)",
    ),
    "failed runs between good ones": (
        [100] * 10 + [math.nan, 100, math.nan, 100],
        "same (",
    ),
    "failed runs between slow ones": (
        [100] * 10 + [140, math.nan, 140, math.nan, 140],
        "worse +40.7 % since 2026-01-15 (3 runs)",
    ),
    "ever some nights slow": (
        [100] * 30 + [130, 130, 100] * 7,
        "worse +30.0 % since 2026-02-04 (21 runs); two speeds, 100 s and 130 s",
    ),
    "a short benchmark": ([100] * 10 + [2] * 5, "better -98.0 % since 2026-01-15 (5 runs)"),
    "a short benchmark that is whole again": (
        [100] * 10 + [2] * 5 + [100] * 3,
        "unclear: back at the level of 2026-01-05, it was 50 times better since 2026-01-15",
    ),
    "whole again for long": ([100] * 10 + [2] * 5 + [100] * 20, "same ("),
    "a great improvement that lasts": (
        [100] * 10 + [40] * 12 + [100] * 3,
        "worse +150 % since 2026-01-27 (3 runs)",
    ),
    "too noisy": (
        [100, 250, 40] * 5,
        "cannot tell: changes below +3828 % drown in the noise of this series (15 nights)",
    ),
    "the newest run failed": ([100] * 10 + [math.nan], "failed: it would not start"),
}


FORMS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "a rate": (lambda x: 1e4 / x, "higher", {}),
    "a loss, a fraction near 0": (lambda x: x / 1e5, "lower", {"fraction": True}),
    "a hit rate, a fraction near 1": (lambda x: 1 - x / 1e5, "higher", {"fraction": True}),
    "a count": (lambda x: 1000 * x, "lower", {"fraction": True}),
}


def kind_of(values: Sequence[float] | np.ndarray, better: str, **limits: Any) -> str:
    """The verdict on a series of more than three runs at its newest one."""
    array = np.asarray(values, dtype=np.float64)
    levels = levels_of(array, **limits)
    newest = spread([array[levels.nights.at[-1]]])
    runs = [run_id(night) for night in range(len(array))]
    return verdict_of(array, newest, levels, runs, better).kind


@pytest.mark.parametrize("form", FORMS)
def test_a_series_has_one_verdict_in_every_form(form: str) -> None:
    """A rate that falls is a time that rises, and a hit rate that falls a loss that rises."""
    turn, better, limits = FORMS[form]
    for case, (values, _) in CASES.items():
        if len(values) < 5 or 0 in values or math.isnan(values[-1]):
            continue
        noisy = np.array([value * WOBBLE[night % 4] for night, value in enumerate(values)])
        assert kind_of(turn(noisy), better, **limits) == kind_of(noisy, "lower"), case


def test_an_absolute_check_judges_differences() -> None:
    wide = spread([0.2, 0.5, 0.8, 1.1])
    values = np.array([0.0, 0.01, 0.02] * 5 + [0.09] * 3)
    limits: dict[str, Any] = {"min_effect": 0.1, "absolute": True, "fraction": True}
    assert kind_of(values, "lower", **limits) == "same", "three points of ten asked for were judged"
    grown = np.array([0.0, 0.01, 0.02] * 5 + [0.5] * 3)
    levels = levels_of(grown, **limits)
    verdict = verdict_of(grown, wide, levels, [run_id(i) for i in range(18)], "lower")
    assert (verdict.kind, verdict.size) == ("worse", "+0.49"), (
        "samples that spread are no noise here"
    )


def test_changes_of_a_share_are_in_points(store: Store, cli: CommandLine) -> None:
    about: dict[str, Any] = {"entry": "iperf", "metric": "lost_fraction", "better": "lower"}
    for night in range(13):
        put(store, rows(night, {"a=1": [0.03 if night >= 10 else 0.0]}, unit="1", **about))
    [line] = gate_of(store, 12).series
    text = "worse +3.0 points since 2026-01-15 (3 runs)"
    assert (line.verdict.text, line.newest_text) == (text, "newest 3 % (+3.0 points)")
    assert f"WORSE net/{line.label} +3.0 points" in "\n".join(gate_lines(gate_of(store, 12)))
    assert text in cli(["compare", run_id(0), run_id(12), "--store", store.root]).out
    write_site(store)
    [series] = read_script(store.get("site/data/net/series/iperf.js"))["series"]
    assert (series["noise"], series["changes"][0]["size"]) == ("0.6 points", "+3.0 points")


def test_the_size_of_a_change_has_the_digits_that_say_something() -> None:
    sizes = [percent(value) for value in (-0.118, 0.9996, 7.351, -1.0, math.inf, None)]
    assert sizes == ["-11.8 %", "+100 %", "+735 %", "-100 %", "from 0", "-"]
    assert [percent(value, "s") for value in (0.49, 0.0, -2e-6)] == ["+490 ms", "+0 µs", "-2 µs"]
    assert percent(0.02, "%", sign=False) == "2.0 points"
    assert percent(-0.02, "1") == "-0.02"


def test_counts_that_begin_with_0_are_no_fractions() -> None:
    assert levels_of([0, 3, 0, 2, 0, 1], fraction=True).levels[0].scale.kind == "relative"
    assert levels_of([0, 0.03, 0, 0.02], fraction=True).levels[0].scale.kind == "absolute"
    assert levels_of([1, 0.97, 1, 0.98], fraction=True).levels[0].scale.kind == "absolute"


def test_the_last_check_that_covers_a_series_has_the_say() -> None:
    [row] = rows(0, {"a=1": [1.0]}, stat="p99", unit="s", metric="latency")
    tail = SeriesInfo.of({**dict.fromkeys(SERIES_COLUMNS), **row})
    every = Check(metric="*", min_effect=0.2, page=False)
    own = Check(metric="latency", min_effect=0.02, page=True)
    assert Tuning([every, own]).effect(tail, np.array([1.0])) == (0.02, False)
    assert Tuning([own, every]).effect(tail, np.array([1.0])) == (0.2, False)
    assert [Tuning(checks).alerts(tail) for checks in ([every, own], [own, every])] == [True, False]
    least = Tuning().limits(tail, Nights.of([])).min_effect
    assert kind_of([1.0] * 10 + [1.1] * 3, "lower", min_effect=least) == "same", "15 % of a tail"


def test_a_drift_is_told_as_one(store: Store, cli: CommandLine) -> None:
    fill(store, [100 * 1.002**night for night in range(80)])
    [line] = gate_of(store, 79).series
    assert line.verdict.kind == "worse"
    assert "; rising, +17.1 % since 2026-01-05" in line.verdict.text
    [series] = json.loads(cli(["history", "net", "--store", store.root, "--json"]).out)["series"]
    assert series["drift"]["start"] == run_id(0)
    assert series["drift"]["change"] == pytest.approx(0.171, abs=0.002)


def test_the_date_of_a_step_has_an_interval_that_covers_the_true_night(
    store: Store, cli: CommandLine
) -> None:
    noise = np.random.default_rng(1).normal(0, 0.03, 60)
    values = 100 * np.exp(noise) * np.where(np.arange(60) < 40, 1, 1.08)
    for night, value in enumerate(values):
        env = {"kernel": "6.1" if night < 40 else "6.8"}
        put(store, rows(night, {"size=1": [value]}, env=env, **TIME))
    [line] = gate_of(store, 59).series
    [step] = line.steps
    assert step.first < run_id(40) < step.last
    assert step.changes.values["kernel"] == ("6.1", "6.8"), "it changed in the interval"
    text = f" to {step.last[:4]}-{step.last[4:6]}-{step.last[6:8]}, "
    assert text in line.verdict.text
    [series] = json.loads(cli(["history", "net", "--store", store.root, "--json"]).out)["series"]
    assert (series["steps"][0]["first"], series["steps"][0]["last"]) == (step.first, step.last)
    assert series["verdict"]["since_last"] == step.last


def test_a_fix_is_good_in_its_night(store: Store, cli: CommandLine) -> None:
    """Its run is suspicious, and two re-measurements show that the bad level ended.

    They belong to their run wherever runs are counted.
    """
    fill(store, [100] * 20 + [140] * 4)
    put(store, rows(24, {"size=1": [100.0]}, **TIME))
    gate = gate_of(store, 24)
    assert (gate.verdict, [line.name for line in gate.suspects]) == ("worse", ["work wall_time"])
    for again in (25, 26):
        put(store, rows(again, {"size=1": [100.5]}, trigger="recheck", **TIME))
    gate = gate_of(store, 24)
    assert (gate.verdict, gate.runs, gate.rechecks) == ("same", 25, [run_id(25), run_id(26)])
    [case] = [case for case in gate.cases if case.group == "change"]
    assert case.text.endswith("; newest 100 s (+0.3 %)")
    root = ["--store", store.root]
    listed = json.loads(cli(["ls", "--newest", "99", *root, "--json"]).out)
    history = json.loads(cli(["history", "net", *root, "--json"]).out)
    write_site(store)
    shown = read_script(store.get("site/data/net/runs/2026-01.js"))["runs"]
    assert [len(listed), len(history["runs"]), len(shown)] == [25, 25, 25]
    assert [line["verdict"] for line in listed[-2:]] == ["worse", "same"]


def test_a_fix_of_a_young_series_is_seen_by_the_nights_before(store: Store) -> None:
    fill(store, [69.7, 69.4, 76.7, 78.6])
    for first, value in ((4, 139.0), (7, 70.6)):
        put(store, rows(first, {"size=1": [value]}, **TIME))
        for again in (first + 1, first + 2):
            put(store, rows(again, {"size=1": [value * 1.01]}, trigger="recheck", **TIME))
        assert gate_of(store, first).verdict == ("worse" if first == 4 else "same")


def test_no_time_and_no_rate_are_no_measurements(cli: CommandLine) -> None:
    lines = [f"2026-01-{day:02},boot,{0 if day == 4 else 9.5},s,lower" for day in range(1, 8)]
    Path("boot.csv").write_text("\n".join(["time,series,value,unit,better", *lines]))
    said = cli(["import", "history", "boot.csv"]).err
    assert "line 5: 0 s is no time; kept as an invalid sample of boot" in said
    [series] = json.loads(cli(["history", "boot", "--json"]).out)["series"]
    assert (series["verdict"]["kind"], len(series["levels"])) == ("same", 1)
    measurement = Measurement("wall_time", 0.0)
    with pytest.raises(Invalid, match="wall_time: 0 s is no time"):
        check_possible(Metric("wall_time", "s", "lower", "time", headline=True), measurement)


def test_runs_are_not_compared_through_points_that_were_unusable(
    store: Store, cli: CommandLine
) -> None:
    for night, headline in enumerate([[100.0, 101, 102], [50.0, 400, 900]]):
        values = rows(night, {"size=1": headline}, **TIME)
        other = {**TIME, "metric": "cpu_time", "headline": False}
        put(store, values + rows(night, {"size=1": [10.0 * 7**night] * 3}, **other))
    command = ["compare", run_id(0), run_id(1), "--store", store.root, "--json"]
    compared = json.loads(cli(command).out)["series"]
    texts = {row["info"]["metric"]: row["verdict"]["why"] for row in compared}
    assert "but the point was unusable in B" in texts["cpu_time"]


@pytest.mark.parametrize("case", CASES)
def test_the_answer_about_a_series(store: Store, case: str) -> None:
    values, text = CASES[case]
    fill(store, values)
    [line] = gate_of(store, len(values) - 1).series
    assert line.verdict.text.startswith(text), line.verdict
    assert line.verdict.effect is None or line.verdict.effect >= -1


def test_a_metric_without_a_better_direction_is_never_worse(store: Store, cli: CommandLine) -> None:
    fill(store, [100] * 10 + [140] * 4, better="none")
    listed = json.loads(cli(["ls", "--store", store.root, "--json"]).out)
    assert [run["verdict"] for run in listed[9:]] == ["same", *["unclear"] * 4]
    gate = gate_of(store, 12)
    verdict = gate.series[0].verdict
    assert verdict.text == "unclear: +40.0 % since 2026-01-15, and neither direction is better"
    assert not gate.failed


def test_a_fall_of_a_rate_is_of_the_level_before(store: Store) -> None:
    fill(store, [200] * 10 + [120] * 3, metric="rate", unit="B/s", better="higher")
    [line] = gate_of(store, 12).series
    assert line.verdict.text == "worse -40.0 % since 2026-01-15 (3 runs)"


@pytest.mark.parametrize(
    ("base", "head", "text"),
    [
        ([100, 101] * 5, [75], "-25.4 %; 3 measurements of the run decide, and it has 1"),
        ([100, 101] * 5, [75] * 3, ""),
        (
            [100, 108, 92, 118, 101, 85, 104, 97, 110, 99],
            [76, 75, 74],
            "-25.4 %; no run alone can judge it against a level of 10 runs; `perfdag ab` can",
        ),
        (
            [99.5, 108, 95.5, 106],
            [78, 78.3, 78.3],
            "-23.9 %; no run alone can judge it against a level of 4 runs; after 6 one can, and so "
            "can `perfdag ab`",
        ),
    ],
)
def test_a_head_that_its_base_cannot_judge_is_told_what_would(
    tmp_path: Path, base: list[float], head: list[float], text: str
) -> None:
    about: dict[str, Any] = TIME | {"metric": "rate", "unit": "B/s", "better": "higher"}
    stores = [open_store(str(tmp_path / name)) for name in ("base", "head")]
    for night, value in enumerate(base):
        put(stores[0], rows(night, {"size=1": [value]}, **about))
    suite = parse_suite("name: net\nentries: [{benchmark: command, params: {argv: [ls]}}]\n")
    plan = make_plan(suite, run_id=run_id(len(base)))
    for night, value in enumerate(head, len(base)):
        trigger = "cron" if night == len(base) else "recheck"
        put(stores[1], rows(night, {"size=1": [value]}, trigger=trigger, **about))
    plan.options.rechecks = [run_id(len(base) + i) for i in range(1, len(head))]
    gate = gate_of(with_history(stores[1], stores[0].root, plan), len(base))
    [line] = gate.series
    assert line.verdict.text.startswith(f"cannot tell: {text}" if text else "worse -25.4 %")
    assert (gate.failed, bool(gate.unclear)) == (not text, bool(text))


def test_an_accepted_level_is_the_good_one_as_long_as_it_is_accepted(store: Store) -> None:
    fill(store, [100] * 10 + [140] * 6 + [190] * 3)
    accepted = [
        Acknowledgement(
            series="work *", run=run_id(10), reason="a safer kernel", until="2026-01-22"
        )
    ]
    words = [gate_of(store, night, accepted).series[0].verdict.text for night in (15, 18)]
    assert words[0].startswith("same (")
    assert words[1] == "worse +90.0 % since 2026-01-15 (9 runs)", "the acknowledgement ended"
    accepted = [Acknowledgement(series="work *", run=run_id(10), reason="a safer kernel")]
    text = gate_of(store, 18, accepted).series[0].verdict.text
    assert text == "worse +35.7 % since 2026-01-21 (3 runs)"


@pytest.mark.parametrize("values", [[60, 200, 420], [30, 100, 210]])
def test_samples_that_spread_by_their_size_decide_nothing(
    store: Store, values: list[float]
) -> None:
    fill(store, [100] * 10)
    for night in (10, 11, 12):
        put(store, rows(night, {"size=1": values}, **TIME))
    [line] = gate_of(store, 12).series
    assert line.verdict.kind == "unclear"
    assert "the samples of the run spread by 180 %" in line.verdict.text


def test_a_slower_node_is_worse_and_named(store: Store) -> None:
    for night in range(13):
        moved = night >= 10
        value = [140.0 if moved else 100.0]
        put(store, rows(night, {"size=1": value}, nodes=["n7" if moved else "n1"], **TIME))
    [alert] = gate_of(store, 12).alerts
    assert "changed nodes n1 -> n7" in alert.text


values = st.lists(
    st.one_of(
        st.floats(0.5, 2000, allow_subnormal=False),
        st.sampled_from([100.0, 101.0, 140.0, 60.0, math.nan]),
    ),
    max_size=60,
)


@given(values, st.integers(0, 60))
def test_what_is_decided_of_a_prefix_stands(series: list[float], size: int) -> None:
    def steps(part: list[float]) -> list[tuple[int, int, float, float]]:
        levels = levels_of(part).levels
        return [(b.start, b.decided, a.reference, b.became) for a, b in pairwise(levels)]

    whole, prefix = steps(series), steps(series[:size])
    assert whole[: len(prefix)] == prefix


@given(values, st.floats(1e-6, 1e6))
def test_levels_do_not_depend_on_the_unit(series: list[float], factor: float) -> None:
    assume_far = levels_of(series)
    scaled = levels_of([value * factor for value in series])
    # A value exactly at a bound may fall to either side in another unit.
    if all(
        abs(v / bound - 1) > 1e-9
        for level in assume_far.levels
        for bound in (level.low, level.high)
        for v in series
        if not math.isnan(v)
    ):
        assert [level.start for level in scaled.levels] == [
            level.start for level in assume_far.levels
        ]


@given(st.lists(st.floats(0.5, 2000), min_size=5, max_size=60))
def test_a_rate_has_the_word_of_its_time(series: list[float]) -> None:
    times = np.array(series)
    assert kind_of(1 / times, "higher") == kind_of(times, "lower")
    shares = times / 2001
    assert kind_of(1 - shares, "higher", fraction=True) == kind_of(shares, "lower", fraction=True)


def test_noise_is_the_larger_of_two_and_shrunk_by_four_runs() -> None:
    assert noise_of([], 0.05) == 0.05
    assert noise_of([0.0] * 13, 0.05) == pytest.approx(0.05 * math.sqrt(4 / 16))
    normal = np.random.default_rng(0).normal(0, 0.1, 1000)
    assert noise_of(normal) == pytest.approx(0.1, rel=0.05)
    pinned = [0.0] * 80 + [0.1] * 20
    assert noise_of(pinned) == pytest.approx(0.1 / 1.96, rel=0.05), "a MAD alone is 0"


@pytest.mark.parametrize(
    ("a", "b", "word"),
    [
        ([1.0, 1.01, 1.02], [1.7, 1.75, 1.8], "worse"),
        ([1.0, 1.01, 1.9], [1.7, 1.75, 1.8], "unclear"),  # the spreads overlap
        ([1.0, 1.01, 1.02], [1.1, 1.11, 1.12], "unclear"),
        ([1.0, 1.01, 1.02], [1.01, 1.02, 1.03], "same"),
        ([0.5, 1.0, 1.9], [0.6, 1.01, 1.9], "unclear"),  # the samples spread by their size
        ([1.0, 1.01, 1.02], [0.5, 0.51, 0.52], "better"),
    ],
)
def test_two_runs_without_a_history(a: list[float], b: list[float], word: str) -> None:
    assert compare_sides(spread(a), spread(b), Levels(), "lower").kind == word


@pytest.mark.slow
def test_the_simulation_reaches_its_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    detector = importlib.import_module("detector")
    # the rule before is only shown beside
    monkeypatch.setattr(detector, "former", Mock(return_value=[]))
    monkeypatch.delitem(detector.RULES, "before")
    report = detector.Report(20)
    report.steps()
    report.falls()
    assert report.missed == []


def test_every_surface_says_the_same(
    store: Store, webhook: str, cli: CommandLine, tmp_path: Path
) -> None:
    """Three good runs, one slow by hand, eight good, three slow: a first nightly suite."""
    text = "name: net\nentries:\n  - {benchmark: command, name: work, params: {argv: [ls]}}\n"
    levels = [100] * 3 + [150] + [100] * 8 + [152] * 3
    fill(store, [float(value) for value in levels])
    plan = make_plan(parse_suite(text), run_id=run_id(14))
    plan.trigger = "cron"
    store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
    root = ["--store", store.root]
    words = "worse +52.0 % since 2026-01-17 (3 runs)"
    junit, page = tmp_path / "check.xml", tmp_path / "check.md"
    out = cli(["check", "last", *root, "--junit", str(junit), "--markdown", str(page)], 3).out
    size = words.removeprefix("worse ")
    assert f"WORSE net/work wall time {size}" in out
    assert words in junit.read_text()
    assert f"WORSE net/work wall time {size}" in page.read_text()
    assert size in str(Receiver.got[0]["text"])
    do = next(line for line in out.splitlines() if line.startswith("do "))
    compared = cli(do[do.index("perfdag compare") :].split()[1:]).out
    assert words in compared
    assert "(level)" in compared
    noise = json.loads(cli(["check", "last", *root, "--json"], 3).out)["series"][0]["verdict"][
        "noise"
    ]
    assert f"{100 * noise:.1f} %" in compared
    assert f"noise of a run {100 * noise:.1f} %" in out
    history = " ".join(cli(["history", "net", *root]).out.split())
    since = next(line for line in out.splitlines() if line.startswith("since "))
    assert [text for text in (words, " ".join(since.split())) if text not in history] == []
    write_site(store)
    [series] = read_script(store.get(f"site/data/net/series/{TIME['entry']}.js"))["series"]
    assert (series["verdict"], series["text"]) == ("worse", words)
    runs = read_script(store.get("site/data/net/runs/2026-01.js"))["runs"]
    assert [run["verdict"] for run in runs][-5:] == ["same", "same", "unclear", "unclear", "worse"]
    assert runs[-1]["verdicts"] == [["work wall time", words]]
    path = f"site/data/net/compare/{run_id(14)}/{run_id(13)}.js"
    [[word, *_]] = read_script(store.get(path))["series"].values()
    assert word == "same"
    summary = summarise(load_rows(store, runs=[run_id(14)]))
    gate = gate_of_run(store, stored_plan(store, run_id(14)), summary)
    assert gate is not None
    assert [line.verdict.text for line in gate.series] == [words]


@pytest.mark.parametrize(
    ("runs", "samples", "word"),
    [
        (2, 3, "unclear"),  # the outlier reaches the newest run
        (3, 3, "unclear"),
        (5, 3, "unclear"),  # 1 of 3 nights beyond
        (2, 20, "worse"),  # it lies outside the interval of the median
        (3, 20, "worse"),
        (5, 20, "unclear"),
    ],
)
def test_every_surface_says_the_same_of_few_runs(
    store: Store, cli: CommandLine, runs: int, samples: int, word: str
) -> None:
    before, last = slower(store, "net", runs, samples)
    root, summary = ["--store", store.root], summarise(load_rows(store, runs=[last]))
    write_site(store)
    [line] = read_script(store.get("site/data/net/series/task.js"))["series"]
    nights = read_script(store.get("site/data/net/runs/2026-01.js"))["runs"]
    [pair] = read_script(store.get(f"site/data/net/compare/{last}/{before}.js"))["series"].values()
    gate, [row] = gate_of(store, runs - 1), json.loads(cli(["ls", *root, "--json"]).out)[-1:]
    compared = json.loads(cli(["compare", before, last, *root, "--json"]).out)["series"]
    history = json.loads(cli(["history", "net", *root, "--json"]).out)["series"]
    said = {
        "check, show and the end of a run": gate.verdict,
        "report": banner(RunVerdicts(summary, gate)).kind,
        "ls": row["verdict"],
        "compare": compared[0]["verdict"]["kind"],
        "history": history[0]["verdict"]["kind"],
        "index": nights[-1]["verdict"],
        "history page": line["verdict"],
        "comparison page": pair[0],
    }
    assert said == dict.fromkeys(said, word)
    first = [gate_of(store, night).verdict for night in range(1, runs)]
    assert [run["verdict"] for run in nights[1:]] == first, "what was said of a run stays"
    assert line["text"] == pair[1] == gate.series[0].verdict.text


SUITE = """\
name: delays
entries:
  - benchmark: command
    params: {argv: [cat, delay], metrics: {delay: {regex: "(.+)", unit: s, better: lower}}}
  - benchmark: command
    name: steady
    params: {argv: [echo, "0.3"], metrics: {delay: {regex: "(.+)", unit: s, better: lower}}}
"""


def test_a_real_step_is_known_the_same_night_and_told_in_the_report(
    tmp_path: Path, cli: CommandLine
) -> None:
    """The commands print their figures, so that no load of this machine moves them."""
    delay = tmp_path / "delay"
    delay.write_text("0.3")
    (tmp_path / "delays.yaml").write_text(SUITE)
    for _ in range(4):
        assert main(["run", "delays.yaml", "--no-report"]) == 0
    delay.write_text("0.9")
    captured = cli(["run", "delays.yaml", "--no-report", "--no-recheck"])
    assert "of 3 nights beyond" in captured.out
    store = open_store(None)
    slow = RunStore(store).plan("last").run_id
    assert slow in captured.out, "a run of the same second sorts after the one before"
    assert main(["rm", slow]) == 0
    captured = cli(["run", "delays.yaml"])
    assert "suspicious, measured again: command delay" in captured.err
    assert "command delay: worse +" in captured.out
    assert "steady delay: " not in captured.out
    run = RunStore(store).plan("last")
    assert b"worse +" in store.get(f"runs/{run.run_id}/report.html")
    assert "WORSE delays/command delay" in cli(["check", "last"], 3).out


def test_runs_of_one_second_sort_by_time() -> None:
    second = datetime(2026, 11, 20, 2, 0, 0, tzinfo=UTC)
    runs = [new_run_id(second + timedelta(milliseconds=at)) for at in range(1000)]
    assert runs == sorted(runs)
    assert {run[:17] for run in runs} == {"20261120T020000Z-"}


def test_two_runs_alone_fail_no_gate(store: Store) -> None:
    fill(store, [100, 172])
    gate = gate_of(store, 1)
    assert (gate.verdict, gate.failed, gate.alerts) == ("worse", False, [])
    text = "\n".join(gate_lines(gate))
    assert "worse +72.9 % (two runs alone; fails no gate)" in text
    assert "verdict 1 worse (2 runs of history)" in text, "once, and no `worse: 1 worse`"


def test_a_series_that_a_run_left_out_does_not_fail_it(store: Store) -> None:
    for night in range(14):
        slow = [140.0 if night >= 10 else 100.0]
        put(store, rows(night, {"size=1": slow, "size=2": [100.0]}, **TIME))
    assert gate_of(store, 13).failed
    put(store, rows(14, {"size=2": [100.0]}, **TIME, trigger="part"))
    assert not gate_of(store, 14).failed
