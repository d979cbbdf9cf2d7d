"""The report of rows that are no run's, for tests."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from perfdag.charts.pages import report
from perfdag.charts.pictures import Picture, draw_pictures
from perfdag.plan import Plan
from perfdag.results.summary import summarise
from tests.charts.rows import RUN


def plan_of(**fields: Any) -> Plan:
    """Return the plan of the run that the rows are of."""
    names: dict[str, Any] = {"run_id": RUN, "suite": "trial", "seed": 7} | fields
    return Plan(points=[], shapes=[], order=[], batches=[], **names)


def report_of(
    table: pa.Table, plan: Plan | None = None, pictures: Sequence[Picture] | None = None
) -> str:
    """Return the report of rows, with their charts or with these pictures."""
    drawn = list(draw_pictures(summarise(table))) if pictures is None else pictures
    return report.report(
        summarise(table), plan or plan_of(), drawn, "./perfdag-results", False, None
    )


def document(body: str) -> str:
    """Return a page in the style of all pages, which is ready."""
    style = f"<style>{report.source('report.css')}</style>"
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width">{style}'
    return f'<!doctype html>{head}<body data-ready="1"><main>{body}</main>'
