"""Scale without a cluster: templates, schedules, stages, rows, gates, API metrics, the Run:ai files."""

import asyncio
import csv
import math
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest

from perfdag.kube import KubeError
from perfdag.steps.scale import apimetrics, gates, prometheus, runai, simulate
from perfdag.steps.scale.generator import Submission, generate
from perfdag.steps.scale.observer import Record
from perfdag.steps.scale.rows import Clocks, Row, rows_of
from perfdag.steps.scale.schedule import ARRIVALS, Schedule
from perfdag.steps.scale.stages import extractor, failure, unix_ns
from perfdag.steps.scale.summary import rank, summaries, throughput
from perfdag.steps.scale.templates import Document, Template, TemplateError, built_in, load

SECOND = 1_000_000_000
BASE = 1_700_000_000 * SECOND


class TestTemplates:
    @pytest.mark.parametrize("name", sorted(built_in()))
    def test_built_in_ones_render_to_json_with_their_name(self, name: str) -> None:
        made = load(name, "r1", {"workers": 7, "gpus": 4})
        body = orjson.loads(made.documents[-1].render("j-1", "ns", 5, "2026-01-01T00:00:00Z"))
        assert body["metadata"]["name"] == "j-1"
        assert body["metadata"]["namespace"] == "ns"
        assert body["metadata"]["labels"]["perfdag/run"] == "r1"
        assert body["metadata"]["labels"]["perfdag/index"] == "5"
        assert body["metadata"]["annotations"]["perfdag/intended"] == "2026-01-01T00:00:00Z"
        assert b"0name0" not in orjson.dumps(body)
        assert b"${" not in orjson.dumps(body)

    def test_gpus_workers_and_claims_reach_the_objects(self) -> None:
        job = orjson.loads(load("job", "r", {"workers": 3, "gpus": 2}, pvc=True).documents[0].render("a", "n", 0))
        assert (job["spec"]["parallelism"], job["spec"]["completions"]) == (3, 3)
        pod = job["spec"]["template"]["spec"]
        assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"
        assert pod["volumes"][0]["ephemeral"]["volumeClaimTemplate"]["spec"]["resources"]["requests"] == {"storage": "1Mi"}
        work = orjson.loads(load("distributed", "r", {"workers": 7, "gpus": 8}, pvc=True).documents[0].render("a", "n", 0))
        assert (work["spec"]["workers"]["value"], work["spec"]["gpu"]["value"]) == (7, "8")
        assert work["spec"]["pvcs"]["items"]["pvc-new-0"]["value"]["size"] == "1Mi"

    def test_any_field_of_the_user_passes_through(self, tmp_path: Path) -> None:
        text = "apiVersion: x.example.com/v1\nkind: Thing\nmetadata: {name: 'a-${name}'}\nspec: {unheard: [1, '${index}', ${index}], mine: ${mine}}\n"
        (tmp_path / "t.yaml").write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: '${name}'}\n---\n" + text)
        made = load(str(tmp_path / "t.yaml"), "r", {"mine": 7})
        assert [each.kind for each in made.documents] == ["ConfigMap", "Thing"]
        body = orjson.loads(made.documents[-1].render("z", "n", 12))
        assert body["metadata"]["name"] == "a-z"
        assert body["spec"] == {"unheard": [1, "12", 12], "mine": 7}

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("apiVersion: v1\nkind: Pod\nmetadata: {name: fixed}", r"needs metadata.name with \$\{name\}"),
            ("apiVersion: v1\nkind: Pod", "needs metadata.name"),
            ("kind: Pod\nmetadata: {name: '${name}'}", "no apiVersion"),
            ("apiVersion: v1\nkind: Pod\nmetadata: {name: '${nmae}'}", r"unknown placeholder \$\{nmae\}; there are .*name"),
            ("a: [", "is not YAML"),
            ("", "holds no object"),
            ("just text", "no apiVersion"),
        ],
    )
    def test_a_bad_one_is_one_clear_line(self, tmp_path: Path, text: str, told: str) -> None:
        (tmp_path / "t.yaml").write_text(text)
        with pytest.raises(TemplateError, match=told) as caught:
            load(str(tmp_path / "t.yaml"), "r")
        assert "\n" not in str(caught.value)

    def test_no_such_template_names_those_there_are(self) -> None:
        with pytest.raises(TemplateError, match=r"built in are .*training.*vmi"):
            load("generel", "r")


class TestSchedule:
    def test_constant_batch_burst_and_ramp(self) -> None:
        assert Schedule("constant", 10).offsets(3) == [0, 0.1, 0.2]
        assert Schedule("batch", burst=2, delay=1.5).offsets(5) == [0, 0, 1.5, 1.5, 3.0]
        assert Schedule("burst", 4, burst=2).offsets(4) == [0, 0, 0.5, 0.5]
        ramp = Schedule("ramp", 10).offsets(100)
        assert ramp[-1] - ramp[-2] == pytest.approx(0.1, rel=0.02), "it ends at its rate"
        assert ramp[17] - ramp[16] > 2 * (ramp[-1] - ramp[-2])

    def test_poisson_is_seeded_and_has_its_rate(self) -> None:
        first, again = (Schedule("poisson", 100, seed=3).offsets(5000) for _ in range(2))
        assert first == again != Schedule("poisson", 100, seed=4).offsets(5000)
        gaps = [b - a for a, b in pairwise(first)]
        assert statistics.mean(gaps) == pytest.approx(0.01, rel=0.05)
        assert statistics.stdev(gaps) == pytest.approx(0.01, rel=0.08), "exponential gaps: deviation equals mean"

    @pytest.mark.parametrize("arrival", [each for each in ARRIVALS if each != "closed"])
    def test_a_missing_rate_is_refused(self, arrival: Any) -> None:
        with pytest.raises(ValueError, match=f"arrival {arrival} needs"):
            Schedule(arrival, burst=1)


class Slow:
    """A submitter that takes its time, and refuses every `refuse`-th object."""

    def __init__(self, seconds: float, refuse: int = 0) -> None:
        self.seconds, self.refuse, self.names = seconds, refuse, list[str]()

    async def submit(self, bodies: list[bytes], namespace: str) -> tuple[str, int]:
        await asyncio.sleep(self.seconds)
        name = orjson.loads(bodies[-1])["metadata"]["name"]
        if self.refuse and int(name.rpartition("-")[2]) % self.refuse == 0:
            raise KubeError(403, "Forbidden", "exceeded quota: x")
        self.names.append(f"{namespace}/{name}")
        return name, 0


TEMPLATE = Template("t", (Document("v1", "Pod", b'{"metadata":{"name":"perfdag-0name0"}}'),))


class TestGenerator:
    async def test_a_remainder_is_not_dropped_and_namespaces_take_turns(self) -> None:
        slow = Slow(0.0)
        made = await generate(slow, TEMPLATE, 10, ["a", "b"], Schedule(), 4, run="r")
        assert sorted(slow.names) == sorted(f"{'ab'[i % 2]}/r-{i}" for i in range(10))
        assert made.summary(Schedule())["created"] == 10

    async def test_an_open_loop_holds_its_rate_over_a_slow_server(self) -> None:
        schedule = Schedule("constant", 100)
        made = await generate(Slow(0.3), TEMPLATE, 150, ["n"], schedule, 60, run="r")
        told = made.summary(schedule)
        assert told["rate_share"] > 0.98
        assert told["held"] is True
        gaps = [each.intended_ns - made.submissions[0].intended_ns for each in made.submissions]
        assert gaps[-1] == pytest.approx(1.49e9, rel=1e-6)

    async def test_a_rate_that_was_not_held_is_said(self) -> None:
        schedule = Schedule("constant", 100)
        told = (await generate(Slow(0.1), TEMPLATE, 60, ["n"], schedule, 2, run="r")).summary(schedule)
        assert told["held"] is False
        assert told["rate_share"] < 0.4
        assert told["lag_p99_s"] > 1.0

    async def test_refused_objects_are_kept_and_counted(self) -> None:
        made = await generate(Slow(0.0, refuse=20), TEMPLATE, 100, ["n"], Schedule(), 8, run="r")
        told = made.summary(Schedule())
        assert (told["created"], told["failed"]) == (95, 5)
        assert told["errors"] == {"x": 5}
        rows = list(rows_of(made.submissions, {}, Clocks(0), run="r", kind="Pod", until_ns=time.monotonic_ns()))
        created = [row for row in rows if row.stage == "created"]
        assert len(created) == 100
        assert sum(row.status == "failed" for row in created) == 5


def vmi(*phases: tuple[str, str], **more: Any) -> dict[str, Any]:
    metadata = {"name": "v", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z", **more}
    stamps = [{"phase": phase, "phaseTransitionTimestamp": f"2026-01-01T00:00:{at}Z"} for phase, at in phases]
    return {"metadata": metadata, "status": {"phase": phases[-1][0], "phaseTransitionTimestamps": stamps}}


class TestStages:
    def test_time(self) -> None:
        assert unix_ns("2026-01-01T00:00:01Z") == 1767225601 * SECOND
        assert unix_ns("2026-01-01T00:00:01.123456789Z") == 1767225601 * SECOND + 123456789
        assert unix_ns("2026-01-01T01:00:01.5+01:00") == 1767225601 * SECOND + SECOND // 2
        assert unix_ns(None) == 0

    def test_all_phases_of_a_vmi_only_the_present_one_is_fresh(self) -> None:
        body = vmi(("Pending", "01"), ("Scheduling", "02"), ("Scheduled", "03.25"), ("Running", "04"))
        seen = {stage: (at, fresh) for stage, at, fresh in extractor("VirtualMachineInstance")(body) if at}
        assert list(seen) == ["created", "pending", "scheduling", "scheduled", "running"]
        assert seen["scheduled"] == (unix_ns("2026-01-01T00:00:03.25Z"), False)
        assert seen["running"][1] is True

    def test_failed_and_what_it_says(self) -> None:
        body = vmi(("Pending", "01"), ("Failed", "02"))
        body["status"]["message"] = "no\n room"
        assert "failed" in {stage for stage, _, _ in extractor("VirtualMachineInstance")(body)}
        assert failure(body) == "Failed: no room"

    def test_deletion_is_the_moment_of_the_request_not_the_end_of_the_grace(self) -> None:
        body = vmi(("Running", "01"), deletionTimestamp="2026-01-01T00:01:00Z", deletionGracePeriodSeconds=30)
        found = {stage: at for stage, at, _ in extractor("VirtualMachineInstance")(body)}
        assert found["deleting"] == unix_ns("2026-01-01T00:00:30Z")

    def test_unschedulable_and_gated_are_not_scheduled(self) -> None:
        def stages(reason: str) -> set[str]:
            condition = {"type": "PodScheduled", "status": "False", "reason": reason, "lastTransitionTime": "2026-01-01T00:00:00Z"}
            return {stage for stage, _, _ in extractor("Pod")({"metadata": {}, "spec": {}, "status": {"conditions": [condition]}})}

        assert stages("Unschedulable") == {"created", "unschedulable"}
        assert stages("SchedulingGated") == {"created", "gated"}

    def test_a_restart_does_not_move_a_stage(self) -> None:
        record = Record("Pod", "u", "n", "ns", "")
        assert record.put("ready", 5, 0, 7)
        assert not record.put("ready", 50, 0, 70)
        assert record.times("ready") == (5, 0, 7)
        assert record.times("gone") is None


def record(kind: str, uid: str, owner: str, **stages: int) -> Record:
    """Stages in ms of receive time after BASE."""
    made = Record(kind, uid, uid, "ns", owner)
    for stage, ms in stages.items():
        made.put(stage, received_ns=BASE + ms * 1_000_000)
    return made


def rows_for(records: list[Record], kind: str, expected: int | None = None, until: int = 60_000) -> dict[str, Row]:
    item = Submission(0, "root", "ns", BASE, BASE, BASE + 1_000_000, "root")
    found = rows_of(
        [item],
        {each.uid: each for each in records},
        Clocks(0, 0.0, 0.005),
        run="r",
        kind=kind,
        until_ns=BASE + until * 1_000_000,
        expected_pods=expected,
    )
    return {row.stage: row for row in found}


class TestRows:
    def runai_records(self) -> list[Record]:
        pods = [record("Pod", f"p{i}", "job", created=300 + 10 * i, scheduled=700 + i, ready=800 + i) for i in range(8)]
        claims = [record("PersistentVolumeClaim", f"c{i}", f"p{i}", created=310, requested=400 + i, bound=460 + i) for i in range(8)]
        return [
            record("DistributedWorkload", "root", "", created=100),
            record("PyTorchJob", "job", "root", created=250),
            record("PodGroup", "pg", "job", created=420),
            *pods,
            *claims,
        ]

    def test_the_chain_of_a_distributed_workload_has_exact_deltas(self) -> None:
        rows = rows_for(self.runai_records(), "DistributedWorkload", 8)
        want = {
            "workload_created": 0.1,
            "job_created": 0.15,
            "first_pod_created": 0.05,
            "last_pod_created": 0.12,
            "pod_group_created": 0.12,
            "scheduled": 0.287,
            "pvc_requested": -0.02,
            "pvc_bound": 0.067,
            "ready": 0.1,
            "submission_to_scheduled": 0.707,
        }
        assert {name: row.seconds for name, row in rows.items() if row.status == "ok"} == pytest.approx(want)
        assert rows["evicted"].status == "unobserved"
        assert rows["evicted"].seconds is None
        assert all(row.resolution_s == 0.005 for row in rows.values() if row.status == "ok")

    def test_a_late_pod_of_a_gang_is_the_one_that_counts(self) -> None:
        records = self.runai_records()
        late = next(each for each in records if each.uid == "p3")
        late._times[3 * late.stages.index("scheduled") + 2] = BASE + 9_000_000_000
        assert rows_for(records, "DistributedWorkload", 8)["submission_to_scheduled"].seconds == pytest.approx(9.0)

    def test_a_gang_with_a_pod_missing_is_censored(self) -> None:
        records = [each for each in self.runai_records() if each.uid not in ("p7", "c7")]
        row = rows_for(records, "DistributedWorkload", 8)["submission_to_scheduled"]
        assert row.status == "censored"
        assert row.seconds == pytest.approx(60.0), "how long it had waited"

    def test_an_eviction_is_measured_from_its_own_pair(self) -> None:
        records = self.runai_records()
        records[3].put("evicted", received_ns=BASE + 1_420_000_000)
        assert rows_for(records, "DistributedWorkload", 8)["evicted"].seconds == pytest.approx(1.0)

    def test_an_unseen_stage_is_unobserved_when_a_later_one_was_seen(self) -> None:
        own = "VirtualMachineInstance"
        rows = rows_for([record(own, "root", "", created=10, pending=20, scheduled=90, running=100)], own)
        assert rows["scheduling"].status == "unobserved"
        assert rows["scheduled"].status == "unobserved", "its reference was not seen"
        assert rows["creation_to_running"].seconds == pytest.approx(0.09)

    def test_names_do_not_join_only_owners_do(self) -> None:
        stray = record("Pod", "root-0", "somebody-else", created=1, scheduled=2)
        rows = rows_for([record("Job", "root", "", created=1), stray], "Job", 1)
        assert rows["first_pod_created"].status == "censored"

    def test_whole_seconds_of_the_api_say_so(self) -> None:
        own = "VirtualMachineInstance"
        made = Record(own, "root", "root", "ns", "")
        made.put("created", api_ns=BASE)
        made.put("running", api_ns=BASE + 3 * SECOND)
        row = rows_for([made], own)["creation_to_running"]
        assert (row.seconds, row.resolution_s, row.source) == (3.0, 1.0, "api")

    def test_percentiles_count_the_censored_and_refuse_few_samples(self) -> None:
        def rows(ok: int, never: int) -> list[Row]:
            made = [Row("r", i, f"n{i}", "ns", "Pod", "", "ready", "created", "ok", float(i + 1)) for i in range(ok)]
            return made + [Row("r", 0, "x", "ns", "Pod", "", "ready", "created", "censored", 60.0)] * never

        (full,) = summaries(rows(100, 0))
        assert (full.p50, full.p95, full.p99) == (50.0, 95.0, None)
        (some,) = summaries(rows(94, 6))
        assert (some.p50, some.p95) == (50.0, None), "p95 falls among those that never came"
        assert (some.ok, some.censored) == (94, 6)
        assert summaries(rows(89, 0))[0].p95 is None
        assert rank([1.0] * 459, 0.99) == 1.0

    def test_throughput_of_ten_a_second(self) -> None:
        mean, best = throughput([i / 10 for i in range(200)])
        assert mean == pytest.approx(10.0)
        assert best == pytest.approx(10.0)
        assert throughput([1.0]) == (None, None)


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
        assert prometheus.fold(points, "growth") == {"": 80.0}
        assert prometheus.fold([(0.0, math.nan)], "range") == {"_avg": None, "_min": None, "_max": None}
        assert prometheus.fold([], "growth") == {"": None}
        assert prometheus.fold([(0, 1.0), (1, math.nan), (2, 3.0)], "range") == {"_avg": 2.0, "_min": 1.0, "_max": 3.0}

    def test_histograms_are_summed_before_the_quantile(self) -> None:
        assert "sum by (le)" in prometheus.queries()["workqueue_p99_s"][0]
        assert "rate(kubevirt_workqueue_depth" not in prometheus.queries()["workqueue_depth"][0]


class TestRunaiFiles:
    def folder(self, tmp_path: Path, sampled: list[dict[str, Any]]) -> Path:
        submitted = [
            {
                "jobName": each["jobName"],
                "projectName": "p",
                "jobNamespace": "runai-p",
                "submitTimestamp": "2026-01-01T00:00:00.700000+00:00",
            }
            for each in sampled
        ]
        (tmp_path / "submitted.json").write_bytes(orjson.dumps(submitted))
        (tmp_path / "sampled.json").write_bytes(orjson.dumps(sampled))
        return tmp_path

    def item(self, name: str, **times: str | None) -> dict[str, Any]:
        second = {
            "workloadCreatedTimestamp": "01",
            "jobCreatedTimestamp": "02",
            "firstPodCreatedTimestamp": "03",
            "lastPodCreatedTimestamp": "04",
            "podGroupCreatedTimestamp": "05",
            "podSchedulingDecisionTimestamp": "06",
            "firstEvictionTimestamp": None,
            "firstPVCBindRequestTimestamp": "07",
            "firstPVCBindTimestamp": "09",
            "backendJobCreatedTimestamp": None,
        } | times
        stamps = {key: f"2026-01-01T00:00:{at}Z" if at else None for key, at in second.items()}
        return {"jobName": name, "jobNamespace": "runai-p", "projectName": "p"} | stamps

    def test_reference_stages_and_columns(self, tmp_path: Path) -> None:
        times = runai.read_times(self.folder(tmp_path, [self.item("a")]))
        assert times[0].deltas == {
            "Workload Creation": 1.0,
            "Job Creation": 1.0,
            "First Pod Creation": 1.0,
            "Last Pod Creation": 2.0,
            "Pod Group Creation": 2.0,
            "Pod Scheduling Decision": 1.0,
            "First Eviction": None,
            "First PVC Bind Request": 2.0,
            "First PVC Bind": 2.0,
            "Backend Job Creation": None,
            "Total Pod Scheduling Decision": 6.0,
            "Total Backend Job Creation": None,
        }
        runai.write_csv(tmp_path / "times.csv", times)
        rows = list(csv.reader((tmp_path / "times.csv").open()))
        assert len(rows[0]) == len(rows[1]) == len(set(rows[0]))
        assert rows[1][rows[0].index("First Eviction")] == ""

    def test_excluded_workloads_are_named_and_kept_in_the_table(self, tmp_path: Path) -> None:
        late_pod = self.item("late", firstPodCreatedTimestamp="08")
        times = runai.read_times(self.folder(tmp_path, [self.item("a"), late_pod, self.item("b")]))
        assert [each.excluded != "" for each in times] == [False, True, False]
        assert len(runai.select(times, True, None, None)) == 2
        assert len(runai.select(times, False, None, None)) == 3
        assert [each.info["jobName"] for each in runai.select(times, True, 2, 1)] == ["b"]

    def test_missing_files_and_bad_settings_say_what_to_do(self, tmp_path: Path) -> None:
        with pytest.raises(runai.SettingsError, match="perfdag scale submit"):
            runai.read_times(tmp_path)
        (tmp_path / "s.yaml").write_text("submiter: api")
        with pytest.raises(runai.SettingsError, match=r"submiter; there are .*submitter"):
            runai.read_settings(tmp_path / "s.yaml")
        (tmp_path / "s.yaml").write_text("submitter: carrier-pigeon")
        with pytest.raises(runai.SettingsError, match="there are api, kubectl, runai-cli"):
            runai.read_settings(tmp_path / "s.yaml")

    def test_the_cli_gets_an_argument_list(self) -> None:
        argv = runai.runai_argv(runai.Settings(), "distributed", "2", 7, True)
        assert argv[:3] == ["runai", "submit-pytorch", "{name}"]
        assert argv[argv.index("--workers") + 1] == "7"
        assert argv[-4:] == ["--command", "--", "sleep", "infinity"]


class TestSimulate:
    def test_delays_and_failures_reach_the_stages(self) -> None:
        found = {each["metadata"]["name"]: each for each in simulate.stages("kubevirt", {"vmi-running": (800, 3300)}, 5)}
        assert found["vmi-running"]["spec"]["delay"] == {"durationMilliseconds": 800, "jitterDurationMilliseconds": 3300}
        assert (found["vmi-running"]["spec"]["weight"], found["vmi-failed"]["spec"]["weight"]) == (95, 5)
        assert "vmi-failed" not in {each["metadata"]["name"] for each in simulate.stages("kubevirt")}
        with pytest.raises(ValueError, match="no stage 'vmi-runing' in kubevirt; there are"):
            simulate.stages("kubevirt", {"vmi-runing": (1, 1)})

    @pytest.mark.parametrize("text", ["vmi-running", "vmi-running=", "=5", "vmi-running=9-5", "vmi-running=a"])
    def test_a_bad_delay_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="not a delay"):
            simulate.parse_delay(text)


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


class TestSuites:
    @pytest.mark.parametrize(("name", "cron"), [("vmi-daily", "41 4 * * *"), ("vmi-daily-scale", "41 15 * * *")])
    def test_the_daily_suites_render_as_cron_workflows(self, name: str, cron: str, capsys: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip("hera")
        import yaml

        from perfdag.cli import main

        suite = Path(__file__).parents[2] / "suites" / f"{name}.yaml"
        assert f'--schedule "{cron}"' in suite.read_text(), "the file says how it is rendered"
        assert main(["render", str(suite), "--schedule", cron]) == 0
        found = {each["kind"]: each for each in yaml.safe_load_all(capsys.readouterr().out)}
        assert found["CronWorkflow"]["spec"]["schedules"] == [cron]
        assert found["CronWorkflow"]["spec"]["timezone"] == "Etc/UTC"
