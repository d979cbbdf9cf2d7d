"""The alerts of a gate: their texts, and the records of what was told of each run."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import orjson

from perfdag.analysis.gate_result import Alert, CheckResult, GateResult, Kind
from perfdag.analysis.history import Series, shorten
from perfdag.analysis.verdict import percent
from perfdag.results.runs import day_of
from perfdag.store.base import Store, store_option
from perfdag.units import plural, short


@dataclass
class Record:
    """The alerts of one run, as stored under alerts/. `failed`: its gate failed.

    `store` is the address that the store had for the check, as the messages name it.
    """

    run: str
    store: str
    alerts: list[Alert]
    failed: bool


def mark_known(alerts: Sequence[Alert], previous: Record | None, own: Record | None) -> None:
    """Mark the alerts that the run before, or an earlier check of this run, had already."""
    for alert in alerts:
        records = [record for record in (previous, own) if record]
        old = [each for record in records for each in record.alerts if each.kind == alert.kind]
        # One more series of a cause makes a known alert fresh.
        alert.fresh = not set(alert.keys) <= {key for each in old for key in each.keys}
        alert.sent = set(alert.keys) <= {key for each in old if each.sent for key in each.keys}


def read_records(store: Store, suite: str) -> dict[str, Record]:
    """Return the newest records by run id, oldest first. Raises StoreError.

    At most 120. A damaged record counts as none.
    """
    keys = [key for key in store.list(f"alerts/{suite}") if key.endswith(".json")][-120:]
    records = {}
    for _, data in store.get_many(keys):
        try:
            raw = orjson.loads(data)
            alerts = [Alert(**alert) for alert in raw["alerts"]]
            records[raw["run"]] = Record(raw["run"], raw["store"], alerts, raw["failed"])
        except (ValueError, KeyError, TypeError):
            continue
    return records


def store_record(store: Store, gate: GateResult) -> None:
    """Store the alerts of a run, so that none is sent twice. Raises StoreError."""
    record = Record(gate.run, gate.store, gate.alerts, gate.failed)
    text = orjson.dumps(record, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
    store.put(f"alerts/{gate.suite}/{gate.run}.json", text)


POINTS = "points"
"""The second part of the cause of points without a value."""


_KINDS: dict[str, Kind] = {
    "present": "absent",
    "verdict": "verdict",
    "threshold": "threshold",
    "slow": "slow",
}


def case_alerts(gate: GateResult) -> list[Alert]:
    """Return an alert for each cause of cases that fail. It names the first six."""
    causes: dict[tuple[str, str, str], list[CheckResult]] = {}
    for case in gate.cases:
        if case.cause and case.state in ("failed", "absent"):
            causes.setdefault((case.group, *case.cause), []).append(case)
    alerts = []
    for (group, entry, detail), cases in causes.items():
        kind, count = _KINDS[group], len(cases)
        about = f"{entry}: {count} series"
        if detail == POINTS:
            about = f"{entry}: {plural(count, 'point')} without a value"
        elif kind == "verdict":
            about = f"{entry}: {count} of its own verdicts failed"
        elif kind in ("threshold", "slow") and count == 1:
            about = cases[0].label
        elif kind == "slow":
            about = f"{cases[0].label} and {count - 1} more"
        lines = [f"{kind.upper()} {gate.suite}/{about}"]
        lines += [f"what    {case.label}: {case.text}"[:308] for case in cases[:6]]
        lines += [f"what    and {count - 6} more"] if count > 6 else []
        lines += [f"rule    {detail}"] if kind in ("threshold", "slow") else []
        lines += [f"do      {gate.report}", gate.accept(cases[0].label, gate.run)]
        keys = [case.key for case in cases]
        alerts.append(Alert(kind, lines[0], "\n".join(lines), keys, gate.run))
    return alerts


def worse_alerts(gate: GateResult, series: Iterable[Series]) -> list[Alert]:
    """Return an alert for each benchmark and step of which `series` are worse."""
    groups: dict[tuple[str, str], list[Series]] = {}
    for line in series:
        if line.answer.word == "worse" and line.left:
            groups.setdefault((line.info.benchmark, line.left.decided), []).append(line)
    return [_worse(gate, group) for group in groups.values()]


def _worse(gate: GateResult, group: Sequence[Series]) -> Alert:
    worst = max(group, key=lambda line: abs(line.answer.effect or 0))
    info, answer, left = worst.info, worst.answer, worst.left
    assert left is not None  # worse_alerts looks at it
    title = f"WORSE {gate.suite}/{worst.name} {answer.text.removeprefix('worse ')}"
    wish = f" ({info.better} is better)" if info.better in ("higher", "lower") else ""
    noise = percent(answer.noise, answer.absolute, sign=False)
    before, value = (short(v, info.display_unit) for v in (answer.before, answer.value))
    lines = [
        title,
        f"level   {before} -> {value}{wish}, noise of a run {noise}",
        f"since   {left.since}",
        f"{worst.newest_text.replace('newest ', 'newest  ')} against the good level",
        f"changed {left.changed}",
        *gate.slower_machine,
    ]
    if left.changes.bisect:
        lines.append(f"bisect  {left.changes.bisect}")
    if others := [line for line in group if line is not worst]:
        also = "; ".join(f"{line.name} {line.answer.size}" for line in others)
        lines.append(f"also    {shorten(also)}")
    compare = f"perfdag compare {left.run_before} {gate.run} {store_option(gate.history)}"
    if gate.store != gate.history:
        compare += f" --store-b {shlex.quote(gate.store)}"
    lines += [f"do      {gate.report}   {compare}", gate.accept(worst.name, left.run)]
    keys = [line.info.series_id for line in group]
    return Alert("worse", title, "\n".join(lines), keys, left.run)


def recovered_alerts(
    gate: GateResult, series: Iterable[Series], previous: Record | None
) -> list[Alert]:
    """Return an alert for each benchmark whose series the run before reported and that are good."""
    reported = {
        key
        for alert in (previous.alerts if previous else [])
        if alert.kind == "worse"
        for key in alert.keys
    }
    groups: dict[str, list[Series]] = {}
    for line in series:
        if line.info.series_id in reported and line.answer.word in ("same", "better"):
            groups.setdefault(line.info.benchmark, []).append(line)
    alerts = []
    for group in groups.values():
        run = group[0].steps[-1].run if group[0].steps else ""
        title = f"RECOVERED {gate.suite}/{group[0].name}: {group[0].answer.text}"
        names = shorten("; ".join(line.name for line in group))
        text = f"{title}\nwhere   {names}\nsince   {day_of(run)}\ndo      {gate.report}"
        keys = [line.info.series_id for line in group]
        alerts.append(Alert("recovered", title, text, keys, run, gates=False))
    return alerts
