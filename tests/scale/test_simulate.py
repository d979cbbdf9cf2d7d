"""Simulated systems, manifests of gangs and queues, and the daily suites."""

from pathlib import Path

import orjson
import pytest

from perfdag.steps.scale import gangs, simulate
from perfdag.steps.scale.observer import Observer, Record
from perfdag.steps.scale.templates import Template, load


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


class TestGangs:
    def jobs(self) -> Template:
        return load("job", "r1", {"workers": 4, "gpus": 2})

    def test_volcano_gets_a_pod_group_that_its_pods_name(self) -> None:
        group, own = (orjson.loads(each.render("g-1", "ns", 1)) for each in gangs.gang_of(gangs.VOLCANO, self.jobs(), 4, "q").documents)
        assert (group["apiVersion"], group["kind"]) == ("scheduling.volcano.sh/v1beta1", "PodGroup")
        assert group["spec"] == {"minMember": 4, "queue": "q"}
        assert group["metadata"]["name"] == own["metadata"]["name"] == "g-1"
        assert (own["kind"], own["spec"]["replicas"]) == ("ReplicaSet", 4)
        pods = own["spec"]["template"]
        assert own["spec"]["selector"]["matchLabels"].items() <= pods["metadata"]["labels"].items()
        assert pods["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "g-1"
        assert pods["spec"]["schedulerName"] == "volcano"
        assert pods["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"

    def test_kai_gets_a_job_that_says_how_many_start_together(self) -> None:
        (document,) = gangs.gang_of(gangs.KAI, self.jobs(), 4, "q").documents
        job = orjson.loads(document.render("g-1", "ns", 1))
        assert job["metadata"]["annotations"]["kai.scheduler/batch-min-member"] == "4"
        assert job["metadata"]["labels"]["kai.scheduler/queue"] == "q"
        assert job["spec"]["template"]["metadata"]["labels"]["kai.scheduler/queue"] == "q"
        assert job["spec"]["template"]["spec"]["schedulerName"] == "kai-scheduler"

    def test_two_queues_share_alike_and_may_borrow(self) -> None:
        first, second = gangs.queues(gangs.VOLCANO, "r", 12)
        assert first["spec"] == second["spec"] == {"weight": 1, "reclaimable": True, "deserved": {"nvidia.com/gpu": "12"}}
        parent, first, second = gangs.queues(gangs.KAI, "r", 12)
        assert parent["spec"]["resources"]["gpu"]["quota"] == 24
        assert first["spec"] == second["spec"]
        assert first["spec"]["parentQueue"] == parent["metadata"]["name"]
        assert first["spec"]["resources"]["gpu"] == {"quota": 12, "limit": -1, "overQuotaWeight": 1}

    def test_a_gang_of_which_a_part_is_placed_is_split(self) -> None:
        observer = Observer(None, "r", [], [])  # type: ignore[arg-type]
        for gang, nodes in (("whole", 3), ("part", 2), ("none", 0)):
            for i in range(3):
                pod = Record("Pod", f"{gang}-{i}", f"{gang}-{i}", "ns", gang)
                pod.put("created")
                if i < nodes:
                    pod.put("scheduled")
                observer.records[pod.uid] = pod
        assert gangs.placed(observer, 3) == (1, 1)
        observer.records["whole-0"].put("gone")
        assert gangs.placed(observer, 3) == (0, 2), "a pod that was evicted is no longer placed"

    def test_room_is_counted_in_whole_pods_of_nodes(self) -> None:
        assert gangs.room_for([8, 8, 7], 4, 2) == 2, "five pods of 4 GPUs fit"
