"""The charts of benchmarks in Chromium: no text overlaps, and none is cut off.

Each has the figures of its page in the documentation, and points that failed beside them.
"""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from perfdag.charts.pictures import draw_pictures, inline_picture
from perfdag.results.summary import summarise
from tests.charts import rows
from tests.charts.browser import FAULTS, Page
from tests.charts.pages import document

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
samples: Any = importlib.import_module("sample_charts")
BENCHMARKS = sorted({*samples.TABLES, *samples.SAMPLES})
ERROR = "exit 1: unable to connect to server: Connection refused, after 30 s and three attempts"


@pytest.mark.parametrize("benchmark", BENCHMARKS)
async def test_texts_do_not_overlap_and_are_not_cut(
    benchmark: str, page: Page, tmp_path: Path
) -> None:
    lost = [
        rows.sample(benchmark, {"lost": n}, 1, [], status="failed", error=ERROR) for n in range(6)
    ]
    figures: list[str] = []
    whole, failed = samples.sample_table(benchmark), rows.table(*lost)
    claims = [drawn.title for drawn in draw_pictures(summarise(whole))]
    assert len(set(claims)) == len(claims)
    assert all(re.search(r"\d", claim) for claim in claims), "each title is a result"
    for table in (whole, failed, pa.concat_tables([whole, failed])):
        for drawn in draw_pictures(summarise(table)):
            assert drawn.slug != "error", drawn.title
            assert len(drawn.title) <= 70, drawn.title
            shown = inline_picture(drawn, len(figures))
            figures.append(f'<section id="{len(figures)} {drawn.slug}">{shown}</section>')
    file = tmp_path / "charts.html"
    file.write_text(document("".join(figures)))
    for width in (1280, 390):
        await page.look(width, 900, False)
        await page.open(file.as_uri())
        faults = await page.value(FAULTS)
        assert not faults, f"{width} px\n" + "\n".join(faults)
