"""Convert records to rows: one row per workload and stage.

`seconds` counts from the stage before. Status `unobserved`: a later stage was seen, or the stage is
optional. `censored`: the stage was not reached, and `seconds` is a lower bound. `failed`: the
object was never created. Percentiles treat censored rows as infinite.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from perfdag.steps.scale.figures.moments import Clocks, Moment, difference
from perfdag.steps.scale.measure.generator import Submission
from perfdag.steps.scale.model.chains import Step, chain
from perfdag.steps.scale.model.records import Record
from perfdag.steps.scale.model.stages import SET, VMI

Status = Literal["ok", "unobserved", "censored", "failed"]
_ENDS = ("succeeded", "failed")
OLDER = 140
"""Maximum length of an older message, so that the newest one is not cut off."""


@dataclass
class Row:
    """One workload (of a replica set: one VMI) and stage.

    Times are Unix seconds. `resolution_s` is the error bar of `seconds`. `intended` is when the
    object was due, `submitted` when it was sent. `api_time` and `event_time` are by the server's
    clock, all others by ours. `reached` is the most precise of them.
    """

    run: str
    index: int
    name: str
    namespace: str
    kind: str
    uid: str
    stage: str
    since: str
    status: Status
    seconds: float | None = None
    resolution_s: float | None = None
    source: str | None = None
    api_time: float | None = None
    event_time: float | None = None
    receive_time: float | None = None
    reached: float | None = None
    intended: float | None = None
    submitted: float | None = None
    retries: int = 0
    objects: int = 0
    node: str | None = None
    simulated: bool | None = None
    error: str | None = None


class Family:
    """Records by owner: finds everything below a workload by UID."""

    def __init__(self, records: Mapping[str, Record]) -> None:
        self._records = records
        self._children: dict[str, list[Record]] = defaultdict(list)
        for record in records.values():
            if record.owner:
                self._children[record.owner].append(record)

    def below(self, uid: str) -> dict[str, list[Record]]:
        """The object of that UID and all it owns, by kind."""
        by_kind: dict[str, list[Record]] = defaultdict(list)
        todo = [self._records[uid]] if uid in self._records else []
        while todo:
            record = todo.pop()
            by_kind[record.kind].append(record)
            todo += self._children.get(record.uid, ())
        return by_kind


def _moment(record: Record, stage: str, clocks: Clocks) -> Moment | None:
    times = record.times(stage)
    if times is None:
        return None
    api, event, received = times
    return Moment(received + clocks.mono_to_unix_ns if received else 0, api, event, clocks.ahead_ns)


def _reached(
    step: Step, family: Mapping[str, list[Record]], expected: int | None, clocks: Clocks
) -> Moment | None:
    """Return when the stage was reached. `last` needs all (`expected`) objects."""
    records = family.get(step.kind, [])
    if step.kind == VMI and step.stage != "failed":
        records = _without_replaced_vmis(records)
    elif step.kind == "Pod":
        records = _without_replaced_pods(records, step.stage, expected)
    moments = [moment for record in records if (moment := _moment(record, step.stage, clocks))]
    if not moments:
        return None
    if step.pick == "first":
        return min(moments, key=lambda moment: moment.best or math.inf)
    short = expected is not None and step.kind == "Pod" and len(moments) < expected
    return (
        None
        if short or len(moments) < len(records)
        else max(moments, key=lambda moment: moment.best)
    )


def rows_of(
    submissions: Sequence[Submission],
    records: Mapping[str, Record],
    clocks: Clocks,
    *,
    run: str,
    kind: str,
    until_ns: int,
    api_version: str = "v1",
    expected_pods: int | None = None,
    simulated: Iterable[str] | None = (),
    messages: Mapping[str, str] | None = None,
) -> Iterator[Row]:
    """One row a submission and step of the kind's chain; of a replica set of VMIs, one a VMI (`expected_pods` of them) and step.

    `until_ns` (monotonic) is when the observation ended; `api_version` tells a kind of Kubernetes' own from another of its name;
    `simulated` are the nodes that KWOK plays (None: nothing tells which they are).
    """
    family, end = Family(records), until_ns + clocks.mono_to_unix_ns
    fake = None if simulated is None else set(simulated)
    steps = chain(api_version, kind)
    by_name = {
        (record.namespace, record.name): record
        for record in records.values()
        if record.kind == kind
    }
    for item in submissions:
        record = records.get(item.uid) or by_name.get((item.namespace, item.name))
        if kind == SET:
            workloads = _members(item, record, family, expected_pods or 1)
        else:
            workloads = [
                Workload(
                    item,
                    record,
                    item.index,
                    item.name,
                    family.below(record.uid) if record else {},
                    expected_pods,
                )
            ]
        for workload in workloads:
            yield from _rows_of_one(workload, clocks, run, kind, steps, end, fake, messages or {})


@dataclass
class Workload:
    """The subject of a set of rows: a submission, or one VMI of a submitted set."""

    item: Submission
    record: Record | None
    index: int
    name: str
    below: Mapping[str, list[Record]]
    expected: int | None
    uid: str = ""


def _members(
    item: Submission, record: Record | None, family: Family, replicas: int
) -> list[Workload]:
    """Return one workload for every VMI of a replica set, existing VMIs by age."""
    vmis = _without_replaced_vmis(family.below(record.uid)[VMI]) if record else []
    vmis.sort(
        key=lambda vmi: (vmi.times("created") or (0, 0, 0))[2] or (vmi.times("created") or (0,))[0]
    )
    workloads = []
    for k in range(replicas):
        member = vmis[k] if k < len(vmis) else None
        below = {**family.below(member.uid)} if member else {}
        if record:
            below[SET] = [record]
        workloads.append(
            Workload(
                item,
                record,
                item.index * replicas + k,
                f"{item.name}-{k}",
                below,
                1,
                member.uid if member else "",
            )
        )
    return workloads


def _without_replaced_vmis(vmis: list[Record]) -> list[Record]:
    """Return the VMIs without those that ended before they ran and were replaced."""
    return [
        vmi for vmi in vmis if "running" in vmi.stages or not {"failed", "gone"} & set(vmi.stages)
    ] or vmis


def _without_replaced_pods(pods: list[Record], stage: str, expected: int | None) -> list[Record]:
    """Return the pods without those that ended before the stage and were replaced."""
    ended = (
        {"gone"} if expected is None else {"gone", "failed"}
    )  # without a number, replacements of failed pods are unknown
    others = [pod for pod in pods if stage in pod.stages or not ended & set(pod.stages)]
    return others if len(others) >= (expected or 1) else pods


def _rows_of_one(
    workload: Workload,
    clocks: Clocks,
    run: str,
    kind: str,
    steps: Sequence[Step],
    end: int,
    fake: set[str] | None,
    messages: Mapping[str, str],
) -> Iterator[Row]:
    item, record, below = workload.item, workload.record, workload.below
    members = [record for group in below.values() for record in group]
    nodes = sorted({record.node for record in members if record.node})
    error = (
        item.error
        or next((text for record in members if (text := error_text(record, messages))), "")
        or None
    )
    moments: dict[str, Moment | None] = {}
    if item.started_ns:  # from the time it was due: in a closed loop that is when it was sent
        moments["submitted"] = Moment(
            received=(item.intended_ns or item.started_ns) + clocks.mono_to_unix_ns,
            ahead=clocks.ahead_ns,
        )
    for step in steps:
        moments[step.name] = _reached(step, below, workload.expected, clocks)
    moments["deleting"] = _moment(record, "deleting", clocks) if record else None
    latest = max((moment.best for moment in moments.values() if moment), default=0)
    for step in steps:
        ended, deleting = moments[step.name] if step.stage in _ENDS else None, moments["deleting"]
        if ended and deleting and (ended.best >= deleting.best) != (step.since == "deleting"):
            moments[step.name] = (
                None  # it ended by itself, and was deleted later, or the other way round
            )
    for step in steps:
        start, moment = moments.get(step.since), moments[step.name]
        uid = workload.uid or (record.uid if record else item.uid)
        row = Row(
            run,
            workload.index,
            workload.name,
            item.namespace,
            kind,
            uid,
            step.name,
            step.since,
            "ok",
        )
        row.objects = len(below.get(step.kind, ()))
        row.intended = (
            (item.intended_ns + clocks.mono_to_unix_ns) / 1e9 if item.intended_ns else None
        )
        row.submitted = (
            (item.started_ns + clocks.mono_to_unix_ns) / 1e9 if item.started_ns else None
        )
        row.retries, row.error, row.node = item.retries, error, ",".join(nodes) or None
        row.simulated = all(node in fake for node in nodes) if nodes and fake is not None else None
        if moment:
            row.api_time, row.event_time = moment.api / 1e9 or None, moment.event / 1e9 or None
            row.receive_time, row.reached = moment.received / 1e9 or None, moment.best / 1e9 or None
        span = difference(start, moment, clocks) if start and moment else None
        if item.error or not item.started_ns:
            row.status = "failed"
        elif span:
            row.seconds, row.resolution_s, row.source = span
        elif step.optional or moment or (latest and _passed_unseen(step, steps, moments)):
            row.status = "unobserved"
        else:
            row.status = "censored"
            row.seconds = (end - (start.best if start else moments["submitted"].best)) / 1e9  # type: ignore[union-attr]
        yield row


def error_text(record: Record, messages: Mapping[str, str]) -> str:
    """Return the object's failure message and its last warning, the newest last."""
    own, warned = record.error, messages.get(record.uid, "")
    if not own or not warned or own.partition(": ")[2] == warned.partition(": ")[2]:
        return own or warned
    older, newest = (warned, own) if record.error_newer else (own, warned)
    return f"{older[:OLDER]}; {newest}"


def _passed_unseen(step: Step, steps: Sequence[Step], moments: Mapping[str, Moment | None]) -> bool:
    """Return whether a later stage was seen, so that this one happened unobserved."""
    later = steps[steps.index(step) + 1 :]
    return any(
        moments[step.name]
        for step in later
        if not step.optional or (step.stage == "succeeded" and step.since != "deleting")
    )


def on_simulated(rows: Iterable[Row]) -> bool | None:
    """Whether any pods were on simulated nodes; None where they had nodes and nothing tells which are."""
    answers = {row.simulated for row in rows if row.node}
    return None if None in answers else True in answers


def with_deletion(before: Sequence[Row], after: Iterable[Row]) -> list[Row]:
    """Merge rows from before the deletion with the deletion's own stages from `after`.

    Stages reached only because other objects were deleted do not count.
    """
    late = [row for row in after if row.since == "deleting"]
    by_index = {(row.index, row.stage): row for row in late}
    by_uid = {(row.uid, row.stage): row for row in late}
    members = {
        row.index
        for row in before
        if row.kind == SET and row.stage == "vmi_created" and row.objects
    }
    merged = []
    for row in before:
        # VMIs of a set are numbered anew when some of them go; a number that had no VMI yet has no UID of its own
        end = (
            by_uid.get((row.uid, row.stage))
            if row.index in members
            else by_index.get((row.index, row.stage))
        )
        merged.append(replace(end, index=row.index, name=row.name, uid=row.uid) if end else row)
    return merged
