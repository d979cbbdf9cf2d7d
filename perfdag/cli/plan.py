"""`perfdag plan`: show the points, order, shapes and expected time of a suite."""

import argparse

from perfdag.app.errors import CommandError
from perfdag.cli.options import add_suite_options, log
from perfdag.signals import EXIT_OK

EPILOG = """examples:
  perfdag plan suites/quick.yaml
  perfdag plan suites/quick.yaml --json
  perfdag plan suites/quick.yaml --only 'fio*'
  perfdag plan --schema
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "plan",
        description="Check a suite and show its points, shapes, batches, hosts and expected time. "
        "A bad suite is refused with all its errors.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suite", nargs="?", metavar="SUITE", help="suite file")
    add_suite_options(parser)
    parser.add_argument("--json", action="store_true", help="print the whole plan as JSON")
    parser.add_argument(
        "--schema", action="store_true", help="print the JSON schema of suite files, for editors"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the plan or the schema."""
    if args.schema:
        import orjson

        from perfdag.suite.json_schema import json_schema

        options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS
        print(orjson.dumps(json_schema(), option=options).decode())
        return EXIT_OK
    if args.suite is None:
        raise CommandError("name a suite file, or --schema")
    from perfdag.app.plan_text import plan_suite, plan_text

    plan, notes = plan_suite(args.suite, args.settings, args.only)
    print(plan.dump().decode() if args.json else plan_text(plan))
    for note in notes:
        log(f"note: {note}")
    return EXIT_OK
