"""A burst of VMIs, and the result of a VMI scenario."""

import time
from collections.abc import Mapping
from typing import Any, Literal

from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale.cluster.kubevirt import check_density, check_nodes, nested_note
from perfdag.steps.scale.cluster.namespaces import own_namespaces
from perfdag.steps.scale.figures import api_metrics
from perfdag.steps.scale.figures.api_metrics import CREATION
from perfdag.steps.scale.figures.audit_queries import audit_figures
from perfdag.steps.scale.figures.percentiles import summaries
from perfdag.steps.scale.figures.prometheus import component_figures, wait_for_scrape
from perfdag.steps.scale.figures.rows import Row, on_simulated, with_deletion
from perfdag.steps.scale.model.gates import evaluate
from perfdag.steps.scale.model.stages import VMI
from perfdag.steps.scale.scenarios.base import Result, figures_of, phase_counts
from perfdag.steps.scale.scenarios.session import Session
from perfdag.steps.scale.scenarios.vmi_primer import primed_session
from perfdag.steps.scale.scenarios.vmi_spec import Spec, all_settled


async def burst(kube: Kube, spec: Spec, count: int) -> Result:
    """Create `count` objects, wait until all run, then delete them.

    Raises KubeError, ValueError.
    """
    nodes = await check_nodes(kube, count * spec.replicas, spec.per_node)
    async with (
        own_namespaces(kube, spec.namespaces, spec.run),
        primed_session(kube, spec) as session,
    ):
        spec.log(f"run {spec.run}: creating {count} {session.template.kind}")
        batch = await session.create(count, spec.schedule, spec.parallel)
        wanted = len(batch.created) * spec.replicas
        all_running = await all_settled(session, spec)
        if not all_running:
            session.notes.append(
                f"{wanted - session.reached(VMI, 'running')} of {wanted} VMIs not Running "
                f"{session.wait_end(spec.timeout)}"
            )
        await session.scrape(CREATION)
        rows = await session.rows()
        deleted, running = time.time(), session.reached(VMI, "running")
        phases = phase_counts(session.observer.of(VMI))
        spec.log(f"{running} of {wanted} Running; deleting")
        left = await session.delete_all(spec.parallel, spec.timeout)
        extra: dict[str, float | None] = {"left_behind": left, **phases}
        rows = with_deletion(rows, await session.rows())
        return await result_of("burst", count, session, spec, nodes, rows, deleted, extra)


async def result_of(
    scenario: Literal["burst", "steady"],
    count: int,
    session: Session,
    spec: Spec,
    nodes: dict[str, Any],
    rows: list[Row],
    deleted: float,
    extra: Mapping[str, float | None],
) -> Result:
    """Return the result. `deleted` is when the deletion began, in Unix seconds."""
    stages = summaries(rows)
    started, end = session.batches[0][0].started_wall, time.time()
    dense = check_density(session.observer.of(VMI), nodes, spec.per_node)
    session.notes += [dense] if dense else []
    facts = session.facts() | nodes
    if note := nested_note(nodes):
        session.notes.append(note)
    facts["generator"] = [batch.summary(schedule) for batch, schedule in session.batches]
    facts["simulated"] = on_simulated(rows)
    figures = (
        figures_of(session, rows, stages)
        | api_metrics.deletion_figures(session.phases)
        | dict(extra)
    )
    if spec.prometheus:
        try:
            gaps, early = await wait_for_scrape(spec.prometheus, end, spec.deadline)
            facts["prometheus_scrapes_s"] = gaps
            session.notes += [early] if early else []
            figures |= await component_figures(spec.prometheus, started, end, gaps)
            figures |= await audit_figures(spec.prometheus, started, deleted, gaps)
        except KubeError as error:
            session.notes.append(f"no figures of the components: {error}")
    return Result(
        scenario,
        count,
        session.run,
        rows,
        stages,
        figures,
        facts,
        evaluate(spec.gates, figures | session.gate_latencies()),
        calls=api_metrics.call_records(session.phases),
        started=started,
        ended=end,
    )
