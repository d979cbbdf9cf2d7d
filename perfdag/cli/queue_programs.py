"""The programs of `perfdag queue`: frontend, backend and client."""

from __future__ import annotations

import argparse
import math
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdag.steps.queue import wire

TOKEN_VARIABLE = "PERFDAG_QUEUE_TOKEN"


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the three verbs."""
    _add_frontend(verbs)
    _add_backend(verbs)
    _add_client(verbs)


def verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, about: str, examples: str
) -> argparse.ArgumentParser:
    """A verb's parser with its examples."""
    return verbs.add_parser(
        name,
        help=about,
        description=about,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _option(
    parser: argparse.ArgumentParser, name: str, default: Any, about: str, **more: Any
) -> None:
    if isinstance(default, bool):
        more["action"] = "store_true"
    elif default is not None:
        more.setdefault("type", type(default))
    shown = f"{about} (default: {default})" if default not in (None, "", False) else about
    parser.add_argument(f"--{name}", f"-{name}", default=default, help=shown, **more)


def _address(text: str) -> wire.Address:
    from perfdag.steps.queue import wire

    return wire.address(text)


def _add_frontend(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verb(
        verbs,
        "frontend",
        "queues, for clients and backends",
        "  perfdag queue frontend sleep media\n",
    )
    parser.add_argument("names", nargs="+", metavar="QUEUE", help="names of the queues")
    _option(
        parser,
        "caddr",
        "localhost:9997",
        "listen for clients at HOST:PORT; :PORT is every interface",
    )
    _option(parser, "waddr", "localhost:9999", "listen for backends")
    _option(parser, "maddr", "localhost:9998", "listen for Prometheus, path /metrics")
    _option(
        parser,
        "interval",
        0,
        "log statistics every so many seconds, 0 never; also the window of the maxima",
    )
    _option(parser, "qmax", 0, "refuse requests beyond so many waiting in a queue, 0 never")
    _option(parser, "retries", 0, "hand an item out again so many times when its backend is lost")
    _option(
        parser,
        "reply-timeout",
        0.0,
        "give an item without a limit of its own up after so many seconds, 0 never",
    )
    _option(
        parser,
        "message-timeout",
        5.0,
        "cut a peer off that does not complete a message in so many seconds",
    )
    _option(
        parser,
        "max-peers",
        8192,
        "connections at once, as far as the limit of open files (ulimit -n) admits",
    )
    _option(parser, "verbose", False, "accepted and ignored")
    parser.set_defaults(start=_frontend)


def _frontend(args: argparse.Namespace) -> int:
    import asyncio

    from perfdag.steps.queue.frontend.connection_limits import raise_file_limit
    from perfdag.steps.queue.frontend.dispatcher import Limits
    from perfdag.steps.queue.frontend.frontend import Frontend

    for name in ("interval", "qmax", "retries", "reply_timeout"):
        if not 0 <= getattr(args, name) < math.inf:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(args, name)} is below 0")
    for name in ("message_timeout", "max_peers"):
        if not 0 < getattr(args, name) < math.inf:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(args, name)} is not above 0")
    raise_file_limit(args.max_peers)
    limits = Limits(
        queue=args.qmax,
        peers=args.max_peers,
        message_seconds=args.message_timeout,
        retries=args.retries,
        reply_seconds=args.reply_timeout,
        interval=args.interval,
    )

    async def serve() -> None:
        frontend = Frontend(args.names, limits)
        await frontend.start(_address(args.caddr), _address(args.waddr), _address(args.maddr))
        clients, workers, metrics = frontend.ports
        if frontend.max_peers < limits.peers:
            say(
                f"at most {frontend.max_peers} connections at once, not {limits.peers}: ulimit -Hn admits no more open files"
            )
        say(
            f"queues {', '.join(frontend.queues)}: clients on port {clients}, backends on {workers}, metrics on {metrics}"
        )
        ended = _until_signal()
        while not ended.is_set():
            try:
                await asyncio.wait_for(ended.wait(), args.interval or None)
            except TimeoutError:
                say(frontend.summary())
        say(frontend.summary())
        await frontend.stop()

    asyncio.run(serve())
    return 0


def _add_backend(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verb(
        verbs,
        "backend",
        "one slot of a device: takes items of a queue and runs a command for each",
        "  perfdag queue backend --name sleep --backoff 0.2 -- sleep 2\n"
        "  perfdag queue backend --name media --glob '/dev/dri/renderD*' --null-in --ignore -- \\\n"
        "    /usr/bin/sample_multi_transcode -hw -device FILENAME -i::h265 /data/in.h265 -o::h265 /dev/null -n 600\n",
    )
    _option(parser, "faddr", "localhost:9999", "frontend's address for backends")
    _option(parser, "name", "sleep", "queue")
    _option(
        parser,
        "backoff",
        0.0,
        "original wire: wait n x so many seconds after the n-th empty answer; 0 exits instead",
    )
    _option(parser, "backoff-max", 5.0, "longest such wait in seconds")
    _option(parser, "limit", 0.0, "kill an item's process group after so many seconds, 0 never")
    _option(
        parser,
        "glob",
        "",
        "the first file that matches replaces FILENAME in arguments, for example a device",
    )
    _option(parser, "ignore", False, "ignore the arguments in clients' requests")
    _option(parser, "once", False, "run the command once and exit, to try it out")
    _option(parser, "dir", "", "working directory of the command")
    _option(parser, "null-in", False, "standard input from /dev/null")
    _option(parser, "null-out", False, "standard output and error to /dev/null")
    _option(
        parser, "node-env", "", "environment variable with the node's name (default: host name)"
    )
    _option(parser, "pod-env", "", "environment variable with the pod's name (default: host name)")
    _option(
        parser,
        "wire",
        "kept",
        "kept: one connection, on which the backend waits; original: one an item",
        choices=("kept", "original"),
    )
    _option(
        parser,
        "exit-when-empty",
        False,
        "exit when the queue is empty (original wire without back-off)",
    )
    _option(parser, "verbose", False, "log every item")
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- COMMAND",
        help="absolute path or built-in (sleep, usl), with arguments",
    )
    parser.set_defaults(start=_backend)


def _backend(args: argparse.Namespace) -> int:
    import os
    import socket

    from perfdag.steps.queue.backend.backend import Backend, Options, UnreachableError
    from perfdag.steps.queue.backend.workload import FILENAME, Workload, device, matching

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    host = socket.gethostname() or "localhost"
    workload = Workload(
        command,
        device=device(args.glob),
        limit=max(0.0, args.limit),
        ignore=args.ignore,
        directory=args.dir,
        null_in=args.null_in,
        null_out=args.null_out,
    )
    if args.glob:
        count = len(matching(args.glob))
        say(
            f"{FILENAME} stands for {workload.device}"
            + (f", the first of {count} that match {args.glob}" if count > 1 else "")
        )
    if args.once:
        outcome = workload.run(None, 0.0)
        if outcome.error:
            say(outcome.error)
        return 1 if outcome.retcode or outcome.timeout else 0
    options = Options(
        _address(args.faddr),
        args.name,
        pod=os.environ.get(args.pod_env, "") or host,
        node=os.environ.get(args.node_env, "") or host,
        backoff=0.0 if args.exit_when_empty else args.backoff,
        backoff_max=max(args.backoff, args.backoff_max),
        kept=args.wire == "kept" and not args.exit_when_empty,
        verbose=args.verbose,
    )
    backend = Backend(options, workload)
    backend.catch_signals()
    say(f"backend of queue {args.name!r} at {args.faddr}: {' '.join(command)}")
    try:
        backend.serve()
    except UnreachableError as error:
        print(f"perfdag queue: {error}", file=sys.stderr)
        return 4
    say(f"{backend.completed} items done")
    return 0


def _add_client(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verb(
        verbs,
        "client",
        "sends requests to a queue, in a closed loop or at a rate, with a control port",
        "  perfdag queue client --name sleep --req-now 2 --req-max 16\n"
        "  perfdag queue client --name sleep --rate 50 --poisson --duration 60\n"
        "  curl 'localhost:9996/parallel?value=4&type=plain'\n",
    )
    _option(
        parser,
        "caddr",
        "localhost:9996",
        "listen for control: /parallel?value=N, /reset, /stats, /fails, /nodes, /pods, /reqs-per-sec",
    )
    _option(parser, "faddr", "localhost:9997", "frontend's address for clients")
    _option(parser, "name", "sleep", "queue")
    _option(parser, "limit", 0.0, "limit of an item's run time in seconds, 0 for none")
    _option(parser, "req-now", 1, "requests in parallel at the start")
    _option(parser, "req-max", 2, "most requests in parallel")
    _option(
        parser,
        "retries",
        None,
        "times an item is handed out again when its backend is lost (default: as the frontend has it)",
        type=int,
    )
    _option(parser, "rate", 0.0, "open loop: requests a second, instead of a number in parallel")
    _option(parser, "poisson", False, "open loop with exponential gaps instead of even ones")
    _option(parser, "seed", 1, "of the exponential gaps")
    _option(
        parser,
        "duration",
        0.0,
        "stop after so many seconds and print the statistics as JSON, 0 never",
    )
    _option(
        parser,
        "drain",
        30.0,
        "open loop: seconds to wait for answers after --duration; what is missing then has failed",
    )
    _option(
        parser,
        "wire",
        "kept",
        "kept: one connection for all requests; original: one a request",
        choices=("kept", "original"),
    )
    _option(parser, "verbose", False, "accepted and ignored")
    parser.add_argument(
        "args",
        nargs=argparse.REMAINDER,
        metavar="-- ARGS",
        help="arguments added to the backend's command",
    )
    parser.epilog = (
        parser.epilog or ""
    ) + f"\nWith {TOKEN_VARIABLE} set, the control port wants it as bearer token or password.\n"
    parser.set_defaults(start=_client)


def _client(args: argparse.Namespace) -> int:
    import asyncio
    import json
    import os

    from perfdag.steps.queue import http
    from perfdag.steps.queue.client import control, load
    from perfdag.steps.queue.client.stats import ClientStats

    if not 0 <= args.req_now <= args.req_max <= 4096:
        raise ValueError(
            f"parallel requests must be 0 <= --req-now ({args.req_now}) <= --req-max ({args.req_max}) <= 4096"
        )
    for name in ("duration", "drain"):
        if not 0 <= getattr(args, name) < math.inf:
            raise ValueError(f"--{name} {getattr(args, name):g} is no time")
    if args.poisson and not args.rate:
        raise ValueError("--poisson wants a --rate")
    if args.retries is not None and args.wire == "original":
        raise ValueError("--retries goes with --wire kept: the original wire has no word for it")
    here = _address(args.caddr).host in ("localhost", "127.0.0.1", "::1")
    if not (here or os.environ.get(TOKEN_VARIABLE) or "KUBERNETES_SERVICE_HOST" in os.environ):
        raise ValueError(
            f"--caddr {args.caddr} lets others control this client; set {TOKEN_VARIABLE}, or listen on localhost"
        )
    words = args.args[1:] if args.args[:1] == ["--"] else args.args
    work = load.Work(args.name, list(words), args.limit, args.retries)

    async def serve() -> int:
        client_stats = ClientStats()
        frontend = _address(args.faddr)
        wire_ = (
            load.KeptWire(frontend, work)
            if args.wire == "kept"
            else load.OriginalWire(frontend, work)
        )
        closed = None if args.rate else load.ClosedLoop(wire_, client_stats, max(1, args.req_max))
        opened = (
            load.OpenLoop(wire_, client_stats, args.rate, args.poisson, args.seed, drain=args.drain)
            if args.rate
            else None
        )
        server = await http.serve(
            _address(args.caddr),
            control.Control(client_stats, closed),
            os.environ.get(TOKEN_VARIABLE, ""),
        )
        say(
            f"requests to queue {args.name!r} at {args.faddr}, control on port {server.sockets[0].getsockname()[1]}"
        )
        ended = _until_signal()
        if closed:
            closed.set_parallel(args.req_now)
            task = asyncio.create_task(asyncio.sleep(args.duration or 1e9))
        else:
            assert opened is not None
            task = asyncio.create_task(opened.run(args.duration or 1e9))
        await asyncio.wait(
            [task, asyncio.create_task(ended.wait())], return_when=asyncio.FIRST_COMPLETED
        )
        result = client_stats.as_json()
        if opened:
            result["validity"] = opened.validity() or "valid"
        if closed:
            await closed.stop()
        server.close()
        print(
            json.dumps(result)
            if args.duration
            else control.nodes_text(client_stats) + control.stats_text(client_stats),
            flush=True,
        )
        return 1 if client_stats.failure or (opened and opened.validity()) else 0

    return asyncio.run(serve())


def _until_signal() -> Any:
    import asyncio
    import signal

    ended = asyncio.Event()
    for one in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(one, ended.set)
    return ended


def say(text: str) -> None:
    """What goes on, for whoever watches: a line on standard error."""
    print(text, file=sys.stderr, flush=True)
