"""`perfdag queue client`: send requests to a queue."""

import argparse
from typing import get_args

from perfdag.cli.options import log, print_now
from perfdag.cli.queue.program_options import add_option, add_program, after_dashes
from perfdag.steps.queue.client.arrivals import Arrival, Arrivals

EXAMPLES = """\
  perfdag queue client --name sleep --req-now 2 --req-max 16
  perfdag queue client --name sleep --rate 50 --arrival poisson --duration 60
  perfdag queue client --name sleep --rate 50 --arrival ramp \\
      --low 5 --period 600
  curl -X POST -H 'X-Perfdag-Token: TOKEN' \\
      'localhost:9996/parallel?value=4&type=plain'
  curl -X POST -H 'X-Perfdag-Token: TOKEN' \\
      'localhost:9996/rate?value=50&arrival=poisson'

The control port accepts only requests with the token PERFDAG_QUEUE_TOKEN, as a bearer token or
password. Without that variable the client makes a token and prints it. /parallel, /rate and /reset
change the client and take POST; the other paths take GET. /rate takes value, arrival, low, period,
seed and duration.
"""


def add(programs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the program."""
    parser = add_program(
        programs,
        "client",
        "send requests to a queue, in a closed loop or at a rate, with a control port",
        EXAMPLES,
    )
    for name, default, text in (
        (
            "caddr",
            "localhost:9996",
            "listen for control: /parallel?value=N, /rate?value=R, /reset, /stats, /fails, /nodes, "
            "/pods, /reqs-per-sec",
        ),
        ("faddr", "localhost:9997", "frontend's address for clients"),
        ("name", "sleep", "queue"),
        ("limit", 0.0, "limit of an item's run time in seconds; 0: none"),
        ("req-now", 1, "requests in parallel at the start"),
        ("req-max", 2, "most requests in parallel"),
        ("rate", 0.0, "open loop: requests a second, instead of a number in parallel"),
        ("low", 0.0, "step, ramp and spike: requests a second before and after the height"),
        ("period", 60.0, "burst, step, ramp and spike: seconds after which they repeat"),
        ("seed", 1, "poisson: seed of the exponential gaps"),
        ("duration", 0.0, "seconds after which to stop and print statistics as JSON; 0: never"),
        ("drain", 30.0, "open loop: seconds to wait for answers after --duration; then they fail"),
        ("verbose", False, "log all messages"),
    ):
        add_option(parser, name, default, text)
    add_option(
        parser,
        "arrival",
        "constant",
        "open loop: constant, poisson or burst, or a profile up to --rate: step, ramp or spike",
        metavar="HOW",
        choices=get_args(Arrival),
    )
    add_option(
        parser,
        "retries",
        None,
        "how often an item is handed out again if its backend is lost (default: the frontend's)",
        type=int,
    )
    add_option(
        parser,
        "wire",
        "kept",
        "kept: one connection for all requests; original: one per request",
        choices=("kept", "original"),
    )
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
        retries=args.retries,
        parallel=args.req_now,
        max_parallel=args.req_max,
        arrivals=_arrivals(args),
        duration=args.duration,
        drain=args.drain,
        persistent=args.wire == "kept",
    )
    text, code = serve(options, log)
    print_now(text)
    return code


def _arrivals(args: argparse.Namespace) -> Arrivals | None:
    if args.rate:
        return Arrivals(args.rate, args.arrival, args.low, args.period, args.seed)
    if args.arrival != "constant" or args.low:
        raise ValueError("--arrival and --low need a --rate")
    return None
