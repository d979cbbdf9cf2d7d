"""The history of a suite as one page beside the report of its newest run."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from perfdag.plan.plan import Plan
    from perfdag.regress.history import Series
    from perfdag.regress.run_medians import RunMedians
    from perfdag.stats.variability import Variability
    from perfdag.store.base import Store

NAME = "history.html"
FEWEST_RUNS = 3
MOST_SERIES = 120
"""Series that are drawn for the page; more make it longer than anybody reads, and `perfdag history` draws them."""


def past(store: "Store", plan: "Plan") -> "RunMedians | None":
    """The runs of the suite on this run's cluster; None below three runs, which are no history. Raises StoreError."""
    from perfdag.regress.rollup import read_run_medians

    found = read_run_medians(store, plan.suite)
    cluster = next((run.cluster for run in found.runs if run.run_id == plan.run_id), None)
    shown = found.keep([i for i, run in enumerate(found.runs) if run.cluster == cluster])
    return shown if len(shown.runs) >= FEWEST_RUNS else None


def write_page(store: "Store", plan: "Plan", shown: "RunMedians") -> None:
    """Write runs/<run>/history.html over the runs that `past` gave. Raises StoreError."""
    from perfdag.charts.pages.history_page import page
    from perfdag.regress.acks import unattended_rules
    from perfdag.regress.history import series_of
    from perfdag.regress.nodes import noise_report, recent_rows
    from perfdag.regress.tuning import Tuning
    from perfdag.suite.checks import checks_of

    rules = unattended_rules(store, checks_of(plan.suite_text))
    series = series_of(shown, Tuning(rules.checks), rules.accepted)
    chosen = worth_drawing(series)
    left = len(chosen) - MOST_SERIES
    figures = draw(shown, chosen[:MOST_SERIES], noise_report(shown, recent_rows(store, shown)))
    more = f"{left} more series: perfdag history {plan.suite} --chart DIR" if left > 0 else ""
    store.put(f"runs/{plan.run_id}/{NAME}", page(shown, chosen, figures, more).encode())


def worth_drawing(series: "list[Series]") -> "list[Series]":
    """Headline series and those that changed, what changed last first; all, where there is neither."""
    chosen = [each for each in series if each.info.headline or each.findings] or list(series)
    return sorted(chosen, key=lambda each: -each.findings[-1].index if each.findings else 1)


def draw(
    medians: "RunMedians", shown: "list[Series]", noise: "list[tuple[str, Variability]]"
) -> "dict[str, Figure]":
    """Small multiples, the overview of the newest runs and where the noise is, by file name."""
    from perfdag.charts.pages import history as charts
    from perfdag.regress.history import overview
    from perfdag.regress.nodes import NEWEST

    changed = sum(bool(each.findings) for each in shown)
    title = (
        f"{medians.suite}: {changed} of {len(shown)} series changed level"
        if changed
        else f"{medians.suite}: no change of level in {len(shown)} series"
    )
    figures = {
        f"history-{i}": fig for i, fig in enumerate(charts.pages(shown, medians.runs, title), 1)
    }
    recent = medians.runs[-NEWEST:]
    figures["overview"] = charts.overview(
        [each.name for each in shown],
        [each.info.better for each in shown],
        overview(shown),
        recent,
        f"{medians.suite}: the last {len(recent)} runs",
    )
    if noise:
        figures["noise"] = charts.noise(noise, f"{medians.suite}: where the noise is")
    return figures
