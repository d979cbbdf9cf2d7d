"""`perfdag queue`: queues, clients and backends that show whether a device scales."""

import argparse
import logging

from perfdag.cli.queue import backend, client, frontend, manifests, validate

EPILOG = """examples:
  perfdag queue frontend sleep media
  perfdag queue backend --name sleep --backoff 0.2 -- sleep 2
  perfdag queue client --name sleep --req-now 2 --req-max 16
  perfdag queue validate --local --limit 4 --factor 1.8 -- sleep 0.5
  perfdag queue manifests --queue 'sleep=sleep 2'
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb and its programs."""
    parser = sub.add_parser(
        "queue",
        description="Run work queues, their clients, and backends that each hold one slot of a "
        "device. Does throughput grow with the number of backends? Options also work with one "
        "dash, as in Intel's Device Scalability Tester.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    programs = parser.add_subparsers(dest="program", metavar="PROGRAM", required=True)
    for module in (frontend, backend, client, validate, manifests):
        module.add(programs)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run a program. Bad values and unusable files are errors of the input."""
    from perfdag.app.errors import CommandError

    if getattr(args, "verbose", False):
        from perfdag.steps.queue import wire

        logging.basicConfig(format="%(asctime)s %(message)s")
        wire.messages.setLevel(logging.DEBUG)
    try:
        code: int = args.program_run(args)
    except ValueError as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        raise CommandError(f"{name}{error.strerror or error}") from None
    return code
