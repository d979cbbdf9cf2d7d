"""The outcome of `perfdag ab` in words: a table for a terminal, Markdown or JSON, and its chart."""

import argparse
import math
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdag.plan.ab import Duet
    from perfdag.regress.ab import Outcome, SeriesVerdict
    from perfdag.store.base import Store

HEADINGS = ["series", "A median", "B median", "B against A", "interval", "p", "verdict"]


def _headings(lines: "list[SeriesVerdict]") -> list[str]:
    limit = next((line.bound.limit for line in lines if line.bound), None)
    return HEADINGS if limit is None else [*HEADINGS, f"cost within {limit * 100:g} %"]


def _within(line: "SeriesVerdict") -> list[str]:
    """What B costs, its interval and whether that is within the limit."""
    bound = line.bound
    if bound is None:
        return ["-"]
    said = bound.word if bound.word != "inconclusive" else f"{bound.word}: {bound.why}"
    if math.isnan(bound.cost):
        return [said]
    cost, low, high = (
        f"{100 * each:+.1f} {'points' if bound.points else '%'}"
        for each in (bound.cost, bound.low, bound.high)
    )
    return [f"{cost} ({low} to {high}) {said}"]


def _cells(line: "SeriesVerdict") -> list[str]:
    from perfdag.regress.comparison import percent
    from perfdag.units import short

    r = line.judged.result
    name = " ".join(filter(None, (line.info.entry, line.label, line.info.name)))
    shown = line.judged.word in ("better", "worse", "no difference shown")
    band = f"{percent(r.interval.low, r.absolute)} to {percent(r.interval.high, r.absolute)}"
    verdict = line.judged.word if shown else f"{line.judged.word}: {line.judged.why}"
    return [
        name,
        short(r.a, line.info.unit),
        short(r.b, line.info.unit),
        percent(r.effect, r.absolute),
        band,
        f"{r.p:.2g}",
        verdict,
    ]


def tell(
    args: argparse.Namespace, store: "Store", duet: "Duet", made: "Outcome", failed: Counter[str]
) -> None:
    """Print the outcome in the form asked for, and keep it beside run A."""
    import orjson

    from perfdag.regress.ab import outcome_data

    lines = made.lines
    outcome = orjson.dumps(outcome_data(duet, made), option=orjson.OPT_INDENT_2)
    store.put(f"runs/{duet.a.run_id}/ab.json", outcome)
    if args.chart:
        from perfdag.cli.compare import write_chart

        write_chart(args.chart, _forest(duet, lines))
    if args.json:
        print(outcome.decode())
        return
    words = duet.a.options["words"]
    if args.markdown:
        print(f"### A: {words[0]}; B: {words[1]} ({duet.a.suite}, {len(duet.blocks)} blocks)\n")
        headings = _headings(lines)
        print("| " + " | ".join(headings) + " |\n|" + "---|" * len(headings))
        for line in lines:
            cells = [*_cells(line), *_within(line)][: len(headings)]
            print("| " + " | ".join(each.replace("|", "\\|") for each in cells) + " |")
    else:
        _table(lines, words)
    bands = {line.judged.result.interval.words() for line in lines}
    print(
        f"\n{len(duet.blocks)} blocks of ABBA or BAAB; interval: {', '.join(sorted(bands)) or '-'}; exact sign-flip test"
    )
    if failed:
        print(
            f"{failed.total()} samples were not ok; their blocks count where the other sample of the variant was"
        )
        for reason, count in failed.most_common(3):
            print(f"  {count} of them: {reason}")
    for each in made.unpaired:
        print(f"not compared: {each}")
    for key in made.damaged:
        print(f"damaged, left out: {key}")
    print(f"outcome {store.url(f'runs/{duet.a.run_id}/ab.json')}")


def _table(lines: "list[SeriesVerdict]", words: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    print(f"A  {words[0]}\nB  {words[1]}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    headings = _headings(lines)
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if 0 < i < 6 else "left", overflow="fold")
    styles = {"worse": "bold dark_orange", "better": "bold blue"}
    for line in lines:
        table.add_row(
            *(Text(each) for each in [*_cells(line), *_within(line)][: len(headings)]),
            style=styles.get(line.judged.word, ""),
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _forest(duet: "Duet", lines: "list[SeriesVerdict]") -> Any:
    from perfdag.charts.pages.compare import Effect, forest

    effects = [
        Effect(
            _cells(line)[0],
            line.judged.result.effect,
            line.judged.result.interval.low,
            line.judged.result.interval.high,
            line.judged.word,
        )
        for line in lines
        if not line.judged.result.absolute
    ]
    words = duet.a.options["words"]
    return forest(
        effects,
        f"{words[1]} against {words[0]}",
        f"{duet.a.suite}: {len(duet.blocks)} blocks side by side; line: interval of the median ratio",
        len(lines) - len(effects),
    )
