"""The charts of benchmarks in Chromium: no text overlaps, and none is cut off.

Each has charts of one point, of many, of failures, and of names of 40 letters.
"""

from pathlib import Path

import pytest

from perfdag.charts.pages import page as html
from perfdag.charts.pages import pick
from tests.charts import cases
from tests.charts.browser import FAULTS, tab
from tests.charts.pages import document


@pytest.mark.parametrize("benchmark", cases.BASES)
async def test_texts_do_not_overlap_and_are_not_cut(
    benchmark: str, port: int, tmp_path: Path
) -> None:
    figures: list[str] = []
    for name, rows in cases.tables(benchmark):
        for number, drawn in enumerate(pick.draw(rows)):
            assert drawn.slug != "error", (name, drawn.title)
            assert len(drawn.title) <= 60, (name, drawn.title)
            shown = html.picture(drawn, len(figures))
            figures.append(f'<section id="{name} {number} {drawn.slug}">{shown}</section>')
    file = tmp_path / "charts.html"
    file.write_text(document("".join(figures)))
    async with tab(port) as page:
        for width in (1280, 390):
            await page.look(width, 900, False)
            await page.open(file.as_uri())
            faults = await page.value(FAULTS)
            assert not faults, f"{width} px\n" + "\n".join(faults)
