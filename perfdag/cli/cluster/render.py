"""`perfdag render`: print the manifests, for kubectl or GitOps."""

import argparse

from perfdag.cli.cluster.installation_options import add_installation, installation_of
from perfdag.commands.options import CommandError, duration
from perfdag.signals import EXIT_OK

EPILOG = """examples:
  perfdag render --base --namespace bench --store s3://bench/results
  perfdag render suites/quick.yaml --namespace bench | kubectl create -f -
  perfdag render suites/quick.yaml --schedule '0 2 * * *' | kubectl apply -f -
"""


def add_render(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "render",
        description="Print manifests. With --base: what `perfdag install` applies.\n"
        "With SUITE: a Workflow for `kubectl create`, which gives it a name.\n"
        "With SUITE and --schedule: a CronWorkflow for `kubectl apply`, and a second one that "
        "fails when the newest run of the suite is too old.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suite", nargs="?", metavar="SUITE", help="suite file")
    parser.add_argument(
        "--base", action="store_true", help="print templates, service accounts and rights"
    )
    parser.add_argument(
        "--schedule",
        action="append",
        default=[],
        metavar="CRON",
        help="five fields, in UTC; repeat the option to add more",
    )
    parser.add_argument(
        "--max-age",
        type=duration,
        metavar="DURATION",
        help="with --schedule: the age of the newest run above which the second CronWorkflow fails "
        "(default for a daily schedule: 26h plus twice the expected length of a run)",
    )
    add_installation(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the manifests."""
    if not args.base and not args.suite:
        raise CommandError("name a suite file, or --base")
    from perfdag.app.cluster.render import render

    manifests = render(
        installation_of(args),
        args.suite,
        base=args.base,
        schedules=args.schedule,
        max_age=args.max_age,
    )
    print(manifests, end="")
    return EXIT_OK
