"""Component figures of KubeVirt: folding of series, and queries to a real Prometheus."""

import asyncio
import contextlib
import json
import math
import shutil
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from perfdag.kube.client import KubeError, Prometheus
from perfdag.steps.scale.figures import gates, prometheus

RESET = [(0.0, 100.0), (1.0, 150.0), (2.0, 10.0), (3.0, 30.0)]
GONE = [(0.0, 900.0), (1.0, 901.0)]


def span(average: float | None, least: float | None, most: float | None) -> dict[str, Any]:
    return {"_avg": average, "_min": least, "_max": most}


class TestPrometheus:
    @pytest.mark.parametrize(
        ("points", "how", "figures"),
        [
            pytest.param([RESET], "growth", {"": 80.0}, id="a counter is reset"),
            pytest.param([RESET, GONE], "growth", {"": 81.0}, id="a pod goes with no growth"),
            pytest.param([], "growth", {"": None}, id="no series"),
            pytest.param([[(0.0, math.nan)]], "range", span(None, None, None), id="no data"),
            pytest.param(
                [[(0, 1.0), (1, math.nan), (2, 3.0)]], "range", span(2.0, 1.0, 3.0), id="a gap"
            ),
        ],
    )
    def test_a_counter_reset_and_no_data(
        self, points: Any, how: Any, figures: dict[str, float | None]
    ) -> None:
        assert prometheus.fold(points, how) == figures

    def test_a_counter_that_begins_in_the_window_grows_from_nought(self) -> None:
        old, new, last = (
            [(0.0, 100.0), (5.0, 110.0), (10.0, 130.0)],
            [(5.0, 40.0), (10.0, 57.0)],
            [(10.0, 3.0)],
        )
        assert prometheus.fold([old, new, last], "growth", 0.0) == {"": 30.0 + 57.0 + 3.0}
        assert prometheus.fold([old, new], "rate", 0.0) == span(8.7, 8.7, 8.7)
        assert prometheus.fold([old, new, last], "growth", -15.0) == {"": 30.0 + 17.0}, (
            "who looks only since then knows no beginning"
        )

    async def test_every_query_has_its_figures(self, monkeypatch: pytest.MonkeyPatch) -> None:
        requests = [
            ({"verb": "LIST", "resource": "pods"}, [[0, "100"], [5, "110"], [10, "130"]]),
            ({"verb": "PATCH", "resource": "pods"}, [[10, "3"]]),
        ]
        depth: Any = [({}, [[0, "1"], [5, "3"]])]
        by_query: dict[str, Any] = {"virt_requests": requests, "workqueue_depth": depth}
        by_query |= {"avgVirtAPICPUUsage": [({}, [[10, "0.5"]])]}
        by_query |= {"avgVirtHandlerCPUUsage": [({}, [[10, "NaN"]])]}

        async def query(self: Any, queries: Any, path: str = "") -> dict[str, Any]:
            return {
                name: {
                    "result": [
                        {"metric": labels, "values": values, "value": values[-1]}
                        for labels, values in by_query.get(name, [])
                    ]
                }
                for name in queries
            }

        monkeypatch.setattr(Prometheus, "query", query)
        gaps = dict.fromkeys(prometheus.SOURCES, 5.0)
        figures = await prometheus.component_figures(Prometheus("http://x"), 0.0, 10.0, gaps)
        assert figures == dict.fromkeys(prometheus.names()) | {
            "workqueue_depth_avg": 2.0,
            "workqueue_depth_min": 1.0,
            "workqueue_depth_max": 3.0,
        }
        url = Prometheus("http://x")
        assert await prometheus.audit_figures(url, 0.0, 10.0, gaps) == dict.fromkeys(
            prometheus.KEYS
        ) | {
            "virt_requests/LIST-pods": 30.0,
            "virt_requests/PATCH-pods": 3.0,
            "avgVirtAPICPUUsage": 0.5,
        }, "and NaN is no data"
        assert await prometheus.audit_figures(url, 0.0, 9.0, gaps) == dict.fromkeys(
            prometheus.KEYS
        ), "less than two scrapes"

    async def test_a_scrape_is_not_waited_for_beyond_the_sample_s_own_time(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now, url = time.time(), Prometheus("http://x")
        data = {
            "result": [
                {"metric": {}, "values": [[now - 30, "1"], [now - 15, "1"], [now - 0.1, "1"]]}
            ]
        }

        async def query(self: Any, request: Any, path: str = "") -> dict[str, Any]:
            return dict.fromkeys(request, data)

        monkeypatch.setattr(Prometheus, "query", query)
        gaps, note = await prometheus.wait_for_scrape(url, now, time.monotonic())
        assert set(gaps) == set(prometheus.SOURCES)
        assert "came before the next scrape" in note
        assert (await prometheus.wait_for_scrape(url, now - 1.0, time.monotonic()))[1] == "", (
            "there was one"
        )

    def test_rates_are_of_the_run_alone(self) -> None:
        times = [15.0 * scrape for scrape in range(9)]
        idle_then_busy = [(at, 100.0 + max(0.0, at - 60.0) * 2) for at in times]
        assert prometheus.rates([idle_then_busy, idle_then_busy]) == [0.0, 4.0]
        assert prometheus.rates([[(0.0, 5.0), (1.0, 5.5), (2.0, 6.0)]]) == [0.5]
        assert prometheus.rates([[(0.0, 5.0)]]) == []

    def test_a_quantile_is_of_what_grew_in_the_run(self) -> None:
        """900 slow ones before the run, 100 quick ones in its first minute.

        Of 100 in its second minute, 10 take up to 2 s.
        """
        quick = [(0.0, 0.0), (60.0, 100.0), (120.0, 190.0), (180.0, 190.0)]
        every = [(0.0, 900.0), (60.0, 1000.0), (120.0, 1100.0), (180.0, 1100.0)]
        result = prometheus.p99({0.1: quick, 2.0: every, math.inf: every})
        assert [result["_min"], result["_max"]] == pytest.approx([0.099, 0.1 + 1.9 * 0.9])
        assert prometheus.p99({}) == {"_avg": None, "_min": None, "_max": None}


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
async def answering(
    body: Callable[[], bytes], header: bytes = b"", context: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """Serve a text to requests with a header, refuse others with 401; give the host and port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        known = header in await reader.readuntil(b"\r\n\r\n")
        status = b"200 OK" if known else b"401 Unauthorized"
        writer.write(b"HTTP/1.1 " + status + b"\r\nConnection: close\r\n")
        writer.write(b"Content-Type: text/plain; version=0.0.4\r\n\r\n" + body())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
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
        gaps: dict[str, float] = {}
        for _ in range(60):
            await asyncio.sleep(0.5)
            with contextlib.suppress(KubeError):
                if len(gaps := (await prometheus.wait_for_scrape(url, time.time()))[0]) == len(
                    prometheus.SOURCES
                ):
                    break
        assert gaps == dict.fromkeys(prometheus.SOURCES, pytest.approx(2.0, abs=0.1))
        began = time.time()
        await asyncio.sleep(8.0)
        more, ended = 500, time.time()
        seconds = ended - began
        gaps, _ = await prometheus.wait_for_scrape(url, ended)
        figures = await prometheus.component_figures(url, began, ended, gaps)
        want = {
            "virt_api_cpu_cores_avg": pytest.approx(0.25, rel=0.25),
            "virt_api_memory_bytes_avg": pytest.approx(2e8),
            "workqueue_depth_max": 3,
            "workqueue_p99_s_max": pytest.approx(0.1 + 0.9 * 0.99),
            "node_cpu_ratio_avg": pytest.approx(0.4, abs=0.02),  # of the run alone, however short
            "node_memory_ratio_avg": pytest.approx(0.75),
            "virt_handler_cpu_cores_avg": None,
        }
        assert {key: figures[key] for key in want} == want
        assert 40 * seconds + 500 <= (figures["workqueue_adds"] or 0) <= 40 * (seconds + 6) + 500, (
            "to the first scrape after the end"
        )
        assert (
            gates.evaluate([gates.parse_gate("virt_handler_cpu_cores_avg < 1")], figures)[0].passed
            is None
        )
        theirs = await prometheus.audit_figures(url, began, ended, gaps)
        want = {
            "avgVirtAPICPUUsage": pytest.approx(0.25, rel=0.25),
            "avgVirtAPIMemoryUsageInMB": pytest.approx(75),
            "maxVirtHandlerMemoryUsageInMB": pytest.approx(10),  # per VMI of a node
            "avgVirtHandlerMemoryUsageInMB": pytest.approx(6.25),
            "virtControllerWorkqueueDepth": 0,
            "avgVirtHandlerCPUUsage": None,
        }
        assert {key: theirs[key] for key in want} == want
        requests = theirs["virt_requests/PATCH-virtualmachineinstances"]
        assert 40 * seconds + 500 <= (requests or 0) / 2 <= 40 * (seconds + 6) + 500
        short = await prometheus.component_figures(url, ended - 3.0, ended, gaps)
        assert short == dict.fromkeys(prometheus.names()), "one scrape or two tell nothing of 3 s"
    finally:
        server.terminate()
        await server.wait()
        await ending.aclose()


async def test_no_prometheus_is_said() -> None:
    with pytest.raises(KubeError, match=r"no answer from Prometheus at http://127\.0\.0\.1:9"):
        await prometheus.component_figures(
            Prometheus("http://127.0.0.1:9"), 0.0, 60.0, {"virt": 15.0}
        )


async def test_a_token_is_sent_and_a_refusal_names_its_option(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    async with answering(lambda: NOTHING, b"Authorization: Bearer secret\r\n") as address:
        await Prometheus(f"http://{address}", str(tmp_path / "token")).probe()
        with pytest.raises(KubeError, match=r"answers 401.*--prometheus-token-file"):
            await Prometheus(f"http://{address}").probe()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
async def test_its_certificate_is_checked_against_the_authority_that_is_given(
    tmp_path: Path,
) -> None:
    for name in ("own", "other"):
        files = ["-keyout", str(tmp_path / f"{name}.key"), "-out", str(tmp_path / f"{name}.crt")]
        options = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1"
        argv = ["openssl", *options.split(), *files]
        process = await asyncio.create_subprocess_exec(
            *argv, "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", stderr=-3
        )
        assert await process.wait() == 0

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "own.crt", tmp_path / "own.key")
    async with answering(lambda: NOTHING, context=context) as address:
        url = f"https://{address}"
        await Prometheus(url, ca_file=str(tmp_path / "own.crt")).probe()
        for wrong in (str(tmp_path / "other.crt"), None):
            with pytest.raises(KubeError, match=r"no answer from Prometheus.*certificate"):
                await Prometheus(url, ca_file=wrong).probe()
        with pytest.raises(KubeError, match="No such file"):
            await Prometheus(url, ca_file=str(tmp_path / "absent")).probe()
