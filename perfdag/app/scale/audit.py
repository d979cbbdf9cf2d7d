"""`perfdag scale audit`: KubeVirt's audit figures of a past window, from Prometheus alone."""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perfdag.app.scale.perfscale import AuditConfig
from perfdag.kube.prometheus import Prometheus
from perfdag.steps.scale.figures.audit_queries import (
    audit_figures,
    phase_figures,
    single_values,
    transition_queries,
)
from perfdag.steps.scale.figures.prometheus import scrape_intervals
from perfdag.steps.scale.model.gates import Gate, Verdict, evaluate
from perfdag.steps.scale.runai import table


def unix_time(text: str) -> float:
    """Return Unix seconds of an RFC 3339 time with a zone. Raises ValueError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError(
            f"{text!r} is no time with a zone; write it as 2026-11-23T08:00:00Z or ...+01:00"
        )
    return moment.timestamp()


async def past_figures(prometheus: Prometheus, start: float, end: float) -> dict[str, float | None]:
    """Return the audit's figures of a window in Unix seconds. Raises KubeError, ValueError."""
    gaps = await scrape_intervals(prometheus, end)
    if not gaps:
        raise ValueError(
            f"Prometheus at {prometheus.url} has no series of KubeVirt in the 5 minutes before "
            "--to; does it scrape KubeVirt, and does it still keep that time?"
        )
    if end - start < 2 * min(gaps.values()):
        raise ValueError(
            f"a window of {end - start:g} s has less than two scrapes: Prometheus scrapes every "
            f"{min(gaps.values()):g} s"
        )
    figures = await audit_figures(prometheus, start, end, gaps)
    figures |= await phase_figures(prometheus, end)
    return figures | await single_values(prometheus, transition_queries(), start, end)


def audit(
    prometheus: Prometheus, start: float, end: float, folder: Path, gates: Sequence[Gate] = ()
) -> tuple[Path, list[Verdict]]:
    """Write `perf-audit-results.json` of a past window in Unix seconds.

    Returns its path and the verdicts of gates on its keys. Raises KubeError, ValueError.
    """
    if start >= end:
        raise ValueError(f"the window ends before it begins: {_utc(start)} to {_utc(end)}")
    figures = asyncio.run(past_figures(prometheus, start, end))
    by_key = {table.audit_key(name): figures[name] for name in sorted(figures)}
    verdicts = evaluate(gates, by_key)
    values: dict[str, dict[str, Any]] = {key: {"value": value} for key, value in by_key.items()}
    for verdict in verdicts:
        values.setdefault(verdict.gate.metric, {"value": None})["thresholdResult"] = (
            table.threshold_result(verdict, verdict.gate.other or "")
        )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "perf-audit-results.json"
    table.write_json(path, {"Values": values})
    return path, verdicts


def thresholds(config: AuditConfig) -> list[Gate]:
    """Return the thresholds of a configuration as gates."""
    return [
        Gate(key, "<=", limit.ratio, limit.metric)
        if limit.metric and limit.ratio > 0
        else Gate(key, "<=", limit.value)
        for key, limit in config.thresholds.items()
    ]


def window(config: AuditConfig) -> tuple[float, float]:
    """Return the window of a configuration in Unix seconds, as perfscale-audit reads it."""
    end = config.end.timestamp() if config.end else time.time()
    return (config.start.timestamp() if config.start else end - config.duration), end


def _utc(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")
