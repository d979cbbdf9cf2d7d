"""`perfdag queue client`: send requests to a queue."""

import argparse

from perfdag.cli.options import log, print_now
from perfdag.cli.queue.program_options import add_option, add_program, after_dashes

EXAMPLES = """\
  perfdag queue client --name sleep --req-now 2 --req-max 16
  perfdag queue client --name sleep --req-now 4 --req-max 4 --duration 60
  curl -X POST -H 'X-Perfdag-Token: TOKEN' \\
      'localhost:9996/parallel?value=4&type=plain'

The control port accepts only requests with the token PERFDAG_QUEUE_TOKEN, as a bearer token or
password. Without that variable the client makes a token and prints it. /parallel and /reset change
the client and take POST; the other paths take GET.
"""


def add(programs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the program."""
    parser = add_program(
        programs,
        "client",
        "send requests to a queue in a closed loop, with a control port",
        EXAMPLES,
    )
    for name, default, text in (
        (
            "caddr",
            "localhost:9996",
            "listen for control: /parallel?value=N, /reset, /stats, /fails, /nodes, /pods, "
            "/reqs-per-sec",
        ),
        ("faddr", "localhost:9997", "frontend's address for clients"),
        ("name", "sleep", "queue"),
        ("limit", 0.0, "limit of an item's run time in seconds; 0: none"),
        ("req-now", 1, "requests in parallel at the start"),
        ("req-max", 2, "most requests in parallel"),
        ("duration", 0.0, "seconds after which to stop and print statistics as JSON; 0: never"),
        ("verbose", False, "log all messages"),
    ):
        add_option(parser, name, default, text)
    parser.add_argument(
        "args",
        nargs=argparse.REMAINDER,
        metavar="-- ARGS",
        help="arguments added to the backend's command",
    )
    parser.set_defaults(program_run=run)


def run(args: argparse.Namespace) -> int:
    """Send requests until a signal or the end of --duration, and print the statistics."""
    from perfdag.app.queue.client import ClientOptions, serve

    options = ClientOptions(
        control=args.caddr,
        frontend=args.faddr,
        queue=args.name,
        arguments=after_dashes(args.args),
        limit=args.limit,
        parallel=args.req_now,
        max_parallel=args.req_max,
        duration=args.duration,
    )
    text, code = serve(options, log)
    print_now(text)
    return code
