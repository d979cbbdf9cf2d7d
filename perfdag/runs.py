"""The runs of a store and their plans."""

from perfdag.document import nearest
from perfdag.plan import Plan, read_plan
from perfdag.samples import run_folder
from perfdag.store import NotStoredError, Store, StoreError


def load_plan(store: Store, run_id: str) -> Plan:
    """The stored plan of a run; `last` is the newest. Raises StoreError with the nearest names where there is no such run."""
    try:
        return read_plan(store.get(f"{run_folder(run_id)}/plan.json"))
    except NotStoredError:
        known = runs(store)
        if run_id == "last" and known:
            return load_plan(store, known[-1])
        some = f"; newest: {', '.join(known[-3:])}" if known else "; it holds no run yet"
        raise NotStoredError(f"store {store.root}: no run {run_id}{nearest(run_id, known)}{some}") from None
    except ValueError as error:
        raise StoreError(f"store {store.root}: plan.json of {run_id} is damaged: {error}") from None


def variants(store: Store, plan: Plan) -> list[Plan]:
    """The plan, then the other variant's where two are measured side by side. Raises StoreError."""
    return [plan, load_plan(store, plan.options["other"])] if plan.trigger == "ab" else [plan]


def resume_command(plan: Plan, root: str) -> str:
    """The command that goes on with a run where it was begun. `root`: its store as it is called here, which may be nothing there."""
    verb = "ab" if plan.trigger == "ab" else "submit" if plan.where else "run"
    words = f"perfdag {verb} --resume {plan.run_id[:-1] + 'a' if verb == 'ab' else plan.run_id}"  # either variant names the pair
    if plan.where or plan.options.get("cluster"):
        words += f"{' --submit' if verb == 'ab' else ''} --namespace {plan.where.get('namespace', 'perfdag')}"
        return f"{words} --store {root}" if root.startswith("s3://") else words  # else the installation's
    return f"{words} --store {'FOLDER' if root.startswith('claim://') else root}" if root else words


def resume_obstacle(plan: Plan, cluster: str | None, root: str) -> str | None:
    """Why a run that has samples in the store `root` cannot go on upon this cluster (its name, None where that is not known); None: it can."""
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
    """Ids of all runs with a plan, oldest first."""
    return sorted({key.split("/")[1] for key in store.list("runs") if key.endswith("/plan.json")})
