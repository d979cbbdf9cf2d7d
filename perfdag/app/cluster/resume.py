"""Find the run that `perfdag submit --resume` continues, and check that it can continue here."""

import logging

from perfdag.app.cluster.find import NoRun, workflows_of_run
from perfdag.app.cluster.template import NewRun
from perfdag.app.cluster.view import View
from perfdag.commands.options import CommandError
from perfdag.commands.runs import check_samples
from perfdag.kube.client import Kube, run_with_client
from perfdag.kube.patch import SUITE
from perfdag.plan.plan import Plan, is_run_id
from perfdag.results.runs import load_plan, resume_command, resume_obstacle, variants
from perfdag.results.samples import stored_samples
from perfdag.steps.runner.feasibility import cluster_name
from perfdag.store.base import DamagedError, NotStoredError, Store, StoreError
from perfdag.store.open import open_store
from perfdag.units import plural

logger = logging.getLogger(__name__)


def resumable_run(name: str, namespace: str, store: str) -> NewRun:
    """Return the run to continue: as its plan describes it, else as its Workflow does.

    `name` is a run id, the name of a Workflow, or `last`: the newest run of the namespace, else of
    the store. `store` is that of the installation. Raises CommandError, NotStoredError if the store
    has no such run, KubeError.
    """
    view = run_with_client(lambda client: _first_workflow(client, name, namespace))
    run_id = view.run_id if view else name
    if not run_id:
        raise CommandError(f"workflow {name} has no plan, so there is nothing to resume")
    if view and view.store not in ("", store):
        raise CommandError(
            f"run {run_id} is stored in {view.store}, and the installation has the store {store}; "
            f"continue it with perfdag install --namespace {namespace} --store {view.store}"
        )
    if store.startswith("s3://") and (run := _stored_run(store, run_id)):
        return run
    if view is None:
        if not is_run_id(run_id):
            raise CommandError(
                f"namespace {namespace} has no Workflow of run {run_id}; without its store, "
                "name the run by its id, such as 20260101T020000Z-0a1b2c3d"
            )
        return NewRun(run_id, "resumed")
    suite = (view.workflow["metadata"].get("labels") or {}).get(SUITE) or "resumed"
    return NewRun(run_id, suite, int(view.workflow["spec"].get("priority") or 0))


def _stored_run(root: str, run_id: str) -> NewRun | None:
    """Return the run as its stored plan describes it; None if the store cannot be reached.

    Raises CommandError if samples of another place are stored, NotStoredError, DamagedError.
    """
    try:
        store = open_store(root)
        plan = _measured_plan(store, load_plan(store, run_id))
        check_samples(store, plan)
        if stored_samples(store, plan.run_id):
            obstacle = resume_obstacle(plan, run_with_client(cluster_name), store.root)
            if obstacle:
                raise CommandError(obstacle)
    except (NotStoredError, DamagedError):
        raise
    except StoreError as error:
        logger.info(
            f"this machine cannot reach the store ({error}); "
            f"whether it has run {run_id} is not known"
        )
        return None
    return NewRun(plan.run_id, plan.suite, plan.options.priority)


def kept_samples(run_id: str | None, root: str, namespace: str) -> str:
    """Return what the store keeps of a run whose Workflow was deleted, and how to go on."""
    if not run_id or not root:
        return "it had no plan, so nothing is stored"
    command = f"perfdag submit --resume {run_id} --namespace {namespace}"
    amount = "the samples that were stored"
    if root.startswith("s3://"):
        try:
            store = open_store(root)
            plans = variants(store, _measured_plan(store, load_plan(store, run_id)))
            known = sum(len(stored_samples(store, plan.run_id)) for plan in plans)
            amount = f"{known} of {plural(sum(len(plan.order) for plan in plans), 'sample')}"
            command = resume_command(plans[0], root)
        except NotStoredError:
            return f"{root} keeps nothing of run {run_id}"
        except StoreError:
            pass  # this machine does not reach it; the pods do
    return f"{root} keeps {amount} of run {run_id}; go on: {command}"


async def _first_workflow(client: Kube, name: str, namespace: str) -> View | None:
    try:
        return View((await workflows_of_run(client, name, namespace))[0])
    except NoRun:
        return None


def _measured_plan(store: Store, plan: Plan) -> Plan:
    """Return the plan that a run is measured with.

    A recheck is measured with its run, variant B with variant A. Raises
    StoreError.
    """
    other = plan.options.confirms or (plan.options.other if plan.variant == "B" else None)
    return load_plan(store, other) if other else plan
