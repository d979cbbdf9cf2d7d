"""`perfdag queue`: queues, clients and backends that show whether a device scales."""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import socket
from functools import partial
from typing import Any

from perfdag import signals
from perfdag.commands.options import (
    EXIT_FAILED,
    EXIT_GATE,
    EXIT_OK,
    EXIT_REACH,
    JSON,
    CommandError,
    Option,
    logger,
    option,
    print_json,
    verb,
)
from perfdag.redaction import print_now
from perfdag.steps.queue import backend, protocol
from perfdag.steps.queue.client import ClientStats, Load
from perfdag.units import plural


def _dst(name: str, default: Any, text: str) -> Option:
    """Return an option that Intel's programs take with one dash. A default of False is a flag."""
    kind = {"action": "store_true"} if default is False else {"default": default}
    return option(f"--{name}", f"-{name}", help=text, **kind)


VERBOSE = _dst("verbose", False, "log all messages")


@verb(
    "queue",
    "Run work queues, their clients, and backends that each hold one slot of a device. Does "
    "throughput grow with the number of backends? Options also work with one dash, as in Intel's "
    "Device Scalability Tester.",
    """
    examples:
      perfdag queue frontend sleep media
      perfdag queue backend --name sleep --backoff 0.2 -- sleep 2
      perfdag queue client --name sleep --req-now 2 --req-max 16
      perfdag queue validate --local --limit 4 --factor 1.8 -- sleep 0.5
      perfdag queue manifests --queue 'sleep=sleep 2'
    """,
)
def run_queue(args: argparse.Namespace) -> int:
    """Run a program. Bad values and unusable files are errors of the input."""
    if getattr(args, "verbose", False):
        protocol.messages.setLevel(logging.DEBUG)
    try:
        return int(args.work(args) or EXIT_OK)
    except ValueError as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        raise CommandError(f"{name}{error.strerror or error}") from None


def after_dashes(argv: list[str]) -> list[str]:
    """Return the words without a leading `--`."""
    return argv[1:] if argv[:1] == ["--"] else argv


@verb(
    "queue frontend",
    "Keep queues for clients and backends.",
    """
    examples:
      perfdag queue frontend sleep media
    """,
    option("names", nargs="+", metavar="QUEUE", help="names of the queues"),
    _dst(
        "caddr",
        "localhost:9997",
        "listen for clients at HOST:PORT; :PORT is every interface",
    ),
    _dst("waddr", "localhost:9999", "listen for backends"),
    _dst("maddr", "localhost:9998", "listen for Prometheus, path /metrics"),
    _dst(
        "interval",
        0,
        "seconds between lines of statistics, and window of the maxima; 0: never",
    ),
    _dst("qmax", 0, "refuse requests if this many wait in a queue; 0: never"),
    VERBOSE,
)
def _frontend(args: argparse.Namespace) -> None:
    """Serve until a signal."""
    from perfdag.steps.queue.frontend import Frontend

    addresses = [protocol.address(text) for text in (args.caddr, args.waddr, args.maddr)]
    frontend = Frontend(args.names, max(0, args.qmax), max(0, args.interval))

    async def serve() -> None:
        await frontend.start(*addresses)
        clients, backends, metrics = frontend.ports
        logger.info(
            f"queues {', '.join(frontend.queues)}: clients on port {clients}, "
            f"backends on {backends}, metrics on {metrics}"
        )
        stopped = until_signal()
        while not stopped.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), frontend.interval or None)
            logger.info(frontend.summary())
        await frontend.stop()

    asyncio.run(serve())


def until_signal() -> asyncio.Event:
    """Return an event that SIGHUP, SIGINT and SIGTERM set."""
    stopped = asyncio.Event()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    return stopped


@verb(
    "queue backend",
    "Hold one slot of a device: take items of a queue and run a command for each.",
    """
    examples:
      perfdag queue backend --name sleep --backoff 0.2 -- sleep 2
      perfdag queue backend --name sleep --backoff 0 -- sleep 2  # until it is empty
      /usr/bin/time -v perfdag queue backend --once -- \\
          /usr/bin/ffmpeg -v error -i in.mp4 -f null -
      perfdag queue backend --name media --backoff 0.2 \\
          --glob '/dev/dri/renderD*' --ignore -- \\
          /usr/bin/sample_multi_transcode -hw -device FILENAME \\
          -i::h265 /data/in.h265 -o::h265 /dev/null -n 600
    """,
    _dst("faddr", "localhost:9999", "frontend's address for backends"),
    _dst("name", "sleep", "queue"),
    _dst(
        "backoff",
        0.0,
        "0: exit when the queue is empty; above 0: stay, and ask again after N times so "
        "many seconds, with N empty answers in a row",
    ),
    _dst("backoff-max", 5.0, "longest such wait in seconds"),
    _dst("limit", 0.0, "seconds after which an item's process group is killed; 0: never"),
    _dst("glob", "", "the first file that matches replaces FILENAME, for example a device"),
    _dst("ignore", False, "ignore the arguments in clients' requests"),
    _dst("once", False, "run the command once and exit, to try it out"),
    _dst("dir", "", "working directory of the command"),
    _dst("null-in", False, "standard input from /dev/null"),
    _dst("null-out", False, "standard output and error to /dev/null"),
    _dst("node-env", "", "environment variable with the node's name (default: host name)"),
    _dst("pod-env", "", "environment variable with the pod's name (default: host name)"),
    VERBOSE,
    option(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- COMMAND",
        help="absolute path or built-in (sleep, usl), with arguments",
    ),
)
def _backend(args: argparse.Namespace) -> int:
    """Run the command for each item until a signal, or once."""
    workload = backend.Workload(
        after_dashes(args.command),
        device=backend.find_device(args.glob),
        limit=max(0.0, args.limit),
        ignore=args.ignore,
        directory=args.dir,
        null_in=args.null_in,
        null_out=args.null_out,
    )
    if args.glob:
        logger.info(f"{backend.FILENAME} stands for {workload.device}")
    if args.once:
        outcome = asyncio.run(workload.run(None, 0.0))
        if outcome.error:
            logger.info(outcome.error)
        return EXIT_FAILED if outcome.retcode or outcome.timeout else EXIT_OK
    host = socket.gethostname() or "localhost"
    worker = backend.Backend(
        protocol.address(args.faddr),
        args.name,
        pod=os.environ.get(args.pod_env, "") or host,
        node=os.environ.get(args.node_env, "") or host,
        workload=workload,
        backoff=max(0.0, args.backoff),
        backoff_max=max(args.backoff, args.backoff_max),
    )
    logger.info(f"backend of queue {args.name!r} at {args.faddr}: {' '.join(workload.command)}")

    async def serve() -> None:
        worker.stopping = until_signal()
        await worker.serve()

    try:
        asyncio.run(serve())
    except backend.UnreachableError as error:
        raise CommandError(str(error), EXIT_REACH) from None
    logger.info(f"{plural(worker.completed, 'item')} done")
    return EXIT_OK


@verb(
    "queue client",
    "Send requests to a queue in a closed loop, with a control port.",
    """
    examples:
      perfdag queue client --name sleep --req-now 2 --req-max 16
      perfdag queue client --name sleep --req-now 4 --req-max 4 --duration 60
      curl -X POST -H 'X-Perfdag-Token: TOKEN' \\
          'localhost:9996/parallel?value=4&type=plain'

    The control port accepts only requests with the token PERFDAG_QUEUE_TOKEN, as a bearer token or
    password. Without that variable the client makes a token and prints it. /parallel and /reset
    change the client and take POST; the other paths take GET. With --open no request needs a token
    and all may be GET, as the requests of Intel's validate-scaling.sh are.
    """,
    _dst(
        "caddr",
        "localhost:9996",
        "listen for control: /parallel?value=N, /reset, /stats, /fails, /nodes, /pods, "
        "/reqs-per-sec",
    ),
    _dst("faddr", "localhost:9997", "frontend's address for clients"),
    _dst("name", "sleep", "queue"),
    _dst("limit", 0.0, "limit of an item's run time in seconds; 0: none"),
    _dst("req-now", 1, "requests in parallel at the start"),
    _dst("req-max", 2, "most requests in parallel"),
    _dst(
        "duration",
        0.0,
        "seconds after which to stop and print statistics as JSON; 0: never",
    ),
    _dst(
        "open",
        False,
        "no token on the control port: whoever reaches it changes the client",
    ),
    VERBOSE,
    option(
        "args",
        nargs=argparse.REMAINDER,
        metavar="-- ARGS",
        help="arguments added to the backend's command",
    ),
)
def _client(args: argparse.Namespace) -> int:
    """Send requests until a signal or the end of --duration, and print the statistics.

    Return 1 if a request failed.
    """
    from perfdag.steps.queue import control

    frontend = protocol.address(args.faddr)
    if not 0 <= args.req_now <= args.req_max <= protocol.MOST_PARALLEL:
        raise ValueError(
            f"parallel requests must be 0 <= --req-now ({args.req_now}) <= --req-max "
            f"({args.req_max}) <= {protocol.MOST_PARALLEL}"
        )
    where = protocol.address(args.caddr)
    token = "" if args.open else os.environ.get(protocol.TOKEN_VARIABLE, "")
    if not (args.open or token):
        if where.host not in ("localhost", "127.0.0.1", "::1"):
            raise ValueError(
                f"--caddr {where} lets others control this client; "
                f"set {protocol.TOKEN_VARIABLE}, or listen on localhost"
            )
        token = secrets.token_urlsafe(24)
        logger.info(
            f"{protocol.TOKEN_VARIABLE} is not set; the token of the control port is {token}"
        )
    protocol.raise_file_limit()
    load = Load(
        frontend,
        args.name,
        ClientStats(),
        max(1, args.req_max),
        after_dashes(args.args) or None,
        args.limit,
    )

    async def serve() -> None:
        server = await control.serve(where, partial(control.answer, load), token)
        port = server.sockets[0].getsockname()[1]
        logger.info(f"requests to queue {load.queue!r} at {load.frontend}, control on port {port}")
        stopped = asyncio.create_task(until_signal().wait())
        load.set_parallel(args.req_now)
        await asyncio.wait([stopped], timeout=args.duration or None)
        pages = [control.page_text(path, load.stats) for path in ("/nodes", "/stats")]
        print_now(json.dumps(load.stats.as_json()) if args.duration else "\n".join(pages))
        await load.stop()
        server.close()

    asyncio.run(serve())
    return EXIT_FAILED if load.stats.failure else EXIT_OK


@verb(
    "queue validate",
    "Double the backends up to LIMIT: does throughput grow by FACTOR each time?",
    """
    examples:
      perfdag queue validate --local --limit 4 --factor 1.8 -- sleep 0.2
      perfdag queue validate perfdag-queue-sleep -n bench --limit 16 --factor 1.8
      perfdag queue validate perfdag-queue-sleep perfdag-queue-media -n bench \\
          --limit 8 --factor 1.4
    """,
    option(
        "names",
        nargs="*",
        metavar="DEPLOYMENT",
        help="of backends; several are validated at once. With --local: the backends' command",
    ),
    option(
        "--client",
        metavar="SERVICE",
        help="the client's Service (default: DEPLOYMENT-client)",
    ),
    option(
        "--client-namespace",
        metavar="NAMESPACE",
        help="its namespace (default: the Deployment's)",
    ),
    option("-n", "--namespace", help="its namespace (default: the context's)"),
    option(
        "--local",
        action="store_true",
        help="use this machine instead of pods; the command follows --",
    ),
    option("--limit", type=int, required=True, help="most replicas; measured too"),
    option("--factor", default=1.8, help="required growth of throughput with each doubling"),
    option("--scale-timeout", default=120.0, help="seconds for replicas to come or go"),
    option(
        "--timeout",
        default=120.0,
        help="seconds for a step to become steady, or 16 of its items",
    ),
    option(
        "--glob",
        default="",
        help="with --local: the first file that matches replaces FILENAME",
    ),
    option(
        "--item-limit",
        default=0.0,
        help="with --local: seconds an item may run, 0 for no limit",
    ),
    JSON,
)
def _validate(args: argparse.Namespace) -> int:
    """Validate Deployments, or commands on this machine. Return 3 if a step fails."""
    from perfdag.steps.queue import sites
    from perfdag.steps.queue.manifests import checked
    from perfdag.steps.queue.scaling_benchmark import QueueScalingParams
    from perfdag.steps.queue.validate import Plan, summary

    options = {
        "limit": args.limit,
        "factor": args.factor,
        "scale_timeout": args.scale_timeout,
        "timeout": args.timeout,
        "item_limit": args.item_limit or None,
    }
    checked(QueueScalingParams, options, "queue validate")
    plan = Plan(args.limit, args.factor, args.scale_timeout, args.timeout)
    if not args.names:
        raise ValueError("name a Deployment, or use --local and a command")
    if not args.local and (args.glob or args.item_limit):
        raise ValueError(
            "--glob and --item-limit need --local: "
            "the manifest of a Deployment has them (glob, limit)"
        )
    if args.client and len(args.names) > 1:
        raise ValueError("--client names the client of one Deployment")
    if args.local:
        work = sites.validate_local(args.names, plan, args.glob, args.item_limit)
        results = {"local": signals.run_until_stopped(work)}
    else:
        where = (args.namespace, args.client, args.client_namespace)
        several = signals.run_until_stopped(sites.validate_deployments(args.names, plan, *where))
        results = dict(zip(args.names, several, strict=True))
    if args.json:
        print_json(results if len(results) > 1 else next(iter(results.values())))
    else:
        for name, result in results.items():
            print(f"{name}:\n{summary(result)}" if len(results) > 1 else summary(result))
    failed = any(result["verdict"] == "failed" for result in results.values())
    return EXIT_GATE if failed else EXIT_OK


@verb(
    "queue manifests",
    "Print the Kubernetes objects of a set of queues.",
    """
    examples:
      perfdag queue manifests --queue 'sleep=sleep 2' | kubectl apply -f -
      perfdag queue manifests examples/queues.yaml
    """,
    option("file", nargs="?", help="YAML with the queues"),
    option(
        "--queue",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="one more queue; repeat the option to add more",
    ),
    option("--namespace", help="namespace of all objects"),
    option("--image", help="image of frontend, clients and backends"),
    option(
        "--monitor",
        metavar="NAMESPACE",
        help="add a ServiceMonitor for the Prometheus there",
    ),
    option("--schema", action="store_true", help="print the JSON schema of the file"),
)
def _manifests(args: argparse.Namespace) -> None:
    """Print the objects as YAML, or the schema as JSON."""
    import yaml

    from perfdag.steps.queue.manifests import Queues, load, manifests

    if args.schema:
        print_json(Queues.model_json_schema())
        return
    shared = {name: getattr(args, name) for name in ("namespace", "image", "monitor")}
    queues = load(args.file, args.queue, **shared)
    token = os.environ.get(protocol.TOKEN_VARIABLE)
    if not token:
        logger.info(
            "these objects have a new token, which locks out users of the old one: "
            f"set {protocol.TOKEN_VARIABLE} to keep one"
        )
    try:
        objects = manifests(queues, token)
    except ValueError as error:
        raise ValueError(f"{args.file or 'queues'}: {error}") from None
    print(yaml.safe_dump_all(objects, sort_keys=False), end="")
