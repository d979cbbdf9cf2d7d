"""What scenarios of workloads and of VMIs share: parameters, the result, and its figures."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from perfdag.steps.scale.figures import api_metrics
from perfdag.steps.scale.figures.api_metrics import CREATION
from perfdag.steps.scale.figures.percentiles import Summary, throughput
from perfdag.steps.scale.figures.rows import Row
from perfdag.steps.scale.model.gates import Verdict, breaches
from perfdag.steps.scale.model.records import Record
from perfdag.steps.scale.model.run_id import new_run
from perfdag.steps.scale.model.schedule import Schedule
from perfdag.steps.scale.model.stages import VM_PHASES
from perfdag.steps.scale.scenarios.session import Session


@dataclass
class Result:
    """One scenario at one size.

    `figures` are in SI units (None: no data), `trace` is (seconds, VMIs Running), `started` and
    `ended` are Unix seconds.
    """

    scenario: str
    count: int
    run: str
    rows: list[Row]
    stages: list[Summary]
    figures: dict[str, float | None]
    facts: dict[str, Any]
    verdicts: list[Verdict] = field(default_factory=list)
    trace: list[tuple[float, int]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    started: float = 0.0
    ended: float = 0.0
    error: str = ""
    """The reason why this size was not measured, or empty."""
    disturbed: str = ""
    """Why the figures are void: another run measured too."""

    @property
    def breached(self) -> list[Verdict]:
        """Gates that failed or had no data."""
        return breaches(self.verdicts)

    @property
    def failed(self) -> bool:
        """Whether the run failed.

        A gate or a VMI failed, an object was left, or another run disturbed it.
        """
        return (
            bool(self.breached or self.disturbed or self.figures["left_behind"])
            or self.figures["success_ratio"] != 1.0
        )

    @property
    def undecided(self) -> list[Verdict]:
        """Gates without data if nothing else failed, else empty."""
        known = [verdict for verdict in self.verdicts if verdict.passed is not None]
        return (
            []
            if replace(self, verdicts=known).failed
            else [verdict for verdict in self.verdicts if verdict.passed is None]
        )


def phase_counts(vmis: Iterable[Record]) -> dict[str, float]:
    """`<phase>-phase-count` -> VMIs in it now, as KubeVirt's audit names them."""
    counts = dict.fromkeys((f"{phase}-phase-count" for phase in VM_PHASES), 0.0)
    for vmi in vmis:
        reached = [stage for stage in vmi.stages if stage in VM_PHASES]
        if reached and "gone" not in vmi.stages:
            counts[f"{max(reached, key=VM_PHASES.index)}-phase-count"] += 1
    return counts


def figures_of(session: Session, rows: list[Row], stages: list[Summary]) -> dict[str, float | None]:
    """Return stage percentiles (s), throughput, success, API latency and counts, watch lag."""
    figures: dict[str, float | None] = {}
    for summary in stages:
        figures |= {
            f"{summary.stage}_p50": summary.p50,
            f"{summary.stage}_p95": summary.p95,
            f"{summary.stage}_p99": summary.p99,
        }
    final = [row for row in rows if row.stage == "creation_to_running"]
    every = len(session.submissions)
    first = session.batches[0][0].submissions if session.batches else []
    end = first[-1].index + 1 if first else 0
    # Without the churn after the ramp, which has its own pace.
    ramp = [row for row in final if row.index * every < end * len(final)]
    figures |= outcome_figures(final, ramp, len(final) or len(session.submissions))
    created = sum(1 for item in session.submissions if item.answered_ns and not item.error)
    figures |= {
        "create_ratio": created / len(session.submissions) if session.submissions else None,
        "watch_lag_p99": session.watch_lag.p99,
    }
    calls = session.phases.get(CREATION, [])
    if calls and api_metrics.worst(calls) is None:
        count = sum(call.count for call in calls if call.single)
        session.notes.append(
            f"no api_p99: it needs {api_metrics.NEEDED} requests of single objects, and there were "
            f"{count}"
        )
    figures |= api_metrics.named_figures(calls)
    rates = [batch.summary(schedule) for batch, schedule in session.batches]
    if rates:
        figures |= {
            "create_rate": rates[0]["create_rate_per_s"],
            "schedule_held": rates[0]["rate_share"],
            "submit_lag": rates[0]["lag_p99_s"],
        }
    return figures


def outcome_figures(
    final: Sequence[Row], paced: Sequence[Row], planned: int
) -> dict[str, float | None]:
    """Return the throughput of the `paced` rows, and what became of the `final` ones.

    `final` has the last stage of each workload, of `planned` in all.
    """
    mean, best = throughput([row.reached for row in paced if row.reached and row.status == "ok"])
    return {
        "throughput_mean": mean,
        "throughput_best_5s": best,
        "success_ratio": sum(row.status == "ok" for row in final) / planned if planned else None,
        "censored": float(sum(row.status == "censored" for row in final)),
    }


@dataclass
class RunSpec:
    """The parameters of all scenarios. `timeout` bounds every wait in seconds."""

    schedule: Schedule = field(default_factory=Schedule)
    parallel: int = 20
    timeout: float = 900.0
    variables: dict[str, Any] = field(default_factory=dict)
    deadline: float = math.inf
    """time.monotonic() after which only deletion is waited for. Later stages are censored."""
    log: Callable[[str], None] = lambda text: None
    run: str = field(default_factory=new_run)
    """The id that labels all objects; parts of the run append to it (removal.belongs)."""
