"""Figures of a run: gates, API metrics, what may be gated, deletion, throughput, and KubeVirt's
audit form of them.
"""

import asyncio
import math
import socket
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfdag.benchmark.registry import get
from perfdag.commands import scale
from perfdag.commands.main import main
from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale.figures import api_metrics, gates, measurements
from perfdag.steps.scale.figures.rows import Row
from perfdag.steps.scale.measure.generator import GeneratorResult, Schedule, Submission
from perfdag.steps.scale.model.stages import VMI
from perfdag.steps.scale.runai import run_file
from perfdag.steps.scale.scenarios import vmi
from perfdag.steps.scale.scenarios.session import Result, figures_of
from tests.conftest import CommandLine
from tests.fakes.api_server import ApiServer, failure

from .sessions import session_of

RATIO = "PATCH-vmis-count <= 2 * CREATE-pods-count"
FEW_REQUESTS: dict[str, float | None] = {"api_p99": None, "api_slowest": 0.5}


class TestGates:
    @pytest.mark.parametrize(
        ("text", "figures", "passed", "value"),
        [
            pytest.param(
                RATIO, {"PATCH-vmis-count": 150, "CREATE-pods-count": 100}, True, 150, id="below"
            ),
            pytest.param(
                RATIO, {"PATCH-vmis-count": 250, "CREATE-pods-count": 100}, False, 250, id="above"
            ),
            pytest.param(
                "api_p99 < 1", FEW_REQUESTS, True, 0.5, id="too few, and the slowest is below"
            ),
            pytest.param(
                "api_p99 < 0.1", FEW_REQUESTS, None, None, id="too few never break a limit"
            ),
            pytest.param(
                "api_p99 < 1",
                {"api_p99": 2.0, "api_slowest": 0.5},
                False,
                2.0,
                id="the percentile itself goes first",
            ),
        ],
    )
    def test_what_figures_say_of_a_gate(
        self,
        text: str,
        figures: dict[str, float | None],
        passed: bool | None,
        value: float | None,
    ) -> None:
        (verdict,) = gates.evaluate([gates.parse_gate(text)], figures)
        assert (verdict.passed, verdict.value) == (passed, value)

    @pytest.mark.parametrize("figures", [{}, {"api_p99": None}, {"api_p99": math.nan}])
    def test_no_data_is_a_breach_that_names_the_metric(
        self, figures: dict[str, float | None]
    ) -> None:
        (verdict,) = gates.evaluate([gates.parse_gate("api_p99 < 1")], figures)
        assert verdict.passed is None
        assert gates.breaches([verdict]) == [verdict]
        assert "no data for api_p99" in str(verdict)

    def test_the_limits_of_the_api_stand_beside_gates_of_your_own(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """In a suite as on the command line; one on the same metric takes a limit's place, and
        both can be left out.
        """
        request: list[list[str]] = []

        async def measure(kube: Any, spec: vmi.Spec, ask: Any) -> list[Any]:
            request.append([str(gate) for gate in spec.gates])
            return []

        monkeypatch.setattr(vmi, "measure", measure)
        monkeypatch.setattr(scale, "on_cluster", lambda args, work, _: asyncio.run(work(None)))
        both = ["api_p99 < 1", "api_list_p99 < 30"]
        for parameters, api, want in (
            (["creation_to_running_p95 < 60"], True, [*both, "creation_to_running_p95 < 60"]),
            (["api_p99 < 2"], True, ["api_list_p99 < 30", "api_p99 < 2"]),
            (["api_p99 < 2"], False, ["api_p99 < 2"]),
            ([], True, both),
        ):
            params: Any = get("vmi-burst").Params.model_validate(
                {"gates": parameters, "api_gates": api}
            )
            assert [str(gate) for gate in params.spec().gates] == want
            words = [word for text in parameters for word in ("--gate", text)] + (
                [] if api else ["--no-api-gates"]
            )
            assert main(["scale", "vmi", "burst", "-o", str(tmp_path), *words]) == 0
            assert request[-1] == want

    def test_few_lists_or_none_show_their_limit_kept(self) -> None:
        slow = api_metrics.delta(
            api_metrics.Scrape(),
            scrape_of(*histogram("LIST", "cluster", ("20", 9), ("60", 10), ("+Inf", 10))),
        )
        none = api_metrics.delta(
            api_metrics.Scrape(), scrape_of(*histogram("POST", "resource", ("1", 9), ("+Inf", 9)))
        )
        assert gates.evaluate(gates.SLO[1:], api_metrics.latencies(none))[0].passed
        assert [item.passed for item in gates.evaluate(gates.SLO, api_metrics.latencies([]))] == [
            None,
            None,
        ], "no metrics at all are no data"
        (verdict,) = gates.evaluate(gates.SLO[1:], api_metrics.latencies(slow))
        assert verdict.passed is None, (
            "one of ten took longer than 20 s: that may be too long, or not"
        )

    @pytest.mark.parametrize("text", ["api_p99", "api_p99 = 1", "api_p99 < x", "< 1", "a < 1 * "])
    def test_a_bad_gate_is_refused_with_the_form(self, text: str) -> None:
        with pytest.raises(ValueError, match="write METRIC < VALUE"):
            gates.parse_gate(text)


def scrape_of(*lines: str) -> api_metrics.Scrape:
    total = api_metrics.Scrape()
    for line in lines:
        api_metrics.add(total, line.encode())
    return total


def histogram(verb: str, scope: str, *buckets: tuple[str, int]) -> list[str]:
    return series("pods", "", verb, scope, *buckets)


def series(
    resource: str, subresource: str, verb: str, scope: str, *buckets: tuple[str, int]
) -> list[str]:
    of = f'resource="{resource}",scope="{scope}",subresource="{subresource}"'
    labels = f'component="apiserver",dry_run="",group="",{of},verb="{verb}",version="v1"'
    return [
        f'apiserver_request_duration_seconds_bucket{{{labels},le="{le}"}} {count}'
        for le, count in buckets
    ]


class TestApiMetrics:
    def test_counts_and_p99_of_the_difference(self) -> None:
        before = scrape_of(
            *histogram("POST", "resource", ("0.1", 1000), ("1", 1000), ("+Inf", 1000))
        )
        after = scrape_of(
            *histogram("POST", "resource", ("0.1", 1090), ("1", 1100), ("+Inf", 1100))
        )
        (calls,) = api_metrics.delta(before, after)
        assert (calls.verb, calls.count) == ("POST", 100)
        assert calls.p99 == pytest.approx(0.1 + 0.9 * 0.9)
        assert (calls.low, calls.high) == (0.1, 1.0)
        assert api_metrics.counts([calls]) == {"POST-pods-count": 100, "CREATE-pods-count": 100}

    @pytest.mark.parametrize(("starts", "same"), [((7.0, 7.0), True), ((7.0, 8.0), False)])
    async def test_another_api_server_or_a_restarted_one_has_no_difference(
        self, starts: tuple[float, ...], same: bool
    ) -> None:
        """Behind a load balancer that nothing tells of each scrape may be of another server:
        one's share is not what all were asked.
        """
        answers = iter(starts)

        class Balanced:
            async def lines(self, *_: Any) -> Any:
                yield b"process_start_time_seconds %f" % next(answers), 0

        server: Any = Balanced()
        before = [await api_metrics.scrape([server])]
        observer: Any = None
        session = session_of(server, observer, scrapes=before, servers=[server])
        await session.scrape("creation")
        assert ("creation" in session.phases) == same
        assert bool(session.scrapes) == same
        assert bool(session.notes) != same

    def test_a_p99_wants_its_requests_and_rare_kinds_are_taken_together(self) -> None:
        rare = [
            histogram(verb, "resource", ("0.1", 0), ("1", 200), ("+Inf", 200))
            for verb in ("POST", "GET", "PUT")
        ]
        few = api_metrics.delta(api_metrics.Scrape(), scrape_of(*rare[0], *rare[1]))
        assert api_metrics.worst(few) is None, "400 are too few for a p99"
        assert api_metrics.slowest(few) == 1.0
        assert few[0].p99, "it is told beside its count all the same"
        enough = api_metrics.delta(api_metrics.Scrape(), scrape_of(*rare[0], *rare[1], *rare[2]))
        assert api_metrics.worst(enough) == pytest.approx(0.1 + 0.9 * 0.99)

    def test_a_real_scrape_gives_the_ratio_that_the_documentation_gates(self) -> None:
        """Two scrapes of an API server around 30 pods created and patched twice each
        (tests/recorded/apiserver).
        """
        folder = Path(__file__).parents[1] / "recorded" / "apiserver"
        before, after = (
            scrape_of(*(folder / f"{name}.txt").read_text().splitlines())
            for name in ("before", "after")
        )
        assert before.started == after.started
        figures = {
            name: float(value)
            for name, value in api_metrics.counts(api_metrics.delta(before, after)).items()
        }
        assert (figures["CREATE-pods-count"], figures["PATCH-pods-count"]) == (30, 60)
        held = gates.evaluate(
            [
                gates.parse_gate(f"PATCH-pods-count <= {ratio} * CREATE-pods-count")
                for ratio in (2, 1.9)
            ],
            figures,
        )
        assert [item.passed for item in held] == [True, False]

    @pytest.mark.parametrize(
        ("calls", "counts"),
        [
            pytest.param(
                [("PATCH", ""), ("PUT", "")],
                {"PATCH-pods-count": 30, "PUT-pods-count": 30, "UPDATE-pods-count": 30},
                id="a PUT is an UPDATE of the audit",
            ),
            pytest.param(
                [("POST", ""), ("POST", "binding"), ("APPLY", "status")],
                {
                    "POST-pods-count": 30,
                    "CREATE-pods-count": 30,
                    "POST-pods/binding-count": 30,
                    "CREATE-pods/binding-count": 30,
                    "PATCH-pods/status-count": 30,
                },
                id="a subresource is no pod, and a server-side apply is a PATCH",
            ),
        ],
    )
    def test_30_requests_of_each_kind_are_counted_under_its_names(
        self, calls: list[tuple[str, str]], counts: dict[str, int]
    ) -> None:
        lines = [series("pods", sub, verb, "resource", ("+Inf", 30)) for verb, sub in calls]
        after = scrape_of(*chain.from_iterable(lines))
        assert api_metrics.counts(api_metrics.delta(api_metrics.Scrape(), after)) == counts
        assert all(gates.parse_gate(f"{name} <= 1 * {name}").metric == name for name in counts)

    def test_probes_of_the_api_server_are_no_requests_of_objects(self) -> None:
        """100 slow creations of a kind, which alone are too few for a p99, beside 600 quick
        answers to /readyz.
        """
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
        calls = api_metrics.delta(
            api_metrics.Scrape(), scrape_of(*chain.from_iterable(slow), *probes)
        )
        assert (api_metrics.worst(calls) or 0) > 1.8
        assert len(calls) == 5

    def test_a_gate_sees_the_worse_of_creation_and_deletion(self) -> None:
        """600 quick creations; then 600 slow deletions, or 20, which are too few for a p99 of
        their own, or unknown ones.
        """
        quick = scrape_of(*histogram("POST", "resource", ("0.1", 600), ("2", 600), ("+Inf", 600)))

        def seen(deletions: int) -> tuple[dict[str, float | None], api_metrics.Phases]:
            slow = histogram(
                "DELETE", "resource", ("0.1", 0), ("2", deletions), ("+Inf", deletions)
            )
            after = scrape_of(
                *histogram("POST", "resource", ("0.1", 600), ("2", 600), ("+Inf", 600)), *slow
            )
            phases = {
                "creation": api_metrics.delta(api_metrics.Scrape(), quick),
                "deletion": api_metrics.delta(quick, after),
            }
            return api_metrics.gate_latencies(
                phases, api_metrics.delta(api_metrics.Scrape(), after)
            ), phases

        gate = gates.parse_gate("api_p99 < 1")
        for deletions, held in ((600, False), (20, True)):
            judged, phases = seen(deletions)
            figures = api_metrics.named_figures(phases["creation"]) | api_metrics.deletion_figures(
                phases
            )
            assert (figures["api_p99"] or 9) < 0.1, "the creation's figure is its own"
            assert figures["deletion/DELETE-pods-count"] == deletions
            assert "DELETE-pods-count" not in figures
            assert gates.evaluate([gate], figures | judged)[0].passed is held
        assert (
            gates.evaluate(
                [gate], figures | api_metrics.gate_latencies({"creation": phases["creation"]}, [])
            )[0].passed
            is None
        )

    def test_watches_are_left_out_and_lists_are_their_own(self) -> None:
        watch, listing = (
            histogram("WATCH", "cluster", ("+Inf", 9)),
            histogram("LIST", "cluster", ("1", 0), ("+Inf", 5)),
        )
        emptied = histogram("DELETECOLLECTION", "namespace", ("1", 0), ("10", 4), ("+Inf", 4))
        calls = api_metrics.delta(
            api_metrics.Scrape(), scrape_of(*watch, *listing, *emptied, "go_goroutines 5")
        )
        assert [call.verb for call in calls] == ["LIST", "DELETECOLLECTION"]
        assert api_metrics.worst(calls, least=1) is None
        assert api_metrics.worst(calls, "LIST", least=1) == 1.0, (
            "beyond its last bucket: its lower bound"
        )
        assert api_metrics.worst(calls, "DELETECOLLECTION", least=1) == pytest.approx(1 + 9 * 0.99)


def control(hosts: list[str], renewed: list[str], port: int = 0) -> Kube:
    """A client of a control plane with API servers at these addresses, of which some renew a
    Lease, and one may be out of reach.
    """
    slices = (
        [{"ports": [{"port": port}], "endpoints": [{"addresses": [host]} for host in hosts]}]
        if hosts
        else []
    )
    leases = [{"spec": {"renewTime": f"2026-01-01T00:{at}Z"}} for at in renewed]
    server = ApiServer()
    server.on(
        "/endpointslices", lambda _: {"metadata": {}, "items": slices} if slices else failure(403)
    )
    server.on("/leases", lambda _: {"metadata": {}, "items": leases} if leases else failure(403))
    return server.client()


class TestApiServers:
    @pytest.mark.parametrize(
        ("hosts", "renewed"),
        [([], []), (["10.0.0.1"], ["00:01"]), (["10.0.0.1"], ["30:00", "00:01"])],
        ids=["nothing tells", "one", "one that was replaced"],
    )
    async def test_the_only_one_is_asked_as_ever(
        self, hosts: list[str], renewed: list[str]
    ) -> None:
        kube = control(hosts, renewed)
        async with api_metrics.clients(kube) as servers:
            assert servers == [kube]

    async def test_several_are_asked_each_at_its_own_address_and_added_up(self) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            request = (await reader.readuntil(b"\r\n\r\n")).split()[1]
            host = writer.get_extra_info("sockname")[0]
            text = "\n".join(
                [
                    f"process_start_time_seconds {host[-1]}",
                    *histogram("POST", "resource", ("+Inf", int(host[-1]))),
                ]
            )
            body = b"{}" if request == b"/version" else text.encode() + b"\n"
            writer.write(
                b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
                + body
            )
            await writer.drain()
            writer.close()

        with socket.create_server(("127.0.0.2", 0)) as free:
            port = free.getsockname()[1]
        server = await asyncio.start_server(serve, ["127.0.0.2", "127.0.0.3"], port)
        try:
            async with api_metrics.clients(
                control(["127.0.0.2", "127.0.0.3"], [], port)
            ) as servers:
                total = await api_metrics.scrape(servers)
        finally:
            server.close()
        assert total.started == [2.0, 3.0]
        assert (
            api_metrics.counts(api_metrics.delta(api_metrics.Scrape(), total))["POST-pods-count"]
            == 5
        )

    @pytest.mark.parametrize(
        ("hosts", "renewed", "message"),
        [
            (
                ["127.0.0.1", "127.0.0.2"],
                [],
                r"there are 2 API servers, and 127\.0\.0\.1:9 does not answer",
            ),
            (["10.0.0.1"], ["00:01", "00:09"], "2 API servers share 1 address"),
        ],
    )
    async def test_where_not_all_can_be_asked_there_is_no_data(
        self, hosts: list[str], renewed: list[str], message: str
    ) -> None:
        with pytest.raises(KubeError, match=message):
            async with api_metrics.clients(control(hosts, renewed, 9)):
                pass


class TestMessages:
    def test_one_row_a_distinct_message_without_names(self) -> None:
        def row(i: int, status: Any, error: str | None) -> Row:
            return Row(
                "r", i, f"r-{i}", "ns", "Pod", "", "ready", "created", status, 1.0, error=error
            )

        refused = [
            row(i, "failed", f'pods "r-{i}" is forbidden: exceeded quota: q, used: pods=9')
            for i in range(3)
        ]
        stuck = [
            row(i, "censored", f"FailedMount: volume of virt-launcher-r-{i}-x7k2p is not there")
            for i in range(3, 5)
        ]
        fine = [row(9, "ok", "Unschedulable: for a moment")]
        assert measurements.messages([*refused, *stuck, *fine]) == {
            'pods "NAME" is forbidden: exceeded quota: q, used: pods=9': 3,
            "FailedMount: volume of NAME is not there": 2,
        }
        rows = measurements.message_measurements([*refused, *stuck], {"count": 5})
        assert [(measurement.metric, measurement.value) for measurement in rows] == [
            ("failures", 3.0),
            ("failures", 2.0),
        ]
        assert rows[1].coords == {"count": 5, "message": "FailedMount: volume of NAME is not there"}


class TestAsked:
    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (
                "steady --churn 500 --count 100",
                "churn: 500 is too many of 100; it is at most count",
            ),
            ("steady --churn -1", "churn: -1 is too few"),
            ("burst --count 100 400", "several are a ladder"),
            ("burst --template pod", "Pod creates no VMI"),
            ("burst --burst 5", "--burst needs --arrival burst"),
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
                (
                    "no figure of burst is called creation_to_runing_p95; the nearest is "
                    "creation_to_running_p95"
                ),
            ),
            (
                "burst --gate create-pods-count<60",
                "no figure of burst is called create-pods-count; the nearest is CREATE-pods-count",
            ),
            (
                "burst --gate CREATE-pods-count<=2*CREATE-pod",
                "no figure of burst is called CREATE-pod; ",
            ),
            ("burst --gate churn_cycles>3", "no figure of burst is called churn_cycles; "),
            (
                "steady --gate running-phase-count>3",
                "no figure of steady is called running-phase-count; ",
            ),
            ("burst --gate schedule_held>0.9", "no figure of burst is called schedule_held; "),
            (
                "burst --gate virt_api_cpu_cores_avg<1",
                "the gate on virt_api_cpu_cores_avg needs a Prometheus",
            ),
        ],
    )
    def test_what_cannot_be_is_told_before_anything_is_waited_for(
        self,
        words: str,
        message: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        cli: CommandLine,
    ) -> None:
        monkeypatch.setattr(scale, "on_cluster", lambda args, work, _: asyncio.run(work(None)))
        output = cli(["scale", "vmi", *words.split(), "-o", str(tmp_path / "out")], 2).err
        assert message in output
        assert output.count("\n") == 1
        assert not (tmp_path / "out").exists()


class TestThroughput:
    def test_of_a_steady_state_it_is_the_ramp_s_and_not_that_of_its_pauses(self) -> None:
        """20 VMIs run within a second; then one is replaced each 100 s."""
        items = [Submission(i, f"r-{i}", "ns", 1, 1, 2) for i in range(25)]
        batches = [items[:20], *([item] for item in items[20:])]
        at = [1000.0 + (i / 19 if i < 20 else 100 * (i - 18)) for i in range(25)]
        rows = [
            Row(
                "r",
                i,
                f"r-{i}",
                "ns",
                VMI,
                "",
                "creation_to_running",
                "created",
                "ok",
                1.0,
                receive_time=at[i],
                reached=at[i],
            )
            for i in range(25)
        ]
        session: Any = SimpleNamespace(
            submissions=items,
            batches=[(GeneratorResult("r", batch, 0.0, 1), Schedule()) for batch in batches],
            watch_lag=SimpleNamespace(p99=0.001),
            phases={},
            notes=[],
        )
        figures = figures_of(session, rows, [])
        assert figures["throughput_mean"] == pytest.approx(19.0)
        assert figures["success_ratio"] == 1.0
        result = measurements.figure_measurements(figures, {}, 20)
        assert [item.value for item in result if item.metric == "throughput"] == [
            pytest.approx(19.0)
        ]


class TestAudit:
    def test_every_rung_and_gate_is_there_under_the_audit_s_names(self) -> None:
        held = [gates.parse_gate(text) for text in ("api_p99 < 1", "api_p99 < 0.1")]

        def result(count: int, p99: float) -> Result:
            figures: dict[str, float | None] = {
                "api_p99": p99,
                "avgVirtAPIMemoryUsageInMB": 2.0,
                "virt_requests/CREATE-pods": 5.0,
            }
            figures |= {
                "running-phase-count": float(count),
                "CREATE-pods-count": 7.0,
                "deletion_p50": 3.0,
                "deletion_to_failed_p95": 4.0,
            }
            return Result(
                "ladder",
                count,
                "r",
                [],
                [],
                figures,
                {},
                gates.evaluate(held, figures),
                started=10.0,
                ended=20.0,
            )

        audit = run_file.audit([result(100, 0.05), result(200, 0.5)])
        assert [
            (item["Count"], [gate["passed"] for gate in item["Gates"]]) for item in audit["Rungs"]
        ] == [(100, [True, True]), (200, [True, False])]
        values = audit["Values"]
        want = {
            "running-phase-count": 200,
            "CREATE-pods-count": 5,  # of KubeVirt's own pods
            "apiserver/CREATE-pods-count": 7,
            "avgVirtAPIMemoryUsageInMB": 2,
            "virtControllerWorkqueueAddRate": None,
            "deletion_p50": 3.0,
            "vmiDeletionToSucceededSecondsP50": None,  # gone is not succeeded
            "vmiDeletionToFailedSecondsP95": 4.0,
        }
        assert {key: values[key]["value"] for key in want} == want
        assert values["api_p99"]["thresholdResult"]["thresholdExceeded"] is True, (
            "of two gates the one that was breached"
        )
        assert run_file.audit([]) == {"Values": {}, "Rungs": []}

    def test_the_keys_of_a_vm_are_those_of_its_vmi(self) -> None:
        figures: dict[str, float | None] = {
            "creation_to_running_p50": 8.68,
            "vmi_creation_to_running_p50": 1.0,
            "deletion_to_succeeded_p50": 3.1,
            "vmi_deletion_to_succeeded_p50": 2.74,
        }
        values = run_file.audit([Result("burst", 9, "r", [], [], figures, {})])["Values"]
        assert values["vmiCreationToRunningSecondsP50"]["value"] == 1.0
        assert values["vmiDeletionToSucceededSecondsP50"]["value"] == 2.74

    def test_a_ratio_of_requests_stands_beside_the_counts_it_is_of(self) -> None:
        figures: dict[str, float | None] = {"PATCH-x-count": 250.0, "CREATE-pods-count": 100.0}
        gate = gates.parse_gate("PATCH-x-count <= 2 * CREATE-pods-count")
        verdicts = gates.evaluate([gate], figures)
        values = run_file.audit([Result("burst", 9, "r", [], [], figures, {}, verdicts)])["Values"]
        threshold = values["apiserver/PATCH-x-count"]["thresholdResult"]
        assert threshold["thresholdMetric"] == "apiserver/CREATE-pods-count"
        assert threshold["thresholdExceeded"] is True
