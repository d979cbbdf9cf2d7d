"""`perfdag baseline`: named baselines, such as a release or a site's acceptance."""

import argparse

from perfdag.cli.options import add_store, print_json

EPILOG = """examples:
  perfdag baseline set v1.0 last --note 'release 1.0'
  perfdag baseline set acceptance 'suite=net month=2026-10' \\
      --store s3://bench/blue
  perfdag baseline show
  perfdag baseline show v1.0 --json

`perfdag compare baseline:v1.0 last` compares a run with a baseline. The `checks` of a suite can
hold each run against one.
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "baseline",
        description="Give runs a name to compare with, or show the names. "
        "They are stored in baselines.json of the store.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="set|show", required=True)
    set_parser = actions.add_parser("set", help="name a run or a selection")
    set_parser.add_argument("name", metavar="NAME")
    set_parser.add_argument(
        "runs", metavar="RUN", help="run or selection, as `perfdag compare` takes it"
    )
    set_parser.add_argument("--note", default="", help="what the baseline is for")
    add_store(set_parser)
    set_parser.set_defaults(run=set_name)
    show_parser = actions.add_parser("show", help="show all names, or the values of one")
    show_parser.add_argument("name", nargs="?", metavar="NAME")
    show_parser.add_argument("--json", action="store_true", help="print JSON")
    add_store(show_parser)
    show_parser.set_defaults(run=show)


def set_name(args: argparse.Namespace) -> int:
    """Give the selected runs a name."""
    from perfdag.app.baseline import set_baseline

    print(set_baseline(args.store, args.name, args.runs, args.suite, args.note))
    return 0


def show(args: argparse.Namespace) -> int:
    """Print the names, or the headline values of one baseline."""
    from perfdag.app import baseline

    if args.name is None:
        names = baseline.list_baselines(args.store)
        print_json(names) if args.json else print(baseline.names_text(names))
    else:
        values = baseline.read_baseline(args.store, args.name, args.suite)
        print_json(values.data()) if args.json else print(values.text())
    return 0
