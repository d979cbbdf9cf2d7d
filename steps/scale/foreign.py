"""`perfdag scale measure`: objects that kube-burner, a load generator or a pipeline creates.

Nobody knows when such an object was submitted, so its times count from its creation.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perfdag.kube.client import Kube
from perfdag.steps.scale.generate import Submission
from perfdag.steps.scale.objects import chain, kinds_of, new_run, now_ns
from perfdag.steps.scale.rows import Row, on_simulated, summaries
from perfdag.steps.scale.watch import END_STAGES, Observer

logger = logging.getLogger(__name__)
QUIET_S = 30.0
"""Time without a new object after which those that are there are all."""
LOOK_S = 2.0
"""Time between two looks whether all are ready."""
LIMIT_S = 900.0
"""How long at most, if no time is given."""


@dataclass
class Measured:
    """What was seen: the rows of the objects, how many were created, and how many are not ready.

    `older` objects were there before, so that the API alone knows their times, in whole seconds.
    """

    rows: list[Row]
    created: int
    waiting: int
    older: int

    def summary(self) -> dict[str, Any]:
        """Return the content of summary.json."""
        return {
            "created": self.created,
            "waiting": self.waiting,
            "older": self.older,
            "simulated": on_simulated(self.rows),
            "stages": [vars(summary) for summary in summaries(self.rows)],
        }


async def measure(
    kube: Kube, kind: str, selector: str, namespaces: Sequence[str], seconds: float | None
) -> Measured:
    """Watch the objects of a kind with these labels that are created from now on.

    Takes `seconds`. With None it ends when all are ready or have ended and no new one came for
    QUIET_S, or after LIMIT_S. Raises KubeError.
    """
    await kube.path(kind)
    version, _, name = kind.rpartition("/")
    where: list[str | None] = [*namespaces]
    kinds = kinds_of(version, name)
    observer = Observer(kube, new_run(), kinds, where or [None], primary=[name], selector=selector)
    async with observer:
        logger.info(f"watching each {name} with the labels {selector}: create them now")
        begun = now_ns()
        end = time.monotonic() + (seconds or LIMIT_S)
        quiet_since = time.monotonic()
        measured = _measured(observer, name, begun)
        while (left := end - time.monotonic()) > 0:
            await observer.until(lambda: False, min(LOOK_S, left))
            last = measured
            measured = _measured(observer, name, begun)
            if measured.created != last.created:
                quiet_since = time.monotonic()
            if (measured.created, measured.waiting) != (last.created, last.waiting):
                logger.info(f"{measured.waiting} of {measured.created} are not ready")
            ready = measured.created > 0 and measured.waiting == 0
            if seconds is None and ready and time.monotonic() - quiet_since > QUIET_S:
                break
    return measured


def _measured(observer: Observer, kind: str, begun: int) -> Measured:
    items = []
    older = 0
    for record in observer.of(kind):
        api, received = record.stages.get("created", (0, 0))
        at = received or api - round(observer.ahead_s * 1e9)
        if received or at >= begun:
            items.append(Submission(0, record.name, record.namespace, at, at, at, record.uid))
        else:
            older += 1
    items.sort(key=lambda item: item.intended_ns)
    for index, item in enumerate(items):
        item.index = index
    rows = list(_from_creation(observer.rows(items, kind, None), kind))
    censored = {row.uid for row in rows if row.status == "censored"}
    waiting = [uid for uid in censored if END_STAGES.isdisjoint(observer.records[uid].stages)]
    return Measured(rows, len(items), len(waiting), older)


def _from_creation(rows: Iterable[Row], kind: str) -> Iterator[Row]:
    """Yield the rows without the submission: what counts from it counts from the creation."""
    stages = {step.name for step in chain(kind)}
    for row in rows:
        stage = row.stage.replace("submission_to_", "creation_to_")
        if row.since != "submitted":
            yield row
        elif stage not in stages:
            yield replace(row, stage=stage, since="created")
