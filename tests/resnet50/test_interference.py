"""Copies beside each other: fairness, overlap, and two stubs that share a lock."""

import contextlib
import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfdag.benchmark.contract import Gang, Output
from perfdag.hosts.base import Finished
from perfdag.hosts.local import LocalHost
from perfdag.outcome import Failed, Infrastructure, Invalid, Measurement, SampleError
from perfdag.shape import Shape
from perfdag.stats.fairness import jain
from perfdag.steps.resnet50 import launch
from perfdag.steps.resnet50.benchmark import Resnet50
from perfdag.steps.resnet50.copies import collect_results, run_together
from perfdag.steps.resnet50.interference import Resnet50Interference, measurements
from perfdag.steps.resnet50.interference_params import InterferenceParams
from perfdag.steps.resnet50.interference_validity import overlap, reasons_against
from perfdag.steps.resnet50.overhead import Resnet50Overhead
from perfdag.steps.resnet50.result import read
from tests.resnet50.harness import needs_loadgen

RECORDED = Path(__file__).parent.parent / "recorded" / "loadgen" / "single-stream.json"


def test_jains_index() -> None:
    assert jain([3, 3, 3]) == pytest.approx(1)
    assert jain([1, 0, 0, 0]) == pytest.approx(0.25)
    assert jain([1, 0.5]) == pytest.approx(1.5**2 / (2 * 1.25))
    for bad in ([], [0.0, 0.0], [1.0, -1.0]):
        with pytest.raises(ValueError, match="shares"):
            jain(bad)


def test_overlap() -> None:
    assert overlap([(0, 10), (0, 10)]) == 1
    assert overlap([(0, 10), (5, 15)]) == pytest.approx(1 / 3)
    assert overlap([(0, 1), (2, 3)]) == 0


def run(folder: Path, **more: Any) -> dict[tuple[str, str | None], Measurement]:
    pytest.importorskip(
        "mlperf_loadgen", reason="mlcommons-loadgen is not installed: pip install 'perfdag[dev]'"
    )
    params = InterferenceParams.model_validate(
        {
            "system": "stub",
            "scenario": "single-stream",
            "min_duration": 1.5,
            "min_queries": 64,
            **more,
        }
    )
    benchmark = Resnet50Interference()
    output = benchmark.run(Gang([LocalHost()], Shape(), 60, str(folder)), params)
    return {
        (measurement.metric, measurement.subject): measurement
        for measurement in benchmark.parse(output, params)
    }


@pytest.mark.slow
def test_two_copies_that_share_a_lock_get_half_each(tmp_path: Path) -> None:
    values = run(tmp_path, stub={"base": 0.005, "lock": str(tmp_path / "device")})
    assert values[("rate_kept", None)].value == pytest.approx(0.5, abs=0.12)
    assert values[("tail_inflation", None)].value > 1.5
    assert values[("aggregate", None)].value == pytest.approx(1.0, abs=0.2)
    assert values[("fairness", None)].value > 0.9
    assert not list(tmp_path.glob("copy-*"))


@pytest.mark.slow
def test_offline_gives_each_copy_as_many_samples_by_what_they_did_alone(tmp_path: Path) -> None:
    values = run(
        tmp_path,
        scenario="offline",
        batch=4,
        stub={"base": 0.004, "each": 0.001, "lock": str(tmp_path / "device")},
    )
    assert values[("overlap", None)].value > 0.8
    assert values[("rate_kept", None)].value == pytest.approx(0.5, abs=0.12)


@needs_loadgen
@pytest.mark.slow
def test_copies_need_of_their_wrapper_the_standard_streams_alone_and_have_schedules_of_their_own(
    tmp_path: Path,
) -> None:
    """A wrapper into a pod or a container: it refuses argv that names a file of ours."""
    code = (
        "import subprocess, sys; assert not any(sys.argv[1] in each for each in sys.argv[2:]); "
        "sys.exit(subprocess.call(sys.argv[2:]))"
    )
    options = {
        "wrapper": [sys.executable, "-c", code, str(tmp_path)],
        "wrapper_env": {"HIDDEN": "1"},
        "target_rate": 60,
        "latency_bound": 30,
    }
    params = InterferenceParams.model_validate(
        {"system": "stub", "scenario": "server", "fast": True, "stub": {"base": 0.002}, **options}
    )
    output = Resnet50Interference().run(Gang([LocalHost()], Shape(), 60, str(tmp_path)), params)
    logs = {
        name: json.loads(text)["tests"][0]["logs"]["detail"] for name, text in output.texts.items()
    }
    seeds = {
        name: re.findall(r'effective_schedule_rng_seed", "value": (\d+)', log)
        for name, log in logs.items()
    }
    assert seeds == {"solo-0": ["1"], "solo-1": ["2"], "together-0": ["1"], "together-1": ["2"]}
    assert Resnet50Interference().parse(output, params)
    assert not list(tmp_path.glob("copy-*"))


class Recording(LocalHost):
    """A host that notes what it was asked to run, and with what environment."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1")
        self.requests: list[tuple[list[str], Any]] = []

    def run(self, argv: Sequence[str], **more: Any) -> Finished:
        self.requests.append((list(argv), more.get("env")))
        return Finished(list(argv), 0, "" if "-c" in argv else RECORDED.read_text(), "", 1.0)

    def serve(self, argv: Sequence[str], **more: Any) -> Any:
        self.requests.append((list(argv), more.get("env")))
        raise Failed("enough")


@pytest.mark.parametrize("benchmark", [Resnet50(), Resnet50Interference(), Resnet50Overhead()])
def test_the_environment_is_set_behind_the_wrapper_which_may_pass_none_on(
    benchmark: Any, tmp_path: Path
) -> None:
    options = {
        "wrapper": ["env", "-i"],
        "wrapper_env": {"LAYER": "on it", "SECOND": "$X"},
        "python": "/there/python",
    }
    params = benchmark.Params.model_validate(
        {"system": "stub", "scenario": "single-stream", **options}
    )
    host = Recording()
    gang = Gang([host], Shape(), 60, str(tmp_path))
    benchmark.missing(gang, params)
    with contextlib.suppress(Failed):
        benchmark.run(gang, params)
    assert {str(env) for _, env in host.requests} == {"None"}
    wrapped = [argv[argv.index("env") :][:5] for argv, _ in host.requests if "env" in argv]
    assert len(wrapped) >= 2
    assert all(argv == ["env", "-i", "env", "LAYER=on it", "SECOND=$X"] for argv in wrapped)


class Losing(LocalHost):
    """A host whose second run ends as told."""

    def __init__(self, end: Finished | SampleError) -> None:
        super().__init__("127.0.0.1")
        self.end, self.runs = end, 0

    def run(self, argv: Sequence[str], **_: Any) -> Finished:
        self.runs += 1
        if self.runs == 2:
            if isinstance(self.end, SampleError):
                raise self.end
            return self.end
        return Finished(list(argv), 0, RECORDED.read_text(), "", 1.0)


@pytest.mark.parametrize(
    ("end", "kind", "message"),
    [
        (
            Finished([], 1, "", "boom", 1.0),
            Failed,
            "copy 1 alone: the program exited 1 without a result: boom",
        ),
        (Infrastructure("the pod is gone"), Infrastructure, "copy 1 alone: the pod is gone"),
        (
            Finished(
                [],
                0,
                json.dumps({"program": 1, "error": {"kind": "memory", "text": "no room"}}),
                "",
                1.0,
            ),
            Failed,
            "copy 1 alone: no room",
        ),
    ],
)
def test_a_run_that_is_lost_keeps_the_texts_of_those_before_it_and_is_the_last(
    end: Any, kind: type[SampleError], message: str, tmp_path: Path
) -> None:
    params = InterferenceParams.model_validate({"system": "stub", "scenario": "single-stream"})
    host = Losing(end)
    with pytest.raises(kind) as lost:
        Resnet50Interference().run(Gang([host], Shape(), 60, str(tmp_path)), params)
    assert (str(lost.value), host.runs) == (message, 2)
    assert json.loads(lost.value.texts["solo-0"])["program"] == 1


def test_a_copy_that_dies_beside_the_others_keeps_what_they_all_printed() -> None:
    good = Finished([], 0, RECORDED.read_text(), "", 1.0)
    unfit = json.dumps({"program": 1, "error": {"kind": "memory", "text": "batch 9 does not fit"}})
    ended = [
        good,
        replace(good, code=-9, stdout="", stderr="Killed by a layer"),
        good,
        replace(good, stdout=unfit),
    ]
    texts = {"solo-0": "{}"}
    watch = launch.Watch(
        InterferenceParams.model_validate(
            {"system": "stub", "scenario": "single-stream", "copies": 4}
        )
    )
    with pytest.raises(
        Failed,
        match=r"^copy 1 beside the others \(2 of 4 copies ended well\): the program was killed",
    ) as lost:
        collect_results([LocalHost()] * 4, ended, watch, texts)
    kept = lost.value.texts
    assert (
        json.loads(kept["together-0"])["program"] == json.loads(kept["together-2"])["program"] == 1
    )
    assert (kept["solo-0"], kept["together-1-stderr"], kept["together-3"]) == (
        "{}",
        "Killed by a layer",
        unfit,
    )
    with pytest.raises(
        Failed,
        match=r"^copy 2 beside the others \(2 of 3 copies ended well\): batch 9 does not fit$",
    ):
        collect_results([LocalHost()] * 3, [good, good, ended[3]], watch, {})


@needs_loadgen
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wrapper": ["no-such-tool"]}, ["no-such-tool"]),
        (
            {"wrapper": ["env"], "python": "/nowhere/python"},
            ["/nowhere/python (Python) behind env"],
        ),
        ({"wrapper": ["env", "-C", "/"], "python": sys.executable}, []),
        ({"python": "/nowhere/python"}, ["/nowhere/python (Python)"]),
    ],
)
def test_what_runs_behind_a_wrapper_is_looked_for_there(
    options: dict[str, Any], message: list[str], tmp_path: Path
) -> None:
    params = InterferenceParams.model_validate(
        {"system": "stub", "scenario": "single-stream", **options}
    )
    assert [
        item.program
        for item in Resnet50Interference().missing(
            Gang([LocalHost()], Shape(), 60, str(tmp_path)), params
        )
    ] == message


NEEDY = {"wrapper": ["env", "NEED=1", "sh", "-c", 'test "$NEED" = 1 && exec "$@"', "x"]}
"""A wrapper that does nothing without its environment."""


@needs_loadgen
def test_what_runs_behind_a_wrapper_is_looked_for_in_its_environment_and_what_it_says_is_told(
    tmp_path: Path,
) -> None:
    gang, common = (
        Gang([LocalHost(name="n1")], Shape(), 60, str(tmp_path)),
        {"system": "stub", "scenario": "single-stream"},
    )
    for benchmark in (Resnet50(), Resnet50Interference(), Resnet50Overhead()):
        assert benchmark.missing(gang, benchmark.Params.model_validate({**common, **NEEDY})) == []
        message = {"wrapper": ["sh", "-c", "echo no such pod >&2; exit 1"]}
        (tool,) = benchmark.missing(gang, benchmark.Params.model_validate({**common, **message}))
        assert (tool.program, tool.advice) == (
            f"{sys.executable} (Python) behind sh",
            "n1 reports: no such pod",
        )
        (tool,) = benchmark.missing(
            gang, benchmark.Params.model_validate({**common, "wrapper": ["false"]})
        )
        assert tool.advice == "on n1 it exited 1 without a message"


def test_a_wrapper_that_ends_or_is_not_there_is_a_line(tmp_path: Path) -> None:
    for wrapper, message in (
        (["false"], "exited 1 without a result"),
        (["no-such-tool"], "no-such-tool: No such file"),
    ):
        params = InterferenceParams.model_validate(
            {"system": "stub", "scenario": "single-stream", "wrapper": wrapper}
        )
        with pytest.raises(Failed, match=message):
            run_together([LocalHost()], Gang([LocalHost()], Shape(), 60, str(tmp_path)), params, {})


def test_in_server_the_tail_is_the_headline_and_what_fairness_is_of() -> None:
    """Completed rates are what arrived, whatever the others cost."""
    params = InterferenceParams.model_validate({"scenario": "server", "target_rate": 100})
    alone = read(RECORDED.with_name("server-overloaded.json").read_text())
    assert alone.tested is not None
    late = replace(
        alone,
        tested=replace(
            alone.tested,
            percentiles={item: 10 * value for item, value in alone.tested.percentiles.items()},
        ),
    )
    built = measurements([alone, alone], [alone, late], params)
    values = {item.metric: item.value for item in built if item.subject is None}
    assert built[0].metric == "tail_inflation"
    assert (values["rate_kept"], values["tail_inflation"]) == (1, 5.5)
    assert values["fairness"] == pytest.approx(jain([1, 0.1]))
    assert Resnet50Interference().declared_metrics()["tail_inflation"].headline


@pytest.mark.slow
def test_two_copies_that_share_nothing_keep_their_rate(tmp_path: Path) -> None:
    values = run(tmp_path, stub={"base": 0.02})
    assert values[("rate_kept", None)].value > 0.9
    assert values[("aggregate", None)].value > 1.8


def with_memory(seen: float | None, start: float = 0.0, end: float = 10.0) -> Any:
    raw = json.loads(RECORDED.read_text())
    raw["device"] = {"memory": seen}
    raw["tests"][0] |= {"started": start, "ended": end}
    return read(json.dumps(raw))


def test_a_copy_that_sees_more_than_its_share_of_memory_is_named() -> None:
    params = InterferenceParams.model_validate(
        {"scenario": "single-stream", "memory_share": 0.5, "device_memory": 16e9}
    )
    assert reasons_against([], [with_memory(8e9), with_memory(8e9)], params) == []
    reasons = reasons_against([], [with_memory(8e9), with_memory(16e9)], params)
    assert reasons == ["copy 1 sees 16.00 GB of device memory, its share is 8.00 GB"]
    reasons = reasons_against([], [with_memory(8e9), with_memory(None)], params)
    assert reasons == [
        "copy 1 does not say how much device memory it sees: its memory_share was not verified"
    ]


@pytest.mark.parametrize(
    ("facts", "options", "message"),
    [
        ({"hosts": ["a", "a"]}, {}, None),
        (
            {"hosts": ["a", "b"]},
            {},
            r"ran on 2 nodes \(a, b\) and share none: hosts.placement: packed",
        ),
        ({"hosts": ["a", "a"], "devices": ["GPU-1", "GPU-1"]}, {"device": "cuda"}, None),
        (
            {"hosts": ["a", "a"], "devices": ["GPU-1", "GPU-2"]},
            {"device": "cuda"},
            r"used 2 GPUs \(GPU-1, GPU-2\) and share none",
        ),
        (
            {"hosts": ["a", "a"], "devices": ["GPU-1", "GPU-2"]},
            {"device": "cuda", "shared": "node"},
            None,
        ),
        (
            {"hosts": ["a", "a"], "devices": ["GPU-1", None]},
            {"device": "cuda"},
            "which GPU copy 1 used is not known",
        ),
    ],
)
def test_copies_that_shared_nothing_are_no_interference(
    facts: dict[str, Any], options: dict[str, Any], message: str | None
) -> None:
    params = InterferenceParams.model_validate({"scenario": "single-stream", **options})
    output = Output(
        {
            f"{when}-{number}": RECORDED.read_text()
            for when in ("solo", "together")
            for number in range(2)
        },
        facts=facts,
    )
    if message is None:
        assert Resnet50Interference().parse(output, params)
    else:
        with pytest.raises(Invalid, match=message):
            Resnet50Interference().parse(output, params)


def test_p99_and_validity_of_each_copy_are_there_and_marks_as_of_one_measurement() -> None:
    params = InterferenceParams.model_validate(
        {"scenario": "single-stream", "fast": True, "check_logits": False}
    )
    raw = json.loads(RECORDED.read_text())
    raw["model"]["weights_verified"] = False
    texts = {
        f"{when}-{number}": json.dumps(raw) for when in ("solo", "together") for number in range(2)
    }
    values = Resnet50Interference().parse(Output(texts), params)
    assert {name for value in values for name in value.coords} <= set(Resnet50Interference.coords)
    result = {
        (value.metric, value.subject, value.coords.get("when")): value.value for value in values
    }
    assert result[("p99_inflation", None, None)] == result[("p99_inflation", "copy 1", None)] == 1
    assert 0.005 < result[("p99", "copy 0", "together")] < 0.01
    assert result[("valid", "copy 1", "alone")] == 1
    marks = {"fast": "not comparable", "logits_checked": False, "weights": "unverified"}
    assert all(marks.items() <= value.coords.items() for value in values)
    texts["together-1"] = json.dumps({**raw, "model": {"weights": "random, seed 3"}})
    with pytest.raises(Invalid, match="ran different weights: none, random, seed 3"):
        Resnet50Interference().parse(Output(texts), params)


def test_without_the_p99_of_one_copy_there_is_none_over_the_copies() -> None:
    params = InterferenceParams.model_validate({"scenario": "single-stream", "copies": 3})
    alone = with_memory(None)
    few = replace(alone, tested=replace(alone.tested, queries=458))
    for place in range(3):  # where it stands must not matter, as it does to a median with NaN
        beside = [few if number == place else alone for number in range(3)]
        value = measurements([alone] * 3, beside, params)
        values = [item.subject for item in value if item.metric == "p99_inflation"]
        assert values == [f"copy {number}" for number in range(3) if number != place]
    assert (value[1].metric, value[1].n) == ("tail_inflation", 3)


def test_a_smoke_test_of_server_has_no_tail_and_its_rate_is_the_figure() -> None:
    params = InterferenceParams.model_validate(
        {"scenario": "server", "target_rate": 100, "fast": True}
    )
    alone = read(RECORDED.with_name("server-overloaded.json").read_text())
    few = replace(alone, tested=replace(alone.tested, queries=64))
    value = measurements([alone, alone], [alone, few], params)
    over_copies = {item.metric for item in value if item.subject is None}
    assert over_copies == {"rate_kept", "aggregate", "overlap"}
    assert value[0].metric == "rate_kept"
    assert [item.subject for item in value if item.metric == "tail_inflation"] == ["copy 0"]
    single = replace(alone, tested=replace(alone.tested, queries=44))
    assert single.tail("single-stream") == single.cost("single-stream")
    assert math.isnan(
        replace(alone, tested=replace(alone.tested, queries=43)).tail("single-stream")
    )


@needs_loadgen
def test_a_wrapper_that_swallows_standard_error_is_told_to_pass_it_on(tmp_path: Path) -> None:
    options = {
        "system": "stub",
        "scenario": "single-stream",
        "fast": True,
        "wrapper": ["sh", "-c", 'exec "$@" 2>/dev/null', "x"],
    }
    params = InterferenceParams.model_validate(options)
    with pytest.raises(
        Failed,
        match=r"copy 0 was not ready in time: it printed nothing.* sh must pass that on unchanged",
    ):
        run_together([LocalHost()], Gang([LocalHost()], Shape(), 2, str(tmp_path)), params, {})


def test_copies_that_hardly_met_are_invalid() -> None:
    params = InterferenceParams.model_validate({"scenario": "single-stream"})
    reasons = reasons_against([], [with_memory(1, 0, 10), with_memory(1, 6, 16)], params)
    assert reasons[0] == "the copies ran at once for 25 % of the time only: raise min_duration"
    offline = params.model_copy(update={"scenario": "offline"})
    assert (
        "all complete as many samples"
        in reasons_against([], [with_memory(1, 0, 10), with_memory(1, 6, 16)], offline)[-1]
    )


def test_beside_the_others_only_latency_is_excused() -> None:
    params = InterferenceParams.model_validate(
        {"scenario": "server", "target_rate": 100, "check_logits": False}
    )
    raw = json.loads(RECORDED.with_name("server-overloaded.json").read_text())
    assert reasons_against([], [read(json.dumps(raw))], params) == []
    logs = raw["tests"][0]["logs"]
    logs["detail"] += '\n:::MLLOG {"key": "result_min_duration_met", "value": false}\n'
    assert reasons_against([], [read(json.dumps(raw))], params)[0].startswith(
        "copy 0 beside the others: LoadGen says INVALID"
    )


@pytest.mark.parametrize(
    ("benchmark", "names"),
    [
        (Resnet50Interference(), ("solo-0", "solo-1", "together-0", "together-1")),
        (Resnet50Overhead(), ("000A", "001B", "002B", "003A")),
    ],
)
def test_a_slowed_gpu_makes_the_figures_invalid(benchmark: Any, names: tuple[str, ...]) -> None:
    options = {"wrapper": ["env"], "pairs": 2} if "000A" in names else {}
    params = benchmark.Params.model_validate(
        {"system": "stub", "scenario": "single-stream", **options}
    )
    texts = {"order": "ABBA"} | dict.fromkeys(names, RECORDED.read_text())
    assert benchmark.parse(Output(texts, facts={"against": None}), params)
    with pytest.raises(Invalid, match="GPU 0 was slowed"):
        benchmark.parse(Output(texts, facts={"against": "GPU 0 was slowed"}), params)
