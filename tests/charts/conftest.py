"""A Chromium and a site of 30 runs for the tests of pages and charts."""

from collections.abc import AsyncIterator, Iterator

import pytest

from perfdag.analysis.alerts import publish
from perfdag.analysis.gate import judge_run
from perfdag.analysis.gate_result import Rules
from perfdag.charts.pages.site import write_site
from perfdag.store.base import FolderStore
from tests.charts.browser import CHROMIUM, Page, chromium, tab
from tests.stats import synthetic
from tests.stats.synthetic import run_id

HOSTILE = "bs=</script><script>alert(1)</script><b>"
SITE_PAGES = {
    "index": "index.html",
    "history": "history.html?suite=net",
    "wall": "index.html?wall",
    "compare": f"compare.html?suite=net&a={run_id(17)}&b={run_id(18)}",
    "benchmark": "benchmark.html?name=iperf",
    "verdicts": f"compare.html?suite=net&a={run_id(28)}&b={run_id(29)}",
}


@pytest.fixture(scope="session")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    with chromium(tmp_path_factory.mktemp("profile")) as port:
        yield port


@pytest.fixture
async def page(port: int) -> AsyncIterator[Page]:
    """A tab as wide as a desktop, in which nothing may fail."""
    async with tab(port) as page:
        await page.look(1280, 900)
        yield page
        assert page.errors == []


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("store")
    store = FolderStore(str(folder))
    for first, count in ((0, 29), (29, 1)):
        synthetic.nights(
            store,
            count,
            lambda night, point: 2e10 * (0.88 if night >= 18 and point == "streams=4" else 1),
            env=lambda night: {"kernel": "6.1.112" if night < 18 else "6.12.4"},
            first=first,
        )
        write_site(store)
    for first, count, trigger in ((0, 9, "cron"), (9, 1, "recheck")):
        synthetic.nights(
            store, count, lambda *_: 1e-4, points=("bs=4KiB", HOSTILE), suite="disk", entry="fio",
            metric="latency", unit="s", better="lower", first=first, trigger=trigger,
        )  # fmt: skip
    for night, runtime, points in ((0, 1, ("bs=4", "bs=8", "bs=16")), (1, 2, ("bs=4", "bs=8"))):
        names = [f"{point},runtime={runtime}" for point in points]
        level = 1e-4 * (1 + night)
        synthetic.nights(
            store, 1, lambda *_, level=level: level, points=names, suite="grid", entry="fio",
            metric="latency", unit="s", better="lower", first=night,
        )  # fmt: skip
    publish(store, judge_run(store, "net", run_id(29), Rules()))
    store.put(f"runs/{run_id(29)}/report.html", b"<!doctype html><title>report</title>")
    write_site(store)
    return (folder / "site").as_uri()
