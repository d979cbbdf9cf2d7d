"""Figures from Prometheus: what is asked, when it is asked, and queries to a real one."""

import asyncio
import contextlib
import json
import shutil
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from perfdag.kube.client import KubeError, Prometheus
from perfdag.steps.scale import prometheus

URL = Prometheus("http://x")
PROBE = {"a probe": {"query": "vector(1)"}}


class Asked:
    """A Prometheus that scrapes every 5 s, and what it is asked."""

    def __init__(self, *, scrapes: bool = True) -> None:
        self.scrapes, self.queries = scrapes, dict[str, Any]()

    async def query(self, queries: Any, path: str = "") -> dict[str, Any]:
        answers = {}
        for name, params in queries.items():
            series: dict[str, Any] = {"metric": {"verb": "LIST", "resource": "pods"}}
            value = "NaN" if name == "avgVirtHandlerCPUUsage" else "3"
            series["value"] = [0, value]
            if "[300s]" in params["query"]:
                series["values"] = [[at, "1"] for at in (0, 5, 10)]
            self.queries[name] = params
            answers[name] = {"result": [series] if self.scrapes else []}
        return answers


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    fake = Asked()
    monkeypatch.setattr(Prometheus, "query", lambda _, *args: fake.query(*args))
    return fake


async def test_every_figure_has_a_query_of_the_window_of_the_run(asked: Asked) -> None:
    """The audit's end before the deletion; NaN is no data."""
    figures, gap = await prometheus.run_figures(URL, 100.0, 140.0, 150.0)
    known = {**dict.fromkeys((*prometheus.AUDIT_KEYS, *prometheus.COMPONENT_FIGURES), 3.0)}
    want = known | {"virt_requests/LIST-pods": 3.0, "avgVirtHandlerCPUUsage": None}
    assert (figures, gap) == (want, 5.0)
    cpu, audit = asked.queries["virt_api_cpu_cores_avg"], asked.queries["avgVirtAPICPUUsage"]
    assert ("[55s]" in cpu["query"], cpu["time"]) == (True, "155.000"), (
        "to the scrape after the end"
    )
    assert ("[40s]" in audit["query"], audit["time"]) == (True, "140.000")
    assert not any("$" in params["query"] for params in asked.queries.values())


@pytest.mark.parametrize(("scrapes", "gap"), [(True, 5.0), (False, None)])
async def test_a_run_shorter_than_two_scrapes_has_no_figures(
    scrapes: bool, gap: float | None, asked: Asked
) -> None:
    asked.scrapes = scrapes
    figures, known = await prometheus.run_figures(URL, 100.0, 105.0, 109.0)
    assert (set(figures.values()), known) == ({None}, gap)


async def test_a_scrape_is_not_waited_for_beyond_the_time_of_the_sample(asked: Asked) -> None:
    begun, now = time.monotonic(), time.time()
    await prometheus.run_figures(URL, now - 60, now - 30, now, begun)
    assert time.monotonic() - begun < 2


EXPORTED = """container_cpu_usage_seconds_total{{pod="virt-api-1",container="virt-api"}} {cpu}
rest_client_requests_total{{pod="virt-api-1",verb="PATCH",resource="{vmis}",code="200"}} {adds}
rest_client_requests_total{{pod="virt-controller-1",verb="PATCH",resource="{vmis}"}} {adds}
container_memory_working_set_bytes{{pod="virt-api-1",container="virt-api"}} 1.5e+08
container_memory_working_set_bytes{{pod="virt-api-2",container="virt-api"}} 0.5e+08
container_memory_rss{{pod="virt-api-1",container="virt-api"}} 104857600
container_memory_rss{{pod="virt-api-2",container="virt-api"}} 52428800
container_memory_rss{{pod="virt-handler-1",container="virt-handler",node="a"}} 104857600
container_memory_rss{{pod="virt-handler-2",container="virt-handler",node="b"}} 104857600
node:kubevirt_vmi_phase:sum{{node="a",phase="Running"}} 10
node:kubevirt_vmi_phase:sum{{node="b",phase="Running"}} 40
kubevirt_workqueue_depth{{name="virt-controller-vmi",container="virt-controller"}} 0
kubevirt_workqueue_adds_total{{name="virt-controller-vmi"}} {adds}
kubevirt_workqueue_depth{{name="virt-controller-vmi"}} 3
kubevirt_workqueue_queue_duration_seconds_bucket{{name="virt-controller-vmi",le="0.1"}} 0
kubevirt_workqueue_queue_duration_seconds_bucket{{name="virt-controller-vmi",le="1"}} {adds}
kubevirt_workqueue_queue_duration_seconds_bucket{{name="virt-controller-vmi",le="+Inf"}} {adds}
node_cpu_seconds_total{{mode="idle",cpu="0"}} {idle}
node_cpu_seconds_total{{mode="user",cpu="0"}} {busy}
node_memory_MemAvailable_bytes 1e+09
node_memory_MemTotal_bytes 4e+09
"""


NOTHING = b'{"status":"success","data":{"resultType":"vector","result":[]}}'


@contextlib.asynccontextmanager
async def answering(body: Callable[[], bytes], header: bytes = b"") -> AsyncIterator[str]:
    """Serve a text to requests with a header, refuse others with 401; give the host and port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        known = header in await reader.readuntil(b"\r\n\r\n")
        status = b"200 OK" if known else b"401 Unauthorized"
        writer.write(b"HTTP/1.1 " + status + b"\r\nConnection: close\r\n")
        writer.write(b"Content-Type: text/plain; version=0.0.4\r\n\r\n" + body())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="needs Prometheus (Debian: prometheus)"
)
async def test_a_real_prometheus_answers_the_queries(tmp_path: Path) -> None:
    """Counters grow by 0.25 CPU seconds and 40 additions a second, with 500 more at the end.

    They are scraped every 2 seconds. What no pod exports has no data.
    """
    start, more, ending = time.monotonic(), 0, contextlib.AsyncExitStack()

    def exported() -> bytes:
        since = time.monotonic() - start
        return EXPORTED.format(
            cpu=0.25 * since,
            adds=40 * since + more,
            idle=0.6 * since,
            busy=0.4 * since,
            vmis="virtualmachineinstances",
        ).encode()

    target = await ending.enter_async_context(answering(exported))
    job = {
        "job_name": "x",
        "scrape_interval": "2s",
        "static_configs": [{"targets": [target]}],
    }
    (tmp_path / "p.yml").write_text(json.dumps({"scrape_configs": [job]}))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = ending.enter_context((tmp_path / "log").open("wb"))
    argv = [
        "prometheus",
        f"--config.file={tmp_path / 'p.yml'}",
        f"--storage.tsdb.path={tmp_path / 'db'}",
    ]
    server = await asyncio.create_subprocess_exec(
        *argv, f"--web.listen-address=127.0.0.1:{port}", stdout=log, stderr=log
    )
    try:
        url = Prometheus(f"http://127.0.0.1:{port}")
        gap: float | None = None
        for _ in range(60):
            await asyncio.sleep(0.5)
            with contextlib.suppress(KubeError):
                if gap := await prometheus.scrape_interval(url, time.time()):
                    break
        began = time.time()
        await asyncio.sleep(12.0)
        deleted, ended, more = time.time(), time.time(), 500
        figures, gap = await prometheus.run_figures(url, began, deleted, ended)
        assert gap == pytest.approx(2.0, abs=0.1)
        want: dict[str, Any] = {
            "virt_api_cpu_cores_avg": pytest.approx(0.25, rel=0.25),
            "virt_api_memory_bytes_avg": pytest.approx(2e8),
            "workqueue_depth_max": 3,
            "workqueue_p99_s_max": pytest.approx(0.1 + 0.9 * 0.99),
            "node_cpu_ratio_avg": pytest.approx(0.4, abs=0.02),  # of the run alone, however short
            "node_memory_ratio_avg": pytest.approx(0.75),
            "virt_handler_cpu_cores_avg": None,
            "avgVirtAPICPUUsage": pytest.approx(0.25, rel=0.25),
            "avgVirtAPIMemoryUsageInMB": pytest.approx(75),
            "maxVirtHandlerMemoryUsageInMB": pytest.approx(10),  # per VMI of a node
            "avgVirtHandlerMemoryUsageInMB": pytest.approx(6.25),
            "virtControllerWorkqueueDepth": 0,
            "avgVirtHandlerCPUUsage": None,
            "virt_requests/PATCH-virtualmachineinstances": pytest.approx(2 * 40 * 12, rel=0.2),
        }
        assert {key: figures[key] for key in want} == want
        grown = figures["workqueue_adds"] or 0
        assert 40 * 12 + 400 < grown < 40 * 16 + 700, "to the first scrape after the end"
    finally:
        server.terminate()
        await server.wait()
        await ending.aclose()


async def test_no_prometheus_is_said() -> None:
    with pytest.raises(KubeError, match=r"no answer from Prometheus at http://127\.0\.0\.1:9"):
        await prometheus.run_figures(Prometheus("http://127.0.0.1:9"), 0.0, 50.0, 60.0)


async def test_a_token_is_sent_and_a_refusal_names_its_option(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    async with answering(lambda: NOTHING, b"Authorization: Bearer secret\r\n") as address:
        await Prometheus(f"http://{address}", str(tmp_path / "token")).query(PROBE, "query")
        with pytest.raises(KubeError, match=r"answers 401.*--prometheus-token-file"):
            await Prometheus(f"http://{address}").query(PROBE, "query")
