"""The runs of a store: `perfdag ls`, `show`, `report`, `open`, `collect`, `rm` and `prune`."""

import argparse
import contextlib
import shlex
import tempfile
import webbrowser
from collections.abc import Iterator, Sequence
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

import pyarrow as pa

from perfdag.commands.options import (
    EXIT_FAILED,
    EXIT_INPUT,
    EXIT_OK,
    JSON,
    RUN,
    RUN_HELP,
    STORE,
    SUITE,
    CommandError,
    duration,
    logger,
    option,
    print_json,
    verb,
)
from perfdag.plan import Plan
from perfdag.problems import PerfdagError
from perfdag.results.collect import collect, gather, write_exports
from perfdag.results.run_store import (
    RunStore,
    age_of,
    month_of,
    report_key,
    result_key,
    rollup_key,
    run_folder,
)
from perfdag.results.schema import NewerSchemaError, distinct, read_rows
from perfdag.results.selections import baselines, read_run
from perfdag.results.summary import statuses_text, summarise
from perfdag.revision import short_revision
from perfdag.runs.finish import Run, finish_run, gate_of_run
from perfdag.runs.local import only_process
from perfdag.store.base import DamagedError, FolderStore, NotStoredError, Store, store_option
from perfdag.store.s3 import open_store
from perfdag.terminal import text_table
from perfdag.units import plural, short, spark


@verb(
    "ls",
    "List the runs of a store, the newest last: age, suite, samples by status, how far "
    "the figures can be trusted, and the verdict on the run. A run of kind ab is one "
    "variant of `perfdag ab`. Re-measurements belong to their run.",
    """
    examples:
      perfdag ls
      perfdag ls --suite quick --newest 100
      perfdag ls --store s3://bench/results --json
    """,
    STORE,
    SUITE,
    option("--newest", metavar="N", default=20, help="list the newest N runs"),
    JSON,
)
def run_ls(args: argparse.Namespace) -> None:
    """List the newest runs of a store, oldest first. Raises CommandError, StoreError."""
    if args.newest < 1:
        raise CommandError(f"--newest {args.newest}: list at least one run")
    store = open_store(args.store)
    newest_first = islice(_lines(RunStore(store), args.suite), args.newest)
    lines = [*newest_first][::-1]
    if not lines:
        of_suite = f" of suite {args.suite}" if args.suite else ""
        raise CommandError(f"store {store.root} has no run{of_suite}")
    _add_verdicts(store, lines)
    print_json(lines) if args.json else print(_runs_table(lines))


@verb(
    "show",
    "Show the stored samples of a run as a table. It writes nothing; "
    "`perfdag report` draws the charts.",
    """
    examples:
      perfdag show last
      perfdag show last~1 --json
      perfdag show 20261120T020000Z-1a2b3c4d --store s3://bench/results
    """,
    RUN,
    STORE,
    option("--all", action="store_true", help="show every metric, not only the headlines"),
    option("--metric", metavar="GLOB", nargs="+", default=[], help="show these metrics"),
    JSON,
)
def run_show(args: argparse.Namespace) -> int:
    """Show a run from its stored samples, and write nothing. Return its exit code."""
    runs, plan = read_run(args.store, args.run_id)
    table, collected = gather(runs.store, plan)
    summary = summarise(table)
    result = Run(
        plan,
        summary,
        collected,
        runs.store.url(collected.key),
        gate=gate_of_run(runs.store, plan, summary),
        globs=["*"] if args.all else args.metric,
    )
    print_json(result.data()) if args.json else print(result)
    return result.exit_code


@verb(
    "report",
    "Collect a run, draw its charts (SVG and PNG), write report.html and print "
    "its path. `perfdag show` prints the table.",
    """
    examples:
      perfdag report last
      perfdag report 20261120T020000Z-1a2b3c4d --store s3://bench/results
    """,
    RUN,
    STORE,
    option("--card", action="store_true", help="write card.png too, 1200 x 630, for a chat"),
)
def run_report(args: argparse.Namespace) -> int:
    """Collect a run, and write its charts and report. Return its exit code."""
    runs, plan = read_run(args.store, args.run_id)
    result = finish_run(runs.store, plan)
    if result.report is None:
        return EXIT_INPUT
    print(result.report)
    if args.card:
        from perfdag.charts.pages.report import card_of

        key = f"runs/{plan.run_id}/card.png"
        runs.store.put(key, card_of(result.summary, plan, result.gate))
        print(runs.store.url(key))
    for export in result.exports:
        print(export)
    return result.exit_code


@verb(
    "open",
    "Open the report of a run in a browser and print its path. It is drawn if the run "
    "has none. A report in S3 is copied to a temporary file.",
    """
    examples:
      perfdag open last
      perfdag open 20261120T020000Z-1a2b3c4d --store s3://bench/results
    """,
    RUN,
    STORE,
)
def run_open(args: argparse.Namespace) -> int:
    """Open the report of a run in a browser and print its path. Raises CommandError, StoreError."""
    runs, plan = read_run(args.store, args.run_id)
    store = runs.store
    key = report_key(plan.run_id)
    try:
        data = store.get(key)
    except NotStoredError:
        if not runs.suites_by_run[plan.run_id]:  # it may be under way
            raise CommandError(
                f"run {plan.run_id} has no report; draw it: "
                f"perfdag report {plan.run_id} {store_option(store.root)}"
            ) from None
        if finish_run(store, plan).report is None:
            return EXIT_INPUT
        data = store.get(key)
    if isinstance(store, FolderStore):
        path = Path(store.url(key)).resolve()
    else:
        path = Path(tempfile.mkdtemp(prefix="perfdag-")) / f"{plan.run_id}.html"
        path.write_bytes(data)
    webbrowser.open(path.as_uri())
    print(path)  # of use where there is no browser
    return EXIT_OK


@verb(
    "collect",
    "Write the samples of a run into one Parquet file. The same samples give the same bytes.",
    """
    examples:
      perfdag collect last
      perfdag collect 20261120T020000Z-1a2b3c4d --store s3://bench/results
    """,
    RUN,
    STORE,
)
def run_collect(args: argparse.Namespace) -> int:
    """Write the Parquet file and the exports of a run. Return 1 if a sample is not ok."""
    runs, plan = read_run(args.store, args.run_id)
    table, collected = collect(runs.store, plan)
    print(f"{plural(table.num_rows, 'row')}  {runs.store.url(collected.key)}")
    if collected.kept:
        print("kept as they were: some of their samples are stored no more")
    for export in write_exports(runs.store, plan.run_id, table):
        print(f"also  {export}")
    return EXIT_FAILED if summarise(table).statuses.keys() - {"ok", "skipped"} else EXIT_OK


@verb(
    "rm",
    "Remove the samples, rows and report of a run from the store, with its "
    "rechecks and its other variant. With --namespace: delete instead the Workflows of a run "
    "with their pods, claims, Secrets and PodGroups, and wait until the pods are gone; its results "
    "stay in the store.",
    """
    examples:
      perfdag rm last~1
      perfdag rm 20260101T020000Z-0a1b2c3d --store s3://bench/results
      perfdag rm last --namespace bench
    """,
    option("name", metavar="RUN", help=RUN_HELP),
    [
        STORE,
        option("--namespace", "-n", help="delete the objects of the run in this namespace"),
    ],
)
def run_rm(args: argparse.Namespace) -> None:
    """Remove a run from a store, or its objects from a cluster."""
    if args.namespace is not None:
        from perfdag.runs.cluster import delete_workflows

        delete_workflows(args.name, args.namespace)
        return
    runs, plan = read_run(args.store, args.name)
    for key in removable_keys(runs, plan):
        runs.store.delete(key)
    print(f"removed run {plan.run_id} of suite {plan.suite} from {runs.store.root}")


@verb(
    "prune",
    "Remove the samples, rows and reports of runs that began before a time. The "
    "runs of baselines stay. Histories and comparisons lose the removed runs.",
    """
    examples:
      perfdag prune --keep 90d --dry-run
      perfdag prune --keep 90d --suite quick
      perfdag prune --keep 90d --store s3://bench/results
    """,
    option(
        "--keep",
        metavar="DURATION",
        type=duration,
        required=True,
        help="keep the runs of this time, for example 90d",
    ),
    STORE,
    SUITE,
    option("--dry-run", action="store_true", help="print the runs and remove none"),
)
def run_prune(args: argparse.Namespace) -> None:
    """Remove the runs that began before a time, but no baseline, and print their ids.

    A run that cannot be read, or that may not be finished, stays, and is named.
    """
    store = open_store(args.store)
    runs = RunStore(store)
    if not runs.suites_by_run:
        raise CommandError(f"store {store.root} has no run")
    protected = _protected_runs(runs)
    removed = 0
    for run_id, suite in runs.suites_by_run.items():
        age = age_of(run_id)
        if age <= args.keep or run_id in protected:
            continue
        try:
            plan = runs.plan_or_rows(run_id)
            if args.suite not in (None, plan.suite):
                continue
            if age <= UNFINISHED and suite is None:
                command = f"perfdag rm {run_id} {store_option(store.root)}"
                logger.warning(
                    f"perfdag: kept {run_id}: it has no rows yet; `{command}` removes it"
                )
                continue
            keys = removable_keys(runs, plan)
            if not args.dry_run:
                for key in keys:
                    store.delete(key)
        except PerfdagError as error:
            # Nothing is left of a run that was removed with the run that it belongs to.
            if not isinstance(error, NotStoredError) or store.list(f"runs/{run_id}"):
                logger.warning(f"perfdag: kept {run_id}: {error}")
                continue
        print(run_id)
        removed += 1
    print(f"{plural(removed, 'run')}{' would be' * args.dry_run} removed")


UNFINISHED = 7 * 86400
"""Seconds for which `prune` keeps a run without rows: it may still measure, or be resumed."""


Line = dict[str, Any]
"""A run as `ls` shows it."""
COLUMNS = ("suite", "kind", "revision", "samples", "trust", "verdict", "headline")


def _lines(runs: RunStore, suite: str | None) -> Iterator[Line]:
    """Yield the runs of a suite, or of all, the newest first."""
    for run_id in reversed(runs.suites_by_run):
        if suite and runs.suites_by_run[run_id] not in (None, suite):
            continue
        line = _line(runs, run_id)
        is_of_suite = not suite or line["suite"] in (suite, "-")
        if is_of_suite and line["kind"] != "recheck":  # a recheck is part of its run
            yield line


def _runs_table(lines: Sequence[Line]) -> str:
    """Return runs as a table. A verdict that differs from the last one of its suite is bold."""
    names = [name for name in COLUMNS if any(line[name] for line in lines)]
    cells = []
    styles = []
    last_verdicts: dict[str, str] = {}
    for line in lines:
        run_id = line["run_id"]
        cells.append([run_id, _age(run_id), *(line[name] for name in names)])
        verdict = line["verdict"]
        is_new = last_verdicts.get(line["suite"], verdict) != verdict
        styles.append(f"bold {verdict}" if is_new else verdict)
        last_verdicts[line["suite"]] = verdict
    return text_table(["run", "age", *names], cells, styles=styles)


def _line(runs: RunStore, run_id: str) -> Line:
    """Return a run as `ls` shows it, by its rows, or by its plan where it has no rows."""
    files = runs.store.list(f"runs/{run_id}")
    suite = runs.suites_by_run[run_id]
    line: Line = {
        "run_id": run_id,
        "suite": suite or "-",
        **dict.fromkeys(("kind", "samples", "trust", "revision", "verdict", "headline"), ""),
        "report": report_key(run_id) in files,
    }
    try:
        if suite is None:
            line |= _planned(runs.plan(run_id), files)
        else:
            line |= _measured(read_rows(runs.store.get(result_key(suite, run_id))))
    except NotStoredError:
        line |= {"kind": "-", "samples": "plan.json is gone"}
    except DamagedError:
        line |= {"kind": "-", "samples": "plan.json is damaged"}
    except NewerSchemaError:
        line["samples"] = "newer schema: update perfdag"
    except (pa.ArrowInvalid, OSError):
        line["samples"] = "damaged: perfdag collect RUN"
    return line


def _planned(plan: Plan, files: Sequence[str]) -> dict[str, str]:
    """Return what the plan of a run tells of it, and how many of its samples are stored."""
    stored = sum("/parts/" in key and "/canary" not in key for key in files)
    names = sorted({revision.name for revision in plan.revisions.values()})
    return {
        "suite": plan.suite,
        "kind": _kind(plan.trigger),
        "samples": f"{stored} of {len(plan.order)} stored",
        "revision": " | ".join(map(short_revision, names)),
    }


def _measured(rows: pa.Table) -> dict[str, str]:
    """Return what the rows of a run tell of it."""
    summary = summarise(rows)
    return {
        "kind": _kind(rows["trigger"][0].as_py() if rows.num_rows else ""),
        "samples": statuses_text(summary.statuses),
        "trust": summary.trust.level,
        "revision": " | ".join(map(short_revision, distinct(rows["revision"]))),
    }


def _kind(trigger: str | None) -> str:
    """Return the kind of a run by its trigger. A run by hand is of no special kind."""
    return "" if trigger in (None, "manual") else trigger


def _add_verdicts(store: Store, lines: Sequence[Line]) -> None:
    """Add the verdict on each run with a history, and its value of what is the worst now.

    Raises StoreError.
    """
    from perfdag.analysis.gate import series_by_cluster
    from perfdag.analysis.history import headline_series, verdicts_by_run
    from perfdag.analysis.medians import read_run_medians
    from perfdag.analysis.verdict import RANK

    by_id = {line["run_id"]: line for line in lines}
    for suite in {line["suite"] for line in lines if line["trust"]}:
        for runs, all_series in series_by_cluster(store, read_run_medians(store, suite))[1]:
            series_of_suite = headline_series(all_series)
            verdicts = verdicts_by_run(series_of_suite, runs)
            worst = min(
                series_of_suite, key=lambda series: RANK.index(series.verdict.kind), default=None
            )
            for at, (run, verdict) in enumerate(zip(runs.runs, verdicts, strict=True)):
                line = by_id.get(run.run_id, {})
                line["verdict"] = verdict or "first run"
                if worst and isfinite(worst.value[at]):
                    value = short(worst.value[at], worst.info.display_unit)
                    bars = spark(worst.value[: at + 1].tolist())
                    line["headline"] = f"{worst.label} {value} {bars}".rstrip()


def _age(run_id: str) -> str:
    """Return how long ago a run began, in its largest unit: 40 s, 5 min, 3 h, 12 d."""
    seconds = max(age_of(run_id), 0)
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    return next(
        f"{seconds // size:.0f} {unit}" for size, unit in units if seconds >= size or size == 1
    )


def removable_keys(runs: RunStore, plan: Plan) -> list[str]:
    """Return the keys of a run and its companions. The run's own folder is the last.

    It names the others, so that a second attempt finds them. Raises CommandError if one of the runs
    is a baseline or is being measured on this machine, and StoreError.
    """
    protected = _protected_runs(runs)
    plans = _with_companions(runs, plan)
    if protected_run := next((run.run_id for run in plans if run.run_id in protected), None):
        name = protected[protected_run]
        raise CommandError(
            f"run {protected_run} belongs to baseline {name}; set the baseline to another run: "
            f"perfdag baseline set {shlex.quote(name)} RUN {store_option(runs.store.root)}"
        )
    for run in plans:
        with only_process(run):  # none measures it
            pass
    keys: list[str] = []
    for run in plans:
        # A roll-up would keep the figures of the run, which another file may replace.
        rollup = rollup_key(run.suite, month_of(run.run_id))
        keys += [result_key(run.suite, run.run_id), rollup, run_folder(run.run_id)]
    return keys


def _with_companions(runs: RunStore, plan: Plan) -> list[Plan]:
    """Return the rechecks of a run, the other variant of an ab, and the run itself."""
    companions = []
    for name in filter(None, [*plan.options.rechecks, plan.options.other]):
        with contextlib.suppress(NotStoredError):
            companions.append(runs.plan(name))
    return [*companions, plan]


def _protected_runs(runs: RunStore) -> dict[str, str]:
    """Return the runs of baselines and their companions, each with the name of a baseline."""
    protected = {
        run: name
        for name, suites in baselines(runs.store).items()
        for entry in suites.values()
        for run in entry.runs
    }
    for run, name in list(protected.items()):
        with contextlib.suppress(NotStoredError):
            protected |= {plan.run_id: name for plan in _with_companions(runs, runs.plan(run))}
    return protected
