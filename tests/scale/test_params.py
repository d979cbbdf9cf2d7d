"""What vmi-burst, vmi-steady and scale refuse before anything starts, how long they may take, and
what the plan holds.
"""

from pathlib import Path
from typing import Any

import pytest

from perfdag.benchmark.registry import get
from perfdag.plan import make_plan
from perfdag.shape import Shape
from perfdag.steps.scale.objects import built_in
from perfdag.steps.scale.vmi import VmiBurstParams
from perfdag.suite.load import load_suite

STATEFUL_SET = (
    "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: '${name}'}\n"
    "spec: {replicas: 3, template: {spec: {containers: []}}}\n"
)
VMIRS = built_in()["vmirs"].read_text().replace("${workers}", "4")


def refusal(benchmark: str, **params: Any) -> str:
    own = get(benchmark)
    return "; ".join(each.text for each in own.check(own.Params.model_validate(params), Shape()))


@pytest.mark.parametrize(
    ("benchmark", "params", "message"),
    [
        ("vmi-burst", {"counts": [100, 400]}, "several are a ladder"),
        ("vmi-burst", {"arrival": "constant"}, "needs a rate above 0"),
        ("vmi-burst", {"template": "pod"}, "Pod creates no VMI"),
        (
            "vmi-burst",
            {"template": VMIRS.replace("${name}", "${nmae}")},
            "or in a suite under `variables`",
        ),
        ("vmi-burst", {"replicas": 3}, "the template has 1 replicas, not 3"),
        ("vmi-burst", {"template": VMIRS}, "the template has 4 replicas, not 1"),
        ("vmi-burst", {"gates": ["churn_cycles > 3"]}, "no figure of burst is called churn_cycles"),
        (
            "vmi-burst",
            {"gates": ["avgVirtAPICPUUsage < 1"]},
            "the gate on avgVirtAPICPUUsage needs a Prometheus",
        ),
        ("vmi-steady", {"count": 100, "churn": 500}, "churn: 500 is too many of 100"),
        (
            "vmi-steady",
            {"gates": ["creation_to_runing_p95 < 60"]},
            "the nearest is creation_to_running_p95",
        ),
        *(
            (benchmark, {"gates": [f"{stage}_p95 < 60"], **params}, f"90 objects, and {count} are")
            for benchmark, stage, params, count in (
                ("vmi-burst", "running", {"counts": [80, 400], "scenario": "ladder"}, 80),
                ("vmi-steady", "running", {"count": 20, "duration": 100, "pause": 10}, 70),
                ("scale", "scheduled", {"count": 80}, 80),
            )
        ),
        ("scale", {"gates": ["submit_lag < 1"]}, "no figure of scale is called submit_lag"),
        ("scale", {"arrival": "batch"}, "arrival batch needs a delay"),
        ("scale", {"template": "vmi"}, "use vmi-burst or vmi-steady"),
        ("scale", {"template": "job", "pvc": True}, "pvc is of Run:ai's kinds; write the claim"),
        *(
            ("scale", {"goal": "succeeded", **params}, "does not end by itself")
            for params in ({"template": "training"}, {"template": STATEFUL_SET})
        ),
    ],
)
def test_what_cannot_be_is_refused(benchmark: str, params: dict[str, Any], message: str) -> None:
    assert message in refusal(benchmark, **params)


@pytest.mark.parametrize(
    ("benchmark", "params"),
    [
        ("vmi-burst", {"template": "vmirs", "replicas": 3, "namespace": ["a", "b"]}),
        ("vmi-burst", {"counts": [90], "gates": ["creation_to_running_p95 < 60"]}),
        ("vmi-burst", {"counts": [80], "gates": ["running_p50 < 60", "api_p99 < 1"]}),
        ("vmi-burst", {"prometheus": "http://x", "gates": ["avgVirtAPICPUUsage < 1"]}),
        ("vmi-steady", {"count": 80, "pause": 0, "gates": ["running_p95 < 60"]}),
        ("scale", {"template": STATEFUL_SET}),
        ("scale", {"goal": "succeeded", "gates": ["submission_to_succeeded_p50 < 9"]}),
        ("scale", {"arrival": "constant", "rate": 5, "gates": ["submit_lag < 1"]}),
        ("scale", {"goal": "succeeded", "template": "pytorchjob"}),
        ("scale", {"arrival": "batch", "delay": "1s", "template": "training"}),
    ],
)
def test_what_can_be_is_not_refused(benchmark: str, params: dict[str, Any]) -> None:
    assert refusal(benchmark, **params) == ""


BRIEF: dict[str, Any] = {"timeout": 60, "lock_timeout": 0, "primer": False}


@pytest.mark.parametrize(
    ("benchmark", "params", "least"),
    [
        ("vmi-burst", {"timeout": 900, "lock_timeout": 3600}, 3600 + 2 * 300 + 60 + 2 * 900),
        ("vmi-burst", {**BRIEF, "arrival": "constant", "rate": 0.5}, 2 * 60 + 198),
        (
            "vmi-burst",
            {**BRIEF, "scenario": "ladder", "counts": [4, 8], "cooldown": 50},
            4 * 60 + 50,
        ),
        ("vmi-steady", {**BRIEF, "duration": 1000}, 1000 + 4 * 60),
        (
            "scale",
            {
                "arrival": "batch",
                "delay": 5,
                "parallel": 1,
                "count": 1000,
                "timeout": 60,
                "lock_timeout": 7,
            },
            7 + 4995 + 3 * 60,
        ),
    ],
)
def test_the_limit_of_a_sample_leaves_room_for_every_wait(
    benchmark: str, params: dict[str, Any], least: float
) -> None:
    own = get(benchmark)
    assert least <= own.limit(own.Params.model_validate(params)) <= least + 60


@pytest.mark.parametrize(
    ("gates", "api", "want"),
    [
        ([], True, ["api_p99 < 1", "api_list_p99 < 30"]),
        (["api_p99 < 2"], True, ["api_list_p99 < 30", "api_p99 < 2"]),
        (["api_p99 < 2"], False, ["api_p99 < 2"]),
    ],
)
def test_the_limits_of_the_api_stand_beside_gates_of_your_own(
    gates: list[str], api: bool, want: list[str]
) -> None:
    params = VmiBurstParams(gates=gates, api_gates=api)
    assert [str(gate) for gate in params.all_gates] == want


def test_the_suites_plan_what_they_say() -> None:
    """2,000 training jobs 5 at a time each second, 1,000 distributed ones of 7 workers with a
    claim; 100, and 400 to 800 VMIs a day; 1,000 VMIs and 1,000 VMs on 100 nodes of KWOK.
    """
    suites, points = Path(__file__).parents[2] / "suites", list[Any]()
    for name in ("scale", "vmi-daily", "vmi-daily-scale", "vmi-kwok"):
        points += make_plan(load_suite(str(suites / f"{name}.yaml"))).points
    params: list[Any] = [get(item.benchmark).Params.model_validate(item.params) for item in points]
    training, distributed, daily, ladder, density, density_vm = params
    assert (training.count, training.schedule.offsets(11)[-1]) == (2000, 2.0)
    assert training.namespaces == ["runai-project-0"]
    assert (distributed.count, distributed.workers, distributed.pvc) == (1000, 7, True)
    assert distributed.schedule.offsets(2) == [0, 5.0]
    assert (daily.counts, ladder.counts, density.counts) == ([100], [400, 600, 800], [1000])
    assert (density_vm.counts, density_vm.template, density.template) == ([1000], "vm", "vmi")
    assert daily.prometheus
    assert ladder.prometheus


def planned(folder: Path, text: str) -> Any:
    (folder / "s.yaml").write_text(text)
    return make_plan(load_suite(str(folder / "s.yaml")))


def test_a_template_of_your_own_goes_into_the_plan_with_its_variables(tmp_path: Path) -> None:
    """The pod that measures has not the file."""
    file = tmp_path / "mine.yaml"
    file.write_text(built_in()["vmi"].read_text().replace("90Mi", "${memory}"))
    params = f"{{template: {file}, variables: {{memory: 1Gi}}}}"
    suite = f"name: s\nentries:\n  - {{benchmark: vmi-burst, params: {params}}}\n"
    (point,) = planned(tmp_path, suite).points
    file.unlink()
    assert "kind: VirtualMachineInstance" in point.params["template"]
    assert refusal("vmi-burst", **point.params) == ""
