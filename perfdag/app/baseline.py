"""Name runs as a baseline, and show the values of one."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from perfdag.analysis import selection
from perfdag.analysis.history import series_names
from perfdag.analysis.medians import COLUMNS, medians_of_rows
from perfdag.analysis.selection import Selection
from perfdag.app.errors import CommandError
from perfdag.results.schema import load_rows
from perfdag.stats.robust import median, spread
from perfdag.store.open import open_store
from perfdag.units import plural, with_spread


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
