"""`perfdag delete`: remove a run's objects from the cluster."""

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfdag.cli.cluster_run import View
    from perfdag.kube import Kube

EPILOG = """examples:
  perfdag delete last --namespace bench
  perfdag delete 20260101T020000Z-0a1b2c3d --namespace bench --results
"""
PATIENCE = 120.0


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    from perfdag.cli.status import add_run

    parser = sub.add_parser(
        "delete",
        help="remove a run's objects from the cluster",
        description="Delete the Workflow of a run with its pods, claims and Secret, and wait until they are gone. Results stay unless --results.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run(parser)
    parser.add_argument("--results", action="store_true", help="delete the run's samples, rows and report from the store too")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Delete; 2 where there is no such run, 4 where something is left after two minutes."""
    from perfdag import kube
    from perfdag.cli import EXIT_INPUT, EXIT_REACH
    from perfdag.cli.cluster_run import NoRun

    try:
        seen, left = kube.run(lambda client: _delete(client, args.name, args.namespace))
    except NoRun as error:
        print(f"perfdag delete: {error}", file=sys.stderr)
        return EXIT_INPUT
    print(f"deleted workflow {seen.name} of run {seen.run_id or '(no plan)'}")
    if args.results and seen.run_id:
        _results(seen)
    if left:
        print(f"perfdag delete: still there after {PATIENCE:g} s: {', '.join(left)}", file=sys.stderr)
        return EXIT_REACH
    return 0


async def _delete(client: "Kube", name: str, namespace: str) -> "tuple[View, list[str]]":
    import asyncio
    import time

    from perfdag.cli.cluster_run import View, find

    workflow = await find(client, name, namespace)
    uid, called = workflow["metadata"]["uid"], workflow["metadata"]["name"]
    workflows = await client.resource("argoproj.io/v1alpha1", "Workflow")
    await client.delete(workflows, called, namespace)
    deadline = time.monotonic() + PATIENCE
    while True:
        left = []
        for kind in ("Pod", "PersistentVolumeClaim", "Secret"):
            resource = await client.resource("v1", kind)
            for each in await client.list(resource, namespace):
                if any(owner["uid"] == uid for owner in each["metadata"].get("ownerReferences") or []):
                    left.append(f"{kind} {each['metadata']['name']}")
        if not left or time.monotonic() > deadline:
            return View(workflow), left
        await asyncio.sleep(0.5)


def _results(seen: "View") -> None:
    from perfdag.collect import load_plan, result_key
    from perfdag.store import NotStoredError, open_store

    store = open_store(seen.parameter("store"))
    try:
        store.delete(result_key(load_plan(store, seen.run_id or "")))
    except NotStoredError:
        return
    store.delete(f"runs/{seen.run_id}")
    print(f"deleted its results from {store.root}")
