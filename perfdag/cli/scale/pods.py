"""`perfdag scale gated`: the scheduler alone."""

import argparse

from perfdag.cli.options import log, print_now
from perfdag.cli.scale.command_options import (
    add_command,
    add_context,
    add_folder,
    add_lock,
    add_namespaces,
    add_parallel,
)


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "gated",
        "the scheduler alone",
        "Create pods with a scheduling gate, release them together, and report the pods scheduled "
        "per second. Exit with 3 if a gate fails or has no data.",
    )
    add_folder(parser)
    add_context(parser)
    parser.add_argument("--count", type=int, default=100, help="pods (default: 100)")
    parser.add_argument("-g", "--gpus", type=int, default=1, help="GPUs a pod (default: 1)")
    add_parallel(parser)
    add_namespaces(parser, "perfdag-scale")
    parser.add_argument(
        "--timeout", type=float, default=900.0, help="seconds for each wait (default: 900)"
    )
    parser.add_argument(
        "--gate",
        action="append",
        default=[],
        metavar="'METRIC < VALUE'",
        help="limit of a metric, also as RATIO * METRIC; repeat the option to add more",
    )
    add_lock(parser)
    parser.set_defaults(command_run=run)


def run(args: argparse.Namespace) -> int:
    """Measure the scheduler."""
    from perfdag.app.scale.commands import open_session
    from perfdag.app.scale.scenarios import gated
    from perfdag.steps.scale.figures.gates import parse_gate
    from perfdag.steps.scale.scenarios.submit import Spec

    if min(args.count, args.parallel) < 1:
        raise ValueError("--count and --parallel must be 1 or more")
    session = open_session(args.context, args.output_dir, args.settings, print_now, log)
    spec = Spec(
        template="pod",
        count=args.count,
        namespaces=args.namespace,
        parallel=args.parallel,
        gpus=args.gpus,
        timeout=args.timeout,
        gates=[parse_gate(text) for text in args.gate],
        log=log,
    )
    return gated(session, spec, args.lock_timeout)
