"""The runs of a store and their plans."""

from perfdag.plan.plan import Plan, read_plan
from perfdag.results.samples import run_folder
from perfdag.store.base import DamagedError, NotStoredError, Store
from perfdag.suite.yaml_document import nearest


def load_plan(store: Store, run_id: str) -> Plan:
    """Return the stored plan of a run; `last` is the newest run.

    Raises StoreError, which names similar runs.
    """
    try:
        plan = read_plan(store.get(f"{run_folder(run_id)}/plan.json"))
        if plan.run_id != run_id:
            raise ValueError(f"it is of run {plan.run_id}")
        return plan
    except NotStoredError:
        known = runs(store)
        if run_id == "last" and known:
            return load_plan(store, known[-1])
        some = f"; newest: {', '.join(known[-3:])}" if known else "; it holds no run yet"
        raise NotStoredError(
            f"store {store.root}: no run {run_id}{nearest(run_id, known)}{some}"
        ) from None
    except ValueError as error:
        text = f"store {store.root}: plan.json of {run_id} is damaged: {error}"
        raise DamagedError(text) from None


def variants(store: Store, plan: Plan) -> list[Plan]:
    """Return the plan, and the other variant's plan in a duet. Raises StoreError."""
    return [plan, load_plan(store, plan.options["other"])] if plan.trigger == "ab" else [plan]


def resume_command(plan: Plan, root: str) -> str:
    """Return the command that resumes a run where it was started.

    `root` is the store as it is called here, which may not exist there.
    """
    duet = plan.trigger == "ab"
    verb = "ab" if duet else "submit" if plan.where else "run"
    # Either variant names the duet.
    command = f"perfdag {verb} --resume {plan.run_id[:-1] + 'a' if duet else plan.run_id}"
    if plan.where or plan.options.get("cluster"):
        command += f"{' --submit' if duet else ''}"
        command += f" --namespace {plan.where.get('namespace', 'perfdag')}"
        # Without --store, a run uses the store of the installation.
        return f"{command} --store {root}" if root.startswith("s3://") else command
    if not root:
        return command
    return f"{command} --store {'FOLDER' if root.startswith('claim://') else root}"


def resume_obstacle(plan: Plan, cluster: str | None, root: str) -> str | None:
    """Return why a run with samples in the store `root` cannot resume on this cluster, or None.

    `cluster` is the name of this cluster, or None where it is unknown.
    """
    if not plan.where:
        verb = "ab" if plan.trigger == "ab" else "run"
        folder = ", with the folder that holds its samples" if root.startswith("claim://") else ""
        return (
            f"run {plan.run_id} was measured by `perfdag {verb}`, not on a cluster; "
            f"continue it there{folder}: {resume_command(plan, root)}"
        )
    there = plan.where.get("cluster")
    if there and cluster and there != cluster:
        return (
            f"run {plan.run_id} was measured on another cluster "
            f"(uid of its kube-system {there}, here {cluster}); continue it there"
        )
    return None


def runs(store: Store) -> list[str]:
    """Return the ids of all runs with a plan, oldest first."""
    return sorted({key.split("/")[1] for key in store.list("runs") if key.endswith("/plan.json")})
