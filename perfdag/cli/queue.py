"""`perfdag queue`: clients, queues and backends that show whether a device scales, and the validator of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from perfdag.cli import queue_programs
from perfdag.cli.queue_programs import TOKEN_VARIABLE, say, verb

if TYPE_CHECKING:
    from perfdag.kube.client import Kube
    from perfdag.steps.queue.validate.deployment import DeploymentTarget
    from perfdag.steps.queue.validate.validate import Load

EPILOG = """examples:
  perfdag queue frontend sleep media
  perfdag queue backend --name sleep --backoff 0.2 -- sleep 2
  perfdag queue client --name sleep --req-now 2 --req-max 16
  perfdag queue validate --local --limit 4 --factor 1.8 -- sleep 0.5
  perfdag queue manifests --queue 'sleep=sleep 2'
"""


def add(sub: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb and its own verbs."""
    parser = sub.add_parser(
        "queue",
        help="queue scaling: frontend, backend, client, validate",
        description="Work queues, backends that each hold one slot of a device, and clients: does throughput grow with the backends? "
        "Options are also taken with one dash, as by Intel's Device Scalability Tester.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    queue_programs.add(verbs)
    _add_validate(verbs)
    _add_manifests(verbs)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run one of them; a bad value is one line on stderr and exit code 2."""
    try:
        code: int = args.start(args)
    except ValueError as error:
        return _complain(str(error))
    except OSError as error:
        return _complain(
            f"{error.filename}: {error.strerror}"
            if error.filename
            else error.strerror or str(error)
        )
    return code


def _complain(text: str) -> int:
    print(f"perfdag queue: {text}", file=sys.stderr)
    return 2


def _add_validate(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verb(
        verbs,
        "validate",
        "double the backends up to LIMIT: does throughput grow by FACTOR each time?",
        "  perfdag queue validate --local --limit 4 --factor 1.8 -- sleep 0.2\n"
        "  perfdag queue validate perfdag-queue-sleep -n bench --limit 16 --factor 1.8\n"
        "  perfdag queue validate perfdag-queue-media -n bench --limit 8 --factor 1.4 --deploy objects.yaml\n",
    )
    parser.add_argument("deployment", nargs="?", help="name of the backends' Deployment")
    parser.add_argument(
        "-n", "--namespace", default=None, help="its namespace (default: the context's)"
    )
    parser.add_argument(
        "--client", metavar="SERVICE", help="the client's Service (default: DEPLOYMENT-client)"
    )
    parser.add_argument(
        "--client-namespace",
        metavar="NAMESPACE",
        help="of that Service (default: the Deployment's)",
    )
    parser.add_argument(
        "--client-url",
        metavar="URL",
        help=f"the client's control port, with {TOKEN_VARIABLE} where it wants one",
    )
    parser.add_argument(
        "--local",
        action="store_true",
        help="processes of this machine instead of pods; the command follows --",
    )
    parser.add_argument(
        "--deploy",
        metavar="FILE",
        help="apply these objects (of `manifests`) first, but for what scales the Deployment, and delete them at the end",
    )
    parser.add_argument(
        "--limit", type=int, required=True, help="most replicas, measured itself too"
    )
    parser.add_argument(
        "--factor",
        type=float,
        default=1.8,
        help="throughput wanted of each doubling (default: %(default)s)",
    )
    parser.add_argument(
        "--scale-timeout",
        type=float,
        default=120.0,
        help="seconds for replicas to come or go (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        help="seconds for a step to become steady, or 16 of its items (default: %(default)s)",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.05,
        help="windows that differ less are steady (default: %(default)s)",
    )
    parser.add_argument(
        "--glob",
        default="",
        help="with --local: the first file that matches replaces FILENAME, for example a device",
    )
    parser.add_argument(
        "--item-limit",
        type=float,
        default=0.0,
        help="with --local: seconds an item may run, 0 for no limit",
    )
    parser.add_argument("--stop", action="store_true", help="stop at the first step that fails")
    parser.add_argument("--json", action="store_true", help="the result as JSON on stdout")
    parser.add_argument(
        "command", nargs="*", metavar="-- COMMAND", help="with --local: the backends' workload"
    )
    parser.set_defaults(start=_validate)


def _validate(args: argparse.Namespace) -> int:
    import json

    from perfdag import signals
    from perfdag.steps.queue.validate.steady_state import SteadyCriteria
    from perfdag.steps.queue.validate.validate import Plan
    from perfdag.steps.queue.validate.verdict import summary

    criteria = SteadyCriteria(seconds=args.timeout, tolerance=args.tolerance)
    plan = Plan(args.limit, args.factor, args.scale_timeout, criteria, args.stop)
    if args.local:
        command = [*([args.deployment] if args.deployment else []), *args.command]
        verdict = signals.run_until_stopped(
            _validate_here(command, plan, glob=args.glob, item_limit=args.item_limit)
        )
    elif args.deployment:
        if args.glob or args.item_limit:
            raise ValueError(
                "--glob and --item-limit go with --local: the backends of a Deployment have them in its manifest (glob, limit)"
            )
        verdict = signals.run_until_stopped(_validate_there(args, plan))
    else:
        raise ValueError("name a Deployment, or say --local and a command")
    print(json.dumps(verdict.as_json(), indent=2) if args.json else summary(verdict))
    return 0 if verdict.passed else 3


async def _validate_here(command: list[str], plan: Any, **how: Any) -> Any:
    from perfdag.steps.queue.validate.local import Local
    from perfdag.steps.queue.validate.validate import validate

    async with Local(command, plan.limit, **how) as local:
        return await validate(local.target, local.load, plan, say)


async def _validate_there(args: argparse.Namespace, plan: Any) -> Any:
    from perfdag.kube.client import Kube
    from perfdag.steps.queue.validate.deploy import deployed
    from perfdag.steps.queue.validate.deployment import DeploymentTarget
    from perfdag.steps.queue.validate.targets import HttpLoad
    from perfdag.steps.queue.validate.validate import BadInput, validate

    async with Kube() as kube, deployed(kube, args.deploy, args.namespace, args.deployment, say):
        namespace = args.namespace or kube.namespace
        target = DeploymentTarget(kube, namespace, args.deployment)
        await target.find()
        if other := await _scaler(target):
            raise BadInput(
                f"{args.deployment} is scaled by {other} as well: delete that for the time of the validation"
            )
        load = HttpLoad(_client(kube, args, namespace))
        await load.up(plan.scale_seconds if args.deploy else 0)
        verdict = await validate(target, load, plan, say)
        if args.deploy:  # what is in flight is to end before all is deleted
            await _answered(target, load, plan.scale_seconds)
        return verdict


def _client(
    kube: Kube, args: argparse.Namespace, namespace: str
) -> Callable[[str], Awaitable[bytes]]:
    """What asks the client's control port."""
    import os

    from perfdag.steps.queue.validate import targets

    token = os.environ.get(TOKEN_VARIABLE, "")
    if args.client_url:
        return targets.fetch_by_url(args.client_url, token)
    return targets.fetch_by_service(
        kube,
        args.client_namespace or namespace,
        args.client or f"{args.deployment}-client",
        9996,
        token,
    )


async def _answered(target: DeploymentTarget, load: Load, seconds: float) -> None:
    """Wait for the answers of what is in flight; where they do not come in so many seconds that is said."""
    from perfdag.kube.client import KubeError
    from perfdag.steps.queue.validate.validate import BadInput, idle

    try:
        await idle(target, load, seconds)
    except (BadInput, KubeError) as error:
        say(str(error))


async def _scaler(target: DeploymentTarget) -> str | None:
    """What else scales it, None where nothing does; where one may not look that is said."""
    from perfdag.kube.client import KubeError

    try:
        return await target.scaler()
    except KubeError as error:
        if error.status != 403:
            raise
        say(f"not known whether anything else scales {target.name}: {error}")
        return None


def _add_manifests(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verb(
        verbs,
        "manifests",
        "the Kubernetes objects of a set of queues",
        "  perfdag queue manifests --queue 'sleep=sleep 2' | kubectl apply -f -\n  perfdag queue manifests examples/queues.yaml\n",
    )
    parser.add_argument("file", nargs="?", help="YAML with the queues")
    parser.add_argument(
        "--queue",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="one more queue; may be repeated",
    )
    parser.add_argument("--namespace", default=None, help="namespace of all objects")
    parser.add_argument("--image", default=None, help="image of frontend, clients and backends")
    parser.add_argument(
        "--monitor",
        default=None,
        metavar="NAMESPACE",
        help="with a ServiceMonitor for the Prometheus there",
    )
    parser.add_argument("--schema", action="store_true", help="the JSON schema of the file instead")
    parser.set_defaults(start=_manifests)


def _manifests(args: argparse.Namespace) -> int:
    import json
    import os

    import yaml

    from perfdag.steps.queue.manifests.model import Queues, load
    from perfdag.steps.queue.manifests.objects import manifests

    if args.schema:
        print(json.dumps(Queues.model_json_schema(), indent=2))
        return 0
    queues = load(
        args.file, args.queue, namespace=args.namespace, image=args.image, monitor=args.monitor
    )
    token = os.environ.get(TOKEN_VARIABLE)
    if not token and any(queues.host_of(queue) for queue in queues.queues):
        say(
            f"a new token is in these objects, and what held the one before is locked out: set {TOKEN_VARIABLE} to keep one"
        )
    try:
        objects = manifests(queues, token)
    except ValueError as error:
        raise ValueError(f"{args.file or 'queues'}: {error}") from None
    print(yaml.safe_dump_all(objects, sort_keys=False), end="")
    return 0
