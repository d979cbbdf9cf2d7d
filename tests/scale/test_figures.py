"""Figures of a run: gates, API metrics, Prometheus, capacity; the dashboard and the charts that show them."""

import asyncio
import contextlib
import math
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from perfdag.kube import KubeError
from perfdag.steps.scale import apimetrics, gates, prometheus, vmi


class TestGates:
    def test_a_ratio_trips_the_right_way(self) -> None:
        gate = gates.parse("PATCH-vmis-count <= 2 * CREATE-pods-count")
        assert gates.hold([gate], {"PATCH-vmis-count": 150, "CREATE-pods-count": 100})[0].passed
        assert gates.hold([gate], {"PATCH-vmis-count": 250, "CREATE-pods-count": 100})[0].passed is False

    @pytest.mark.parametrize("figures", [{}, {"api_p99": None}, {"api_p99": math.nan}])
    def test_no_data_is_a_breach_that_names_the_metric(self, figures: dict[str, float | None]) -> None:
        (verdict,) = gates.hold([gates.parse("api_p99 < 1")], figures)
        assert verdict.passed is None
        assert gates.breaches([verdict]) == [verdict]
        assert "no data for api_p99" in str(verdict)

    @pytest.mark.parametrize("text", ["api_p99", "api_p99 = 1", "api_p99 < x", "< 1", "a < 1 * "])
    def test_a_bad_gate_is_refused_with_the_form(self, text: str) -> None:
        with pytest.raises(ValueError, match="write METRIC < VALUE"):
            gates.parse(text)


def scrape_of(*lines: str) -> apimetrics.Scrape:
    found: apimetrics.Scrape = {}
    for line in lines:
        apimetrics.add(found, line.encode())
    return found


def histogram(verb: str, scope: str, *buckets: tuple[str, int]) -> list[str]:
    labels = f'component="apiserver",dry_run="",group="",resource="pods",scope="{scope}",subresource="",verb="{verb}",version="v1"'
    return [f'apiserver_request_duration_seconds_bucket{{{labels},le="{le}"}} {count}' for le, count in buckets]


class TestApiMetrics:
    def test_counts_and_p99_of_the_difference(self) -> None:
        before = scrape_of(*histogram("POST", "resource", ("0.1", 1000), ("1", 1000), ("+Inf", 1000)))
        after = scrape_of(*histogram("POST", "resource", ("0.1", 1090), ("1", 1100), ("+Inf", 1100)))
        (calls,) = apimetrics.delta(before, after)
        assert (calls.verb, calls.count) == ("POST", 100)
        assert calls.p99 == pytest.approx(0.1 + 0.9 * 0.9)
        assert (calls.low, calls.high) == (0.1, 1.0)
        assert apimetrics.counts([calls]) == {"POST-pods-count": 100}

    def test_a_restarted_server_counts_from_nothing(self) -> None:
        before = scrape_of(*histogram("POST", "resource", ("1", 500), ("+Inf", 500)))
        after = scrape_of(*histogram("POST", "resource", ("1", 20), ("+Inf", 20)))
        assert apimetrics.delta(before, after)[0].count == 20

    def test_watches_are_left_out_and_lists_are_their_own(self) -> None:
        watch, listing = histogram("WATCH", "cluster", ("+Inf", 9)), histogram("LIST", "cluster", ("1", 0), ("+Inf", 5))
        calls = apimetrics.delta({}, scrape_of(*watch, *listing, "go_goroutines 5"))
        assert [each.verb for each in calls] == ["LIST"]
        assert calls[0].slo == 30.0
        assert apimetrics.worst(calls) is None
        assert apimetrics.worst(calls, lists=True) is calls[0]


class TestPrometheus:
    def test_a_counter_reset_and_no_data(self) -> None:
        points = [(0.0, 100.0), (1.0, 150.0), (2.0, 10.0), (3.0, 30.0)]
        assert prometheus.fold([points], "growth") == {"": 80.0}
        gone = [(0.0, 900.0), (1.0, 901.0)]
        assert prometheus.fold([points, gone], "growth") == {"": 81.0}, "a pod that goes takes no growth with it"
        assert prometheus.fold([[(0.0, math.nan)]], "range") == {"_avg": None, "_min": None, "_max": None}
        assert prometheus.fold([], "growth") == {"": None}
        assert prometheus.fold([[(0, 1.0), (1, math.nan), (2, 3.0)]], "range") == {"_avg": 2.0, "_min": 1.0, "_max": 3.0}

    def test_rates_are_of_the_run_alone(self) -> None:
        idle_then_busy = [(t, 100.0 + max(0.0, t - 60.0) * 2) for t in range(0, 121, 15)]
        assert prometheus.rates([idle_then_busy, idle_then_busy]) == [0.0, 4.0]
        assert prometheus.rates([[(0.0, 5.0), (1.0, 5.5), (2.0, 6.0)]]) == [0.5]
        assert prometheus.rates([[(0.0, 5.0)]]) == []

    def test_histograms_are_summed_before_the_quantile(self) -> None:
        assert "sum by (le)" in prometheus.queries()["workqueue_p99_s"][0]
        assert "rate(kubevirt_workqueue_depth" not in prometheus.queries()["workqueue_depth"][0]


class TestDashboard:
    def test_quantiles_are_of_sums_and_panels_do_not_overlap(self) -> None:
        file = Path(__file__).parents[2] / "deploy" / "grafana" / "kubevirt.json"
        board = orjson.loads(file.read_bytes())
        expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
        assert all("sum by (le" in each for each in expressions if "histogram_quantile" in each)
        assert not [each for each in expressions if "rate(kubevirt_workqueue_depth" in each]
        places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]}
        assert len(places) == len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
        for word in ("phase_transition_time_from_creation", "apiserver_request_duration", "container_cpu_usage", "workqueue_depth"):
            assert any(word in each for each in expressions), word


class TestCharts:
    def test_each_draws_and_counts_what_never_came(self) -> None:
        from perfdag.charts import scale as charts
        from perfdag.charts.style import to_bytes

        rows = [
            {"stage": stage, "since": "created", "index": i, "seconds": i / 10, "submitted": 1.0 + i}
            | {"status": "ok" if i % 10 else "censored", "receive_time": 2.0 + i, "event_time": None, "api_time": None}
            for stage in ("scheduled", "running")
            for i in range(60)
        ]
        stages = charts.stages_of(rows)
        assert [(each.name, len(each.seconds), each.missing) for each in stages] == [("scheduled", 54, 6), ("running", 54, 6)]
        calls = {100: {"PATCH vmi": 700.0}, 400: {"PATCH vmi": 2900.0, "POST pods": 400.0}}
        figures = [charts.timeline(stages), charts.s_curves(stages), charts.ecdf(stages), charts.by_order(stages), charts.api_calls(calls)]
        for figure in figures:
            assert len(to_bytes(figure)[1]) > 5000
        assert "7.25 x PATCH vmi" in figures[-1].texts[0].get_text()

    def test_an_unseen_delta_is_not_drawn_as_nought(self) -> None:
        from perfdag.charts import scale as charts

        deltas = [(f"2026-01-01T00:00:{i:02}Z", {"Total Pod Scheduling Decision": None if i < 3 else 2.0}) for i in range(10)]
        figure = charts.general(deltas)
        (line,) = figure.axes[0].get_lines()
        assert len(line.get_ydata()) == 7
        assert "3 unseen" in figure.axes[0].get_title(loc="left")


class TestCapacity:
    @pytest.mark.parametrize(("step", "found", "tried"), [(100, 700, 8), (150, 600, 5), (50, 700, 15)])
    async def test_a_knee_is_found_within_a_step(self, step: int, found: int, tried: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Up to 700 VMIs run in 8 s, beyond it in 90: the gate says which is too long."""
        gate = gates.parse("creation_to_running_p95 < 60")

        async def burst(kube: Any, spec: vmi.Spec, count: int) -> vmi.Result:
            figures = {"creation_to_running_p95": 8.0 if count <= 700 else 90.0, "left_behind": 0.0, "success_ratio": 1.0}
            return vmi.Result("burst", count, "r", [], [], figures, {}, gates.hold([gate], figures))

        monkeypatch.setattr(vmi, "burst", burst)
        passed, results = await vmi.capacity(None, vmi.Spec(), step, 2000)  # type: ignore[arg-type]
        assert passed == found
        assert 0 <= 700 - passed < step
        assert [each.count for each in results] == [step * (i + 1) for i in range(tried)]

    async def test_no_knee_ends_at_the_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def burst(kube: Any, spec: vmi.Spec, count: int) -> vmi.Result:
            return vmi.Result("burst", count, "r", [], [], {"left_behind": 0.0, "success_ratio": 1.0}, {})

        monkeypatch.setattr(vmi, "burst", burst)
        assert (await vmi.capacity(None, vmi.Spec(), 100, 450))[0] == 400  # type: ignore[arg-type]


EXPORTED = """container_cpu_usage_seconds_total{{pod="virt-api-1",container="virt-api"}} {cpu}
container_memory_working_set_bytes{{pod="virt-api-1",container="virt-api"}} 1.5e+08
container_memory_working_set_bytes{{pod="virt-api-2",container="virt-api"}} 0.5e+08
kubevirt_workqueue_adds_total{{name="virt-controller-vmi"}} {adds}
kubevirt_workqueue_depth{{name="virt-controller-vmi"}} 3
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Prometheus (Debian: prometheus)")
async def test_a_real_prometheus_answers_the_queries(tmp_path: Path) -> None:
    """A counter of 0.25 CPU seconds a second and 40 additions a second, scraped each second; what no pod exports has no data."""
    start = time.monotonic()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        since = time.monotonic() - start
        body = EXPORTED.format(cpu=0.25 * since, adds=40 * since).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    exporter = await asyncio.start_server(serve, "127.0.0.1", 0)
    target = f"127.0.0.1:{exporter.sockets[0].getsockname()[1]}"
    scrapes = f"scrape_configs: [{{job_name: x, scrape_interval: 1s, static_configs: [{{targets: ['{target}']}}]}}]\n"
    (tmp_path / "p.yml").write_text(scrapes)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    said = (tmp_path / "log").open("wb")
    argv = ["prometheus", f"--config.file={tmp_path / 'p.yml'}", f"--storage.tsdb.path={tmp_path / 'db'}"]
    server = await asyncio.create_subprocess_exec(*argv, f"--web.listen-address=127.0.0.1:{port}", stdout=said, stderr=said)
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(60):
            await asyncio.sleep(0.5)
            with contextlib.suppress(KubeError):
                if (await prometheus.component_figures(url, time.time() - 5, time.time()))["virt_api_memory_bytes_avg"]:
                    break
        began = time.time()
        await asyncio.sleep(8.0)
        found = await prometheus.component_figures(url, began, time.time())
        assert found["virt_api_cpu_cores_avg"] == pytest.approx(0.25, rel=0.25)
        assert found["virt_api_memory_bytes_avg"] == pytest.approx(2e8)
        assert found["workqueue_depth_max"] == 3
        seconds = time.time() - began
        assert found["workqueue_adds"] == pytest.approx(40 * seconds, abs=100), "the increase of a short run, good to a scrape at each end"
        assert found["virt_handler_cpu_cores_avg"] is None
        assert gates.hold([gates.parse("virt_handler_cpu_cores_avg < 1")], found)[0].passed is None
    finally:
        server.terminate()
        await server.wait()
        exporter.close()
        said.close()


async def test_no_prometheus_is_said() -> None:
    with pytest.raises(KubeError, match=r"no answer from Prometheus at http://127\.0\.0\.1:9"):
        await prometheus.component_figures("http://127.0.0.1:9", 0.0, 60.0)
