"""The first screen of the report of each kind of run, in words."""

from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any

import pytest

from perfdag.analysis.gate import judge_run
from perfdag.analysis.gate_result import Rules, RunVerdicts, banner
from perfdag.benchmark.contract import VERDICT
from perfdag.charts.pages import report
from perfdag.charts.pictures import draw_pictures
from perfdag.results.schema import load_rows
from perfdag.results.summary import summarise
from perfdag.store.base import FolderStore
from tests.charts import rows
from tests.charts.pages import plan_of, report_of
from tests.charts.test_pairs import table as pairs
from tests.stats import synthetic

LONG = "a-name-of-forty-characters-in-all-it-has"


def steady(number: int, **more: Any) -> list[list[dict[str, Any]]]:
    return [
        rows.sample(
            "x", {"k": number}, r, [rows.throughput(1e9 * (1 + number / 100) + 1e6 * r)], **more
        )
        for r in (1, 2, 3)
    ]


def judged_by_itself(number: int, passes: bool) -> list[dict[str, Any]]:
    """A point with a value and the verdict of its benchmark."""
    verdict = rows.value(VERDICT, float(passes), "1", subject="overhead < 0.05")
    sample = rows.sample("x", {"k": number}, 1, [rows.throughput(1e9), verdict])
    return [row | {"note": "7.0 %" if row["metric"] == VERDICT else None} for row in sample]


APART = [rows.sample("x", {"k": 0}, r, [rows.throughput(3e9 * r * r)]) for r in (1, 2, 3)]
LOST = rows.sample("x", {"k": 99}, 1, [], status="failed", error="no such device")
MISSING = rows.sample("x", {"k": 1}, 4, [], status="missing", error="damaged: it cannot be read")
HOSTILE = rows.sample(LONG, {LONG: LONG}, 1, [rows.value(LONG, 1e-3)], entry=LONG)


def judged(folder: Path, nights: int, factor: float, machine: float = 1, *lost: str) -> str:
    """The report of a night whose last five are slower by a factor, as the machine may be."""
    store = FolderStore(str(folder / f"{nights} {factor} {machine}"))

    def level(night: int, point: str) -> float:
        return nan if point in lost else 2e10 * (factor if night >= nights - 5 else 1)

    canary = lambda night: 1e4 * (machine if night >= nights - 5 else 1)  # noqa: E731
    synthetic.nights(store, nights, level, points=("streams=4", *lost), canary=canary)
    run = synthetic.run_id(nights - 1)
    table = load_rows(store, suites=["net"], runs=[run])
    gate, plan = judge_run(store, "net", run, Rules()), plan_of(run_id=run, suite="net")
    summary = summarise(table)
    return report.report(summary, plan, list(draw_pictures(summary)), ".", True, gate)


def of(*samples: list[dict[str, Any]]) -> Callable[[Path], str]:
    return lambda _: report_of(rows.table(*samples))


CASES: dict[str, tuple[Callable[[Path], str], str, str]] = {
    "regressed": (
        lambda f: judged(f, 20, 0.8),
        "bad",
        "Worse: iperf throughput -21.7\u00a0% since ",
    ),
    "regressed and broken": (
        lambda f: judged(f, 20, 0.8, 1, "streams=8"),
        "failed",
        "1 of 2 points failed. Worse: iperf throughput -21.7\u00a0% since ",
    ),
    "improved": (lambda f: judged(f, 20, 1.2), "good", "Better: iperf throughput +"),
    "as before": (lambda f: judged(f, 20, 1.0), "same", "Same as the last 19 runs<"),
    "as the one before": (lambda f: judged(f, 2, 1.0), "same", "Same as the run before<"),
    "first run": (of(*steady(1)), "same", "1.01 Gbit/s<"),
    "slow node": (
        lambda _: report_of(pairs(node=5)),
        "bad",
        "Node node-5 is slow: iperf throughput -30\u00a0%<",
    ),
    "own verdict": (
        of(*(judged_by_itself(number, passes=number != 2) for number in (1, 2, 3))),
        "failed",
        "1 of 3 verdicts failed. x, k=2: failed: overhead &lt; 0.05: 7.0\u00a0%<",
    ),
    "failed": (
        of(*steady(1), *APART, LOST),
        "failed",
        "1 of 3 points failed; 1 of 3 points unusable<",
    ),
    "nothing measured": (of(LOST), "failed", "Nothing was measured<"),
    "too noisy": (
        of(*APART),
        "noisy",
        "First run of 1 point, nothing to compare with; 1 of 1 point unusable<",
    ),
    "one of two too noisy": (
        of(*APART, *steady(1)),
        "same",
        "1.01 Gbit/s at k=1; 1 of 2 points unusable<",
    ),
    "200 points": (
        of(*(sample for k in range(200) for sample in steady(k))),
        "same",
        "2.99 Gbit/s at k=199<",
    ),
    "names of 40 letters and one value": (of(HOSTILE), "same", f"{LONG.capitalize()} {LONG} 1 ms<"),
    "a damaged part": (
        of(*steady(1), MISSING),
        "noisy",
        "1.01 Gbit/s; 1 missing of 4 samples<",
    ),
    "no row": (
        lambda _: report_of(rows.plain().slice(0, 0)),
        "failed",
        "Nothing was measured</p>\n<p><code>perfdag doctor<",
    ),
}


@pytest.fixture(autouse=True)
def without_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words stand beside the charts, whose drawing takes long."""
    monkeypatch.setattr("perfdag.charts.pictures.figures", lambda *_: [])


@pytest.mark.parametrize("case", CASES)
def test_the_first_screen_is_a_sentence_about_what_can_be_trusted(
    case: str, tmp_path: Path
) -> None:
    write, kind, sentence = CASES[case]
    html = write(tmp_path)
    assert f'<div class="banner {kind}"><p class="sentence {kind}">{sentence}' in html
    assert ">trust " in html
    doubtful = any(word in case for word in ("noisy", "failed", "verdict", "nothing", "broken"))
    assert (">Do not quote these yet: " in html) is (doubtful and case != "own verdict")
    assert ("; level " in html) is (case in list(CASES)[:3]), "two levels"
    apart = case in ("failed", "too noisy", "one of two too noisy")
    assert ("<b>unusable</b>" in html) is apart, "a headline that cannot be trusted"
    assert (">x throughput, k=199<" in html) is (case == "200 points"), "the best one"
    assert (">192 more values</a>" in html) is (case == "200 points")
    assert ('<a class="unusable"' in html) is any(word in case for word in ("noisy", "failed"))
    assert ('<a class="lost"' in html) is (case == "a damaged part"), "no point that is whole"
    assert (">unusable</td>" in html) is any(word in case for word in ("noisy", "failed")), (
        "a value"
    )
    of_nights = case in list(CASES)[:5]
    sparks = 2 * (case in list(CASES)[:4])
    assert html.count('class="spark"') == sparks, "two runs make no level"
    assert ('href="../../site/history.html?suite=net"' in html) is of_nights
    assert ('href="../../site/benchmark.html?name=iperf"' in html) is of_nights


def test_a_run_names_the_parameter_that_changed(tmp_path: Path) -> None:
    store, runs = FolderStore(str(tmp_path)), [synthetic.run_id(night) for night in (3, 4)]
    for night, point in enumerate(("bs=4KiB", "bs=8KiB"), 3):
        synthetic.put(store, synthetic.rows(night, {point: [2e10] * 3}))
    tables = [load_rows(store, suites=["net"], runs=[run]) for run in runs]
    gates = [judge_run(store, "net", run, Rules()) for run in runs]
    before, after = map(RunVerdicts, map(summarise, tables), gates)
    said = "20 Gbit/s"
    assert banner(before).sentence == said
    assert banner(after).sentence == f"{said}; changed: iperf.bs 4KiB -> 8KiB"


def test_a_run_that_got_worse_with_its_machine_says_so_first(tmp_path: Path) -> None:
    slower = "the machine itself became slower"
    assert [slower in judged(tmp_path, 20, 0.8, machine) for machine in (1, 0.5)] == [False, True]
