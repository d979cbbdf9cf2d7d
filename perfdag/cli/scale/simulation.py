"""`perfdag scale nodes` and `simulate`: simulated nodes and systems."""

import argparse

from perfdag.cli.options import print_now
from perfdag.cli.scale.command_options import add_command, add_context


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the commands."""
    parser = add_command(
        commands,
        "nodes",
        "simulated nodes",
        "Create simulated nodes with GPUs; needs KWOK on the cluster.",
    )
    add_context(parser)
    parser.add_argument("--count", type=int, default=100, help="nodes (default: 100)")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs a node (default: 8)")
    parser.add_argument("--remove", action="store_true", help="delete the simulated nodes")
    parser.set_defaults(command_run=nodes)
    parser = add_command(
        commands,
        "simulate",
        "simulate KubeVirt, Run:ai or storage",
        "Simulate KubeVirt, Run:ai or a storage class with KWOK Stages and minimal CRDs, on a "
        "cluster that has none of them.",
    )
    add_context(parser)
    parser.add_argument(
        "system",
        choices=("kubevirt", "runai", "storage"),
        help="storage: the class perfdag-simulated, whose claims are bound",
    )
    parser.add_argument(
        "--delay",
        action="append",
        default=[],
        metavar="STAGE=MS[-MS]",
        help="delay of a stage in milliseconds, uniform in a range",
    )
    parser.add_argument(
        "--failures", type=int, default=0, metavar="PERCENT", help="share of VMIs that fail"
    )
    parser.add_argument("--remove", action="store_true", help="remove the Stages and CRDs")
    parser.set_defaults(command_run=simulate)


def nodes(args: argparse.Namespace) -> int:
    """Create or delete simulated nodes."""
    from perfdag.app.scale import commands

    if args.remove:
        return commands.delete_nodes(args.context, print_now)
    return commands.create_nodes(args.context, args.count, args.gpus, print_now)


def simulate(args: argparse.Namespace) -> int:
    """Install or remove a simulation."""
    from perfdag.app.scale import commands

    if not args.remove:
        return commands.simulate(args.context, args.system, args.delay, args.failures, print_now)
    if args.delay or args.failures:
        raise ValueError("--remove takes neither --delay nor --failures")
    return commands.stop_simulation(args.context, args.system, print_now)
