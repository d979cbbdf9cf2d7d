"""`perfdag ab`: compare two variants of a suite in interleaved blocks."""

import argparse
import asyncio
from pathlib import Path

from perfdag.cli.options import add_suite_options, add_watch, log, print_json, print_now
from perfdag.signals import EXIT_OK

EPILOG = """examples:
  perfdag ab suites/quick.yaml --only iperf \\
      --a iperf.streams=1 --b iperf.streams=4
  perfdag ab old.yaml new.yaml --blocks 12
  perfdag ab plain.yaml traced.yaml --within 5%
  perfdag ab --resume 20261120T020000Z-1a2b3c4a
  perfdag ab suites/network.yaml --only tcp --a tcp.congestion=cubic \\
      --b tcp.congestion=bbr --submit

Each block is ABBA or BAAB at random. A difference is shown if three things hold: the exact
sign-flip test of the blocks gives p <= 1 %; it survives the correction for many series
(Benjamini-Hochberg, 5 %); it reaches the smallest effect (5 %; `checks` of the suite).

--within 5% lets B cost 5 % more: less of a rate, more of a latency. A headline passes if its whole
interval is below that, fails if it is above, and is unclear otherwise. The limit of a loss
that touches 0 is 5 percentage points. Exit 3 unless all headlines pass and none lacks values in a
variant. With --resume the limit replaces the one of the run.

--submit lets the same pods measure both variants in turn. So the variants may differ in params,
not in what pods have: image, network, resources and the like.
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "ab",
        description="Measure two variants of a suite in random ABBA blocks, on this "
        "machine or (--submit) on a cluster, and compare them block by block.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "suite", nargs="?", metavar="SUITE", help="suite file, of variant A if SUITE_B follows"
    )
    parser.add_argument("other", nargs="?", metavar="SUITE_B", help="suite file of variant B")
    for name in ("a", "b"):
        parser.add_argument(
            f"--{name}",
            metavar="ENTRY.PARAM=V",
            action="append",
            default=[],
            help=f"setting of variant {name.upper()} alone, as --set",
        )
    add_suite_options(parser)
    parser.add_argument(
        "--blocks", metavar="N", type=int, default=10, help="blocks of ABBA, 8 to 40 (default: 10)"
    )
    parser.add_argument(
        "--within",
        metavar="SHARE",
        help="the most that B may cost (5%% or 0.05); exit 3 unless each headline passes",
    )
    parser.add_argument(
        "--store",
        metavar="ROOT",
        help="folder or s3://bucket/prefix (default: the suite's, else ./perfdag-results; with "
        "--submit the installation's)",
    )
    parser.add_argument(
        "--resume", metavar="RUN", help="continue an interrupted run, or show a finished one again"
    )
    parser.add_argument(
        "--submit",
        action="store_true",
        help="run on the cluster of the current context, where perfdag is installed",
    )
    parser.add_argument(
        "--namespace",
        "-n",
        default="perfdag",
        help="with --submit: namespace of the installation (default: perfdag)",
    )
    add_watch(parser)
    parser.add_argument(
        "--all", action="store_true", help="show every series, not only headline series"
    )
    parser.add_argument("--chart", metavar="FILE", type=Path, help="forest plot, .svg or .png")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the outcome as JSON")
    form.add_argument("--markdown", action="store_true", help="print the outcome as Markdown")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure both variants and print the outcome, or submit them. Return the exit code."""
    from perfdag.app.ab import cluster, local, outcome
    from perfdag.app.ab.request import AbRequest
    from perfdag.app.cluster.watch import follow_run

    request = AbRequest(
        suite=args.suite,
        other=args.other,
        settings=args.settings,
        a=args.a,
        b=args.b,
        only=args.only,
        blocks=args.blocks,
        within=args.within,
        root=args.store,
        resume=args.resume,
    )
    if args.submit:
        submission = cluster.submit(request, args.namespace)
        print_now(submission.text)
        if args.watch:
            return asyncio.run(follow_run(submission.workflow, args.namespace, print_now, log))
        print(submission.hint)
        return EXIT_OK
    result = local.run(request, log, everything=args.all, chart=args.chart)
    if args.json:
        print_json(result.data())
    else:
        print(outcome.text(result, markdown=args.markdown))
    return result.exit_code
