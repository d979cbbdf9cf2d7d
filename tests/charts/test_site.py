"""The site in Chromium, from a folder: 30 runs."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from perfdag.charts.pages import site_data
from perfdag.charts.pages.site import write_site
from perfdag.store.base import FolderStore
from tests.charts.browser import Page
from tests.charts.conftest import SITE_PAGES as PAGES
from tests.stats.synthetic import put, rows, run_id, slower


async def test_the_index_is_a_card_a_suite_with_trouble_first(site: str, page: Page) -> None:
    await page.open(f"{site}/index.html")
    cards = "[...document.querySelectorAll('.card')].map(c => [c.id, c.className])"
    assert (await page.value(cards))[0] == ["net", "card bad stale"]
    text = await page.value("document.querySelector('#net').innerText")
    assert "iperf throughput, 4 streams worse -12.3 % since 2026-01-23 (12 runs)" in text
    assert "gate failed" in text
    assert "(11 runs)" not in text, "the verdict on the run before"
    steps = "[...document.querySelectorAll('#net .line text')].map(t => t.textContent)"
    assert [step.split(" ", 1)[0][:3] for step in await page.value(steps)] == ["-12"]
    squares = "[...document.querySelectorAll('#net .squares a')].map(a => a.className)"
    shown = await page.value(squares)
    assert (len(shown), shown[0], shown[-1]) == (30, "", "bad")
    assert await page.value("document.querySelectorAll('main b b, main script').length") == 0
    await page.value("document.querySelector('#net details').open = true")
    await page.until("document.querySelectorAll('#net tbody tr').length === 30")
    newest = await _cells(page, "#net tbody tr:first-child td")
    assert (newest["run"], newest["status"]) == ("2026-02-03 04:41", "9 ok")
    assert (newest["verdict"], newest["trust"]) == ("worse, gate failed", "good")
    links = "[...document.querySelectorAll('#net tbody tr:first-child a')].map(a => a.href)"
    report, compare = await page.value(links)
    assert report == site.replace("/site", f"/runs/{run_id(29)}/report.html")
    assert compare.endswith(f"compare.html?suite=net&a={run_id(28)}&b={run_id(29)}")
    await page.open(f"{site}/index.html?wall")
    assert await page.value("document.querySelectorAll('details, input, nav').length") == 0


async def test_a_history_shows_levels_changes_alerts_and_hover(site: str, page: Page) -> None:
    await page.look(1280, 1400)
    await page.open(f"{site}/{PAGES['history']}")
    text = await page.value("document.body.innerText")
    alert = await page.value("document.querySelector('.alert.bad').innerText")
    assert alert.startswith("worse iperf throughput, 4 streams -12.3 % since 2026-01-23 (12 runs)")
    assert "changed\tkernel 6.1.112 -> 6.12.4\n" in alert
    assert text.startswith("net: history")
    assert "\nWorse: iperf throughput, 4 streams -12.3 % since 2026-01-23 (12 runs)\n" in text
    changes = await page.value("document.querySelector('.chart details').textContent")
    assert changes.startswith("1 change, the newest 20 Gbit/s -> 17.5 Gbit/s")
    assert "Changed: kernel 6.1.112 -> 6.12.4." in changes
    step = await page.value("[...document.querySelectorAll('.plot text')].map(t => t.textContent)")
    assert "-12.3 % 2026-01-23: kernel 6.1.112 -> 6.12.4" in step, "the cause stands at the step"
    assert await page.value("document.querySelectorAll('.runs svg').length") == 3, "sparks"
    row = await _cells(page, "tbody tr:first-child td")
    assert row["series"] == "iperf throughput, 4 streams"
    assert row["verdict"].startswith("worse -12")
    line = "document.querySelector('.plot polyline').checkVisibility()"
    x, y = await page.value(
        "(() => { const box = document.querySelectorAll('.plot .run rect')[5].getBoundingClientRect();"  # noqa: E501
        " return [box.x + box.width / 2, box.y + 9]; })()"
    )
    await page.move(x, y)
    said = "[...document.querySelectorAll('.run text')].filter(t => t.checkVisibility({ visibilityProperty: true })).map(t => t.textContent)"  # noqa: E501
    await page.until(f"{said}.length === 1")
    [text] = await page.value(said)
    assert text.startswith("2026-01-10 04:41: 19.9 Gbit/s (")
    assert text.endswith(" % to its level")
    assert await page.value(line), "hovering leaves the line"
    await page.open(f"{site}/{PAGES['history']}&filter=streams%3D8")
    await page.until("document.querySelectorAll('.chart').length === 1")
    await page.value("window.dispatchEvent(new Event('beforeprint'))")
    link = await page.value("document.querySelector('.chart h3 a').href")
    await page.open(link)
    assert "8 streams" in await page.value("document.querySelector('.chart h3').textContent")


async def test_a_comparison_has_the_product_s_verdicts_also_over_a_changed_parameter(
    site: str, page: Page
) -> None:
    await page.open(f"{site}/compare.html?suite=net")
    assert "same (" in await page.value("document.body.innerText")
    await page.open(f"{site}/{PAGES['compare']}")
    text = await page.value("document.body.innerText")
    assert "kernel: 6.1.112 -> 6.12.4" in text
    assert f"perfdag compare {run_id(17)} {run_id(18)}" in text
    assert "\nWorse: iperf throughput, 4 streams -12.3 % since" in text
    assert "\n1 worse, 2 same\n" in text
    assert text.startswith("net: 2026-01-22 04:41 against 2026-01-23 04:41\n")
    assert await page.value("document.querySelectorAll('.bars svg rect').length") == 3, "noise"
    await page.value("document.querySelector('select').value = 'grid'")
    await page.value("document.querySelector('select').dispatchEvent(new Event('change'))")
    await page.until("location.search === '?suite=grid'")
    await page.open(f"{site}/compare.html?suite=grid")
    text = await page.value("document.querySelector('main').innerText")
    assert "fio.runtime: 1 -> 2" in text
    assert "only in A: 1\n" in text
    row = await _cells(page, "tbody tr:first-child td")
    assert row["verdict"].startswith("worse +")
    assert all("µs (" in row[side] for side in ("A", "B")), "a verdict has its numbers"
    bar = await page.value("document.querySelector('.bars circle:last-child').outerHTML")
    assert "var(--bad)" in bar
    await page.open(f"{site}/compare.html?suite=disk&b={run_id(9, 'disk')}")
    menu = "document.querySelectorAll('select')[2].selectedOptions[0].textContent"
    assert await page.value(menu) == "2026-01-13 04:41 blue, measured again once"


async def test_any_two_runs_have_the_verdicts_of_perfdag_compare(site: str, page: Page) -> None:
    """The page takes them from what is stored of each series; the rule is in Python alone."""
    store = FolderStore(unquote(urlsplit(site).path).removesuffix("/site"))
    assert await _verdicts(page, site, store, "net", [0, 1, 2, 17, 18, 29]) == {
        "worse",
        "better",
        "same",
    }


async def test_any_two_of_few_runs_have_the_verdicts_of_perfdag_compare(
    tmp_path: Path, page: Page
) -> None:
    store, words = FolderStore(str(tmp_path)), set[str]()
    suites = {f"{runs}-{n}": (runs, n) for runs in (2, 3, 5) for n in (3, 20)}
    for suite, shape in suites.items():
        slower(store, suite, *shape)
    write_site(store)
    for suite, (runs, _) in suites.items():
        words |= await _verdicts(page, (tmp_path / "site").as_uri(), store, suite, range(runs))
    assert words == {"worse", "better", "same", "unclear"}


async def test_points_that_were_unusable_in_a_run_are_compared_by_neither(
    tmp_path: Path, page: Page
) -> None:
    store = FolderStore(str(tmp_path))
    about: dict[str, Any] = {"entry": "task", "metric": "wall_time", "unit": "s", "better": "lower"}
    quiet = about | {"metric": "cpu_time", "headline": False}
    for suite, wide in {"first": 1, "later": 7}.items():
        for night in range(9):
            times = [50.0, 400, 910] if night == wide else [100.0, 101, 102]
            cpu = [70.0 if night >= wide else 10.0] * 3
            some = rows(night, {"size=1": times}, suite=suite, **about)
            steady = rows(
                night, {"size=1": [5.0] * 3}, suite=suite, **quiet | {"metric": "user_time"}
            )
            put(store, some + rows(night, {"size=1": cpu}, suite=suite, **quiet) + steady)
    write_site(store)
    for suite, runs in {"first": [0, 1, 2], "later": [5, 6, 7, 8]}.items():
        words = await _verdicts(page, (tmp_path / "site").as_uri(), store, suite, runs)
        assert "unclear" in words
    both = run_id(0, "first"), run_id(1, "first")
    texts = [text for _, text, *_ in site_data.verdicts(store, "first", *both)["series"].values()]
    assert sum("but the point was unusable in B: the samples of B spread" in x for x in texts) == 2


async def _verdicts(
    page: Page, site: str, store: FolderStore, suite: str, runs: Sequence[int]
) -> set[str]:
    """The words of the page about each two runs, which are those of `perfdag compare`."""
    pairs = [(run_id(a, suite), run_id(b, suite)) for a in runs for b in runs if a != b]
    await page.open(f"{site}/compare.html?suite={suite}")
    script = """(async (suite, both) => { const head = await headOf(suite), series = await seriesOf(head);
      const points = await pointsOf(series, () => newestMonths(head, Infinity)), run = (id) => ({ id, cluster: "blue" });
      return both.map(([a, b]) => Object.fromEntries(pairs(series, points, run(a), run(b)).map((row) => [row.series.id, [row.verdict, row.text]]))); })"""  # noqa: E501
    shown = await page.value(f"{script}({json.dumps(suite)}, {json.dumps(pairs)})")
    words = set()
    for (a, b), answers in zip(pairs, shown, strict=True):
        for series, (word, text, *_) in site_data.verdicts(store, suite, a, b)["series"].items():
            words.add(word)
            assert answers[series][0] == word, (a, b)
            decides = word != "unclear" or "the samples of" in text
            assert answers[series][1] == text or not decides, (a, b)
    return words


async def test_runs_have_their_revisions_where_one_is_known(tmp_path: Path, page: Page) -> None:
    store, commit = FolderStore(str(tmp_path)), "0123456789abcdef0123456789abcdef01234567"
    for night, revision in enumerate([None, commit, "v2 + changes"]):
        put(store, rows(night, {"size=1": [1e9] * 3}, revision=revision))
    write_site(store)
    await page.open(f"{(tmp_path / 'site').as_uri()}/index.html")
    await page.value("document.querySelector('#net details').open = true")
    await page.until("document.querySelectorAll('#net tbody tr').length === 3")
    shown = [await _cells(page, f"#net tbody tr:nth-child({row}) td") for row in (1, 2, 3)]
    assert [row["revision"] for row in shown] == ["v2 + changes", commit[:10], ""]


async def test_a_benchmark_has_its_series_of_all_suites(site: str, page: Page) -> None:
    await page.open(f"{site}/index.html")
    names = "[...document.querySelectorAll('nav a')].map(a => a.textContent)"
    assert await page.value(names) == ["fio", "iperf", "For a wall"]
    await page.value("document.querySelector('nav a').click()")
    await page.until("document.querySelector('h1')?.textContent === 'fio: benchmark'")
    await page.until("document.querySelectorAll('.card').length === 7")
    rows = "[...document.querySelectorAll('tbody tr')].map(r => r.cells[0].textContent)"
    assert set(await page.value(rows)) == {"disk", "grid"}
    link = "document.querySelector('.card h2 a').href"
    assert "history.html?suite=grid&cluster=blue#" in await page.value(link)


async def test_few_runs_and_an_unknown_suite_are_told_in_words(site: str, page: Page) -> None:
    await page.open(f"{site}/history.html?suite=grid")
    text = await page.value("document.querySelector('.chart p').textContent")
    assert re.fullmatch(r"2026-01-0\d \d\d:\d\d: [\d.]+ µs", text)
    assert await page.value("document.querySelectorAll('.chart svg').length") == 0
    await page.open(f"{site}/history.html?suite=nett")
    assert await page.value("document.querySelector('.alert').textContent") == (
        "no suite nett; there are disk, grid, net"
    )


async def _cells(page: Page, selector: str) -> dict[str, str]:
    """The cells of a row by the names of their columns."""
    script = (
        f"Object.fromEntries([...document.querySelectorAll('{selector}')].map(c => "
        f"[c.dataset.name, c.textContent]))"
    )
    return dict(await page.value(script))
