"""`perfdag submit`: run a suite on a cluster."""

import argparse
import asyncio
import base64
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdag.cli.cluster_run import View
    from perfdag.kube import Kube
    from perfdag.plan import Plan
    from perfdag.suite import Loaded

EPILOG = """examples:
  perfdag submit suites/quick.yaml --namespace bench --watch
  perfdag submit suites/quick.yaml --namespace bench --only 'iperf*' --set repetitions=5
  perfdag submit --resume 20260101T020000Z-0a1b2c3d --namespace bench --watch
"""
EVERY = 2.0

Object = dict[str, Any]


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    from perfdag.cli.run import add_suite_options

    parser = sub.add_parser(
        "submit",
        help="run a suite on a cluster",
        description="Check a suite, then run it on the cluster of the current context, where `perfdag install` was done. A bad suite creates nothing.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suite", nargs="?", metavar="SUITE", help="suite file; not needed with --resume")
    add_suite_options(parser)
    parser.add_argument("--namespace", "-n", default="perfdag", help="namespace of the installation (default: perfdag)")
    parser.add_argument("--watch", action="store_true", help="follow the run, then print its table and end with its exit code")
    parser.add_argument("--resume", metavar="RUN", help="continue this run: measure only what is not stored yet")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Submit, and with --watch follow to the end."""
    from perfdag.cli import EXIT_INPUT, EXIT_REACH
    from perfdag.cli.cluster_run import NotInstalled, installed
    from perfdag.cli.run import beside_resume

    if (args.suite is None) == (args.resume is None):
        print("perfdag submit: name a suite file, or --resume RUN", file=sys.stderr)
        return EXIT_INPUT
    if why := beside_resume(args):
        print(f"perfdag submit: {why}", file=sys.stderr)
        return EXIT_INPUT
    loaded, plan = _check(args) if args.suite else (None, None)
    try:
        place = installed(args.namespace)
    except NotInstalled as error:
        print(f"perfdag submit: {error}", file=sys.stderr)
        return EXIT_REACH
    told = _told(args, loaded, plan, place.given.get("store") or "")
    name = place.start(plan.suite if plan else "resumed", told, int(plan.options.get("priority", 0)) if plan else 0)
    print(f"run {plan.run_id if plan else args.resume}, workflow {name} in namespace {args.namespace}", flush=True)
    if not args.watch:
        print(f"follow it: perfdag status {name} --namespace {args.namespace}")
        return 0
    return asyncio.run(follow(name, args.namespace))


def _check(args: argparse.Namespace) -> "tuple[Loaded, Plan]":
    """Load and plan the suite here, so that a bad one creates nothing. Raises BadDocument."""
    from perfdag import suite
    from perfdag.plan import make_plan
    from perfdag.steps.plan import check_size

    loaded = suite.load(args.suite, args.settings)
    plan = make_plan(loaded, only=args.only)
    check_size(plan)
    plan.where = {"namespace": args.namespace}  # so that nobody goes on with it elsewhere, also before its first step
    return loaded, plan


def _told(args: argparse.Namespace, loaded: "Loaded | None", plan: "Plan | None", given: str) -> dict[str, str]:
    """Parameters of the Workflow; `given` is the store of the installation."""
    root = args.store or (loaded.suite.store if loaded and _on_cluster(loaded.suite.store) else None) or given
    told = {"run": plan.run_id if plan else args.resume, "store": root}
    if plan is not None and loaded is not None and not _stored(plan, root):
        told |= _in_parameters(args, loaded)
    return told


def _on_cluster(root: str | None) -> bool:
    return bool(root) and str(root).startswith(("s3://", "claim://"))


def _stored(plan: "Plan", root: str) -> bool:
    """Whether the plan could be put into the store from here; else the suite travels with the Workflow."""
    from perfdag.store import StoreError, open_store

    if root.startswith("claim://"):
        return False
    try:
        open_store(root).put(f"runs/{plan.run_id}/plan.json", plan.dump())
    except StoreError as error:
        print(f"the store is not reached from here ({error}); the suite travels with the workflow", file=sys.stderr)
        return False
    return True


def _in_parameters(args: argparse.Namespace, loaded: "Loaded") -> dict[str, str]:
    import orjson

    from perfdag.cli.render import inline
    from perfdag.document import BadDocument, Problem
    from perfdag.workflows.runs import SUITE_BYTES

    encoded = base64.b64encode(inline(loaded).encode()).decode()
    if len(encoded) > SUITE_BYTES:
        raise BadDocument(
            [Problem(args.suite, 1, "", f"{len(encoded):,} bytes are too many for a parameter; use an s3:// store, or a ConfigMap")]
        )
    told = {"suite": encoded}
    if args.settings or args.only:
        told["options"] = base64.b64encode(orjson.dumps({"settings": args.settings, "only": args.only})).decode()
    return told


async def follow(name: str, namespace: str) -> int:
    """Watch a run to its end, over lost connections; prints changes, then the table; returns the run's exit code."""
    from perfdag.cli.cluster_run import DONE, Counter, view
    from perfdag.kube import Kube, KubeError

    said, counter, start, last = "", None, time.monotonic(), None
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
                if not lost:
                    print(f"connection lost, trying again: {error}", file=sys.stderr, flush=True)
                lost = True
                await asyncio.sleep(EVERY)
                continue
            counter = counter or Counter(last.parameter("store"))
            line = describe(last, counter, time.monotonic() - start)
            if line.partition(" | ")[2] != said.partition(" | ")[2]:
                print(line, flush=True)
                said = line
            if last.phase in DONE:
                break
            await asyncio.sleep(EVERY)
        return await _end(kube, last, namespace)


def describe(view: "View", counter: Any, seconds: float) -> str:
    """One line: time, samples done, time left, the sample under way, pods by phase, troubles."""
    from collections import Counter as Tally

    from perfdag.cli.cluster_run import DONE
    from perfdag.units import short_seconds

    parts = [f"{int(seconds) // 60}:{int(seconds) % 60:02d}"]
    standing = counter.count(view.run_id, view.batches)
    if standing:
        parts.append(f"{standing.done}/{standing.total} samples")
        if standing.done < standing.total and view.phase not in DONE:
            parts[-1] += f", about {short_seconds(standing.left)} left"
        if standing.current:
            parts.append(standing.current)
    phases = Tally(pod.phase for pod in view.pods if pod.batch is not None)
    if view.batches:
        parts.append(f"batch {', '.join(map(str, view.batches))}")
    if phases:
        parts.append("pods " + ", ".join(f"{number} {phase}" for phase, number in sorted(phases.items())))
    text = f"{parts[0]} | {view.phase}" + (f" ({view.message})" if view.message else "")
    return " | ".join([text, *parts[1:], *view.troubles()[:5]])


async def _end(kube: "Kube", view: "View", namespace: str) -> int:
    from perfdag.cli.cluster_run import argos
    from perfdag.kube import KubeError
    from perfdag.steps.sentry import nodes_of

    code = view.exit_code()
    wanted = "plan" if code == 2 else "finish"
    nodes = [each for each in nodes_of(view.workflow).values() if each.get("templateName") == wanted and each.get("type") == "Pod"]
    for node in nodes[-1:]:
        pod = next((each for each in view.pods if each.name.endswith(node["id"].rpartition("-")[2]) and wanted in each.name), None)
        if pod is not None:
            try:
                async for line in kube.logs(pod.name, namespace, container="main"):
                    if not argos(line):
                        print(line)
            except KubeError as error:
                print(f"the log of {pod.name} is not there any more: {error}", file=sys.stderr)
    if code is None:
        print(f"workflow {view.name} {view.phase}: {view.message}", file=sys.stderr)
        return 1
    return code
