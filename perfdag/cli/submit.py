"""`perfdag submit`: run a suite on a cluster."""

import argparse
import asyncio
import base64
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfdag.app.cluster.view import View
    from perfdag.kube.client import Kube
    from perfdag.plan.plan import Plan
    from perfdag.suite.model import Loaded

EPILOG = """examples:
  perfdag submit suites/quick.yaml --namespace bench --watch
  perfdag submit suites/quick.yaml --namespace bench --only 'iperf*' --set repetitions=5
  perfdag submit --resume 20260101T020000Z-0a1b2c3d --namespace bench --watch
"""
EVERY = 2.0


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    from perfdag.cli.options import add_suite_options

    parser = sub.add_parser(
        "submit",
        help="run a suite on a cluster",
        description="Check a suite, then run it on the cluster of the current context, where `perfdag install` was done. A bad suite creates nothing.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "suite", nargs="?", metavar="SUITE", help="suite file; not needed with --resume"
    )
    add_suite_options(parser)
    parser.add_argument(
        "--store",
        metavar="ROOT",
        help="s3://bucket/prefix or claim://NAME (default: the suite's, else the installation's)",
    )
    parser.add_argument(
        "--namespace",
        "-n",
        default="perfdag",
        help="namespace of the installation (default: perfdag)",
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="follow the run, then print its table and end with its exit code",
    )
    parser.add_argument(
        "--resume",
        metavar="RUN",
        help="continue this run (a run id, the name of its Workflow, or `last`): measure only what is not stored yet",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Submit, and with --watch follow to the end."""
    from perfdag.app.cluster.resume import NotContinued, Run, continued
    from perfdag.app.cluster.view import NotInstalled, installed
    from perfdag.cli.options import check_resume
    from perfdag.exit_codes import EXIT_INPUT, EXIT_REACH
    from perfdag.store.open import on_cluster

    check_resume(args)
    made = _check(args) if args.suite else None
    try:
        place = installed(args.namespace)
    except NotInstalled as error:
        print(f"perfdag submit: {error}", file=sys.stderr)
        return EXIT_REACH
    given = place.given.get("store") or ""
    if made:
        loaded, plan = made
        known = Run(
            plan.run_id,
            _root(args, loaded, given),
            plan.suite,
            int(plan.options.get("priority", 0)),
        )
    else:
        try:
            known = continued(args.resume, args.namespace, args.store, given)
        except NotContinued as error:
            print(f"perfdag submit: {error}", file=sys.stderr)
            return EXIT_INPUT
    if not on_cluster(known.store):
        why = f"{known.store or 'no store'}: pods share no folder; give --store s3://bucket/prefix or claim://NAME"
        print(f"perfdag submit: {why}", file=sys.stderr)
        return EXIT_INPUT
    told = {"run": known.id, "store": known.store}
    if made and not _stored(made[1], known.store):
        told |= _in_parameters(args, made[0])
    name = place.start(known.suite, told, known.priority)
    print(f"run {known.id}, workflow {name} in namespace {args.namespace}", flush=True)
    if not args.watch:
        print(f"follow it: perfdag status {name} --namespace {args.namespace}")
        return 0
    return asyncio.run(follow(name, args.namespace))


def _check(args: argparse.Namespace) -> "tuple[Loaded, Plan]":
    """Load and plan the suite here, so that a bad one creates nothing. Raises BadDocument."""
    from perfdag.plan.plan import make_plan
    from perfdag.steps.runner.limits import check_size
    from perfdag.suite import load

    loaded = load.load(args.suite, args.settings)
    plan = make_plan(loaded, only=args.only)
    check_size(plan)
    warn(plan)
    plan.where = {
        "namespace": args.namespace
    }  # so that nobody goes on with it elsewhere, also before its first step
    return loaded, plan


def warn(plan: "Plan") -> None:
    """Say what of a plan for a cluster cannot give what it asks, and is no error: a node may show its GPUs to every pod."""
    from perfdag.steps.devices import without_gpu

    for name, why in without_gpu(plan).items():
        print(
            f"entry {name}: {why}, but its pods ask for no GPU; add resources: {{nvidia.com/gpu: 1}}",
            file=sys.stderr,
        )


def _root(args: argparse.Namespace, loaded: "Loaded", given: str) -> str:
    """The store of a new run; `given` is that of the installation. A suite's own is used where pods can."""
    from perfdag.store.open import on_cluster

    of_suite = loaded.suite.store
    return args.store or (of_suite if of_suite and on_cluster(of_suite) else given)


def _stored(plan: "Plan", root: str) -> bool:
    """Whether the plan could be put into the store from here; else the suite travels with the Workflow."""
    from perfdag.store.base import StoreError
    from perfdag.store.open import open_store

    if root.startswith("claim://"):
        return False
    try:
        open_store(root).put(f"runs/{plan.run_id}/plan.json", plan.dump())
    except StoreError as error:
        print(
            f"the store is not reached from here ({error}); the suite travels with the workflow",
            file=sys.stderr,
        )
        return False
    return True


def _in_parameters(args: argparse.Namespace, loaded: "Loaded") -> dict[str, str]:
    import orjson

    told = {"suite": parameter(args.suite, loaded)}
    if args.settings or args.only:
        told["options"] = base64.b64encode(
            orjson.dumps({"settings": args.settings, "only": args.only})
        ).decode()
    return told


def parameter(file: str, loaded: "Loaded") -> str:
    """The suite as a parameter of its Workflow: base64. Raises BadDocument where it is too long for one."""
    from perfdag.cli.render import inline
    from perfdag.suite.yaml_document import BadDocument, Problem
    from perfdag.workflows.runs import SUITE_BYTES

    encoded = base64.b64encode(inline(loaded).encode()).decode()
    if len(encoded) > SUITE_BYTES:
        more = "submit it with an s3:// store that is reached from here, or put it there and argo submit -p url=KEY"
        raise BadDocument(
            [
                Problem(
                    file,
                    1,
                    "",
                    f"{len(encoded):,} bytes in base64 are more than a parameter may have; {more}",
                )
            ]
        )
    return encoded


async def follow(name: str, namespace: str) -> int:
    """Watch a run to its end; print changes, then the table; return the run's exit code.

    A lost connection is tried again. Raises KubeError where the API server refuses (401, 403).
    """
    from perfdag.app.cluster.view import DONE, last_line, view
    from perfdag.kube.client import Kube, KubeError

    printed, start, last = "", time.monotonic(), None
    why: list[str] = []
    lost = False
    async with Kube(retries=2) as kube:
        while True:
            try:
                last = await view(kube, name, namespace)
                lost = False
            except KubeError as error:
                if error.status == 404:
                    print(f"workflow {name} was deleted", file=sys.stderr)
                    return 1
                if error.status in (401, 403):
                    raise
                if not lost:
                    print(f"connection lost, trying again: {error}", file=sys.stderr, flush=True)
                lost = True
                await asyncio.sleep(EVERY)
                continue
            elapsed = time.monotonic() - start
            line = describe(last, elapsed, await last_line(kube, last, namespace))
            if line.partition(" | ")[2] != printed.partition(" | ")[2]:
                print(line, flush=True)
                printed = line
            # Argo deletes a pod that waited too long, and only calls that a timeout
            troubles = [trouble for trouble in last.troubles() if not trouble.endswith(": timeout")]
            why = troubles or why
            if last.phase in DONE:
                break
            await asyncio.sleep(EVERY)
        return await _end(kube, last, namespace, why)


def describe(view: "View", seconds: float, line: str | None = None) -> str:
    """Return one line: time, phase, progress, pods by phase, troubles.

    `line` is the lead's last line: the newest sample of its batch.
    """
    from collections import Counter

    from perfdag.units import short_seconds

    progress = []
    if view.progress:
        done, total = view.progress
        left = view.seconds_left()
        estimate = f", about {short_seconds(left)} left" if left is not None else ""
        progress = [f"{done}/{total} of what has started{estimate}", *([line] if line else [])]
    phases = Counter(pod.phase for pod in view.pods if pod.batch is not None)
    batches = ", ".join(map(str, view.batches))
    pods = ", ".join(f"{number} {phase}" for phase, number in sorted(phases.items()))
    message = f" ({view.message})" if view.message else ""
    parts = [
        f"{int(seconds) // 60}:{int(seconds) % 60:02d}",
        f"{view.phase}{message}",
        *progress,
        *([f"batch {batches}"] if batches else []),
        *([f"pods {pods}"] if pods else []),
    ]
    return " | ".join([*parts, *view.troubles()[:5]])


async def _log(kube: "Kube", view: "View", step: str, namespace: str) -> None:
    """Print what the pod of a step said last; nothing where it has none."""
    from perfdag.app.cluster.view import argos
    from perfdag.kube.client import KubeError

    node = view.last(step)
    pod = next(
        (
            each
            for each in view.pods
            if node and each.name.endswith(node["id"].rpartition("-")[2]) and step in each.name
        ),
        None,
    )
    if pod is None:
        return
    try:
        async for line in kube.logs(pod.name, namespace, container="main"):
            if not argos(line):
                print(line)
    except KubeError as error:
        print(f"the log of {pod.name} is not there any more: {error}", file=sys.stderr)


async def _end(kube: "Kube", view: "View", namespace: str, why: list[str]) -> int:
    code, planned = view.exit_code(), view.code_of("plan")
    for step in (["plan"] if planned != 0 else []) + (["finish"] if planned != 2 else []):
        await _log(kube, view, step, namespace)
    if code is None:
        print(
            f"workflow {view.name} {view.phase}: {'; '.join([view.message] if view.message else why[:3])}",
            file=sys.stderr,
        )
        return 1
    return code
