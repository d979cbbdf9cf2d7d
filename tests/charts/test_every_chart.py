"""The charts of benchmarks in Chromium: no text overlaps, and none is cut off.

Each has charts of one point, of many, of failures, and of names of 40 letters.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from perfdag.charts.pages import page as html
from perfdag.charts.pages import pick
from tests.charts import cases
from tests.charts.browser import CHROMIUM, chromium, tab
from tests.charts.pages import document

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
SCRIPT = (Path(__file__).parent / "charts_check.js").read_text()


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with chromium(tmp_path_factory.mktemp("profile")) as port:
        yield port


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
            faults = await page.value(SCRIPT)
            assert not faults, f"{width} px\n" + "\n".join(faults)
