"""Measure two variants of a suite on this machine, block by block."""

import shlex
import time
from collections.abc import Callable
from pathlib import Path

from perfdag.app.ab.outcome import AbResult, conclude
from perfdag.app.ab.request import AbRequest, plan_variants
from perfdag.app.local_run import measuring_loop, only_process, prepare_resume, resumable
from perfdag.app.terminal.progress import Progress
from perfdag.plan.ab import Duet
from perfdag.results import missing_reason
from perfdag.results.collect import collect
from perfdag.results.runs import store_plan
from perfdag.store.base import Store
from perfdag.store.open import open_store
from perfdag.units import plural, short_seconds


def run(
    request: AbRequest,
    report: Callable[[str], None],
    *,
    everything: bool = False,
    chart: Path | None = None,
) -> AbResult:
    """Measure what is not stored yet, then compare the variants.

    A run of a cluster is only compared. `report` receives lines of progress, `everything` includes
    series that are not headlines. Raises CommandError, BadDocument, StoreError.
    """
    duet, root = plan_variants(request, here=True)
    store = open_store(root)
    plans = (duet.a, duet.b)
    if not duet.a.options.get("cluster"):
        with only_process(duet.a), only_process(duet.b):
            for plan in plans:
                if request.resume is None:
                    store_plan(store, plan)
                else:
                    prepare_resume(store, plan.run_id, report)
            with resumable(_resume_command(duet, request, root)):
                measure_rounds(duet, store, report)
    for plan in plans:
        collect(store, plan)
    result = conclude(store, duet, everything=everything)
    if chart:
        from perfdag.app.ab.outcome_chart import write_forest_plot

        write_forest_plot(chart, result)
    return result


def _resume_command(duet: Duet, request: AbRequest, root: str | None) -> str:
    """Return the command that continues a run. Its plan has the limit that a new run got."""
    command = f"perfdag ab --resume {duet.a.run_id}" + (f" --store {root}" if root else "")
    if request.resume and request.within:
        command += f" --within {shlex.quote(request.within)}"
    return command


def measure_rounds(duet: Duet, store: Store, report: Callable[[str], None]) -> None:
    """Measure the rounds of both variants in the order of the blocks, within their budget."""
    blocks, expected = len(duet.blocks), short_seconds(duet.a.seconds() + duet.b.seconds())
    total = len(duet.a.order) + len(duet.b.order)
    head = f"ab {duet.a.run_id} and {duet.b.run_id}"
    report(f"{head}: {plural(blocks, 'block')}, {total} samples, about {expected}")
    budget = duet.a.budget
    deadline = time.monotonic() + budget if budget else None
    with Progress(duet.a, report, duet.b) as progress:
        loops = {
            variant: measuring_loop(plan, store, progress)
            for variant, plan in (("A", duet.a), ("B", duet.b))
        }
        for i, (variant, positions) in enumerate(duet.turns(), -2):  # the warm-up comes first
            if i >= 0 and i % 4 == 0:
                block = f"block {i // 4 + 1} of {blocks}  {duet.blocks[i // 4]}"
                report(f"{block}  {progress.done} of {total} samples")
            progress.variant = variant
            if not loops[variant].measure(positions, deadline=deadline):
                reason = missing_reason.budget_spent(budget or 0)
                for plan in (duet.a, duet.b):
                    missing_reason.write(store, plan.run_id, reason)
                break
