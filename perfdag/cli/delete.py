"""`perfdag delete`: remove a run's objects from the cluster."""

import argparse
import contextlib
import sys
from typing import TYPE_CHECKING

from perfdag.kube.objects import Object

if TYPE_CHECKING:
    from perfdag.kube.client import Kube, Resource

EPILOG = """examples:
  perfdag delete last --namespace bench
  perfdag delete 20260101T020000Z-0a1b2c3d --namespace bench --results
  perfdag delete 20260101T020000Z-0a1b2c3d --namespace bench --results --store s3://bench/results
"""
PATIENCE = 120.0
OWNED = (
    ("v1", "Pod"),
    ("v1", "PersistentVolumeClaim"),
    ("v1", "Secret"),
    ("coordination.k8s.io/v1", "Lease"),
    ("scheduling.volcano.sh/v1beta1", "PodGroup"),
)


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    from perfdag.cli.status import add_run

    parser = sub.add_parser(
        "delete",
        help="remove a run's objects from the cluster",
        description="Delete the Workflows of a run with their pods, claims, Secret and PodGroups, and wait until they are gone. Results stay unless --results.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run(parser)
    parser.add_argument(
        "--results",
        action="store_true",
        help="delete the run's samples, rows and report from the store too, and those of its confirming runs and other variant",
    )
    parser.add_argument(
        "--store",
        metavar="ROOT",
        help="s3://bucket/prefix of the results (default: the run's; needed where no Workflow of it is left)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Delete; 2 where there is no such run or its results cannot be reached, 4 where something is left in the end."""
    from perfdag.app.cluster.view import NoRun, View, of_run
    from perfdag.exit_codes import EXIT_INPUT, EXIT_REACH
    from perfdag.kube import client as kube

    try:
        found = kube.run(lambda client: of_run(client, args.name, args.namespace))
    except NoRun as error:
        if args.results and args.store:
            return _old(args.name, args.store, str(error))
        hint = (
            "; Workflows are kept for some days only: give --store to delete the results of an older run"
            if args.results
            else ""
        )
        print(f"perfdag delete: {error}{hint}", file=sys.stderr)
        return EXIT_INPUT
    seen = View(found[-1])
    root = args.store or seen.parameter("store")
    if args.results and not root.startswith("s3://"):
        why = f"its results are in {root or 'no store'}, which only pods reach; delete it without --results, then the claim's files in a pod"
        print(f"perfdag delete: {why}", file=sys.stderr)
        return EXIT_INPUT
    keys = (
        _keys(root, seen.run_id) if args.results and seen.run_id else []
    )  # before its objects: nothing is lost where the store is away
    if args.results and args.store and not keys:
        run_id = seen.run_id or seen.name
        print(
            f"perfdag delete: store {root} has no run {run_id}, and nothing is deleted; mend --store or leave out --results",
            file=sys.stderr,
        )
        return EXIT_INPUT
    left = kube.run(lambda client: _delete(client, found, args.namespace))
    for each in found:
        print(f"deleted workflow {each['metadata']['name']} of run {seen.run_id or '(no plan)'}")
    if keys:
        _results(root, keys)
    if left:
        print(
            f"perfdag delete: still there after {_patience(left):g} s: {', '.join(left)}",
            file=sys.stderr,
        )
        return EXIT_REACH
    return 0


def _old(run_id: str, root: str, absent: str) -> int:
    """Delete the results of a run whose Workflows are gone (`absent` says so); 2 where the store has no such run. Raises StoreError."""
    from perfdag.exit_codes import EXIT_INPUT

    keys = _keys(root, run_id)
    if not keys:
        print(f"perfdag delete: {absent}; store {root} has no run {run_id} either", file=sys.stderr)
        return EXIT_INPUT
    _results(root, keys)
    return 0


def _patience(left: dict[str, float]) -> float:
    """Seconds to wait for what is left: as long as the pods among it may take to clear away what they made, at least two minutes."""
    return max(PATIENCE, *left.values())


async def _delete(client: "Kube", found: list[Object], namespace: str) -> dict[str, float]:
    """Delete the Workflows and wait; what is left of them at the end, as _owned. Raises KubeError."""
    import asyncio
    import time

    from perfdag.kube.client import KubeError

    workflows = await client.resource("argoproj.io/v1alpha1", "Workflow")
    kinds = []
    for api, kind in OWNED:
        try:
            kinds.append(await client.resource(api, kind))
        except KubeError as error:
            if error.reason != "NoKind":
                raise
    owners = {each["metadata"]["uid"] for each in found}
    await _owned(
        client, kinds, owners, namespace
    )  # pods own their ephemeral claims, and are known only while they live
    for each in found:
        await client.delete(workflows, each["metadata"]["name"], namespace)
    start = time.monotonic()
    while (
        left := await _owned(client, kinds, owners, namespace)
    ) and time.monotonic() < start + _patience(left):
        await asyncio.sleep(0.5)
    return left


async def _owned(
    client: "Kube", kinds: "list[Resource]", owners: set[str], namespace: str
) -> dict[str, float]:
    """What these own, and what that owns in turn, and the seconds that a pod may take to end; the owners grow by it.

    Kinds that we may not list are left out.
    """
    from perfdag.kube.client import KubeError

    found = {}
    for kind in kinds:
        try:
            listed = await client.list(kind, namespace)
        except KubeError as error:
            if error.status != 403:
                raise
            continue
        for each in listed:
            if owners.intersection(
                owner["uid"] for owner in each["metadata"].get("ownerReferences") or []
            ):
                owners.add(each["metadata"]["uid"])
                found[f"{kind.kind} {each['metadata']['name']}"] = float(
                    (each.get("spec") or {}).get("terminationGracePeriodSeconds", 0)
                )
    return found


def _keys(root: str, run_id: str) -> list[str]:
    """What of the store belongs to a run: its folder and rows, those of the runs that confirm it, and of the other variant of an ab.

    Its own folder is the last: it names the others, so that a second try finds what the first one left.
    """
    from perfdag.results.collect import result_key
    from perfdag.results.runs import load_plan
    from perfdag.store.base import NotStoredError
    from perfdag.store.open import open_store

    store = open_store(root)
    try:
        plan = load_plan(store, run_id)
    except NotStoredError:
        return []
    keys = []
    for name in filter(None, [*plan.options.get("confirmed", []), plan.options.get("other")]):
        with contextlib.suppress(NotStoredError):
            keys += [result_key(load_plan(store, name)), f"runs/{name}"]
    return [*keys, result_key(plan), f"runs/{run_id}"]


def _results(root: str, keys: list[str]) -> None:
    from perfdag.store.open import open_store

    store = open_store(root)
    for key in keys:
        store.delete(key)
    print(f"deleted its results from {root}")
