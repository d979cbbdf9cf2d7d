"""The site in Chromium, from a folder: 30 runs, on a desktop and a phone, light and dark."""

from collections.abc import Iterator

import pytest

from perfdag.analysis.alerts import Rules, store_record
from perfdag.analysis.gate import check
from perfdag.charts.pages.site import write_site
from perfdag.store.folder import FolderStore
from tests.charts.browser import CHROMIUM, Page, chromium, tab
from tests.charts.pages import CONTRAST, SMALL_OR_CUT
from tests.stats import synthetic
from tests.stats.synthetic import run_id

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
HOSTILE = "bs=</script><script>alert(1)</script><b>"
PAGES = {
    "index": "index.html",
    "history": "history.html?suite=net",
    "wall": "index.html?wall",
    "compare": f"compare.html?suite=net&a={run_id(17)}&b={run_id(18)}",
}
FIRST_FIGURE = "[...drawn.values()][0]"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("store")
    store = FolderStore(str(folder))
    synthetic.nights(
        store,
        30,
        lambda night, point: 2e10 * (0.88 if night >= 18 and point == "streams=4" else 1),
        env=lambda night: {"kernel": "6.1.112" if night < 18 else "6.12.4"},
    )
    synthetic.nights(
        store, 9, lambda night, point: 1e-4, points=("bs=4KiB", HOSTILE), suite="disk", entry="fio",
        metric="latency", unit="s", better="lower",
    )  # fmt: skip
    for night, runtime, points in ((0, 1, ("bs=4", "bs=8", "bs=16")), (1, 2, ("bs=4", "bs=8"))):
        names = [f"{point},runtime={runtime}" for point in points]
        level = 1e-4 * (1 + night)
        synthetic.nights(
            store, 1, lambda *_, level=level: level, points=names, suite="grid", entry="fio",
            metric="latency", unit="s", better="lower", first=night,
        )  # fmt: skip
    store_record(store, check(store, "net", run_id(29), Rules()))
    store.put(f"runs/{run_id(29)}/report.html", b"<!doctype html><title>report</title>")
    write_site(store)
    return (folder / "site").as_uri()


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with chromium(tmp_path_factory.mktemp("profile")) as port:
        yield port


async def test_every_page_on_a_desktop_a_phone_and_paper_light_and_dark(
    site: str, port: int
) -> None:
    async with tab(port) as page:
        for name, address in PAGES.items():
            for width, height, media in ((1400, 900, ""), (390, 844, ""), (700, 1000, "print")):
                for dark in (False, True)[: 1 if media else 2]:
                    await page.look(width, height, dark, media)
                    await page.open(f"{site}/{address}")
                    if name == "history":
                        await page.value("document.querySelector('.plot').scrollIntoView()")
                        await page.until("document.querySelector('.plot').dataset.drawn")
                    await page.picture(f"{name}-{width}-{'dark' if dark else 'light'}")
                    root = "document.documentElement"
                    wide = await page.value(f"{root}.scrollWidth - {root}.clientWidth")
                    assert wide == 0, f"{name} scrolls sideways by {wide} pixels at {width}"
                    assert await page.value(CONTRAST) == [], (name, width, dark)
                    assert await page.value(SMALL_OR_CUT) == [], (name, width, dark)
        assert page.errors == []


async def test_the_index_is_a_card_a_suite_with_trouble_first(site: str, port: int) -> None:
    async with tab(port) as page:
        await page.look(1280, 900)
        await page.open(f"{site}/index.html")
        cards = "[...document.querySelectorAll('.card')].map(c => [c.id, c.className])"
        assert (await page.value(cards))[0] == ["net", "card bad"]
        text = await page.value("document.querySelector('#net').innerText")
        assert "iperf streams=4 throughput: worse -12" in text
        assert "gate failed" in text
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
        first = "document.querySelector('#net tbody td').textContent"
        await page.value("document.querySelector('#net th button').click()")
        assert await page.value(first) == "2026-01-05 04:41"
        box = "document.querySelector('#net input')"
        await page.value(f"{box}.value = '20260110'; {box}.oninput()")
        assert await page.value("document.querySelectorAll('#net tbody tr').length") == 1
        await page.open(f"{site}/index.html?wall")
        assert await page.value("document.querySelectorAll('details, input, nav').length") == 0
        assert page.errors == []


async def test_a_history_shows_levels_changes_alerts_and_hover(site: str, port: int) -> None:
    async with tab(port) as page:
        await page.look(1280, 1400)
        await page.open(f"{site}/{PAGES['history']}")
        text = await page.value("document.body.innerText")
        assert "WORSE net/iperf streams=" in text
        assert "Changed: kernel 6.1.112 -> 6.12.4." in text
        row = await _cells(page, "tbody tr:first-child td")
        assert row["series"] == "iperf streams=4 throughput"
        assert row["answer"].startswith("worse -12")
        await page.until("document.querySelector('.plot').dataset.drawn")
        line = f"{FIRST_FIGURE}.renderers.find(r => r.glyph.type === 'Line' && r.data_source.data.x.length > 2)"  # noqa: E501
        assert "to its level" in await _hover(page)
        assert await page.value(f"{line}.data_source.inspected.indices.length") == 0
        await page.open(f"{site}/{PAGES['history']}&filter=streams%3D8")
        await page.until("document.querySelectorAll('.chart').length === 1")
        await page.value("window.dispatchEvent(new Event('beforeprint'))")
        link = await page.value("document.querySelector('.chart h3 a').href")
        await page.open(link)
        assert "streams=8" in await page.value("document.querySelector('.chart h3').textContent")
        assert page.errors == []


async def test_a_comparison_has_the_product_s_verdicts(site: str, port: int) -> None:
    async with tab(port) as page:
        await page.look(1280, 900)
        await page.open(f"{site}/compare.html?suite=net")
        assert "same (" in await page.value("document.body.innerText")
        await page.open(f"{site}/{PAGES['compare']}")
        text = await page.value("document.body.innerText")
        assert "kernel: 6.1.112 -> 6.12.4" in text
        assert f"perfdag compare {run_id(17)} {run_id(18)}" in text
        assert page.errors == []


async def test_a_comparison_pairs_points_over_a_changed_parameter(site: str, port: int) -> None:
    async with tab(port) as page:
        await page.look(1280, 900)
        await page.open(f"{site}/compare.html?suite=grid")
        text = await page.value("document.querySelector('main').innerText")
        assert "fio.runtime: 1 -> 2" in text
        assert "only in A: 1\n" in text
        row = await _cells(page, "tbody tr:first-child td")
        assert row["answer"].startswith("worse +")
        assert all("µs (" in row[side] for side in ("A", "B")), "a verdict has its numbers"
        assert await page.value("document.querySelector('.bars i').className") == "bad"
        assert page.errors == []


async def test_an_unknown_suite_gives_one_line(site: str, port: int) -> None:
    async with tab(port) as page:
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


async def _hover(page: Page) -> str:
    """The text of the tooltip at the sixth point of the first chart."""
    at = """(() => { const view = Bokeh.index[[...drawn.values()][0].id], frame = view.frame, box = view.el.getBoundingClientRect();
      const data = view.model.renderers.find((r) => r.glyph.type === "Scatter").data_source.data;
      return [box.x + frame.x_scale.compute(data.x[5]), box.y + frame.y_scale.compute(data.y[5])]; })()"""  # noqa: E501
    x, y = await page.value(at)
    await page.move(x - 1, y)
    await page.move(x, y)
    tip = """(() => { const texts = []; const walk = (node) => { if (node.shadowRoot) walk(node.shadowRoot); for (const child of node.childNodes) walk(child);
      if (node.classList?.contains("bk-Tooltip")) texts.push(node.shadowRoot.textContent); }; walk(document.body); return texts.join(" "); })()"""  # noqa: E501
    await page.until(f"{tip}.includes('spread')")
    return str(await page.value(tip))
