"""Bursts of several sizes: a ladder, and the search for capacity.

Results are kept if a later size fails.
"""

import asyncio
import time
from dataclasses import dataclass, replace

from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale.cluster.kubevirt import TooDenseError, check_nodes
from perfdag.steps.scale.cluster.namespaces import own_namespaces
from perfdag.steps.scale.model.gates import evaluate
from perfdag.steps.scale.scenarios import vmi
from perfdag.steps.scale.scenarios.result import Result
from perfdag.steps.scale.scenarios.vmi import Spec


async def ladder(kube: Kube, spec: Spec, sizes: list[int], cooldown: float) -> list[Result]:
    """Run bursts of rising size with `cooldown` seconds between them.

    Ends early if a burst leaves objects behind, and at the deadline. A later size that fails is the
    last one and has no figures. Raises KubeError, TooDenseError.
    """
    results: list[Result] = []
    await check_nodes(kube, max(sizes) * spec.replicas, spec.per_node)
    async with own_namespaces(kube, spec.namespaces, spec.run):
        for number, size in enumerate(sizes):
            if number:
                spec.log(f"cooling down for {cooldown:g} s")
                await asyncio.sleep(max(0.0, min(cooldown, spec.deadline - time.monotonic())))
            own = spec if len(sizes) == 1 else rung(spec, number)
            try:
                results.append(await vmi.burst(kube, own, size))
            except (KubeError, TooDenseError) as error:
                if not results:
                    raise
                results.append(_unmeasured(own, size, error, results[-1]))
            spec.seen(results[-1])
            if (
                results[-1].error
                or results[-1].figures["left_behind"]
                or time.monotonic() >= spec.deadline
            ):
                break
    return results


@dataclass(frozen=True)
class Capacity:
    """The largest size that passed (0: none).

    A non-empty `stopped` is the reason why the size is only a lower bound. `no_data` means that a
    gate of the next size had no data.
    """

    passed: int
    stopped: str = ""
    no_data: bool = False


async def capacity(kube: Kube, spec: Spec, step: int, limit: int) -> tuple[Capacity, list[Result]]:
    """Grow the burst by `step` up to `limit` until a gate fails, or a VMI fails or is left behind.

    Returns the capacity and all results. Raises TooDenseError or KubeError if the first step fails.
    """
    results: list[Result] = []
    passed = 0
    for number, size in enumerate(range(step, limit + 1, step)):
        try:
            results.append(await vmi.burst(kube, rung(spec, number), size))
        except (KubeError, TooDenseError) as error:
            if not results:
                raise
            return Capacity(passed, str(error)), results
        spec.seen(results[-1])
        if undecided := results[-1].undecided:
            return Capacity(passed, "; ".join(map(str, undecided)), no_data=True), results
        if results[-1].failed:
            late = time.monotonic() >= spec.deadline
            return Capacity(
                passed, "the time limit of the sample was reached" if late else ""
            ), results
        passed = size
    return Capacity(passed, f"the limit of {limit} was reached"), results


def rung(spec: Spec, number: int) -> Spec:
    """Return the spec of one of several sizes, with a run id of its own that belongs to the run."""
    return replace(spec, run=f"{spec.run}-{number + 1}")


def _unmeasured(spec: Spec, count: int, error: Exception, before: Result) -> Result:
    """Return the result of a size that ended in an error, whose gates have no data."""
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
        evaluate(spec.gates, figures),
        error=str(error),
    )
