"""`perfdag rm`: delete the results of a run, or its objects on a cluster."""

import argparse
import asyncio
import time

from perfdag.commands.options import (
    EXIT_OK,
    EXIT_REACH,
    RUN_HELP,
    CommandError,
    Verbs,
    add_verb,
    option,
    print_now,
)
from perfdag.commands.runs import read_run, removable_keys
from perfdag.commands.status import ARGO, NoRun, View, workflows_of_run
from perfdag.kube.client import Kube, KubeError, Object, Resource, run_with_client
from perfdag.plan.plan import is_run_id
from perfdag.results.runs import RunStore
from perfdag.store.base import NotStoredError
from perfdag.store.open import open_store

DELETE_TIMEOUT = 120.0
"""Seconds to wait until deleted objects are gone."""
OWNED_KINDS = (
    ("v1", "Pod"),
    ("coordination.k8s.io/v1", "Lease"),
    ("v1", "PersistentVolumeClaim"),
    ("v1", "Secret"),
    ("scheduling.volcano.sh/v1beta1", "PodGroup"),
)
"""Kinds of the objects that a Workflow of a run owns, through its pods and Leases: owners first."""


RM_EPILOG = """examples:
  perfdag rm last~1
  perfdag rm 20260101T020000Z-0a1b2c3d --store s3://bench/results
  perfdag rm last --namespace bench
  perfdag rm 20260101T020000Z-0a1b2c3d --namespace bench --results
"""


def add_rm(sub: Verbs) -> None:
    """Register the verb."""
    add_verb(
        sub,
        "rm",
        run_rm,
        "Remove the samples, rows and report of a run from the store, with its "
        "rechecks and its other variant. With --namespace: delete the Workflows of a run "
        "with their pods, claims, Secrets and PodGroups, and wait until they are gone; its results "
        "stay in the store without --results.",
        RM_EPILOG,
        option("name", metavar="RUN", help=f"{RUN_HELP}; or the name of its Workflow"),
        option("--namespace", "-n", help="delete the objects of the run in this namespace"),
        option("--results", action="store_true", help="with --namespace: also remove its results"),
        option(
            "--store",
            metavar="ROOT",
            help="folder or s3://bucket/prefix of the results (default: ./perfdag-results; with "
            "--namespace the store that the run's Workflow names, and required if none is left)",
        ),
    )


def run_rm(args: argparse.Namespace) -> int:
    """Remove a run."""
    if args.namespace is not None:
        delete_run(args.name, args.namespace, args.results, args.store)
        return EXIT_OK
    if args.results:
        raise CommandError("--results goes with --namespace; without it, rm removes the results")
    runs, plan = read_run(args.store, args.name)
    for key in removable_keys(runs, plan):
        runs.store.delete(key)
    print(f"removed run {plan.run_id} of suite {plan.suite} from {runs.store.root}")
    return EXIT_OK


def delete_run(name: str, namespace: str, results: bool, root: str | None) -> None:
    """Delete the objects of a run, and its results if `results` is true.

    `root` is the store of the results; without it, the store that the run's Workflow names.
    Raises CommandError, StoreError, KubeError.
    """
    try:
        workflows = run_with_client(lambda client: workflows_of_run(client, name, namespace))
    except NoRun as error:
        raise NoRun(
            f"{error}; Workflows are kept for some days only; "
            f"to remove its results: perfdag rm {name} --store ROOT"
        ) from None
    view = View(workflows[-1])
    # Read the keys first: if the store cannot be reached, nothing is deleted.
    keys = _results_of(view, root) if results else []
    remaining = run_with_client(lambda client: _delete_objects(client, workflows, namespace))
    for workflow in workflows:
        run_id = view.run_id or "(no plan)"
        print_now(f"deleted workflow {workflow['metadata']['name']} of run {run_id}")
    if keys:
        store = open_store(root or view.store)
        for key in keys:
            store.delete(key)
        print_now(f"deleted its results from {store.root}")
    if remaining:
        seconds = _timeout(remaining)
        raise CommandError(f"still there after {seconds:g} s: {', '.join(remaining)}", EXIT_REACH)


def _results_of(view: View, root: str | None) -> list[str]:
    """Return the keys of a run's results. Raises CommandError if they cannot be deleted here."""
    store = root or view.store
    if not store.startswith("s3://"):
        raise CommandError(
            f"its results are in {store or 'no store'}, which only pods reach; "
            "delete the run without --results, then the files of the claim in a pod"
        )
    try:
        runs = RunStore(open_store(store))
        if not is_run_id(view.run_id or ""):  # no plan; a text of the cluster names no other run
            raise NotStoredError(view.name)
        return removable_keys(runs, runs.plan(view.run_id or ""))
    except NotStoredError:
        if not root:
            return []
        raise CommandError(
            f"store {root} has no run {view.run_id or view.name}, and nothing is deleted; "
            "correct --store, or leave out --results"
        ) from None


def _timeout(remaining: dict[str, float]) -> float:
    """Return the seconds to wait: at least the longest grace period of a pod."""
    return max(DELETE_TIMEOUT, *remaining.values())


async def _delete_objects(
    client: Kube, workflows: list[Object], namespace: str
) -> dict[str, float]:
    """Delete the Workflows and wait; return what remains, as `_owned_objects`.

    Raises KubeError.
    """
    kinds = []
    for api, kind in OWNED_KINDS:
        try:
            kinds.append(await client.resource(api, kind))
        except KubeError as error:
            if error.reason != "NoKind":
                raise
    owners = {workflow["metadata"]["uid"] for workflow in workflows}
    # A pod owns its ephemeral claims: note its uid while it exists.
    await _owned_objects(client, kinds, owners, namespace)
    resource = await client.resource(ARGO, "Workflow")
    for workflow in workflows:
        await client.delete(resource, workflow["metadata"]["name"], namespace)
    start = time.monotonic()
    while remaining := await _owned_objects(client, kinds, owners, namespace):
        if time.monotonic() >= start + _timeout(remaining):
            break
        await asyncio.sleep(0.5)
    return remaining


async def _owned_objects(
    client: Kube, kinds: list[Resource], owners: set[str], namespace: str
) -> dict[str, float]:
    """Return the objects that `owners` own, with the grace period of a pod in seconds.

    The owners grow by them. Kinds that may not be listed are left out.
    """
    owned = {}
    for kind in kinds:
        try:
            items = await client.list(kind, namespace)
        except KubeError as error:
            if error.status != 403:
                raise
            continue
        for item in items:
            metadata = item["metadata"]
            references = metadata.get("ownerReferences") or []
            if owners.intersection(reference["uid"] for reference in references):
                owners.add(metadata["uid"])
                grace = (item.get("spec") or {}).get("terminationGracePeriodSeconds", 0)
                owned[f"{kind.kind} {metadata['name']}"] = float(grace)
    return owned
