"""Points that end the pods they are measured in: another attempt at their batch measures them last, and those that cost two gangs no more.

Where a process is out of memory the kernel may end its whole container, and nothing in it can tell what it measured. So the lead has that
in the file whose content Kubernetes keeps of a container that ended, which costs a sample nothing, and the next attempt's lead reads it from the
pods. Those are deleted after a while: what was read is kept in the store.
"""

import contextlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from perfdag import benchmark as registry
from perfdag import signals
from perfdag.kube import Kube
from perfdag.pairs import together
from perfdag.plan import Plan
from perfdag.points import Point
from perfdag.samples import SampleRecord, now, run_folder, sample_key, stored_samples
from perfdag.steps.place import Here
from perfdag.steps.pods import ATTEMPT, explain, selector
from perfdag.store import Store

MESSAGE = Path("/dev/termination-log")
GANGS = 2
"""How many a point may cost; of two variants side by side both together."""
_KILLED = (
    "OOMKilled",
    "Evicted",
    "main ended with exit code 137",
)  # neither by Argo, nor deleted, nor by an error of its own
_ID = re.compile(r"\b[0-9a-f]{16}\b")

Object = dict[str, Any]
Deadly = Mapping[str, Sequence[str]]
"""By the id of a point how the gangs ended that measured it."""


class UnderWay:
    """The samples under way, as the message that Kubernetes keeps of this container."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def began(self, point: Point, repetition: int) -> None:
        """A sample begins; several may be measured at once."""
        self._names[point.id] = point.sample(repetition)
        self._write()

    def ended(self, point: Point) -> None:
        """Its sample is stored."""
        self._names.pop(point.id, None)
        self._write()

    def _write(self) -> None:
        first, *others = [*self._names.values()] or [""]
        # the ids last: of what is too long the kubelet keeps the end
        text = (
            f"measuring {first[:300]}{f' and {len(others)} beside it' if others else ''} [{' '.join(self._names)}]"
            if first
            else ""
        )
        with (
            contextlib.suppress(OSError),
            MESSAGE.open("r+") as file,
        ):  # the kubelet makes it: where it is not, nobody reads it
            file.write(text)
            file.truncate()


def killed(pods: Iterable[Object]) -> tuple[list[str], str] | None:
    """The points that one gang measured when some of its pods were killed, and how; None where none was, or between two samples.

    A pod that somebody deleted is not: Argo's executor kills what does not end at once, and the pod stays until Argo lets it go.
    """
    there = list(pods)
    kept = [each for each in there if not each["metadata"].get("deletionTimestamp")]
    how = next(
        (said for each in kept if (said := explain(each)[0]) and said.startswith(_KILLED)), None
    )
    ended = [
        status.get("state", {}).get("terminated")
        for each in there
        for status in (each.get("status") or {}).get("containerStatuses") or []
    ]
    points = sorted(
        {name for each in ended if each for name in _ID.findall(each.get("message") or "")}
    )
    return (points, how) if how and points else None


def known(here: Here, store: Store, number: int, attempt: int) -> Deadly:
    """What the earlier attempts at a batch tell, those that this attempt is the first to see included. Raises StoreError, KubeError."""
    if not attempt:
        return {}

    async def look() -> list[Object]:
        async with Kube() as kube:
            return await kube.list(
                await kube.resource("v1", "Pod"),
                here.namespace,
                labels=selector(here.run_id, here.workflow, number),
            )

    gangs: dict[str, list[Object]] = {}
    for pod in signals.run(look()):
        gangs.setdefault(pod["metadata"]["labels"][ATTEMPT], []).append(pod)
    folder = f"{run_folder(here.run_id)}/killed/{here.workflow_uid}-b{number}"
    for name, pods in gangs.items():
        if name != str(attempt) and (seen := killed(pods)):
            store.put(f"{folder}/{name}.json", orjson.dumps({"points": seen[0], "how": seen[1]}))
    found: dict[str, list[str]] = {}
    for _, data in store.get_many(store.list(folder)):
        raw = orjson.loads(data)
        for point in raw["points"]:
            found.setdefault(point, []).append(raw["how"])
    return found


def in_turn(
    plan: Plan, samples: Sequence[int], left: Collection[int], attempt: int, deadly: Deadly
) -> list[int]:
    """The samples of a batch in the order to measure them in, so that what kills its pod costs only itself: samples of points that did go
    last, all their repetitions; on a retry of which nothing is known (its pods were deleted) those of the points that were under way do."""

    def ids(group: Collection[int]) -> set[str]:
        return {plan.points[plan.order[position][0]].id for position in group}

    groups = together(plan.points, plan.order, samples)
    suspects = set[str]()
    if attempt and not deadly:
        suspects = next(
            (ids(group) for group in groups if not set(left).isdisjoint(group)), suspects
        )
    groups.sort(
        key=lambda group: max(len(deadly.get(each, ())) + (each in suspects) for each in ids(group))
    )
    return [position for group in groups for position in group]


def pass_over(
    here: Here, store: Store, plan: Plan, index: int, deadly: Deadly
) -> dict[int, SampleRecord]:
    """Store the samples of batch `index` that are measured no more, as failed; by their positions in the plan's order. Raises StoreError."""
    stored, made = stored_samples(store, plan.run_id), dict[int, SampleRecord]()
    for position in plan.batches[index].samples:
        point, repetition = plan.points[plan.order[position][0]], plan.order[position][1]
        how = deadly.get(point.id, ())
        if len(how) < GANGS or plan.key(position) in stored:
            continue
        moment = now()
        part = SampleRecord(
            point.id,
            repetition,
            "failed",
            started_at=moment,
            finished_at=moment,
            batch=index,
            order_index=position,
        )
        part.error = f"{len(how)} gangs ended while this point was measured, so it is measured no more: {' '.join(how[-1].split())}"
        part.benchmark_version = str(registry.get(point.benchmark).version)
        part.where = {
            "store": here.store,
            "namespace": here.namespace,
            "workflow_uid": here.workflow_uid,
        }
        store.put(sample_key(plan.run_id, plan.key(position)), part.dump())
        made[position] = part
    return made
