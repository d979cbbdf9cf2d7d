"""Alerts of a run about series that are worse, or that are good again: one for each cause."""

from collections.abc import Iterable, Sequence

from perfdag.regress.alert_records import (
    REPORT,
    STORE,
    Alert,
    Record,
    acknowledgement,
)
from perfdag.regress.history import Series
from perfdag.regress.verdict import percent
from perfdag.results.runs import day_of
from perfdag.units import short


def worse_alerts(
    suite: str, series: Iterable[Series], canaries: Sequence[Series], run_id: str
) -> list[Alert]:
    """Return an alert for each benchmark and step of which `series` are worse."""
    groups: dict[tuple[str, str], list[Series]] = {}
    for line in series:
        if line.answer.word == "worse" and line.left:
            groups.setdefault((line.info.benchmark, line.left.decided), []).append(line)
    return [_worse(suite, group, canaries, run_id) for group in groups.values()]


def _worse(suite: str, group: Sequence[Series], canaries: Sequence[Series], run_id: str) -> Alert:
    worst = max(group, key=lambda line: abs(line.answer.effect or 0))
    info, answer, left = worst.info, worst.answer, worst.left
    assert left is not None  # worse_alerts looks at it
    title = f"WORSE {suite}/{worst.name} {answer.text.removeprefix('worse ')}"
    wish = f" ({info.better} is better)" if info.better in ("higher", "lower") else ""
    noise = percent(answer.noise, answer.absolute, sign=False)
    differs = "; ".join(f"{key} {a} -> {b}" for key, (a, b) in left.environment.items())
    moved = [
        f"{line.info.metric} {line.answer.text}"
        for line in canaries
        if line.answer.word == "worse" and line.info.metric != "steal"
    ]
    lines = [
        title,
        f"level   {short(answer.before, info.unit)} -> {short(answer.value, info.unit)}{wish}, "
        f"noise of a run {noise}",
        f"since   run {left.run}, decided by run {left.decided}",
        f"changed {_shorten(differs) or 'nothing recorded of kernel, images, tools and nodes'}",
        *([f"canary  {', '.join(moved)}: the machine itself became slower"] if moved else []),
    ]
    if others := [line for line in group if line is not worst]:
        also = "; ".join(f"{line.name} {line.answer.size}" for line in others)
        lines.append(f"also    {_shorten(also)}")
    return Alert(
        "worse",
        title,
        "\n".join(lines),
        [line.info.series_id for line in group],
        left.run,
        do=f"{REPORT}   perfdag compare {left.run_before} {run_id} --store {STORE}",
        accept=acknowledgement(worst.name, left.run),
    )


def recovered_alerts(suite: str, series: Iterable[Series], previous: Record | None) -> list[Alert]:
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
    return [_recovered(suite, group) for group in groups.values()]


def _recovered(suite: str, group: Sequence[Series]) -> Alert:
    first = group[0]
    run = first.steps[-1].run if first.steps else ""
    title = f"RECOVERED {suite}/{first.name}: {first.answer.text}"
    names = _shorten("; ".join(line.name for line in group))
    text = f"{title}\nwhere   {names}\nsince   {day_of(run)}"
    keys = [line.info.series_id for line in group]
    return Alert("recovered", title, text, keys, run, do=REPORT, gates=False)


def _shorten(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:300]} ..."
