"""The gate on synthetic stores: regressions, environment, thresholds, absence, acknowledgements,
alerts told once.
"""

import json
import re
import shlex
import xml.etree.ElementTree as ElementTree
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfdag.cli import main
from perfdag.plan.plan import make_plan
from perfdag.regress import publish
from perfdag.regress.acks import read_acks
from perfdag.regress.changes import Acknowledgement
from perfdag.regress.gate import check, store_record
from perfdag.regress.result import Rules
from perfdag.results.samples import sample_key
from perfdag.store.base import Store
from perfdag.suite.checks import Check
from perfdag.suite.load import parse_suite
from perfdag.suite.yaml_document import BadDocument
from perfdag.units import quantity
from tests.conftest import CommandLine
from tests.stats.receiver import Receiver
from tests.stats.synthetic import START, nights, put, rows, run_id, step


def test_a_regression_shuts_the_gate_and_says_what_changed(store: Store) -> None:
    nights(store, 40, step, env=lambda n: {"kernel": "6.1.119" if n >= 34 else "6.1.112"})
    gate = check(store, "net", run_id(39), Rules())
    assert gate.failed
    [alert] = gate.alerts
    assert (alert.kind, alert.run, alert.fresh) == ("regression", run_id(34), True)
    assert "iperf streams=8 throughput" in alert.text
    assert "changed kernel 6.1.112 -> 6.1.119" in alert.text
    assert "(unchanged)" in alert.text
    assert len(alert.text.splitlines()) <= 12
    assert [case.state for case in gate.cases].count("failed") == 1


def test_an_alert_stays_open_until_it_recovers_and_each_is_one_message(
    store: Store, webhook: str
) -> None:
    """A step of -15 % from night 34 on, and back to the level before it from night 60 on."""
    nights(store, 70, lambda n, p: 1e10 * (0.85 if 34 <= n < 60 else 1.0))
    failed = []
    for night in range(32, 70):
        gate = check(store, "net", run_id(night), Rules())
        publish.send(webhook, gate, gate.alerts)
        store_record(store, gate)
        failed += [night] if gate.failed else []
    assert failed == list(range(36, 62))
    assert [(m["kind"], m["run_id"], m["page"]) for m in Receiver.got] == [
        ("regression", run_id(36), True),
        ("recovered", run_id(62), False),
    ]
    assert len(Receiver.got[1]["keys"]) == 3
    assert str(Receiver.got[1]["title"]).startswith("RECOVERED net/iperf throughput +1")
    states = {case.name: case.text for case in gate.cases if case.group == "change"}
    assert all(text.endswith("at its level") for text in states.values())


def test_a_recovery_that_the_webhook_refused_is_sent_by_the_next_check(
    store: Store, webhook: str
) -> None:
    nights(store, 50, lambda n, p: 1e10 * (0.85 if 34 <= n < 42 else 1.0), points=["streams=1"])
    for night in range(36, 50):
        gate = check(store, "net", run_id(night), Rules())
        Receiver.status = 500 if night in (44, 45) else 200
        if Receiver.status == 500:
            with pytest.raises(publish.WebhookError):
                publish.send(webhook, gate, gate.alerts)
        else:
            publish.send(webhook, gate, gate.alerts)
        store_record(store, gate)
    kinds = [str(m["kind"]) for m in Receiver.got]
    assert kinds.count("regression") == 1
    assert [m["run_id"] for m in Receiver.got if m["kind"] == "recovered"][-1] == run_id(46)


def test_a_suite_that_moved_to_a_slower_node_names_the_node(store: Store) -> None:
    for night in range(30):
        moved_away = night >= 20
        rng = np.random.default_rng(night)
        level = 0.92e10 if moved_away else 1e10
        values = {"streams=1": level * np.exp(rng.normal(0, 0.01, 3))}
        put(store, rows(night, values, nodes=["n7"] if moved_away else ["n1"]))
    [alert] = check(store, "net", run_id(29), Rules()).alerts
    assert "changed nodes n1 -> n7" in alert.text


def test_the_state_of_a_series_is_in_its_case(store: Store) -> None:
    nights(store, 12, lambda n, p: 1e10 * (0.6 if n >= 9 else 1.0), points=["streams=1"])
    cases = {}
    for night in (6, 8, 10, 11):
        [case] = check(store, "net", run_id(night), Rules()).cases
        cases[night] = case.state, case.text
    assert cases[6] == ("unsure", "too little history: a level needs 8 runs")
    assert cases[8][0] == "ok"
    assert cases[8][1].endswith("; at its level")
    assert "watching: two runs beyond the gate" in cases[10][1]
    assert cases[11][0] == "failed"
    assert cases[11][1].startswith("regressed: -39.8 % since 2026-01-14")
    accepted = [Acknowledgement("iperf *", run_id(9), "a slower link")]
    [case] = check(store, "net", run_id(11), Rules(accepted=accepted)).cases
    assert case.text.endswith("at an accepted level")


def test_the_same_analysis_twice_alerts_once_also_backfilled(store: Store) -> None:
    nights(store, 38, step)
    fresh = []
    for night in (36, 37, 37, 36, 37):
        gate = check(store, "net", run_id(night), Rules())
        fresh += [alert.title for alert in gate.alerts if alert.fresh]
        store_record(store, gate)
        assert gate.failed  # telling once does not open the gate
    assert len(fresh) == 1


def test_several_series_of_one_benchmark_are_one_cause(store: Store) -> None:
    nights(store, 40, lambda n, p: 1e10 * (0.8 if n >= 34 else 1.0))
    gate = check(store, "net", run_id(39), Rules())
    [alert] = gate.alerts
    assert len(alert.keys) == 3
    assert "also    iperf streams=" in alert.text


def test_a_canary_that_moves_too_is_environment(store: Store) -> None:
    for night in range(40):
        rng = np.random.default_rng(night)
        slow = 0.8 if night >= 34 else 1.0
        night_rows = rows(night, {"streams=1": 1e10 * slow * np.exp(rng.normal(0, 0.01, 3))})
        night_rows += rows(
            night,
            {"canary": 1e4 * slow * np.exp(rng.normal(0, 0.005, 4))},
            entry="canary",
            metric="cpu",
            unit="1/s",
            headline=False,
        )
        put(store, night_rows)
    gate = check(store, "net", run_id(39), Rules())
    [alert] = gate.alerts
    assert alert.kind == "environment"
    assert alert.title.startswith("ENVIRONMENT net/iperf")
    assert not gate.failed


def moved(store: Store, entry: str, change: float, canary: str, its: float) -> None:
    """40 nights of a benchmark and one canary; at night 34 throughput and the canary's speed are
    multiplied.
    """
    timed = canary in ("loopback", "disk")  # seconds, so a slower one is larger
    for night in range(40):
        rng = np.random.default_rng(night)
        a, b = (change, its) if night >= 34 else (1.0, 1.0)
        night_rows = rows(
            night, {"streams=1": 1e10 * a * np.exp(rng.normal(0, 0.01, 3))}, entry=entry
        )
        level = 1e-4 / b if timed else 1e4 * b
        night_rows += rows(
            night,
            {"canary": level * np.exp(rng.normal(0, 0.005, 4))},
            entry="canary",
            metric=canary,
            unit="s" if timed else "1/s",
            better="lower" if timed else "higher",
            headline=False,
        )
        put(store, night_rows)


@pytest.mark.parametrize(
    ("entry", "change", "canary", "its"),
    [
        ("iperf", 0.602, "disk", 0.93),  # of another part of the machine
        ("iperf", 0.602, "disk", 0.5),
        ("iperf", 0.602, "loopback", 0.93),  # of the right part, but far too small
        ("openfoam", 0.8, "loopback", 0.8),
    ],
)
def test_a_canary_of_another_part_or_too_small_does_not_excuse_a_regression(
    store: Store, entry: str, change: float, canary: str, its: float
) -> None:
    moved(store, entry, change, canary, its)
    gate = check(store, "net", run_id(39), Rules())
    [alert] = gate.alerts
    assert (alert.kind, gate.failed) == ("regression", True)
    assert f"canary does not explain it: {canary} " in alert.text


@pytest.mark.parametrize(
    ("entry", "change", "canary", "its"),
    [
        ("iperf", 0.8, "loopback", 0.8),
        ("fio", 0.8, "disk", 0.85),
        ("openfoam", 0.8, "memory", 0.85),
        ("of another package", 0.8, "cpu", 0.85),
    ],
)
def test_a_canary_of_what_a_benchmark_leans_on_is_environment(
    store: Store, entry: str, change: float, canary: str, its: float
) -> None:
    moved(store, entry, change, canary, its)
    gate = check(store, "net", run_id(39), Rules())
    assert [alert.kind for alert in gate.alerts] == ["environment"]
    assert f"canary moved too: {canary} " in gate.alerts[0].text
    assert not gate.failed


def test_a_gain_and_a_series_that_does_not_page_open_no_alert(store: Store) -> None:
    nights(store, 40, lambda n, p: 1e10 * (1.2 if n >= 34 else 1.0))
    assert check(store, "net", run_id(39), Rules()).alerts == []
    nights(store, 40, lambda n, p: 1e10 * (0.8 if n >= 34 else 1.0))
    assert not check(store, "net", run_id(39), Rules([Check(metric="*", page=False)])).failed


def test_accepting_a_level_makes_it_the_baseline(store: Store) -> None:
    nights(store, 55, lambda n, p: 1e10 * (0.85 if n >= 34 else 1.0) * (0.85 if n >= 50 else 1.0))
    accepted = [Acknowledgement("iperf *", run_id(34), "new kernel")]
    assert not check(store, "net", run_id(39), Rules(accepted=accepted)).failed
    repeated = check(store, "net", run_id(54), Rules(accepted=accepted))
    assert repeated.failed
    assert repeated.changes[0].index == 50
    expired = [Acknowledgement("iperf *", run_id(34), "for a week", until="2026-02-10")]
    assert not check(store, "net", run_id(36), Rules(accepted=expired)).failed  # 2026-02-10
    assert check(store, "net", run_id(37), Rules(accepted=expired)).failed


def test_thresholds_absolute_relative_baseline_percentile(store: Store) -> None:
    nights(store, 20, lambda n, p: 1e10)
    last = run_id(19)

    def states(*checks: Check) -> list[str]:
        return [
            case.state
            for case in check(store, "net", last, Rules(checks)).cases
            if case.group == "threshold"
        ]

    assert states(Check(metric="throughput", op=">=", value="9Gbit/s")) == ["ok"] * 3
    assert states(Check(metric="throughput", op=">=", value=11e9)) == ["failed"] * 3
    assert states(Check(metric="throughput", op=">=", ratio=0.9)) == ["ok"] * 3
    assert states(Check(metric="throughput", op=">=", ratio=1.1)) == ["failed"] * 3
    assert states(Check(metric="throughput", op=">=", ratio=0.9, baseline="v1")) == ["absent"] * 3
    assert main(["baseline", "set", "v1", run_id(3), "--store", store.root]) == 0
    assert states(Check(metric="throughput", op=">=", ratio=0.9, baseline="v1")) == ["ok"] * 3
    assert states(Check(metric="nothing", op=">=", value=1)) == ["absent"]
    refused = check(
        store, "net", last, Rules([Check(metric="throughput", op=">=", value=1, percentile=95)])
    )
    assert refused.failed
    assert "p95 needs 90 samples, there are 3" in refused.cases[-1].text


def test_a_threshold_of_a_skipped_entry_does_not_shut_the_gate(store: Store) -> None:
    """A nightly suite names VMIs; a cluster without KubeVirt skips them.

    Failed ones have no data, which is a fault.
    """
    rule = Check(entry="vmi", metric="success_ratio", op=">=", value=1)
    skipped = rows(
        0, {"counts=20": [np.nan, np.nan]}, entry="vmi", metric="success_ratio", unit="1"
    )
    for row in skipped:
        row |= {"status": "skipped", "error": "the cluster has no KubeVirt"}
    put(store, rows(0, {"streams=1": [1e10] * 3}) + skipped)
    gate = check(store, "net", run_id(0), Rules([rule]))
    assert not gate.failed
    assert gate.alerts == []
    assert ("skipped", "the cluster has no KubeVirt") in [
        (case.state, case.text) for case in gate.cases
    ]
    skipped[0]["status"] = "failed"
    put(store, rows(0, {"streams=1": [1e10] * 3}) + skipped)
    assert check(store, "net", run_id(0), Rules([rule])).failed
    assert check(
        store,
        "net",
        run_id(0),
        Rules([Check(entry="typo", metric="success_ratio", op=">=", value=1)]),
    ).failed


def test_a_percentile_of_pods(store: Store) -> None:
    ready = rows(
        0,
        {"pods=100": np.linspace(1, 2, 100)},
        entry="scale",
        metric="t_ready",
        unit="s",
        better="lower",
    )
    for i, row in enumerate(ready):
        row["subject"], row["repetition"] = f"pod-{i}", 1
    put(
        store,
        ready
        + rows(0, {"pods=100": [1.5]}, entry="scale", metric="t_ready", unit="s", better="lower"),
    )
    assert not check(
        store,
        "net",
        run_id(0),
        Rules([Check(metric="t_ready", op="<", value="1.96s", percentile=95)]),
    ).failed
    assert check(
        store,
        "net",
        run_id(0),
        Rules([Check(metric="t_ready", op="<", value="1.9s", percentile=95)]),
    ).failed


def test_a_percentile_is_of_one_direction_and_one_statistic(store: Store) -> None:
    """randrw: 20 reads a second beside 200 writes; neither stands for the other, and no p99 is
    mixed into a mean.
    """
    night_rows = []
    for direction, level in (("read", 20.0), ("write", 200.0)):
        for stat, factor in (("value", 1.0), ("p99", 100.0)):
            part = rows(
                0,
                {"rw=randrw": level * factor * np.linspace(0.9, 1.1, 21)},
                entry="fio",
                metric="iops",
                unit="1/s",
                stat=stat,
            )
            coords = f'{{"direction":"{direction}"}}'
            night_rows += [
                row | {"coords": coords, "series_id": f"{row['series_id']}-{direction}"}
                for row in part
            ]
    put(store, night_rows)
    gate = check(
        store,
        "net",
        run_id(0),
        Rules([Check(metric="iops", op=">=", value="100/s", percentile=50)]),
    )
    assert {
        case.name.split(":")[0]: (case.state, case.text)
        for case in gate.cases
        if case.group == "threshold"
    } == {
        "fio iops direction=read": ("failed", "p50 20 /s breaks >= 100 /s"),
        "fio iops direction=write": ("ok", "p50 200 /s holds >= 100 /s"),
    }


@pytest.mark.parametrize(
    ("where", "cluster", "states"),
    [
        ({}, None, {"streams=1": "ok", "streams=64": "failed", "length=4096": "ok"}),
        ({"streams": 64, "direction": "read"}, "bl*", {"streams=64": "failed"}),
        ({"streams": [1, 64]}, None, {"streams=1": "ok", "streams=64": "failed"}),
        ({"length": "4KiB"}, "blue", {"length=4096": "ok"}),
        ({"streams": 64}, "green", {}),
        (
            {"streams": 64, "direction": "write"},
            None,
            {
                "streams=64": (
                    "absent, the run has no value of it; there are streams: 1, 64; direction: read"
                )
            },
        ),
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
    gate = check(store, "net", run_id(0), Rules([rule]))
    assert {
        next(
            (
                point
                for point in ("streams=1", "streams=64", "length=4096")
                if point in case.name.split(":")[0]
            ),
            "",
        ): case.state if case.state != "absent" else f"{case.state}, {case.text}"
        for case in gate.cases
        if case.group == "threshold"
    } == states
    assert gate.failed == any(state != "ok" for state in states.values())


def test_a_threshold_is_told_once_until_it_held_again(store: Store) -> None:
    levels = {5: 8e9, 6: 8e9, 8: 8e9}
    nights(store, 9, lambda n, p: levels.get(n, 1e10), points=["streams=1"], noise=0.001)
    messages = []
    for night in range(9):
        gate = check(
            store, "net", run_id(night), Rules([Check(metric="throughput", op=">", value=9e9)])
        )
        messages += [night for alert in gate.alerts if alert.fresh]
        store_record(store, gate)
    assert messages == [5, 8]


def test_a_rule_over_many_series_is_one_message_for_each_entry(store: Store) -> None:
    rule = Check(metric="throughput", op=">", value=9e9)
    slow = {f"streams={n}": [1e9] * 3 for n in range(1, 301)}
    put(store, rows(0, slow) + rows(0, {"streams=1": [1e9] * 3}, entry="other"))
    gate = check(store, "net", run_id(0), Rules([rule]))
    alerts = {alert.title: alert for alert in gate.alerts}
    assert list(alerts) == ["THRESHOLD net/iperf: 300 series", "THRESHOLD net/other throughput"]
    text = alerts["THRESHOLD net/iperf: 300 series"].text.splitlines()
    assert len(text) <= 12
    shown = [
        re.fullmatch(r"what    iperf streams=(\d+) throughput: 1 Gbit/s breaks > 9 Gbit/s", line)
        for line in text
    ]
    assert len({result[1] for result in shown if result}) == 6
    assert "what    and 294 more" in text
    assert "rule    throughput > 9e+09" in text
    assert sum(case.state == "failed" for case in gate.cases) == 301


def test_a_series_has_one_name_in_a_gate_also_where_its_neighbour_is_gone(store: Store) -> None:
    for night in range(6):
        both = {"streams=1": [1e10] * 3, "streams=4": [1e10] * 3}
        put(store, rows(night, both if night < 5 else {"streams=1": [1e9] * 3}))
    rules = [Check(metric="throughput", op=">", value=9e9)]
    titles = [alert.title for alert in check(store, "net", run_id(5), Rules(rules)).alerts]
    assert "THRESHOLD net/iperf streams=1 throughput" in titles
    accepted = [
        Acknowledgement(f"iperf streams={n} throughput", run_id(5), "a slower link") for n in (1, 4)
    ]
    assert not check(store, "net", run_id(5), Rules(rules, accepted)).failed


def test_one_more_series_that_breaks_a_rule_is_told(store: Store) -> None:
    messages = []
    for night, slow in enumerate(
        ({"streams=1"}, {"streams=1", "streams=4"}, {"streams=4"}, {"streams=4"})
    ):
        put(
            store,
            rows(
                night,
                {
                    point: [1e9 if point in slow else 1e10] * 3
                    for point in ("streams=1", "streams=4", "streams=8")
                },
            ),
        )
        gate = check(
            store, "net", run_id(night), Rules([Check(metric="throughput", op=">", value=9e9)])
        )
        messages += [night for alert in gate.alerts if alert.fresh]
        store_record(store, gate)
    assert messages == [0, 1]


def test_an_entry_that_vanished_is_told_once_and_not_for_each_rule_on_it(store: Store) -> None:
    rules = [
        Check(metric="throughput", op=">", value=9e9),
        Check(entry="iperf", metric="retransmits", op="<", value=5),
    ]
    for night in range(6):
        night_rows = rows(night, {"streams=1": [1e10] * 3}) + rows(
            night, {"streams=1": [0.0] * 3}, metric="retransmits", headline=False
        )
        put(
            store,
            (night_rows if night < 5 else [])
            + rows(night, {"x=1": [1.0] * 3}, entry="other", metric="speed", unit="1/s"),
        )
    typo = Check(entry="iperf", metric="througput", op=">", value=9e9)
    gate = check(store, "net", run_id(5), Rules([*rules, typo]))
    assert [alert.title for alert in gate.alerts] == [
        "ABSENT net/iperf: 1 series",
        "THRESHOLD net/iperf througput > 9e+09",
    ]
    assert [case.state for case in gate.cases if case.group == "threshold"] == ["absent"] * 3
    accepted = [Acknowledgement("iperf throughput", run_id(5), "not any more")]
    assert not check(store, "net", run_id(5), Rules(rules, accepted)).failed


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
    for night in range(6):
        night_rows = []
        for entry, point in zip(entries, ("streams=1", "streams=4"), strict=True):
            if night < 5 or point == "streams=4":
                night_rows += rows(night, {point: [1e10] * 3}, entry=entry)
            if night < 5:
                night_rows += rows(
                    night, {point: [0.0] * 3}, entry=entry, metric="retransmits", headline=False
                )
        put(store, night_rows)
    gone = Acknowledgement(removed, run_id(5), "removed")
    gate = check(store, "net", run_id(5), Rules([rule], [gone]))
    assert [alert.title for alert in gate.alerts] == [f"THRESHOLD net/{rule.words()}"]
    assert gate.failed
    assert not check(
        store,
        "net",
        run_id(5),
        Rules([rule], [gone, Acknowledgement(rule.words(), run_id(5), "not any more")]),
    ).failed


@pytest.mark.parametrize("case", ["its entry, and one was removed long ago", "the headline alone"])
def test_a_loss_is_told_once_and_its_acknowledgement_opens_the_gate_of_each_rule_on_it(
    store: Store, case: str
) -> None:
    for night in range(13):
        night_rows = rows(night, {"x=1": [1.0] * 3}, entry="other", metric="speed", unit="1/s")
        if night < 12:
            night_rows += rows(night, {"streams=1": [1e10] * 3})
        if case == "the headline alone":
            night_rows += rows(
                night, {"streams=1": [0.0] * 3}, metric="retransmits", headline=False
            )
        elif night < 2:
            night_rows += rows(night, {"streams=1": [1e10] * 3}, entry="iperf-old")
        put(store, night_rows)
    rules = [Check(metric="throughput", op=">", value=9e9)]
    gate = check(store, "net", run_id(12), Rules(rules))
    assert [alert.title for alert in gate.alerts] == ["ABSENT net/iperf: 1 series"]
    assert gate.failed
    gate = check(
        store,
        "net",
        run_id(12),
        Rules(rules, [Acknowledgement("iperf throughput", run_id(12), "not any more")]),
    )
    assert (gate.alerts, gate.failed) == ([], False)


@pytest.mark.parametrize("nights_without", [1, 4, 8])
def test_a_metric_that_went_untold_with_an_acknowledged_entry_keeps_the_gate_shut_night_after_night(
    store: Store, nights_without: int
) -> None:
    rule = Check(entry="fio-*", metric="retransmits", op="<", value=5)
    for night in range(6 + nights_without):
        night_rows = rows(night, {"streams=4": [1e10] * 3}, entry="fio-b")
        if night < 6:
            night_rows += rows(night, {"streams=1": [1e10] * 3}, entry="fio-a")
            for entry, point in (("fio-a", "streams=1"), ("fio-b", "streams=4")):
                night_rows += rows(
                    night, {point: [0.0] * 3}, entry=entry, metric="retransmits", headline=False
                )
        put(store, night_rows)
        acks = (
            [Acknowledgement("fio-a throughput", run_id(6), "removed")] if night > 6 else []
        )  # told first, then acknowledged
        gate = check(store, "net", run_id(night), Rules([rule], acks))
        store_record(store, gate)
        assert (
            gate.failed
            == (f"THRESHOLD net/{rule.words()}" in [alert.title for alert in gate.alerts])
            == (night >= 6)
        )


def test_a_failed_verdict_of_a_benchmark_is_told(store: Store, webhook: str) -> None:
    def held(night: int, value: float) -> None:
        night_rows = []
        for count, word in ((100, 1.0), (400, value)):
            night_rows += rows(
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
        put(store, night_rows)

    for night, value in enumerate((1.0, 0.0, 0.0)):
        held(night, value)
        gate = check(store, "net", run_id(night), Rules())
        publish.send(webhook, gate, gate.alerts)
        store_record(store, gate)
        assert gate.failed == (not value)
    [message] = Receiver.got
    assert (message["kind"], message["page"]) == ("verdict", True)
    assert message["title"] == "VERDICT net/burst: 1 of its own verdicts failed"
    line = next(line for line in str(message["text"]).splitlines() if line.startswith("accept"))
    assert f"{{series: 'burst count=400: api_p99 < 1', run: {run_id(1)}, reason: ...}}" in line
    accepted = [Acknowledgement("burst count=400: api_p99 < 1", run_id(1), "a small API server")]
    assert not check(store, "net", run_id(2), Rules(accepted=accepted)).failed


def test_the_first_run_is_judged_except_against_a_past_that_it_lacks(store: Store) -> None:
    rules = Rules(
        [
            Check(metric="throughput", op=">=", value=9e9),
            Check(metric="throughput", op=">=", ratio=0.9),
        ]
    )
    states = []
    for night, level in enumerate((8e9, 1e10, 5e9)):
        put(store, rows(night, {"streams=1": [level] * 3}))
        gate = check(store, "net", run_id(night), rules)
        states.append([case.state for case in gate.cases if case.group == "threshold"])
    assert states == [["failed", "unsure"], ["ok", "ok"], ["failed", "failed"]]


def test_a_ratio_is_to_the_accepted_level(store: Store) -> None:
    nights(store, 8, lambda n, p: 1e10 if n < 6 else 8e9, points=["streams=1"], noise=0.001)
    rules = [Check(metric="throughput", op=">=", ratio=0.9)]
    assert check(store, "net", run_id(7), Rules(rules)).failed
    assert not check(
        store, "net", run_id(7), Rules(rules, [Acknowledgement("iperf *", run_id(6), "new kernel")])
    ).failed


def test_another_cluster_in_the_store_makes_nothing_news(store: Store) -> None:
    messages = []
    for night in range(8):
        for at, cluster in enumerate(("blue", "green")):
            put(
                store,
                rows(
                    2 * night + at,
                    {"streams=1": [8e9 if cluster == "blue" and night >= 3 else 1e10] * 3},
                    cluster=cluster,
                ),
            )
            gate = check(
                store,
                "net",
                run_id(2 * night + at),
                Rules([Check(metric="throughput", op=">", value=9e9)]),
            )
            messages += [(cluster, night) for alert in gate.alerts if alert.fresh]
            store_record(store, gate)
    assert messages == [("blue", 3)]


@pytest.mark.parametrize("where", [{}, {"workflow": "w", "namespace": "bench"}])
def test_the_commands_of_messages_can_be_run(
    store: Store,
    tmp_path: Path,
    where: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    cli: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def command(kind: str, night: int) -> list[str]:
        [alert] = [
            alert
            for alert in check(store, "net", run_id(night), Rules()).alerts
            if alert.kind == kind
        ]
        words = next(line for line in alert.text.splitlines() if line.startswith("do ")).partition(
            "   perfdag "
        )[2]
        return shlex.split(words)

    plan = make_plan(
        parse_suite(
            "name: net\nentries:\n  - {benchmark: command, name: iperf, params: {argv: ['true']}}\n"
        ),
        run_id=run_id(40),
    )
    nights(store, 40, step, points=["streams=8"], point=plan.points[0].id)
    assert "iperf throughput" in cli(command("regression", 39)).out
    plan.where = where
    store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
    put(store, rows(40, {"streams=1": [1e10] * 3}))
    words = command("absent", 40)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none.yaml"))
    # a cluster's run is continued there, where this machine finds no cluster; its own is measured
    # here
    assert words[:3] == ["submit" if where else "run", "--resume", run_id(40)]
    assert main(words) == (4 if where else 0), capsys.readouterr().err


def test_a_run_is_gone_on_with_only_for_what_it_has_no_samples_of(store: Store) -> None:
    commands = [
        f"{{benchmark: command, name: {name}, repetitions: 3, params: {{argv: [echo, {name}]}}}}"
        for name in ("failed", "waiting")
    ]
    plan = make_plan(
        parse_suite("name: net\nentries:\n" + "".join(f"  - {command}\n" for command in commands)),
        run_id=run_id(5),
    )
    store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
    for at, (index, _) in enumerate(plan.order):
        if plan.points[index].entry == "failed":
            store.put(sample_key(plan.run_id, plan.key(at)), b"")
    for night in range(6):
        value = 1.0 if night < 5 else np.nan
        put(
            store,
            [
                row
                for point in plan.points
                for row in rows(night, {"x=1": [value] * 3}, entry=point.entry, point=point.id)
            ],
        )
    texts = [alert.text for alert in check(store, "net", run_id(5), Rules()).alerts]
    assert [
        re.findall(r"^ABSENT net/(\w+)|   (perfdag run --resume)", text, re.MULTILINE)
        for text in texts
    ] == [
        [("failed", "")],
        [("waiting", ""), ("", "perfdag run --resume")],
    ]


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


def test_absence_is_an_alert(store: Store) -> None:
    nights(store, 12, lambda n, p: 1e10)
    put(store, rows(12, {"streams=1": [1e10] * 3, "streams=4": [np.nan] * 3}))
    gate = check(store, "net", run_id(12), Rules())
    assert gate.failed
    [alert] = gate.alerts
    assert alert.kind == "absent"
    assert (
        "iperf streams=4 throughput: all 3 samples failed, failed: it would not start" in alert.text
    )
    assert "iperf streams=8 throughput: its point was not measured" in alert.text


def test_a_series_that_vanished_is_missed_until_it_is_back_or_acknowledged(store: Store) -> None:
    both, one = {"streams=1": [1e10] * 3, "streams=4": [1e10] * 3}, {"streams=1": [1e10] * 3}
    messages, states = [], []
    for night in range(24):
        put(store, rows(night, one if night in range(6, 18) or night >= 22 else both))
        gate = check(store, "net", run_id(night), Rules())
        messages += [night for alert in gate.alerts if alert.kind == "absent" and alert.fresh]
        states.append(gate.failed)
        store_record(store, gate)
    assert messages == [6, 22]
    assert states == [night in range(6, 18) or night >= 22 for night in range(24)]
    gate = check(store, "net", run_id(17), Rules())
    assert (
        "accept  in acks.yaml: {series: 'iperf streams=4 throughput', run: " in gate.alerts[0].text
    )
    accepted = Acknowledgement(
        "iperf streams=4 *", run_id(9), "no such streams any more", until="2026-01-16"
    )
    assert not check(store, "net", run_id(11), Rules(accepted=[accepted])).failed
    assert check(store, "net", run_id(12), Rules(accepted=[accepted])).failed  # 2026-01-17


def test_a_loss_acknowledged_before_it_was_told_is_not_forgotten(store: Store) -> None:
    rule = Check(metric="throughput", entry="spare", op=">", value=1e9)
    accepted = Acknowledgement(
        "spare *", run_id(6), "that card is being mended", until="2026-01-25"
    )
    for night in range(24):
        night_rows = rows(night, {"streams=1": [1e10] * 3})
        put(
            store,
            night_rows
            if night >= 6
            else night_rows + rows(night, {"streams=1": [1e10] * 3}, entry="spare"),
        )
        gate = check(store, "net", run_id(night), Rules(checks=[rule], accepted=[accepted]))
        store_record(store, gate)
        if night <= 20:
            assert (night, gate.failed, gate.alerts) == (night, False, [])
        else:  # 2026-01-26: the card should be back
            assert gate.failed
            assert [alert.kind for alert in gate.alerts] == ["absent"]
    long_ago = Acknowledgement("*", run_id(16), "all of it is slower here")
    gate = check(store, "net", run_id(20), Rules(accepted=[long_ago]))
    assert [
        case for case in gate.cases if case.group == "present"
    ] == []  # it was gone, untold, long before that


def test_a_run_that_is_too_old_is_one_line_and_one_message(
    store: Store,
    webhook: str,
    cli: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nights(store, 3, lambda n, p: 1e10)
    age = (datetime.now(UTC) - START - timedelta(days=2)).total_seconds() / 3600
    words = ["check", "last", "--store", store.root, "--suite", "net"]
    monkeypatch.setenv("PERFDAG_WEBHOOK", webhook)
    assert main([*words, "--max-age", f"{age + 1:.0f}h"]) == 0
    assert Receiver.got == []
    [line] = cli([*words, "--max-age", f"{age - 1:.0f}h"], 3).out.splitlines()
    assert line.startswith(f"STALE net: run {run_id(2)} began ")
    assert [message["title"] for message in Receiver.got] == [line]
    Receiver.status = 500
    assert main([*words, "--max-age", "1h"]) == 4


def test_one_very_bad_night_is_suspicious_not_a_regression(store: Store) -> None:
    nights(store, 30, lambda n, p: 1e10 * (0.7 if n == 29 and p == "streams=8" else 1.0))
    gate = check(store, "net", run_id(29), Rules())
    assert not gate.failed
    assert [item.name for item in gate.suspects] == ["iperf streams=8 throughput"]
    assert gate.suspects[0].effect == pytest.approx(-0.3, abs=0.04)
    assert check(store, "net", run_id(28), Rules()).suspects == []


@pytest.mark.parametrize("where", [{}, {"workflow": "w", "namespace": "bench"}])
def test_only_a_run_of_this_machine_is_confirmed_on_it(
    store: Store,
    tmp_path: Path,
    where: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    cli: CommandLine,
) -> None:
    text = "name: net\nentries:\n  - {benchmark: command, name: iperf, params: {argv: [ls]}}\n"
    nights(store, 30, lambda n, p: 1e10 * (0.7 if n == 29 and p == "streams=8" else 1.0))
    plan = make_plan(parse_suite(text), run_id=run_id(29))
    plan.where = where
    store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
    assert main(["check", "last", "--store", store.root]) == 0
    offered = "suspicious tonight: iperf streams=8 throughput"
    out = capsys.readouterr().out
    assert offered in out
    assert ("--confirm measures them again" in out) == (not where)
    before = store.list("runs")
    if where:
        assert (
            "this machine cannot add samples to it"
            in cli(["check", "last", "--confirm", "--store", store.root], 2).err
        )
        assert store.list("runs") == before


def test_missed_days_and_another_cluster_do_not_matter(store: Store) -> None:
    for night in [n for n in range(50) if n % 5]:
        nights(store, 1, step, first=night)
    nights(store, 10, lambda n, p: 1e9, first=100, cluster="green")
    gate = check(store, "net", run_id(41), Rules())
    assert [alert.run for alert in gate.alerts] == [run_id(34)]
    assert not check(store, "net", run_id(109), Rules()).failed


def test_an_environment_that_becomes_a_regression_is_told_again(store: Store, webhook: str) -> None:
    """The canary is slow for three nights only; what was put down to it stays slow."""
    kinds = []
    for night in range(42):
        rng = np.random.default_rng(night)
        slow, machine = 0.85 if night >= 34 else 1.0, 0.85 if night in (34, 35, 36) else 1.0
        night_rows = rows(night, {"streams=1": 1e10 * slow * np.exp(rng.normal(0, 0.01, 3))})
        speed = 1e4 * machine * np.exp(rng.normal(0, 0.005, 4))
        put(
            store,
            night_rows
            + rows(
                night, {"canary": speed}, entry="canary", metric="cpu", unit="1/s", headline=False
            ),
        )
        if night < 36:
            continue
        gate = check(store, "net", run_id(night), Rules())
        publish.send(webhook, gate, gate.alerts)
        store_record(store, gate)
        kinds += [alert.kind for alert in gate.alerts]
    assert kinds.count("environment") > 1
    assert kinds.count("regression") > 1
    assert [(item["kind"], item["page"]) for item in Receiver.got] == [
        ("environment", False),
        ("regression", True),
    ]


def test_the_command(
    store: Store, webhook: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], cli: CommandLine
) -> None:
    nights(store, 40, step)
    (tmp_path / "url").write_text(f"{webhook}\n")
    command = ["check", "last", "--store", store.root, "--webhook-file", str(tmp_path / "url")]
    Receiver.status = 500
    assert "the next check sends it again" in cli(command, 4).err
    Receiver.status = 200
    files = [tmp_path / "j.xml", tmp_path / "s.md"]
    assert main([*command, "--junit", str(files[0]), "--markdown", str(files[1])]) == 3
    assert main(command) == 3
    [message] = Receiver.got
    assert (message["kind"], message["page"], message["since"]) == ("regression", True, run_id(34))
    assert str(message["text"]).startswith("```\nREGRESSION net/iperf throughput")
    suite = ElementTree.parse(files[0]).getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures")) == ("3", "1")
    assert "gate FAILED" in files[1].read_text()
    out = capsys.readouterr().out
    assert "(reported before)" in out
    assert (
        json.loads(cli(["check", "last", "--store", store.root, "--json"], 3).out)["passed"]
        is False
    )


def test_an_address_that_is_an_argument_is_refused(
    store: Store, webhook: str, cli: CommandLine
) -> None:
    """Every user of a machine reads the arguments of its processes."""
    error = cli(["check", "last", "--store", store.root, "--webhook", webhook], 2).err
    assert error.endswith("No such file or directory; name a file that holds the URL\n")
    assert "/hook" not in error
    assert Receiver.got == []


@pytest.mark.parametrize(
    ("url", "said"),
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
    said: str,
    cli: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nights(store, 40, step)
    Receiver.status = 500
    server = webhook.removesuffix("/hook")
    monkeypatch.setenv("PERFDAG_WEBHOOK", url.format(webhook=server))
    captured = cli(["check", "last", "--store", store.root], 4)
    assert captured.err.startswith(f"perfdag check: {said.format(webhook=server)}")
    assert "secret" not in captured.err + captured.out


def test_acks_file(store: Store, tmp_path: Path) -> None:
    nights(store, 40, step)
    acks = tmp_path / "acks.yaml"  # the working folder of the test
    acks.write_text(
        f"acks:\n  - {{series: 'iperf streams=8 *', run: {run_id(34)}, reason: new kernel, "
        f"until: 2027-01-31}}\n"
    )
    assert main(["check", "last", "--store", store.root]) == 0
    acks.write_text("acks:\n  - {series: x, run: yesterday, because: no}\n")
    with pytest.raises(BadDocument) as caught:
        read_acks(None, store)
    output = str(caught.value)
    assert "unknown key; allowed: series, run, reason, until" in output
    assert "acks[0].reason: is required" in output
    assert main(["check", "last", "--store", store.root]) == 2


def test_acks_of_the_store(store: Store, tmp_path: Path, cli: CommandLine) -> None:
    nights(store, 40, step)
    there = ["--store", store.root]
    file = tmp_path / "accepted.yaml"
    file.write_text("acks:\n  - {series: x, run: yesterday, reason: none}\n")
    assert "accepted.yaml:2: acks[0].run" in cli(["acks", "set", str(file), *there], 2).err
    assert "no acknowledgements" in cli(["acks", "show", *there]).out
    assert main(["check", "last", *there]) == 3
    file.write_text(
        f"acks:\n  - {{series: 'iperf streams=8 *', run: {run_id(34)}, reason: new kernel, "
        f"until: 2027-01-31}}\n"
    )
    assert (
        f"1 acknowledgements in {store.url('acks.yaml')}"
        in cli(["acks", "set", str(file), *there]).out
    )
    assert (
        f"iperf streams=8 *  from {run_id(34)} until 2027-01-31: new kernel"
        in cli(["acks", "show", *there]).out
    )
    assert main(["check", "last", *there]) == 0


@pytest.mark.parametrize(
    ("given", "said"),
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
def test_bad_checks_are_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Check.model_validate(given)


def test_quantities_in_checks() -> None:
    def value(text: str) -> float | None:
        return Check(metric="x", op="<", value=text).value

    assert (value("15ms"), value("9Gbit/s"), value("200MB/s"), value("4KiB"), value("20k/s")) == (
        0.015,
        9e9,
        2e8,
        4096,
        2e4,
    )
    units = [
        quantity(text)[1] for text in ("15ms", "9Gbit/s", "200MB/s", "4KiB", "20k/s", "100/s", "7")
    ]
    assert units == ["s", "bit/s", "B/s", "B", "1/s", "1/s", ""]
    assert Check(metric="x", min_effect="15%").min_effect == 0.15


def test_a_run_that_is_not_there(store: Store, cli: CommandLine) -> None:
    assert "has no results: run a suite" in cli(["check", "last", "--store", store.root], 2).err
    nights(store, 2, lambda n, p: 1e10)
    assert (
        f"did you mean {run_id(1)}?"
        in cli(["check", run_id(1)[:-1] + "0", "--store", store.root], 2).err
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["history", "net", "--newest", "-3"], "--newest -3: the number of runs must be 1 or more"),
        (["baseline", "set", "", "last"], "the name is empty"),
    ],
)
def test_numbers_and_names_that_mean_nothing_are_refused(
    store: Store, words: list[str], said: str, cli: CommandLine
) -> None:
    nights(store, 2, lambda n, p: 1e10)
    assert said in cli([*words, "--store", store.root], 2).err


def test_damaged_files_are_named_and_the_others_used(
    store: Store, tmp_path: Path, cli: CommandLine
) -> None:
    nights(store, 40, step)
    broken = f"results/suite=net/month=2026-01/{run_id(10)}.parquet"
    store.put(broken, b"PAR1 not really")
    assert f"damaged, left out: {broken}" in cli(["check", "last", "--store", store.root], 3).out
    store.put(f"results/suite=net/month=2026-02/{run_id(39)}.parquet", b"")
    assert "no readable rows" in cli(["check", "last", "--store", store.root], 2).err


def test_a_damaged_file_of_a_baseline_is_named(store: Store) -> None:
    nights(store, 6, lambda n, p: 1e10, points=["streams=1"])
    rules = Rules([Check(metric="throughput", op=">=", ratio=0.9, baseline="v1")])
    assert (
        main(["baseline", "set", "v1", "since=2026-01-05 until=2026-01-06", "--store", store.root])
        == 0
    )
    assert not check(
        store, "net", run_id(5), rules
    ).failed  # what the history needs of the files is rolled up from here on
    broken = [f"results/suite=net/month=2026-01/{run_id(night)}.parquet" for night in range(2)]
    store.put(broken[0], b"PAR1 not really")
    gate = check(store, "net", run_id(5), rules)
    assert (gate.failed, gate.damaged) == (False, broken[:1])
    store.put(broken[1], b"PAR1 not really")
    gate = check(store, "net", run_id(5), rules)
    assert sorted(gate.damaged) == broken
    assert f"baseline v1 has no readable rows: {', '.join(broken)}" in gate.cases[-1].text


def test_a_partial_run_by_hand_does_not_make_the_next_night_absent_nor_hide_it(
    store: Store,
) -> None:
    nights(store, 10, lambda n, p: 1e10)
    for night in range(10, 14):
        put(store, rows(night, {"streams=1": [1e10] * 3}, trigger="confirm"))
    assert not check(store, "net", run_id(13), Rules()).failed
    put(store, rows(14, {"streams=1": [1e10] * 3, "streams=4": [1e10] * 3}))
    assert [
        alert.keys != []
        for alert in check(store, "net", run_id(14), Rules()).alerts
        if alert.kind == "absent"
    ] == [True]
