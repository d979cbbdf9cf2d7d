"""queue-load: trials on real backends, the search of the peak, its rows and its chart."""

import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import pytest

from perfdag.benchmark.contract import Output
from perfdag.charts.benchmarks import queue_load
from perfdag.outcome import Failed, Invalid, Measurement, SampleError
from perfdag.shape import Shape
from perfdag.steps.queue.client.load import Load
from perfdag.steps.queue.client.stats import ClientStats
from perfdag.steps.queue.frontend.frontend import Frontend
from perfdag.steps.queue.load_benchmark import QueueLoad, QueueLoadParams
from perfdag.steps.queue.load_targets import load_processes
from perfdag.steps.queue.trials import Setting, run_trials
from tests.charts.rows import sample, table
from tests.queue.conftest import StartBackends, by_control_port, until

SLEEP = ["sleep", "0.05"]


def setting(seconds: float = 2.0, bound: float = 0.25, precision: float = 0.1) -> Setting:
    return Setting(seconds, "poisson", "p90", bound, precision)


async def test_the_peak_is_below_the_capacity_and_lies_between_two_full_trials() -> None:
    result = await load_processes(SLEEP, 2, "", setting(), None)
    assert result["capacity"] <= 40
    assert 0.3 * result["capacity"] < result["peak"] < 1.05 * 40
    full = {trial["rate"]: trial for trial in result["trials"] if trial["full"]}
    assert full[result["peak"]]["held"]
    assert full[result["peak"]]["latency"]["p90"] <= 0.25
    assert not full[result["above"]]["held"]
    assert result["above"] <= 1.1 * result["peak"] * (1 + 1e-6)
    assert all(trial["latency"]["count"] >= 44 for trial in full.values())  # p90 needs as many


async def test_a_rate_beyond_the_backends_is_invalid() -> None:
    params = QueueLoadParams(rate=200, duration=1, replicas=1, command=SLEEP, percentile="p90")
    result = await load_processes(SLEEP, 1, "", params.setting(), 200)
    with pytest.raises(Invalid, match=r"of 2\d\d requests at 200/s were not answered"):
        QueueLoad().parse(Output({"result": json.dumps(result)}), params)


@pytest.mark.parametrize(
    ("command", "replicas", "rate", "reason"),
    [
        (["/bin/false"], 1, None, "did no work in a closed loop: .* exit code 1"),
        (["/bin/false"], 1, 50.0, "at 50/s: .* failed requests .* exit code 1"),
        (["/bin/sh", "-c", "kill -9 $PPID"], 1, 50.0, "SIGKILL|backend lost"),
        (["/nowhere"], 1, 50.0, "not an executable file"),
        (["sleep", "0.2"], 1, None, r"no rate holds 0\.1 s: an item takes 0\.2\d* s or more"),
    ],
)
async def test_what_cannot_be_measured_says_why(
    command: list[str], replicas: int, rate: float | None, reason: str
) -> None:
    with pytest.raises(Failed, match=reason):
        await load_processes(command, replicas, "", Setting(0.2, "constant", "p90", 0.1, 0.1), rate)


async def test_a_client_behind_its_control_port_is_driven_alike(
    frontend: Frontend,
    client_stats: ClientStats,
    client_load: Callable[..., Load],
    backends: StartBackends,
    ending: AsyncExitStack,
) -> None:
    replicas = await backends(frontend, 2, "sleep", "0.01")
    await until(lambda: len(frontend.parked["sleep"]) == 2)
    sender = await by_control_port(client_load(), client_stats, ending)
    result = await run_trials(replicas, sender, setting(1.0, 1.0), 60)
    [trial] = result["trials"]
    assert trial["held"]
    assert 40 <= trial["scheduled"] == trial["success"] <= 80
    assert (result["replicas"], result["peak"]) == (2, None)


def trial(rate: float, full: bool, held: bool, **changes: Any) -> dict[str, Any]:
    latency = {"count": 100, "p50": 0.05, "p90": 0.1 if held else 0.4, "p95": None}
    return {
        "rate": rate,
        "full": full,
        "held": held,
        "scheduled": 100,
        "success": 100,
        "failure": 0,
        "latency": latency,
        "schedule_lag": {"late": 0.001},
        **changes,
    }


def parse_trials(
    *trials: dict[str, Any], peak: float | None, above: float | None
) -> list[Measurement]:
    result = {"trials": trials, "peak": peak, "above": above, "capacity": 60.0, "replicas": 4}
    return QueueLoad().parse(Output({"result": json.dumps(result)}), QueueLoadParams())


def test_rows_of_a_search() -> None:
    trials = [trial(40, False, True), trial(44, True, True), trial(46, True, False)]
    rows = parse_trials(*trials, peak=44, above=46)
    assert {row.metric for row in rows} == {metric.name for metric in QueueLoad.metrics}
    [peak] = [row for row in rows if row.metric == "peak_rate"]
    assert (peak.value, dict(peak.coords)) == (44, {})
    assert {row.stat: row.value for row in rows if row.metric == "latency"} == {
        "p50": 0.05,
        "p90": 0.1,
    }
    subjects = [row.subject for row in rows if (row.metric, row.stat) == ("trial_latency", "p90")]
    assert subjects == ["at 40/s, short", "at 44/s", "at 46/s"]
    unbounded = parse_trials(trials[1], peak=44, above=None)
    assert [dict(row.coords) for row in unbounded if row.metric == "peak_rate"] == [
        {"bound": "at least"}
    ]


@pytest.mark.parametrize(
    ("trials", "error", "reason"),
    [
        ([], Failed, "no trial at the rate"),
        ([trial(44, False, True)], Failed, "no trial at the rate"),
        ([trial(44, True, True, schedule_lag={"late": 0.2})], Invalid, "at 44/s .* 200 ms late"),
        ([trial(44, True, True, success=90)], Invalid, "10 of 100 requests at 44/s were not"),
    ],
)
def test_a_result_that_is_none(
    trials: list[dict[str, Any]], error: type[SampleError], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        parse_trials(*trials, peak=44, above=None)


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({}, ""),
        ({"deployment": "d"}, ""),
        ({"deployment": "d", "replicas": 2}, "replicas: the Deployment has its own"),
        ({"namespace": "n"}, "namespace without a deployment"),
        ({"command": ["work"]}, "neither an absolute path nor built in"),
        ({"command": ["/bin/true", "FILENAME"]}, "no file name to map"),
        ({"command": ["sleep", "1"]}, "an item takes 1 s, so no rate holds it"),
        ({"command": ["sleep", "1"], "rate": 1}, ""),
    ],
)
def test_parameters_that_do_not_fit(params: dict[str, Any], reason: str) -> None:
    problems = QueueLoad().check(QueueLoadParams.model_validate(params), Shape())
    assert reason in "".join(problems)
    assert bool(problems) == bool(reason)


def test_a_trial_is_long_enough_for_its_percentile() -> None:
    params = QueueLoadParams(rate=2, percentile="p99")
    assert params.setting().seconds_at(2) > 459 / 2
    assert QueueLoad().seconds(params) > 459 / 2
    assert setting(10).seconds_at(1000, full=False) == 5


def row(rate: float, value: float, stat: str, full: bool = True) -> dict[str, Any]:
    return {
        "metric": "trial_latency",
        "value": value,
        "unit": "s",
        "better": "none",
        "stat": stat,
        "coords": {"rate": rate, "held": True, "full": full},
        "subject": f"at {rate:g}/s",
    }


def test_the_chart_joins_full_trials_and_marks_the_peak() -> None:
    peak = {"metric": "peak_rate", "value": 44.0, "unit": "1/s", "better": "higher"}
    values = [row(44, 0.1, "p90"), row(40, 0.08, "p90"), row(60, 0.9, "p90", full=False)]
    search = sample(
        "queue-load", {"percentile": "p90", "bound": 0.2}, 1, [*values, peak], entry="search"
    )
    single = [
        sample("queue-load", {"rate": rate}, 1, [row(rate, 0.05, "p50")], entry="at")
        for rate in (10, 20)
    ]
    [(_, figure)] = queue_load.figures(table(search, *single))
    result, at = figure.axes
    joined, hollow, bound, marked = (
        [(float(x), float(y)) for x, y in np.asarray(line.get_data()).T] for line in result.lines
    )
    assert (joined, hollow) == ([(40, 0.08), (44, 0.1)], [(60, 0.9)])
    assert (bound[0][1], marked[0][0]) == (0.2, 44)
    assert np.asarray(at.lines[0].get_xdata()).tolist() == [10, 20]
    title = figure.texts[0].get_text().replace("\n", " ")
    assert title == "Search: p90 holds 0.2 s up to 44/s; at: latency at 2 rates"
    [(_, nothing)] = queue_load.figures(table(sample("queue-load", {}, 1, [])))
    assert len(nothing.axes) == 1
