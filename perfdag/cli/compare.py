"""`perfdag compare`: two runs or selections, with a verdict for every series."""

import argparse
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdag.regress.comparison import Comparison, Row

SHOWN = 60
EPILOG = """examples:
  perfdag compare last~1 last
  perfdag compare 20261120T020000Z-1a2b3c4d 20261121T020000Z-5e6f7a8b
  perfdag compare 'suite=net month=2026-10' 'suite=net month=2026-11' --markdown
  perfdag compare baseline:v1.0 last --chart forest.svg
  perfdag compare baseline:acceptance last --store s3://bench/blue --store-b s3://bench/green

a run is its id, the beginning of it, `last`, `last~N` (N before) or `baseline:NAME`; a selection is conditions with suite=, month=,
since=, until= (days), run= (glob) and newest= (how many); verdicts: better, worse, no difference shown, inconclusive; points of which
one parameter was changed are compared with one another, and the change is named first
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    from perfdag.cli.options import add_store

    parser = sub.add_parser(
        "compare",
        help="two runs or selections: better, worse, no difference shown, inconclusive",
        description="Compare two runs or selections: environment and parameters first, then every series with its median, spread, "
        "effect, noise floor, smallest detectable effect and verdict. The noise floor comes from past runs of the suite (15 at least).",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("a", metavar="A", help="run or selection to compare against")
    parser.add_argument("b", metavar="B", help="run or selection in question")
    add_store(parser)
    parser.add_argument(
        "--store-b", metavar="ROOT", help="store of B, where it is another (two clusters)"
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="every series in the table, not the headline ones and verdicts only",
    )
    parser.add_argument(
        "--min-effect",
        metavar="SHARE",
        default=None,
        help="smallest effect worth a verdict (default: `checks` of B's suite, else 5%%)",
    )
    parser.add_argument(
        "--gate", action="store_true", help="exit 3 where a headline series is worse"
    )
    parser.add_argument("--chart", metavar="FILE", help="forest plot, .svg or .png")
    parser.add_argument(
        "--sizes",
        metavar="FILE",
        help="map of the ratios by message size (imb, rdma-*), .svg or .png",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the comparison as JSON on stdout")
    form.add_argument(
        "--markdown", action="store_true", help="the comparison as Markdown on stdout"
    )
    parser.set_defaults(run=run)


def complain(verb: str, error: object) -> int:
    """Say on stderr what is wrong with the input; returns exit code 2."""
    print(f"perfdag {verb}: {error}", file=sys.stderr)
    return 2


def run(args: argparse.Namespace) -> int:
    """Print the comparison; exit 2 where a side names no run, 3 with --gate where a headline is worse."""
    from perfdag.regress.acks import read_checks
    from perfdag.regress.comparison import compare_selections
    from perfdag.regress.selection import SelectionError, select
    from perfdag.regress.tuning import Tuning
    from perfdag.store.open import open_store
    from perfdag.suite.checks import Check

    try:
        checks = [Check(metric="*", min_effect=args.min_effect)] if args.min_effect else []
    except ValueError as error:
        return complain(
            "compare", f"--min-effect {args.min_effect}: {str(error).splitlines()[-2].strip()}"
        )
    try:
        store = open_store(args.store)
        other = open_store(args.store_b) if args.store_b else store
        a = select(store, args.a, args.suite)
        b = select(other, args.b, args.suite or (None if args.store_b else a.suite))
        made = compare_selections(
            (store, a), (other, b), Tuning([*read_checks(other, b.runs[-1], None), *checks])
        )
    except SelectionError as error:
        return complain("compare", error)
    if args.chart:
        write_chart(args.chart, forest(made))
    if args.sizes:
        write_chart(args.sizes, sizes(made))
    if args.json:
        import orjson

        print(orjson.dumps(as_data(made), option=orjson.OPT_INDENT_2).decode())
    elif args.markdown:
        print(markdown(made, args.all))
    else:
        show(made, args.all)
    worse = any(row.info.headline and row.verdict.word == "worse" for row in made.rows)
    return 3 if args.gate and worse else 0


def write_chart(path: str, fig: Any) -> None:
    """Write a figure as SVG or PNG by the file's ending."""
    from pathlib import Path

    from perfdag.charts.style import to_bytes

    svg, png = to_bytes(fig)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(png if target.suffix == ".png" else svg)


def forest(made: "Comparison") -> Any:
    """The forest plot of the headline series (of all, where none is one)."""
    from perfdag.charts.pages.compare import Effect, forest
    from perfdag.regress.comparison import count

    rows = [row for row in made.rows if row.info.headline] or made.rows
    drawn = [row for row in rows if not row.verdict.absolute]
    effects = [
        Effect(name(row), row.verdict.effect, row.verdict.low, row.verdict.high, row.verdict.word)
        for row in drawn
    ]
    title = f"{made.b.words} against {made.a.words}: {count(made.rows)}"
    return forest(
        effects,
        title,
        f"suite {made.b.suite}; line: 95 % interval by the noise between past runs; grey: not shown, hollow: inconclusive",
        len(rows) - len(drawn),
    )


def sizes(made: "Comparison") -> Any:
    """The map of ratios by message size, a row for each point and metric."""
    import orjson

    from perfdag.charts.pages.compare import Ratio, ratios

    cells = []
    for row in made.rows:
        coords = orjson.loads(row.info.coords or "{}")
        size = coords.pop("message_bytes", None)
        if size is None or row.verdict.absolute:
            continue
        stat = "" if row.info.stat in ("value", "mean") else row.info.stat
        rest = " ".join(f"{key}={value}" for key, value in coords.items())
        label = " ".join(filter(None, (row.info.entry, row.label, row.info.metric, stat, rest)))
        cells.append(Ratio(label, float(size), row.verdict.effect, row.verdict.word))
    cells.sort(key=lambda cell: (cell.row, cell.size))
    counts = Counter(cell.word for cell in cells)
    title = f"{made.b.words} against {made.a.words}: of {len(cells)} cells {counts['worse']} worse, {counts['better']} better"
    title += f", {counts['inconclusive']} inconclusive" if counts["inconclusive"] else ""
    return ratios(cells, title, f"suite {made.b.suite}")


def name(row: "Row") -> str:
    """Entry, what tells the point from others, metric."""
    return " ".join(filter(None, (row.info.entry, row.label, row.info.name)))


def cells(row: "Row") -> list[str]:
    """One row for people: series, A, B, effect, floor, smallest detectable effect, verdict."""
    from perfdag.regress.comparison import percent

    v, unit = row.verdict, row.info.unit
    sides = [
        with_spread(middle, band.low, band.high, unit)
        for middle, band in ((v.a, v.spread_a), (v.b, v.spread_b))
    ]
    verdict = v.word if v.word != "inconclusive" else f"{v.word}: {v.why}"
    if row.note:
        verdict += f" ({row.note})"
    return [
        name(row),
        *sides,
        percent(v.effect, v.absolute),
        percent(v.floor, v.absolute, sign=False),
        percent(v.detectable, v.absolute, sign=False),
        verdict,
    ]


def with_spread(middle: float, low: float, high: float, unit: str) -> str:
    """Median and spread, the unit once where it is the same: `9.96 (9.89 to 9.99) Gbit/s`."""
    from perfdag.units import short

    words = [short(each, unit).partition(" ") for each in (middle, low, high)]
    if len({word[2] for word in words}) == 1:
        return f"{words[0][0]} ({words[1][0]} to {words[2][0]}) {words[0][2]}".strip()
    return "{} ({} to {})".format(*("".join(word) for word in words))


HEADINGS = [
    "series",
    "A median (spread)",
    "B median (spread)",
    "B against A",
    "floor",
    "detectable",
    "verdict",
]


def chosen(made: "Comparison", everything: bool) -> list["Row"]:
    """Rows of the table: headline series and everything with a verdict, or all."""
    if everything:
        return made.rows
    rows = [
        row
        for row in made.rows
        if row.info.headline or row.verdict.word in ("better", "worse", "differs")
    ]
    return (rows or made.rows)[:SHOWN]


def notes(made: "Comparison") -> list[str]:
    """What stands around the table: counts, missing, new, failed, refused, damaged; nothing is skipped in silence."""
    from perfdag.regress.comparison import count

    said = [count(made.rows)]
    if made.simulated:
        said.append(
            f"simulated nodes in {' and '.join(made.simulated)}: figures of the control plane alone"
        )
    for title, lines in (
        ("only in A (missing in B)", made.only_a),
        ("only in B (new)", made.only_b),
        ("failed", made.failed),
        ("refused", made.refused),
        ("damaged, left out", made.damaged),
    ):
        if lines:
            more = f", and {len(lines) - 20} more (--json lists them)" if len(lines) > 20 else ""
            said.append(f"{title}: {'; '.join(lines[:20])}{more}")
    return said


def show(made: "Comparison", everything: bool) -> None:
    """The comparison as a table on a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 160)
    for letter, side in (("A", made.a), ("B", made.b)):
        runs = (
            side.runs[0]
            if len(side.runs) == 1
            else f"{len(side.runs)} runs, {side.runs[0]} to {side.runs[-1]}"
        )
        print(f"{letter}  {side.suite}  {runs}")
    for key, (before, after) in [*made.parameters.items(), *made.environment.items()]:
        print(f"differs  {key}: {before} -> {after}")
    if not made.environment:
        print("environment and tools are the same")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if 0 < i < 6 else "left", overflow="fold")
    styles = {"worse": "bold dark_orange", "better": "bold blue"}
    rows = chosen(made, everything)
    for row in rows:
        table.add_row(*(Text(each) for each in cells(row)), style=styles.get(row.verdict.word, ""))
    console.print(table)
    if len(rows) < len(made.rows):
        print(f"{len(made.rows) - len(rows)} more series without a verdict (--all shows them)")
    for line in notes(made):
        print(line)
    print(
        "spread: range of fewer than 6 values, else the 95 % interval of the median; floor: noise of one run between past runs;"
    )
    print("detectable: the effect found in nine of ten such comparisons")


def markdown(made: "Comparison", everything: bool) -> str:
    """The comparison as Markdown."""
    lines = [f"### {made.b.words} against {made.a.words} (suite {made.b.suite})", ""]
    lines += [
        f"- {key}: {before} -> {after}"
        for key, (before, after) in [*made.parameters.items(), *made.environment.items()]
    ]
    if not made.environment:
        lines.append("- environment and tools are the same")
    lines += ["", "| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    for row in chosen(made, everything):
        shown = [each.replace("|", "\\|") for each in cells(row)]
        if row.verdict.word in ("worse", "better"):
            shown[-1] = f"**{shown[-1]}**"
        lines.append("| " + " | ".join(shown) + " |")
    return "\n".join([*lines, "", *(f"- {line}" for line in notes(made))])


def as_data(made: "Comparison") -> dict[str, Any]:
    """The comparison as plain data; effects are relative (0.1 is +10 %) unless `absolute`, then in the unit."""
    from dataclasses import asdict

    rows = []
    for row in made.rows:
        rows.append(
            {**asdict(row.info), "label": row.label, "note": row.note, **asdict(row.verdict)}
        )
    return {
        "a": asdict(made.a),
        "b": asdict(made.b),
        "parameters": {key: list(pair) for key, pair in made.parameters.items()},
        "environment": {key: list(pair) for key, pair in made.environment.items()},
        "series": rows,
        "only_a": made.only_a,
        "only_b": made.only_b,
        "failed": made.failed,
        "refused": made.refused,
        "damaged": made.damaged,
        "simulated": made.simulated,
    }
