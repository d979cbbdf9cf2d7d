"""The runs of a store and their plans."""

import re
from collections.abc import Sequence

from perfdag.plan.plan import Plan, read_plan
from perfdag.results.samples import run_folder
from perfdag.store.base import DamagedError, NotStoredError, Store
from perfdag.suite.yaml_document import nearest
from perfdag.units import plural

LAST = re.compile(r"last(?:~(\d+))?")
PARTIAL = ("ab", "confirm")
"""Triggers of runs of a part of a suite: a variant, and suspicious points measured again."""


def load_plan(store: Store, selector: str, *, of_ab: bool = False) -> Plan:
    """Return the stored plan of a run: its id, the beginning of one, `last`, or `last~N`.

    `last` is the newest run of a whole suite, and `last~N` the one N runs of that suite before.
    With `of_ab` they count only variants of `perfdag ab`. Raises StoreError, which names similar
    runs.
    """
    try:
        return _read_plan(store, selector)
    except NotStoredError:
        known = runs(store)
    if last := LAST.fullmatch(selector):
        return _last(store, selector, known, int(last[1] or 0), of_ab)
    matching = [run for run in known if selector and run.startswith(selector)]
    if len(matching) == 1:
        return _read_plan(store, matching[0])
    if matching:
        raise NotStoredError(ambiguous(selector, matching))
    some = f"; newest: {', '.join(known[-3:])}" if known else "; it holds no run yet"
    raise NotStoredError(f"store {store.root}: no run {selector}{nearest(selector, known)}{some}")


def ambiguous(selector: str, names: Sequence[str]) -> str:
    """Return that a text is the beginning of several names of runs."""
    examples = ", ".join(names[:3])
    return f"{selector}: {len(names)} runs begin so ({examples} ...); write more of it"


def _read_plan(store: Store, run_id: str) -> Plan:
    try:
        plan = read_plan(store.get(f"{run_folder(run_id)}/plan.json"))
        if plan.run_id != run_id:
            raise ValueError(f"it is of run {plan.run_id}")
        return plan
    except ValueError as error:
        text = f"store {store.root}: plan.json of {run_id} is damaged: {error}"
        raise DamagedError(text) from None


def _last(store: Store, selector: str, run_ids: list[str], back: int, of_ab: bool) -> Plan:
    """Return the plan `back` before the newest of the suite that ran last."""
    suite, number, other = None, 0, None
    for run in reversed(run_ids):
        plan = _read_plan(store, run)
        if (plan.trigger != "ab") if of_ab else (plan.trigger in PARTIAL):
            other = other or plan
        elif plan.suite == (suite or plan.suite):
            suite, number = plan.suite, number + 1
            if number > back:
                return plan
    if suite:
        raise NotStoredError(
            f"{selector}: store {store.root} has {plural(number, 'run')} of suite {suite}"
        )
    if other is None:
        raise NotStoredError(f"store {store.root}: no run {selector}; it holds no run yet")
    if of_ab:
        raise NotStoredError(f"{selector}: store {store.root} has no run of `perfdag ab`")
    command = resume_command(other, store.root)
    raise NotStoredError(
        f"{selector}: store {store.root} has only runs of a part of a suite: {other.run_id} is "
        f"one of `perfdag {other.trigger}`; continue it: {command}"
    )


def ab_note(store: Store, run_id: str) -> str | None:
    """Say which run of `perfdag ab` is newer than `run_id`, which `last` does not mean. Or None."""
    for newer in reversed([known for known in runs(store) if known > run_id]):
        plan = _read_plan(store, newer)
        if plan.trigger == "ab":
            command = resume_command(plan, store.root)
            return f"`last` is {run_id}; the newer run of `perfdag ab` is shown by {command}"
    return None


def store_plan(store: Store, plan: Plan) -> None:
    """Store a plan. Raises StoreError."""
    store.put(f"{run_folder(plan.run_id)}/plan.json", plan.dump())


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
