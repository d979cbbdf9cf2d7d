"""`perfdag step`: the steps of a run on a cluster, which its containers call."""

import argparse
import os
from pathlib import Path

from perfdag.commands.options import duration, print_now
from perfdag.signals import EXIT_FAILED, EXIT_OK

PENDING = "how long Argo lets pods of a batch be Pending"
EPILOG = """examples:
  perfdag step rsh 10.0.0.7 hostname
"""


def add_step(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "step",
        description="The steps of a run on a cluster. The WorkflowTemplates call them, and the "
        "environment of a container tells which run and batch they belong to.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    steps = parser.add_subparsers(dest="step", metavar="STEP", required=True)
    for name, text, run in (
        ("plan", "make the plan, the run's key pair and claims", plan),
        ("recheck", "plan rechecks of suspicious points", recheck),
    ):
        step = steps.add_parser(name, help=text)
        step.add_argument("--out", type=Path, required=True, help="folder of the output parameters")
        step.set_defaults(run=run)
    watching = steps.add_parser("watchdog", help="record why pods cannot start")
    watching.add_argument("--pending", metavar="TIME", default="", help=PENDING)
    watching.set_defaults(run=watchdog)
    for name, text, run in (
        ("lead", "measure a batch", lead),
        ("peer", "serve the lead", peer),
    ):
        rank = steps.add_parser(name, help=text)
        rank.add_argument("--batch", type=int, required=True)
        rank.add_argument("--rank", type=int, required=True)
        rank.add_argument("--attempt", type=int, default=0, help="number of the attempt, from 0")
        rank.add_argument("--attempts", type=int, default=0, help="number of the last attempt")
        rank.add_argument("--port", type=int, default=0, help="port of a peer's sshd")
        rank.add_argument("--pending", metavar="TIME", default="", help=PENDING)
        rank.set_defaults(run=run)
    reach = steps.add_parser("reach", help="check the store, and list the benchmarks")
    reach.set_defaults(run=check_store)
    last = steps.add_parser("finish", help="collect, report, check")
    last.add_argument("--phase", default="Succeeded", help="phase of the Workflow")
    last.set_defaults(run=finish)
    newest = steps.add_parser("age", help="check the age of the newest run")
    newest.add_argument("--suite", required=True)
    newest.add_argument("--max-age", required=True, type=duration, metavar="DURATION")
    newest.set_defaults(run=age)
    rsh = steps.add_parser(
        "rsh", help="run a command on a peer of this gang (an MPI launcher's remote shell)"
    )
    rsh.add_argument(
        "remote_command",
        nargs=argparse.REMAINDER,
        metavar="HOST COMMAND",
        help="address of a peer, the command and its arguments",
    )
    rsh.set_defaults(run=remote_shell)


def plan(args: argparse.Namespace) -> int:
    """Plan the run and write the output parameters of the step."""
    from perfdag.app.cluster.plan_steps import plan_step

    return plan_step(args.out)


def recheck(args: argparse.Namespace) -> int:
    """Plan the rechecks and write the output parameters of the step."""
    from perfdag.app.cluster.plan_steps import recheck_step

    return recheck_step(args.out)


def watchdog(args: argparse.Namespace) -> int:
    """Watch the run until its last batch ends. Return 1 if a batch failed."""
    from perfdag.app.cluster.batch_steps import watchdog_step

    if watchdog_step(args.pending):
        return EXIT_OK
    print_now("batches failed; `argo retry` starts another watchdog for them")
    return EXIT_FAILED


def lead(args: argparse.Namespace) -> int:
    """Measure a batch with the pods of its gang."""
    from perfdag.app.cluster.batch_steps import lead

    return lead(args.batch, args.attempt, args.attempts)


def peer(args: argparse.Namespace) -> int:
    """Serve the lead of a gang."""
    from perfdag.app.cluster.peer_step import peer

    return peer(args.batch, args.attempt, args.port, args.pending)


def check_store(args: argparse.Namespace) -> int:
    """Write, read and remove an object in the store, then print the benchmarks of this image."""
    from perfdag.app.cluster.batch_steps import check_store
    from perfdag.benchmark import registry

    check_store(os.environ.get("PERFDAG_STORE", ""))
    print_now(f"benchmarks: {' '.join(registry.working())}")
    return EXIT_OK


def finish(args: argparse.Namespace) -> int:
    """Collect, report and check the run in the last step of its Workflow."""
    from perfdag.app.cluster.finish_step import finish_step

    return finish_step(args.phase)


def age(args: argparse.Namespace) -> int:
    """Check the age of the newest run of a suite."""
    from perfdag.commands.check import check_age
    from perfdag.steps.runner.pod_context import from_environment

    root, webhook = from_environment().root, os.environ.get("PERFDAG_WEBHOOK")
    line, code = check_age("last", root, args.suite, args.max_age, webhook)
    print_now(line)
    return code


def remote_shell(args: argparse.Namespace) -> int:
    """Replace this process by the command on a peer."""
    from perfdag.app.cluster.remote_shell import run_on_peer

    run_on_peer(args.remote_command, os.environ)
