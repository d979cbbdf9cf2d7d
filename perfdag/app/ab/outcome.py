"""The outcome of `perfdag ab`: a verdict for each series, as text, Markdown or plain data."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from perfdag.app.terminal.text_table import HIGHLIGHTS, fitted, text_table
from perfdag.plan.ab import Duet
from perfdag.regress.ab import Outcome, SeriesVerdict, analyse, outcome_data
from perfdag.regress.publish import markdown_table
from perfdag.regress.tuning import Tuning
from perfdag.regress.verdict import percent
from perfdag.results.schema import load_rows
from perfdag.signals import EXIT_FAILED, EXIT_GATE, EXIT_OK
from perfdag.store.base import Store
from perfdag.suite.checks import checks_of
from perfdag.units import plural, short

HEADINGS = ["series", "A median", "B median", "B against A", "interval", "p", "verdict"]


@dataclass(frozen=True)
class AbResult:
    """The compared variants. `failed` counts samples that were not ok by their reason."""

    duet: Duet
    outcome: Outcome
    failed: Counter[str]
    url: str

    @property
    def exit_code(self) -> int:
        """3 if a headline misses the limit or has no values, 1 if a sample failed or none is ok."""
        bounds = {line.bound.word for line in self.outcome.lines if line.bound}
        if "within" in self.duet.a.options and (self.outcome.absent or bounds != {"passes"}):
            return EXIT_GATE
        return EXIT_FAILED if self.failed or not self.outcome.lines else EXIT_OK

    def data(self) -> dict[str, Any]:
        """Return the outcome as plain data."""
        return outcome_data(self.duet, self.outcome)


def conclude(store: Store, duet: Duet, *, everything: bool = False) -> AbResult:
    """Compare the collected variants and store the outcome beside run A. Raises StoreError."""
    rows = load_rows(
        store,
        suites=[duet.a.suite],
        runs=[duet.a.run_id, duet.b.run_id],
        columns=["run_id", "point", "repetition", "phase", "status", "error"],
    )
    failed = {
        (row["run_id"], row["point"], row["repetition"]): row["error"] or row["status"]
        for row in rows.to_pylist()
        if row["phase"] == "measure" and row["status"] not in ("ok", "skipped")
    }
    tuning = Tuning(checks_of(duet.a.suite_text), duet.a.where.get("cluster"))
    outcome = analyse(store, duet, tuning, everything=everything)
    key = f"runs/{duet.a.run_id}/ab.json"
    result = AbResult(duet, outcome, Counter(failed.values()), store.url(key))
    store.put(key, orjson.dumps(result.data(), option=orjson.OPT_INDENT_2))
    return result


def text(result: AbResult, *, markdown: bool = False) -> str:
    """Return the outcome as a table for a terminal or in Markdown, with notes below it."""
    duet, lines = result.duet, result.outcome.lines
    a, b = duet.a.options["words"]
    limit = next((line.bound.limit for line in lines if line.bound), None)
    headings = HEADINGS if limit is None else [*HEADINGS, f"cost within {limit * 100:g} %"]
    rows = [[*_cells(line), *([] if limit is None else [_cost(line)])] for line in lines]
    if markdown:
        head = f"### A: {a}; B: {b} ({duet.a.suite}, {plural(len(duet.blocks), 'block')})\n"
        table = [head, *markdown_table(headings, rows)]
    else:
        styles = [HIGHLIGHTS.get(line.judged.word, "") for line in lines]
        table = [f"A  {a}\nB  {b}", text_table(headings, rows, right=range(1, 6), styles=styles)]
    notes = list(_notes(result))
    return "\n".join([*table, *(notes if markdown else map(fitted, notes))])


def series_name(line: SeriesVerdict) -> str:
    """Return the entry, the label of the point and the metric of a series."""
    return " ".join(filter(None, (line.info.entry, line.label, line.info.name)))


def _cells(line: SeriesVerdict) -> list[str]:
    """Return the cells of a series, as HEADINGS names them."""
    paired, word = line.judged.result, line.judged.word
    low, high = (
        percent(end, paired.absolute) for end in (paired.interval.low, paired.interval.high)
    )
    clear = word in ("better", "worse", "same")
    return [
        series_name(line),
        short(paired.a, line.info.unit),
        short(paired.b, line.info.unit),
        percent(paired.effect, paired.absolute),
        f"{low} to {high}",
        f"{paired.p:.2g}",
        word if clear else f"{word}: {line.judged.why}",
    ]


def _cost(line: SeriesVerdict) -> str:
    """Return what B costs, the interval of the cost, and whether it is within the limit."""
    bound = line.bound
    if bound is None:
        return "-"
    word = bound.word if bound.word != "unclear" else f"{bound.word}: {bound.why}"
    if math.isnan(bound.cost):
        return word
    unit = "points" if bound.points else "%"
    cost, low, high = (f"{100 * v:+.1f} {unit}" for v in (bound.cost, bound.low, bound.high))
    return f"{cost} ({low} to {high}) {word}"


def _notes(result: AbResult) -> Iterator[str]:
    """Yield the method, failed samples, series without a counterpart, and the stored file."""
    bands = sorted({line.judged.result.interval.text() for line in result.outcome.lines})
    blocks = f"{plural(len(result.duet.blocks), 'block')} of ABBA or BAAB"
    yield ""
    yield f"{blocks}; interval: {', '.join(bands) or '-'}; exact sign-flip test"
    if result.failed:
        yield (
            f"not ok: {plural(result.failed.total(), 'sample')}; "
            "a block counts if the variant's other sample was ok"
        )
    for reason, count in result.failed.most_common(3):
        yield f"  {count} of them: {reason}"
    for name in result.outcome.unpaired:
        yield f"not compared: {name}"
    for key in result.outcome.damaged:
        yield f"damaged, left out: {key}"
    yield f"outcome {result.url}"
