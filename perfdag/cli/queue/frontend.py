"""`perfdag queue frontend`: keep queues for clients and backends."""

import argparse

from perfdag.cli.options import log
from perfdag.cli.queue.program_options import add_option, add_program


def add(programs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the program."""
    parser = add_program(
        programs,
        "frontend",
        "keep queues for clients and backends",
        "  perfdag queue frontend sleep media\n",
    )
    parser.add_argument("names", nargs="+", metavar="QUEUE", help="names of the queues")
    for name, default, text in (
        ("caddr", "localhost:9997", "listen for clients at HOST:PORT; :PORT is every interface"),
        ("waddr", "localhost:9999", "listen for backends"),
        ("maddr", "localhost:9998", "listen for Prometheus, path /metrics"),
        ("interval", 0, "seconds between lines of statistics, and window of the maxima; 0: never"),
        ("qmax", 0, "refuse requests if this many wait in a queue; 0: never"),
        ("retries", 0, "how often to hand an item out again if its backend is lost"),
        ("reply-timeout", 0.0, "seconds after which an item without its own limit fails; 0: never"),
        ("message-timeout", 5.0, "seconds after which an incomplete message ends a connection"),
        ("max-peers", 8192, "most connections, as far as `ulimit -n` admits"),
        ("verbose", False, "log all messages"),
    ):
        add_option(parser, name, default, text)
    parser.set_defaults(program_run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal."""
    from perfdag.app.queue.frontend import serve
    from perfdag.steps.queue.dispatcher import Limits

    limits = Limits(
        queue=args.qmax,
        peers=args.max_peers,
        message_seconds=args.message_timeout,
        retries=args.retries,
        reply_seconds=args.reply_timeout,
        interval=args.interval,
    )
    serve(args.names, limits, args.caddr, args.waddr, args.maddr, log)
    return 0
