"""A run beside others: `perfdag history`, `check` and `compare`; their `acks` and `baseline`."""

import argparse
from collections.abc import Container, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import isnan
from pathlib import Path

from perfdag.analysis.alerts import gate_lines, junit, markdown, publish
from perfdag.analysis.compare import ComparedSeries, Comparison, compare
from perfdag.analysis.environment import REVISION, Changes
from perfdag.analysis.gate import ACKS as ACKS_KEY, check, put_acks, read_acks, stored_acks
from perfdag.analysis.history import (
    Failure,
    NodeOutlier,
    Noise,
    Series,
    failures,
    node_names,
    node_outliers,
    noise_report,
    recent_rows,
    series_of,
)
from perfdag.analysis.medians import RunMedians, read_run_medians
from perfdag.analysis.verdict import RANK, SeriesData, Tuning, counts, percent
from perfdag.commands.options import (
    ACKS,
    EXIT_GATE,
    EXIT_OK,
    EXIT_REACH,
    EXIT_UNCLEAR,
    HISTORY,
    JSON,
    RUN,
    STORE,
    SUITE,
    CommandError,
    duration,
    logger,
    option,
    print_json,
    run_work,
    verb,
)
from perfdag.results.labels import exact, has_name, shorten
from perfdag.results.run_store import RunStore, day_of, read_checks
from perfdag.results.schema import explain_unreadable
from perfdag.results.selections import baselines, put_baseline, select
from perfdag.runs.finish import check_age
from perfdag.stats.nodes import FEWEST_NODES
from perfdag.store.base import Store, store_option
from perfdag.store.s3 import open_store
from perfdag.terminal import styled, text_table
from perfdag.units import plural, short, with_spread


@verb(
    "history",
    "Show the history of a suite: the level of each series; its changes, with "
    "size, date and what changed in the environment; slow nodes, noise and failures.",
    """
    examples:
      perfdag history net
      perfdag history net --only 'iperf streams=8*' --all
      perfdag history net --noise
      perfdag history net --failures 'no route'
      perfdag history net --json

    docs/statistics.md has the rule by which a new level begins.
    """,
    option(
        "suite",
        nargs="?",
        metavar="SUITE",
        help="name of a suite that has results (default: that of the newest run)",
    ),
    STORE,
    option(
        "--cluster",
        metavar="NAME",
        help="use only runs of this cluster (default: the cluster of the newest run)",
    ),
    option(
        "--only",
        metavar="GLOB",
        action="append",
        default=[],
        help="show only series whose name matches GLOB; repeat the option to add more",
    ),
    option("--all", action="store_true", help="show every series, not only headline series"),
    option(
        "--noise",
        action="store_true",
        help="show the noise within runs and between runs",
    ),
    option(
        "--failures",
        metavar="TEXT",
        nargs="?",
        const="",
        help="show samples that failed or are invalid, and whose reason contains TEXT",
    ),
    ACKS,
    JSON,
)
def run_history(args: argparse.Namespace) -> None:
    """Print the history of a suite, its noise, or its failures."""
    store = open_store(args.store)
    medians = read_runs(store, args)
    if args.failures is not None:
        rows = failures(store, medians, args.failures)
        print_json(rows) if args.json else print(failures_text(rows))
        return
    acks, _ = read_acks(args.acks, store)
    newest = medians.runs[-1]
    tuning = Tuning(read_checks(store, newest.run_id), newest.cluster)
    all_series = series_of(medians, tuning, acks)
    names = {line.name for line in all_series} | {line.label for line in all_series}
    globs = [exact(glob, names) for glob in args.only] or ["*"]
    series = [
        line
        for line in all_series
        if any(has_name(line.name, glob) or has_name(line.label, glob) for glob in globs)
    ]
    if not series:
        raise CommandError(f"--only {', '.join(args.only)}: no series has such a name")
    noise = noise_report(series, recent_rows(store, medians, series)) if args.noise else []
    nodes: list[NodeOutlier] = []
    if len(node_names(medians)) >= FEWEST_NODES:
        paging = [line for line in all_series if tuning.alerts(line.info)]
        nodes = node_outliers(paging, recent_rows(store, medians, paging), tuning)
    if args.json:
        print_json(
            {
                "suite": medians.suite,
                "runs": medians.run_ids,
                "revisions": [run.env.get(REVISION) for run in medians.runs],
                "series": [asdict(series_data(line)) for line in series],
                "nodes": [asdict(node) for node in nodes],
                "noise": [asdict(row) for row in noise],
            }
        )
    else:
        lines = noise_lines(noise) if args.noise else history_lines(medians, series, args.all)
        print("\n".join([*lines, *map(_node_text, nodes)]))


def _node_text(node: NodeOutlier) -> str:
    """Return how far a node is from the others, and what differs there."""
    outlier = node.outlier
    effect = f"{percent(outlier.effect)} against the other nodes ({node.kind})"
    evidence = f"{plural(outlier.n, 'run')}, {min(outlier.sigmas, 99):.0f} sigma"
    differs = f"\n            differs: {node.differs}" if node.differs else ""
    text = f"node {outlier.node}: {effect} in {node.series}, {evidence}{differs}"
    return styled([(text, node.kind)])


def read_runs(store: Store, args: argparse.Namespace) -> RunMedians:
    """Return the runs of a suite that the options select.

    Raises CommandError, SelectionError, StoreError.
    """
    suite: str = args.suite or select(RunStore(store), "last").suite
    medians = read_run_medians(store, suite)
    runs = medians.runs
    if not runs:
        if not medians.damaged:
            select(RunStore(store), "last", suite)  # it says why there is none
        raise CommandError(
            f"suite {suite} has no readable run; {explain_unreadable(store, medians.damaged[0])}"
        )
    for key in medians.damaged:
        logger.info(explain_unreadable(store, key))
    cluster = runs[-1].cluster if args.cluster is None else args.cluster
    of_cluster = medians.select(lambda run: run.cluster == cluster)
    if not of_cluster.runs:
        clusters = ", ".join(sorted({run.cluster for run in runs}))
        raise CommandError(
            f"no run matches of {plural(len(runs), 'run')} on cluster {clusters}; "
            f"the newest is {runs[-1].run_id}"
        )
    return of_cluster


@dataclass(frozen=True)
class LevelData:
    """A level of a series, from the run `start` on."""

    start: str
    value: float
    noise: float


@dataclass(frozen=True)
class StepData:
    """A step of a series, from the level `before` to the level `after`.

    It began at `run`, or as likely at any from `first` on (or before, where `earlier`) to `last`.
    """

    run: str
    first: str
    last: str
    earlier: bool
    decided: str
    kind: str
    effect: float
    before: float
    after: float
    changes: Changes


@dataclass(frozen=True)
class DriftData:
    """The line of a slow drift, from the run `start` on, and its change."""

    start: str
    begin: float
    end: float
    change: float


@dataclass(frozen=True)
class SeriesOverRunsData(SeriesData):
    """A series with its value in each run, as `history` prints it with --json."""

    values: list[float]
    low: list[float]
    high: list[float]
    levels: list[LevelData]
    steps: list[StepData]
    drift: DriftData | None


def series_data(series: Series) -> SeriesOverRunsData:
    """Return what is printed of a series."""
    line = series.drift
    drift = DriftData(series.runs[line.start], line.begin, line.end, line.change) if line else None
    return SeriesOverRunsData(
        info=series.info,
        name=series.name,
        label=series.label,
        verdict=series.verdict,
        text=series.verdict.text,
        values=series.value.tolist(),
        low=series.low.tolist(),
        high=series.high.tolist(),
        levels=[
            LevelData(series.runs[level.start], level.reference, level.noise)
            for level in series.levels.levels
        ],
        steps=[
            StepData(
                run=step.run,
                first=step.first,
                last=step.last,
                earlier=step.after.earlier,
                decided=step.decided,
                kind=step.kind,
                effect=step.effect,
                before=step.before.reference,
                after=step.after.became,
                changes=step.changes,
            )
            for step in series.steps
        ],
        drift=drift,
    )


MAX_ROWS = 60
"""Rows of the table without --all."""
HEADINGS = ("series", "runs", "level", "noise", "newest", "verdict")
NOISE_HEADINGS = ("series", "runs", "within runs", "between runs", "repetitions worth")
NOISE_LEGEND = """\
within: median CV of the repetitions of a run; between: noise of a run, as `history` has it
repetitions worth: more repetitions in a run do not help, only more runs (known from 20 runs on)"""


def history_lines(medians: RunMedians, series: Sequence[Series], unlimited: bool) -> list[str]:
    """Return the levels and changes as text, `unlimited` of all series."""
    days = f"{day_of(medians.runs[0].run_id)} to {day_of(medians.runs[-1].run_id)}"
    count = len(series)
    newest = medians.runs[-1].revision
    revision = f", newest revision {newest}" if newest else ""
    again = sum(map(len, medians.rechecks.values()))
    runs = plural(len(medians.runs), "run")
    if again:
        runs += f" and {plural(again, 're-measurement')}"
    lines = [f"{medians.suite}: {runs} from {days}, {count} series{revision}"]
    rows = [line for line in series if line.info.headline or line.steps] or series
    rows = series if unlimited else rows[:MAX_ROWS]
    rows = sorted(rows, key=lambda row: RANK.index(row.verdict.kind))
    lines.append(
        text_table(
            HEADINGS,
            [_cells(row, medians.planned_points) for row in rows],
            right=range(1, 5),
            styles=[row.verdict.kind for row in rows],
        )
    )
    if len(rows) < count:
        lines.append(f"{count - len(rows)} more series (--all shows them)")
    steps = [(step.run, line, step) for line in rows for step in line.steps]
    for _, line, step in sorted(steps, key=lambda item: item[0]):
        values = f"{line.label}  {step.values(line.info)}"
        head = f"{day_of(step.run)}  {step.size:>8} {step.kind:7} {values}"
        since = f"            since {step.since}"
        changed = f"            changed {step.changed}"
        parts = [(head, step.kind), (since, ""), (changed, "")]
        if step.changes.bisect:
            parts.append((f"            bisect  {step.changes.bisect}", ""))
        lines.append(styled(parts))
    return lines


def _cells(series: Series, planned: Container[str]) -> tuple[str, ...]:
    """Return the cells of a series, as HEADINGS names them. `planned` has the newest run's points.

    A series of another point was left out of that run: with `--only`, or of the suite.
    """
    unit = series.info.display_unit
    verdict = series.verdict
    absent = "absent" if series.info.point in planned else "left out"
    return (
        series.label,
        str(series.levels.measured),
        short(series.levels.current.reference, unit),
        percent(verdict.noise, verdict.unit, sign=False),
        absent if isnan(series.newest) else short(series.newest, unit),
        verdict.text,
    )


def noise_lines(noise: Sequence[Noise]) -> list[str]:
    """Return the noise of each series as text."""
    rows = [
        (
            row.series,
            str(row.runs),
            percent(row.within, sign=False),
            percent(row.between, row.unit, sign=False),
            str(row.repetitions or "-"),
        )
        for row in noise
    ]
    return [text_table(NOISE_HEADINGS, rows, right=range(1, 5)), styled(NOISE_LEGEND.splitlines())]


def failures_text(rows: list[Failure]) -> str:
    """Return a line for each failure, and their number."""
    counts = [
        plural(row.bad, "object")
        if row.total is None
        else f"{row.bad} of {plural(row.total, 'sample')}"
        for row in rows
    ]
    lines = [
        f"{row.run}  {row.entry}  {row.point}  {count}  {row.reason}"
        for row, count in zip(rows, counts, strict=True)
    ]
    points = sum(row.total is not None for row in rows)
    lines.append(
        f"{plural(points, 'point')} with samples that were not ok, "
        f"{plural(len(rows) - points, 'message')} of objects"
    )
    return "\n".join(lines)


@verb(
    "check",
    "Check a run against the thresholds of its suite and against its history. "
    "Exit with 3 if the gate fails.",
    """
    examples:
      perfdag check last
      perfdag check last --suite daily --junit check.xml --markdown summary.md
      perfdag check last --suite daily --max-age 26h
      perfdag check last --acks acks.yaml
      perfdag check 20261120T020000Z-1a2b3c4d --json

    Exit 3 means one of four things: a headline series is worse and its level is not accepted; a
    threshold of the suite's `checks` is broken; a benchmark's own verdict failed; expected data is
    absent, or a point has no valid sample (`optional: true` of its entry allows that). Exit 5, with
    `--unclear fail`: nothing of that, but a headline of which nothing can be said. Exit 4: the
    store is out of reach, or the webhook did not accept a message. The webhook in the variable
    PERFDAG_WEBHOOK gets a message when this run changed something: a series became worse or good
    again, a check broke, data vanished. With --max-age, every check of a run that is too old sends
    one.
    """,
    RUN,
    STORE,
    HISTORY,
    SUITE,
    ACKS,
    option(
        "--max-age",
        metavar="DURATION",
        type=duration,
        help="check only the age of RUN: print one line, and exit with 3 if it is older than "
        "this, for example 26h",
    ),
    option(
        "--unclear",
        choices=("pass", "fail"),
        default="pass",
        help="whether the gate passes where the noise hides a headline; `fail`: exit with 5",
    ),
    option("--junit", metavar="FILE", type=Path, help="write JUnit XML"),
    option("--markdown", metavar="FILE", type=Path, help="write a Markdown summary"),
    JSON,
)
def run_check(args: argparse.Namespace) -> int:
    """Check a run and print its gate. Return 0, 3 if it fails, 4 without the webhook, or 5."""
    store = open_store(args.store)
    if args.max_age is not None:
        return check_age(store, args.run_id, args.suite, args.max_age)
    gate = check(args.run_id, args.store, history=args.history, suite=args.suite, acks=args.acks)
    gate.unclear_fails = args.unclear == "fail"
    reached = publish(store, gate)
    if args.junit:
        args.junit.write_bytes(junit(gate))
    if args.markdown:
        args.markdown.write_text(markdown(gate) + "\n")
    print_json(gate.data()) if args.json else print(styled(gate_lines(gate)))
    if not reached:
        return EXIT_REACH
    return {"FAILED": EXIT_GATE, "UNCLEAR": EXIT_UNCLEAR}.get(gate.decision, EXIT_OK)


verb(
    "acks",
    "Validate a file of acknowledgements and put it into the store, or show the "
    "acknowledgements of the store.",
    """
    examples:
      perfdag acks set acks.yaml --store s3://bench/results
      perfdag acks show --store s3://bench/results

    `perfdag check` reads ./acks.yaml, which belongs under version control. Without that file it
    reads the acknowledgements of the store.
    """,
)(run_work)


@verb(
    "acks set",
    "Replace the acknowledgements of the store.",
    "",
    option(
        "file",
        metavar="FILE",
        help="acks: [{series: GLOB, run: FIRST_RUN, reason: TEXT, until: DAY}]",
    ),
    STORE,
)
def set_acks(args: argparse.Namespace) -> None:
    """Put a file of acknowledgements into the store. Raises BadDocument, StoreError."""
    store = open_store(args.store)
    print(f"{plural(len(put_acks(store, args.file)), 'acknowledgement')} in {store.url(ACKS_KEY)}")


@verb("acks show", "Show the acknowledgements of the store.", "", STORE)
def show_acks(args: argparse.Namespace) -> None:
    """Print the acknowledgements of the store. Raises BadDocument, StoreError."""
    store = open_store(args.store)
    acks, url = stored_acks(store)
    lines = [
        f"{ack.series}  from {ack.run}{f' until {ack.until}' if ack.until else ''}: {ack.reason}"
        for ack in acks
    ]
    command = f"perfdag acks set FILE {store_option(store.root)}"
    print("\n".join(lines) or f"no acknowledgements in {url}; `{command}` adds them")


@verb(
    "compare",
    "Compare two runs or selections: first environment and parameters, then each "
    "series with its medians and spreads, the effect, the noise of a run, and the verdict. Runs "
    "of one history are answered by its levels.",
    """
    examples:
      perfdag compare
      perfdag compare last~1 last
      perfdag compare 20261120T020000Z-1a2b3c4d 20261121T020000Z-5e6f7a8b
      perfdag compare 'suite=net month=2026-10' 'suite=net month=2026-11'
      perfdag compare baseline:v1.0 last
      perfdag compare baseline:acceptance last \\
          --store s3://bench/blue --store-b s3://bench/green

    A run is its id, the beginning of its id, the name of its Workflow, `last`, `last~N` (N runs
    before) or `baseline:NAME`.
    A selection is a list of conditions: suite=, month=, since= and until= (days), run= (glob),
    newest= (number of runs). The verdicts are worse, better, same and unclear. If exactly one
    parameter of an entry was changed, its points are compared with one another, and the change is
    printed first.
    """,
    option(
        "a",
        nargs="?",
        default="last~1",
        metavar="A",
        help="run or selection to compare against (default: last~1)",
    ),
    option(
        "b",
        nargs="?",
        default="last",
        metavar="B",
        help="run or selection in question (default: last)",
    ),
    STORE,
    SUITE,
    option("--store-b", metavar="ROOT", help="store of B, if it differs (two clusters)"),
    option(
        "--all",
        action="store_true",
        help="show every series, not only headline series and those with a verdict",
    ),
    option("--gate", action="store_true", help="exit with 3 if a headline series is worse"),
    JSON,
)
def run_compare(args: argparse.Namespace) -> int:
    """Print the comparison. Return 3 with --gate if a headline series is worse."""
    comparison = compare(args.a, args.b, args.store, store_b=args.store_b, suite=args.suite)
    if args.json:
        print_json(asdict(comparison))
    else:
        print(comparison_text(comparison, everything=args.all))
    worse = any(row.info.headline and row.verdict.kind == "worse" for row in comparison.series)
    return EXIT_GATE if args.gate and worse else EXIT_OK


COMPARED = [
    "series",
    "A median (spread)",
    "B median (spread)",
    "B against A",
    "noise",
    "verdict",
]
LEGEND = """\
spread: range of fewer than 6 values, else the 95 % interval of the median
level: of all runs around it, where the levels decide
noise: of one run of the series"""


def _compared_cells(row: ComparedSeries) -> list[str]:
    """Return the cells of a row, as COMPARED names them."""
    verdict = row.verdict
    unit = row.info.display_unit
    sides = [
        with_spread(band.middle, band.low, band.high, unit)
        if value == band.middle
        else f"{short(value, unit)} (level)"
        for value, band in ((verdict.before, row.a), (verdict.value, row.b))
    ]
    return [
        row.label,
        *sides,
        verdict.size,
        percent(verdict.noise, verdict.unit, sign=False),
        f"{verdict.text} ({row.note})" if row.note else verdict.text,
    ]


def _notes(comparison: Comparison) -> Iterator[str]:
    """Yield the counts, and what was not compared and why."""
    rows = [row for row in comparison.series if row.info.headline] or comparison.series
    yield counts([row.verdict.kind for row in rows]) or "no series in common"
    if comparison.simulated:
        sides = " and ".join(comparison.simulated)
        yield f"simulated nodes in {sides}: figures of the control plane alone"
    titles = {
        "only_a": "only in A (missing in B)",
        "only_b": "only in B (new)",
        "damaged": "damaged, left out",
    }
    for reason, lines in comparison.left_out.items():
        if lines:
            title = titles.get(reason, reason)
            rest = f", and {len(lines) - 20} more (--json lists them)" if len(lines) > 20 else ""
            yield f"{title}: {'; '.join(lines[:20])}{rest}"


def comparison_text(comparison: Comparison, *, everything: bool) -> str:
    """Return the comparison as text with a table."""
    rows = comparison.series
    if not everything:
        changed = ("better", "worse")
        headline = [row for row in rows if row.info.headline or row.verdict.kind in changed]
        rows = (headline or rows)[:MAX_ROWS]
    lines = []
    for letter, side in (("A", comparison.a), ("B", comparison.b)):
        newest = f"{len(side.runs)} runs, {side.runs[0]} to {side.runs[-1]}"
        lines.append(f"{letter}  {side.suite}  {side.runs[0] if len(side.runs) == 1 else newest}")
    differs = {
        key: f"{before} -> {after}" for key, (before, after) in comparison.parameters.items()
    }
    differs |= dict(comparison.changes.lines())
    lines += [f"differs  {key}: {change}" for key, change in differs.items()]
    lines += _about_environment(comparison.changes)
    styles = [row.verdict.kind for row in rows]
    lines.append(text_table(COMPARED, map(_compared_cells, rows), right=range(1, 5), styles=styles))
    if hidden := len(comparison.series) - len(rows):
        lines.append(f"{hidden} more that are no headlines (--all shows them)")
    lines.append(styled([*_notes(comparison), *LEGEND.splitlines()]))
    return "\n".join(lines)


def _about_environment(changes: Changes) -> Iterator[str]:
    """Yield that nothing is recorded to differ, what could not be read, and what to do next."""
    if not changes.values:
        yield changes.nothing
    if changes.unknown and changes.recorded:
        yield f"not known here: {shorten(', '.join(changes.unknown))}"
    if changes.bisect:
        yield f"bisect   {changes.bisect}"


verb(
    "baseline",
    "Give runs a name to compare with, or show the names. "
    "They are stored in baselines.json of the store.",
    """
    examples:
      perfdag baseline set v1.0 last --note 'release 1.0'
      perfdag baseline set acceptance 'suite=net month=2026-10' \\
          --store s3://bench/blue
      perfdag baseline show --json

    `perfdag compare baseline:v1.0 last` compares a run with a baseline. The `checks` of a suite can
    hold each run against one.
    """,
)(run_work)


@verb(
    "baseline set",
    "Name a run or a selection.",
    "",
    option("name", metavar="NAME"),
    option(
        "runs",
        nargs="?",
        default="last",
        metavar="RUN",
        help="run or selection, as `perfdag compare` takes it",
    ),
    option("--note", default="", help="what the baseline is for"),
    STORE,
    SUITE,
)
def set_baseline(args: argparse.Namespace) -> None:
    """Give the selected runs a name. Raises CommandError, SelectionError, StoreError."""
    if not args.name.strip():
        raise CommandError("the name is empty; write `perfdag baseline set v1.0 RUN`")
    store = open_store(args.store)
    runs = select(RunStore(store), args.runs, args.suite)
    put_baseline(store, args.name, runs, args.note)
    print(f"baseline {args.name}: {plural(len(runs.runs), 'run')} of {runs.suite}")


@verb("baseline show", "Show all names.", "", JSON, STORE)
def show_baselines(args: argparse.Namespace) -> None:
    """Print the names with their runs. Raises SelectionError, StoreError."""
    store = open_store(args.store)
    names = baselines(store)
    if args.json:
        print_json(
            {
                name: {suite: baseline.model_dump() for suite, baseline in suites.items()}
                for name, suites in names.items()
            }
        )
        return
    rows = [
        (
            name,
            suite,
            plural(len(baseline.runs), "run"),
            " to ".join(sorted({*baseline.runs[:1], *baseline.runs[-1:]})),
            baseline.note,
        )
        for name, suites in sorted(names.items())
        for suite, baseline in sorted(suites.items())
    ]
    table = text_table(("name", "suite", "runs", "first to last", "note"), rows)
    command = f"perfdag baseline set NAME RUN {store_option(store.root)}"
    print(table if rows else f"no baselines; `{command}` adds one")
