"""Figures of a run: gates, API metrics, Prometheus, capacity; the dashboard and the charts that show them."""

import asyncio
import contextlib
import math
import shutil
import socket
import ssl
import time
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pyarrow as pa
import pytest

from perfdag.benchmark import Invalid, Output, get
from perfdag.gate import own_gates
from perfdag.kube import KubeError
from perfdag.kubeconfig import Cluster, Credentials
from perfdag.steps.scale import apimetrics, apiservers, gates, kubevirt, measured, prometheus, run_vmi, sizes, table, vmi
from perfdag.steps.scale.clock import Offset
from perfdag.steps.scale.generator import Submission, Submitted
from perfdag.steps.scale.observer import Record
from perfdag.steps.scale.rows import Row
from perfdag.steps.scale.schedule import Schedule
from perfdag.steps.scale.session import Session
from perfdag.steps.scale.templates import load
from perfdag.steps.vmi_burst import parse_results


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

    def test_too_few_requests_for_a_p99_show_a_limit_kept_and_never_one_broken(self) -> None:
        few = {"api_p99": None, "api_slowest": 0.5}
        kept, unknown = gates.hold([gates.parse("api_p99 < 1"), gates.parse("api_p99 < 0.1")], few)
        assert (kept.passed, kept.value) == (True, 0.5)
        assert unknown.passed is None
        broken = gates.hold([gates.parse("api_p99 < 1")], {"api_p99": 2.0, "api_slowest": 0.5})
        assert broken[0].passed is False, "the percentile itself goes first"

    def test_the_limits_of_the_api_stand_beside_gates_of_your_own(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """In a suite as on the command line; one on the same metric takes a limit's place, and both can be left out."""
        from perfdag.cli import main, scale_verbs

        asked: list[list[str]] = []

        async def measure(kube: Any, spec: vmi.Spec, ask: Any) -> run_vmi.Outcome:
            asked.append([str(each) for each in spec.gates])
            return run_vmi.Outcome([])

        monkeypatch.setattr(run_vmi, "measure", measure)
        monkeypatch.setattr(scale_verbs, "_on_cluster", lambda args, work, _: asyncio.run(work(None)))
        both = ["api_p99 < 1", "api_list_p99 < 30"]
        for given, api, want in (
            (["creation_to_running_p95 < 60"], True, [*both, "creation_to_running_p95 < 60"]),
            (["api_p99 < 2"], True, ["api_list_p99 < 30", "api_p99 < 2"]),
            (["api_p99 < 2"], False, ["api_p99 < 2"]),
            ([], True, both),
        ):
            params: Any = get("vmi-burst").Params.model_validate({"gates": given, "api_gates": api})
            assert [str(each) for each in params.spec().gates] == want
            words = [word for text in given for word in ("--gate", text)] + ([] if api else ["--no-api-gates"])
            assert main(["scale", "vmi", "burst", "-o", str(tmp_path), *words]) == 0
            assert asked[-1] == want

    def test_few_lists_or_none_show_their_limit_kept(self) -> None:
        slow = apimetrics.delta(apimetrics.Scrape(), scrape_of(*histogram("LIST", "cluster", ("20", 9), ("60", 10), ("+Inf", 10))))
        none = apimetrics.delta(apimetrics.Scrape(), scrape_of(*histogram("POST", "resource", ("1", 9), ("+Inf", 9))))
        assert gates.hold(gates.SLO[1:], apimetrics.latencies(none))[0].passed
        assert [each.passed for each in gates.hold(gates.SLO, apimetrics.latencies([]))] == [None, None], "no metrics at all are no data"
        (verdict,) = gates.hold(gates.SLO[1:], apimetrics.latencies(slow))
        assert verdict.passed is None, "one of ten took longer than 20 s: that may be too long, or not"

    @pytest.mark.parametrize("text", ["api_p99", "api_p99 = 1", "api_p99 < x", "< 1", "a < 1 * "])
    def test_a_bad_gate_is_refused_with_the_form(self, text: str) -> None:
        with pytest.raises(ValueError, match="write METRIC < VALUE"):
            gates.parse(text)


def scrape_of(*lines: str) -> apimetrics.Scrape:
    found = apimetrics.Scrape()
    for line in lines:
        apimetrics.add(found, line.encode())
    return found


def histogram(verb: str, scope: str, *buckets: tuple[str, int]) -> list[str]:
    return series("pods", "", verb, scope, *buckets)


def series(resource: str, subresource: str, verb: str, scope: str, *buckets: tuple[str, int]) -> list[str]:
    of = f'resource="{resource}",scope="{scope}",subresource="{subresource}"'
    labels = f'component="apiserver",dry_run="",group="",{of},verb="{verb}",version="v1"'
    return [f'apiserver_request_duration_seconds_bucket{{{labels},le="{le}"}} {count}' for le, count in buckets]


class TestApiMetrics:
    def test_counts_and_p99_of_the_difference(self) -> None:
        before = scrape_of(*histogram("POST", "resource", ("0.1", 1000), ("1", 1000), ("+Inf", 1000)))
        after = scrape_of(*histogram("POST", "resource", ("0.1", 1090), ("1", 1100), ("+Inf", 1100)))
        (calls,) = apimetrics.delta(before, after)
        assert (calls.verb, calls.count) == ("POST", 100)
        assert calls.p99 == pytest.approx(0.1 + 0.9 * 0.9)
        assert (calls.low, calls.high) == (0.1, 1.0)
        assert apimetrics.counts([calls]) == {"POST-pods-count": 100, "CREATE-pods-count": 100}

    @pytest.mark.parametrize(("starts", "same"), [((7.0, 7.0), True), ((7.0, 8.0), False)])
    async def test_another_api_server_or_a_restarted_one_has_no_difference(self, starts: tuple[float, ...], same: bool) -> None:
        """Behind a load balancer that nothing tells of each scrape may be of another server: one's share is not what all were asked."""
        answers = iter(starts)

        class Balanced:
            async def lines(self, *_: Any) -> Any:
                yield b"process_start_time_seconds %f" % next(answers), 0

        server: Any = Balanced()
        before = [await apimetrics.scrape([server])]
        session = Session(server, "r", None, [], None, None, None, None, before, None, [server])  # type: ignore[arg-type]
        await session.scrape("creation")
        assert ("creation" in session.phases) == same
        assert bool(session.scrapes) == same
        assert bool(session.notes) != same

    def test_a_p99_wants_its_requests_and_rare_kinds_are_taken_together(self) -> None:
        rare = [histogram(verb, "resource", ("0.1", 0), ("1", 200), ("+Inf", 200)) for verb in ("POST", "GET", "PUT")]
        few = apimetrics.delta(apimetrics.Scrape(), scrape_of(*rare[0], *rare[1]))
        assert apimetrics.worst(few) is None, "400 are too few for a p99"
        assert apimetrics.slowest(few) == 1.0
        assert few[0].p99, "it is told beside its count all the same"
        enough = apimetrics.delta(apimetrics.Scrape(), scrape_of(*rare[0], *rare[1], *rare[2]))
        assert apimetrics.worst(enough) == pytest.approx(0.1 + 0.9 * 0.99)

    def test_a_real_scrape_gives_the_ratio_that_the_documentation_gates(self) -> None:
        """Two scrapes of an API server around 30 pods created and patched twice each (tests/recorded/apiserver)."""
        folder = Path(__file__).parents[1] / "recorded" / "apiserver"
        before, after = (scrape_of(*(folder / f"{name}.txt").read_text().splitlines()) for name in ("before", "after"))
        assert before.started == after.started
        figures = {name: float(value) for name, value in apimetrics.counts(apimetrics.delta(before, after)).items()}
        assert (figures["CREATE-pods-count"], figures["PATCH-pods-count"]) == (30, 60)
        held = gates.hold([gates.parse(f"PATCH-pods-count <= {ratio} * CREATE-pods-count") for ratio in (2, 1.9)], figures)
        assert [each.passed for each in held] == [True, False]

    def test_what_is_done_to_a_pod_s_subresource_creates_no_pod(self) -> None:
        """Each pod is created once and bound once; a server-side apply is a PATCH."""
        lines = [
            series("pods", sub, verb, "resource", ("+Inf", 30)) for verb, sub in (("POST", ""), ("POST", "binding"), ("APPLY", "status"))
        ]
        found = apimetrics.counts(apimetrics.delta(apimetrics.Scrape(), scrape_of(*chain.from_iterable(lines))))
        assert found == {
            **{f"{verb}-pods-count": 30 for verb in ("POST", "CREATE")},
            **{f"{verb}-pods/binding-count": 30 for verb in ("POST", "CREATE")},
            "PATCH-pods/status-count": 30,
        }
        assert gates.parse("CREATE-pods/binding-count <= 1 * CREATE-pods-count").metric in found

    def test_probes_of_the_api_server_are_no_requests_of_objects(self) -> None:
        """100 slow creations of a kind, which alone are too few for a p99, beside 600 quick answers to /readyz."""
        slow = [
            series(kind, "", "POST", "resource", ("0.1", 0), ("2", 100), ("+Inf", 100))
            for kind in ("pods", "events", "leases", "jobs", "nodes")
        ]
        probes = [
            'apiserver_request_duration_seconds_bucket{component="",dry_run="",group="",resource="",scope="",'
            f'subresource="{path}",verb="GET",version="",le="{bound}"}} 600'
            for path in ("/readyz", "/livez")
            for bound in ("0.005", "0.1", "2", "+Inf")
        ]
        calls = apimetrics.delta(apimetrics.Scrape(), scrape_of(*chain.from_iterable(slow), *probes))
        assert (apimetrics.worst(calls) or 0) > 1.8
        assert len(calls) == 5

    def test_a_gate_sees_the_worse_of_creation_and_deletion(self) -> None:
        """600 quick creations; then 600 slow deletions, or 20, which are too few for a p99 of their own, or unknown ones."""
        quick = scrape_of(*histogram("POST", "resource", ("0.1", 600), ("2", 600), ("+Inf", 600)))

        def seen(deletions: int) -> tuple[dict[str, float | None], apimetrics.Phases]:
            slow = histogram("DELETE", "resource", ("0.1", 0), ("2", deletions), ("+Inf", deletions))
            after = scrape_of(*histogram("POST", "resource", ("0.1", 600), ("2", 600), ("+Inf", 600)), *slow)
            phases = {"creation": apimetrics.delta(apimetrics.Scrape(), quick), "deletion": apimetrics.delta(quick, after)}
            return apimetrics.judged(phases, apimetrics.delta(apimetrics.Scrape(), after)), phases

        gate = gates.parse("api_p99 < 1")
        for deletions, held in ((600, False), (20, True)):
            judged, phases = seen(deletions)
            figures = apimetrics.named(phases["creation"]) | apimetrics.of_deletion(phases)
            assert (figures["api_p99"] or 9) < 0.1, "the creation's figure is its own"
            assert figures["deletion/DELETE-pods-count"] == deletions
            assert "DELETE-pods-count" not in figures
            assert gates.hold([gate], figures | judged)[0].passed is held
        assert gates.hold([gate], figures | apimetrics.judged({"creation": phases["creation"]}, []))[0].passed is None

    @pytest.mark.parametrize(("slow", "held"), [(0, True), (1, None)])
    def test_a_request_beyond_the_last_bound_keeps_a_gate_from_passing(self, slow: int, held: bool | None) -> None:
        """20 quick creations and 20 deletions: too few for a p99, so no request may have taken longer than the limit."""
        quick = histogram("POST", "resource", ("0.1", 20), ("60", 20), ("+Inf", 20))
        after = scrape_of(*quick, *histogram("DELETE", "resource", ("0.1", 20 - slow), ("60", 20 - slow), ("+Inf", 20)))
        none, middle = apimetrics.Scrape(), scrape_of(*quick)
        phases = {"creation": apimetrics.delta(none, middle), "deletion": apimetrics.delta(middle, after)}
        figures = apimetrics.named(phases["creation"]) | apimetrics.judged(phases, apimetrics.delta(none, after))
        assert gates.hold([gates.parse("api_p99 < 1")], figures)[0].passed is held

    def test_rows_of_the_deletion_have_coordinates_of_their_own(self) -> None:
        calls = apimetrics.delta(apimetrics.Scrape(), scrape_of(*histogram("DELETE", "resource", ("0.1", 600), ("+Inf", 600))))
        phases = {"creation": calls, "deletion": calls}
        figures = apimetrics.named(calls) | apimetrics.of_deletion(phases)
        made = [*measured.of_figures(figures, {"count": 6}, 6), *measured.of_calls(apimetrics.told(phases), {"count": 6})]
        for metric in ("api_p99", "api_calls", "api_latency"):
            assert sorted((each.coords or {}).get("phase", "") for each in made if each.metric == metric) == ["", "deletion"]
        from perfdag.charts.stages import calls_of

        rows = [
            {"entry": "e", "metric": each.metric, "coords": orjson.dumps(each.coords).decode(), "value": each.value}
            for each in made
            if each.metric == "api_calls"
        ]
        assert calls_of(pa.Table.from_pylist(rows)) == {("e", "vms"): {6: {"DELETE-pods": 600.0, "deletion: DELETE-pods": 600.0}}}

    def test_watches_are_left_out_and_lists_are_their_own(self) -> None:
        watch, listing = histogram("WATCH", "cluster", ("+Inf", 9)), histogram("LIST", "cluster", ("1", 0), ("+Inf", 5))
        emptied = histogram("DELETECOLLECTION", "namespace", ("1", 0), ("10", 4), ("+Inf", 4))
        calls = apimetrics.delta(apimetrics.Scrape(), scrape_of(*watch, *listing, *emptied, "go_goroutines 5"))
        assert [each.verb for each in calls] == ["LIST", "DELETECOLLECTION"]
        assert [each.slo for each in calls] == [30.0, 30.0]
        assert apimetrics.worst(calls, least=1) is None
        assert apimetrics.worst(calls, "LIST", least=1) == 1.0, "beyond its last bucket: its lower bound"
        assert apimetrics.worst(calls, "DELETECOLLECTION", least=1) == pytest.approx(1 + 9 * 0.99)


class Control:
    """A control plane with API servers at these addresses, of which some renew a Lease, and one may be out of reach."""

    def __init__(self, hosts: list[str], renewed: list[str], port: int = 0) -> None:
        self.cluster = Cluster("http://127.0.0.1:9", "x", "default", Credentials(), "test")
        slices = [{"ports": [{"port": port}], "endpoints": [{"addresses": [host]} for host in hosts]}] if hosts else []
        self.lists = {"EndpointSlice": slices, "Lease": [{"spec": {"renewTime": f"2026-01-01T00:{at}Z"}} for at in renewed]}

    async def resource(self, api_version: str, kind: str) -> str:
        if not self.lists[kind]:
            raise KubeError(403, "Forbidden", "no")
        return kind

    async def list(self, kind: str, namespace: str, *, labels: str) -> Any:
        return self.lists[kind]


class TestApiServers:
    @pytest.mark.parametrize(
        ("hosts", "renewed"),
        [([], []), (["10.0.0.1"], ["00:01"]), (["10.0.0.1"], ["30:00", "00:01"])],
        ids=["nothing tells", "one", "one that was replaced"],
    )
    async def test_the_only_one_is_asked_as_ever(self, hosts: list[str], renewed: list[str]) -> None:
        control: Any = Control(hosts, renewed)
        async with apiservers.each_of(control) as servers:
            assert servers == [control]

    async def test_several_are_asked_each_at_its_own_address_and_added_up(self) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked = (await reader.readuntil(b"\r\n\r\n")).split()[1]
            host = writer.get_extra_info("sockname")[0]
            text = "\n".join([f"process_start_time_seconds {host[-1]}", *histogram("POST", "resource", ("+Inf", int(host[-1])))])
            body = b"{}" if asked == b"/version" else text.encode() + b"\n"
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
            writer.close()

        with socket.create_server(("127.0.0.2", 0)) as free:
            port = free.getsockname()[1]
        server = await asyncio.start_server(serve, ["127.0.0.2", "127.0.0.3"], port)
        try:
            async with apiservers.each_of(Control(["127.0.0.2", "127.0.0.3"], [], port)) as servers:  # type: ignore[arg-type]
                found = await apimetrics.scrape(servers)
        finally:
            server.close()
        assert found.started == [2.0, 3.0]
        assert apimetrics.counts(apimetrics.delta(apimetrics.Scrape(), found))["POST-pods-count"] == 5

    @pytest.mark.parametrize(
        ("hosts", "renewed", "told"),
        [
            (["127.0.0.1", "127.0.0.2"], [], r"there are 2 API servers, and 127\.0\.0\.1:9 cannot be asked"),
            (["10.0.0.1"], ["00:01", "00:09"], "2 API servers answer behind 1 address"),
        ],
    )
    async def test_where_not_all_can_be_asked_there_is_no_data(self, hosts: list[str], renewed: list[str], told: str) -> None:
        with pytest.raises(KubeError, match=told):
            async with apiservers.each_of(Control(hosts, renewed, 9)):  # type: ignore[arg-type]
                pass


class TestOwnGates:
    def test_a_breach_in_the_rows_fails_the_gate_with_no_rule_for_it(self) -> None:
        rows = [("daily", {"count": 100, "gate": "api_p99 < 1"}, 0.0), ("daily", {"count": 400, "gate": "api_p99 < 1"}, 1.0)]
        columns = [
            {"metric": "gates_failed", "entry": entry, "coords": orjson.dumps(coords).decode(), "value": value}
            for entry, coords, value in rows
        ]
        columns.append({"metric": "api_p99", "entry": "daily", "coords": None, "value": 7.0})
        cases = own_gates(pa.Table.from_pylist(columns))
        assert [(each.name, each.state) for each in cases] == [
            ("daily count=100: api_p99 < 1", "ok"),
            ("daily count=400: api_p99 < 1", "failed"),
        ]


class TestMessages:
    def test_one_row_a_distinct_message_without_names(self) -> None:
        def row(i: int, status: str, error: str | None) -> Row:
            return Row("r", i, f"r-{i}", "ns", "Pod", "", "ready", "created", status, 1.0, error=error)  # type: ignore[arg-type]

        refused = [row(i, "failed", f'pods "r-{i}" is forbidden: exceeded quota: q, used: pods=9') for i in range(3)]
        stuck = [row(i, "censored", f"FailedMount: volume of virt-launcher-r-{i}-x7k2p is not there") for i in range(3, 5)]
        fine = [row(9, "ok", "Unschedulable: for a moment")]
        assert measured.messages([*refused, *stuck, *fine]) == {
            'pods "NAME" is forbidden: exceeded quota: q, used: pods=9': 3,
            "FailedMount: volume of NAME is not there": 2,
        }
        made = measured.of_messages([*refused, *stuck], {"count": 5})
        assert [(each.metric, each.value) for each in made] == [("failures", 3.0), ("failures", 2.0)]
        assert made[1].coords == {"count": 5, "message": "FailedMount: volume of NAME is not there"}


class TestPrometheus:
    def test_a_counter_reset_and_no_data(self) -> None:
        points = [(0.0, 100.0), (1.0, 150.0), (2.0, 10.0), (3.0, 30.0)]
        assert prometheus.fold([points], "growth") == {"": 80.0}
        gone = [(0.0, 900.0), (1.0, 901.0)]
        assert prometheus.fold([points, gone], "growth") == {"": 81.0}, "a pod that goes takes no growth with it"
        assert prometheus.fold([[(0.0, math.nan)]], "range") == {"_avg": None, "_min": None, "_max": None}
        assert prometheus.fold([], "growth") == {"": None}
        assert prometheus.fold([[(0, 1.0), (1, math.nan), (2, 3.0)]], "range") == {"_avg": 2.0, "_min": 1.0, "_max": 3.0}

    def test_a_counter_that_begins_in_the_window_grows_from_nought(self) -> None:
        old, new, last = [(0.0, 100.0), (5.0, 110.0), (10.0, 130.0)], [(5.0, 40.0), (10.0, 57.0)], [(10.0, 3.0)]
        assert prometheus.fold([old, new, last], "growth", 0.0) == {"": 30.0 + 57.0 + 3.0}
        assert prometheus.fold([old, new], "rate", 0.0) == {"_avg": 8.7, "_min": 8.7, "_max": 8.7}
        assert prometheus.fold([old, new, last], "growth", -15.0) == {"": 30.0 + 17.0}, "who looks only since then knows no beginning"
        metrics = [{"verb": "LIST", "resource": "pods"}, {"verb": "PATCH", "resource": "pods"}]
        assert prometheus._requests(metrics, [old, last], 0.0) == {"/LIST-pods": 30.0, "/PATCH-pods": 3.0}

    async def test_a_scrape_is_not_waited_for_beyond_the_sample_s_own_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now, url = time.time(), prometheus.Prometheus("http://x")
        data = {"result": [{"metric": {}, "values": [[now - 30, "1"], [now - 15, "1"], [now - 0.1, "1"]]}]}

        async def ask(self: Any, asked: Any, path: str = "") -> dict[str, Any]:
            return dict.fromkeys(asked, data)

        monkeypatch.setattr(prometheus.Prometheus, "ask", ask)
        gaps, note = await prometheus.scraped(url, now, time.monotonic())
        assert set(gaps) == set(prometheus.SOURCES)
        assert "was not waited for, at the sample's own time limit" in note
        assert (await prometheus.scraped(url, now - 1.0, time.monotonic()))[1] == "", "there was one"

    def test_rates_are_of_the_run_alone(self) -> None:
        idle_then_busy = [(t, 100.0 + max(0.0, t - 60.0) * 2) for t in range(0, 121, 15)]
        assert prometheus.rates([idle_then_busy, idle_then_busy]) == [0.0, 4.0]
        assert prometheus.rates([[(0.0, 5.0), (1.0, 5.5), (2.0, 6.0)]]) == [0.5]
        assert prometheus.rates([[(0.0, 5.0)]]) == []

    def test_histograms_are_summed_before_the_quantile(self) -> None:
        assert "sum by (le)" in prometheus.queries()["workqueue_p99_s"][0]

    def test_a_quantile_is_of_what_grew_in_the_run(self) -> None:
        """900 slow ones before it; in its first minute 100 quick ones, in its second 100 of which 10 take up to 2 s, then none."""
        quick = [(0.0, 0.0), (60.0, 100.0), (120.0, 190.0), (180.0, 190.0)]
        every = [(0.0, 900.0), (60.0, 1000.0), (120.0, 1100.0), (180.0, 1100.0)]
        found = prometheus.p99({0.1: quick, 2.0: every, math.inf: every})
        assert (found["_min"], found["_max"]) == (pytest.approx(0.099), pytest.approx(0.1 + 1.9 * 0.9))
        assert prometheus.p99({}) == {"_avg": None, "_min": None, "_max": None}

    def test_the_depth_of_a_queue_is_no_counter(self) -> None:
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
        from perfdag.charts.stages import stages_of
        from perfdag.charts.style import to_bytes

        rows = [
            {"stage": stage, "since": "created", "index": i, "seconds": i / 10, "submitted": 1.0 + i}
            | {"status": "ok" if i % 10 else "censored", "reached": 2.0 + i}
            for stage in ("scheduled", "running")
            for i in range(60)
        ]
        stages = stages_of(rows)
        assert [(each.name, len(each.seconds), each.missing) for each in stages] == [("scheduled", 54, 6), ("running", 54, 6)]
        calls = {100: {"PATCH vmi": 700.0}, 400: {"PATCH vmi": 2900.0, "POST pods": 400.0}}
        one_size = charts.api_calls({20: {"PATCH vmi": 80.0, "POST pods": 20.0, "GET pods": 20.0}})
        assert [bar.get_width() for bar in one_size.axes[0].patches] == [80.0, 20.0, 20.0], "equal numbers do not hide each other"
        figures = [charts.timeline(stages), charts.s_curves(stages), charts.ecdf(stages), charts.by_order(stages), charts.api_calls(calls)]
        for figure in figures:
            assert len(to_bytes(figure)[1]) > 5000
        assert "7.25 x PATCH vmi for each VM at 400 VMs" in figures[-1].texts[0].get_text()
        assert "for each object at 400 objects" in charts.api_calls(calls, "objects").texts[0].get_text()

    def table(self, *entries: tuple[str, int, str], tool: str = "perfdag") -> pa.Table:
        """Rows of a result: of each (entry, count, sample) `count` objects, of which the last never ran, and one kind of API call."""
        rows = []
        for entry, count, sample in entries:
            named = {"run_id": sample, "variant": None, "point": entry, "repetition": 1, "phase": "measure"}
            shared = {"entry": entry, **named, "tool": tool, "status": "ok", "stat": "value"}
            for i in range(count):
                coords = orjson.dumps({"count": count, "stage": "running", "since": "created"}).decode()
                for metric, value in (
                    (("object_latency", 1.0 + i), ("object_time", 2.0 + i)) if i < count - 1 else (("object_missing", 99.0),)
                ):
                    one = {"subject": f"0101-ab-{i}", "sample_id": f"{sample}-{i}"}  # each object's rows have an id of their own
                    rows.append({**shared, **one, "metric": metric, "coords": coords, "value": value})
            coords = orjson.dumps({"call": "POST pods", "vms": count}).decode()
            rows.append({**shared, "sample_id": sample, "metric": "api_calls", "subject": None, "coords": coords, "value": 7.0 * count})
        return pa.Table.from_pylist(rows)

    def test_entries_sizes_and_repetitions_are_not_mixed_and_the_missing_are_counted(self) -> None:
        from perfdag.charts.stages import calls_of, of_results

        rows = self.table(("small", 3, "a"), ("ladder", 4, "b"), ("ladder", 8, "b"), ("ladder", 8, "c"))
        groups = of_results(rows)
        assert [(each.entry, each.count, each.samples) for each in groups] == [("small", 3, 1), ("ladder", 4, 1), ("ladder", 8, 2)]
        for group in groups:
            (stage,) = group.stages
            assert (len(stage.at), len(stage.seconds), stage.missing) == (group.count - 1, group.count - 1, 1)
        assert calls_of(rows) == {
            ("small", "vms"): {3: {"POST pods": 21.0}},
            ("ladder", "vms"): {4: {"POST pods": 28.0}, 8: {"POST pods": 56.0}},
        }

    def test_simulated_nodes_are_told_under_each_chart(self) -> None:
        from perfdag.charts import scale as charts

        for tool, told in (("perfdag", 0), (measured.tool("perfdag", True), 1)):
            drawn = [figure for _, figure in charts.drawings(self.table(("e", 5, "a"), tool=tool))]
            assert len(drawn) == 5
            assert all(sum("simulated nodes" in each.get_text() for each in figure.texts) == told for figure in drawn)

    def test_each_size_of_a_ladder_is_a_picture_of_its_own_and_head_and_tail_choose(self) -> None:
        from perfdag.charts.stages import of_runs

        rows = [
            {"run": run, "stage": "running", "since": "created", "index": i, "seconds": 1.0, "submitted": 1.0 + i, "status": "ok"}
            | {"reached": 2.0 + i}
            for run, count in (("r-1", 4), ("r-2", 6), ("r-3", 6))
            for i in range(count)
        ]
        assert {name: len(stage.seconds) for name, (stage,) in of_runs(rows).items()} == {"4": 4, "6": 6, "6-2": 6}
        assert {name: stage.order for name, (stage,) in of_runs(rows, head=5, tail=2).items()} == {"4": [2, 3], "6": [3, 4], "6-2": [3, 4]}
        assert list(of_runs(rows[:4])) == [""], "one run needs no name"

    def test_what_a_plot_cannot_do_is_refused_and_api_calls_are_drawn_by_size(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        from perfdag.cli import main

        def plot(*words: str) -> str:
            assert main(["scale", "plot", "-o", str(tmp_path), "--plot", *words]) == 2
            return capsys.readouterr().err

        assert "--skip-errors goes with --plot general and detailed; ecdf counts what never came" in plot("ecdf", "--no-skip-errors")
        assert "API calls are counted of all" in plot("api-calls", "--head", "3")
        assert "`perfdag scale vmi` and the scenarios count them" in plot("api-calls")
        figures = {
            "POST-virtualmachineinstances-count": 9.0,
            "CREATE-virtualmachineinstances-count": 9.0,
            "POST-pods/binding-count": 9.0,
            "CREATE-pods/binding-count": 9.0,
            "deletion/DELETE-pods-count": 9.0,
            "deletion/PUT-pods/status-count": 9.0,
            "deletion/UPDATE-pods/status-count": 9.0,
        }
        facts = {"members": 10}
        runs = [{"count": n, "figures": figures | {"Running-phase-count": float(n)}, "facts": facts} for n in (9, 18)]
        drawn: list[Any] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("perfdag.charts.style.to_bytes", lambda figure: (b"", b""))
            patch.setattr("perfdag.charts.scale.api_calls", lambda counts, of: drawn.append((counts, of)))
            for scenario in ("burst", "submit"):
                told = {"runs": [{**run, "scenario": scenario} for run in runs]}
                (tmp_path / "summary.json").write_bytes(orjson.dumps(told))
                assert main(["scale", "plot", "-o", str(tmp_path), "--plot", "api-calls"]) == 0
        names = ("POST-virtualmachineinstances", "POST-pods/binding", "deletion: DELETE-pods", "deletion: PUT-pods/status")
        calls = dict.fromkeys(names, 9.0)
        assert drawn == [({90: calls, 180: calls}, "vms"), ({9: calls, 18: calls}, "objects")], "VMIs of a set are counted, not sets"

    def test_an_unseen_delta_is_not_drawn_as_nought(self) -> None:
        from perfdag.charts import scale as charts

        deltas = [(f"2026-01-01T00:00:{i:02}Z", {"Total Pod Scheduling Decision": None if i < 3 else 2.0}) for i in range(10)]
        figure = charts.general(deltas)
        (line,) = figure.axes[0].get_lines()
        assert len(line.get_ydata()) == 7
        assert "3 unseen" in figure.axes[0].get_title(loc="left")


class TestAsked:
    @pytest.mark.parametrize(
        ("words", "told"),
        [
            ("steady --churn 500 --count 100", "churn: 500 is too many of 100; it is at most count"),
            ("steady --churn -1", "churn: -1 is too few"),
            ("burst --per-node 0", "per_node: 0 is too few"),
            ("burst --parallel 0", "parallel: 0 is too few"),
            ("burst --parallel 1001", "parallel: 1001 is too many; it is 1000 or less"),
            ("burst --timeout -1", "timeout: -1 s is no time to wait"),
            ("burst --timeout nan", "timeout: nan s"),
            ("burst --replicas 0 --template vmirs", "replicas: 0 is too few"),
            ("steady --pause -1", "pause: -1 s cannot be waited"),
            ("ladder --cooldown inf --count 1 2", "cooldown: inf s cannot be waited"),
            (
                "burst --gate creation_to_runing_p95<60",
                "no figure of burst is called creation_to_runing_p95; the nearest is creation_to_running_p95",
            ),
            ("burst --gate create-pods-count<60", "no figure of burst is called create-pods-count; the nearest is CREATE-pods-count"),
            ("burst --gate CREATE-pods-count<=2*CREATE-pod", "no figure of burst is called CREATE-pod; "),
            ("burst --gate churn_cycles>3", "no figure of burst is called churn_cycles; "),
            ("steady --gate Running-phase-count>3", "no figure of steady is called Running-phase-count; "),
            ("burst --gate schedule_held>0.9", "no figure of burst is called schedule_held; "),
            ("burst --gate virt_api_cpu_cores_avg<1", "the gate on virt_api_cpu_cores_avg wants a Prometheus"),
        ],
    )
    def test_what_cannot_be_is_told_before_anything_is_waited_for(
        self, words: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        from perfdag.cli import main, scale_verbs

        monkeypatch.setattr(scale_verbs, "_on_cluster", lambda args, work, _: asyncio.run(work(None)))
        assert main(["scale", "vmi", *words.split(), "-o", str(tmp_path)]) == 2
        assert told in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("scenario", "own"),
        [("steady", ("churn_cycles", "submit_lag")), *((each, vmi.phase_counts([])) for each in ("burst", "ladder", "capacity"))],
    )
    def test_every_figure_that_there_is_may_be_gated(self, scenario: str, own: Any) -> None:
        pace = {"arrival": "constant", "rate": 5} if scenario == "steady" else {}
        params: Any = get("vmi-steady").Params.model_validate({"prometheus": "http://x", "api_gates": False, **pace})
        spec, ask = params.spec(), run_vmi.Ask(scenario)
        calls = apimetrics.delta(apimetrics.Scrape(), scrape_of(*series("pods", "binding", "POST", "resource", ("+Inf", 9))))
        figures = {*prometheus.names(), *apimetrics.named(calls), *own, *apimetrics.of_deletion({"deletion": calls})}
        figures |= {"virt_requests/PATCH-virtualmachineinstances", "deletion_p95", "left_behind"}
        for name in figures:
            spec.gates = [gates.parse(f"{name} < 1")]
            run_vmi.check(spec, ask)


class TestCapacity:
    @pytest.mark.parametrize(("step", "found", "tried"), [(100, 700, 8), (150, 600, 5), (50, 700, 15)])
    async def test_a_knee_is_found_within_a_step(self, step: int, found: int, tried: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Up to 700 VMIs run in 8 s, beyond it in 90: the gate says which is too long."""
        gate = gates.parse("creation_to_running_p95 < 60")

        async def burst(kube: Any, spec: vmi.Spec, count: int) -> vmi.Result:
            figures = {"creation_to_running_p95": 8.0 if count <= 700 else 90.0, "left_behind": 0.0, "success_ratio": 1.0}
            return vmi.Result("burst", count, "r", [], [], figures, {}, gates.hold([gate], figures))

        monkeypatch.setattr(vmi, "burst", burst)
        passed, results = await sizes.capacity(None, vmi.Spec(), step, 2000)  # type: ignore[arg-type]
        assert passed == sizes.Capacity(found), "the next size failed: no lower bound"
        assert 0 <= 700 - passed.passed < step
        assert [each.count for each in results] == [step * (i + 1) for i in range(tried)]

    async def test_no_knee_ends_at_the_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def burst(kube: Any, spec: vmi.Spec, count: int) -> vmi.Result:
            return vmi.Result("burst", count, "r", [], [], {"left_behind": 0.0, "success_ratio": 1.0}, {})

        monkeypatch.setattr(vmi, "burst", burst)
        assert (await sizes.capacity(None, vmi.Spec(), 100, 450))[0] == sizes.Capacity(400, "the limit of 450 was reached")  # type: ignore[arg-type]

    @pytest.mark.parametrize("error", [kubevirt.TooDenseError("300 VMIs are too many"), KubeError(500, "Broken", "etcd is away")])
    async def test_a_step_that_cannot_be_made_leaves_a_lower_bound(self, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
        async def burst(kube: Any, spec: vmi.Spec, count: int) -> vmi.Result:
            if count > 200:
                raise error
            return vmi.Result("burst", count, "r", [], [], {"left_behind": 0.0, "success_ratio": 1.0}, {})

        monkeypatch.setattr(vmi, "burst", burst)
        seen: list[vmi.Result] = []
        passed, found = await sizes.capacity(None, vmi.Spec(seen=seen.append), 100, 450)  # type: ignore[arg-type]
        assert passed == sizes.Capacity(200, str(error))
        assert [each.count for each in found] == [each.count for each in seen] == [100, 200]
        with pytest.raises(type(error)):
            await sizes.capacity(None, vmi.Spec(), 300, 450)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("figures", "found"),
        [
            ({}, sizes.Capacity(100, "gate api_p99 < 1: no data for api_p99", no_data=True)),
            ({"deletion_p50": 9.0}, sizes.Capacity(100)),
            ({"success_ratio": 0.9}, sizes.Capacity(100)),
            ({"left_behind": 1.0}, sizes.Capacity(100)),
        ],
        ids=["no data alone", "another gate failed", "not all ran", "left behind"],
    )
    async def test_a_size_of_which_only_data_is_missing_has_not_failed(
        self, figures: dict[str, float | None], found: sizes.Capacity, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """At 200 VMIs the API server's metrics are absent, and `figures` are as they are there."""
        from perfdag.cli import main, scale_verbs

        held = [gates.parse("api_p99 < 1"), gates.parse("deletion_p50 < 5")]

        async def burst(kube: Any, spec: vmi.Spec, count: int) -> vmi.Result:
            seen = {"api_p99": 0.1, "deletion_p50": 1.0, "left_behind": 0.0, "success_ratio": 1.0}
            seen |= {"api_p99": None, **figures} if count == 200 else {}
            facts: dict[str, Any] = {"generator": [], "notes": []}
            return vmi.Result("burst", count, "r", [], [], seen, facts, gates.hold(held, seen))

        monkeypatch.setattr(vmi, "burst", burst)
        passed, results = await sizes.capacity(None, vmi.Spec(), 100, 450)  # type: ignore[arg-type]
        assert (passed, len(results)) == (found, 2)
        monkeypatch.setattr(scale_verbs, "_on_cluster", lambda *_: run_vmi.Outcome(results, passed))
        assert main(["scale", "vmi", "capacity", "--count", "450", "-o", str(tmp_path)]) == (3 if found.no_data else 0)

    @pytest.mark.parametrize(
        ("sizes", "passed", "gate", "failed"),
        [((10, 20, 30), 20, False, []), ((10,), 0, False, [10]), ((10, 20, 30), 20, None, [30]), ((10,), 0, None, [10])],
    )
    def test_of_a_search_in_a_suite_a_first_step_that_fails_and_an_end_without_data_are_breaches(
        self, sizes: tuple[int, ...], passed: int, gate: bool | None, failed: list[int]
    ) -> None:
        output = self.searched(sizes, passed, 1.0, gate)
        found = parse_results(output, "creation_to_running")
        assert ("lower bound" in output.facts["notes"]) == (gate is None)
        assert [each.value for each in found if each.metric == "capacity"] == [passed]
        breached = [(each.coords or {})["count"] for each in found if each.metric == "gates_failed" and each.value]
        assert breached == failed

    def test_a_rate_that_only_the_step_which_ended_a_search_did_not_hold_is_its_answer_too(self) -> None:
        found = parse_results(self.searched((10, 20, 30), 20, 1.0, late=(30,)), "creation_to_running")
        assert [each.value for each in found if each.metric == "capacity"] == [20]
        with pytest.raises(Invalid, match="the open loop did not hold its rate of 20 VMIs") as caught:
            parse_results(self.searched((10, 20, 30), 20, 1.0, late=(20, 30)), "creation_to_running")
        assert {(each.coords or {}).get("count") for each in caught.value.measurements} == {10, 20, 30, None}

    def test_a_search_whose_first_step_never_ran_is_invalid(self) -> None:
        with pytest.raises(Invalid, match="never ran"):
            parse_results(self.searched((10,), 0, 0.5), "creation_to_running")

    def searched(self, sizes: tuple[int, ...], passed: int, ran: float, last: bool | None = False, late: tuple[int, ...] = ()) -> Output:
        """What a search leaves whose last size broke its gate (`last` None: had no data for it), of which a share of `ran` VMIs ran, and of
        whose sizes these did not hold their rate."""
        gate = {"metric": "api_p99", "op": "<", "value": 1.0, "other": None}
        results = [
            {"count": size, "rows": [], "stages": [], "calls": [], "error": "", "disturbed": ""}
            | {"facts": {"notes": [], "generator": [{"held": size not in late}]}}
            | {"figures": {"left_behind": 0.0, "success_ratio": ran if size == sizes[-1] else 1.0}}
            | {"verdicts": [{"gate": gate, "value": 0.5, "threshold": 1.0, "passed": size != sizes[-1] or last}]}
            for size in sizes
        ]
        capacity = {"passed": passed, "stopped": "" if last is False else "no data", "no_data": last is None}
        return Output({"results": orjson.dumps({"capacity": capacity, "results": results}).decode()})

    def test_a_step_over_the_limit_is_told_at_once(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        from perfdag.cli import main

        kubeconfig = {"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}], "users": [{"name": "u", "user": {}}]}
        contexts = [{"name": "x", "context": {"cluster": "c", "user": "u"}}]
        (tmp_path / "k").write_bytes(orjson.dumps({**kubeconfig, "contexts": contexts, "current-context": "x"}))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KUBECONFIG", str(tmp_path / "k"))
            assert main(["scale", "vmi", "capacity", "--count", "50", "--step", "100", "-o", str(tmp_path)]) == 2
        assert "the first step of 100 is over the limit of 50" in capsys.readouterr().err


class TestDeletion:
    @pytest.mark.parametrize(("answers", "left"), [(True, 0.0), (False, 7.0)], ids=["it can be listed", "it cannot"])
    async def test_one_that_fails_costs_its_own_figures_alone(self, answers: bool, left: float) -> None:
        """The watch is broken: what is left is what can be listed, or else what was seen last."""

        class Listed:
            async def resource(self, *_: str) -> str:
                return "vmis"

            async def list(self, *_: Any, **__: Any) -> list[Any]:
                if not answers:
                    raise KubeError(503, "Unavailable", "no answer")
                return []

        class Broken:
            run, namespaces, submissions, kube, template = "r", ["ns"], list[Any](), Listed(), load("vmi", "r")

            def __init__(self) -> None:
                self.notes: list[str] = []

            async def delete(self, *_: Any) -> bool:
                raise KubeError(0, "Unreachable", "the watch is gone")

            def left(self, _: Any) -> int:
                return 7

            async def scrape(self, phase: str) -> None:
                pass

        session: Any = Broken()
        assert await vmi.emptied(session, 20, 900.0) == left
        assert session.notes == ["the deletion was not followed to its end: the watch is gone"]

    async def test_rows_outlive_an_api_server_that_does_not_tell_of_its_nodes(self) -> None:
        class Away:
            counts: dict[str, int] = {}

            async def resource(self, *_: str) -> str:
                raise KubeError(0, "Unreachable", "no answer")

            list = resource

        made = Record(vmi.VMI, "u", "r-0", "ns", "")
        for second, stage in enumerate(("created", "pending", "scheduling", "scheduled", "running"), 1):
            made.put(stage, received_ns=second * 1_000_000_000)
        made.node = "n"
        observer: Any = SimpleNamespace(records={"u": made}, messages={})
        heart: Any = SimpleNamespace(lags=[0.001], pause=lambda: None)
        session = Session(
            Away(),
            "r",
            load("vmi", "r"),
            ["ns"],
            observer,
            heart,
            None,
            Offset(0.0, 0.0),
            [],
            submissions=[Submission(0, "r-0", "ns", 1, 1, 2, "u")],  # type: ignore[arg-type]
        )
        ran = [row for row in await session.rows() if row.stage == "creation_to_running"]
        assert [(row.status, row.seconds, row.simulated) for row in ran] == [("ok", 4.0, None)]
        assert session.notes == ["whether nodes are simulated is not known: no answer"]


class TestThroughput:
    def test_of_a_steady_state_it_is_the_ramp_s_and_not_that_of_its_pauses(self) -> None:
        """20 VMIs run within a second; then one is replaced each 100 s."""
        items = [Submission(i, f"r-{i}", "ns", 1, 1, 2) for i in range(25)]
        batches = [items[:20], *([each] for each in items[20:])]
        at = [1000.0 + (i / 19 if i < 20 else 100 * (i - 18)) for i in range(25)]
        rows = [
            Row("r", i, f"r-{i}", "ns", vmi.VMI, "", "creation_to_running", "created", "ok", 1.0, receive_time=at[i], reached=at[i])
            for i in range(25)
        ]
        session: Any = SimpleNamespace(
            submissions=items,
            batches=[(Submitted("r", batch, 0.0, 1), Schedule()) for batch in batches],
            clocks=lambda: SimpleNamespace(lag_s=0.001),
            phases={},
            notes=[],
        )
        figures = vmi.figures_of(session, rows, [])
        assert figures["throughput_mean"] == pytest.approx(19.0)
        assert figures["success_ratio"] == 1.0
        made = measured.of_figures(figures, {}, 20)
        assert [each.value for each in made if each.metric == "throughput"] == [pytest.approx(19.0)]

    def test_of_an_open_loop_it_is_no_merit_of_the_system(self) -> None:
        made = measured.of_figures({"throughput_mean": 5.0, "submit_lag": 0.001, "schedule_held": 1.0}, {}, 20)
        better = {each.name: each.better for each in measured.METRICS}
        assert [(each.metric, better[each.metric]) for each in made if each.value == 5.0] == [("paced_throughput", "none")]


class Taken:
    """A lock that another run takes meanwhile, which is seen at the end."""

    lost = ""

    def __init__(self, *_: Any) -> None:
        pass

    async def __aenter__(self) -> "Taken":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.lost = "performance run x took the cluster meanwhile"


class TestLadder:
    @pytest.fixture
    def broken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A cluster that takes 600 VMIs; at 800 its API server goes away."""

        async def burst(kube: Any, spec: vmi.Spec, count: int) -> vmi.Result:
            if count > 600:
                raise KubeError(0, "Unreachable", "no answer from https://x")
            facts: dict[str, Any] = {"generator": [], "notes": [], "simulated": False, "kubevirt_version": "v1.6"}
            figures: dict[str, float | None] = {"api_p99": 0.1, "left_behind": 0.0, "success_ratio": 1.0}
            return vmi.Result("burst", count, spec.run, [], [], figures, facts, gates.hold(spec.gates, figures))

        async def check(*_: Any) -> None:
            pass

        @contextlib.asynccontextmanager
        async def namespaces(*_: Any) -> Any:
            yield

        monkeypatch.setattr(vmi, "burst", burst)
        monkeypatch.setattr(sizes, "check_nodes", check)
        monkeypatch.setattr(sizes, "own_namespaces", namespaces)

    async def test_sizes_before_one_that_broke_are_kept_and_it_is_a_size_without_data(self, broken: None) -> None:
        spec = vmi.Spec(gates=[gates.parse("api_p99 < 1"), gates.parse("left_behind <= 0")])
        results = await sizes.ladder(None, spec, [400, 600, 800, 1000], 0.0)  # type: ignore[arg-type]
        assert [each.passed for each in results[-1].verdicts] == [None, None]
        told = table.audit(results)
        assert told["Values"]["api_p99"]["value"] == 0.1, "of the last size that was measured"
        assert len(told["Rungs"]) == 3
        assert [(each.count, each.failed, each.error) for each in results] == [
            (400, False, ""),
            (600, False, ""),
            (800, True, "no answer from https://x"),
        ]
        texts = {"results": orjson.dumps({"capacity": None, "results": [asdict(each) for each in results]}).decode()}
        with pytest.raises(Invalid, match="800 VMIs were not measured: no answer") as caught:
            parse_results(Output(texts), "api_p99")
        breached = {(each.coords or {})["count"]: each.value for each in caught.value.measurements if each.metric == "gates_failed"}
        assert breached == {400: 0.0, 600: 0.0, 800: 1.0}
        with pytest.raises(KubeError):
            await sizes.ladder(None, spec, [800], 0.0)  # type: ignore[arg-type]

    @pytest.mark.parametrize("end", [KubeError(0, "Unreachable", "away"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
    def test_the_files_of_sizes_before_are_written_however_it_ends(
        self, end: BaseException, broken: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        from perfdag.cli import main, scale_verbs

        async def measure(kube: Any, spec: vmi.Spec, ask: Any) -> None:
            await sizes.ladder(kube, spec, [400, 600], 0.0)
            raise end

        monkeypatch.setattr(run_vmi, "measure", measure)
        monkeypatch.setattr(scale_verbs, "_on_cluster", lambda args, work, _: asyncio.run(work(None)))
        assert main(["scale", "vmi", "ladder", "--count", "400", "600", "-o", str(tmp_path)]) in (4, 130)
        assert [each["count"] for each in orjson.loads((tmp_path / "summary.json").read_bytes())["runs"]] == [400, 600]
        assert f"measured before: 400, 600 VMIs; their files are in {tmp_path}" in capsys.readouterr().err

    def test_the_files_of_sizes_before_an_interruption_say_that_they_were_not_alone(
        self, broken: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another run took the Lease at 600 VMIs, which is seen when this one ends."""
        from perfdag.cli import main, scale_verbs

        measured = vmi.burst

        async def burst(kube: Any, spec: vmi.Spec, count: int) -> vmi.Result:
            if count == 600:
                raise KeyboardInterrupt
            return await measured(kube, spec, count)

        monkeypatch.setattr(vmi, "burst", burst)
        monkeypatch.setattr(run_vmi, "ExclusiveRun", Taken)
        monkeypatch.setattr(scale_verbs, "_on_cluster", lambda args, work, _: asyncio.run(work(None)))
        assert main(["scale", "vmi", "ladder", "--count", "400", "600", "--cooldown", "0", "-o", str(tmp_path)]) == 130
        (run,) = orjson.loads((tmp_path / "summary.json").read_bytes())["runs"]
        assert (run["count"], run["disturbed"]) == (400, "performance run x took the cluster meanwhile")

    @pytest.mark.parametrize("scenario", ["ladder", "capacity"])
    def test_a_run_that_was_not_alone_is_told_and_fails(
        self, scenario: str, broken: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another run takes the Lease while this one measures."""
        from perfdag.cli import main, scale_verbs

        outcomes: list[run_vmi.Outcome] = []

        def on_cluster(args: Any, work: Any, connections: int) -> run_vmi.Outcome:
            outcomes.append(asyncio.run(work(None)))
            return outcomes[-1]

        monkeypatch.setattr(run_vmi, "ExclusiveRun", Taken)
        monkeypatch.setattr(scale_verbs, "_on_cluster", on_cluster)
        words = ["--count", "200", "--step", "100"] if scenario == "capacity" else ["--count", "100"]
        assert main(["scale", "vmi", scenario, *words, "-o", str(tmp_path)]) == 1
        (outcome,) = outcomes
        texts = {"capacity": outcome.capacity and asdict(outcome.capacity), "results": [asdict(each) for each in outcome.results]}
        with pytest.raises(Invalid, match="performance run x took the cluster meanwhile"):
            parse_results(Output({"results": orjson.dumps(texts).decode()}), "capacity")


class TestAudit:
    def test_every_rung_and_gate_is_there_under_the_audit_s_names(self) -> None:
        held = [gates.parse(text) for text in ("api_p99 < 1", "api_p99 < 0.1")]

        def result(count: int, p99: float) -> vmi.Result:
            figures: dict[str, float | None] = {"api_p99": p99, "virt_api_memory_bytes_avg": 2.0**21, "workqueue_adds": 100.0}
            figures |= {"Running-phase-count": float(count), "CREATE-pods-count": 7.0, "deletion_p50": 3.0, "deletion_to_failed_p95": 4.0}
            return vmi.Result("ladder", count, "r", [], [], figures, {}, gates.hold(held, figures), started=10.0, ended=20.0)

        told = table.audit([result(100, 0.05), result(200, 0.5)])
        assert [(each["Count"], [gate["passed"] for gate in each["Gates"]]) for each in told["Rungs"]] == [
            (100, [True, True]),
            (200, [True, False]),
        ]
        values = told["Values"]
        assert values["Running-phase-count"]["value"] == 200
        assert values["CREATE-pods-count"]["value"] == 7
        assert values["avgVirtAPIMemoryUsageInMB"]["value"] == 2
        assert values["virtControllerWorkqueueAddRate"]["value"] == 10
        assert values["vmiDeletionToGoneSecondsP50"]["value"] == 3.0
        assert values["vmiDeletionToSucceededSecondsP50"]["value"] is None, "gone is not succeeded"
        assert values["vmiDeletionToFailedSecondsP95"]["value"] == 4.0
        assert values["api_p99"]["thresholdResult"]["thresholdExceeded"] is True, "of two gates the one that was breached"
        assert table.audit([]) == {"Values": {}, "Rungs": []}


EXPORTED = """container_cpu_usage_seconds_total{{pod="virt-api-1",container="virt-api"}} {cpu}
rest_client_requests_total{{pod="virt-api-1",verb="PATCH",resource="virtualmachineinstances",code="200"}} {adds}
rest_client_requests_total{{pod="virt-controller-1",verb="PATCH",resource="virtualmachineinstances",code="200"}} {adds}
container_memory_working_set_bytes{{pod="virt-api-1",container="virt-api"}} 1.5e+08
container_memory_working_set_bytes{{pod="virt-api-2",container="virt-api"}} 0.5e+08
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


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Prometheus (Debian: prometheus)")
async def test_a_real_prometheus_answers_the_queries(tmp_path: Path) -> None:
    """A counter of 0.25 CPU seconds a second and 40 additions a second, and 500 more in the last moment, scraped each 2 seconds; what no pod
    exports has no data."""
    start, more = time.monotonic(), 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        since = time.monotonic() - start
        body = EXPORTED.format(cpu=0.25 * since, adds=40 * since + more, idle=0.6 * since, busy=0.4 * since).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    exporter = await asyncio.start_server(serve, "127.0.0.1", 0)
    target = f"127.0.0.1:{exporter.sockets[0].getsockname()[1]}"
    scrapes = f"scrape_configs: [{{job_name: x, scrape_interval: 2s, static_configs: [{{targets: ['{target}']}}]}}]\n"
    (tmp_path / "p.yml").write_text(scrapes)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    said = (tmp_path / "log").open("wb")
    argv = ["prometheus", f"--config.file={tmp_path / 'p.yml'}", f"--storage.tsdb.path={tmp_path / 'db'}"]
    server = await asyncio.create_subprocess_exec(*argv, f"--web.listen-address=127.0.0.1:{port}", stdout=said, stderr=said)
    try:
        url = prometheus.Prometheus(f"http://127.0.0.1:{port}")
        gaps: dict[str, float] = {}
        for _ in range(60):
            await asyncio.sleep(0.5)
            with contextlib.suppress(KubeError):
                if len(gaps := (await prometheus.scraped(url, time.time()))[0]) == len(prometheus.SOURCES):
                    break
        assert gaps == dict.fromkeys(prometheus.SOURCES, pytest.approx(2.0, abs=0.1))
        began = time.time()
        await asyncio.sleep(8.0)
        more, ended = 500, time.time()
        seconds = ended - began
        gaps, _ = await prometheus.scraped(url, ended)
        found = await prometheus.component_figures(url, began, ended, gaps)
        assert found["virt_api_cpu_cores_avg"] == pytest.approx(0.25, rel=0.25)
        assert found["virt_api_memory_bytes_avg"] == pytest.approx(2e8)
        assert found["workqueue_depth_max"] == 3
        for name, most in (("workqueue_adds", 1), ("virt_requests/PATCH-virtualmachineinstances", 2)):
            assert 40 * seconds + 500 <= (found[name] or 0) / most <= 40 * (seconds + 6) + 500, "to the first scrape after the end"
        assert found["workqueue_p99_s_max"] == pytest.approx(0.1 + 0.9 * 0.99)
        assert found["node_cpu_ratio_avg"] == pytest.approx(0.4, abs=0.02), "of the run alone, however short"
        assert found["node_memory_ratio_avg"] == pytest.approx(0.75)
        assert found["virt_handler_cpu_cores_avg"] is None
        assert gates.hold([gates.parse("virt_handler_cpu_cores_avg < 1")], found)[0].passed is None
        short = await prometheus.component_figures(url, ended - 3.0, ended, gaps)
        assert short == dict.fromkeys(prometheus.names()), "one scrape or two tell nothing of 3 s"
    finally:
        server.terminate()
        await server.wait()
        exporter.close()
        said.close()


async def test_no_prometheus_is_said() -> None:
    with pytest.raises(KubeError, match=r"no answer from Prometheus at http://127\.0\.0\.1:9"):
        await prometheus.component_figures(prometheus.Prometheus("http://127.0.0.1:9"), 0.0, 60.0, {"virt": 15.0})


async def test_a_token_is_sent_and_a_refusal_names_its_option(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readuntil(b"\r\n\r\n")
        body = b'{"status":"success","data":{"resultType":"vector","result":[]}}'
        status = b"200 OK" if b"Authorization: Bearer secret\r\n" in asked else b"401 Unauthorized"
        writer.write(b"HTTP/1.1 " + status + b"\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        await prometheus.Prometheus(url, str(tmp_path / "token")).probe()
        with pytest.raises(KubeError, match=r"answers 401.*--prometheus-token-file"):
            await prometheus.Prometheus(url).probe()
    finally:
        server.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
async def test_its_certificate_is_checked_against_the_authority_that_is_given(tmp_path: Path) -> None:
    for name in ("own", "other"):
        files = ["-keyout", str(tmp_path / f"{name}.key"), "-out", str(tmp_path / f"{name}.crt")]
        argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1", *files]
        made = await asyncio.create_subprocess_exec(*argv, "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", stderr=-3)
        assert await made.wait() == 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"status":"success","data":{"resultType":"vector","result":[]}}'
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "own.crt", tmp_path / "own.key")
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        await prometheus.Prometheus(url, ca_file=str(tmp_path / "own.crt")).probe()
        for wrong in (str(tmp_path / "other.crt"), None):
            with pytest.raises(KubeError, match=r"no answer from Prometheus.*certificate"):
                await prometheus.Prometheus(url, ca_file=wrong).probe()
        with pytest.raises(KubeError, match="No such file"):
            await prometheus.Prometheus(url, ca_file=str(tmp_path / "absent")).probe()
    finally:
        server.close()
