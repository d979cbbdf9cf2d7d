"""`perfdag scale audit`: KubeVirt's audit figures of a past window, from Prometheus alone."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

from perfdag.kube.prometheus import Prometheus
from perfdag.steps.scale.figures.prometheus import (
    audit_figures,
    phase_figures,
    scrape_intervals,
    single_values,
    transition_queries,
)
from perfdag.steps.scale.runai import run_file


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


def audit(prometheus: Prometheus, start: float, end: float, folder: Path) -> Path:
    """Write `perf-audit-results.json` of a past window in Unix seconds, and return its path.

    Raises KubeError, ValueError.
    """
    if start >= end:
        raise ValueError(f"the window ends before it begins: {_utc(start)} to {_utc(end)}")
    figures = asyncio.run(past_figures(prometheus, start, end))
    values = {run_file.audit_key(name): {"value": figures[name]} for name in sorted(figures)}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "perf-audit-results.json"
    run_file.write_json(path, {"Values": values})
    return path


def _utc(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")
