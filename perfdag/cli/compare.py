"""`perfdag compare`: compare two runs or selections, with a verdict for each series."""

import argparse
from pathlib import Path

from perfdag.cli.options import add_store, log, print_json
from perfdag.signals import EXIT_GATE, EXIT_OK

EPILOG = """examples:
  perfdag compare last~1 last
  perfdag compare 20261120T020000Z-1a2b3c4d 20261121T020000Z-5e6f7a8b
  perfdag compare 'suite=net month=2026-10' 'suite=net month=2026-11' --markdown
  perfdag compare baseline:v1.0 last --chart forest.svg
  perfdag compare baseline:acceptance last \\
      --store s3://bench/blue --store-b s3://bench/green

A run is its id, the beginning of its id, `last`, `last~N` (N runs before) or `baseline:NAME`.
A selection is a list of conditions: suite=, month=, since= and until= (days), run= (glob),
newest= (number of runs). The answers are worse, better, same and unclear. If exactly one
parameter of an entry was changed, its points are compared with one another, and the change is
printed first.
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "compare",
        description="Compare two runs or selections: first environment and parameters, then each "
        "series with its medians and spreads, the effect, the noise of a run, and the answer. Runs "
        "of one history are answered by its levels.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("a", metavar="A", help="run or selection to compare against")
    parser.add_argument("b", metavar="B", help="run or selection in question")
    add_store(parser)
    parser.add_argument(
        "--store-b", metavar="ROOT", help="store of B, if it differs (two clusters)"
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="show every series, not only headline series and those with a verdict",
    )
    parser.add_argument(
        "--min-effect",
        metavar="SHARE",
        help="smallest effect worth a verdict (default: `checks` of B's suite, else 5%%)",
    )
    parser.add_argument(
        "--gate", action="store_true", help="exit with 3 if a headline series is worse"
    )
    parser.add_argument("--chart", metavar="FILE", type=Path, help="forest plot, .svg or .png")
    parser.add_argument(
        "--sizes",
        metavar="FILE",
        type=Path,
        help="map of the ratios by message size (imb, rdma-*), .svg or .png",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the comparison as JSON")
    form.add_argument("--markdown", action="store_true", help="print the comparison as Markdown")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the comparison. Return 3 with --gate if a headline series is worse."""
    from perfdag.app import comparison

    result = comparison.compare_runs(
        args.a,
        args.b,
        root=args.store,
        root_b=args.store_b,
        suite=args.suite,
        min_effect=args.min_effect,
        chart=args.chart,
        sizes_chart=args.sizes,
        report=log,
    )
    if args.json:
        print_json(comparison.as_data(result))
    elif args.markdown:
        print(comparison.markdown(result, args.all))
    else:
        print(comparison.text(result, args.all))
    return EXIT_GATE if args.gate and comparison.is_worse(result) else EXIT_OK
