"""Names of the figures of a run. A gate on an unknown figure is refused before the run."""

import difflib
import math
import re
from collections.abc import Iterable

from perfdag.stats.percentiles import needed
from perfdag.steps.scale.figures import audit_queries, prometheus
from perfdag.steps.scale.figures.api_metrics import DELETION, VERBS, latencies
from perfdag.steps.scale.model.chains import Step
from perfdag.steps.scale.model.gates import Gate
from perfdag.steps.scale.model.stages import VM_PHASES

RUN = {
    "throughput_mean",
    "throughput_best_5s",
    "success_ratio",
    "create_ratio",
    "censored",
    "left_behind",
    "watch_lag_p99",
}
RUN |= {"create_rate"}
_PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
PACED = ("schedule_held", "submit_lag")
"""Figures of an open loop."""
_PHASES = tuple(f"{phase}-phase-count" for phase in VM_PHASES)
VMIS: dict[str, tuple[str, ...]] = {
    "burst": _PHASES,
    "ladder": _PHASES,
    "steady": ("churn_cycles", "churn_throughput", "stuck"),
}
"""Figures that scenarios of VMIs have besides."""
_COUNT = re.compile(rf"({DELETION}/)?({'|'.join(VERBS)})-[a-z0-9.]+(/[a-z]+)?-count")
_EXAMPLES = ("CREATE-pods-count", "PATCH-virtualmachineinstances-count")


def check(
    gates: Iterable[Gate],
    scenario: str,
    steps: Iterable[Step],
    extra: Iterable[str],
    *,
    paced: bool,
    components: bool | None = None,
    count: float = math.inf,
) -> None:
    """Raise ValueError for a gate on a figure that the scenario lacks, or that has too few objects.

    `extra` are figures of the scenario. `paced` means an open loop. `components` is whether
    Prometheus is queried (None: never). `count` is the fewest objects of a size.
    """
    stages = {f"{step.name}_{stat}": p for step in steps for stat, p in _PERCENTILES.items()}
    calls = latencies([])
    known = {
        *RUN,
        *stages,
        *calls,
        *(f"{DELETION}/{name}" for name in calls),
        *extra,
        *(PACED if paced else ()),
    }
    theirs = set[str]()
    if components is not None:
        theirs = prometheus.names() | audit_queries.KEYS
    for name in [name for gate in gates for name in (gate.metric, gate.other) if name]:
        if (least := needed(stages.get(name, 0.5))) > count:
            raise ValueError(
                f"the gate on {name} can have no data: it needs {least} objects, and {count:g} are "
                "planned"
            )
        if name in known or _COUNT.fullmatch(name):
            continue
        if name in theirs or (components is not None and audit_queries.is_request_count(name)):
            if not components:
                raise ValueError(
                    f"the gate on {name} needs a Prometheus: set `prometheus`, or remove the gate"
                )
            continue
        near = difflib.get_close_matches(name, sorted({*known, *theirs, *_EXAMPLES}), 1, 0.0)
        raise ValueError(f"no figure of {scenario} is called {name}; the nearest is {near[0]}")
