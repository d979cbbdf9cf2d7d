"""What the benchmarks vmi-burst, vmi-steady and scale refuse before anything starts, how long
they may take, what the plan holds.
"""

from pathlib import Path
from typing import Any

import pytest

from perfdag.benchmark.registry import get
from perfdag.plan.plan import make_plan
from perfdag.shape import Shape
from perfdag.steps.scale.model.templates import built_in
from perfdag.suite.document import BadDocument
from perfdag.suite.load import load_suite

_PODS = "template: {{spec: {{containers: []}}}}}}\n"
JOB = "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: '${{name}}'}}\nspec: {{{}, " + _PODS
STATEFUL_SET = (
    "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {{name: '${{name}}'}}\n"
    "spec: {{podManagementPolicy: {}, replicas: {}, "
) + _PODS


GATED = {
    "submit": ("ready_p50", "last_pod_created_p95"),
    "gated": ("schedule_rate", "schedule_rate_best_5s", "release_seconds"),
}


def refusal(benchmark: str, **params: Any) -> str:
    result = get(benchmark)
    return "; ".join(result.check(result.Params.model_validate(params), Shape()))


@pytest.mark.parametrize(
    ("benchmark", "params", "message"),
    [
        ("vmi-burst", {"counts": [100, 400]}, "several are a ladder"),
        ("vmi-burst", {"rate": 5}, "arrival closed takes no rate"),
        ("vmi-burst", {"arrival": "poisson"}, "needs a rate above 0"),
        (
            "vmi-burst",
            {"arrival": "constant", "rate": 5, "seed": 1},
            "arrival constant has no seed",
        ),
        ("vmi-burst", {"template": "pod"}, "Pod creates no VMI"),
        ("vmi-burst", {"replicas": 3}, "only the template vmirs takes replicas"),
        ("vmi-burst", {"cooldown": 5}, "burst has no cooldown"),
        ("vmi-steady", {"count": 100, "churn": 500}, "churn: 500 is too many of 100"),
        (
            "vmi-steady",
            {"gates": ["creation_to_runing_p95 < 60"]},
            "the nearest is creation_to_running_p95",
        ),
        *(
            (benchmark, {"gates": [f"{stage}_p95 < 60"], **params}, f"90 objects, and {count} are")
            for benchmark, stage, params, count in (
                ("vmi-burst", "creation_to_running", {"counts": [80]}, 80),
                ("vmi-burst", "running", {"counts": [80, 400], "scenario": "ladder"}, 80),
                ("vmi-steady", "running", {"count": 20, "duration": 100, "pause": 10}, 70),
                ("scale", "scheduled", {"count": 80}, 80),
            )
        ),
        (
            "scale",
            {"gates": ["shedule_rate > 1"], "scenario": "gated"},
            "no figure of gated is called shedule_rate; the nearest is schedule_rate",
        ),
        ("scale", {"gates": ["submit_lag < 1"]}, "no figure of submit is called submit_lag"),
        (
            "scale",
            {"gates": ["submission_to_succeeded_p50 < 1"], "scenario": "gated"},
            "is called submission_to_succeeded_p50",
        ),
        ("scale", {"gates": ["sandbox_p50 < 1"]}, "no figure of submit is called sandbox_p50"),
        ("vmi-steady", {"template": "job"}, "Job creates no VMI"),
        ("scale", {"rate": 5}, "arrival closed takes no rate"),
        ("scale", {"delay": 5}, "arrival closed has no delay"),
        ("scale", {"seed": 5}, "arrival closed has no seed"),
        ("scale", {"arrival": "batch", "delay": 5, "rate": 5}, "arrival batch takes no rate"),
        ("scale", {"scenario": "gated", "template": "training"}, "use template pod or job"),
        (
            "scale",
            {"scenario": "gated", "template": JOB.format("completions: 6, parallelism: 2")},
            "set parallelism: 6",
        ),
        (
            "scale",
            {"scenario": "gated", "template": JOB.format("completions: 6")},
            "all 6 pods of a Job, which creates only 1 until one of them runs",
        ),
        (
            "scale",
            {"scenario": "gated", "template": STATEFUL_SET.format("OrderedReady", 3)},
            "set podManagementPolicy: Parallel",
        ),
        ("scale", {"template": "vmi"}, "use vmi-burst or vmi-steady"),
        (
            "scale",
            {"goal": "succeeded", "template": "training"},
            "a TrainingWorkload does not end by itself",
        ),
        (
            "scale",
            {"goal": "succeeded", "template": STATEFUL_SET.format("Parallel", 3)},
            "a StatefulSet does not end by itself",
        ),
        (
            "scale",
            {"goal": "succeeded", "scenario": "gated"},
            "gated ends when its pods are scheduled",
        ),
        (
            "scale",
            {"template": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: '${name}'}\n"},
            "a ConfigMap creates no pods",
        ),
        (
            "vmi-burst",
            {"template": built_in()["vmirs"].read_text().replace("${workers}", "4")},
            "has 4 replicas, not 1",
        ),
    ],
)
def test_what_would_be_ignored_or_cannot_be_is_refused(
    benchmark: str, params: dict[str, Any], message: str
) -> None:
    assert message in refusal(benchmark, **params)


KNATIVE = "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: '${name}'}\n"


@pytest.mark.parametrize(
    ("benchmark", "params"),
    [
        ("vmi-burst", {"template": "vmirs", "replicas": 3, "namespace": ["a", "b"]}),
        ("vmi-burst", {"counts": [90], "gates": ["creation_to_running_p95 < 60"]}),
        ("vmi-burst", {"counts": [80], "gates": ["running_p50 < 60", "api_p99 < 1"]}),
        ("vmi-steady", {"count": 80, "pause": 0, "gates": ["running_p95 < 60"]}),
        ("scale", {"scenario": "gated", "template": "pod"}),
        ("scale", {"scenario": "gated"}),
        (
            "scale",
            {"scenario": "gated", "template": JOB.format("completions: 6, parallelism: 8")},
        ),
        ("scale", {"scenario": "gated", "template": STATEFUL_SET.format("Parallel", 3)}),
        ("scale", {"scenario": "gated", "template": STATEFUL_SET.format("OrderedReady", 1)}),
        ("scale", {"template": JOB.format("completions: 6, parallelism: 2")}),
        ("scale", {"template": KNATIVE}),
        *(
            (
                "scale",
                {
                    "scenario": scenario,
                    "gates": [f"{name} > 9" for name in (*gates, "submission_to_scheduled_p95")],
                },
            )
            for scenario, gates in GATED.items()
        ),
        ("scale", {"goal": "succeeded", "gates": ["submission_to_succeeded_p50 < 9"]}),
        ("scale", {"arrival": "constant", "rate": 5, "gates": ["submit_lag < 1"]}),
        *(
            ("scale", {"goal": "succeeded", "template": template})
            for template in ("job", "pytorchjob", "pod")
        ),
        ("scale", {"arrival": "batch", "delay": "1s", "template": "training"}),
    ],
)
def test_what_can_be_is_not_refused(benchmark: str, params: dict[str, Any]) -> None:
    assert refusal(benchmark, **params) == ""


@pytest.mark.parametrize(
    ("benchmark", "params", "least"),
    [
        (
            "vmi-burst",
            {"counts": [100], "timeout": 900, "lock_timeout": 3600},
            3600 + 300 + 2 * 60 + 2 * 900,
        ),
        (
            "vmi-burst",
            {
                "counts": [100],
                "timeout": 60,
                "lock_timeout": 0,
                "primer": False,
                "arrival": "constant",
                "rate": 0.5,
            },
            2 * 60 + 198,
        ),
        (
            "vmi-burst",
            {
                "scenario": "ladder",
                "counts": [4, 8],
                "timeout": 60,
                "lock_timeout": 0,
                "primer": False,
                "cooldown": 50,
            },
            4 * 60 + 50,
        ),
        (
            "vmi-burst",
            {"timeout": 60, "lock_timeout": 0, "primer": False, "prometheus": "http://x"},
            2 * 60 + 150,
        ),
        (
            "vmi-steady",
            {"duration": 1000, "timeout": 60, "lock_timeout": 0, "primer": False},
            1000 + 4 * 60,
        ),
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
    result = get(benchmark)
    assert least <= result.limit(result.Params.model_validate(params)) <= least + 60


def planned(folder: Path, text: str) -> Any:
    (folder / "s.yaml").write_text(text)
    return make_plan(load_suite(str(folder / "s.yaml")))


def test_the_plan_has_the_limit_unless_the_suite_sets_one(tmp_path: Path) -> None:
    both = (
        "name: s\nentries:\n  - {benchmark: vmi-burst, name: a}\n"
        "  - {benchmark: vmi-burst, name: b, params: {counts: [9]}, timeout: 5m}\n"
    )
    assert [point.timeout >= 3600 + 2 * 900 for point in planned(tmp_path, both).points] == [
        True,
        False,
    ]


def test_the_suites_plan_what_they_say() -> None:
    """2,000 training jobs 5 at a time each second, 1,000 distributed ones of 7 workers with a
    claim; 100, and 400 to 800 VMIs a day.
    """
    suites = Path(__file__).parents[2] / "suites"
    result = {
        name: make_plan(load_suite(str(suites / name))).points
        for name in ("scale.yaml", "vmi-daily.yaml", "vmi-daily-scale.yaml")
    }
    scale: Any = get("scale").Params
    training, distributed = (scale.model_validate(item.params) for item in result["scale.yaml"])
    assert (
        training.count,
        training.spec().schedule.offsets(11)[-1],
        training.spec().namespaces,
    ) == (2000, 2.0, ["runai-project-0"])
    assert (
        distributed.count,
        distributed.workers,
        distributed.pvc,
        distributed.spec().schedule.offsets(2),
    ) == (1000, 7, True, [0, 5.0])
    assert get("scale").limit(distributed) > 5 * 1000
    burst: Any = get("vmi-burst").Params
    counts = [
        burst.model_validate(item.params).counts
        for name in result
        if "vmi" in name
        for item in result[name]
    ]
    assert counts == [[100], [400, 600, 800]]


def test_a_template_of_your_own_goes_into_the_plan_with_its_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod that measures has not the file."""
    file = tmp_path / "mine.yaml"
    file.write_text(built_in()["vmi"].read_text().replace("90Mi", "${memory}"))
    entry = (
        f"name: s\nentries:\n  - {{benchmark: vmi-burst, params: {{template: {file}, variables: "
        f"{{memory: 1Gi}}}}}}\n"
    )
    (point,) = planned(tmp_path, entry).points
    file.unlink()
    params = get("vmi-burst").Params.model_validate(point.params)
    assert "kind: VirtualMachineInstance" in point.params["template"]
    assert get("vmi-burst").check(params, Shape()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: '${name}'}\n", "Pod creates no VMI"),
        (
            "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: '${nmae}'}\n",
            "unknown placeholder ${nmae}",
        ),
        ("a: [\nb", "is not YAML"),
        (None, "built in are"),
    ],
)
def test_a_bad_template_is_told_when_the_suite_is_read(
    tmp_path: Path, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / "t.yaml").write_text(text)
    with pytest.raises(BadDocument) as caught:
        planned(
            tmp_path,
            (
                f"name: s\nentries:\n  - {{benchmark: vmi-burst, params: {{template: "
                f"{tmp_path / 't.yaml'}}}}}\n"
            ),
        )
    assert message in str(caught.value)
