"""`perfdag submit`: run a suite on a cluster."""

import argparse

from perfdag.commands.options import (
    CLUSTER_RUN,
    NAMESPACE,
    ONLY,
    SET,
    WATCH,
    add_options,
    check_resume,
    print_now,
)
from perfdag.signals import EXIT_OK

EPILOG = """examples:
  perfdag submit suites/quick.yaml --namespace bench --watch
  perfdag submit suites/quick.yaml --namespace bench \\
      --only 'iperf*' --set repetitions=5
  perfdag submit --resume 20260101T020000Z-0a1b2c3d --namespace bench --watch
"""


def add_submit(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "submit",
        description="Check a suite, then run it on the cluster of the current context, where "
        "`perfdag install` installed the templates. A bad suite creates nothing.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "suite", nargs="?", metavar="SUITE", help="suite file; not needed with --resume"
    )
    add_options(parser, SET, ONLY, NAMESPACE, WATCH)
    parser.add_argument(
        "--resume",
        metavar="RUN",
        help=f"continue this run ({CLUSTER_RUN.settings['help']}): measure only what is not "
        "stored yet",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Submit or resume a run, and follow it with --watch."""
    check_resume(args)
    import asyncio

    from perfdag.app.cluster.submission import Submission, resume_run, submit_suite
    from perfdag.app.cluster.watch import follow_run

    if args.resume:
        run_id, workflow = resume_run(args.resume, args.namespace)
    else:
        submission = Submission(args.suite, args.namespace, args.settings, args.only)
        run_id, workflow = submit_suite(submission)
    print_now(f"run {run_id}, workflow {workflow} in namespace {args.namespace}")
    if args.watch:
        return asyncio.run(follow_run(workflow, args.namespace))
    print(f"follow it: perfdag status {workflow} --namespace {args.namespace}")
    return EXIT_OK
