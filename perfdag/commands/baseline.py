"""`perfdag baseline`: named baselines, such as a release or a site's acceptance."""

import argparse

from perfdag.analysis import selection
from perfdag.commands.options import (
    EXIT_OK,
    JSON,
    STORE,
    SUITE,
    CommandError,
    Verbs,
    add_verb,
    option,
    print_json,
)
from perfdag.results.runs import RunStore
from perfdag.store.open import open_store
from perfdag.units import plural

EPILOG = """examples:
  perfdag baseline set v1.0 last --note 'release 1.0'
  perfdag baseline set acceptance 'suite=net month=2026-10' \\
      --store s3://bench/blue
  perfdag baseline show --json

`perfdag compare baseline:v1.0 last` compares a run with a baseline. The `checks` of a suite can
hold each run against one.
"""


def add_baseline(sub: Verbs) -> None:
    """Register the verb."""
    parser = add_verb(
        sub,
        "baseline",
        show,
        "Give runs a name to compare with, or show the names. "
        "They are stored in baselines.json of the store.",
        EPILOG,
    )
    actions = parser.add_subparsers(dest="action", metavar="set|show", required=True)
    text = "name a run or a selection"
    add_verb(
        actions,
        "set",
        set_name,
        text,
        "",
        option("name", metavar="NAME"),
        option("runs", metavar="RUN", help="run or selection, as `perfdag compare` takes it"),
        option("--note", default="", help="what the baseline is for"),
        STORE,
        SUITE,
        help=text,
    )
    text = "show all names"
    add_verb(actions, "show", show, text, "", JSON, STORE, help=text)


def set_name(args: argparse.Namespace) -> int:
    """Give the selected runs a name. Raises CommandError, SelectionError, StoreError."""
    if not args.name.strip():
        raise CommandError("the name is empty; write `perfdag baseline set v1.0 RUN`")
    store = open_store(args.store)
    runs = selection.select(RunStore(store), args.runs, args.suite)
    selection.set_baseline(store, args.name, runs, args.note)
    print(f"baseline {args.name}: {plural(len(runs.runs), 'run')} of {runs.suite}")
    return EXIT_OK


def show(args: argparse.Namespace) -> int:
    """Print the names with their runs. Raises SelectionError, StoreError."""
    names = selection.baselines(open_store(args.store))
    if args.json:
        print_json(
            {
                name: {each: of.model_dump() for each, of in suites.items()}
                for name, suites in names.items()
            }
        )
        return EXIT_OK
    for name, suites in sorted(names.items()):
        for suite, baseline in sorted(suites.items()):
            runs = baseline.runs
            extent = f"{runs[0]} to {runs[-1]}" if len(runs) > 1 else "".join(runs)
            print(
                f"{name}  {suite}  {plural(len(runs), 'run')}, {extent}  {baseline.note}".rstrip()
            )
    if not names:
        print("no baselines; `perfdag baseline set NAME RUN` adds one")
    return EXIT_OK
