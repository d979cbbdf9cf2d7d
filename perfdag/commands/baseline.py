"""`perfdag baseline`: named baselines, such as a release or a site's acceptance."""

import argparse
from typing import Any

import numpy as np

from perfdag.analysis import selection
from perfdag.analysis.history import series_names
from perfdag.analysis.medians import read_run_medians
from perfdag.commands.options import (
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
from perfdag.signals import EXIT_OK
from perfdag.stats.robust import median, spread
from perfdag.store.open import open_store
from perfdag.units import plural, with_spread

EPILOG = """examples:
  perfdag baseline set v1.0 last --note 'release 1.0'
  perfdag baseline set acceptance 'suite=net month=2026-10' \\
      --store s3://bench/blue
  perfdag baseline show
  perfdag baseline show v1.0 --json

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
    text, name = "show all names, or the values of one", option("name", nargs="?", metavar="NAME")
    add_verb(actions, "show", show, text, "", name, JSON, STORE, SUITE, help=text)


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
    """Print the names, or the headline values of one baseline."""
    if args.name is not None:
        return _show_values(args)
    names = selection.baselines(open_store(args.store))
    if args.json:
        print_json(names)
        return EXIT_OK
    for name, suites in sorted(names.items()):
        for suite, baseline in sorted(suites.items()):
            runs = baseline["runs"] if isinstance(baseline["runs"], list) else []
            extent = f"{runs[0]} to {runs[-1]}" if len(runs) > 1 else "".join(runs)
            note = baseline.get("note") or ""
            print(f"{name}  {suite}  {plural(len(runs), 'run')}, {extent}  {note}".rstrip())
    if not names:
        print("no baselines; `perfdag baseline set NAME RUN` adds one")
    return EXIT_OK


def _show_values(args: argparse.Namespace) -> int:
    """Print the median and spread of each series over the runs of a baseline."""
    store = open_store(args.store)
    runs = selection.baseline(store, args.name, args.suite)
    everything = read_run_medians(store, runs.suite)
    medians = everything.select(lambda run: run.run_id in runs.runs)
    series = []
    for info, name, values, lows, highs in zip(
        medians.series, series_names(medians), medians.value, medians.low, medians.high, strict=True
    ):
        band = spread(values)
        low, high = (band.low, band.high) if band.n > 1 else (np.nanmin(lows), np.nanmax(highs))
        row: dict[str, Any] = {
            "series": name,
            "median": median(values),
            "low": float(low),
            "high": float(high),
        }
        row |= {"metric": info.metric, "unit": info.unit, "runs": band.n}
        if not info.canary:
            series.append(row | {"headline": info.headline})
    if args.json:
        head = {"name": args.name, "suite": runs.suite, "runs": runs.runs}
        print_json(head | {"series": series})
        return EXIT_OK
    print(f"{args.name}  {runs.suite}  {plural(len(runs.runs), 'run')}")
    for row in series:
        if row["headline"]:
            value = with_spread(row["median"], row["low"], row["high"], row["unit"], row["metric"])
            print(f"{row['series']}  {value}")
    for key in everything.damaged:
        print(f"damaged, left out: {key}")
    return EXIT_OK
