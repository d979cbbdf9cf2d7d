"""The runs of a store and their plans."""

from perfdag.plan.plan import Plan, read_plan
from perfdag.results.samples import run_folder
from perfdag.store.base import NotStoredError, Store, StoreError
from perfdag.suite.yaml_document import nearest


def load_plan(store: Store, run_id: str) -> Plan:
    """Return the stored plan of a run. `last` is the newest run. Raises StoreError with similar
    names.
    """
    try:
        return read_plan(store.get(f"{run_folder(run_id)}/plan.json"))
    except NotStoredError:
        known = runs(store)
        if run_id == "last" and known:
            return load_plan(store, known[-1])
        some = f"; newest: {', '.join(known[-3:])}" if known else "; it holds no run yet"
        raise NotStoredError(
            f"store {store.root}: no run {run_id}{nearest(run_id, known)}{some}"
        ) from None
    except ValueError as error:
        raise StoreError(f"store {store.root}: plan.json of {run_id} is damaged: {error}") from None


def variants(store: Store, plan: Plan) -> list[Plan]:
    """Return the plan, and the other variant's plan in a duet. Raises StoreError."""
    return [plan, load_plan(store, plan.options["other"])] if plan.trigger == "ab" else [plan]


def resume_command(plan: Plan, root: str) -> str:
    """Return the command that resumes a run where it was started.

    `root` is the store as it is called here, which may not exist there.
    """
    verb = "ab" if plan.trigger == "ab" else "submit" if plan.where else "run"
    words = f"perfdag {verb} --resume {plan.run_id[:-1] + 'a' if verb == 'ab' else plan.run_id}"  # either variant names the pair
    if plan.where or plan.options.get("cluster"):
        words += f"{' --submit' if verb == 'ab' else ''} --namespace {plan.where.get('namespace', 'perfdag')}"
        return (
            f"{words} --store {root}" if root.startswith("s3://") else words
        )  # else the installation's
    return f"{words} --store {'FOLDER' if root.startswith('claim://') else root}" if root else words


def resume_obstacle(plan: Plan, cluster: str | None, root: str) -> str | None:
    """Return why a run with samples in the store `root` cannot resume on this cluster, or None.

    `cluster` is the name of this cluster, or None where it is unknown.
    """
    if not plan.where:
        verb = "ab" if plan.trigger == "ab" else "run"
        into = ", with the folder that it was measured into" if root.startswith("claim://") else ""
        why = f"run {plan.run_id} was measured by `perfdag {verb}`, and samples of a cluster are not its"
        return f"{why}; continue it there{into}: {resume_command(plan, root)}"
    there = plan.where.get("cluster")
    if there and cluster and there != cluster:
        return f"run {plan.run_id} was measured on another cluster (uid of its kube-system {there}, here {cluster}); continue it there"
    return None


def runs(store: Store) -> list[str]:
    """Return the ids of all runs with a plan, oldest first."""
    return sorted({key.split("/")[1] for key in store.list("runs") if key.endswith("/plan.json")})
