"""Convert records to rows: one row per workload and stage; and rows to summaries.

`seconds` counts from the stage before. Status `unobserved`: a later stage was seen, or the stage is
optional. `censored`: the stage was not reached, and `seconds` is a lower bound. `failed`: the
object was never created. Percentiles treat censored rows as infinite.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from perfdag.stats.robust import needed
from perfdag.steps.scale.measure.generator import Submission
from perfdag.steps.scale.model.stages import DELETIONS, SET, VMI, Record, Step, chain, whole_second


@dataclass(frozen=True)
class Clocks:
    """Conversion of a record's times to Unix time of this machine's clock.

    `mono_to_unix_ns` is added to a monotonic time. `server_ahead_s` is the server's clock minus
    ours.
    """

    mono_to_unix_ns: int
    server_ahead_s: float = 0.0

    def unix(self, mono_ns: int) -> float | None:
        """Return Unix seconds of a monotonic time in ns, or None for 0."""
        return (mono_ns + self.mono_to_unix_ns) / 1e9 if mono_ns else None

    @property
    def ahead_ns(self) -> int:
        """The server's clock minus ours in ns."""
        return round(self.server_ahead_s * 1e9)


@dataclass(frozen=True)
class Moment:
    """When a stage was reached, in Unix ns (0: unknown).

    `received` is by our clock. `api` and `event` are by the server's clock, which is `ahead` of
    ours.
    """

    received: int = 0
    api: int = 0
    event: int = 0
    ahead: int = 0

    @property
    def best(self) -> int:
        """The most precise of the three, by our clock."""
        server_time = self.event or self.api
        return self.received or (server_time - self.ahead if server_time else 0)

    @property
    def served(self) -> int:
        """The same by the server's clock: a whole second of the API stays one."""
        return self.best + self.ahead if self.best else 0


def difference(start: Moment, end: Moment) -> tuple[float, float | None, str] | None:
    """Return the difference in seconds, its resolution and its clock, on the best common clock.

    A difference of receive times has no resolution of its own: the lag of the watch bounds it.
    """
    if start.received and end.received:
        return (end.received - start.received) / 1e9, None, "receive"
    if start.api and end.api:
        if whole_second(start.api) or whole_second(end.api):
            return _whole_seconds(start.api, end.api), 1.0, "api"
        return (end.api - start.api) / 1e9, 1e-6, "api"
    if start.best and end.best:
        return _whole_seconds(start.served, end.served), 1.0, "mixed"
    return None


def _whole_seconds(start: int, end: int) -> float:
    """Return whole seconds between two times of one clock, both truncated.

    Truncating only one of them would bias the difference by half a second.
    """
    second = 1_000_000_000
    return float(end // second - start // second)


class Family:
    """Records by owner: finds everything below a workload by UID."""

    def __init__(self, records: Mapping[str, Record]) -> None:
        self._records = records
        self._children: dict[str, list[Record]] = defaultdict(list)
        for record in records.values():
            if record.owner:
                self._children[record.owner].append(record)

    def below(self, uid: str) -> dict[str, list[Record]]:
        """Return the object of that UID and all that it owns, by kind."""
        by_kind: dict[str, list[Record]] = defaultdict(list)
        todo = [self._records[uid]] if uid in self._records else []
        while todo:
            record = todo.pop()
            by_kind[record.kind].append(record)
            todo += self._children.get(record.uid, ())
        return by_kind


def without_replaced_vmis(vmis: list[Record]) -> list[Record]:
    """Return the VMIs without those that ended before they ran and were replaced."""
    return [
        vmi for vmi in vmis if "running" in vmi.stages or not {"failed", "gone"} & set(vmi.stages)
    ] or vmis


def without_replaced_pods(pods: list[Record], stage: str, expected: int | None) -> list[Record]:
    """Return the pods without those that ended before the stage and were replaced."""
    # Without an expected number, replacements of failed pods are unknown.
    end_stages = {"gone"} if expected is None else {"gone", "failed"}
    others = [pod for pod in pods if stage in pod.stages or not end_stages & set(pod.stages)]
    return others if len(others) >= (expected or 1) else pods


Status = Literal["ok", "unobserved", "censored", "failed"]
_ENDS = ("succeeded", "failed")
OLDER = 140
"""Maximum length of an older message, so that the newest one is not cut off."""


@dataclass(slots=True)
class Row:
    """One workload (of a replica set: one VMI) and stage.

    Times are Unix seconds. `resolution_s` is that of `seconds` where it comes from API times.
    `intended` is when the object was due, `submitted` when it was sent. `api_time` and `event_time`
    are by the server's clock, all others by ours. `reached` is the most precise of them.
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


def _moment(record: Record, stage: str, clocks: Clocks) -> Moment | None:
    times = record.times(stage)
    if times is None:
        return None
    api, event, received = times
    at = received + clocks.mono_to_unix_ns if received else 0
    return Moment(at, api, event, clocks.ahead_ns)


def _reached(
    step: Step, family: Mapping[str, list[Record]], expected: int | None, clocks: Clocks
) -> Moment | None:
    """Return when the stage was reached. `last` needs all (`expected`) objects."""
    records = family.get(step.kind, [])
    if step.kind == VMI and step.stage != "failed":
        records = without_replaced_vmis(records)
    elif step.kind == "Pod":
        records = without_replaced_pods(records, step.stage, expected)
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
    """Yield one row per submission and step of the kind's chain.

    A replica set of VMIs has one row per VMI (`expected_pods` of them) and step. `until_ns` is the
    monotonic end of the observation. `api_version` distinguishes kinds of equal names. `simulated`
    are the nodes that KWOK simulates (None: unknown).
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
            yield from rows_of_one(workload, clocks, run, kind, steps, end, fake, messages or {})


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
    vmis = without_replaced_vmis(family.below(record.uid)[VMI]) if record else []
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


def rows_of_one(
    workload: Workload,
    clocks: Clocks,
    run: str,
    kind: str,
    steps: Sequence[Step],
    end: int,
    fake: set[str] | None,
    messages: Mapping[str, str],
) -> Iterator[Row]:
    """Yield one row per step. `end` is in Unix ns, `fake` are the simulated nodes."""
    item, record, below = workload.item, workload.record, workload.below
    members = [record for group in below.values() for record in group]
    nodes = sorted({record.node for record in members if record.node})
    error = (
        item.error
        or next((text for record in members if (text := error_text(record, messages))), "")
        or None
    )
    moments: dict[str, Moment | None] = {}
    if item.started_ns:
        # Counts from the due time. In a closed loop that is the time of sending.
        at = (item.intended_ns or item.started_ns) + clocks.mono_to_unix_ns
        moments["submitted"] = Moment(received=at, ahead=clocks.ahead_ns)
    for step in steps:
        moments[step.name] = _reached(step, below, workload.expected, clocks)
    moments["deleting"] = _moment(record, "deleting", clocks) if record else None
    latest = max((moment.best for moment in moments.values() if moment), default=0)
    for step in steps:
        final, deleting = moments[step.name] if step.stage in _ENDS else None, moments["deleting"]
        if final and deleting and (final.best >= deleting.best) != (step.since in DELETIONS):
            # It ended by itself and was deleted later, or the other way round.
            moments[step.name] = None
    intended, submitted = clocks.unix(item.intended_ns), clocks.unix(item.started_ns)
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
        row.intended, row.submitted = intended, submitted
        row.retries, row.error, row.node = item.retries, error, ",".join(nodes) or None
        row.simulated = all(node in fake for node in nodes) if nodes and fake is not None else None
        if moment:
            row.api_time, row.event_time = moment.api / 1e9 or None, moment.event / 1e9 or None
            row.receive_time, row.reached = moment.received / 1e9 or None, moment.best / 1e9 or None
        span = difference(start, moment) if start and moment else None
        if item.error or not item.started_ns:
            row.status = "failed"
        elif span:
            row.seconds, row.resolution_s, row.source = span
        elif step.optional or moment or (latest and _passed_unseen(step, steps, moments)):
            row.status = "unobserved"
        else:
            row.status = "censored"
            waiting_since = start or moments["submitted"]
            assert waiting_since is not None
            row.seconds = (end - waiting_since.best) / 1e9
        yield row


def error_text(record: Record, messages: Mapping[str, str]) -> str:
    """Return the object's failure message and its last warning, the newest last."""
    own, warned = record.error, "" if record.recovered else messages.get(record.uid, "")
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
        if not step.optional or (step.stage == "succeeded" and step.since not in DELETIONS)
    )


def on_simulated(rows: Iterable[Row]) -> bool | None:
    """Tell whether any pod ran on a simulated node, or None if that is unknown."""
    answers = {row.simulated for row in rows if row.node}
    return None if None in answers else True in answers


def with_deletion(before: Sequence[Row], after: Iterable[Row]) -> list[Row]:
    """Merge rows from before the deletion with the deletion's own stages from `after`.

    Stages reached only because other objects were deleted do not count, nor what ended earlier.
    """
    late = [r for r in after if r.since in DELETIONS and (r.seconds or 0) >= -(r.resolution_s or 0)]
    by_index = {(row.index, row.stage): row for row in late}
    by_uid = {(row.uid, row.stage): row for row in late}
    members = {
        row.index
        for row in before
        if row.kind == SET and row.stage == "vmi_created" and row.objects
    }
    merged = []
    for row in before:
        # VMIs of a set get new numbers when some of them are deleted, so match them by UID.
        # A number without a VMI has no UID of its own.
        end = (
            by_uid.get((row.uid, row.stage))
            if row.index in members
            else by_index.get((row.index, row.stage))
        )
        merged.append(replace(end, index=row.index, name=row.name, uid=row.uid) if end else row)
    return merged


@dataclass(frozen=True)
class Summary:
    """One stage of a run, in seconds.

    Percentiles are nearest-rank over ok and censored rows. They are None with too few samples, or
    if the rank falls among censored rows.
    """

    stage: str
    since: str
    ok: int
    censored: int
    failed: int
    unobserved: int
    p50: float | None
    p95: float | None
    p99: float | None
    mean: float | None
    least: float | None
    most: float | None
    resolution_s: float | None
    negative: int


def rank(values: Sequence[float], p: float, least: int | None = None) -> float | None:
    """Return the nearest-rank percentile of sorted values; None for fewer than `least` values.

    By default, `least` is the number that the percentile needs.
    """
    n = len(values)
    if n < max(1, needed(p) if least is None else least):
        return None
    value = values[max(0, math.ceil(p * n) - 1)]
    return None if math.isinf(value) else value


def summaries(rows: Iterable[Row]) -> list[Summary]:
    """Return a summary per stage, in the order of appearance."""
    grouped: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        grouped.setdefault((row.stage, row.since), []).append(row)
    return [_summary(stage, since, group) for (stage, since), group in grouped.items()]


def _summary(stage: str, since: str, rows: Sequence[Row]) -> Summary:
    count: dict[str, int] = defaultdict(int)
    for row in rows:
        count[row.status] += 1
    values = sorted(row.seconds for row in rows if row.status == "ok" and row.seconds is not None)
    ranked = [*values, *([math.inf] * count["censored"])]
    resolutions = [row.resolution_s for row in rows if row.resolution_s is not None]
    return Summary(
        stage,
        since,
        count["ok"],
        count["censored"],
        count["failed"],
        count["unobserved"],
        rank(ranked, 0.50),
        rank(ranked, 0.95),
        rank(ranked, 0.99),
        sum(values) / len(values) if values else None,
        values[0] if values else None,
        values[-1] if values else None,
        max(resolutions) if resolutions else None,
        sum(value < 0 for value in values),
    )


def throughput(reached: Sequence[float], window: float = 5.0) -> tuple[float | None, float | None]:
    """Return objects per second: the mean, and the best `window` seconds; None below 2 objects."""
    times = sorted(reached)
    if len(times) < 2 or times[-1] <= times[0]:
        return None, None
    mean = (len(times) - 1) / (times[-1] - times[0])
    if times[-1] - times[0] < window:
        return mean, None
    best, start = 0, 0
    for end, at in enumerate(times):
        while at - times[start] >= window - 1e-9:
            start += 1
        best = max(best, end - start + 1)
    return mean, best / window
