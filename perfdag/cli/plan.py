"""`perfdag plan`: what a suite would measure, in which order, on what, and how long it takes."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdag.plan.plan import Plan

SHOWN = 40
EPILOG = """examples:
  perfdag plan suites/quick.yaml
  perfdag plan suites/quick.yaml --json
  perfdag plan suites/quick.yaml --only 'fio*'
  perfdag plan --schema
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    from perfdag.cli.run import add_suite_options

    parser = sub.add_parser(
        "plan",
        help="points, order, shapes, batches and expected time of a suite",
        description="Read a suite, refuse it with every error it has, or show its points, shapes, batches, hosts needed and expected time.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suite", nargs="?", metavar="SUITE", help="suite file")
    add_suite_options(parser)
    parser.add_argument("--json", action="store_true", help="the whole plan as JSON on stdout")
    parser.add_argument(
        "--schema", action="store_true", help="the JSON schema of suite files, for editors"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the plan or the schema."""
    import orjson

    from perfdag.plan.plan import make_plan
    from perfdag.suite import load

    if args.schema:
        from perfdag.suite.json_schema import json_schema

        print(
            orjson.dumps(json_schema(), option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode()
        )
        return 0
    if args.suite is None:
        print("perfdag plan: name a suite file, or --schema", file=sys.stderr)
        return 2
    loaded = load.load(args.suite, args.settings)
    plan = make_plan(loaded, only=args.only)
    show(plan, as_json=args.json)
    for note in [*loaded.notes, *too_large(plan)]:
        print(f"note: {note}", file=sys.stderr)
    return 0


def too_large(plan: "Plan") -> list[str]:
    """Why `submit` and `render` would refuse a plan that one machine can measure, a sentence each."""
    from perfdag.steps.runner.limits import check_size
    from perfdag.suite.yaml_document import BadDocument

    try:
        check_size(plan)
    except BadDocument as error:
        return [f"a cluster does not take it: {problem.text}" for problem in error.problems]
    return []


def show(plan: "Plan", as_json: bool = False) -> None:
    """Print a plan for people or for programs."""
    if as_json:
        sys.stdout.write(plan.dump().decode() + "\n")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from perfdag.units import short_seconds

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("point", "entry", "what varies", "shape", "repetitions", "a sample"):
        table.add_column(
            name,
            justify="right" if name in ("shape", "repetitions", "a sample") else "left",
            overflow="fold",
        )
    for point in plan.points[:SHOWN]:
        times = (
            f"{point.repetitions} to {point.until.max_repetitions}"
            if point.until
            else str(point.repetitions)
        )
        cells = (
            point.id,
            point.entry,
            point.label,
            str(point.shape),
            times,
            short_seconds(point.seconds),
        )
        table.add_row(*(Text(cell) for cell in cells))
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    if len(plan.points) > SHOWN:
        print(f"... and {len(plan.points) - SHOWN:,} more (--json shows all)")
    print(f"\n{summary(plan)}")
    for number, shape in enumerate(plan.shapes):
        print(f"shape {number}: {_shape(shape)}")
    for words in pairs(plan):
        print(words)
    print(
        f"expected {short_seconds(plan.seconds())}; order shuffled round by round from seed {plan.seed}"
    )


def summary(plan: "Plan") -> str:
    """Points, samples, batches and the most hosts at once, in a sentence."""
    hosts = max((shape.get("hosts", {}).get("count", 1) for shape in plan.shapes), default=1)
    merged = f" ({plan.merged} equal ones merged)" if plan.merged else ""
    return (
        f"{len(plan.points):,} points{merged}, {len(plan.order):,} samples, {len(plan.shapes)} shapes, "
        f"{len(plan.batches):,} batches on a cluster, at most {hosts} hosts at once"
    )


def pairs(plan: "Plan") -> list[str]:
    """A sentence a question of pairs: how many, in how many rounds, how many at once, how many hours."""
    from perfdag.plan.order import concurrent_groups

    asked: dict[str, list[int]] = {}
    for position, (index, _) in enumerate(plan.order):
        pair = plan.points[index].pair
        if pair is not None:
            asked.setdefault(pair.of, []).append(position)
    said = []
    for positions in asked.values():
        points = {plan.order[position][0] for position in positions}
        first = plan.points[min(points)]
        found = [pair for index in points if (pair := plan.points[index].pair) is not None]
        hosts = plan.shapes[first.shape]["hosts"]["count"]
        hours = (
            sum(
                plan.group_seconds(group)
                for group in concurrent_groups(plan.points, plan.order, positions)
            )
            / 3600
        )
        at_once = (
            "one after the other"
            if found[0].parallel == 1
            else f"{found[0].parallel} at once (concurrent)"
        )
        rounds = len({pair.round for pair in found})
        said.append(
            f"{first.entry}: {len(points):,} pairs of {hosts} hosts in {rounds} rounds of disjoint pairs, {at_once}, expected {hours:.2f} h"
        )
    return said


def _shape(shape: dict[str, Any]) -> str:
    from perfdag.digest import canonical

    return (
        ", ".join(
            f"{key} {value if isinstance(value, str) else canonical(value)}"
            for key, value in shape.items()
        )
        or "plain"
    )
