"""Each page on a desktop, a phone and paper, light and dark."""

from pathlib import Path

import pytest

from tests.charts.browser import FAULTS, Page, tab
from tests.charts.conftest import SITE_PAGES
from tests.charts.test_first_screens import CASES

LOOKS = {
    "desktop": (1400, False, ""),
    "dark desktop": (1400, True, ""),
    "phone": (390, False, ""),
    "dark phone": (390, True, ""),
    "paper": (718, False, "print"),  # A4 between its margins
}
REPORTS = ("first run", "failed", "too noisy", "regressed", "200 points", *list(CASES)[-3:])


async def look(page: Page, url: str, name: str) -> None:
    """Open a page in all looks, and hold its texts."""
    for where, (width, dark, media) in LOOKS.items():
        await page.look(width, 900, dark, media)
        await page.open(url)
        if media:
            await page.value("window.dispatchEvent(new Event('beforeprint'))")
        await page.until("[...document.querySelectorAll('.plot')].every((e) => e.dataset.drawn)")
        await page.picture(f"{name} {where}")
        faults = await page.value(FAULTS)
        assert not faults, f"{name}, {where}\n" + "\n".join(faults)
    assert page.errors == []


@pytest.mark.parametrize("name", SITE_PAGES)
async def test_a_page_of_the_site_is_legible(name: str, site: str, port: int) -> None:
    async with tab(port) as page:
        await look(page, f"{site}/{SITE_PAGES[name]}", name)


@pytest.mark.parametrize("case", REPORTS)
async def test_a_report_is_legible(case: str, port: int, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(CASES[case][0](tmp_path))
    async with tab(port) as page:
        await look(page, file.as_uri(), f"report {case}")
