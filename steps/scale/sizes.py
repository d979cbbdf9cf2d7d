"""Several sizes of a burst: a ladder of them, and the search for capacity. What was measured is kept when a later size cannot be."""

import asyncio
import time
from dataclasses import dataclass, replace

from perfdag.kube import Kube, KubeError
from perfdag.steps.scale import gates as gating
from perfdag.steps.scale import vmi
from perfdag.steps.scale.kubevirt import TooDenseError, check_nodes
from perfdag.steps.scale.namespaces import own_namespaces
from perfdag.steps.scale.vmi import Result, Spec


async def ladder(kube: Kube, spec: Spec, sizes: list[int], cooldown: float) -> list[Result]:
    """Bursts of rising size with `cooldown` seconds between them; ends early where one leaves objects behind, and at the deadline.

    A size after the first that ends in an error is the last one, and has no figures. Raises KubeError, TooDenseError.
    """
    found: list[Result] = []
    await check_nodes(kube, max(sizes) * spec.replicas, spec.per_node)
    async with own_namespaces(kube, spec.namespaces, spec.run):
        for number, size in enumerate(sizes):
            if number:
                spec.tell(f"cooling down for {cooldown:g} s")
                await asyncio.sleep(max(0.0, min(cooldown, spec.deadline - time.monotonic())))
            own = spec if len(sizes) == 1 else rung(spec, number)
            try:
                found.append(await vmi.burst(kube, own, size))
            except (KubeError, TooDenseError) as error:
                if not found:
                    raise
                found.append(_unmeasured(own, size, error, found[-1]))
            spec.seen(found[-1])
            if (
                found[-1].error
                or found[-1].figures["left_behind"]
                or time.monotonic() >= spec.deadline
            ):
                break
    return found


@dataclass(frozen=True)
class Capacity:
    """The last size that passed (0: none). `stopped` is empty where the next one failed, else why that is not known: then the size is
    a lower bound. `no_data`: the next one was tried, and a gate had no data."""

    passed: int
    stopped: str = ""
    no_data: bool = False


async def capacity(kube: Kube, spec: Spec, step: int, limit: int) -> tuple[Capacity, list[Result]]:
    """Grow by bursts of `step`, 2 `step` ... up to `limit` until the first gate fails or has no data, a VMI does not run or one is left
    behind.

    Returns what passed, and all results. Raises TooDenseError where not even the first step has room, KubeError of the first step.
    """
    found: list[Result] = []
    passed = 0
    for number, size in enumerate(range(step, limit + 1, step)):
        try:
            found.append(await vmi.burst(kube, rung(spec, number), size))
        except (KubeError, TooDenseError) as error:
            if not found:
                raise
            return Capacity(passed, str(error)), found
        spec.seen(found[-1])
        if undecided := found[-1].undecided:
            return Capacity(passed, "; ".join(map(str, undecided)), no_data=True), found
        if found[-1].failed:
            late = time.monotonic() >= spec.deadline
            return Capacity(
                passed, "the sample's own time limit was reached" if late else ""
            ), found
        passed = size
    return Capacity(passed, f"the limit of {limit} was reached"), found


def rung(spec: Spec, number: int) -> Spec:
    """The spec of one size of several: what it makes is told from that of the others, and belongs to the same run."""
    return replace(spec, run=f"{spec.run}-{number + 1}")


def _unmeasured(spec: Spec, count: int, error: Exception, before: Result) -> Result:
    """A size that ended in an error, after one that was measured: none of its gates has data."""
    facts = {key: before.facts.get(key) for key in ("simulated", "kubevirt_version")}
    facts |= {
        "run": spec.run,
        "generator": [],
        "notes": [f"{count} VMIs were not measured: {error}"],
    }
    figures: dict[str, float | None] = {"left_behind": None, "success_ratio": None}
    return Result(
        "burst",
        count,
        spec.run,
        [],
        [],
        figures,
        facts,
        gating.hold(spec.gates, figures),
        error=str(error),
    )
