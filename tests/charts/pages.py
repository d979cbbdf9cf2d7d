"""The report of rows that are no run's, for tests."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from perfdag.charts.pages import page, pick, report
from perfdag.charts.pages.pick import Picture
from perfdag.plan.plan import Plan
from perfdag.results.summary import summarise
from tests.charts.rows import RUN

# Text of at least 4.5 : 1 (WCAG 2.2, 1.4.3), of every element with text of its own.
CONTRAST = """(() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4).reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const paper = (element) => { for (let e = element; e; e = e.parentElement) { const colour = rgb(getComputedStyle(e).backgroundColor); if (colour.length < 4 || colour[3] > 0) return colour; } return [255, 255, 255]; };
  const own = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  return [...document.querySelectorAll("body *")].filter((e) => own(e) && e.offsetParent && e.tagName !== "OPTION").map((e) => {
    const [a, b] = [light(rgb(getComputedStyle(e).color)), light(paper(e))];
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.textContent.slice(0, 40)];
  }).filter(([ratio]) => ratio < 4.5);
})()"""  # noqa: E501
# Text of at least 11 px, inside the window: what is wider scrolls in a box of its own.
SMALL_OR_CUT = """(() => {
  const own = (e) => [...e.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  const seen = [...document.querySelectorAll("main *")].filter((e) => own(e) && e.getBoundingClientRect().width && !e.closest("svg, pre, .scroll"));
  return seen.filter((e) => parseFloat(getComputedStyle(e).fontSize) < 11 || e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.textContent.slice(0, 40));
})()"""  # noqa: E501


def plan_of(**fields: Any) -> Plan:
    """Return the plan of the run that the rows are of."""
    names: dict[str, Any] = {"run_id": RUN, "suite": "trial", "seed": 7} | fields
    return Plan(points=[], shapes=[], order=[], batches=[], **names)


def report_of(
    table: pa.Table, plan: Plan | None = None, pictures: Sequence[Picture] | None = None
) -> str:
    """Return the report of rows, with their charts or with these pictures."""
    drawn = list(pick.draw(table)) if pictures is None else pictures
    return report.report(summarise(table), plan or plan_of(), drawn, "./perfdag-results", {}, None)


def document(body: str) -> str:
    """Return a page in the style of all pages, which is ready."""
    style = f"<style>{page.source('report.css')}</style>"
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width">{style}'
    return f'<!doctype html>{head}<body data-ready="1"><main>{body}</main>'
