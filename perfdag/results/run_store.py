"""The runs of a store: their keys, plans and rechecks, and which run a text names.

A run may also be read above its history, which is in another store and stays as it is.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, cached_property

import orjson

from perfdag.plan import Plan, batches_by_kind, is_run_id, new_run_id, read_plan
from perfdag.problems import PerfdagError
from perfdag.redaction import logger
from perfdag.store.base import DamagedError, NotStoredError, Store, StoreError, store_option
from perfdag.store.s3 import open_store
from perfdag.suite.document import nearest
from perfdag.suite.model import Check, checks_of
from perfdag.units import plural

LAST = re.compile(r"last(?:~(\d+))?")
SHORTEST_REVISION = 4
"""Least characters of the beginning of a revision that names a run, as git has it."""
WORKFLOW_NAME = re.compile(r"[a-z0-9][a-z0-9.]*(-[a-z0-9.]+)+")
"""The form of a name that Kubernetes made of a prefix. Only for such a text are plans read."""
PARTIAL = ("ab", "recheck", "part")
"""Triggers of runs of a part of a suite: a variant, suspicious points again, and `--only`."""


def run_folder(run_id: str) -> str:
    """Return the folder of a run in the store: its plan, samples, notes and report."""
    return f"runs/{run_id}"


def plan_key(run_id: str) -> str:
    """Return the key of the plan of a run."""
    return f"runs/{run_id}/plan.json"


def report_key(run_id: str) -> str:
    """Return the key of the report of a run."""
    return f"runs/{run_id}/report.html"


def report_address(store: Store, run_id: str) -> str:
    """Return where people open the report of a run.

    The variable PERFDAG_SITE_URL has the address at which they open the store, if another one.
    """
    site = os.environ.get("PERFDAG_SITE_URL", "").rstrip("/")
    return f"{site}/{report_key(run_id)}" if site else store.url(report_key(run_id))


def result_key(suite: str, run_id: str) -> str:
    """Return the key of the Parquet file of a run."""
    return f"results/{suite}/{month_of(run_id)}/{run_id}.parquet"


def rollup_key(suite: str, month: str) -> str:
    """Return the key of the roll-up of a month."""
    return f"rollups/{suite}/{month}.parquet"


def month_of(run_id: str) -> str:
    """Return the month of a run id as YYYY-MM."""
    return f"{run_id[:4]}-{run_id[4:6]}"


def day_of(run_id: str) -> str:
    """Return the day of a run id as YYYY-MM-DD."""
    return f"{month_of(run_id)}-{run_id[6:8]}"


def start_of(run_id: str) -> datetime:
    """Return when a run began, by its id."""
    return datetime.strptime(f"{run_id[:15]}+0000", "%Y%m%dT%H%M%S%z")


def age_of(run_id: str) -> float:
    """Return the seconds since a run began, by its id."""
    return (datetime.now(UTC) - start_of(run_id)).total_seconds()


def is_of_future(run_id: str) -> bool:
    """Return whether a run began later than tomorrow by its id, as the clock was wrong."""
    return age_of(run_id) < -86400


class SelectionError(PerfdagError, ValueError):
    """No run matches. The message lists what exists."""


def runs_with_rows(store: Store, suite: str | None = None) -> dict[str, str]:
    """Return the suite of each run that has rows, of this suite if named, oldest first.

    A Parquet file that another program put there, or that was moved, is named in the log.
    """
    runs = {}
    for key in store.list("results" if suite is None else f"results/{suite}"):
        folders = key.split("/")
        run_id = folders[-1].removesuffix(".parquet")
        if is_run_id(run_id) and key == result_key(folders[1], run_id):
            runs[run_id] = folders[1]
        elif is_run_id(run_id):
            place = result_key(folders[1], run_id)
            _name_left_out(store.root, f"{key} is in the wrong folder; its place is {place}")
        elif key.endswith(".parquet"):
            _name_left_out(store.root, f"{key} has not the name of a run; move it elsewhere")
    return dict(sorted(runs.items()))


@cache
def _name_left_out(root: str, text: str) -> None:
    """Name a file that is left out, once: a command lists the files more than once."""
    logger.warning(f"left out: store {root}: {text}")


def stored_plan(store: Store, run_id: str) -> Plan:
    """Return the plan of a run. Raises NotStoredError, DamagedError, StoreError."""
    try:
        plan = read_plan(store.get(plan_key(run_id)))
        if plan.run_id != run_id:
            raise ValueError(f"it is of run {plan.run_id}")
        return plan
    except ValueError as error:
        raise DamagedError(
            f"store {store.root}: plan.json of {run_id} is damaged: {error}"
        ) from None


def read_checks(store: Store, run_id: str) -> Sequence[Check]:
    """Return the checks of the suite in a run's plan; none without a plan. Raises BadDocument."""
    try:
        return checks_of(stored_plan(store, run_id).suite_text)
    except StoreError:
        return []


def put_plan(store: Store, plan: Plan) -> None:
    """Store a plan. Raises StoreError."""
    store.put(plan_key(plan.run_id), plan.dump())


def variants(store: Store, plan: Plan) -> list[Plan]:
    """Return the plan, and the other variant's plan in a duet. Raises StoreError."""
    return [plan, stored_plan(store, plan.options.other)] if plan.options.other else [plan]


class RunStore:
    """The runs of a store, listed once, when the list is first needed: which one a text names.

    A run has rows, a plan or both: samples and plans may be removed before the rows. Each method
    raises StoreError.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    @cached_property
    def suites_by_run(self) -> dict[str, str | None]:
        """The suite of each run by its id, oldest first. It is None without rows: see the plan."""
        planned = dict.fromkeys(filter(is_run_id, self.store.folders("runs")))
        return dict(sorted((planned | runs_with_rows(self.store)).items()))

    def suites(self) -> list[str]:
        """Return the suites that have results."""
        return sorted(set(runs_with_rows(self.store).values()))

    def find(
        self, selector: str, suites: Mapping[str, str | None] | None = None, *, of_ab: bool = False
    ) -> str:
        """Return the id of the run that a text names: its id, `last~N`, its Workflow or revision.

        The beginning of an id or of a revision will do. Of a revision it is the newest run. `last`
        is the newest run of a whole suite, and `last~N` the one N runs of that suite before; a
        run of the future is neither. With `of_ab` they count only variants of `perfdag ab`.
        `suites` has the runs that count, by default all. An error names similar runs.
        """
        suites = self.suites_by_run if suites is None else suites
        if selector in suites:
            return selector
        if last := LAST.fullmatch(selector):
            return self._last(selector, suites, int(last[1] or 0), of_ab)
        matching = [run for run in suites if selector and run.startswith(selector)]
        if len(matching) == 1:
            return matching[0]
        if matching:
            raise NotStoredError(ambiguous(selector, matching))
        if run := self._of_workflow(selector, suites) or self._of_revision(selector, suites):
            return run
        hint = f"newest: {', '.join([*suites][-3:])}" if suites else "it holds no run yet"
        if is_run_id(selector) and self.store.root.startswith("s3://"):
            hint = "the plan step of a run on a cluster stores it: see perfdag status"
        raise NotStoredError(
            f"store {self.store.root}: no run {selector}{nearest(selector, suites)}; {hint}"
        )

    def _last(self, selector: str, suites: Mapping[str, str | None], back: int, of_ab: bool) -> str:
        """Return the run `back` before the newest of the suite that ran last."""
        number = 0
        suite = left_out = future = ""
        for run in reversed([*suites]):
            if suite and suites[run] not in (None, suite):
                continue
            if is_of_future(run):
                future = run
                continue
            try:
                plan = None if suites[run] else stored_plan(self.store, run)
            except NotStoredError:  # a folder that is no run
                continue
            of_run = plan.suite if plan else suites[run]
            trigger = plan.trigger if plan else self.trigger(run)
            if (trigger != "ab") if of_ab else (trigger in PARTIAL):
                left_out = left_out or run
            elif of_run and of_run == (suite or of_run):
                suite = of_run
                number += 1
                if number > back:
                    return run
        where = f"{selector}: store {self.store.root} has"
        if suite:
            raise NotStoredError(f"{where} {plural(number, 'run')} of suite {suite}")
        if left_out:
            kind = "no run of `perfdag ab`" if of_ab else "only runs of a part of a suite"
            raise NotStoredError(f"{where} {kind}; the newest is {left_out}")
        if future:
            raise NotStoredError(f"{where} only runs of the future, such as {future}")
        raise NotStoredError(f"store {self.store.root}: no run {selector}; it holds no run yet")

    def plan(self, selector: str, *, of_ab: bool = False) -> Plan:
        """Return the stored plan of the run that a text names, as `find`."""
        try:
            return stored_plan(self.store, selector)
        except NotStoredError:
            return stored_plan(self.store, self.find(selector, of_ab=of_ab))

    def plan_or_rows(self, run_id: str) -> Plan:
        """Return the plan of a run, or one without points where its rows alone are left."""
        try:
            return stored_plan(self.store, run_id)
        except NotStoredError:
            if (suite := self.suites_by_run.get(run_id)) is None:
                raise
            return Plan(run_id, suite, 0, [], [], [], [], trigger=self.trigger(run_id))

    def trigger(self, run_id: str) -> str:
        """Return what started a run by its rows, such as cron; empty where they are damaged."""
        return next(iter(self._texts(run_id, "trigger")), "")

    def _texts(self, run_id: str, column: str) -> list[str]:
        """Return the distinct texts of a column of a run's rows; none where they are damaged."""
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        data = self.store.get(result_key(self.suites_by_run[run_id] or "", run_id))
        try:  # read_table would import pyarrow.dataset and pandas
            rows = pq.ParquetFile(pa.BufferReader(data)).read([column])
        except (pa.ArrowInvalid, OSError):
            return []
        if column not in rows.column_names:  # an older perfdag wrote them
            return []
        return [text for text in pc.unique(rows[column]).to_pylist() if text]

    def _of_workflow(self, name: str, runs: Iterable[str]) -> str | None:
        """Return the newest run that a Workflow of this name measured or went on with, or None."""
        if not WORKFLOW_NAME.fullmatch(name):
            return None
        for run in reversed([*runs]):
            try:
                where = orjson.loads(self.store.get(plan_key(run))).get("where", {})
            except (NotStoredError, ValueError):
                continue
            places = [where, *where.get("before", {}).values()]
            if name in [place.get("workflow") for place in places]:
                return run
        return None

    def _of_revision(self, selector: str, suites: Mapping[str, str | None]) -> str | None:
        """Return the newest whole run of a revision, or of one that begins with a text, or None."""
        for run in reversed([run for run, suite in suites.items() if suite]):
            names = self._texts(run, "revision")
            begins = any(name.startswith(selector) for name in names)
            is_meant = selector in names or (begins and len(selector) >= SHORTEST_REVISION)
            if is_meant and self.trigger(run) not in PARTIAL:
                return run
        return None

    def newer_note(self, run_id: str) -> str | None:
        """Say which newer run of the suite `last` does not mean, and why. Or None."""
        suite = self.suites_by_run[run_id] or self.plan(run_id).suite
        for newer in reversed([run for run in self.suites_by_run if run > run_id]):
            try:
                plan = self.plan_or_rows(newer)
            except StoreError:
                continue
            if plan.suite != suite or plan.trigger == "recheck":
                continue
            if is_of_future(newer):
                command = f"perfdag rm {newer} {store_option(self.store.root)}"
                advice = f"as its clock was wrong; remove it: {command}"
                return f"`last` is {run_id}; {newer} is of the future, {advice}"
            if plan.trigger == "ab" and plan.order:
                command = resume_command(plan, self.store.root)
                return f"`last` is {run_id}; the newer run of `perfdag ab` is shown by {command}"
            state = "measured a part of its suite" if plan.trigger in PARTIAL else "has no rows yet"
            return f"`last` is {run_id}; the newer run {newer} {state}"
        return None


def ambiguous(selector: str, names: Sequence[str]) -> str:
    """Return that a text is the beginning of several names of runs."""
    examples = ", ".join(names[:3])
    return f"{selector}: {len(names)} runs begin so ({examples} ...); write more of it"


def resume_command(plan: Plan, root: str) -> str:
    """Return the command that resumes a run where it was started.

    `root` is the store as it is called here, which may not exist there.
    """
    duet = plan.trigger == "ab"
    verb = "ab" if duet else "submit" if plan.where else "run"
    # Either variant names the duet.
    command = f"perfdag {verb} --resume {plan.run_id[:-1] + 'a' if duet else plan.run_id}"
    if plan.where or plan.options.cluster:
        command += f"{' --submit' if duet else ''}"
        command += f" --namespace {plan.where.get('namespace', 'perfdag')}"
        return command  # in the store of the installation
    if not root:
        return command
    return f"{command} {store_option('FOLDER' if root.startswith('claim://') else root)}"


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
    measured_on = plan.where.get("cluster")
    if measured_on and cluster and measured_on != cluster:
        return (
            f"run {plan.run_id} was measured on another cluster "
            f"(uid of its kube-system {measured_on}, here {cluster}); continue it there"
        )
    return None


ANY = "any"
"""Stands for the cluster of the newest run, where nothing says which cluster will measure."""


def with_learned_times(store: Store, plan: Plan, cluster: str | None) -> Plan:
    """Return the plan with the median duration of each point in the newest run, if on this cluster.

    `cluster` is that of the run, or None for one machine. Collecting a run writes these durations
    into its plan. A point that it did not measure keeps the estimate of its benchmark, as do all
    where the store cannot be read.
    """
    try:
        runs = [*runs_with_rows(store, plan.suite)]
        past = orjson.loads(store.get(plan_key(runs[-1]))) if runs else {}
    except (StoreError, ValueError):
        return plan
    if not past or cluster not in (ANY, past["where"].get("cluster")):
        return plan
    seconds = {point["id"]: point["seconds"] for point in past["points"]}
    points = [replace(point, seconds=seconds.get(point.id, point.seconds)) for point in plan.points]
    return replace(plan, points=points)


ROUNDS = 2
"""Number of rechecks of a run."""


def recheck_plans(plan: Plan, points: set[str]) -> list[Plan]:
    """Return the plans of ROUNDS rechecks, with one batch for each shape and entry.

    They hold the samples that `plan` has of the points with these ids.
    """
    indices = [i for i, point in enumerate(plan.points) if point.id in points]
    order = [(indices.index(i), repetition) for i, repetition in plan.order if i in indices]
    recheck = replace(
        plan,
        points=[plan.points[i] for i in indices],
        order=order,
        trigger="recheck",
    )
    batches = batches_by_kind(recheck)
    run_ids = sorted(new_run_id() for _ in range(ROUNDS))
    return [replace(recheck, run_id=run_id, batches=batches) for run_id in run_ids]


def put_rechecks(store: Store, plan: Plan, points: set[str]) -> list[Plan]:
    """Store the plans of the rechecks and name them in the plan of their run. Raises StoreError."""
    rechecks = recheck_plans(plan, points)
    for recheck in rechecks:
        put_plan(store, recheck)
    run_ids = [recheck.run_id for recheck in rechecks]
    plan.options = replace(plan.options, rechecks=run_ids)  # the rechecks share the former
    put_plan(store, plan)
    return rechecks


def recheck_batches(plan: Plan, rechecks: list[Plan]) -> list[tuple[int, Plan, int]]:
    """Return (number, plan, index in the plan) of each batch of a recheck.

    Numbers continue after the batches of the plan, with one place for each kind and recheck.
    """
    kinds = plan.kinds()
    batches = []
    for position, recheck in enumerate(rechecks):
        first = len(plan.batches) + position * len(kinds)
        for index, batch in enumerate(recheck.batches):
            batches.append((first + kinds.index(recheck.kind(batch)), recheck, index))
    return batches


def plan_of_batch(store: Store, plan: Plan, number: int) -> tuple[Plan, int]:
    """Return the plan that a batch number of a run belongs to, and the index there.

    Raises StoreError.
    """
    if number < len(plan.batches):
        return plan, number
    rechecks = [stored_plan(store, run_id) for run_id in plan.options.rechecks]
    for batch, owner, index in recheck_batches(plan, rechecks):
        if batch == number:
            return owner, index
    raise StoreError(f"store {store.root}: run {plan.run_id} has no batch {number}")


@dataclass(frozen=True)
class Selection:
    """Runs of one suite, oldest first, and the words that selected them."""

    words: str
    suite: str
    runs: tuple[str, ...]


class StoreWithHistory:
    """The store of a run above that of its history: a Store that reads both and writes the first.

    Other runs in the store of the run do not count, because they are no part of the history.
    """

    def __init__(self, store: Store, history: Store, plan: Plan) -> None:
        self.root = store.root
        self.history = history
        self._own = store
        self._plan = plan

    def put(self, key: str, data: bytes) -> None:
        self._own.put(key, data)

    def delete(self, prefix: str) -> None:
        self._own.delete(prefix)

    def get(self, key: str) -> bytes:
        return self._store_of(key).get(key)

    def get_many(self, keys: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        earlier = self.history.get_many([key for key in keys if not self._is_own(key)])
        for key in keys:
            yield (key, self._own.get(key)) if self._is_own(key) else next(earlier)

    def folders(self, prefix: str) -> list[str]:
        folders = [name for name in self._own.folders(prefix) if self._is_own(name)]
        return sorted({*folders, *self.history.folders(prefix)})

    def list(self, prefix: str) -> list[str]:
        keys = [key for key in self._own.list(prefix) if self._is_own(key)]
        keys += [key for key in self.history.list(prefix) if not self._is_own(key)]
        return sorted(keys)

    def url(self, key: str) -> str:
        return self._store_of(key).url(key)

    def _store_of(self, key: str) -> Store:
        return self._own if self._is_own(key) else self.history

    def _is_own(self, key: str) -> bool:
        """Return whether a key is of the run, its rechecks, or the site that shows them."""
        runs = (self._plan.run_id, *self._plan.options.rechecks)
        return key.startswith("site/") or any(run in key for run in runs)


def with_history(store: Store, root: str, plan: Plan) -> StoreWithHistory:
    """Return the store of a run above its history in the store `root`. Raises StoreError."""
    history = open_store(root)
    if not runs_with_rows(history, plan.suite):
        logger.warning(f"note: the history {root} has no run of suite {plan.suite}")
    return StoreWithHistory(store, history, plan)
