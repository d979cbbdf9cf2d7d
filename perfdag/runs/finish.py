"""The end of every run: its rows, its verdict, its report, and its result as text and data.

What only a run with a history, or the last step of a Workflow, needs is imported where it is used.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from importlib.util import find_spec
from itertools import compress
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from perfdag.analysis.gate_result import Alert, Banner, GateResult, RunVerdicts, banner
from perfdag.benchmark import registry
from perfdag.identity import grouped
from perfdag.plan import Plan, gated, stored_duet
from perfdag.redaction import logger, print_now
from perfdag.results.collect import CollectionResult, collect, write_exports
from perfdag.results.run_store import (
    RunStore,
    SelectionError,
    age_of,
    report_address,
    report_key,
    runs_with_rows,
    stored_plan,
    variants,
)
from perfdag.results.summary import (
    BenchmarkVerdict,
    PointState,
    PointTrust,
    RunSeries,
    Summary,
    facts_of_samples,
    statuses_text,
    summarise,
    worst_of_points,
)
from perfdag.runs import RunError
from perfdag.signals import EXIT_FAILED, EXIT_GATE, EXIT_OK, EXIT_REACH
from perfdag.store.base import NotStoredError, Store, store_option
from perfdag.suite.model import checks_of
from perfdag.terminal import styled, text_table
from perfdag.units import digits, plural, scaled, short_seconds, spark

if TYPE_CHECKING:
    from perfdag.steps.pods.context import PodContext


@dataclass(frozen=True)
class Run:
    """A collected run: its samples by status, its points, and the addresses of its files."""

    plan: Plan
    summary: Summary
    collected: CollectionResult
    rows: str
    report: str | None = None
    exports: Sequence[str] = ()
    gate: GateResult | None = None
    """The verdicts on the series of the run, and its checks.

    None for a variant of `perfdag ab`, and where its past cannot be read."""
    published: bool = True
    """Whether the webhook took the messages of the gate."""
    globs: Sequence[str] = ()
    """Metrics that its table shows instead of the headlines."""

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.plan.run_id

    @property
    def exit_code(self) -> int:
        """The exit code of the verb that measured or collected the run."""
        if not self.published:
            return EXIT_REACH
        if gated(self.plan):  # the gate knows what is acknowledged
            failed = self.gate is not None and self.gate.failed
        else:
            failed = any(verdict.kind == "failed" for verdict in self.summary.verdicts)
        if failed:
            return EXIT_GATE
        statuses = self.summary.statuses.keys()
        return EXIT_FAILED if "ok" not in statuses or statuses - {"ok", "skipped"} else EXIT_OK

    @property
    def verdict(self) -> Banner:
        """The sentence about the run, as its report has it."""
        return banner(RunVerdicts(self.summary, self.gate))

    def __str__(self) -> str:
        """Return a table for each entry, counts, addresses and the verdict."""
        run = RunVerdicts(self.summary, self.gate)
        entries = grouped(self.summary.points, lambda state: state.entry)
        tables = [
            f"{_table(entry, states, run, self.globs)}\n" for entry, states in entries.items()
        ]
        gate = []
        if self.gate and gated(self.plan):
            from perfdag.analysis.alerts import gate_lines

            gate = [styled(gate_lines(self.gate))]
        counts = run.past.counted if run.past else "first run"
        # One count says what the sentence says.
        counted = f" ({counts})" if "," in counts or not run.past else ""
        verdict = self.verdict
        return "\n".join(
            [
                *tables,
                *_lines(self),
                *gate,
                styled([(verdict.sentence + counted, f"bold {verdict.kind}")]),
            ]
        )

    def data(self) -> dict[str, Any]:
        """Return the result as data for JSON."""
        summary = self.summary
        return asdict(
            RunData(
                run_id=self.plan.run_id,
                suite=self.plan.suite,
                statuses=dict(summary.statuses),
                rows=self.rows,
                report=self.report,
                exports=self.exports,
                gate=self.gate.data() if self.gate else None,
                trust={"level": summary.trust.level, "text": summary.trust.text},
                verdicts=summary.verdicts,
                points=[
                    _point(state, summary.trust.points.get(state.point)) for state in summary.points
                ],
            )
        )


@dataclass(frozen=True)
class MetricData:
    """A series of a point as `run` and `show` print it with --json, in the unit of its metric."""

    metric: str
    label: str
    stat: str
    coords: dict[str, Any]
    unit: str
    better: str
    headline: bool
    median: float
    low: float
    high: float
    spread: str
    n: int
    nominal: str


@dataclass(frozen=True)
class PointData:
    """A point of a run as `run` and `show` print it with --json."""

    point: str
    entry: str
    label: str
    benchmark: str
    params: dict[str, Any]
    statuses: dict[str, int]
    reasons: Sequence[str]
    noise: Sequence[str]
    trust: PointTrust | None
    metrics: Sequence[MetricData]


@dataclass(frozen=True)
class RunData:
    """A run as `run` and `show` print it with --json."""

    run_id: str
    suite: str
    statuses: dict[str, int]
    rows: str
    report: str | None
    exports: Sequence[str]
    gate: dict[str, Any] | None
    trust: dict[str, str]
    verdicts: Sequence[BenchmarkVerdict]
    points: Sequence[PointData]


def _point(state: PointState, trust: PointTrust | None) -> PointData:
    return PointData(
        point=state.point,
        entry=state.entry,
        label=state.label,
        benchmark=state.benchmark,
        params=state.params,
        statuses=dict(state.statuses),
        reasons=state.reasons,
        noise=state.noise,
        trust=trust,
        metrics=[_metric(series) for series in state.series],
    )


def _metric(series: RunSeries) -> MetricData:
    return MetricData(
        metric=series.metric,
        label=series.label,
        stat=series.stat,
        coords=series.coords,
        unit=series.unit,
        better=series.better,
        headline=series.headline,
        median=series.middle,
        low=series.band.low,
        high=series.band.high,
        spread=series.band.kind,
        n=len(series.values),
        nominal=series.nominal,
    )


HEADINGS = ("point", "metric", "median", "spread", "unit", "n", "of nominal", "runs", "state")
BAD_STATE = re.compile("failed|invalid|missing")
MAX_REASONS = 10
"""Points whose failures and verdicts the terminal shows; the report has all of them."""


def _table(entry: str, states: Sequence[PointState], run: RunVerdicts, globs: Sequence[str]) -> str:
    """Return the table of an entry, without the columns that are empty. A point is named once."""
    worst = worst_of_points(run.summary.verdicts)
    verdicts = {verdict.point: verdict.kind for verdict, _ in worst}
    rows = [
        ("" if number else state.label, *cells, _state_text(state, run, verdicts))
        for state in states
        for number, cells in enumerate(_cells(state, run, globs))
    ]
    is_shown = [any(cells) for cells in zip(*rows, strict=True)]
    headings = [*compress(HEADINGS, is_shown)]
    return text_table(
        headings,
        [[*compress(row, is_shown)] for row in rows],
        right=[at for at, heading in enumerate(headings) if heading in ("median", "n")],
        styles=["".join(BAD_STATE.findall(row[-1])[:1]) for row in rows],
        title=entry,
    )


def _shown(state: PointState, globs: Sequence[str]) -> list[RunSeries]:
    """Return the series of these metrics, or the headlines with what the benchmark adds to them."""
    if globs:
        return [
            series
            for series in state.series
            if any(fnmatchcase(series.metric, glob) for glob in globs)
        ]
    declared = registry.metrics_of(state.benchmark).values()
    added = {(metric.name, metric.in_table) for metric in declared}
    beside = [series for series in state.series if (series.metric, series.stat) in added]
    return [*state.headlines, *beside]


def _cells(state: PointState, run: RunVerdicts, globs: Sequence[str]) -> list[tuple[str, ...]]:
    """Return metric, median, spread, unit, n, nominal and last runs of the series shown."""
    cells: list[tuple[str, ...]] = []
    for series in _shown(state, globs):
        factor, unit = scaled(series.display_unit, series.middle)
        figures = (series.band.low, series.middle, series.band.high)
        low, median, high = (digits(figure / factor) for figure in figures)
        history = run.histories.get(series.series_id)
        bars = spark(history.value.tolist()) if history else ""
        count = str(len(series.values))
        cells.append((series.label, median, f"{low} to {high}", unit, count, series.nominal, bars))
    return cells or [("", "-", "", "", "0", "", "")]


def _state_text(state: PointState, run: RunVerdicts, verdicts: Mapping[str, str]) -> str:
    """Return the samples by status, the trust, the verdict, and why there is no value."""
    statuses = sorted((status, count) for status, count in state.statuses.items() if status != "ok")
    text = ", ".join(f"{count} {status}" for status, count in statuses) or "ok"
    trust = run.summary.trust.points.get(state.point)
    if trust and trust.level != "good" and state.series:
        text += f", {trust.level}"
    if state.point in verdicts:
        text += f", verdict {verdicts[state.point]}"
    if not state.series and state.reasons:
        text += f": {shorten(state.reasons[0], 300, placeholder=' ...')}"
    return text


def _lines(result: Run) -> list[str]:
    """Return what stands below the table: counts, noise, failures, precision and addresses."""
    plan = result.plan
    summary = result.summary
    statuses = statuses_text(summary.statuses) or "no samples"
    lines = [
        f"{statuses}; spread: range of n < 6, else 95 % interval of the median",
        f"trust   {summary.trust.text}",
    ]
    if result.gate and result.gate.runs > 1 and not gated(plan):
        from perfdag.analysis.alerts import verdict_lines

        lines += verdict_lines(result.gate)
    verdicts = [
        f"verdict {verdict.title}: {verdict.text}" + (f" ({count})" if count else "")
        for verdict, count in worst_of_points(summary.verdicts)
    ]
    # The table itself has the reason of a point without any value.
    reasons = [
        f"{state.full_title}: {shorten(state.reasons[0], 300, placeholder=' ...')}"
        for state in summary.points
        if state.reasons and state.series
    ]
    notes = [f"note    {text}" for text in _notes(summary)]
    for texts, kind in (
        (verdicts, "verdicts; the report has all"),
        (reasons, "points with failed samples; the report has all"),
        (notes, "notes"),
    ):
        lines += texts[:MAX_REASONS]
        if len(texts) > MAX_REASONS:
            lines.append(f"and {len(texts) - MAX_REASONS} more {kind}")
    lines += _precisions(result)
    if plan.merged:
        lines.append(f"{plural(plan.merged, 'equal point')} merged")
    lines += [f"damaged sample, counted as missing: {name}" for name in result.collected.damaged]
    lines = [styled(lines), f"rows    {result.rows}"]
    if result.report:
        lines.append(f"report  {result.report}")
    return lines + [f"also    {file}" for file in result.exports]


def _notes(summary: Summary) -> list[str]:
    """Return what readers of the figures should know of the samples of an entry, each once."""
    notes = (
        f"{row['entry']}: {text}"
        for row, facts in facts_of_samples(summary.table, "entry")
        for text in facts.get("notes", ())
    )
    return [*dict.fromkeys(notes)]


def _precisions(result: Run) -> Iterator[str]:
    """Yield how precise the points are that are repeated until they are precise enough."""
    for point in result.plan.points:
        if point.until is not None and point.id in result.collected.reached:
            n, precision = result.collected.reached[point.id]
            text = "no interval yet" if precision is None else f"{precision:.1%}"
            goal = f"{point.until.relative_spread:.1%}"
            yield f"{point.full_title}: {text} after {plural(n, 'sample')} (goal: {goal})"


def finish_run(
    store: Store,
    plan: Plan,
    *,
    charts: bool = True,
    publishes: bool = False,
    recheck: Callable[[GateResult], None] | None = None,
) -> Run:
    """Collect a run, judge it, write its charts and report, and return the result.

    `recheck` measures the suspicious points again before the verdict. With `publishes` this is the
    end of the run: its gate, if it has one, goes to the webhook, and as JUnit XML beside the
    report. Raises StoreError.
    """
    table, collected = collect(store, plan)
    summary = summarise(table)
    gate = gate_of_run(store, plan, summary)
    if recheck and gate and gate.suspects:
        recheck(gate)
        gate = gate_of_run(store, plan, summary)
    page = None
    if charts and find_spec("matplotlib"):
        page = write_report(store, plan, summary, gate)
    elif charts:  # an image for pods has none
        advice = f"run `perfdag report {plan.run_id} {store_option(store.root)}` where it is"
        logger.warning(f"perfdag: no report: matplotlib is not installed here: {advice}")
    files = write_exports(store, plan.run_id, table)
    published = True
    if publishes and gate and gated(plan):
        from perfdag.analysis.alerts import junit, publish

        published = publish(store, gate)
        store.put(f"runs/{plan.run_id}/check.xml", junit(gate))
    rows = store.url(collected.key)
    return Run(plan, summary, collected, rows, page, files, gate, published)


def gate_of_run(store: Store, plan: Plan, summary: Summary) -> GateResult | None:
    """Return the verdicts on a collected run.

    None for a variant of `perfdag ab`, and where its past cannot be read.
    """
    if plan.trigger == "ab":
        return None
    if not plan.where and not gated(plan) and len(runs_with_rows(store, plan.suite)) == 1:
        # Nothing is to be compared with. A run on a cluster may have nodes that differ.
        report = report_address(store, plan.run_id)
        return GateResult(plan.run_id, plan.suite, report, runs=1, store=store.root)
    from perfdag.analysis.gate import judge_run, unattended_rules

    try:
        rules = unattended_rules(store, checks_of(plan.suite_text))
        return judge_run(store, plan.suite, plan.run_id, rules, summary)
    except SelectionError as error:
        logger.warning(f"perfdag: no verdict: {error}")
        return None


def write_report(
    store: Store,
    plan: Plan,
    summary: Summary,
    gate: GateResult | None,
) -> str:
    """Write the charts and report.html of a run with the verdicts of its gate.

    Return the report's URL. Raises StoreError.
    """
    # It imports matplotlib, which takes a second that a run without a report does not need.
    from perfdag.charts.pages import report as report_page

    def put(name: str, data: bytes) -> None:
        store.put(f"runs/{plan.run_id}/{name}", data)

    # the last step of a run on a cluster writes the site
    has_site = bool(plan.where or store.list(f"site/data/{plan.suite}"))
    report_page.write(summary, plan, put, store.root, has_site, gate)
    return store.url(report_key(plan.run_id))


def check_age(store: Store, selector: str, suite: str | None, limit: float) -> int:
    """Print the age of a run. Return 0, 3 if it began more than `limit` seconds ago, or 4.

    4: the webhook did not take the message. Raises SelectionError, StoreError.
    """
    from perfdag.analysis.alerts import send
    from perfdag.results.selections import select_one

    run_id, suite = select_one(RunStore(store), selector, suite)
    age = age_of(run_id)
    line = f"{suite}: run {run_id} began {short_seconds(age)} ago"
    if age <= limit:
        print_now(line)
        return EXIT_OK
    title = f"STALE {line}; at most {short_seconds(limit)} is allowed"
    print_now(title)
    alert = Alert("stale", title, title, [run_id], run_id)
    reached = send(GateResult(run_id, suite, "", alerts=[alert]))
    return EXIT_GATE if reached else EXIT_REACH


def finish_step(pod: "PodContext", phase: str) -> int:
    """Collect, report and check a run in the last step of its Workflow, which ended in `phase`.

    Return the exit code of the run. Raises RunError for a run without a plan, StoreError.
    """
    from perfdag.charts.pages.site import write_after_run
    from perfdag.runs.duet import conclude, outcome_text
    from perfdag.steps.pods import context, plan as plan_step, watchdog

    store = pod.open()
    try:
        plan = stored_plan(store, pod.run_id)
    except NotStoredError:
        # If the plan step refused the suite, its own exit code is the run's.
        raise RunError(
            f"run {pod.run_id}: it has no plan, so there is nothing to collect", EXIT_REACH
        ) from None
    context.end_clock(store, plan.run_id)
    if reason := watchdog.record_end(pod, store, plan, phase):
        context.explain_end(reason)
    if plan.trigger == "ab":
        duet = stored_duet(*variants(store, plan))
        for variant in (duet.a, duet.b):
            rows, _ = collect(store, variant)
            write_report(store, variant, summarise(rows), None)
        outcome = conclude(store, duet)
        text = outcome_text(outcome, store)
        code = outcome.exit_code
        verdict = Banner(outcome.verdict, "")
    else:
        for run_id in plan.options.rechecks:
            context.end_clock(store, run_id)
            collect(store, stored_plan(store, run_id))
        result = finish_run(store, plan, publishes=True)
        text = str(result)
        code = result.exit_code
        verdict = result.verdict
        context.explain_end(reason or verdict.sentence)
    print_now(text)
    # a run whose suite has no earlier one has no verdict
    context.label_workflow(pod, plan, store, verdict.kind or "first", reason or verdict.sentence)
    if phase == "Succeeded":
        plan_step.release(pod, plan)
    if plan.trigger != "ab":
        write_after_run(store, plan.suite)
    return EXIT_REACH if reason else code
