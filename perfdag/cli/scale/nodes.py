"""`perfdag scale nodes`: simulated nodes."""

import argparse

from perfdag.cli.options import print_now
from perfdag.cli.scale.command_options import add_command, add_context


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
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
    parser.set_defaults(command_run=run)


def run(args: argparse.Namespace) -> int:
    """Create or delete simulated nodes."""
    from perfdag.app.scale import commands

    if args.remove:
        return commands.delete_nodes(args.context, print_now)
    return commands.create_nodes(args.context, args.count, args.gpus, print_now)
