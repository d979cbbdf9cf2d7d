"""The gate on synthetic stores: regressions, environment, thresholds, absence, acknowledgements,
alerts told once.
"""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfdag.analysis.alerts import markdown, markdown_table, publish
from perfdag.analysis.gate import judge_run
from perfdag.analysis.gate_result import GateResult, Rules
from perfdag.analysis.history import Acknowledgement
from perfdag.commands.main import main
from perfdag.plan import make_plan
from perfdag.results.run_store import plan_key
from perfdag.store.base import Store
from perfdag.suite.load import parse_suite
from perfdag.suite.model import Check
from tests.conftest import CommandLine
from tests.stats.receiver import Receiver
from tests.stats.synthetic import START, nights, put, rows, run_id, step

THROUGHPUT = Check(metric="throughput", op=">", value=9e9)


def judge(
    store: Store, night: int, *checks: Check, accepted: Sequence[Acknowledgement] = ()
) -> GateResult:
    """Check a night of the suite `net`."""
    return judge_run(store, "net", run_id(night), Rules(list(checks), list(accepted)))


def judge_and_tell(store: Store, night: int, *checks: Check, **more: Any) -> GateResult:
    """Check a night, send its alerts, and record what it told."""
    gate = judge(store, night, *checks, **more)
    assert publish(store, gate)
    return gate


def messages_of(store: Store, nights: Iterable[int], *checks: Check, kind: str = "") -> list[int]:
    """Check these nights one after the other; return the night of each alert that is told."""
    return [
        night
        for night in nights
        for alert in judge_and_tell(store, night, *checks).alerts
        if alert.fresh and kind in alert.kind
    ]


def test_a_regression_shuts_the_gate_and_says_what_changed(store: Store) -> None:
    nights(store, 40, step, env=lambda n: {"kernel": "6.1.119" if n >= 34 else "6.1.112"})
    gate = judge(store, 39)
    assert gate.failed
    [alert] = gate.alerts
    assert (alert.kind, alert.run, alert.fresh) == ("worse", run_id(34), True)
    assert "iperf streams=8 throughput" in alert.text
    assert "changed kernel 6.1.112 -> 6.1.119" in alert.text
    assert len(alert.text.splitlines()) <= 12
    assert [case.state for case in gate.cases].count("failed") == 1


def test_an_alert_stays_open_until_it_recovers_and_each_is_one_message(
    store: Store, webhook: str
) -> None:
    """A step of -15 % from night 34 on, and back to the level before it from night 60 on."""
    nights(store, 70, lambda n, p: 1e10 * (0.85 if 34 <= n < 60 else 1.0))
    gates = {night: judge_and_tell(store, night) for night in range(32, 70)}
    assert [night for night, gate in gates.items() if gate.failed] == list(range(36, 62))
    [alert] = gates[39].alerts
    assert "also    iperf throughput, " in alert.text, "several series are one cause"
    assert [(m["kind"], m["run_id"], m["page"], len(m["keys"])) for m in Receiver.got] == [
        ("worse", run_id(36), True, 3),
        ("recovered", run_id(62), False, 3),
    ]
    assert str(Receiver.got[1]["title"]).startswith("RECOVERED net/iperf throughput, 1 stream")
    assert {case.text[:4] for case in gates[69].cases if case.group == "change"} == {"same"}


def test_a_gain_and_a_series_that_does_not_page_open_no_alert(store: Store) -> None:
    nights(store, 40, lambda n, p: 1e10 * (1.2 if n >= 34 else 1.0))
    assert judge(store, 39).alerts == []
    nights(store, 40, lambda n, p: 1e10 * (0.8 if n >= 34 else 1.0))
    assert not judge(store, 39, Check(metric="*", page=False)).failed


@pytest.mark.parametrize(
    ("rule", "states", "text"),
    [
        ({"value": "9Gbit/s"}, ["ok"] * 3, ""),
        ({"value": 11e9}, ["failed"] * 3, ""),
        ({"ratio": 0.9}, ["ok"] * 3, ""),
        ({"ratio": 1.1}, ["failed"] * 3, ""),
        ({"ratio": 0.9, "baseline": "v1"}, ["ok"] * 3, ""),
        ({"ratio": 0.9, "baseline": "v2"}, ["absent"] * 3, ""),
        ({"metric": "nothing", "value": 1}, ["absent"], ""),
        ({"value": 1, "percentile": 95}, ["absent"] * 3, "p95 needs 90 samples, there are 3"),
    ],
)
def test_thresholds_absolute_relative_baseline_percentile(
    store: Store, rule: dict[str, Any], states: list[str], text: str
) -> None:
    nights(store, 6, lambda n, p: 1e10)
    assert main(["baseline", "set", "v1", run_id(3), "--store", store.root]) == 0
    gate = judge(store, 5, Check(**({"metric": "throughput", "op": ">="} | rule)))
    cases = [case for case in gate.cases if case.group == "threshold"]
    assert [case.state for case in cases] == states
    assert gate.failed == (states[0] != "ok")
    assert text in cases[-1].text


@pytest.mark.parametrize(
    ("slow", "messages"),
    [
        pytest.param(
            {5: ["streams=1"], 6: ["streams=1"], 8: ["streams=1"]}, [5, 8], id="until it held again"
        ),
        pytest.param(
            {0: ["streams=1"], 1: ["streams=1", "streams=4"], 2: ["streams=4"], 3: ["streams=4"]},
            [0, 1],
            id="one more series",
        ),
    ],
)
def test_a_threshold_is_told_once(
    store: Store, slow: dict[int, list[str]], messages: list[int]
) -> None:
    for night in range(9):
        points = ("streams=1", "streams=4", "streams=8")
        levels = {point: 1e9 if point in slow.get(night, ()) else 1e10 for point in points}
        put(store, rows(night, {point: [level] * 3 for point, level in levels.items()}))
    assert messages_of(store, range(9), THROUGHPUT) == messages


@pytest.mark.parametrize(
    ("status", "optional", "alerts"),
    [
        ("skipped", True, []),
        ("skipped", False, ["ABSENT net/vmi: 1 point without a value"]),
        ("failed", False, ["ABSENT net/vmi: 1 point without a value", "THRESHOLD net/vmi s >= 1"]),
        ("failed", True, ["THRESHOLD net/vmi s >= 1"]),
    ],
)
def test_what_was_never_measured_fails_the_gate_unless_its_entry_is_optional(
    store: Store, status: str, optional: bool, alerts: list[str]
) -> None:
    """A nightly suite names VMIs; a cluster without KubeVirt skips them, the first night too."""
    entry = f"{{benchmark: command, name: vmi, optional: {str(optional).lower()}, params: "
    text = f"name: net\nentries:\n  - {entry}{{argv: [vmi]}}}}\n"
    vmi: dict[str, Any] = {"entry": "vmi", "metric": "s", "unit": "1"}
    for night, others in enumerate((rows(0, {"streams=1": [1e10] * 3}), [])):
        plan = make_plan(parse_suite(text), run_id=run_id(night))
        store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
        why = {"status": status, "error": "no KubeVirt", "point": plan.points[0].id}
        without = [row | why for row in rows(night, {"counts=20": [np.nan, np.nan]}, **vmi)]
        put(store, others + without)
    gate = judge(store, 0, Check(entry="vmi", metric="s", op=">=", value=1))
    assert [alert.title for alert in gate.alerts] == alerts
    assert gate.failed == bool(alerts)
    [case] = [case for case in gate.cases if case.group == "present"]
    assert case.name == "vmi"
    assert case.text.startswith(f"none of 2 samples is ok; {status}: no KubeVirt")
    assert judge(store, 1).failed, "a run that measured nothing is never green"


@pytest.mark.parametrize(("value", "failed"), [("1.96s", False), ("1.9s", True)])
def test_a_percentile_of_pods(store: Store, value: str, failed: bool) -> None:
    ready: dict[str, Any] = {"entry": "scale", "metric": "t_ready", "unit": "s", "better": "lower"}
    pods = [
        row | {"subject": f"pod-{i}", "repetition": 1}
        for i, row in enumerate(rows(0, {"pods=100": np.linspace(1, 2, 100)}, **ready))
    ]
    put(store, pods + rows(0, {"pods=100": [1.5]}, **ready))
    rule = Check(metric="t_ready", op="<", value=value, percentile=95)
    assert judge(store, 0, rule).failed == failed


def test_a_percentile_is_of_one_direction_and_one_statistic(store: Store) -> None:
    """randrw: 20 reads a second beside 200 writes; neither stands for the other, and no p99 is
    mixed into a mean.
    """
    night_rows = []
    for direction, stat, level in (
        ("read", "value", 20),
        ("read", "p99", 2000),
        ("write", "value", 200),
        ("write", "p99", 20000),
    ):
        values = {"rw=randrw": level * np.linspace(0.9, 1.1, 21)}
        coords = f'{{"direction":"{direction}"}}'
        iops: dict[str, Any] = {"metric": "iops", "unit": "1/s", "stat": stat, "coords": coords}
        part = rows(0, values, entry="fio", **iops)
        night_rows += [row | {"series_id": f"{row['series_id']}-{direction}"} for row in part]
    put(store, night_rows)
    gate = judge(store, 0, Check(metric="iops", op=">=", value="100/s", percentile=50))
    assert {
        case.name.split(":")[0]: (case.state, case.text)
        for case in gate.cases
        if case.group == "threshold"
    } == {
        "fio iops direction=read": ("failed", "p50 20 IOPS breaks >= 100 IOPS"),
        "fio iops direction=write": ("ok", "p50 200 IOPS holds >= 100 IOPS"),
    }


@pytest.mark.parametrize(
    ("where", "cluster", "states"),
    [
        ({}, None, {"streams=1": "ok", "streams=64": "failed", "length=4KiB": "ok"}),
        ({"streams": 64, "direction": "read"}, "bl*", {"streams=64": "failed"}),
        ({"streams": [1, 64]}, None, {"streams=1": "ok", "streams=64": "failed"}),
        ({"length": "4KiB"}, "blue", {"length=4KiB": "ok"}),
        ({"streams": 64}, "green", {}),
        ({"streams": 64, "direction": "write"}, None, {"streams=64": "absent"}),
    ],
)
def test_a_rule_selects_by_parameters_coordinates_and_cluster(
    store: Store, where: dict[str, Any], cluster: str | None, states: dict[str, str]
) -> None:
    coords = '{"direction":"read"}'
    streams = rows(0, {"streams=1": [1e10], "streams=64": [5e9]}, coords=coords)
    length = rows(0, {"length=4096": [1e10]}, coords=coords, params='{"length":4096}')
    put(store, streams + length)
    rule = Check.model_validate(
        {"metric": "throughput", "op": ">", "value": 9e9, "where": where, "cluster": cluster}
    )
    gate = judge(store, 0, rule)
    assert {
        next(
            (
                point
                for point in ("streams=1", "streams=64", "length=4KiB")
                if point in case.name.split(":")[0]
            ),
            "",
        ): case.state
        for case in gate.cases
        if case.group == "threshold"
    } == states
    assert gate.failed == any(state != "ok" for state in states.values())


def test_a_rule_over_many_series_is_one_message_for_each_entry(store: Store) -> None:
    slow = {f"streams={n}": [1e9] * 3 for n in range(1, 301)}
    put(store, rows(0, slow) + rows(0, {"streams=1": [1e9] * 3}, entry="other"))
    gate = judge(store, 0, THROUGHPUT)
    alerts = {alert.title: alert.text.splitlines() for alert in gate.alerts}
    assert list(alerts) == ["THRESHOLD net/iperf: 300 series", "THRESHOLD net/other throughput"]
    text = alerts["THRESHOLD net/iperf: 300 series"]
    assert len(text) <= 12
    line = re.compile(r"what    iperf throughput, (\d+) streams?: 1 Gbit/s breaks > 9 Gbit/s")
    assert len({result[1] for result in map(line.fullmatch, text) if result}) == 6
    assert {"what    and 294 more", "rule    throughput > 9e+09"} <= set(text)
    assert sum(case.state == "failed" for case in gate.cases) == 301


def test_an_entry_that_vanished_is_told_once_and_not_for_each_rule_on_it(store: Store) -> None:
    rules = [THROUGHPUT, Check(entry="iperf", metric="retransmits", op="<", value=5)]
    for night in range(6):
        night_rows = rows(night, {"streams=1": [1e10] * 3}) + retransmits(night, "streams=1")
        other = rows(night, {"x=1": [1.0] * 3}, entry="other", metric="speed", unit="1/s")
        put(store, (night_rows if night < 5 else []) + other)
    gate = judge(store, 5, *rules, Check(entry="iperf", metric="througput", op=">", value=9e9))
    assert [alert.title for alert in gate.alerts] == [
        "ABSENT net/iperf: 1 series",
        "THRESHOLD net/iperf througput > 9e+09",
    ]
    assert "its point was not measured" in gate.alerts[0].text
    text = "name: net\nentries: [{benchmark: command, name: other, params: {argv: [ls]}}]\n"
    store.put(plan_key(run_id(5)), make_plan(parse_suite(text), run_id=run_id(5)).dump())
    assert "the suite has no entry iperf any more" in judge(store, 5).alerts[0].text
    assert [case.state for case in gate.cases if case.group == "threshold"] == ["absent"] * 3
    accepted = [Acknowledgement(series="iperf throughput", run=run_id(5), reason="not any more")]
    assert not judge(store, 5, *rules, accepted=accepted).failed


@pytest.mark.parametrize(
    ("entries", "removed", "rule"),
    [
        (
            ("iperf", "iperf"),
            "iperf streams=1 throughput",
            Check(metric="retransmits", op="<", value=5),
        ),
        (
            ("fio-a", "fio-b"),
            "fio-a throughput",
            Check(entry="fio-*", metric="retransmits", op="<", value=5),
        ),
    ],
)
def test_an_acknowledged_loss_hides_no_metric_that_what_is_still_measured_lacks(
    store: Store, entries: tuple[str, str], removed: str, rule: Check
) -> None:
    both = list(zip(entries, ("streams=1", "streams=4"), strict=True))
    for night in range(5):
        night_rows = [rows(night, {point: [1e10] * 3}, entry=entry) for entry, point in both]
        night_rows += [retransmits(night, point, entry) for entry, point in both]
        put(store, [row for part in night_rows for row in part])
    put(store, rows(5, {"streams=4": [1e10] * 3}, entry=entries[1]))
    gone = Acknowledgement(series=removed, run=run_id(5), reason="removed")
    gate = judge(store, 5, rule, accepted=[gone])
    assert [alert.title for alert in gate.alerts] == [f"THRESHOLD net/{rule.text()}"]
    assert gate.failed
    rule_too = Acknowledgement(series=rule.text(), run=run_id(5), reason="not any more")
    assert not judge(store, 5, rule, accepted=[gone, rule_too]).failed


def retransmits(night: int, point: str, entry: str = "iperf") -> list[dict[str, Any]]:
    return rows(night, {point: [0.0] * 3}, entry=entry, metric="retransmits", headline=False)


def test_a_failed_verdict_of_a_benchmark_is_told(store: Store, webhook: str) -> None:
    for night, value in enumerate((1.0, 0.0, 0.0)):
        night_rows = [
            row
            for count, word in ((100, 1.0), (400, value))
            for row in rows(
                night,
                {"burst": [word]},
                entry="burst",
                metric="verdict",
                unit="1",
                headline=False,
                coords=f'{{"count":{count}}}',
                subject="api_p99 < 1",
                note="0.2 against 1",
            )
        ]
        put(store, night_rows)
        assert judge_and_tell(store, night).failed == (not value)
    [message] = Receiver.got
    assert (message["kind"], message["page"]) == ("verdict", True)
    assert message["title"] == "VERDICT net/burst: 1 of its own verdicts failed"
    line = next(line for line in str(message["text"]).splitlines() if line.startswith("accept"))
    assert f"{{series: 'burst count=400: api_p99 < 1', run: {run_id(1)}, reason: ...}}" in line
    accepted = [
        Acknowledgement(
            series="burst count=400: api_p99 < 1", run=run_id(1), reason="a small API server"
        )
    ]
    assert not judge(store, 2, accepted=accepted).failed


def test_the_first_run_is_judged_except_against_a_past_that_it_lacks(store: Store) -> None:
    rules = [
        Check(metric="throughput", op=">=", value=9e9),
        Check(metric="throughput", op=">=", ratio=0.9),
    ]
    for night, (level, states) in enumerate(
        (
            (8e9, ["failed", "unsure"]),
            (1e10, ["ok", "ok"]),
            (5e9, ["failed", "failed"]),
        )
    ):
        put(store, rows(night, {"streams=1": [level] * 3}))
        cases = judge(store, night, *rules).cases
        assert [case.state for case in cases if case.group == "threshold"] == states


def test_a_later_run_is_judged_against_a_past_that_it_lacks(store: Store) -> None:
    """The suite got a new entry: its rule cannot be judged, which is no first run of a suite."""
    for night in range(3):
        new = rows(night, {"x=1": [1.0] * 3}, entry="new", metric="speed", unit="1/s")
        put(store, rows(night, {"streams=1": [1e10] * 3}) + (new if night == 2 else []))
    [case] = states_of(store, 2, Check(entry="new", metric="speed", op=">=", ratio=0.9))
    assert case == ("absent", "no earlier run has a value of it")


def states_of(store: Store, night: int, rule: Check, **more: Any) -> list[tuple[str, str]]:
    """Return the states and texts of a threshold."""
    cases = judge(store, night, rule, **more).cases
    return [(case.state, case.text) for case in cases if case.group == "threshold"]


def test_a_rule_on_two_lost_series_is_acknowledged_where_both_are(store: Store) -> None:
    for night in range(6):
        two = rows(night, {"streams=1": [1e10] * 3, "streams=4": [1e10] * 3})
        other = rows(night, {"x=1": [1.0] * 3}, entry="other", metric="speed", unit="1/s")
        put(store, (two if night < 5 else []) + other)
    accepted = [
        Acknowledgement(series=f"iperf streams={n} throughput", run=run_id(5), reason="removed")
        for n in (1, 4)
    ]
    for count, state in ((1, "absent"), (2, "ok")):
        assert [case[0] for case in states_of(store, 5, THROUGHPUT, accepted=accepted[:count])] == [
            state
        ]


def test_the_night_that_decides_a_level_is_judged_by_the_one_before(store: Store) -> None:
    nights(store, 37, lambda n, p: 1e10 if n < 34 else 1.2e10, points=["streams=1"], noise=0.001)
    gate = judge(store, 36, rule := Check(metric="throughput", op=">=", ratio=1.1))
    assert gate.series[0].levels.levels[-1].decided == 36
    assert [state for state, _ in states_of(store, 36, rule)] == ["ok"]


def test_a_ratio_is_to_the_accepted_level(store: Store) -> None:
    nights(store, 8, lambda n, p: 1e10 if n < 6 else 8e9, points=["streams=1"], noise=0.001)
    rule = Check(metric="throughput", op=">=", ratio=0.9)
    accepted = Acknowledgement(series="iperf *", run=run_id(6), reason="new kernel")
    assert judge(store, 7, rule).failed
    assert not judge(store, 7, rule, accepted=[accepted]).failed


@pytest.mark.parametrize("plan", [b"{", b'{"schema": 99}'])
def test_a_plan_that_cannot_be_read_keeps_no_gate_from_its_answer(
    store: Store, plan: bytes, cli: CommandLine
) -> None:
    for night in range(6):
        put(
            store,
            rows(
                night, {"streams=1": [1e10] * 3, "streams=4": [1e10 if night < 5 else np.nan] * 3}
            ),
        )
    store.put(f"runs/{run_id(5)}/plan.json", plan)
    assert "ABSENT net/iperf: 1 series" in cli(["check", "last", "--store", store.root], 3).out


def test_a_headline_of_two_runs_is_missed_in_the_third(store: Store) -> None:
    for night in range(3):
        points = ["streams=1", "streams=4"] if night < 2 else ["streams=1"]
        put(store, rows(night, {point: [1e10] * 3 for point in points}))
    assert [alert.title for alert in judge(store, 2).alerts] == ["ABSENT net/iperf: 1 series"]


def test_a_series_that_vanished_is_missed_until_it_is_back_or_acknowledged(store: Store) -> None:
    both, one = {"streams=1": [1e10] * 3, "streams=4": [1e10] * 3}, {"streams=1": [1e10] * 3}
    gone = [*range(6, 18), 22, 23]
    for night in range(24):
        put(store, rows(night, one if night in gone else both))
    assert messages_of(store, range(24), kind="absent") == [6, 22]
    assert [night for night in range(24) if judge(store, night).failed] == gone
    text = judge(store, 17).alerts[0].text
    assert "accept  in acks.yaml: {series: 'iperf streams=4 throughput', run: " in text
    accepted = Acknowledgement(
        series="iperf streams=4 *",
        run=run_id(9),
        reason="no such streams any more",
        until="2026-01-16",
    )
    failed = [judge(store, night, accepted=[accepted]).failed for night in (11, 12)]
    assert failed == [False, True], "night 12 is 2026-01-17"


def test_a_run_that_is_too_old_is_one_line_and_one_message(
    store: Store,
    webhook: str,
    cli: CommandLine,
) -> None:
    nights(store, 3, lambda n, p: 1e10)
    age = (datetime.now(UTC) - START - timedelta(days=2)).total_seconds() / 3600
    words = ["check", "last", "--store", store.root, "--suite", "net"]
    assert main([*words, "--max-age", f"{age + 1:.0f}h"]) == 0
    assert Receiver.got == []
    [line] = cli([*words, "--max-age", f"{age - 1:.0f}h"], 3).out.splitlines()
    assert line.startswith(f"STALE net: run {run_id(2)} began ")
    assert [message["title"] for message in Receiver.got] == [line]
    Receiver.status = 500
    assert main([*words, "--max-age", "1h"]) == 4


def test_one_very_bad_night_is_suspicious_not_a_regression(store: Store) -> None:
    nights(store, 30, lambda n, p: 1e10 * (0.7 if n == 29 and p == "streams=8" else 1.0))
    gate = judge(store, 29)
    assert not gate.failed
    assert [item.name for item in gate.suspects] == ["iperf streams=8 throughput"]
    assert gate.suspects[0].verdict.effect == pytest.approx(-0.3, abs=0.04)
    assert judge(store, 28).suspects == []
    assert judge(store, 29, Check(metric="*", page=False)).suspects == [], "it fails no gate"


def test_a_slower_machine_is_named_by_its_canaries_but_not_by_stolen_time(store: Store) -> None:
    for night in range(13):
        worse = night >= 10
        about: dict[str, Any] = {"entry": "canary", "headline": False}
        cpu = rows(
            night, {"canary": [5e3 if worse else 1e4] * 4}, metric="cpu", unit="1/s", **about
        )
        about |= {"metric": "steal", "unit": "1", "better": "lower"}
        steal = rows(night, {"canary": [0.5 if worse else 0.01] * 4}, **about)
        put(store, rows(night, {"streams=1": [1e10] * 3}) + cpu + steal)
    gate = judge(store, 12)
    assert {line.info.metric: line.verdict.kind for line in gate.canaries} == {
        "cpu": "worse",
        "steal": "worse",
    }
    [line] = gate.slower_machine
    assert line.startswith("canary  cpu worse -50.0 %")
    assert "steal" not in line


def test_a_bar_in_a_name_stays_in_its_cell() -> None:
    table = markdown_table(["series"], [["a|b\nc"]])
    assert table == ["| series |", "|---|", "| a\\|b c |"]


def test_missed_days_and_another_cluster_do_not_matter(store: Store) -> None:
    for night in [n for n in range(50) if n % 5]:
        nights(store, 1, step, first=night)
    nights(store, 10, lambda n, p: 1e9, first=100, cluster="green")
    assert [alert.run for alert in judge(store, 41).alerts] == [run_id(34)]
    assert not judge(store, 109).failed


def test_the_command(
    store: Store, webhook: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], cli: CommandLine
) -> None:
    nights(store, 40, step)
    command = ["check", "last", "--store", store.root]
    Receiver.status = 500
    assert "the next check sends it again" in cli(command, 4).err
    Receiver.status = 200
    junit = tmp_path / "j.xml"
    assert main([*command, "--junit", str(junit)]) == 3
    assert main(command) == 3
    [message] = Receiver.got
    assert (message["kind"], message["page"], message["since"]) == ("worse", True, run_id(34))
    assert str(message["text"]).startswith("```\nWORSE net/iperf throughput, 8 streams")
    suite = ElementTree.parse(junit).getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures")) == ("3", "1")
    assert "(reported before)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "{webhook}/T0/secret?token=secret",
            "webhook {webhook}: Internal Server Error; the next check sends it again",
        ),
        (
            "http://127.0.0.1:1/secret",
            (
                "webhook http://127.0.0.1:1: [Errno 111] Connection refused; the next check "
                "sends it again"
            ),
        ),
        ("http://me:secret@127.0.0.1:1?secret", "webhook http://127.0.0.1:1: "),
        ("http://me:secret@127.0.0.1/", "webhook http://127.0.0.1: the address is invalid"),
        (
            "http://127.0.0.1/secret and more",
            "webhook http://127.0.0.1: the address is invalid",
        ),
        ("127.0.0.1/secret", "webhook: an http:// or https:// address is needed"),
    ],
)
def test_what_a_webhook_refuses_is_said_without_the_secret_in_its_address(
    store: Store,
    webhook: str,
    url: str,
    message: str,
    cli: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nights(store, 12, lambda n, p: 1e10 * (0.6 if n >= 9 else 1.0), points=["streams=1"])
    Receiver.status = 500
    monkeypatch.setenv("PERFDAG_WEBHOOK", url.format(webhook=webhook))
    captured = cli(["check", "last", "--store", store.root], 4)
    assert captured.err.startswith(f"perfdag check: {message.format(webhook=webhook)}")
    assert "secret" not in captured.err + captured.out


def test_acks_file(store: Store, cli: CommandLine) -> None:
    nights(store, 40, step)
    acks = Path("acks.yaml")
    acks.write_text(ACK.format("iperf streams=8 *", run_id(34)))
    assert main(["check", "last", "--store", store.root]) == 0
    acks.write_text("acks:\n  - {series: x, run: yesterday, because: no}\n")
    error = cli(["check", "last", "--store", store.root], 2).err
    assert "unknown key; allowed: reason, run, series, until" in error


def test_acks_of_the_store(store: Store, tmp_path: Path, cli: CommandLine) -> None:
    nights(store, 40, step)
    there = ["--store", store.root]
    file = tmp_path / "accepted.yaml"
    file.write_text(ACK.format("x", "yesterday"))
    assert "accepted.yaml:2: acks[0].run" in cli(["acks", "set", str(file), *there], 2).err
    assert "no acknowledgements" in cli(["acks", "show", *there]).out
    assert main(["check", "last", *there]) == 3
    file.write_text(ACK.format("iperf streams=8 *", run_id(34)))
    stored = cli(["acks", "set", str(file), *there]).out
    assert f"1 acknowledgement in {store.url('acks.yaml')}" in stored
    line = f"iperf streams=8 *  from {run_id(34)} until 2027-01-31: new kernel"
    assert line in cli(["acks", "show", *there]).out
    assert main(["check", "last", *there]) == 0


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"metric": "x"}, "is empty"),
        ({"metric": "x", "op": "<"}, "either `value` or `ratio`"),
        ({"metric": "x", "value": 1}, "a threshold needs `op`"),
        ({"metric": "x", "op": "<", "value": 1, "baseline": "v1"}, "goes with `ratio`"),
        ({"metric": "x", "op": "<", "value": "5 parsecs"}, "parsecs"),
        ({"metric": "x", "min_effect": "many%"}, "write it as 5% or 0.05"),
        ({"metric": "x", "op": "=", "value": 1}, "'<', '<=', '>' or '>='"),
    ],
)
def test_bad_checks_are_refused(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Check.model_validate(keys)


ACK = "acks:\n  - {{series: '{}', run: {}, reason: new kernel, until: 2027-01-31}}\n"


def test_a_partial_run_by_hand_does_not_make_the_next_night_absent_nor_hide_it(
    store: Store,
) -> None:
    nights(store, 10, lambda n, p: 1e10)
    for night in range(10, 14):
        put(store, rows(night, {"streams=1": [1e10] * 3}, trigger="recheck"))
    assert not judge(store, 13).failed
    put(store, rows(14, {"streams=1": [1e10] * 3, "streams=4": [1e10] * 3}))
    assert [alert.keys != [] for alert in judge(store, 14).alerts if alert.kind == "absent"] == [
        True
    ]


def test_what_only_left_out_is_not_absent_and_hides_no_absence(store: Store) -> None:
    both = {"streams=1": [1e10] * 3, "streams=4": [1e10] * 3}
    for night in range(12):
        part = night in (5, 6, 7, 8, 9)
        values = {"streams=1": [1e10] * 3} if part or night == 11 else both
        put(store, rows(night, values, trigger="part" if part else "manual"))
    assert [night for night in range(12) if judge(store, night).failed] == [11]


def test_a_pull_request_has_a_table_of_values_and_links(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFDAG_SITE_URL", "https://bench.example/")
    nights(store, 12, lambda n, p: 1e10 * (0.6 if n >= 9 and p == "streams=4" else 1.0))
    first, worse = (markdown(judge(store, night)) for night in (0, 11))
    run = run_id(11)
    assert worse.startswith(
        "### net: gate FAILED: 1 worse, 2 same"
        f" \u00b7 [report](https://bench.example/runs/{run}/report.html)"
        " \u00b7 [history](https://bench.example/site/history.html?suite=net)\n"
    )
    rows = [line for line in worse.splitlines() if line.startswith("| ")][1:]
    assert re.fullmatch(
        r"\| 🔴 \| iperf throughput, 4 streams \| -\d+.\d % \| [\d.]+ Gbit/s \| \*\*6.*\*\* "
        r"\| \d.\d % \| [▁-█]{12} \|",
        rows[0],
    )
    assert [row[:5] for row in rows[1:]] == 2 * ["| ✅ |"]
    assert first.startswith("### net: gate passed: first run")
    assert "| ⚪ | iperf throughput, 1 stream | - | - | **" in first
