"""Convert records to rows: one row per workload and stage; and rows to summaries.

`seconds` counts from the stage before. Status `unobserved`: a later stage was seen, or the stage is
optional. `censored`: the stage was not reached, and `seconds` is a lower bound. `failed`: the
object was never created. Percentiles treat censored rows as infinite.

A stage has the time at which the watch showed it. The API's times have whole seconds, in which most
stages of a pod take 0 s: they are used where no watch saw the stage, and stand beside it in a row.
"""

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from perfdag.identity import grouped
from perfdag.stats.robust import needed
from perfdag.steps.scale.generate import Submission
from perfdag.steps.scale.objects import DELETIONS, SECOND, SET, VMI, Record, Step, chain


class Moment(NamedTuple):
    """When a stage was reached, in Unix ns of our clock (0: unknown).

    `api` is the time of the API server's clock, 0 if it says none. Without `watched`, `at` is that
    time by our clock.
    """

    at: int
    api: int = 0
    watched: bool = True

    @property
    def whole(self) -> bool:
        """Whether it is a whole second of the API."""
        return not self.watched and self.api % SECOND == 0

    def server_second(self, ahead: int) -> int:
        """Return its whole second by the clock of the server, which is `ahead` ns of ours."""
        return (self.api or self.at + ahead) // SECOND


def _moment(record: Record, stage: str, ahead: int) -> Moment | None:
    """Return when a record reached a stage. `ahead` is the server's clock minus ours in ns."""
    if stage not in record.stages:
        return None
    api, received = record.stages[stage]
    return Moment(received or (api and api - ahead), api, bool(received))


def _difference(start: Moment, end: Moment, ahead: int) -> tuple[float, float | None]:
    """Return the difference in seconds, and its resolution.

    If one end has whole seconds of the API, both are truncated on its clock: a difference with only
    one of them would be biased by half a second.
    """
    if start.whole or end.whole:
        return float(end.server_second(ahead) - start.server_second(ahead)), 1.0
    return (end.at - start.at) / 1e9, None


@dataclass(slots=True)
class Row:
    """One workload (of a replica set: one VMI) and stage.

    Times are Unix seconds. `resolution_s` is that of `seconds` where it comes from API times.
    `submitted` is when the object was sent. `source` of `reached` is watch or api. `api_time` is by
    the server's clock, all others by ours.
    """

    run: str
    index: int
    name: str
    namespace: str
    kind: str
    uid: str
    stage: str
    since: str
    status: Literal["ok", "unobserved", "censored", "failed"]
    seconds: float | None = None
    resolution_s: float | None = None
    source: str | None = None
    api_time: float | None = None
    reached: float | None = None
    submitted: float | None = None
    objects: int = 0
    node: str | None = None
    simulated: bool | None = None
    error: str | None = None


Family = Mapping[str, list[Record]]
"""A workload (or a VMI) and the objects below it, by kind."""


def rows_of(
    submissions: Sequence[Submission],
    records: Mapping[str, Record],
    *,
    run: str,
    kind: str,
    until_ns: int,
    ahead_s: float = 0.0,
    members: int | None = None,
    simulated: set[str] | None = None,
) -> Iterator[Row]:
    """Yield one row per submission and step of the kind's chain.

    A replica set of VMIs has one row per VMI (`members` of them) and step; others have `members`
    pods or VMIs (None: unknown). `until_ns` is the end of the observation, `ahead_s` the server's
    clock minus ours. `simulated` are the nodes that KWOK simulates (None: unknown).
    """
    children = grouped(records.values(), key=lambda record: record.owner)

    def below(record: Record | None) -> dict[str, list[Record]]:
        """Return an object and all that it owns, by kind."""
        by_kind: dict[str, list[Record]] = defaultdict(list)
        todo = [record] if record else []
        while todo:
            owner = todo.pop()
            by_kind[owner.kind].append(owner)
            todo += children.get(owner.uid, ())
        return by_kind

    steps = chain(kind)
    ahead = round(ahead_s * 1e9)
    by_name = {(item.namespace, item.name): item for item in records.values() if item.kind == kind}
    for item in submissions:
        top = records.get(item.uid) or by_name.get((item.namespace, item.name))
        item = replace(item, uid=top.uid if top else item.uid)  # a program tells no UID
        workloads: list[tuple[Submission, Family]] = [(item, below(top))]
        if kind == SET:
            vmis = _without_replaced_vmis(workloads[0][1][VMI])
            vmis = sorted(vmis, key=lambda vmi: vmi.stages.get("created", (0, 0))[::-1])
            workloads = []
            for k in range(members or 1):
                vmi = vmis[k] if k < len(vmis) else None
                of_vmi = below(vmi)
                if top:
                    of_vmi[SET] = [top]
                index = item.index * (members or 1) + k
                uid = vmi.uid if vmi else item.uid
                name = f"{item.name}-{k}"
                workloads.append((replace(item, index=index, name=name, uid=uid), of_vmi))
        for workload, family in workloads:
            expected = 1 if kind == SET else members
            moments = _moments(workload, family, top, steps, expected, ahead)
            yield from _rows_of_one(
                workload, family, moments, run, kind, until_ns, ahead, simulated
            )


def from_creation(rows: Iterable[Row], kind: str) -> Iterator[Row]:
    """Yield the rows without the submission: what counts from it counts from the creation."""
    stages = {step.name for step in chain(kind)}
    for row in rows:
        stage = row.stage.replace("submission_to_", "creation_to_")
        if row.since != "submitted":
            yield row
        elif stage not in stages:
            yield replace(row, stage=stage, since="created")


def _rows_of_one(
    item: Submission,
    family: Family,
    moments: Mapping[str, Moment | None],
    run: str,
    kind: str,
    until_ns: int,
    ahead: int,
    simulated: set[str] | None,
) -> Iterator[Row]:
    """Yield one row per step."""
    records = sum(family.values(), list[Record]())
    nodes = sorted({record.node for record in records if record.node})
    messages = (record.message for record in records if record.message)
    error = item.error or next(messages, None)
    steps = chain(kind)
    for step in steps:
        row = Row(
            run=run,
            index=item.index,
            name=item.name,
            namespace=item.namespace,
            kind=kind,
            uid=item.uid,
            stage=step.name,
            since=step.since,
            status="ok",
            submitted=item.started_ns / 1e9 or None,
            objects=len(family.get(step.kind, ())),
            node=",".join(nodes) or None,
            error=error,
        )
        if nodes and simulated is not None:
            row.simulated = simulated.issuperset(nodes)
        start = moments.get(step.since)
        moment = moments[step.name]
        if moment:
            row.api_time = moment.api / 1e9 or None
            row.reached = moment.at / 1e9 or None
            row.source = "watch" if moment.watched else "api"
        if item.error or not item.started_ns:
            row.status = "failed"
        elif start and moment and start.at and moment.at:
            row.seconds, row.resolution_s = _difference(start, moment, ahead)
        elif step.optional or moment or _passed_unseen(step, steps, moments):
            row.status = "unobserved"
        else:
            row.status = "censored"
            row.seconds = (until_ns - (start.at if start else item.intended_ns)) / 1e9
        yield row


def _moments(
    item: Submission,
    family: Family,
    record: Record | None,
    steps: Sequence[Step],
    expected: int | None,
    ahead: int,
) -> dict[str, Moment | None]:
    """Return when each step was reached, and the submission and the deletion."""
    # Counts from the due time. In a closed loop that is the time of sending.
    moments: dict[str, Moment | None] = {"submitted": Moment(item.intended_ns)}
    for step in steps:
        moments[step.name] = _reached(step, family.get(step.kind, []), expected, ahead)
    deleting = _moment(record, "deleting", ahead) if record else None
    moments["deleting"] = deleting
    for step in steps:
        final = moments[step.name] if step.stage in ("succeeded", "failed") else None
        if final and deleting and (final.at >= deleting.at) != (step.since in DELETIONS):
            # It ended by itself and was deleted later, or the other way round.
            moments[step.name] = None
    return moments


def _reached(step: Step, records: list[Record], expected: int | None, ahead: int) -> Moment | None:
    """Return when the stage was reached. `last` needs all (`expected`) objects."""
    if step.kind == VMI and step.stage != "failed":
        records = _without_replaced_vmis(records)
    elif step.kind == "Pod":
        records = _without_replaced_pods(records, step.stage, expected)
    moments = [moment for record in records if (moment := _moment(record, step.stage, ahead))]
    if not moments:
        return None
    if step.pick == "first":
        return min(moments, key=lambda moment: moment.at or math.inf)
    short = expected is not None and step.kind == "Pod" and len(moments) < expected
    complete = not short and len(moments) == len(records)
    return max(moments, key=lambda moment: moment.at) if complete else None


def _without_replaced_vmis(vmis: list[Record]) -> list[Record]:
    """Return the VMIs without those that ended before they ran and were replaced."""
    return [
        vmi for vmi in vmis if "running" in vmi.stages or not {"failed", "gone"} & set(vmi.stages)
    ] or vmis


def _without_replaced_pods(pods: list[Record], stage: str, expected: int | None) -> list[Record]:
    """Return the pods without those that ended before the stage and were replaced."""
    # Without an expected number, replacements of failed pods are unknown.
    end_stages = {"gone"} if expected is None else {"gone", "failed"}
    remaining = [pod for pod in pods if stage in pod.stages or not end_stages & set(pod.stages)]
    return remaining if len(remaining) >= (expected or 1) else pods


def _passed_unseen(step: Step, steps: Sequence[Step], moments: Mapping[str, Moment | None]) -> bool:
    """Return whether a later stage was seen, so that this one happened unobserved."""
    for later in steps[steps.index(step) + 1 :]:
        succeeded = later.stage == "succeeded" and later.since not in DELETIONS
        if moments[later.name] and (succeeded or not later.optional):
            return True
    return False


def on_simulated(rows: Iterable[Row]) -> bool | None:
    """Tell whether any pod ran on a simulated node, or None if that is unknown."""
    answers = {row.simulated for row in rows if row.node}
    return None if None in answers else True in answers


def with_deletion(before: Sequence[Row], after: Iterable[Row]) -> list[Row]:
    """Merge rows from before the deletion with the deletion's own stages from `after`.

    Stages reached only because other objects were deleted do not count, nor what ended earlier.
    """
    # A stage may seem to end before its deletion by as much as the API server's times are rounded.
    ends = [
        row
        for row in after
        if row.since in DELETIONS and (row.seconds or 0) >= -(row.resolution_s or 0)
    ]
    by_index = {(row.index, row.stage): row for row in ends}
    by_uid = {(row.uid, row.stage): row for row in ends}
    of_sets = {
        row.index
        for row in before
        if row.kind == SET and row.stage == "vmi_created" and row.objects
    }
    merged = []
    for row in before:
        # VMIs of a set get new numbers when some of them are deleted, so match them by UID.
        # A number without a VMI has no UID of its own.
        by_number = by_index.get((row.index, row.stage))
        end = by_uid.get((row.uid, row.stage)) if row.index in of_sets else by_number
        merged.append(replace(end, index=row.index, name=row.name, uid=row.uid) if end else row)
    return merged


@dataclass(frozen=True)
class Summary:
    """One stage of a run, with its rows by status.

    `seconds` has p50, p95, p99, mean, min and max. Percentiles are nearest-rank over ok and
    censored rows: None with too few samples, or if the rank falls among censored rows.
    """

    stage: str
    since: str
    count: Counter[str]
    seconds: dict[str, float | None]
    resolution_s: float | None


def rank(values: Sequence[float], p: float) -> float | None:
    """Return the nearest-rank percentile of sorted values; None for fewer than it needs."""
    if len(values) < needed(p):
        return None
    value = values[max(0, math.ceil(p * len(values)) - 1)]
    return None if math.isinf(value) else value


def summaries(rows: Iterable[Row]) -> list[Summary]:
    """Return a summary per stage, in the order of appearance."""
    by_stage = grouped(rows, key=lambda row: (row.stage, row.since))
    return [_summary(stage, since, group) for (stage, since), group in by_stage.items()]


def _summary(stage: str, since: str, rows: Sequence[Row]) -> Summary:
    count = Counter[str](row.status for row in rows)
    values = sorted(row.seconds for row in rows if row.status == "ok" and row.seconds is not None)
    # What did not happen in time is later than all that did.
    ranked = values + [math.inf] * count["censored"]
    seconds = {
        "p50": rank(ranked, 0.5),
        "p95": rank(ranked, 0.95),
        "p99": rank(ranked, 0.99),
        "mean": sum(values) / len(values) if values else None,
        "min": min(values, default=None),
        "max": max(values, default=None),
    }
    resolutions = [row.resolution_s for row in rows if row.resolution_s is not None]
    return Summary(stage, since, count, seconds, max(resolutions, default=None))


def throughput(reached: Sequence[float], window: float = 5.0) -> tuple[float | None, float | None]:
    """Return objects per second: the mean, and the best `window` seconds; None below 2 objects."""
    times = sorted(reached)
    if len(times) < 2 or times[-1] <= times[0]:
        return None, None
    span = times[-1] - times[0]
    # without numpy, which the images for measuring lack
    inside = max(bisect_left(times, start + window - 1e-9) - n for n, start in enumerate(times))
    return (len(times) - 1) / span, inside / window if span >= window else None


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows (atomically). Times are Unix seconds; the columns are the fields of Row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    new = path.with_suffix(".new")
    pq.write_table(pa.Table.from_pylist([asdict(row) for row in rows]), new, compression="zstd")
    new.replace(path)
