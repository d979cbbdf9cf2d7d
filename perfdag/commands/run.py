"""`perfdag plan` and `run`: what a suite measures, and its run on this machine."""

import argparse
import contextlib
import shlex
import shutil
from pathlib import Path

import orjson

from perfdag.commands.options import (
    EXIT_OK,
    FORCE,
    HISTORY,
    JSON,
    ONLY,
    SET,
    SUITE_HELP,
    CommandError,
    check_resume,
    end_once,
    logger,
    option,
    print_json,
    verb,
)
from perfdag.plan import make_plan, with_revisions
from perfdag.results.run_store import ANY, with_learned_times
from perfdag.runs.local import absent_program, refuse_absent_programs, refuse_to_resume, run_plan
from perfdag.store.base import StoreError
from perfdag.store.s3 import open_store
from perfdag.suite import model
from perfdag.suite.document import BadDocument
from perfdag.suite.load import command_suite, load_suite
from perfdag.terminal import plan_text


@verb(
    "plan",
    "Check a suite and show its points, shapes, batches, hosts and expected time. "
    "A bad suite is refused with all its errors.",
    """
    examples:
      perfdag plan suites/quick.yaml
      perfdag plan suites/quick.yaml --json
      perfdag plan suites/quick.yaml --only 'fio*'
      perfdag plan --schema
    """,
    option("suite", nargs="?", metavar="SUITE", help=SUITE_HELP),
    SET,
    ONLY,
    JSON,
    option(
        "--schema",
        action="store_true",
        help="print the JSON schema of suite files, for editors",
    ),
)
def show_plan(args: argparse.Namespace) -> None:
    """Print the plan or the schema."""
    if args.schema:
        options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS
        print(orjson.dumps(model.json_schema(), option=options).decode())
        return
    if args.suite is None:
        raise CommandError("name a suite file, or --schema")
    from perfdag.steps.pods.plan import kinds_of

    loaded = load_suite(args.suite, args.settings)
    plan = make_plan(loaded, only=args.only)
    with contextlib.suppress(StoreError):
        plan = with_learned_times(open_store(loaded.suite.store, patience=1.0), plan, ANY)
    print(plan.dump().decode() if args.json else plan_text(plan))
    try:
        kinds_of(plan)
    except BadDocument as error:  # `submit` and `render` would refuse it
        for problem in error.problems:
            logger.info(f"note: a cluster does not take it: {problem.text}")


@verb(
    "run",
    "Measure every point of a suite on this machine. Each sample is stored as it "
    "ends. Then collect the run, draw its charts and write its report. If the suite has "
    "`checks`, the run is checked as `perfdag check` does. The words after `--` are a command "
    "whose wall time is measured 10 times; it needs no suite, and `perfdag open last` draws "
    "its report. Two commands with `:::` between them are measured in turn and compared.",
    """
    examples:
      perfdag run suites/quick.yaml
      perfdag run suites/quick.yaml --dry-run
      perfdag run suites/quick.yaml --only 'iperf*' \\
          --set iperf.duration=2s --set repetitions=5
      perfdag run suites/quick.yaml --store s3://bench/results
      perfdag run --resume last
      perfdag run suites/quick.yaml --store head --history /srv/bench/results
      perfdag run -- sleep 0.1
      perfdag run --set repetitions=50 -- sleep 0.1
      perfdag run -- sleep 0.1 ::: sleep 0.2
    """,
    option(
        "suite",
        nargs="?",
        metavar="SUITE",
        help=f"{SUITE_HELP}; not needed with --resume or a command",
    ),
    SET,
    ONLY,
    option(
        "--store",
        metavar="ROOT",
        help="folder or s3://bucket/prefix (default: the suite's, else ./perfdag-results)",
    ),
    HISTORY,
    option(
        "--resume",
        metavar="RUN",
        help="continue this run of --store (`last`: the newest): measure only what is not "
        "stored yet",
    ),
    option("--dry-run", action="store_true", help="print the plan and stop"),
    JSON,
    option(
        "--no-recheck",
        action="store_true",
        help="do not measure points again that are beyond their level for the worse",
    ),
    option("--no-report", action="store_true", help="collect only; no charts"),
    FORCE,
    usage="perfdag run [OPTION ...] [SUITE | -- COMMAND ... [::: COMMAND ...]]",
    takes_command=True,
)
def run_suite(args: argparse.Namespace) -> int:
    """Run or resume a suite; return the exit code."""
    check_resume(args)
    if args.command and args.suite:
        raise CommandError("name a suite file or a command after `--`, not both")
    if args.suite and not Path(args.suite).exists() and shutil.which(args.suite):
        measured = f"perfdag run -- {shlex.quote(args.suite)}"
        raise CommandError(f"{args.suite} is no suite file; to measure a command: {measured}")
    root: str | None = args.store
    if args.resume is not None:
        from perfdag.results.selections import read_run

        runs, plan = read_run(root, args.resume)
        refuse_to_resume(runs.store, plan, root or "")
    else:
        command: list[str] = args.command
        if command and (text := absent_program(command[0])):
            raise CommandError(text)
        if command:
            loaded = command_suite(command, args.settings)
        else:
            loaded = load_suite(args.suite, args.settings)
        plan = with_revisions(make_plan(loaded, only=args.only), loaded)
        if not command:
            refuse_absent_programs(loaded, plan)
        root = root or loaded.suite.store
    if args.dry_run:
        print(plan.dump().decode() if args.json else plan_text(plan))
        return EXIT_OK
    end_once()
    result = run_plan(
        plan,
        root,
        resume=args.resume is not None,
        # The table says all of one command, and drawing takes longer than measuring it.
        charts=not (args.no_report or args.command),
        recheck=not args.no_recheck,
        history=args.history,
        force=args.force,
    )
    print_json(result.data()) if args.json else print(result)
    return result.exit_code
