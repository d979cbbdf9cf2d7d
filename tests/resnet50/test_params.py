"""Bad input is refused when planning, with what is allowed."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from perfdag.benchmark.registry import get
from perfdag.plan.plan import make_plan
from perfdag.shape import Shape
from perfdag.steps.resnet50 import loadgen, loadgen_log
from perfdag.steps.resnet50.inference.system_under_test import Stub
from perfdag.steps.resnet50.interference_params import InterferenceParams
from perfdag.steps.resnet50.overhead_params import OverheadParams
from perfdag.steps.resnet50.params import Workload
from perfdag.suite.load import load_suite


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"batch": 0}, "greater than or equal to 1"),
        ({"scenario": "server", "target_rate": 0}, "greater than 0"),
        ({"scenario": "server", "target_rate": -5}, "greater than 0"),
        ({"scenario": "server"}, "needs target_rate"),
        ({"precision": "tf32"}, "device: cuda"),
        ({"precision": "int8"}, "'fp32', 'tf32', 'bf16' or 'fp16'"),
        ({"scenario": "accuracy"}, "needs imagenet"),
        ({"scenario": "single-stream", "batch": 8}, "batch 1, not 8"),
        ({"latency_bound": "0s"}, "more than zero"),
        ({"weights_sha256": "a" * 64}, "needs a weights file"),
        ({"cpus": "0; rm -rf /"}, "match pattern"),
        ({"wrapper_env": {"A=B": "1"}}, "environment variable"),
        ({"wrapper_env": {"-u": "1"}}, "environment variable"),
        ({"threads": 0}, "greater than or equal to 1"),
        ({"price_per_hour": 0}, "greater than 0"),
        ({"colour": "red"}, "Extra inputs"),
        ({"max_queries": 100}, "max_queries does nothing in scenario offline"),
        (
            {"scenario": "single-stream", "max_queries": 99},
            "max_queries 99 ends a run before the 100 queries",
        ),
        (
            {"scenario": "server", "target_rate": 5, "min_queries": 662, "max_queries": 661},
            "before the 662 queries",
        ),
        ({"scenario": "server", "target_rate": 5, "max_queries": 458}, "before the 459 queries"),
        (
            {"scenario": "server", "target_rate": 5, "min_queries": 9, "max_queries": 458},
            "before the 459 queries",
        ),
        (
            {"scenario": "single-stream", "min_queries": 9, "max_queries": 63},
            "before the 64 queries",
        ),
        ({"scenario": "find-peak", "max_queries": 661}, "before the 662 queries"),
        (
            {"scenario": "server", "target_rate": 20, "max_queries": 1308, "min_duration": 60},
            r"max_queries 1308 at 20/s \(Poisson\) may end a run before min_duration \(60 s\), .* INVALID: raise it to 1309,",
        ),
        (
            {"scenario": "server", "target_rate": 5, "max_queries": 3000},
            r"before min_duration \(600 s\), .* raise it to 3169,",
        ),
        ({"scenario": "server", "target_rate": float("inf")}, "finite number"),
        ({"price_per_hour": float("inf")}, "finite number"),
        (
            {"scenario": "single-stream", "target_rate": 5},
            "target_rate does nothing in scenario single-stream",
        ),
        (
            {"scenario": "server", "target_rate": 5, "fast": True, "max_queries": 10},
            "before its 64 queries: raise it, or lower min_queries",
        ),
        (
            {"scenario": "single-stream", "fast": True, "min_queries": 9, "max_queries": 8},
            "before its 9 queries",
        ),
    ],
)
def test_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Workload.model_validate(params)


def test_a_smoke_test_may_stop_early() -> None:
    assert Workload(scenario="find-peak", max_queries=50, fast=True).max_queries == 50
    assert (
        Workload(
            scenario="server", target_rate=5, max_queries=25, min_queries=10, fast=True
        ).max_queries
        == 25
    )
    assert Workload(scenario="find-peak", max_queries=662).max_queries == 662


def test_queries_that_are_surely_enough_for_min_duration_are_taken() -> None:
    for rate, duration, most in ((20.0, 60.0, 1309), (5.0, 600.0, 3169), (1000.0, 600.0, 602329)):
        params = Workload(
            scenario="server", target_rate=rate, min_duration=duration, max_queries=most
        )
        assert most - 3 * most**0.5 >= rate * params.duration() > most - 1 - 3 * (most - 1) ** 0.5


@pytest.mark.parametrize(("scenario", "least"), [("server", 459), ("single-stream", 64)])
def test_the_fewest_queries_are_those_with_which_loadgen_can_say_valid(
    scenario: str, least: int
) -> None:
    pytest.importorskip("mlperf_loadgen")
    valid = {}
    for queries in (least - 1, least):
        load = loadgen.Load(
            scenario,
            1,
            0.001,
            queries,
            64,
            1000,
            target_rate=500,
            latency_bound=10.0,
            max_queries=queries,
        )
        logs = loadgen.measure(Stub(0.0001), load, pytest.fail).logs
        valid[queries] = loadgen_log.read(logs["summary"], logs["detail"]).valid
    assert valid == {least - 1: False, least: True}


def test_a_treatment_must_be_named() -> None:
    with pytest.raises(ValidationError, match="treatment is not named"):
        OverheadParams.model_validate({})


def test_memory_share_needs_the_whole() -> None:
    with pytest.raises(ValidationError, match="needs device_memory"):
        InterferenceParams.model_validate({"memory_share": 0.5})
    assert "unset" not in str(InterferenceParams.model_fields["device_memory"].description)


def test_defaults_are_mlperfs() -> None:
    params = Workload.model_validate({"scenario": "server", "target_rate": 100})
    assert (params.latency_bound, params.duration(), params.queries()) == (0.015, 600.0, 100)
    assert Workload().queries() == 24576


def test_fast_is_seconds() -> None:
    assert Workload(fast=True).duration() == 2.0
    assert Workload(fast=True, batch=32).queries() == 64


@pytest.mark.parametrize(
    ("params", "least", "expected"),
    [
        (
            {"scenario": "server", "target_rate": 0.5, "min_queries": 662, "min_duration": 60},
            1324,
            90 + 1.2 * 1324,
        ),
        ({"scenario": "server", "target_rate": 20, "min_duration": 60}, 60, 90 + 72),
        (
            {"scenario": "server", "target_rate": 0.5, "max_queries": 662, "min_duration": 60},
            0,
            90 + 1.2 * 200,
        ),
        ({"scenario": "server", "target_rate": 2, "fast": True}, 32, 60 + 1.2 * 32),
        (
            {"scenario": "find-peak", "target_rate": 2, "min_duration": 60},
            120,
            90 + 18.2 * 331 + 4 * 331,
        ),
        ({"scenario": "find-peak", "min_duration": 60}, 120, 90 + 182 + 240),
        ({"scenario": "single-stream", "min_duration": 60}, 60, 90 + 72),
        ({"scenario": "offline", "min_duration": 60}, 60, 90 + 90),
        ({"scenario": "offline", "min_duration": 60, "target_rate": 20}, 60, 90 + 1.2 * 24576 / 20),
        ({"scenario": "offline", "min_duration": 60, "target_rate": 2000}, 60, 90 + 72),
        (
            {"scenario": "offline", "min_duration": 60, "target_rate": 20, "min_queries": 640},
            60,
            90 + 72,
        ),
        ({"scenario": "offline", "fast": True}, 0, 60 + 2.4),
    ],
)
def test_a_run_takes_what_its_queries_take_to_arrive(
    params: dict[str, Any], least: float, expected: float
) -> None:
    value = Workload.model_validate(params)
    assert get("resnet50").least_seconds(value) == pytest.approx(least)
    assert get("resnet50").seconds(value) == pytest.approx(expected)


def test_a_gpu_asked_of_the_cluster_but_not_used_is_refused() -> None:
    problems = get("resnet50").check(
        Workload(), Shape.model_validate({"resources": {"nvidia.com/gpu": 1}})
    )
    assert len(problems) == 1
    assert "device: cuda" in problems[0]


@pytest.mark.parametrize(
    ("placement", "message"), [("spread", "puts"), ("any", "may put"), ("packed", None)]
)
def test_copies_on_different_nodes_are_refused(placement: str, message: str | None) -> None:
    shape = Shape.model_validate({"hosts": {"count": 2, "placement": placement}})
    problems = get("resnet50-interference").check(InterferenceParams(), shape)
    expected = f"hosts.placement {placement} {message} copies on different nodes, where they cannot interfere: use packed"
    assert problems == ([] if message is None else [expected])


@pytest.mark.parametrize("name", ["resnet50", "resnet50-overhead", "resnet50-interference"])
def test_each_benchmark_says_when_its_clock_runs(name: str) -> None:
    result = get(name)
    assert "LoadGen" in result.clock()
    assert result.metrics[0].headline


SUITES = Path(__file__).parents[2] / "suites"


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("ml", {"offline-compiled", "offline-cost", "accuracy", "two-copies-server"}),
        ("ml-gpu", {"overhead-of-vgpu", "offline-cost", "accuracy", "server-compiled"}),
    ],
)
def test_the_entries_of_the_suites_that_wait_for_a_users_own_can_be_switched_on(
    name: str, entries: set[str], tmp_path: Path
) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(
        re.sub(
            r"^  #(?=- name|  |resources)", "  ", (SUITES / f"{name}.yaml").read_text(), flags=re.M
        )
    )
    assert {point.entry for point in make_plan(load_suite(str(file))).points} >= entries


def test_the_suite_of_a_gpu_asks_what_it_says_of_every_point() -> None:
    plan = make_plan(load_suite(str(SUITES / "ml-gpu.yaml")))
    bounds = [
        point.params["latency_bound"]
        for point in plan.points
        if point.params["scenario"] in ("server", "find-peak")
    ]
    assert bounds == [0.015] * 11
    assert {
        (point.params["device"], point.params["fast"], point.params["samples"])
        for point in plan.points
    } == {("cuda", False, 1024)}
    tried = {(point.params["precision"], point.params["backend"]) for point in plan.points}
    assert tried == {
        ("fp32", "eager"),
        ("tf32", "eager"),
        ("fp16", "eager"),
        ("fp32", "compile"),
        ("fp16", "compile"),
    }
    for point in plan.points:
        result = get(point.benchmark)
        assert point.timeout > 2 * result.seconds(result.Params.model_validate(point.params)), (
            point.entry
        )
