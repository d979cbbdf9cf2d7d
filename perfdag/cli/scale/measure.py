"""`perfdag scale measure`: workloads that others create."""

import argparse

from perfdag.cli.options import log, print_now
from perfdag.cli.scale.command_options import add_command, add_context, add_folder


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "measure",
        "observe workloads that others create",
        "Observe the workloads of an operator, a Helm release or another load generator, from "
        "their creation. Start it before they are created. Exit with 1 if not all are done.",
    )
    add_folder(parser)
    add_context(parser)
    parser.add_argument(
        "--selector", "-l", required=True, metavar="LABELS", help="label selector, as in kubectl"
    )
    parser.add_argument(
        "--kind",
        default="Pod",
        metavar="KIND[.GROUP]",
        help="kind that has the labels; its pods are found by their owners (default: Pod)",
    )
    parser.add_argument(
        "--namespace", nargs="+", default=[], help="namespaces (default: all of the cluster)"
    )
    parser.add_argument(
        "--for",
        dest="seconds",
        type=float,
        metavar="SECONDS",
        help="how long (default: until all are ready or ended, and no new one came for 10 s)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=900.0,
        metavar="SECONDS",
        help="without --for: how long at most (default: 900)",
    )
    parser.add_argument(
        "--existing",
        action="store_true",
        help="also measure those that were there before, by the API's whole seconds",
    )
    parser.set_defaults(command_run=run)


def run(args: argparse.Namespace) -> int:
    """Observe the workloads."""
    from perfdag.app.scale import commands
    from perfdag.steps.scale.scenarios.foreign import Request

    if min(args.timeout, 1.0 if args.seconds is None else args.seconds) <= 0:
        raise ValueError("--for and --timeout are above 0 seconds")
    return commands.measure(
        commands.open_session(args.context, args.output_dir, args.settings, print_now, log),
        Request(
            args.selector,
            args.kind,
            args.namespace,
            args.seconds,
            args.timeout,
            existing=args.existing,
            log=log,
        ),
    )
