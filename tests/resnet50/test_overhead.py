"""The overhead of a treatment: pairs, verdicts, and LD_PRELOAD layers."""

import json
import math
import re
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from perfdag.benchmark.contract import Failed, Invalid, NotInstalled, Output
from perfdag.hosts.base import CommandResult
from perfdag.hosts.local import LocalHost
from perfdag.steps.resnet50.benchmark import Resnet50
from perfdag.steps.resnet50.interference import Resnet50Interference
from perfdag.steps.resnet50.overhead import OverheadParams, Resnet50Overhead, overhead
from tests.recorded.measured import values
from tests.resnet50.harness import gang, needs_loadgen, recorded

WRAPPED = {"system": "stub", "scenario": "single-stream", "wrapper": ["treated"], "pairs": 2}


def options(**more: Any) -> OverheadParams:
    return OverheadParams.model_validate({**WRAPPED, **more})


def texts_of(order: str, baseline: Any, treatment: Any) -> dict[str, str]:
    """Return the texts of runs in this order, of a result for each side."""
    sides = {"A": json.dumps(baseline), "B": json.dumps(treatment)}
    return {"order": order} | {f"{n:03}{side}": sides[side] for n, side in enumerate(order)}


@pytest.mark.parametrize(
    ("costs", "mean", "half"),
    [
        # Student's t has closed forms: tan(pi (p - 1/2)) for one degree of freedom, and
        # (2 p - 1) / sqrt(2 p (1 - p)) for two
        ([0.0, 0.02], 0.01, math.tan(math.pi * 0.475) * 0.01),
        ([-0.01, 0.0, 0.01], 0.0, 0.95 / math.sqrt(2 * 0.975 * 0.025) * 0.01 / math.sqrt(3)),
    ],
)
def test_the_interval_of_few_pairs_is_students(
    costs: list[float], mean: float, half: float
) -> None:
    found = [math.log1p(value) for value in overhead(costs, 0.05)[:3]]
    assert found == pytest.approx([mean, mean - half, mean + half], rel=1e-6, abs=1e-12)


def test_the_pairs_that_are_needed_are_counted_with_their_own_quantile() -> None:
    # t of 3 degrees of freedom is 3.182: the half width of four pairs is 0.0159, of three 0.0248
    assert overhead([-0.01, 0.0, 0.01], math.expm1(0.02))[3] == 4


P90 = re.compile(r'("key": "result_90.00_percentile_latency_ns", "value": )\d+')


class Drifting(LocalHost):
    """A host in virtual time: each run is 1 % slower than the last, and one behind the wrapper
    takes `cost` more.
    """

    def __init__(self, cost: float) -> None:
        super().__init__("127.0.0.1")
        self.cost, self.latency = cost, 0.010

    def run(self, argv: Sequence[str], **_: Any) -> CommandResult:
        raw = recorded()
        seconds = self.latency * (1 + self.cost if argv[0] == "treated" else 1)
        self.latency *= 1.01
        logs = raw["test"]["logs"]
        logs["detail"] = P90.sub(rf"\g<1>{round(seconds * 1e9)}", logs["detail"])
        return CommandResult(list(argv), 0, json.dumps(raw), "", seconds)


@pytest.mark.parametrize(("cost", "verdict"), [(0.0, 1), (0.02, 1), (0.08, 0), (0.3, 0)])
def test_the_cost_of_a_treatment_is_found_and_drift_is_not_part_of_it(
    cost: float, verdict: float
) -> None:
    rows = Resnet50Overhead().run(gang(Drifting(cost)), options(pairs=12))
    values = {(each.metric, each.stat): each.value for each in rows}
    assert values["overhead", "mean"] == pytest.approx(cost, abs=0.001)
    assert values["overhead_bound", "low"] < cost < values["overhead_bound", "high"]
    assert values["verdict", "value"] == verdict


WRAPPER = """
import sys
from perfdag.steps.resnet50 import program
plain = program.Stub.infer
program.Stub.infer = lambda stub, indices, ready: plain(stub, indices, ready + 0.01)
sys.argv = sys.argv[3:]
sys.exit(program.main())
"""


@needs_loadgen
@pytest.mark.slow
def test_a_real_wrapper_is_run_and_its_cost_is_seen() -> None:
    # the wrapper swaps the program for one whose stub takes 10 ms more of 10; argv after it: python
    # -m module --spec -
    params = options(
        wrapper=[sys.executable, "-c", WRAPPER], pairs=3, min_duration=0.2, min_queries=64
    )
    measurements = Resnet50Overhead().run(gang(), params)
    plain, treated = (values(measurements, "cost", side=side) for side in ("baseline", "treatment"))
    assert len(plain) == len(treated) == 3
    # other work on this machine adds to either side, so only the shorter end is sharp
    assert 0.01 < min(plain) < 0.02 < min(treated)


@pytest.mark.parametrize(
    ("name", "other", "message"),
    [
        (
            "device",
            {"name": "Tesla T4", "uuid": "GPU-2"},
            "device differs between the runs: Tesla T4 GPU-1 and Tesla T4 GPU-2",
        ),
        (
            "device",
            {"name": "NVIDIA L4"},
            "device differs between the runs: NVIDIA L4 and Tesla T4 GPU-1",
        ),
        (
            "versions",
            {"torch": "2.8.0", "torchvision": "0.24"},
            r"torch differs between the runs: 2\.8\.0 and 2\.9\.0",
        ),
        (
            "versions",
            {"torch": "2.9.0", "torchvision": "0.23"},
            r"torchvision differs between the runs: 0\.23 and 0\.24",
        ),
        (
            "model",
            {"weights": "none", "threads": 2},
            "threads differs between the runs: 16 and 2: set threads",
        ),
        (
            "model",
            {"weights": "random, seed 3", "threads": 16},
            "weights differs between the runs: none and random, seed 3",
        ),
    ],
)
def test_sides_that_differ_by_more_than_the_treatment_are_no_comparison(
    name: str, other: dict[str, Any], message: str
) -> None:
    raw = recorded(
        device={"name": "Tesla T4", "uuid": "GPU-1"},
        versions={"torch": "2.9.0", "torchvision": "0.24"},
        model={"weights": "none", "threads": 16},
    )
    texts = texts_of("ABBA", raw, raw)
    unnamed = raw | {"device": {"name": "CPU: unknown"}}
    for treated in (raw, unnamed):  # gVisor does not name its CPU
        assert Resnet50Overhead().parse(Output(texts_of("ABBA", unnamed, treated)), options())
    both = texts_of("ABBA", raw, raw | {name: other})
    for changed in (texts | {"002B": both["002B"]}, both):
        with pytest.raises(Invalid, match=message):
            Resnet50Overhead().parse(Output(changed), options())


def test_a_treatment_that_breaks_the_latency_bound_fails_and_a_baseline_that_does_is_invalid() -> (
    None
):
    params = options(scenario="server", target_rate=400, pairs=3)
    late = recorded("server-overloaded")
    logs = late["test"]["logs"]
    held = {name: text.replace("INVALID", "VALID") for name, text in logs.items()}
    held["detail"] = re.sub(
        r'("result_99.00_percentile_latency_ns", "value": )\d+', r"\g<1>9000000", held["detail"]
    )
    plain = late | {"test": late["test"] | {"logs": held}}
    texts = texts_of("ABBAAB", plain, late)
    measurements = Resnet50Overhead().parse(Output(texts), params)
    assert {name for each in measurements for name in each.coords} <= set(Resnet50Overhead.coords)
    assert values(measurements, "verdict") == [0]
    for side in ("baseline", "treatment"):
        for pair in range(3):
            valid = values(measurements, "valid", side=side, pair=pair)
            assert valid == [float(side == "baseline")]
    short = texts["001B"].replace(
        r"result_min_duration_met\", \"value\": true",
        r"result_min_duration_met\", \"value\": false",
    )
    for broken, message in (
        ({"000A": texts["001B"]}, r"run 1 \(baseline\): LoadGen says INVALID"),
        ({"001B": short}, r"run 2 \(treatment\): LoadGen says INVALID"),
    ):
        with pytest.raises(Invalid, match=message):
            Resnet50Overhead().parse(Output(texts | broken), params)


@needs_loadgen
@pytest.mark.parametrize(
    ("params", "preloaded", "message"),
    [
        ({"wrapper": ["env"], "treatment_python": sys.executable}, "", []),
        (
            {"wrapper": ["env"], "treatment_python": "/nowhere/python"},
            "",
            ["/nowhere/python (Python) behind env"],
        ),
        (
            {"wrapper": ["false"], "treatment_python": sys.executable},
            "",
            [f"{sys.executable} (Python) behind false"],
        ),
        ({"wrapper": ["false"]}, "", [f"{sys.executable} (Python) behind false"]),
        ({"wrapper": ["no-such-tool"]}, "", ["no-such-tool"]),
        (
            {"wrapper": [], "wrapper_env": {"A": "b"}, "treatment_python": "/nowhere/python"},
            "",
            ["/nowhere/python (Python) behind env"],
        ),
        ({"wrapper": ["env"]}, "/old/broken.so", []),
    ],
)
def test_the_interpreter_of_the_treatment_is_tried_behind_its_wrapper(
    params: dict[str, Any], preloaded: str, message: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", preloaded)
    tools = list[str]()
    try:
        Resnet50Overhead().require(gang(), options(**params))
    except NotInstalled as error:
        tools = [tool.program for tool in error.tools]
    assert tools == message


COMMON = {"fast": True, "min_duration": 0.1, "stub": {"base": 0.001}}
NOWHERE = {"LD_PRELOAD": "/nowhere/layer.so"}


@needs_loadgen
@pytest.mark.slow
@pytest.mark.parametrize(
    ("benchmark", "params"),
    [
        (Resnet50(), {"wrapper_env": NOWHERE}),
        (Resnet50Overhead(), {"wrapper_env": NOWHERE, "pairs": 2}),
        (Resnet50Interference(), {"wrapper_env": NOWHERE}),
        (Resnet50Overhead(), {"wrapper": ["env", "LD_PRELOAD=/nowhere/layer.so"], "pairs": 2}),
    ],
)
def test_a_layer_that_ld_so_passes_over_is_no_treatment_that_costs_nothing(
    benchmark: Any, params: dict[str, Any]
) -> None:
    value = benchmark.Params.model_validate(
        {"system": "stub", "scenario": "single-stream", **COMMON, **params}
    )
    with pytest.raises(Failed, match=r"LD_PRELOAD /nowhere/layer\.so was not loaded into"):
        benchmark.run(gang(), value)
