"""The past of a run: the charts and the page of its suite, and its change since the run before."""

from pathlib import Path

from matplotlib.figure import Figure

from perfdag.charts.files import to_bytes
from perfdag.charts.pages import history as charts
from perfdag.charts.pages.history_page import page
from perfdag.charts.pages.tiles import Change, Previous
from perfdag.plan.plan import Plan
from perfdag.regress.acks import unattended_rules
from perfdag.regress.changes import percent
from perfdag.regress.comparison import compare_selections
from perfdag.regress.history import Series, overview, series_of
from perfdag.regress.nodes import NEWEST, noise_report, recent_rows
from perfdag.regress.rollup import read_run_medians
from perfdag.regress.run_medians import RunMedians
from perfdag.regress.selection import Selection, trigger
from perfdag.regress.tuning import Tuning
from perfdag.results.result_files import stored_runs
from perfdag.results.runs import PARTIAL
from perfdag.stats.variability import Variability
from perfdag.store.base import Store
from perfdag.suite.checks import checks_of
from perfdag.units import plural

NAME = "history.html"
FEWEST_RUNS = 3
MOST_SERIES = 120
"""Series on the page. `perfdag history --chart` draws more."""


def past(store: Store, plan: Plan) -> RunMedians | None:
    """Return the runs of the suite on this run's cluster, or None below FEWEST_RUNS.

    Raises StoreError.
    """
    medians = read_run_medians(store, plan.suite)
    runs = medians.on_cluster(medians.cluster_of(plan.run_id))
    return runs if len(runs.runs) >= FEWEST_RUNS else None


def write_page(store: Store, plan: Plan, medians: RunMedians) -> None:
    """Write history.html of a run over the runs that `past` returned. Raises StoreError."""
    rules = unattended_rules(store, checks_of(plan.suite_text))
    tuning = Tuning(rules.checks, plan.where.get("cluster"))
    series = worth_drawing(series_of(medians, tuning, rules.accepted))
    left = len(series) - MOST_SERIES
    figures = draw(
        medians, series[:MOST_SERIES], noise_report(medians, recent_rows(store, medians))
    )
    more = f"{left} more series: perfdag history {plan.suite} --chart DIR" if left > 0 else ""
    store.put(f"runs/{plan.run_id}/{NAME}", page(medians, series, figures, more).encode())


def write_charts(
    folder: Path,
    medians: RunMedians,
    series: list[Series],
    noise: list[tuple[str, Variability]],
) -> int:
    """Write the charts as SVG and PNG. Return how many there are. Raises OSError."""
    figures = draw(medians, worth_drawing(series), noise)
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        svg, png = to_bytes(figure)
        (folder / f"{name}.svg").write_bytes(svg)
        (folder / f"{name}.png").write_bytes(png)
    return len(figures)


def worth_drawing(all_series: list[Series]) -> list[Series]:
    """Return the headline series and those that changed, or all if there are none of these.

    The series with the newest change comes first.
    """
    notable = [series for series in all_series if series.info.headline or series.findings]
    return sorted(notable or all_series, key=_newest_change_first)


def _newest_change_first(series: Series) -> int:
    return -series.findings[-1].index if series.findings else 1


def draw(
    medians: RunMedians, all_series: list[Series], noise: list[tuple[str, Variability]]
) -> dict[str, Figure]:
    """Return small multiples, the overview of the newest runs and the noise, by file name."""
    changed = sum(bool(series.findings) for series in all_series)
    title = (
        f"{medians.suite}: {changed} of {len(all_series)} series changed level"
        if changed
        else f"{medians.suite}: no change of level in {len(all_series)} series"
    )
    figures = {
        f"history-{i}": figure
        for i, figure in enumerate(charts.pages(all_series, medians.runs, title), 1)
    }
    recent = medians.runs[-NEWEST:]
    figures["overview"] = charts.overview(
        [series.name for series in all_series],
        [series.info.better for series in all_series],
        overview(all_series),
        recent,
        f"{medians.suite}: the last {plural(len(recent), 'run')}",
    )
    if noise:
        figures["noise"] = charts.noise(noise, f"{medians.suite}: where the noise is")
    return figures


def changes_since_previous(store: Store, plan: Plan) -> Previous | None:
    """Return the changes of the headline series since the whole run before, or None without one.

    Raises StoreError, SelectionError.
    """
    if plan.trigger in PARTIAL:
        return None
    older = [run for run, _ in stored_runs(store, plan.suite) if run < plan.run_id]
    runs = (run for run in reversed(older) if trigger(store, plan.suite, run) not in PARTIAL)
    run = next(runs, None)
    if run is None:
        return None
    rules = unattended_rules(store, checks_of(plan.suite_text))
    sides = [Selection(name, plan.suite, (name,)) for name in (run, plan.run_id)]
    tuning = Tuning(rules.checks, plan.where.get("cluster"))
    comparison = compare_selections((store, sides[0]), (store, sides[1]), tuning, everything=False)
    changes = {
        (row.info.point, row.info.name): Change(
            percent(row.verdict.effect, row.verdict.absolute), row.verdict.word
        )
        for row in comparison.rows
    }
    return Previous(run, changes)
