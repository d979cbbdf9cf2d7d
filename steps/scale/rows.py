"""From records to rows: one row a workload and stage, with the seconds since the stage it follows.

A stage that was not seen has no value: `unobserved` where a later one was seen (or where it may never come), `censored` where the
object never got there before the observation ended (`seconds` is then how long it had waited, a lower bound), `failed` where the
object was never created. Percentiles count censored rows as infinitely long.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from perfdag.steps.scale.chains import Step, chain
from perfdag.steps.scale.generator import Submission
from perfdag.steps.scale.records import Record
from perfdag.steps.scale.stages import whole_second

Status = Literal["ok", "unobserved", "censored", "failed"]
_ENDS = ("succeeded", "failed")
OLDER = 140
"""Characters of an older message before the newest one, which must not be cut off with a text that is too long."""
SET, VMI = "VirtualMachineInstanceReplicaSet", "VirtualMachineInstance"


@dataclass(frozen=True)
class Clocks:
    """What turns a record's times into Unix time of this machine's clock.

    `mono_to_unix_ns` is added to a monotonic time; `server_ahead_s` is the server's clock minus ours; `lag_s` the p99 of the watch.
    """

    mono_to_unix_ns: int
    server_ahead_s: float = 0.0
    lag_s: float | None = None

    @property
    def ahead_ns(self) -> int:
        """The server's clock minus ours in ns."""
        return round(self.server_ahead_s * 1e9)


@dataclass(frozen=True)
class Moment:
    """When a stage was reached, in Unix ns (0: not known): by receive time, which is of our clock, by the API and by an Event, as they say
    it; theirs is `ahead` of ours."""

    received: int = 0
    api: int = 0
    event: int = 0
    ahead: int = 0

    @property
    def best(self) -> int:
        """The most precise of the three, by our clock."""
        told = self.event or self.api
        return self.received or (told - self.ahead if told else 0)

    @property
    def served(self) -> int:
        """The same by the server's clock: a whole second of the API stays one."""
        return self.best + self.ahead if self.best else 0


@dataclass
class Row:
    """One workload (of a replica set: one VMI) and stage. Times are Unix seconds, `seconds` since the stage `since`, `resolution_s`
    the error bar of `seconds`. The stage `submitted` is the time an object was due (`intended`); `submitted` is when it was sent. The API's
    and the Event's time are the server's own; all others are of this machine's clock, also `reached`, the most precise of the three."""

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
        found: dict[str, list[Record]] = defaultdict(list)
        todo = [self._records[uid]] if uid in self._records else []
        while todo:
            record = todo.pop()
            found[record.kind].append(record)
            todo += self._children.get(record.uid, ())
        return found


def _moment(record: Record, stage: str, clocks: Clocks) -> Moment | None:
    times = record.times(stage)
    if times is None:
        return None
    api, event, received = times
    return Moment(received + clocks.mono_to_unix_ns if received else 0, api, event, clocks.ahead_ns)


def _reached(
    step: Step, family: Mapping[str, list[Record]], expected: int | None, clocks: Clocks
) -> Moment | None:
    """When the step's stage was reached: for `last` only when all of them (`expected`, where it is known) were seen to reach it."""
    records = family.get(step.kind, [])
    if step.kind == VMI and step.stage != "failed":
        records = _lasting(records)
    elif step.kind == "Pod":
        records = _standing(records, step.stage, expected)
    moments = [found for record in records if (found := _moment(record, step.stage, clocks))]
    if not moments:
        return None
    if step.pick == "first":
        return min(moments, key=lambda each: each.best or math.inf)
    short = expected is not None and step.kind == "Pod" and len(moments) < expected
    return (
        None if short or len(moments) < len(records) else max(moments, key=lambda each: each.best)
    )


def difference(
    start: Moment, end: Moment, clocks: Clocks
) -> tuple[float, float | None, str] | None:
    """Seconds from start to end on the best clock both have, its error bar in seconds, and the clock's name; None where there is none."""
    if start.received and end.received:
        return (end.received - start.received) / 1e9, clocks.lag_s, "receive"
    if start.api and end.api:
        if whole_second(start.api) or whole_second(end.api):
            return _cut(start.api, end.api), 1.0, "api"
        return (end.api - start.api) / 1e9, 1e-6, "api"
    if start.best and end.best:
        return _cut(start.served, end.served), 1.0, "mixed"
    return None


def _cut(start: int, end: int) -> float:
    """Whole seconds between two times of the clock that cut one of them: only one cut would add or take half a second, on the average,
    and the seconds of another clock would add or take more."""
    second = 1_000_000_000
    return float(end // second - start // second)


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
    by_name = {(each.namespace, each.name): each for each in records.values() if each.kind == kind}
    for item in submissions:
        record = records.get(item.uid) or by_name.get((item.namespace, item.name))
        if kind == SET:
            found = _members(item, record, family, expected_pods or 1)
        else:
            found = [
                Workload(
                    item,
                    record,
                    item.index,
                    item.name,
                    family.below(record.uid) if record else {},
                    expected_pods,
                )
            ]
        for workload in found:
            yield from _rows_of_one(workload, clocks, run, kind, steps, end, fake, messages or {})


@dataclass
class Workload:
    """What a set of rows is about: a submission, or one VMI of a submitted set. `below` are its objects by kind."""

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
    """A workload for each VMI that a set shall have, those that are there by age: a set's time is not that of its VMIs."""
    vmis = _lasting(family.below(record.uid)[VMI]) if record else []
    vmis.sort(
        key=lambda each: (
            (each.times("created") or (0, 0, 0))[2] or (each.times("created") or (0,))[0]
        )
    )
    found = []
    for k in range(replicas):
        member = vmis[k] if k < len(vmis) else None
        below = {**family.below(member.uid)} if member else {}
        if record:
            below[SET] = [record]
        found.append(
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
    return found


def _lasting(vmis: list[Record]) -> list[Record]:
    """Without those that ended before they ran and were replaced, as long as there is another."""
    return [
        each
        for each in vmis
        if "running" in each.stages or not {"failed", "gone"} & set(each.stages)
    ] or vmis


def _standing(pods: list[Record], stage: str, expected: int | None) -> list[Record]:
    """Without those that ended before the stage, as long as the others make up what was `expected`: they were replaced."""
    ended = (
        {"gone"} if expected is None else {"gone", "failed"}
    )  # where their number is not known nothing tells what replaces a failed one
    others = [each for each in pods if stage in each.stages or not ended & set(each.stages)]
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
    members = [each for group in below.values() for each in group]
    nodes = sorted({each.node for each in members if each.node})
    error = (
        item.error or next((text for each in members if (text := said(each, messages))), "") or None
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
    latest = max((each.best for each in moments.values() if each), default=0)
    for step in steps:
        ended, deleting = moments[step.name] if step.stage in _ENDS else None, moments["deleting"]
        if ended and deleting and (ended.best >= deleting.best) != (step.since == "deleting"):
            moments[step.name] = (
                None  # it ended by itself, and was deleted later, or the other way round
            )
    for step in steps:
        start, here = moments.get(step.since), moments[step.name]
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
        if here:
            row.api_time, row.event_time = here.api / 1e9 or None, here.event / 1e9 or None
            row.receive_time, row.reached = here.received / 1e9 or None, here.best / 1e9 or None
        span = difference(start, here, clocks) if start and here else None
        if item.error or not item.started_ns:
            row.status = "failed"
        elif span:
            row.seconds, row.resolution_s, row.source = span
        elif step.optional or here or (latest and _overtaken(step, steps, moments)):
            row.status = "unobserved"
        else:
            row.status = "censored"
            row.seconds = (end - (start.best if start else moments["submitted"].best)) / 1e9  # type: ignore[union-attr]
        yield row


def said(record: Record, messages: Mapping[str, str]) -> str:
    """What an object says of its failure and what Events warned of (`messages` by UID), the newest last; what both say only once."""
    own, warned = record.error, messages.get(record.uid, "")
    if not own or not warned or own.partition(": ")[2] == warned.partition(": ")[2]:
        return own or warned
    older, newest = (warned, own) if record.error_newer else (own, warned)
    return f"{older[:OLDER]}; {newest}"


def _overtaken(step: Step, steps: Sequence[Step], moments: Mapping[str, Moment | None]) -> bool:
    """True where a later stage was seen, or the workload succeeded, so this one happened unseen."""
    later = steps[steps.index(step) + 1 :]
    return any(
        moments[each.name]
        for each in later
        if not each.optional or (each.stage == "succeeded" and each.since != "deleting")
    )


def on_simulated(rows: Iterable[Row]) -> bool | None:
    """Whether any pods were on simulated nodes; None where they had nodes and nothing tells which are."""
    told = {row.simulated for row in rows if row.node}
    return None if None in told else True in told


def with_deletion(before: Sequence[Row], after: Iterable[Row]) -> list[Row]:
    """Rows as they were before the deletion began, but for the stages of the deletion itself, which are those of `after`.

    What gets its turn only because others go has not reached its stage.
    """
    late = [row for row in after if row.since == "deleting"]
    by_index = {(row.index, row.stage): row for row in late}
    by_uid = {(row.uid, row.stage): row for row in late}
    members = {
        row.index
        for row in before
        if row.kind == SET and row.stage == "vmi_created" and row.objects
    }
    found = []
    for row in before:
        # VMIs of a set are numbered anew when some of them go; a number that had no VMI yet has no UID of its own
        end = (
            by_uid.get((row.uid, row.stage))
            if row.index in members
            else by_index.get((row.index, row.stage))
        )
        found.append(replace(end, index=row.index, name=row.name, uid=row.uid) if end else row)
    return found
