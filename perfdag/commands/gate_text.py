"""The gate of a run as text, for `perfdag check` and for the end of a run."""

from collections.abc import Container

from perfdag.analysis.alerts import GateResult, gate_counts, worst
from perfdag.analysis.verdict import RANK
from perfdag.commands.terminal import highlighted
from perfdag.units import plural

MOST_LINES = 10
"""Series that the terminal names; the report has all of them."""


def gate_text(gate: GateResult) -> str:
    """Return a gate as text: alerts, checks that fail, suspicious points, counts."""
    lines = []
    for alert in worst(gate.alerts):
        lines += [gate.message(alert), *([] if alert.fresh else ["        (reported before)"]), ""]
    lines += [
        f"{result.state:8}{result.group}: {result.name}: {result.text}"
        for result in gate.cases
        if result.state in ("failed", "absent") and result.group != "change"
    ]
    if gate.runs == 1:
        lines.append("answer  first run: there is none before it to compare with")
    elif gate.series:
        history = plural(gate.runs, "run")
        lines.append(f"answer  {gate.word}: {gate.counted} ({history} of history)")
    lines += answer_lines(gate, told={key for alert in gate.alerts for key in alert.keys})
    lines += [f"damaged, left out: {key}" for key in gate.damaged]
    lines.append(f"checks  {gate_counts(gate)}")
    lines.append(f"gate {'FAILED' if gate.failed else 'passed'}  {gate.suite}  {gate.run}")
    return highlighted(lines)


def answer_lines(gate: GateResult, told: Container[str] = ()) -> list[str]:
    """Return a line for each headline series that is not the same as before.

    Series whose ids are in `told` are left out, and all of a first run.
    """
    if gate.runs < 2:
        return []
    lines = [
        f"  {line.name}: {line.answer.text}"
        for line in sorted(gate.headlines, key=lambda line: RANK.index(line.answer.word))
        if line.answer.word != "same" and line.info.series_id not in told
    ][:MOST_LINES]
    if gate.rechecks:
        lines.append(f"measured again right after it: {', '.join(gate.rechecks)}")
    return lines
