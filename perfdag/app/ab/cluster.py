"""Run two variants of a suite with the same pods of a cluster: submission and last step."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from perfdag.app.ab.outcome import AbResult, conclude
from perfdag.app.ab.request import AbRequest, plan_variants
from perfdag.app.cluster.template import NewRun, installed_template
from perfdag.app.errors import CommandError
from perfdag.app.finish import write_report
from perfdag.plan.ab import on_cluster, stored_duet
from perfdag.plan.plan import Plan
from perfdag.results.collect import collect
from perfdag.results.runs import store_plan, variants
from perfdag.results.schema import load_rows
from perfdag.steps.runner.limits import kinds_of
from perfdag.store.base import Store
from perfdag.store.open import open_store


@dataclass(frozen=True)
class Submission:
    """A created Workflow, the runs of both variants, and the commands that follow it."""

    workflow: str
    text: str
    hint: str


def submit(request: AbRequest, namespace: str) -> Submission:
    """Store both plans and create the Workflow.

    Raises CommandError, BadDocument, StoreError, KubeError.
    """
    template = installed_template(namespace)
    root = template.store
    if request.root not in (None, root):
        raise CommandError(f"the installation of namespace {namespace} has the store {root}")
    if not root.startswith("s3://"):
        raise CommandError(
            f"--submit needs an s3:// store that this machine reaches, not {root}: "
            "both plans are stored there"
        )
    duet, _ = plan_variants(replace(request, root=root))
    store = open_store(root)
    if request.resume is None:
        duet = on_cluster(duet)
        kinds_of(duet.a)
        for plan in (duet.a, duet.b):
            store_plan(store, plan)
    elif not duet.a.options.get("cluster"):
        raise CommandError(
            f"{request.resume} was measured on one machine; resume it there, without --submit"
        )
    elif request.within is not None:  # the last step on the cluster takes the limit from the plan
        store_plan(store, duet.a)
    priority = int(duet.a.options.get("priority", 0))
    name = template.start(NewRun(duet.a.run_id, duet.a.suite, priority))
    return Submission(
        name,
        f"ab {duet.a.run_id} and {duet.b.run_id}, workflow {name} in namespace {namespace}",
        f"follow it: perfdag status {name} --namespace {namespace}\n"
        f"then:      perfdag ab --resume {duet.a.run_id} --store {root}",
    )


def finish(store: Store, plan: Plan, report: Callable[[str], None]) -> AbResult:
    """Collect and report both variants in the last step of the Workflow, and compare them.

    Raises StoreError.
    """
    duet = stored_duet(*variants(store, plan))
    for variant in (duet.a, duet.b):
        collect(store, variant)
        rows = load_rows(store, suites=[variant.suite], runs=[variant.run_id])
        write_report(store, variant, rows, None)
    return conclude(store, duet)
