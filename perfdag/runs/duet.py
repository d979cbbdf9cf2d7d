"""The outcome of two variants that were measured in turn."""

import math
from collections.abc import Iterator

import orjson

from perfdag.analysis.alerts import junit_document, markdown_table
from perfdag.analysis.compare import DuetResult, PairedSeries, analyse
from perfdag.analysis.gate_result import CheckResult, State
from perfdag.analysis.verdict import CANNOT_TELL, RANK, Tuning, percent
from perfdag.plan import Duet
from perfdag.results.collect import collect
from perfdag.stats.paired import Cost
from perfdag.store.base import Store
from perfdag.suite.model import checks_of
from perfdag.terminal import styled, text_table
from perfdag.units import RATES, digits, plural, short

OUTCOME = "runs/{}/ab.json"
"""Key of the outcome, beside the samples of run A."""
HEADINGS = ["series", "A", "B", "B against A", "interval", "p", "verdict"]


def conclude(store: Store, duet: Duet, *, everything: bool = False) -> DuetResult:
    """Compare the collected variants and store the outcome beside run A. Raises StoreError."""
    tuning = Tuning(checks_of(duet.a.suite_text), duet.a.where.get("cluster"))
    outcome = analyse(store, duet, tuning, everything=everything)
    store.put(
        OUTCOME.format(duet.a.run_id), orjson.dumps(outcome.data(), option=orjson.OPT_INDENT_2)
    )
    return outcome


def compare_so_far(store: Store, duet: Duet, *, everything: bool = False) -> DuetResult:
    """Collect what both variants have so far, and compare it. Raises StoreError."""
    for plan in (duet.a, duet.b):
        collect(store, plan)
    return conclude(store, duet, everything=everything)


def outcome_text(outcome: DuetResult, store: Store, *, markdown: bool = False) -> str:
    """Return the outcome as a table for a terminal or in Markdown, with notes below it."""
    duet = outcome.duet
    lines = outcome.series
    a, b = duet.a.options.words
    limit = next((line.cost.limit for line in lines if line.cost), None)
    headings = HEADINGS if limit is None else [*HEADINGS, f"cost within {limit * 100:g} %"]
    rows = [[*_cells(line), *([] if limit is None else [_cost(line.cost)])] for line in lines]
    notes = [*_notes(outcome), f"outcome {store.url(OUTCOME.format(duet.a.run_id))}"]
    if markdown:
        head = f"### A: {a}; B: {b} ({duet.a.suite}, {plural(len(duet.blocks), 'block')})\n"
        return "\n".join(
            [head, *markdown_table(headings, rows), "", outcome_sentence(outcome), "", *notes]
        )
    table = text_table(
        headings, rows, right=range(1, 6), styles=[line.paired.kind for line in lines]
    )
    sentence = outcome_sentence(outcome), f"bold {outcome.verdict}"
    return "\n".join([f"A  {a}\nB  {b}", table, styled([*notes, sentence])])


def outcome_sentence(outcome: DuetResult) -> str:
    """Return what the series that matters most says: `B is 1.25 times slower than A (p 0.03)`."""
    if not outcome.series:
        return "Nothing can be compared"
    a, b = outcome.duet.a.options.words
    line = min(outcome.series, key=lambda line: RANK.index(line.paired.kind))
    paired = line.paired
    unit = line.info.unit
    change = _cells(line)[3]
    if paired.kind not in ("worse", "better"):
        verdict, _, why = _cells(line)[-1].partition(": ")
        return "; ".join(filter(None, [f"{verdict}: {line.label} {change}", why]))
    text = f"{b} against {a}: {change}"
    if unit == "s" or unit in RATES:
        ratio = 1 + paired.effect
        how = "slower" if (ratio > 1) == (unit == "s") else "faster"
        text = f"{b} is {digits(max(ratio, 1 / ratio))} times {how} than {a}"
    text = f"{line.label}: {text}" if outcome.series[1:] else text
    return f"{text} (p {paired.p:.2g})"


def outcome_card(outcome: DuetResult) -> bytes:
    """Return the outcome as a PNG of 1200 x 630 for chats and slides."""
    from perfdag.charts.pages.screen import card_of_variants

    series = [(*_cells(line)[:5], line.paired.kind) for line in outcome.series]
    return card_of_variants(
        [outcome.duet.a.suite, *outcome.duet.a.options.words],
        outcome_sentence(outcome),
        outcome.verdict,
        series,
    )


_STATES: dict[str, State] = {"within": "ok", "beyond": "failed", "unclear": "absent"}
"""What JUnit calls a series by its cost: passed, a failure, or an error where nobody can tell."""


def outcome_junit(outcome: DuetResult) -> bytes:
    """Return the outcome as JUnit XML: a case for each series, and for what cannot be compared."""
    a, b = outcome.duet.a.options.words
    cases = []
    for line in outcome.series:
        cells = dict(zip(HEADINGS[1:], _cells(line)[1:], strict=True))
        text = "; ".join(f"{heading} {cell}" for heading, cell in cells.items())
        state: State = "ok"
        if line.cost:
            state = _STATES[line.cost.kind]
            text = f"{_cost(line.cost)}; {text}"
        cases.append(CheckResult("ab", line.name, line.label, state, text))
    lacking: State = "failed"
    if outcome.duet.a.options.within is None:  # no series fails for having no value
        lacking = "ok" if outcome.series else "absent"
    for name in outcome.absent:
        text = next(text for text in outcome.unpaired if text.startswith(f"{name}: "))
        cases.append(CheckResult("ab", name, name, lacking, text))
    cases += [
        CheckResult("samples", reason, reason, "absent", f"{plural(count, 'sample')} not ok")
        for reason, count in outcome.failed.items()
    ]
    about = {"A": a, "B": b, "run": outcome.duet.a.run_id, "blocks": str(len(outcome.duet.blocks))}
    return junit_document(outcome.duet.a.suite, about, cases)


def _cells(line: PairedSeries) -> list[str]:
    """Return the cells of a series, as HEADINGS names them.

    Where a limit is the question, its cell alone says what would decide.
    """
    paired = line.paired
    unit_of_metric = line.info.display_unit
    verdict: str = paired.kind
    if paired.kind == "unclear" and not line.cost:
        verdict = f"{CANNOT_TELL}: {paired.why}"
    unit = unit_of_metric if paired.absolute else ""
    low = percent(paired.interval.low, unit)
    high = percent(paired.interval.high, unit)
    return [
        line.label,
        short(paired.a, unit_of_metric),
        short(paired.b, unit_of_metric),
        percent(paired.effect, unit),
        f"{low} to {high}",
        f"{paired.p:.2g}",
        verdict,
    ]


def _cost(cost: Cost | None) -> str:
    """Return what B costs, the interval of the cost, and whether it is within the limit."""
    if cost is None:
        return "-"
    verdict = cost.kind if cost.kind != "unclear" else f"{CANNOT_TELL}: {cost.why}"
    if math.isnan(cost.share):
        return verdict
    unit = "%" if cost.points else ""
    share, low, high = (percent(part, unit) for part in (cost.share, cost.low, cost.high))
    return f"{share} ({low} to {high}) {verdict}"


def _notes(outcome: DuetResult) -> Iterator[str]:
    """Yield the method, what differs, failed samples, and series without a counterpart."""
    bands = sorted({line.paired.interval.text() for line in outcome.series})
    blocks = f"{plural(len(outcome.duet.blocks), 'block')} of ABBA or BAAB"
    yield ""
    yield f"{blocks}; interval: {', '.join(bands) or '-'}; exact sign-flip test"
    yield "A: its median; B against A: the median of the pairs; B: A with it"
    for key, change in outcome.changes.lines():
        yield f"differs  {key}: {change}"
    if outcome.duet.a.options.do and not outcome.changes.values:
        yield f"{outcome.changes.nothing}: perfdag records nothing of what --a-do and --b-do set"
    if outcome.failed:
        yield (
            f"not ok: {plural(outcome.failed.total(), 'sample')}; "
            "a block counts if the variant's other sample was ok"
        )
    for reason, count in outcome.failed.most_common(3):
        yield f"  {count} of them: {reason}"
    for name in outcome.unpaired:
        yield f"not compared: {name}"
    for key in outcome.damaged:
        yield f"damaged, left out: {key}"
