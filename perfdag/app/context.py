"""The context of samples: values of Prometheus while a sample ran, as rows of the sample."""

import asyncio
import math
from collections.abc import Callable
from datetime import datetime
from typing import Any

from perfdag.app.errors import CommandError
from perfdag.exit_codes import EXIT_INPUT, EXIT_REACH
from perfdag.kube.errors import KubeError
from perfdag.kube.prometheus import (
    QUERY_REFUSED,
    Prometheus,
    check_queries,
    prometheus_of,
    queries_of,
)
from perfdag.plan.plan import Plan
from perfdag.results.samples import SampleRecord, read_sample, sample_key, stored_samples
from perfdag.store.base import Store

POINTS, MOST_SERIES = 60, 100
"""Points in the time of a sample, and series of a query beyond which rows are left out."""


def require_queries(plan: Plan) -> None:
    """Raise CommandError unless Prometheus answers the queries of the plan."""
    try:
        asyncio.run(check_queries(plan))
    except KubeError as error:
        code = EXIT_INPUT if error.reason == QUERY_REFUSED else EXIT_REACH
        raise CommandError(str(error), code) from None


def add_context(store: Store, plan: Plan, report: Callable[[str], None]) -> None:
    """Add the values of Prometheus to the samples without them. An error is reported.

    Raises StoreError.
    """
    if (prometheus := prometheus_of(plan)) is None:
        return
    units = {item["name"]: item["unit"] for item in plan.options["context"]}
    names = sorted(stored_samples(store, plan.run_id) & set(map(plan.key, range(len(plan.order)))))
    for key, data in store.get_many([sample_key(plan.run_id, name) for name in names]):
        try:
            record = read_sample(data)
        except ValueError:
            continue  # collect counts it as damaged
        known = {row["metric"] for row in record.rows}
        if record.status != "ok" or known & units.keys():
            continue
        try:
            answers = asyncio.run(_values(prometheus, plan, record))
        except KubeError as error:
            report(f"perfdag: samples have no values of Prometheus: {error}")
            return
        for name, answer in answers.items():
            rows = _rows(name, units[name], answer["result"])
            if len(rows) > MOST_SERIES:
                report(f"perfdag: context {name}: {len(rows)} series; aggregate them, as in avg()")
            record.rows += rows[:MOST_SERIES]
        store.put(key, record.dump())


async def _values(prometheus: Prometheus, plan: Plan, record: SampleRecord) -> dict[str, Any]:
    start, end = (
        datetime.fromisoformat(text).timestamp() for text in (record.started_at, record.finished_at)
    )
    step = max((end - start) / POINTS, 1.0)
    window = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
    queries = queries_of(plan, record.nodes)
    return await prometheus.query({name: {"query": q, **window} for name, q in queries.items()})


def _rows(name: str, unit: str, series: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the mean of each series over a sample, with its labels as coordinates."""
    rows = []
    for item in series:
        values = [value for _, text in item["values"] if math.isfinite(value := float(text))]
        labels = {key: value for key, value in item["metric"].items() if key != "__name__"}
        if values:
            row: dict[str, Any] = {"metric": name, "stat": "value", "unit": unit, "better": "none"}
            row |= {"value": sum(values) / len(values), "n": len(values), "headline": False}
            rows.append(row | ({"coords": labels} if labels else {}))
    return rows
