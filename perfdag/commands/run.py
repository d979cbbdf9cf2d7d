"""`perfdag plan`, `run` and `ab`: what a suite measures, on this machine, once or as two variants.

What only `ab` needs is imported where it is used, so that `run` starts fast.
"""

import argparse
import asyncio
import contextlib
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

import orjson

from perfdag.commands.options import (
    EXIT_OK,
    FORCE,
    HISTORY,
    JSON,
    NAMESPACE,
    ONLY,
    SET,
    SUITE_HELP,
    WATCH,
    CommandError,
    check_resume,
    duration,
    end_once,
    logger,
    option,
    print_json,
    verb,
)
from perfdag.plan import Duet, duet_on_cluster, make_plan, prepare_duet, stored_duet, with_revisions
from perfdag.redaction import print_now
from perfdag.results.run_store import (
    ANY,
    RunStore,
    put_plan,
    variants,
    with_learned_times,
)
from perfdag.runs.local import (
    absent_program,
    check_samples,
    measure_duet,
    refuse_absent_programs,
    refuse_to_resume,
    run_plan,
)
from perfdag.stats.robust import MOST_BLOCKS
from perfdag.store.base import StoreError, store_option
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
    if ":::" in args.command:
        return compare_commands(args)
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
        if args.command:
            loaded = _suite_of_command(args.command, args.settings)
        else:
            loaded = load_suite(args.suite, args.settings)
        plan = with_revisions(make_plan(loaded, only=args.only), loaded)
        if not args.command:
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


def _suite_of_command(
    argv: Sequence[str], settings: Sequence[str], name: str = ""
) -> model.LoadedSuite:
    """Return a suite that measures a command. Raises CommandError where its program is absent."""
    if text := absent_program(argv[0]):
        raise CommandError(text)
    return command_suite(argv, settings, name)


BLOCKS = 10
"""Blocks of ABBA, unless --blocks says another number."""


def _blocks(text: str) -> int:
    """Return a number of blocks, 0 for `auto`. Raises ArgumentTypeError."""
    if text == "auto":
        return 0
    if not text.isdecimal() or text == "0":
        raise argparse.ArgumentTypeError(f"{text!r}: write a number, or auto")
    return int(text)


@verb(
    "ab",
    "Measure two variants of a suite in random ABBA blocks, on this machine or (--submit) on a "
    "cluster, and compare them block by block.",
    """
    examples:
      perfdag ab suites/quick.yaml --only iperf \\
          --a iperf.streams=1 --b iperf.streams=4
      perfdag ab old.yaml new.yaml --blocks 12
      perfdag ab plain.yaml traced.yaml --within 5% --junit ab.xml
      perfdag ab disk.yaml --a-do 'echo none >/sys/block/sda/queue/scheduler' \\
          --b-do 'echo bfq >/sys/block/sda/queue/scheduler'
      perfdag ab --resume 20261120T020000Z-1a2b3c4a
      perfdag ab suites/network.yaml --only tcp --a tcp.congestion=cubic \\
          --b tcp.congestion=bbr --submit

    Each block is ABBA or BAAB at random. A difference is shown if three things hold: the exact
    sign-flip test of the blocks gives p <= 1 %; it survives the correction for many series
    (Benjamini-Hochberg, 5 %); it reaches the smallest effect (5 %; `checks` of the suite).

    --within 5% lets B cost 5 % more: less of a rate, more of a latency. What alerts, by default the
    headlines, is within if its whole interval is below that, and beyond if it is above. The limit
    of a loss that touches 0 is 5 percentage points. The exit code is 0 if all is within, 1 if a
    sample failed, 3 if a series is beyond or lacks values in a variant, and 5 if the noise hides
    it. In JUnit XML that is passed, a failure where a series is beyond, and else an error. With
    --resume the limit replaces the one of the run.

    --blocks auto looks at the blocks after 10, 20 and 40 of them, or when the time of --for is
    over, and ends as soon as all is decided. Its intervals are wider, because it looks more often.

    --a-do and --b-do are commands of a shell, which set this machine before the turns of a variant.
    Both run once before anything is measured, and one that fails ends the run. The last one that
    runs is that of A.

    --submit lets the same pods measure both variants in turn. So the variants may differ in params,
    not in what pods have: image, network, resources and the like.
    """,
    option(
        "suite", nargs="?", metavar="SUITE", help=f"{SUITE_HELP}, of variant A if SUITE_B follows"
    ),
    option("other", nargs="?", metavar="SUITE_B", help="suite file of variant B"),
    *(
        option(
            f"--{name}",
            metavar="ENTRY.PARAM=V",
            action="append",
            default=[],
            help=f"setting of variant {name.upper()} alone, as --set",
        )
        for name in ("a", "b")
    ),
    *(
        option(
            f"--{name}-do",
            metavar="COMMAND",
            help=f"command of a shell that makes variant {name.upper()} of this machine",
        )
        for name in ("a", "b")
    ),
    SET,
    ONLY,
    option(
        "--blocks",
        metavar="N",
        type=_blocks,
        default=BLOCKS,
        help="blocks of ABBA, 8 to 40; auto: up to 40, until all is decided",
    ),
    option(
        "--for",
        dest="seconds",
        metavar="DURATION",
        type=duration,
        help="with --blocks auto: the longest time for all blocks, for example 5m",
    ),
    option(
        "--within",
        metavar="SHARE",
        help="the most that B may cost (5%% or 0.05): exit 3 beyond it, 5 if the noise hides it",
    ),
    option(
        "--store",
        metavar="ROOT",
        help="folder or s3://bucket/prefix (default: the suite's, else ./perfdag-results; "
        "with --submit the installation's)",
    ),
    option(
        "--resume",
        metavar="RUN",
        help="continue an interrupted run, or show a finished one again",
    ),
    option(
        "--submit",
        action="store_true",
        help="run on the cluster of the current context, where perfdag is installed",
    ),
    NAMESPACE,
    WATCH,
    option("--all", action="store_true", help="show every series, not only headline series"),
    FORCE,
    option("--junit", metavar="FILE", type=Path, help="write JUnit XML"),
    option("--card", action="store_true", help="write card.png beside the outcome, for a chat"),
    [JSON, option("--markdown", action="store_true", help="print Markdown")],
)
def run_ab(args: argparse.Namespace) -> int:
    """Measure what is not stored yet and print the outcome, or submit. Return the exit code.

    A run of a cluster is only compared. Raises CommandError, BadDocument, StoreError.
    """
    from perfdag.runs.duet import outcome_card, outcome_junit, outcome_text

    if args.seconds and args.blocks:
        raise CommandError("--for is the time of --blocks auto")
    if args.submit and not args.blocks:
        raise CommandError("--submit starts pods for all blocks: give their number with --blocks")
    if bool(args.a_do) != bool(args.b_do):
        raise CommandError("give both --a-do and --b-do: what one sets, the other has to undo")
    if args.a_do and args.submit:
        raise CommandError("--a-do and --b-do set this machine, and --submit measures on a cluster")
    if args.a_do and args.resume:
        raise CommandError("a run that goes on has its --a-do and --b-do already")
    if args.submit and (args.junit or args.card):
        raise CommandError(
            "--junit and --card have the outcome: give them with --resume, once the run has ended"
        )
    if args.submit:
        return submit_variants(args)
    duet, root = plan_variants(args, args.store)
    end_once()
    store, outcome = measure_duet(
        duet, root, bool(args.resume), everything=args.all, force=args.force
    )
    if args.junit:
        args.junit.write_bytes(outcome_junit(outcome))
    if args.card:
        store.put(f"runs/{duet.a.run_id}/card.png", outcome_card(outcome))
    text = outcome_text(outcome, store, markdown=args.markdown)
    print_json(outcome.data()) if args.json else print(text)
    return outcome.exit_code


def compare_commands(args: argparse.Namespace) -> int:
    """Measure the two commands of `perfdag run -- A ::: B` in turn. Return the exit code.

    Raises BadDocument, CommandError, StoreError.
    """
    from perfdag.runs.duet import outcome_text

    at = args.command.index(":::")
    first = args.command[:at]
    second = args.command[at + 1 :]
    alone = not (args.suite or args.resume or args.history)
    if not alone or not first or not second or ":::" in second:
        raise CommandError("name two commands: perfdag run -- A ::: B")
    a, b = (_suite_of_command(argv, args.settings, first[0]) for argv in (first, second))
    duet = prepare_duet(a, b, (shlex.join(first), shlex.join(second)), BLOCKS)
    if args.dry_run:
        print(plan_text(duet.a), plan_text(duet.b), sep="\n")
        return EXIT_OK
    end_once()
    store, outcome = measure_duet(duet, args.store, force=args.force)
    print_json(outcome.data()) if args.json else print(outcome_text(outcome, store))
    return outcome.exit_code


def plan_variants(args: argparse.Namespace, root: str | None) -> tuple[Duet, str | None]:
    """Plan both variants, or read the stored plans. Return them and the address of the store.

    Without --submit this machine measures them, and must have their programs. Raises CommandError,
    BadDocument, StoreError.
    """
    from perfdag.stats.paired import LOOKS

    try:
        limit = None if args.within is None else model.share(args.within)
    except ValueError as error:
        raise CommandError(f"--within: {error}") from None
    if args.resume is not None:
        return _stored_variants(args.resume, root, limit), root
    if args.suite is None:
        raise CommandError("name a suite file, or --resume RUN")
    if args.other is None and not (args.a or args.b or args.a_do):
        raise CommandError(
            "the variants do not differ: add --a and --b (entry.param=value), a second suite,"
            " or --a-do and --b-do"
        )
    other = args.other or args.suite
    a = load_suite(args.suite, [*args.settings, *args.a])
    b = load_suite(other, [*args.settings, *args.b])
    labels = (
        " ".join(args.a) or args.a_do or args.suite,
        " ".join(args.b) or args.b_do or other,
    )
    duet = prepare_duet(a, b, labels, args.blocks or MOST_BLOCKS, args.only, limit)
    for loaded, plan, command in ((a, duet.a, args.a_do), (b, duet.b, args.b_do)):
        plan.options.do = command or ""
        if not args.blocks:
            plan.options.looks = len(LOOKS)
            plan.budget = args.seconds or plan.budget
        if not args.submit:
            refuse_absent_programs(loaded, plan)
    return duet, root or a.suite.store


def _stored_variants(run_id: str, root: str | None, limit: float | None) -> Duet:
    """Return the stored plans of a run, in which a limit replaces the one that it has.

    Raises CommandError, StoreError.
    """
    runs = RunStore(open_store(root))
    plan = runs.plan(run_id, of_ab=True)
    if plan.trigger != "ab":
        raise CommandError(f"run {run_id} is not a run of `perfdag ab`")
    duet = stored_duet(*variants(runs.store, plan))
    for variant in (duet.a, duet.b):
        check_samples(runs.store, variant)
    if limit is not None:
        duet.a.options.within = limit
        put_plan(runs.store, duet.a)
    return duet


def submit_variants(args: argparse.Namespace) -> int:
    """Store both plans, create the Workflow, and follow it with --watch. Return the exit code.

    Raises CommandError, BadDocument, StoreError, KubeError.
    """
    from perfdag.runs.cluster import follow_run, installed_store, start_run
    from perfdag.steps.pods.plan import kinds_of

    root = installed_store(args.namespace)
    if args.store not in (None, root):
        raise CommandError(f"the installation of namespace {args.namespace} has the store {root}")
    if not root.startswith("s3://"):
        raise CommandError(
            f"--submit needs an s3:// store that this machine reaches, not {root}: "
            "both plans are stored there"
        )
    duet, _ = plan_variants(args, root)
    store = open_store(root)
    if args.resume is None:
        duet = duet_on_cluster(duet)
        kinds_of(duet.a)
        for plan in (duet.a, duet.b):
            put_plan(store, plan)
    elif not duet.a.options.cluster:
        raise CommandError(
            f"{args.resume} was measured on one machine; resume it there, without --submit"
        )
    name = start_run(args.namespace, duet.a.run_id, duet.a.suite, duet.a.options.priority)
    runs = f"{duet.a.run_id} and {duet.b.run_id}"
    print_now(f"ab {runs}, workflow {name} in namespace {args.namespace}")
    if args.watch:
        return asyncio.run(follow_run(name, args.namespace))
    print(f"follow it: perfdag status {name} --namespace {args.namespace}")
    print(f"then:      perfdag ab --resume {duet.a.run_id} {store_option(root)}")
    return EXIT_OK
