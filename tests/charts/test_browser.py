"""report.html in Chromium, at desktop and phone width: it scrolls down and never sideways."""

from pathlib import Path

import pytest

from tests.charts import rows
from tests.charts.browser import CHROMIUM, chromium, tab
from tests.charts.pages import plan_of, report_of

UNDER_THE_MOUSE = """[...document.querySelectorAll("figure svg use:has(title)")].map((mark) => {
  mark.scrollIntoView({ block: "center" });
  const box = mark.getBoundingClientRect();
  const at = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
  return document.elementFromPoint(...at).textContent;
})"""
WIDTHS = (390, 1280)  # a phone's and a desktop's, in CSS pixels


@pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here: the report's widths are not looked at"
)
async def test_a_report_never_scrolls_sideways(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    plan = plan_of(suite_text=f"name: trial # {'wide ' * 100}\n")
    file.write_text(report_of(rows.plain(), plan))
    root = "document.documentElement"
    with chromium(tmp_path / "profile") as port:
        async with tab(port) as page:
            for width in WIDTHS:
                await page.look(width, 900)
                await page.open(file.as_uri())
                assert await page.value(f"{root}.scrollWidth - {root}.clientWidth") == 0, width
                assert await page.value("document.querySelectorAll('svg, img').length") >= 1
                assert await page.value("document.body.innerText.length") > 500


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: the tables are not sorted")
async def test_numbers_of_a_table_sort_within_their_metric(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(report_of(rows.fio((1, 4))))
    cells = "[...document.querySelector('table.values').tBodies[0].rows].map(r => [r.cells[1].firstChild.textContent.trim(), r.cells[3].textContent, r.cells[2].textContent])"  # noqa: E501
    with chromium(tmp_path / "profile") as port:
        async with tab(port) as page:
            await page.open(file.as_uri())
            await page.value("document.querySelectorAll('table.values th button')[2].click()")
            shown = await page.value(cells)
    by_unit = {unit: [float(row[2]) for row in shown if row[1] == unit] for _, unit, _ in shown}
    assert [name for name, *_ in shown] == ["IOPS"] * 4 + ["bandwidth"] * 4
    assert len(by_unit) == 2
    assert all(values == sorted(values) for values in by_unit.values())


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: the marks are not looked at")
async def test_a_mark_shows_its_value_spread_and_n_under_the_mouse(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(report_of(rows.plain()))
    with chromium(tmp_path / "profile") as port:
        async with tab(port) as page:
            await page.look(1280, 900)
            await page.open(file.as_uri())
            shown = await page.value(UNDER_THE_MOUSE)
    assert any("23.5 (23.2 to 23.7) Gbit/s, n=3" in text for text in shown)
    assert all("n=3" in text for text in shown)
