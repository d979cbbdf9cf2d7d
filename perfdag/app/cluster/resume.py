"""What `perfdag submit --resume` goes on with: which run that is, and whether it can go on here."""

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfdag.app.cluster.view import View
    from perfdag.kube.client import Kube
    from perfdag.plan.plan import Plan
    from perfdag.store.base import Store

_RUN_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]+")


class NotContinued(Exception):
    """A run cannot go on as asked: why."""


@dataclass(frozen=True)
class Run:
    """What a Workflow of a run is made of."""

    id: str
    store: str
    suite: str
    priority: int


def continued(wanted: str, namespace: str, root: str | None, given: str) -> Run:
    """What is known of a run that is to go on: from its Workflow, where that is still there, and from its plan, where the store is reached.

    `wanted` is a run id, the name of a Workflow, or `last`: the namespace's newest, where it has none the store's. `root` is the store that
    was asked for, `given` that of the installation. Raises NotContinued, NotStoredError where the store has no such run, KubeError.
    """
    from perfdag.app.cluster.view import SUITE_LABEL
    from perfdag.kube import client as kube
    from perfdag.results.runs import load_plan, resume_obstacle
    from perfdag.results.samples import stored_samples
    from perfdag.steps.runner.cluster_facts import cluster_name
    from perfdag.store.base import NotStoredError, StoreError
    from perfdag.store.open import open_store

    seen = kube.run(lambda client: _first(client, wanted, namespace))
    store = root or (seen.parameter("store") if seen else "") or given
    run_id = seen.run_id if seen else wanted
    if not run_id:
        raise NotContinued(f"workflow {wanted} has made no plan, so there is nothing to go on with")
    if store.startswith("s3://"):
        try:
            opened = open_store(store)
            plan = _whole(opened, load_plan(opened, run_id))
            if stored_samples(opened, plan.run_id) and (
                why := resume_obstacle(plan, kube.run(cluster_name), opened.root)
            ):
                raise NotContinued(why)
            return Run(plan.run_id, store, plan.suite, int(plan.options.get("priority", 0)))
        except NotStoredError:
            raise
        except StoreError as error:
            print(
                f"the store is not reached from here ({error}); whether it has run {run_id} is not known",
                file=sys.stderr,
            )
    if seen is None and not _RUN_ID.fullmatch(run_id):
        raise NotContinued(
            f"namespace {namespace} has no Workflow of run {run_id}, and without its store a run is only known by its id, as 20260101T020000Z-0a1b2c3d"
        )
    suite = (seen.workflow["metadata"].get("labels") or {}).get(SUITE_LABEL) if seen else None
    priority = int(seen.workflow["spec"].get("priority") or 0) if seen else 0
    return Run(run_id, store, suite or "resumed", priority)


async def _first(client: "Kube", wanted: str, namespace: str) -> "View | None":
    from perfdag.app.cluster.view import NoRun, View, of_run

    try:
        return View((await of_run(client, wanted, namespace))[0])
    except NoRun:
        return None


def _whole(store: "Store", plan: "Plan") -> "Plan":
    """The run that a plan is measured with: the one that it confirms, of two variants the first. Raises StoreError."""
    from perfdag.results.runs import load_plan

    whole = plan.options.get("confirms") or (
        plan.options["other"] if plan.variant == "B" else plan.run_id
    )
    return plan if whole == plan.run_id else load_plan(store, whole)
