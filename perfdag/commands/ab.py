"""`perfdag ab`: compare two variants of a suite in interleaved blocks."""

import argparse
import asyncio
import logging
import shlex
from pathlib import Path

from perfdag.commands.options import (
    EXIT_OK,
    FORCE,
    JSON,
    NAMESPACE,
    ONLY,
    SET,
    SUITE_HELP,
    WATCH,
    CommandError,
    duration,
    end_once,
    option,
    print_json,
    verb,
)
from perfdag.plan import Duet, on_cluster, prepare_duet, stored_duet
from perfdag.redaction import print_now
from perfdag.results.run_store import RunStore, put_plan, variants
from perfdag.runs.duet import outcome_card, outcome_junit, outcome_text
from perfdag.runs.local import absent_program, check_samples, measure_duet, refuse_absent_programs
from perfdag.stats.paired import LOOKS
from perfdag.stats.robust import MOST_BLOCKS
from perfdag.steps.pods.plan import kinds_of
from perfdag.store.base import store_option
from perfdag.store.s3 import open_store
from perfdag.suite.load import command_suite, load_suite
from perfdag.suite.model import share
from perfdag.terminal import plan_text

logger = logging.getLogger(__name__)


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
    option("--card", action="store_true", help="write card.png too, as `perfdag report --card`"),
    [JSON, option("--markdown", action="store_true", help="print Markdown")],
)
def run(args: argparse.Namespace) -> int:
    """Measure what is not stored yet and print the outcome, or submit. Return the exit code.

    A run of a cluster is only compared. Raises CommandError, BadDocument, StoreError.
    """
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
    if args.submit and args.junit:
        raise CommandError("--junit has the outcome: give it with --resume, once the run has ended")
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
        key = f"runs/{duet.a.run_id}/card.png"
        store.put(key, outcome_card(outcome))
        logger.info(f"card {store.url(key)}")
    text = outcome_text(outcome, store, markdown=args.markdown)
    print_json(outcome.data()) if args.json else print(text)
    return outcome.exit_code


def compare_commands(args: argparse.Namespace) -> int:
    """Measure the two commands of `perfdag run -- A ::: B` in turn. Return the exit code.

    Raises BadDocument, CommandError, StoreError.
    """
    at = args.command.index(":::")
    commands = args.command[:at], args.command[at + 1 :]
    if args.suite or args.resume or args.history or not all(commands) or ":::" in commands[1]:
        raise CommandError("name two commands: perfdag run -- A ::: B")
    for command in commands:
        if text := absent_program(command[0]):
            raise CommandError(text)
    a, b = (command_suite(each, args.settings, commands[0][0]) for each in commands)
    labels = shlex.join(commands[0]), shlex.join(commands[1])
    duet = prepare_duet(a, b, labels, BLOCKS)
    if args.dry_run:
        print(plan_text(duet.a), plan_text(duet.b), sep="\n")
        return EXIT_OK
    end_once()
    store, outcome = measure_duet(duet, args.store, force=args.force)
    if args.json:
        print_json(outcome.data())
    else:
        print(outcome_text(outcome, store))
    return outcome.exit_code


def plan_variants(args: argparse.Namespace, root: str | None) -> tuple[Duet, str | None]:
    """Plan both variants, or read the stored plans. Return them and the address of the store.

    Without --submit this machine measures them, and must have their programs. Raises CommandError,
    BadDocument, StoreError.
    """
    try:
        limit = None if args.within is None else share(args.within)
    except ValueError as error:
        raise CommandError(f"--within: {error}") from None
    if args.resume is not None:
        runs = RunStore(open_store(root))
        plan = runs.plan(args.resume, of_ab=True)
        if plan.trigger != "ab":
            raise CommandError(f"run {args.resume} is not a run of `perfdag ab`")
        duet = stored_duet(*variants(runs.store, plan))
        for variant in (duet.a, duet.b):
            check_samples(runs.store, variant)
        if limit is not None:  # it replaces the one that the run has
            duet.a.options.within = limit
            put_plan(runs.store, duet.a)
        return duet, root
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
    for plan, command in ((duet.a, args.a_do), (duet.b, args.b_do)):
        plan.options.do = command or ""
        if not args.blocks:
            plan.options.looks = len(LOOKS)
            plan.budget = args.seconds or plan.budget
    for loaded, plan in () if args.submit else ((a, duet.a), (b, duet.b)):
        refuse_absent_programs(loaded, plan)
    return duet, root or a.suite.store


def submit_variants(args: argparse.Namespace) -> int:
    """Store both plans, create the Workflow, and follow it with --watch. Return the exit code.

    Raises CommandError, BadDocument, StoreError, KubeError.
    """
    from perfdag.runs.cluster import follow_run, installed_store, start_run

    namespace = args.namespace
    root = installed_store(namespace)
    if args.store not in (None, root):
        raise CommandError(f"the installation of namespace {namespace} has the store {root}")
    if not root.startswith("s3://"):
        raise CommandError(
            f"--submit needs an s3:// store that this machine reaches, not {root}: "
            "both plans are stored there"
        )
    duet, _ = plan_variants(args, root)
    store = open_store(root)
    if args.resume is None:
        duet = on_cluster(duet)
        kinds_of(duet.a)
        for plan in (duet.a, duet.b):
            put_plan(store, plan)
    elif not duet.a.options.cluster:
        raise CommandError(
            f"{args.resume} was measured on one machine; resume it there, without --submit"
        )
    name = start_run(namespace, duet.a.run_id, duet.a.suite, duet.a.options.priority)
    print_now(f"ab {duet.a.run_id} and {duet.b.run_id}, workflow {name} in namespace {namespace}")
    if args.watch:
        return asyncio.run(follow_run(name, namespace))
    print(f"follow it: perfdag status {name} --namespace {namespace}")
    print(f"then:      perfdag ab --resume {duet.a.run_id} {store_option(root)}")
    return EXIT_OK
