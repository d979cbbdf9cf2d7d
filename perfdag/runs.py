"""The runs of a store and their plans."""

from perfdag.document import nearest
from perfdag.parts import run_folder
from perfdag.plan import Plan, read_plan
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


def elsewhere(plan: Plan, cluster: str | None, root: str) -> str | None:
    """Why a run that has samples in the store `root` cannot go on upon this cluster (its name, None where that is not known); None: it can."""
    if not plan.where:
        again = f"perfdag run --resume {plan.run_id} --store {root}"
        return f"run {plan.run_id} was measured by `perfdag run`, and samples of a cluster are not its; continue it there: {again}"
    there = plan.where.get("cluster")
    if there and cluster and there != cluster:
        return f"run {plan.run_id} was measured on another cluster (uid of its kube-system {there}, here {cluster}); continue it there"
    return None


def runs(store: Store) -> list[str]:
    """Ids of all runs with a plan, oldest first."""
    return sorted({key.split("/")[1] for key in store.list("runs") if key.endswith("/plan.json")})
