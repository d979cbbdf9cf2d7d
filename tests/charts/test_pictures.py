"""Each page on a desktop, a phone and paper, light and dark; and the layout of first screens.

PERFDAG_REGENERATE=1 writes first_screens.json anew: look at the pictures in PERFDAG_PICTURES then.
"""

import json
import os
from pathlib import Path

import pytest

from tests.charts.browser import FAULTS, Page
from tests.charts.conftest import SITE_PAGES
from tests.charts.test_first_screens import CASES

LOOKS = {
    "desktop": (1400, False, ""),
    "dark desktop": (1400, True, ""),
    "phone": (390, False, ""),
    "dark phone": (390, True, ""),
    "paper": (718, False, "print"),  # A4 between its margins
}
GOLDEN = Path(__file__).parent / "first_screens.json"
FIRST_SCREENS = ("first run", "failed", "too noisy", "regressed", "200 points")
REPORTS = (*FIRST_SCREENS, *list(CASES)[-3:])
LINE = 30
"""Pixels by which a box may move: a line of text, as with the fonts of another machine."""
BOXES = """Object.fromEntries(["h1", ".banner", ".sentence", ".tile b", ".tiles", "figure", ".squares", "h2"].flatMap((name) => {
  const box = document.querySelector(name)?.getBoundingClientRect();
  return box && box.top < 900 ? [[name, [box.left, box.top, box.right, box.bottom].map(Math.round)]] : [];
}))"""  # noqa: E501


async def look(page: Page, url: str, name: str) -> dict[str, dict[str, list[int]]]:
    """Open a page in all looks, and hold its texts. Return the places of its boxes."""
    boxes = {}
    for where, (width, dark, media) in LOOKS.items():
        await page.look(width, 900, dark, media)
        if not dark:  # a dark page is the light one in other colours
            await page.open(url)
        if media:
            await page.value("window.dispatchEvent(new Event('beforeprint'))")
        await page.picture(f"{name} {where}")
        boxes[where] = await page.value(BOXES)
        faults = await page.value(FAULTS)
        assert not faults, f"{name}, {where}\n" + "\n".join(faults)
    return boxes


@pytest.mark.parametrize("name", SITE_PAGES)
async def test_a_page_of_the_site_is_legible(name: str, site: str, page: Page) -> None:
    await look(page, f"{site}/{SITE_PAGES[name]}", name)


@pytest.mark.parametrize("case", REPORTS)
async def test_a_report_is_legible_and_its_first_screen_stands(
    case: str, page: Page, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    file.write_text(CASES[case][0](tmp_path))
    boxes = await look(page, file.as_uri(), f"report {case}")
    golden = json.loads(GOLDEN.read_text())
    if os.environ.get("PERFDAG_REGENERATE") and case in FIRST_SCREENS:
        golden[case] = {where: boxes[where] for where in ("desktop", "phone")}
        GOLDEN.write_text(json.dumps(golden) + "\n")
    for where, expected in golden.get(case, {}).items():
        assert boxes[where].keys() == expected.keys()
        for name, box in boxes[where].items():
            far = max(abs(a - b) for a, b in zip(box, expected[name], strict=True))
            assert far <= LINE, f"{where}: {name} is at {box}, not at {expected[name]}"
