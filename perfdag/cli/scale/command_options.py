"""Options that several commands of `perfdag scale` share."""

import argparse
from pathlib import Path


def add_command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    summary: str,
    description: str,
) -> argparse.ArgumentParser:
    """Add and return the parser of a command."""
    return commands.add_parser(name, help=summary, description=description)


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Add the folder and its settings."""
    parser.add_argument(
        "-o", "--output-dir", type=Path, metavar="DIR", help="folder of the files (default: logs)"
    )
    parser.add_argument(
        "--settings",
        type=Path,
        metavar="FILE",
        help="YAML of settings: submitter, project, backend_times ...",
    )


def add_context(parser: argparse.ArgumentParser) -> None:
    """Add the option that selects the cluster."""
    parser.add_argument("--context", help="context of the kubeconfig")


def add_lock(parser: argparse.ArgumentParser) -> None:
    """Add the option that limits the wait for other performance runs."""
    parser.add_argument(
        "--lock-timeout",
        type=float,
        default=3600.0,
        help="seconds to wait for another performance run (default: 3600)",
    )


def add_variables(parser: argparse.ArgumentParser) -> None:
    """Add the option that sets placeholders of a template."""
    parser.add_argument(
        "--var",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set a placeholder of the template; repeat the option to set more",
    )


def add_arrivals(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how objects arrive."""
    parser.add_argument(
        "--arrival",
        choices=("closed", "constant", "poisson", "burst", "ramp"),
        help="how objects arrive",
    )
    parser.add_argument(
        "--rate", type=float, default=0.0, metavar="PER_S", help="objects a second of an open loop"
    )
    parser.add_argument(
        "--burst", type=int, metavar="N", help="objects at once, with --arrival burst"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of Poisson arrivals")


def add_namespaces(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the namespaces of a scenario."""
    parser.add_argument(
        "--namespace",
        nargs="+",
        default=[default],
        help=f"namespaces, used in turn (default: {default})",
    )


def add_parallel(parser: argparse.ArgumentParser) -> None:
    """Add the number of creations in flight."""
    parser.add_argument(
        "--parallel", type=int, default=20, help="creations in flight (default: 20)"
    )
