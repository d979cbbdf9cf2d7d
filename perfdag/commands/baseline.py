"""`perfdag baseline`: named baselines, such as a release or a site's acceptance."""

import argparse
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from perfdag.analysis import selection
from perfdag.analysis.history import series_names
from perfdag.analysis.medians import COLUMNS, medians_of_rows
from perfdag.analysis.selection import Selection
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
from perfdag.results.schema import load_rows
from perfdag.stats.robust import median, spread
from perfdag.store.base import open_store
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
    """Give the selected runs a name."""
    print(set_baseline(args.store, args.name, args.runs, args.suite, args.note))
    return 0


def show(args: argparse.Namespace) -> int:
    """Print the names, or the headline values of one baseline."""
    if args.name is None:
        names = list_baselines(args.store)
        print_json(names) if args.json else print(names_text(names))
    else:
        values = read_baseline(args.store, args.name, args.suite)
        print_json(values.data()) if args.json else print(values.text())
    return 0


@dataclass(frozen=True)
class BaselineSeries:
    """The median and spread of a series over the runs of a baseline, in `unit`."""

    series: str
    median: float
    low: float
    high: float
    unit: str
    runs: int
    headline: bool


@dataclass(frozen=True)
class BaselineValues:
    """The series of a baseline, and the files that could not be read."""

    name: str
    runs: Selection
    series: list[BaselineSeries]
    damaged: list[str]

    def data(self) -> dict[str, Any]:
        """Return the values as plain data."""
        return {
            "name": self.name,
            "suite": self.runs.suite,
            "runs": self.runs.runs,
            "series": [asdict(series) for series in self.series],
        }

    def text(self) -> str:
        """Return the headline values as text."""
        lines = [f"{self.name}  {self.runs.suite}  {plural(len(self.runs.runs), 'run')}"]
        lines += [
            f"{row.series}  {with_spread(row.median, row.low, row.high, row.unit)}"
            for row in self.series
            if row.headline
        ]
        return "\n".join([*lines, *(f"damaged, left out: {key}" for key in self.damaged)])


def set_baseline(root: str | None, name: str, selector: str, suite: str | None, note: str) -> str:
    """Name the runs that `selector` selects. Raises CommandError, SelectionError, StoreError."""
    if not name.strip():
        raise CommandError("the name is empty; write `perfdag baseline set v1.0 RUN`")
    store = open_store(root)
    runs = selection.select(store, selector, suite)
    selection.set_baseline(store, name, runs, note)
    return f"baseline {name}: {plural(len(runs.runs), 'run')} of {runs.suite}"


def list_baselines(root: str | None) -> dict[str, Any]:
    """Return the baselines of a store by name and suite. Raises SelectionError, StoreError."""
    return selection.baselines(open_store(root))


def names_text(baselines: dict[str, Any]) -> str:
    """Return a line for each name and suite."""
    lines = []
    for name, suites in sorted(baselines.items()):
        for suite, baseline in sorted(suites.items()):
            runs = baseline["runs"] if isinstance(baseline["runs"], list) else []
            extent = f"{runs[0]} to {runs[-1]}" if len(runs) > 1 else "".join(runs)
            note = baseline.get("note") or ""
            lines.append(f"{name}  {suite}  {plural(len(runs), 'run')}, {extent}  {note}".rstrip())
    return "\n".join(lines) or "no baselines; `perfdag baseline set NAME RUN` adds one"


def read_baseline(root: str | None, name: str, suite: str | None) -> BaselineValues:
    """Return the values of the runs of a baseline. Raises SelectionError, StoreError."""
    store, damaged = open_store(root), list[str]()
    runs = selection.baseline(store, name, suite)
    rows = load_rows(
        store, suites=[runs.suite], runs=list(runs.runs), columns=list(COLUMNS), damaged=damaged
    )
    medians = medians_of_rows(rows, runs.suite)
    series = []
    for i, label in enumerate(series_names(medians)):
        info, values = medians.series[i], medians.value[i]
        if info.canary:
            continue
        band = spread(values)
        low, high = band.low, band.high
        if np.isfinite(values).sum() <= 1:  # one run: its own spread
            low, high = float(medians.low[i].min()), float(medians.high[i].max())
        series.append(
            BaselineSeries(label, median(values), low, high, info.unit, band.n, info.headline)
        )
    return BaselineValues(name, runs, series, damaged)
