"""Read the history of a suite: its series, changes, slow nodes, noise and failures."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from fnmatch import fnmatchcase
from typing import Any

from perfdag.analysis.gate import read_acks, read_checks
from perfdag.analysis.history import Failure, Series, Step, failures, object_failures, series_of
from perfdag.analysis.medians import RunMedians, read_run_medians
from perfdag.analysis.nodes import (
    NodeOutlier,
    node_outliers,
    noise_report,
    recent_rows,
    runs_for_nodes,
)
from perfdag.analysis.verdict import Tuning
from perfdag.app.errors import CommandError
from perfdag.results.samples import day_of, suites
from perfdag.results.schema import explain_unreadable
from perfdag.stats.robust import Variability
from perfdag.store.base import Store
from perfdag.store.open import open_store
from perfdag.suite.document import choices
from perfdag.units import plural


@dataclass(frozen=True)
class RunFilter:
    """Which runs of a suite to use: from a day (YYYY-MM-DD) on, the newest, of one cluster.

    The default cluster is that of the newest run.
    """

    since: str | None = None
    newest: int | None = None
    cluster: str | None = None


@dataclass(frozen=True)
class History:
    """The history of a suite. `noise` is empty unless it was asked for."""

    medians: RunMedians
    series: list[Series]
    nodes: list[NodeOutlier]
    noise: list[tuple[str, Variability]]


def read_history(
    suite: str,
    *,
    root: str | None,
    selection: RunFilter,
    only: Sequence[str],
    acks_file: str | None,
    with_noise: bool,
    report: Callable[[str], None],
) -> History:
    """Read the history of a suite.

    `only` holds globs of series names. Raises CommandError, BadDocument, StoreError.
    """
    store = open_store(root)
    medians = _read_runs(store, suite, selection, report)
    acks, _ = read_acks(acks_file, store)
    newest = medians.runs[-1]
    tuning = Tuning(read_checks(store, newest.run_id), newest.cluster)
    selected = [
        series
        for series in series_of(medians, tuning, acks)
        if not only or any(fnmatchcase(series.name, glob) for glob in only)
    ]
    if not selected:
        raise CommandError(f"--only {', '.join(only)}: no series has such a name")
    count = runs_for_nodes(medians)
    nodes = node_outliers(medians, recent_rows(store, medians, count), tuning) if count else []
    noise = noise_report(medians, recent_rows(store, medians)) if with_noise else []
    return History(medians, selected, nodes, noise)


def read_failures(
    suite: str,
    root: str | None,
    selection: RunFilter,
    text: str,
    report: Callable[[str], None],
) -> list[Failure]:
    """Return the failures whose reason contains `text`. Raises CommandError, StoreError."""
    store = open_store(root)
    medians = _read_runs(store, suite, selection, report)
    return [*failures(medians, text), *object_failures(store, medians, text)]


def _read_runs(
    store: Store, suite: str, selection: RunFilter, report: Callable[[str], None]
) -> RunMedians:
    """Return the selected runs of a suite. Raises CommandError, StoreError."""
    medians = read_run_medians(store, suite)
    if not medians.runs:
        raise CommandError(_no_history(store, suite, medians.damaged))
    selected = _select_runs(medians, selection)
    for key in medians.damaged:
        report(explain_unreadable(store, key))
    return selected


def _no_history(store: Store, suite: str, damaged: list[str]) -> str:
    """Return why a suite has no history."""
    if damaged:
        return f"suite {suite} has no readable run; {explain_unreadable(store, damaged[0])}"
    known = suites(store)
    if not known:
        return f"store {store.root} has no results: run a suite, or `perfdag collect RUN`"
    if suite in known:
        return (
            f"suite {suite} has only runs of `perfdag ab`, which have no history; "
            "`perfdag ab --resume RUN` shows their outcome"
        )
    return f"no suite {suite}{choices(suite, known, 'there are')}"


def _select_runs(medians: RunMedians, selection: RunFilter) -> RunMedians:
    """Return the runs that the filter selects. Raises CommandError if there are none."""
    since, newest = selection.since, selection.newest
    if since:
        try:
            date.fromisoformat(since)
        except ValueError:
            raise CommandError(f"--since {since}: write a day as 2026-10-31") from None
    if newest is not None and newest < 1:
        raise CommandError(f"--newest {newest}: the number of runs must be 1 or more")
    runs = medians.runs
    cluster = runs[-1].cluster if selection.cluster is None else selection.cluster
    first = since or ""
    selected = medians.select(lambda run: run.cluster == cluster and day_of(run.run_id) >= first)
    if not selected.runs:
        clusters = ", ".join(sorted({run.cluster for run in runs}))
        raise CommandError(
            f"no run matches of {plural(len(runs), 'run')} on cluster {clusters}; "
            f"the newest is {runs[-1].run_id}"
        )
    if newest is None:
        return selected
    oldest = selected.runs[-newest:][0].run_id
    return selected.select(lambda run: run.run_id >= oldest)


def as_data(history: History) -> dict[str, Any]:
    """Return a history as plain data."""
    runs = [run.run_id for run in history.medians.runs]
    return {
        "suite": history.medians.suite,
        "runs": runs,
        "series": [
            {
                **asdict(series.info),
                "name": series.name,
                "answer": {**asdict(series.answer), "text": series.answer.text},
                "values": series.value.tolist(),
                "low": series.low.tolist(),
                "high": series.high.tolist(),
                "levels": [
                    {
                        "start": runs[level.start],
                        "value": level.reference,
                        "noise": level.noise,
                    }
                    for level in series.levels.levels
                ],
                "steps": [_step_data(step) for step in series.steps],
            }
            for series in history.series
        ],
        "nodes": [
            {
                "series": node.series,
                "word": node.word,
                "differs": node.differs,
                **asdict(node.outlier),
            }
            for node in history.nodes
        ],
        "noise": [{"series": name, **asdict(value)} for name, value in history.noise],
    }


def _step_data(step: Step) -> dict[str, Any]:
    return {
        "run": step.run,
        "decided": step.decided,
        "word": step.word,
        "effect": step.effect,
        "before": step.before.reference,
        "after": step.after.reference,
        "environment": step.environment,
    }
