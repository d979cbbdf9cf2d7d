"""`perfdag ab`: two variants of a suite in interleaved blocks, on this machine or on the same nodes of a cluster."""

import argparse
import shlex
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfdag.plan.ab import Duet
    from perfdag.results.samples import SampleRecord
    from perfdag.store.base import Store
    from perfdag.suite.point import Point

EPILOG = """examples:
  perfdag ab suites/quick.yaml --only iperf --a iperf.streams=1 --b iperf.streams=4
  perfdag ab old.yaml new.yaml --blocks 12
  perfdag ab plain.yaml kata.yaml --within 5%
  perfdag ab --resume 20261120T020000Z-1a2b3c4a
  perfdag ab suites/network.yaml --only tcp --a tcp.network.host=false --b tcp.network.host=true --submit --namespace bench --watch

each block is ABBA or BAAB at random; a difference is shown where the exact sign-flip test of the blocks gives p <= 1 %, it survives
the correction for many series (Benjamini-Hochberg, 5 %) and reaches the smallest effect asked for (5 %; `checks` of the suite).
--within 5%: B may cost 5 % more time for the same (less rate, more latency): each headline passes where its whole interval is below that, fails where
it is above, or is inconclusive; of a loss that touches 0 it may be 5 points more. Exit 3 unless all pass and none lacks values in a variant.
With --resume the limit is a new one
--submit: the pods of both variants stand on the same nodes all the time and one variant measures while the other is idle; what the idle
pods used of the CPU is in every row (env.sample.idle_cpus), and over 0.1 CPUs makes it invalid
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "ab",
        help="two variants of a suite in interleaved blocks",
        description="Measure two variants of a suite side by side in random ABBA blocks, on this machine or (--submit) on a cluster, and compare them block by block.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "suite", nargs="?", metavar="SUITE", help="suite file (variant A where a second is given)"
    )
    parser.add_argument("other", nargs="?", metavar="SUITE_B", help="suite file of variant B")
    parser.add_argument(
        "--a",
        metavar="ENTRY.PARAM=V",
        action="append",
        default=[],
        help="setting of variant A, as --set of `perfdag run`",
    )
    parser.add_argument(
        "--b", metavar="ENTRY.PARAM=V", action="append", default=[], help="setting of variant B"
    )
    parser.add_argument(
        "--set",
        metavar="ENTRY.PARAM=V",
        action="append",
        default=[],
        dest="settings",
        help="setting of both",
    )
    parser.add_argument(
        "--only",
        metavar="GLOB",
        action="append",
        default=[],
        help="only points whose entry, `entry/label` or id matches; again: or this",
    )
    parser.add_argument(
        "--blocks", metavar="N", type=int, default=10, help="blocks of ABBA, 8 to 40 (default 10)"
    )
    parser.add_argument(
        "--within",
        metavar="SHARE",
        help="what B may cost (5%% or 0.05): passes, fails or inconclusive for each headline; exit 3 unless all pass",
    )
    parser.add_argument(
        "--store",
        metavar="ROOT",
        help="folder or s3://bucket/prefix (default: the suite's, else ./perfdag-results; with --submit the installation's)",
    )
    parser.add_argument(
        "--resume", metavar="RUN", help="continue an interrupted one, or show a finished one again"
    )
    parser.add_argument(
        "--submit",
        action="store_true",
        help="on the cluster of the current context, where `perfdag install` was done",
    )
    parser.add_argument(
        "--namespace",
        "-n",
        default="perfdag",
        help="with --submit: namespace of the installation (default: perfdag)",
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="with --submit: follow the run, then print the outcome and end with its exit code",
    )
    parser.add_argument(
        "--all", action="store_true", help="every series, not the headline ones only"
    )
    parser.add_argument("--chart", metavar="FILE", help="forest plot, .svg or .png")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the outcome as JSON on stdout")
    form.add_argument("--markdown", action="store_true", help="the outcome as Markdown on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure both variants and print the outcome; exit 1 where a sample failed, 2 on bad input, 3 where B is not shown to be --within."""
    from perfdag.app.local_run import restore_samples, resumable
    from perfdag.cli.options import log
    from perfdag.results import missing_reason
    from perfdag.results.collect import collect
    from perfdag.store.open import open_store

    if args.submit:
        from perfdag.app.ab.cluster import submit

        return submit(args)
    made = prepared(args)
    if isinstance(made, str):
        print(f"perfdag ab: {made}", file=sys.stderr)
        return 2
    duet, root = made
    store = open_store(root)
    if duet.a.options.get("cluster"):
        for plan in (duet.a, duet.b):
            collect(store, plan)
        return conclude(store, duet, args)
    for plan in (duet.a, duet.b):
        if args.resume is None:
            store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
        else:
            missing_reason.forget_all(store, plan.run_id)
            restore_samples(store, plan, log)
    command = f"perfdag ab --resume {duet.a.run_id}" + (f" --store {root}" if root else "")
    # A limit given at the start is in the plan.
    command += f" --within {shlex.quote(args.within)}" if args.resume and args.within else ""
    with resumable(command):
        _measure(duet, store)
    for plan in (duet.a, duet.b):
        collect(store, plan)
    return conclude(store, duet, args)


def conclude(store: "Store", duet: "Duet", args: argparse.Namespace | None = None) -> int:
    """Compare the collected variants, print the outcome and keep it beside run A; 0, 1 where a sample was not ok, or 3 where a headline does not
    pass the limit of the duet, has no values in a variant, or none is there. Raises StoreError.
    """
    from perfdag.app.ab.outcome import tell
    from perfdag.exit_codes import EXIT_GATE
    from perfdag.regress.ab import analyse
    from perfdag.regress.tuning import Tuning
    from perfdag.results.schema import load
    from perfdag.suite.checks import checks_of

    args = args or argparse.Namespace(all=False, chart=None, json=False, markdown=False)
    rows = load(
        store,
        suites=[duet.a.suite],
        runs=[duet.a.run_id, duet.b.run_id],
        columns=["run_id", "point", "repetition", "phase", "status", "error"],
    )
    bad = {
        (each["run_id"], each["point"], each["repetition"]): each["error"] or each["status"]
        for each in rows.to_pylist()
        if each["phase"] == "measure" and each["status"] not in ("ok", "skipped")
    }
    outcome = analyse(store, duet, Tuning(checks_of(duet.a.suite_text)), everything=args.all)
    tell(args, store, duet, outcome, Counter(bad.values()))
    bounds = [line.bound.word for line in outcome.lines if line.bound]
    if "within" in duet.a.options and (outcome.absent or set(bounds) != {"passes"}):
        return EXIT_GATE
    return 1 if bad else 0


def prepared(args: argparse.Namespace) -> "tuple[Duet, str | None] | str":
    """The duet asked for and the store's root, or what is wrong with the question. Raises BadDocument, StoreError."""
    from dataclasses import replace

    from perfdag.plan.ab import prepare_duet, stored_duet
    from perfdag.results.runs import load_plan, variants
    from perfdag.store.open import open_store
    from perfdag.suite import load as suite
    from perfdag.suite.checks import share

    try:
        limit = None if args.within is None else share(args.within)
    except ValueError as error:
        return f"--within: {error}"
    if args.resume is not None:
        store = open_store(args.store)
        plan = load_plan(store, args.resume)
        if plan.trigger != "ab":
            return f"run {args.resume} is not one of `perfdag ab`"
        duet = stored_duet(*variants(store, plan))
        return (
            duet
            if limit is None
            else replace(duet, a=replace(duet.a, options={**duet.a.options, "within": limit}))
        ), args.store
    if args.suite is None:
        return "name a suite file, or --resume RUN"
    if args.other is None and not args.a and not args.b:
        return "nothing differs: give --a and --b (entry.param=value), or a second suite file"
    a = suite.load(args.suite, [*args.settings, *args.a])
    b = suite.load(args.other or args.suite, [*args.settings, *args.b])
    words = (" ".join(args.a) or args.suite, " ".join(args.b) or args.other or args.suite)
    return prepare_duet(a, b, words, args.blocks, args.only, limit), args.store or a.suite.store


class _Lines:
    """Progress as plain lines: one a block."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.bad = total, 0, 0

    def started(self, point: "Point", repetition: int) -> None:
        """A sample begins."""

    def ended(self, point: "Point", part: "SampleRecord") -> None:
        """A sample ended."""
        self.done += 1
        if part.status != "ok":
            self.bad += 1
            print(f"  {point.entry} {point.label}: {part.status}: {part.error}", file=sys.stderr)

    def passed(self, point: "Point", repetition: int, why: str) -> None:
        """A sample is stored already."""
        self.done += 1


def _measure(duet: "Duet", store: "Store") -> None:
    """Measure the rounds of both variants in the order of the blocks; what is stored is not repeated. The budget is that of both."""
    from perfdag.app.local_run import measuring_loop
    from perfdag.cli.options import log
    from perfdag.plan.ab import positions
    from perfdag.results import missing_reason
    from perfdag.units import short_seconds

    watcher = _Lines(len(duet.a.order) + len(duet.b.order))
    plans = {"A": duet.a, "B": duet.b}
    leads = {letter: measuring_loop(plan, store, watcher, log) for letter, plan in plans.items()}
    expected = short_seconds(duet.a.seconds() + duet.b.seconds())
    print(
        f"ab {duet.a.run_id} and {duet.b.run_id}: {len(duet.blocks)} blocks, {watcher.total} samples, about {expected}",
        file=sys.stderr,
    )
    budget = duet.a.budget
    deadline = time.monotonic() + budget if budget else None
    for i, (letter, repetition) in enumerate(
        [("A", 0), ("B", 0), *duet.rounds()], -2
    ):  # warm-up rounds first
        if i >= 0 and i % 4 == 0:
            print(
                f"block {i // 4 + 1} of {len(duet.blocks)}  {duet.blocks[i // 4]}  {watcher.done} of {watcher.total} samples",
                file=sys.stderr,
            )
        if not leads[letter].measure(positions(plans[letter], repetition), deadline=deadline):
            for lead in leads.values():
                missing_reason.write(
                    lead.store, lead.plan.run_id, missing_reason.budget_spent(budget or 0)
                )
            break
