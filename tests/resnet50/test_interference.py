"""Copies beside each other: fairness, overlap, and two stubs that share a lock."""

import contextlib
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfdag.benchmark.contract import Gang, Output
from perfdag.hosts.base import CommandResult
from perfdag.hosts.local import LocalHost
from perfdag.outcome import Failed, Invalid, Measurement
from perfdag.shape import Shape
from perfdag.stats.robust import jain
from perfdag.steps.resnet50 import launch
from perfdag.steps.resnet50.benchmark import Resnet50
from perfdag.steps.resnet50.interference import (
    InterferenceParams,
    Resnet50Interference,
    collect_results,
    measurements,
    overlap,
    reasons_against,
    run_together,
)
from perfdag.steps.resnet50.overhead import Resnet50Overhead
from perfdag.steps.resnet50.result import read
from tests.resnet50.harness import needs_loadgen

RECORDED = Path(__file__).parent.parent / "recorded" / "loadgen" / "single-stream.json"
SINGLE: dict[str, Any] = {"scenario": "single-stream"}


@pytest.mark.parametrize(
    ("shares", "index"), [([3, 3, 3], 1), ([1, 0, 0, 0], 0.25), ([1, 0.5], 1.5**2 / (2 * 1.25))]
)
def test_jains_index(shares: list[float], index: float) -> None:
    assert jain(shares) == pytest.approx(index)


@pytest.mark.parametrize("bad", [[], [0.0, 0.0], [1.0, -1.0]])
def test_shares_without_an_index_are_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="shares"):
        jain(bad)


@pytest.mark.parametrize(("second", "part"), [((0, 10), 1), ((5, 15), 1 / 3), ((12, 13), 0)])
def test_overlap(second: tuple[float, float], part: float) -> None:
    assert overlap([(0, 10), second]) == pytest.approx(part)


def gang(folder: Path, *hosts: LocalHost) -> Gang:
    return Gang(list(hosts) or [LocalHost()], Shape(), 60, str(folder))


def options(**more: Any) -> InterferenceParams:
    return InterferenceParams.model_validate({"system": "stub", **SINGLE, **more})


def recorded_copies(raw: str | None = None) -> dict[str, str]:
    """Return the texts of two copies alone and beside each other."""
    names = (f"{when}-{number}" for when in ("solo", "together") for number in range(2))
    return dict.fromkeys(names, raw or RECORDED.read_text())


def run(folder: Path, **more: Any) -> dict[tuple[str, str | None], Measurement]:
    params = options(min_duration=1.5, min_queries=64, **more)
    output = Resnet50Interference().measure(gang(folder), params)
    return {(row.metric, row.subject): row for row in Resnet50Interference().parse(output, params)}


@needs_loadgen
@pytest.mark.slow
def test_two_copies_that_share_a_lock_get_half_each(tmp_path: Path) -> None:
    values = run(tmp_path, stub={"base": 0.005, "lock": str(tmp_path / "device")})
    assert values["rate_kept", None].value == pytest.approx(0.5, abs=0.12)
    assert values["tail_inflation", None].value > 1.5
    assert values["aggregate", None].value == pytest.approx(1.0, abs=0.2)
    assert values["fairness", None].value > 0.9
    assert not list(tmp_path.glob("copy-*"))


@needs_loadgen
@pytest.mark.slow
def test_two_copies_that_share_nothing_keep_their_rate(tmp_path: Path) -> None:
    values = run(tmp_path, stub={"base": 0.02})
    assert values["rate_kept", None].value > 0.9
    assert values["aggregate", None].value > 1.8


@needs_loadgen
@pytest.mark.slow
def test_offline_gives_each_copy_as_many_samples_by_what_they_did_alone(tmp_path: Path) -> None:
    stub = {"base": 0.004, "each": 0.001, "lock": str(tmp_path / "device")}
    values = run(tmp_path, scenario="offline", batch=4, stub=stub)
    assert values["overlap", None].value > 0.8
    assert values["rate_kept", None].value == pytest.approx(0.5, abs=0.12)


class Recording(LocalHost):
    """A host that notes what it was asked to run, and with what environment."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1")
        self.requests: list[tuple[list[str], Any]] = []

    def run(self, argv: Sequence[str], **more: Any) -> CommandResult:
        self.requests.append((list(argv), more.get("env")))
        return CommandResult(list(argv), 0, "" if "-c" in argv else RECORDED.read_text(), "", 1.0)

    def serve(self, argv: Sequence[str], **more: Any) -> Any:
        self.requests.append((list(argv), more.get("env")))
        raise Failed("enough")


@pytest.mark.parametrize("benchmark", [Resnet50(), Resnet50Interference(), Resnet50Overhead()])
def test_the_environment_is_set_behind_the_wrapper_which_may_pass_none_on(
    benchmark: Any, tmp_path: Path
) -> None:
    wrapping = {
        "wrapper": ["env", "-i"],
        "wrapper_env": {"LAYER": "on it", "SECOND": "$X"},
        "python": "/there/python",
    }
    params = benchmark.Params.model_validate({"system": "stub", **SINGLE, **wrapping})
    host = Recording()
    benchmark.missing(gang(tmp_path, host), params)
    with contextlib.suppress(Failed):
        benchmark.measure(gang(tmp_path, host), params)
    assert {str(env) for _, env in host.requests} == {"None"}
    wrapped = [argv[argv.index("env") :][:5] for argv, _ in host.requests if "env" in argv]
    assert len(wrapped) >= 2
    assert all(argv == ["env", "-i", "env", "LAYER=on it", "SECOND=$X"] for argv in wrapped)


UNFIT = json.dumps({"program": 2, "error": {"kind": "memory", "text": "batch 9 does not fit"}})


def test_a_copy_that_dies_beside_the_others_keeps_what_they_all_printed() -> None:
    good = CommandResult([], 0, RECORDED.read_text(), "", 1.0)
    killed, unfit = (
        replace(good, code=-9, stdout="", stderr="Killed by a layer"),
        replace(good, stdout=UNFIT),
    )
    watch, texts = launch.Watch(options(copies=4)), {"solo-0": "{}"}
    with pytest.raises(
        Failed,
        match=r"^copy 1 beside the others \(2 of 4 copies ended well\): the program was killed",
    ) as error:
        collect_results([LocalHost()] * 4, [good, killed, good, unfit], watch, texts)
    assert (
        error.value.texts.items()
        >= {
            "solo-0": "{}",
            "together-0": good.stdout,
            "together-1-stderr": "Killed by a layer",
            "together-2": good.stdout,
            "together-3": UNFIT,
        }.items()
    )
    with pytest.raises(
        Failed,
        match=r"^copy 2 beside the others \(2 of 3 copies ended well\): batch 9 does not fit$",
    ):
        collect_results([LocalHost()] * 3, [good, good, unfit], watch, {})


NEEDY = ["env", "NEED=1", "sh", "-c", 'test "$NEED" = 1 && exec "$@"', "x"]
"""A wrapper that does nothing without its environment."""


@needs_loadgen
@pytest.mark.parametrize("benchmark", [Resnet50(), Resnet50Interference(), Resnet50Overhead()])
@pytest.mark.parametrize(
    ("wrapper", "advice"),
    [
        (NEEDY, []),
        (["sh", "-c", "echo no such pod >&2; exit 1"], ["n1 reports: no such pod"]),
        (["false"], ["on n1 it exited 1 without a message"]),
    ],
)
def test_what_runs_behind_a_wrapper_is_looked_for_in_its_environment_and_what_it_says_is_told(
    benchmark: Any, wrapper: list[str], advice: list[str], tmp_path: Path
) -> None:
    params = benchmark.Params.model_validate({"system": "stub", **SINGLE, "wrapper": wrapper})
    tools = benchmark.missing(gang(tmp_path, LocalHost(name="n1")), params)
    assert [tool.advice for tool in tools] == advice
    assert {tool.program for tool in tools} <= {f"{sys.executable} (Python) behind {wrapper[0]}"}


SERVER: dict[str, Any] = {"scenario": "server", "target_rate": 100}


def overloaded(queries: int | None = None, slower: float = 1) -> Any:
    """Return a recorded result of Server, with so many queries and percentiles so much later."""
    alone = read(RECORDED.with_name("server-overloaded.json").read_text())
    assert alone.tested is not None
    late = {item: slower * value for item, value in alone.tested.percentiles.items()}
    queries = queries or alone.tested.queries
    return replace(alone, tested=replace(alone.tested, queries=queries, percentiles=late))


def test_in_server_the_tail_is_the_headline_and_what_fairness_is_of() -> None:
    """Completed rates are what arrived, whatever the others cost."""
    alone = overloaded()
    built = measurements([alone, alone], [alone, overloaded(slower=10)], options(**SERVER))
    values = {item.metric: item.value for item in built if item.subject is None}
    assert built[0].metric == "tail_inflation"
    assert (values["rate_kept"], values["tail_inflation"]) == (1, 5.5)
    assert values["fairness"] == pytest.approx(jain([1, 0.1]))
    assert Resnet50Interference().declared_metrics()["tail_inflation"].headline


def with_memory(seen: float | None, start: float = 0.0, end: float = 10.0) -> Any:
    raw = json.loads(RECORDED.read_text())
    raw["device"] = {"memory": seen}
    raw["test"] |= {"started": start, "ended": end}
    return read(json.dumps(raw))


@pytest.mark.parametrize(
    ("memory", "reasons"),
    [
        (8e9, []),
        (16e9, ["copy 1 sees 16.00 GB of device memory, its share is 8.00 GB"]),
        (
            None,
            [
                "copy 1 does not say how much device memory it sees: its memory_share was not "
                "verified"
            ],
        ),
    ],
)
def test_a_copy_that_sees_more_than_its_share_of_memory_is_named(
    memory: float | None, reasons: list[str]
) -> None:
    params = options(memory_share=0.5, device_memory=16e9)
    assert reasons_against([], [with_memory(8e9), with_memory(memory)], params) == reasons


def test_copies_that_hardly_met_are_invalid() -> None:
    copies = [with_memory(1, 0, 10), with_memory(1, 6, 16)]
    reasons = reasons_against([], copies, options())
    assert reasons[0] == "the copies ran at once for 25 % of the time only: raise min_duration"
    offline = options().model_copy(update={"scenario": "offline"})
    assert "all complete as many samples" in reasons_against([], copies, offline)[-1]


@pytest.mark.parametrize(
    ("facts", "more", "message"),
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
    facts: dict[str, Any], more: dict[str, Any], message: str | None
) -> None:
    params = InterferenceParams.model_validate(SINGLE | more)
    with pytest.raises(Invalid, match=message) if message else contextlib.nullcontext():
        assert Resnet50Interference().parse(Output(recorded_copies(), facts=facts), params)


def test_p99_and_validity_of_each_copy_are_there_and_marks_as_of_one_measurement() -> None:
    params = InterferenceParams.model_validate(SINGLE | {"fast": True})
    raw = json.loads(RECORDED.read_text())
    raw["model"]["weights_verified"] = False
    texts = recorded_copies(json.dumps(raw))
    rows = Resnet50Interference().parse(Output(texts), params)
    assert {name for row in rows for name in row.coords} <= set(Resnet50Interference.coords)
    result = {(row.metric, row.subject, row.coords.get("when")): row.value for row in rows}
    assert result["p99_inflation", None, None] == result["p99_inflation", "copy 1", None] == 1
    assert 0.005 < result["p99", "copy 0", "together"] < 0.01
    assert result["valid", "copy 1", "alone"] == 1
    marks = {"fast": "not comparable", "weights": "unverified"}
    assert all(marks.items() <= row.coords.items() for row in rows)
    texts["together-1"] = json.dumps({**raw, "model": {"weights": "random, seed 3"}})
    with pytest.raises(Invalid, match="ran different weights: none, random, seed 3"):
        Resnet50Interference().parse(Output(texts), params)


@pytest.mark.parametrize("place", range(3))
def test_without_the_p99_of_one_copy_there_is_none_over_the_copies(place: int) -> None:
    """Where it stands must not matter, as it does to a median with NaN."""
    alone = with_memory(None)
    beside = [alone] * 3
    beside[place] = replace(alone, tested=replace(alone.tested, queries=458))
    rows = measurements([alone] * 3, beside, options(copies=3))
    subjects = [row.subject for row in rows if row.metric == "p99_inflation"]
    assert subjects == [f"copy {number}" for number in range(3) if number != place]
    assert (rows[1].metric, rows[1].n) == ("tail_inflation", 3)


def test_a_smoke_test_of_server_has_no_tail_and_its_rate_is_the_figure() -> None:
    alone, params = overloaded(), options(**SERVER, fast=True)
    rows = measurements([alone, alone], [alone, overloaded(64)], params)
    assert {row.metric for row in rows if row.subject is None} == {
        "rate_kept",
        "aggregate",
        "overlap",
    }
    assert rows[0].metric == "rate_kept"
    assert [row.subject for row in rows if row.metric == "tail_inflation"] == ["copy 0"]
    single = overloaded(44)
    assert single.tail("single-stream") == single.cost("single-stream")
    assert math.isnan(overloaded(43).tail("single-stream"))


def test_beside_the_others_only_latency_is_excused() -> None:
    params = options(**SERVER)
    raw = json.loads(RECORDED.with_name("server-overloaded.json").read_text())
    assert reasons_against([], [read(json.dumps(raw))], params) == []
    logs = raw["test"]["logs"]
    logs["detail"] += '\n:::MLLOG {"key": "result_min_duration_met", "value": false}\n'
    [reason, *_] = reasons_against([], [read(json.dumps(raw))], params)
    assert reason.startswith("copy 0 beside the others: LoadGen says INVALID")


@pytest.mark.parametrize(
    ("benchmark", "more", "texts"),
    [
        (Resnet50Interference(), {}, recorded_copies()),
        (
            Resnet50Overhead(),
            {"wrapper": ["env"], "pairs": 2},
            {"order": "ABBA"}
            | dict.fromkeys(("000A", "001B", "002B", "003A"), RECORDED.read_text()),
        ),
    ],
)
def test_a_slowed_gpu_makes_the_figures_invalid(
    benchmark: Any, more: dict[str, Any], texts: dict[str, str]
) -> None:
    params = benchmark.Params.model_validate({"system": "stub", **SINGLE, **more})
    assert benchmark.parse(Output(texts, facts={"against": None}), params)
    with pytest.raises(Invalid, match="GPU 0 was slowed"):
        benchmark.parse(Output(texts, facts={"against": "GPU 0 was slowed"}), params)


def test_all_copies_begin_at_one_time_that_leaves_room_for_their_set_up(tmp_path: Path) -> None:
    """Also behind a wrapper, which need only pass on the standard streams."""
    params = options(fast=True, system="stub", wrapper=["env"])
    argv = [*launch.wrapper_argv(params), *launch.program_argv(params)]
    begun = time.time()
    ended = run_together([LocalHost()] * 2, gang(tmp_path), params, argv, 1.0, {})
    first, second = (read(each.stdout) for each in ended)
    assert first.raw["spec"]["load_seed"] != second.raw["spec"]["load_seed"]
    starts = [first.span[0], second.span[0]]
    assert min(starts) >= begun + 1.5 * 1.0
    assert abs(starts[0] - starts[1]) < 1.0
