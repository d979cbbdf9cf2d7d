"""Parameters of a VMI scenario, its template, and when its VMIs are settled."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from perfdag.kube.prometheus import Prometheus
from perfdag.steps.scale.measure.completion import may_be_settled, settled
from perfdag.steps.scale.model.chains import CHAINS
from perfdag.steps.scale.model.gates import SLO, Gate
from perfdag.steps.scale.model.records import Record, top_owner
from perfdag.steps.scale.model.stages import SET, VMI
from perfdag.steps.scale.model.templates import Template, TemplateError, load
from perfdag.steps.scale.scenarios.base import Result, RunSpec
from perfdag.steps.scale.scenarios.session import Session


@dataclass
class Spec(RunSpec):
    """Parameters of a VMI scenario."""

    template: str = "vmi"
    namespaces: list[str] = field(default_factory=lambda: ["perfdag-vmi"])
    replicas: int = 1
    per_node: int = 200
    primer: bool = True
    gates: list[Gate] = field(default_factory=lambda: [*SLO])
    prometheus: Prometheus | None = None
    journal: Callable[[Session], None] | None = None
    """Callback that keeps the state of the session, every few seconds."""
    seen: Callable[["Result"], None] = lambda result: None
    """Callback that gets the result of every size when it is complete."""


def template_of(spec: Spec, run: str) -> Template:
    """Return the scenario's template for one run. Raises TemplateError."""
    return load_template(spec.template, run, spec.replicas, spec.variables)


def load_template(source: str, run: str, replicas: int, variables: Mapping[str, Any]) -> Template:
    """Load a template of VMIs. Raises TemplateError."""
    loaded = load(source, run, {"workers": replicas, **variables})
    if not loaded.kind.startswith(VMI.removesuffix("Instance")) or loaded.kind not in CHAINS:
        raise TemplateError(
            f"{loaded.kind} creates no VMI: use the template vmi, vm or vmirs, or a file whose "
            "last document has such a kind"
        )
    if loaded.kind == SET and loaded.members != replicas:
        raise TemplateError(
            f"the template has {loaded.members} replicas, not {replicas}: set replicas to "
            f"{loaded.members}"
        )
    if replicas != 1 and loaded.kind != SET:
        raise TemplateError(f"only the template vmirs takes replicas; a {loaded.kind} is one VMI")
    return loaded


async def all_settled(
    session: Session, spec: Spec, without: Collection[str] = (), timeout: float = math.inf
) -> bool:
    """Wait until every VMI that was not deleted ran, or failed without a replacement.

    Objects named in `without` are not waited for. Return False after the spec's timeout, or after
    `timeout` seconds if that is less.
    """
    enough = sum(item.name not in without for item in session.alive()) * spec.replicas

    def done() -> bool:
        if not may_be_settled(session.observer, enough):
            return False
        return settled(_vmis(session, without), spec.replicas) >= enough

    return await session.until(done, min(spec.timeout, timeout))


def unsettled(session: Session, spec: Spec) -> set[str]:
    """Return the names of the objects whose VMIs neither ran nor failed."""
    groups: dict[str, list[Record]] = {item.name: [] for item in session.alive()}
    for vmi in session.live(VMI):
        groups.setdefault(top_owner(session.observer.records, vmi).name, []).append(vmi)
    return {name for name, vmis in groups.items() if settled(vmis, spec.replicas) < spec.replicas}


def _vmis(session: Session, without: Collection[str]) -> Iterator[Record]:
    records = session.observer.records
    for vmi in session.live(VMI):
        if not without or top_owner(records, vmi).name not in without:
            yield vmi
