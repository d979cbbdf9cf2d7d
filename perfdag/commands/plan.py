"""`perfdag plan`: show the points, order, shapes and expected time of a suite."""

import argparse
import contextlib
import logging
from collections.abc import Sequence

from perfdag.commands.options import (
    EXIT_OK,
    JSON,
    ONLY,
    SET,
    CommandError,
    Verbs,
    add_verb,
    option,
)
from perfdag.commands.terminal import text_table
from perfdag.plan.plan import Plan, make_plan, place_hosts
from perfdag.results.runs import ANY, with_learned_times
from perfdag.shape import Shape, canonical
from perfdag.steps.pods.plan import kinds_of
from perfdag.store.base import StoreError
from perfdag.store.s3 import open_store
from perfdag.suite.document import BadDocument
from perfdag.suite.load import load_suite
from perfdag.units import plural, short_seconds

logger = logging.getLogger(__name__)


EPILOG = """examples:
  perfdag plan suites/quick.yaml
  perfdag plan suites/quick.yaml --json
  perfdag plan suites/quick.yaml --only 'fio*'
  perfdag plan --schema
"""


def add_plan(sub: Verbs) -> None:
    """Register the verb."""
    add_verb(
        sub,
        "plan",
        run,
        "Check a suite and show its points, shapes, batches, hosts and expected time. "
        "A bad suite is refused with all its errors.",
        EPILOG,
        option("suite", nargs="?", metavar="SUITE", help="suite file"),
        SET,
        ONLY,
        JSON,
        option(
            "--schema",
            action="store_true",
            help="print the JSON schema of suite files, for editors",
        ),
    )


def run(args: argparse.Namespace) -> int:
    """Print the plan or the schema."""
    if args.schema:
        import orjson

        from perfdag.suite.model import json_schema

        options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS
        print(orjson.dumps(json_schema(), option=options).decode())
        return EXIT_OK
    if args.suite is None:
        raise CommandError("name a suite file, or --schema")

    plan, notes = plan_suite(args.suite, args.settings, args.only)
    print(plan.dump().decode() if args.json else plan_text(plan))
    for note in notes:
        logger.info(f"note: {note}")
    return EXIT_OK


MAX_POINTS = 40
"""Points that the table shows; JSON has all of them."""


def plan_suite(suite: str, settings: Sequence[str], only: Sequence[str]) -> tuple[Plan, list[str]]:
    """Return the plan of a suite file and the notes on it. Raises BadDocument."""
    loaded = load_suite(suite, settings)
    plan = make_plan(loaded, only=only)
    with contextlib.suppress(StoreError):
        store = open_store(loaded.suite.store, patience=1.0)
        plan = with_learned_times(store, plan, ANY)
    try:
        kinds_of(plan)
    except BadDocument as error:  # `submit` and `render` would refuse it
        return plan, [f"a cluster does not take it: {each.text}" for each in error.problems]
    return plan, []


def plan_text(plan: Plan) -> str:
    """Return the first points of a plan as a table, then its size, shapes, pairs and time."""
    headings = ("point", "entry", "shape", "repetitions", "a sample", "what varies")
    rows = [
        (
            point.id,
            point.entry,
            str(point.shape),
            f"{point.repetitions}" + (f" to {point.until.max_repetitions}" if point.until else ""),
            short_seconds(point.seconds),
            point.label,
        )
        for point in plan.points[:MAX_POINTS]
    ]
    lines = [text_table(headings, rows, right=(2, 3, 4))]
    if (more := len(plan.points) - MAX_POINTS) > 0:
        lines.append(f"... and {more:,} more (--json shows all)")
    hosts = max((shape.hosts.count for shape in plan.shapes), default=1)
    merged = f" ({plural(plan.merged, 'equal one')} merged)" if plan.merged else ""
    lines.append(
        f"\n{plural(len(plan.points), 'point')}{merged}, {plural(len(plan.order), 'sample')}, "
        f"{plural(len(plan.shapes), 'shape')}, {plural(len(plan.batches), 'batch')} on a cluster, "
        f"at most {plural(hosts, 'host')} at once"
    )
    shapes = enumerate(zip(plan.shapes, place_hosts(plan).shapes, strict=True))
    lines += [f"shape {number}: {_shape(*both)}" for number, both in shapes]
    seconds = short_seconds(plan.seconds())
    lines.append(f"expected {seconds}; each round is shuffled, from seed {plan.seed}")
    return "\n".join(lines)


def _shape(shape: Shape, on_cluster: Shape) -> str:
    """Return a shape as text, with the default placement where the suite sets none."""
    data = shape.data()
    texts = (value if isinstance(value, str) else canonical(value) for value in data.values())
    text = ", ".join(f"{key} {text}" for key, text in zip(data, texts, strict=True)) or "plain"
    if shape == on_cluster:
        return text
    return f"{text}; placement on a cluster: {on_cluster.hosts.placement}"
