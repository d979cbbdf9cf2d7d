"""`perfdag queue`: queues, clients and backends that show whether a device scales."""

import argparse
import asyncio
import json
import logging
import math
import os
import resource
import secrets
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from perfdag import signals
from perfdag.commands.options import CommandError, print_json, print_now
from perfdag.signals import EXIT_FAILED, EXIT_GATE, EXIT_OK, EXIT_REACH
from perfdag.steps.queue import wire
from perfdag.steps.queue.dispatcher import Limits, raise_file_limit
from perfdag.steps.queue.workload import FILENAME, Workload, matching
from perfdag.units import plural

logger = logging.getLogger(__name__)


EPILOG = """examples:
  perfdag queue frontend sleep media
  perfdag queue backend --name sleep --backoff 0.2 -- sleep 2
  perfdag queue client --name sleep --req-now 2 --req-max 16
  perfdag queue validate --local --limit 4 --factor 1.8 -- sleep 0.5
  perfdag queue manifests --queue 'sleep=sleep 2'
"""


def add_queue(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
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
    for add_program in (_add_frontend, _add_backend, _add_client, _add_validate, _add_manifests):
        add_program(programs)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run a program. Bad values and unusable files are errors of the input."""
    from perfdag.commands.options import CommandError

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


def add_program(
    programs: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    summary: str,
    examples: str,
) -> argparse.ArgumentParser:
    """Add and return the parser of a program."""
    return programs.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:],
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_option(
    parser: argparse.ArgumentParser, name: str, default: Any, text: str, **more: Any
) -> None:
    """Add an option of the type of its default. A default of False makes it a flag."""
    if isinstance(default, bool):
        more["action"] = "store_true"
    elif default is not None:
        more.setdefault("type", type(default))
    help_text = f"{text} (default: {default})" if default not in (None, "", False) else text
    parser.add_argument(f"--{name}", f"-{name}", default=default, help=help_text, **more)


def after_dashes(argv: list[str]) -> list[str]:
    """Return the words without a leading `--`."""
    return argv[1:] if argv[:1] == ["--"] else argv


def _add_frontend(programs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
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
    parser.set_defaults(program_run=_frontend)


def _frontend(args: argparse.Namespace) -> int:
    """Serve until a signal."""
    from perfdag.steps.queue.dispatcher import Limits

    limits = Limits(
        queue=args.qmax,
        peers=args.max_peers,
        message_seconds=args.message_timeout,
        retries=args.retries,
        reply_seconds=args.reply_timeout,
        interval=args.interval,
    )
    serve_frontend(args.names, limits, (args.caddr, args.waddr, args.maddr))
    return 0


BACKEND_EXAMPLES = """\
  perfdag queue backend --name sleep --backoff 0.2 -- sleep 2
  perfdag queue backend --name sleep --backoff 0 -- sleep 2  # until it is empty
  perfdag queue backend --once --report -- \\
      /usr/bin/ffmpeg -v error -i in.mp4 -f null -
  perfdag queue backend --name media --backoff 0.2 \\
      --glob '/dev/dri/renderD*' --ignore -- \\
      /usr/bin/sample_multi_transcode -hw -device FILENAME \\
      -i::h265 /data/in.h265 -o::h265 /dev/null -n 600
"""


def _add_backend(programs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = add_program(
        programs,
        "backend",
        "hold one slot of a device: take items of a queue and run a command for each",
        BACKEND_EXAMPLES,
    )
    for name, default, text in (
        ("faddr", "localhost:9999", "frontend's address for backends"),
        ("name", "sleep", "queue"),
        (
            "backoff",
            0.0,
            "0: exit when the queue is empty; above 0: stay, and ask again after N times so many "
            "seconds, with N empty answers in a row",
        ),
        ("backoff-max", 5.0, "longest such wait in seconds"),
        ("limit", 0.0, "seconds after which an item's process group is killed; 0: never"),
        ("glob", "", "the first file that matches replaces FILENAME, for example a device"),
        ("ignore", False, "ignore the arguments in clients' requests"),
        ("once", False, "run the command once and exit, to try it out"),
        ("report", False, "with --once: print what the item used as JSON, to size its pods"),
        ("dir", "", "working directory of the command"),
        ("null-in", False, "standard input from /dev/null"),
        ("null-out", False, "standard output and error to /dev/null"),
        ("node-env", "", "environment variable with the node's name (default: host name)"),
        ("pod-env", "", "environment variable with the pod's name (default: host name)"),
        ("verbose", False, "log all messages"),
    ):
        add_option(parser, name, default, text)
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- COMMAND",
        help="absolute path or built-in (sleep, usl), with arguments",
    )
    parser.set_defaults(program_run=_backend)


def _backend(args: argparse.Namespace) -> int:
    """Run the command for each item, or once."""
    from perfdag.steps.queue.workload import Workload, device

    workload = Workload(
        after_dashes(args.command),
        device=device(args.glob),
        limit=max(0.0, args.limit),
        ignore=args.ignore,
        directory=args.dir,
        null_in=args.null_in,
        null_out=args.null_out,
    )
    if args.once:
        code, used = run_backend_once(workload, args.glob)
        if args.report:
            print_json(used)
        return code
    if args.report:
        raise ValueError("--report needs --once")
    serve_backend(
        workload,
        args.glob,
        args.faddr,
        args.name,
        pod_variable=args.pod_env,
        node_variable=args.node_env,
        backoff=args.backoff,
        backoff_max=max(args.backoff, args.backoff_max),
    )
    return EXIT_OK


CLIENT_EXAMPLES = """\
  perfdag queue client --name sleep --req-now 2 --req-max 16
  perfdag queue client --name sleep --req-now 4 --req-max 4 --duration 60
  curl -X POST -H 'X-Perfdag-Token: TOKEN' \\
      'localhost:9996/parallel?value=4&type=plain'

The control port accepts only requests with the token PERFDAG_QUEUE_TOKEN, as a bearer token or
password. Without that variable the client makes a token and prints it. /parallel and /reset change
the client and take POST; the other paths take GET.
"""


def _add_client(programs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = add_program(
        programs,
        "client",
        "send requests to a queue in a closed loop, with a control port",
        CLIENT_EXAMPLES,
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
    parser.set_defaults(program_run=_client)


def _client(args: argparse.Namespace) -> int:
    """Send requests until a signal or the end of --duration, and print the statistics."""
    from perfdag.steps.queue.client import Work
    from perfdag.steps.queue.wire import address

    work = Work(address(args.faddr), args.name, after_dashes(args.args), args.limit)
    text, code = serve_client(work, args.caddr, args.req_now, args.req_max, args.duration)
    print_now(text)
    return code


VALIDATE_EXAMPLES = """\
  perfdag queue validate --local --limit 4 --factor 1.8 -- sleep 0.2
  perfdag queue validate perfdag-queue-sleep -n bench --limit 16 --factor 1.8
  perfdag queue validate perfdag-queue-media -n bench --limit 8 --factor 1.4 \\
      --deploy objects.yaml
"""


def _add_validate(programs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = add_program(
        programs,
        "validate",
        "double the backends up to LIMIT: does throughput grow by FACTOR each time?",
        VALIDATE_EXAMPLES,
    )
    parser.add_argument("deployment", nargs="?", help="name of the backends' Deployment")
    for name, metavar, text in (
        ("client", "SERVICE", "the client's Service (default: DEPLOYMENT-client)"),
        ("client-namespace", "NAMESPACE", "its namespace (default: the Deployment's)"),
        ("client-url", "URL", "the client's control port; PERFDAG_QUEUE_TOKEN is its token"),
        (
            "deploy",
            "FILE",
            "apply these objects (of `manifests`) first, except those that scale the Deployment, "
            "and delete them at the end",
        ),
    ):
        parser.add_argument(f"--{name}", metavar=metavar, help=text)
    parser.add_argument("-n", "--namespace", help="its namespace (default: the context's)")
    parser.add_argument(
        "--local",
        action="store_true",
        help="use processes of this machine instead of pods; the command follows --",
    )
    parser.add_argument("--limit", type=int, required=True, help="most replicas; measured too")
    for name, default, text in (
        ("factor", 1.8, "required growth of throughput with each doubling"),
        ("scale-timeout", 120.0, "seconds for replicas to come or go"),
        ("timeout", 120.0, "seconds for a step to become steady, or 16 of its items"),
        ("tolerance", 0.05, "relative difference below which windows are steady"),
    ):
        parser.add_argument(
            f"--{name}", type=float, default=default, help=f"{text} (default: %(default)s)"
        )
    parser.add_argument(
        "--glob", default="", help="with --local: the first file that matches replaces FILENAME"
    )
    parser.add_argument(
        "--item-limit",
        type=float,
        default=0.0,
        help="with --local: seconds an item may run, 0 for no limit",
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="of the order of the steps (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument(
        "command", nargs="*", metavar="-- COMMAND", help="with --local: the backends' workload"
    )
    parser.set_defaults(program_run=_validate)


def _validate(args: argparse.Namespace) -> int:
    """Validate a Deployment, or processes of this machine. Return 3 if a step fails."""
    from perfdag.steps.queue.deployment import ClientAddress, validate_deployment
    from perfdag.steps.queue.steady_state import SteadyCriteria
    from perfdag.steps.queue.validate import Plan
    from perfdag.steps.queue.verdict import summary

    criteria = SteadyCriteria(seconds=args.timeout, tolerance=args.tolerance)
    plan = Plan(args.limit, args.factor, args.scale_timeout, criteria, args.seed)
    if args.local:
        command = [*([args.deployment] if args.deployment else []), *args.command]
        verdict = validate_local(command, plan, args.glob, args.item_limit)
    elif not args.deployment:
        raise ValueError("name a Deployment, or use --local and a command")
    elif args.glob or args.item_limit:
        raise ValueError(
            "--glob and --item-limit need --local: "
            "the manifest of a Deployment has them (glob, limit)"
        )
    else:
        client = ClientAddress(args.client, args.client_namespace, args.client_url)
        verdict = validate_deployment(
            args.deployment, args.namespace, client, plan, args.deploy, logger.info
        )
    print_json(verdict.as_json()) if args.json else print(summary(verdict))
    return EXIT_GATE if verdict.word == "failed" else EXIT_OK


MANIFESTS_EXAMPLES = """\
  perfdag queue manifests --queue 'sleep=sleep 2' | kubectl apply -f -
  perfdag queue manifests examples/queues.yaml
"""


def _add_manifests(programs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = add_program(
        programs, "manifests", "print the Kubernetes objects of a set of queues", MANIFESTS_EXAMPLES
    )
    parser.add_argument("file", nargs="?", help="YAML with the queues")
    parser.add_argument(
        "--queue",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="one more queue; repeat the option to add more",
    )
    parser.add_argument("--namespace", help="namespace of all objects")
    parser.add_argument("--image", help="image of frontend, clients and backends")
    parser.add_argument(
        "--monitor", metavar="NAMESPACE", help="add a ServiceMonitor for the Prometheus there"
    )
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of the file")
    parser.set_defaults(program_run=_manifests)


def _manifests(args: argparse.Namespace) -> int:
    """Print the objects as YAML, or the schema as JSON."""
    from perfdag.steps.queue.spec import Queues

    if args.schema:
        print_json(Queues.model_json_schema())
        return 0
    yaml = render_manifests(args.file, args.queue, args.namespace, args.image, args.monitor)
    print(yaml, end="")
    return 0


if TYPE_CHECKING:
    from perfdag.steps.queue.client import Work
    from perfdag.steps.queue.validate import Plan
    from perfdag.steps.queue.verdict import Verdict


def until_signal() -> asyncio.Event:
    """Return an event that SIGHUP, SIGINT and SIGTERM set."""
    stopped = asyncio.Event()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    return stopped


def serve_frontend(names: Sequence[str], limits: Limits, addresses: Sequence[str]) -> None:
    """Serve the queues until a signal. Raises ValueError, OSError.

    `addresses`: of clients, backends and metrics. The ports are logged, and the
    statistics at each interval and at the end.
    """
    for option, value, zero in (
        ("interval", limits.interval, True),
        ("qmax", limits.queue, True),
        ("retries", limits.retries, True),
        ("reply-timeout", limits.reply_seconds, True),
        ("message-timeout", limits.message_seconds, False),
        ("max-peers", limits.peers, False),
    ):
        if not 0 <= value < math.inf:
            raise ValueError(f"--{option} {value} is below 0 or infinite")
        if not value and not zero:
            raise ValueError(f"--{option} {value} is not above 0")
    raise_file_limit(limits.peers)
    asyncio.run(_serve_frontend(names, limits, [*map(wire.address, addresses)]))


async def _serve_frontend(
    names: Sequence[str], limits: Limits, addresses: Sequence[wire.Address]
) -> None:
    from perfdag.steps.queue.frontend import Frontend

    frontend = Frontend(names, limits)
    await frontend.start(*addresses)
    clients, backends, metrics = frontend.ports
    if frontend.max_peers < limits.peers:
        logger.info(
            f"at most {frontend.max_peers} connections at once, not {limits.peers}: "
            "`ulimit -Hn` admits no more open files"
        )
    logger.info(
        f"queues {', '.join(frontend.queues)}: clients on port {clients}, "
        f"backends on {backends}, metrics on {metrics}"
    )
    stopped = until_signal()
    while not stopped.is_set():
        try:
            await asyncio.wait_for(stopped.wait(), limits.interval or None)
        except TimeoutError:
            logger.info(frontend.summary())
    logger.info(frontend.summary())
    await frontend.stop()


def run_backend_once(workload: Workload, glob: str) -> tuple[int, dict[str, Any]]:
    """Run the command once without a frontend.

    Return 1 if it fails or takes too long, else 0, and what the item used: its time, CPU time (of
    all its processes), the memory of its largest process, and the use of this machine's GPUs.
    """
    from perfdag.hosts import gpu_use
    from perfdag.hosts.local import LocalHost

    _report_device(workload, glob)
    with gpu_use.devices_watched(LocalHost()) as devices:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.monotonic()
        outcome = workload.run(None, 0.0)
        seconds = time.monotonic() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if outcome.error:
        logger.info(outcome.error)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    used = {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "cpus": cpu / seconds if seconds else 0.0,
        # The largest of all children so far, in KiB: unknown if an earlier one was larger.
        "memory_bytes": after.ru_maxrss * 1024 if after.ru_maxrss > before.ru_maxrss else None,
        "devices": {name: asdict(use) for name, use in devices.items()},
    }
    return EXIT_FAILED if outcome.retcode or outcome.timeout else EXIT_OK, used


def serve_backend(
    workload: Workload,
    glob: str,
    frontend: str,
    queue: str,
    *,
    pod_variable: str,
    node_variable: str,
    backoff: float,
    backoff_max: float,
) -> None:
    """Run the command for each item of a queue until a signal.

    The variables name the environment variables with the names of pod and node. Raises ValueError,
    and CommandError if the frontend is out of reach.
    """
    from perfdag.steps.queue.backend import Backend, Options, UnreachableError

    host = socket.gethostname() or "localhost"
    options = Options(
        wire.address(frontend),
        queue,
        pod=os.environ.get(pod_variable, "") or host,
        node=os.environ.get(node_variable, "") or host,
        backoff=backoff,
        backoff_max=backoff_max,
    )
    _report_device(workload, glob)
    backend = Backend(options, workload)
    backend.catch_signals()
    logger.info(f"backend of queue {queue!r} at {frontend}: {' '.join(workload.command)}")
    try:
        backend.serve()
    except UnreachableError as error:
        raise CommandError(str(error), EXIT_REACH) from None
    logger.info(f"{plural(backend.completed, 'item')} done")


def _report_device(workload: Workload, glob: str) -> None:
    if glob:
        count = len(matching(glob))
        others = f", the first of {count} that match {glob}" if count > 1 else ""
        logger.info(f"{FILENAME} stands for {workload.device}{others}")


def serve_client(
    work: "Work", address: str, parallel: int, most: int, duration: float
) -> tuple[str, int]:
    """Send requests until the duration (seconds, 0: none) is over or a signal comes.

    `address`: of the control port. `parallel`: requests at the start, at most `most`.
    Return the statistics (JSON if there is a duration) and the exit code: 1 if a request failed.
    Raises ValueError, OSError.
    """
    if not 0 <= parallel <= most <= wire.MOST_PARALLEL:
        raise ValueError(
            f"parallel requests must be 0 <= --req-now ({parallel}) <= --req-max "
            f"({most}) <= {wire.MOST_PARALLEL}"
        )
    if not 0 <= duration < math.inf:
        raise ValueError(f"--duration {duration:g} is not a time")
    control = wire.address(address)
    private = control.host in ("localhost", "127.0.0.1", "::1")
    if not (private or os.environ.get(wire.TOKEN_VARIABLE)):
        raise ValueError(
            f"--caddr {control} lets others control this client; "
            f"set {wire.TOKEN_VARIABLE}, or listen on localhost"
        )
    raise_file_limit(most)
    return asyncio.run(_serve_client(work, control, parallel, most, duration))


async def _serve_client(
    work: "Work", address: wire.Address, parallel: int, most: int, duration: float
) -> tuple[str, int]:
    from perfdag.steps.queue import control, http
    from perfdag.steps.queue.client import ClientStats, Load

    stats = ClientStats()
    load = Load(work, stats, max(1, most))
    chosen = os.environ.get(wire.TOKEN_VARIABLE)
    token = chosen or secrets.token_urlsafe(24)
    server = await http.serve(address, control.Control(stats, load), token, control.CHANGES)
    if not chosen:
        logger.info(f"{wire.TOKEN_VARIABLE} is not set; the token of the control port is {token}")
    port = server.sockets[0].getsockname()[1]
    logger.info(f"requests to queue {work.queue!r} at {work.frontend}, control on port {port}")
    stopped = asyncio.create_task(until_signal().wait())
    load.set_parallel(parallel)
    await asyncio.wait([stopped], timeout=duration or None)
    result = stats.as_json()
    await load.stop()
    server.close()
    text = control.nodes_text(stats) + control.stats_text(stats)
    code = EXIT_FAILED if stats.failure else EXIT_OK
    return json.dumps(result) if duration else text, code


def validate_local(command: Sequence[str], plan: "Plan", glob: str, item_limit: float) -> "Verdict":
    """Validate processes of this machine. Raises ValueError (BadInput), KeyboardInterrupt."""
    from perfdag.steps.queue.local import Local
    from perfdag.steps.queue.validate import validate

    async def work() -> "Verdict":
        async with Local(list(command), plan.limit, glob=glob, item_limit=item_limit) as local:
            return await validate(local.target, local.load, plan, logger.info)

    return signals.run_until_stopped(work())


def render_manifests(
    file: str | None,
    extra: Sequence[str],
    namespace: str | None,
    image: str | None,
    monitor: str | None,
) -> str:
    """Return the objects of the queues in a file and of `extra` queues (NAME=COMMAND) as YAML.

    Raises ValueError, OSError.
    """
    import yaml

    from perfdag.steps.queue.manifests import manifests
    from perfdag.steps.queue.spec import load

    queues = load(file, list(extra), namespace=namespace, image=image, monitor=monitor)
    token = os.environ.get(wire.TOKEN_VARIABLE)
    if not token:
        logger.info(
            "these objects have a new token, which locks out users of the old one: "
            f"set {wire.TOKEN_VARIABLE} to keep one"
        )
    try:
        objects = manifests(queues, token)
    except ValueError as error:
        raise ValueError(f"{file or 'queues'}: {error}") from None
    return str(yaml.safe_dump_all(objects, sort_keys=False))
