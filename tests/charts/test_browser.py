"""report.html in Chromium: tables sort and filter, marks say their values, charts are copied."""

from pathlib import Path

import pyarrow as pa
import pytest

from tests.charts import rows
from tests.charts.browser import Page
from tests.charts.pages import report_of

UNDER_THE_MOUSE = """[...document.querySelectorAll("figure svg use:has(title)")].map((mark) => {
  mark.scrollIntoView({ block: "center" });
  const box = mark.getBoundingClientRect();
  const at = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
  return document.elementFromPoint(...at).textContent;
})"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(report_of(pa.concat_tables([rows.plain(), rows.fio((1, 4))])))
    return file


@pytest.fixture
async def page(page: Page, report: Path) -> Page:
    await page.open(report.as_uri())
    return page


async def test_numbers_of_a_table_sort_within_their_metric(page: Page) -> None:
    table = (
        "[...document.querySelectorAll('table.values')].find(t => t.textContent.includes('IOPS'))"
    )
    await page.value(f"{table}.querySelectorAll('th button')[2].click()")
    cells = f"[...{table}.tBodies[0].rows].map(r => [r.cells[1].firstChild.textContent.trim(), Number(r.cells[2].dataset.value)])"  # noqa: E501
    shown = await page.value(cells)
    metrics = ["read IOPS", "read bandwidth", "write IOPS", "write bandwidth"]
    assert shown == sorted(shown, key=lambda row: (metrics.index(row[0]), row[1]))
    assert {name for name, _ in shown} == set(metrics)


async def test_a_filter_is_kept_in_the_address_and_takes_whole_settings(page: Page) -> None:
    """streams=1 is not streams=16."""
    script = (
        "matches('streams=16 worse', 'streams=1') || !matches('streams=16 worse', 'streams= wor')"
    )
    assert await page.value(script) is False
    await page.value(
        "Object.assign(document.querySelector('input'), { value: 'p99.9 write' }).oninput()"
    )
    url = await page.value("location.href")
    await page.open(url)
    assert "filter=p99.9+write" in url
    texts = await page.value(
        "[...document.querySelectorAll('table.values tbody tr')].map(r => r.textContent)"
    )
    assert texts
    assert all("p99.9" in text and "write" in text for text in texts)


async def test_a_mark_shows_its_value_spread_and_n_under_the_mouse(page: Page) -> None:
    shown = await page.value(UNDER_THE_MOUSE)
    assert any("23.5 (23.2 to 23.7) Gbit/s, n=3" in text for text in shown)
    assert all("n=" in text for text in shown)


async def test_a_chart_is_copied_as_a_picture_and_as_markdown(page: Page) -> None:
    assert await page.value("document.querySelectorAll('figure > .copy button').length") > 2
    figure = "document.querySelector('figure')"
    kind, size = await page.value(f"pngOf({figure}).then((png) => [png.type, png.size])")
    assert (kind, size > 10_000) == ("image/png", True)
    text = await page.value(f"markdownOf({figure})")
    claim = "throughput at streams=4: 2.3 times that at streams=1"
    assert text.startswith(f"**{claim}** (trial, run 2026")
    assert "\n- plain, 4: 23.5 (23.2 to 23.7) Gbit/s, n=3\n" in text


async def test_a_print_leaves_out_what_is_folded(page: Page) -> None:
    await page.value("document.querySelector('details').open = true")
    await page.look(718, 900, media="print")
    await page.value("window.dispatchEvent(new Event('beforeprint'))")
    shown = "[...document.querySelectorAll('details')].map((fold) => fold.checkVisibility())"
    assert await page.value(f"({shown}).slice(0, 3)") == [True, False, False]
