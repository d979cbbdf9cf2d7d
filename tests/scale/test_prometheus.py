"""Figures from Prometheus: what is asked, when it is asked, and queries to a real one."""

import asyncio
import contextlib
import json
import re
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from perfdag.commands.main import main
from perfdag.kube.client import KubeError
from perfdag.steps.scale import prometheus
from perfdag.steps.scale.prometheus import Prometheus
from tests.fakes.api_server import served

URL = Prometheus("http://x")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a Prometheus that scrapes every 5 s is asked, by name."""
    queries: dict[str, Any] = {}

    async def query(_: Any, wanted: Any) -> dict[str, Any]:
        queries.update(wanted)
        scrapes = {"metric": {"verb": "LIST", "resource": "pods"}, "values": [[0, 1], [5, 1]]}
        return {
            name: {"result": [scrapes | {"value": [0, "NaN" if "HandlerCPU" in name else "3"]}]}
            for name in wanted
        }

    monkeypatch.setattr(Prometheus, "query", query)
    return queries


async def test_every_figure_has_a_query_of_the_window_of_the_run(asked: dict[str, Any]) -> None:
    """It ends before the deletion; NaN is no data; a short run has none."""
    figures, gap = await prometheus.run_figures(URL, 100.0, 140.0)
    nothing = dict.fromkeys(prometheus.FIGURES)
    known = {name: None if "HandlerCPU" in name else 3.0 for name in nothing}
    assert (figures, gap) == (known | {"virt_requests/LIST-pods": 3.0}, 5.0)
    for name in ("node_cpu_ratio_avg", "avgVirtAPICPUUsage"):
        assert ("[40s]" in asked[name]["query"], asked[name]["time"]) == (True, "140.000")
    assert not any("$" in params["query"] for params in asked.values())
    assert await prometheus.run_figures(URL, 100.0, 109.0) == (nothing, 5.0)


EXPORTED = """container_cpu_usage_seconds_total{{pod="virt-api-1",container="virt-api"}} {cpu}
rest_client_requests_total{{pod="virt-api-1",verb="PATCH",resource="{vmis}",code="200"}} {adds}
rest_client_requests_total{{pod="virt-controller-1",verb="PATCH",resource="{vmis}"}} {adds}
container_memory_rss{{pod="virt-api-1",container="virt-api"}} 104857600
container_memory_rss{{pod="virt-api-2",container="virt-api"}} 52428800
container_memory_rss{{pod="virt-handler-1",container="virt-handler",node="a"}} 104857600
container_memory_rss{{pod="virt-handler-2",container="virt-handler",node="b"}} 104857600
node:kubevirt_vmi_phase:sum{{node="a",phase="Running"}} 10
node:kubevirt_vmi_phase:sum{{node="b",phase="Running"}} 40
kubevirt_workqueue_depth{{name="virt-controller-vmi",container="virt-controller"}} 0
kubevirt_workqueue_adds_total{{name="virt-controller-vmi",container="virt-controller"}} {adds}
kubevirt_workqueue_queue_duration_seconds_bucket{{container="virt-controller",le="0.1"}} 0
kubevirt_workqueue_queue_duration_seconds_bucket{{container="virt-controller",le="1"}} {adds}
kubevirt_workqueue_queue_duration_seconds_bucket{{container="virt-controller",le="+Inf"}} {adds}
node_cpu_seconds_total{{mode="idle",cpu="0"}} {idle}
node_cpu_seconds_total{{mode="user",cpu="0"}} {busy}
node_memory_MemAvailable_bytes 1e+09
node_memory_MemTotal_bytes 4e+09
"""


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="needs Prometheus (Debian: prometheus)"
)
async def test_a_real_prometheus_answers_the_queries(tmp_path: Path) -> None:
    """Counters grow by 0.25 CPU seconds and 40 additions a second.

    They are scraped every 2 seconds. What no pod exports has no data.
    """
    start, ending = time.monotonic(), contextlib.AsyncExitStack()

    async def exported(_: web.Request) -> web.Response:
        since = time.monotonic() - start
        text = EXPORTED.format(
            cpu=0.25 * since,
            adds=40 * since,
            idle=0.6 * since,
            busy=0.4 * since,
            vmis="virtualmachineinstances",
        )
        return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4"})

    target = await ending.enter_async_context(served(exported))
    job = {
        "job_name": "x",
        "scrape_interval": "2s",
        "static_configs": [{"targets": [target.server.removeprefix("http://")]}],
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
        figures, gap = await prometheus.run_figures(url, began, time.time())
        assert gap == pytest.approx(2.0, abs=0.1)
        want: dict[str, Any] = {
            "node_cpu_ratio_avg": pytest.approx(0.4, abs=0.02),  # of the run alone, however short
            "node_memory_ratio_max": pytest.approx(0.75),
            "avgVirtAPICPUUsage": pytest.approx(0.25, rel=0.25),
            "avgVirtAPIMemoryUsageInMB": pytest.approx(75),
            "maxVirtHandlerMemoryUsageInMB": pytest.approx(10),  # per VMI of a node
            "avgVirtHandlerMemoryUsageInMB": pytest.approx(6.25),
            "virtControllerWorkqueueAddRate": pytest.approx(40, rel=0.05),
            "virtControllerWorkqueueDepth": 0,
            "virtControllerWorkqueueP99Latency": pytest.approx(0.1 + 0.9 * 0.99),
            "avgVirtHandlerCPUUsage": None,
            "virt_requests/PATCH-virtualmachineinstances": pytest.approx(2 * 40 * 12, rel=0.2),
        }
        assert {key: figures[key] for key in want} == want
    finally:
        server.terminate()
        await server.wait()
        await ending.aclose()


USER = {"prometheusUserName": "u", "prometheusPassword": "secret"}
TOKEN_FILE = ["--prometheus-token-file", "token"]
AUDIT = ["scale", "audit", "--config", "input.json", "-o", "out"]
BASIC = "Basic dTpzZWNyZXQ="


@pytest.mark.parametrize(
    ("keys", "options", "header", "message"),
    [
        (USER, [], BASIC, "wrote out/perf-audit-results.json"),
        (
            {"prometheusBearerToken": "secret"} | USER,
            [],
            "Bearer secret",
            "wrote out/perf-audit-results.json",
        ),
        (USER, TOKEN_FILE, "Bearer secret", "wrote out/perf-audit-results.json"),
        ({}, TOKEN_FILE, "Bearer secret", "wrote out/perf-audit-results.json"),
        (USER, [], "Bearer secret", "HTTP 401.*--prometheus-token-file.*, or a user of the config"),
        (
            {"prometheusURL": "http://u:secret@127.0.0.1:9"},
            [],
            BASIC,
            r"no answer of Prometheus: .* http://u:\[redacted\]@127.0.0.1:9",
        ),
        ({}, [], "", "has no series of KubeVirt in the 5 minutes before --to"),
    ],
)
async def test_an_audit_shows_who_it_is_and_keeps_its_secret(
    keys: dict[str, str],
    options: list[str],
    header: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("token").write_text("secret\n")
    scrapes = {"metric": {"phase": "running"}, "value": [5, "1"], "values": [[0, 1], [15, 1]]}

    async def guarded(request: web.Request) -> web.Response:
        status = 200 if request.headers.get("Authorization", "") == header else 401
        result = [scrapes] if header else []
        return web.json_response({"data": {"result": result}}, status=status)

    async with served(guarded) as target:
        Path("input.json").write_text(json.dumps({"prometheusURL": target.server} | keys))
        await asyncio.to_thread(main, [*AUDIT, *options])
    texts = [*capfd.readouterr(), *(file.read_text() for file in Path().glob("out/*"))]
    assert re.search(message, "".join(texts))
    assert not any(secret in text for text in texts for secret in ("secret", BASIC))
