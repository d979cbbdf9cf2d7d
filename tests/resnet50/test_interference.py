"""Copies beside each other: fairness, overlap, and two stubs at one time."""

import contextlib
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from perfdag.benchmark.contract import Failed, Invalid, NotInstalled, Output
from perfdag.hosts.base import CommandResult
from perfdag.hosts.local import LocalHost
from perfdag.steps.resnet50.benchmark import Resnet50
from perfdag.steps.resnet50.interference import (
    WHEN,
    InterferenceParams,
    Resnet50Interference,
    measurements,
    overlap,
    reasons_against,
)
from perfdag.steps.resnet50.overhead import Resnet50Overhead
from perfdag.steps.resnet50.workload import MARGIN, read
from tests.resnet50.harness import gang, needs_loadgen, recorded

SINGLE: dict[str, Any] = {"scenario": "single-stream"}


@pytest.mark.parametrize(("second", "part"), [((0, 10), 1), ((5, 15), 1 / 3), ((12, 13), 0)])
def test_overlap(second: tuple[float, float], part: float) -> None:
    assert overlap([(0, 10), second]) == pytest.approx(part)


def options(**more: Any) -> InterferenceParams:
    return InterferenceParams.model_validate({"system": "stub", **SINGLE, **more})


def recorded_copies(raw: str | None = None) -> dict[str, str]:
    """Return the texts of two copies alone and beside each other."""
    names = (f"{when}-{number}" for when in ("solo", "together") for number in range(2))
    return dict.fromkeys(names, raw or json.dumps(recorded()))


def measure(**more: Any) -> dict[str, Any]:
    """Return what each of two copies printed, alone and beside the other, by its name.

    Nothing is judged: how much they overlap, and their figures, depend on what else runs here.
    """
    machine = gang()
    params = options(**{"min_duration": 1.5, "min_queries": 64, **more})
    Resnet50Interference().measure(machine, params)
    texts = machine.output.texts
    return {name: json.loads(text) for name, text in texts.items() if name[-1].isdigit()}


@needs_loadgen
@pytest.mark.slow
def test_two_copies_begin_at_one_time_and_each_has_its_own_queries() -> None:
    printed = measure(stub={"base": 0.005})
    first, second = (printed[f"together-{number}"] for number in range(2))
    assert first["spec"]["start_at"] == second["spec"]["start_at"]
    assert first["spec"]["start_at"] <= min(first["test"]["started"], second["test"]["started"])
    assert (
        max(printed[f"solo-{number}"]["test"]["ended"] for number in range(2))
        < (first["spec"]["start_at"])
    ), "alone, none had another beside it"
    seeds = [printed[f"{when}-{n}"]["spec"]["load_seed"] for when in WHEN for n in range(2)]
    assert seeds[:2] == seeds[2:]
    assert seeds[0] != seeds[1]


@needs_loadgen
@pytest.mark.slow
def test_offline_gives_each_copy_as_many_samples_by_what_they_did_alone() -> None:
    printed = measure(scenario="offline", batch=4, stub={"base": 0.004, "each": 0.001})
    for number in range(2):
        alone = read(json.dumps(printed[f"solo-{number}"])).rate
        expected = printed[f"together-{number}"]["spec"]["expected_rate"]
        assert expected == pytest.approx(MARGIN * alone)


def test_two_copies_that_get_half_each_keep_half_of_their_rate() -> None:
    alone = read(json.dumps(recorded("offline")))
    assert alone.completed_rate
    half = replace(alone, completed_rate=alone.completed_rate / 2)
    rows = measurements([alone, alone], [half, half], options(scenario="offline"))
    values = {row.metric: row.value for row in rows if row.subject is None}
    assert (values["rate_kept"], values["aggregate"], values["fairness"]) == (0.5, 1.0, 1.0)
    assert values["tail_inflation"] == 2.0


class Scripted(LocalHost):
    """A host that notes what it was asked to run; its copies end as told."""

    def __init__(self, *ends: CommandResult) -> None:
        super().__init__("127.0.0.1")
        self.requests: list[tuple[list[str], Any]] = []
        self.ends = list(ends)

    def run(self, argv: Sequence[str], **more: Any) -> CommandResult:
        self.requests.append((list(argv), more.get("env")))
        good = CommandResult(list(argv), 0, json.dumps(recorded()), "", 1.0)
        return self.ends.pop(0) if self.ends else good


@pytest.mark.parametrize("benchmark", [Resnet50(), Resnet50Interference(), Resnet50Overhead()])
def test_the_environment_is_set_behind_the_wrapper_which_may_pass_none_on(benchmark: Any) -> None:
    wrapping = {
        "wrapper": ["env", "-i"],
        "wrapper_env": {"LAYER": "on it", "SECOND": "$X"},
        "python": sys.executable,
    }
    params = benchmark.Params.model_validate({"system": "stub", **SINGLE, **wrapping})
    host = Scripted()
    with contextlib.suppress(NotInstalled):
        benchmark.require(gang(host), params)
    with contextlib.suppress(Failed):
        benchmark.run(gang(host), params)
    assert {str(env) for _, env in host.requests} == {"None"}
    wrapped = [argv[argv.index("env") :][:5] for argv, _ in host.requests if "env" in argv]
    assert len(wrapped) >= 2
    assert all(argv == ["env", "-i", "env", "LAYER=on it", "SECOND=$X"] for argv in wrapped)


class TwoGpus(Scripted):
    """A host, or one of several pods of its node that see the same GPUs."""

    def which(self, program: str) -> str | None:
        return program

    def run(self, argv: Sequence[str], **more: Any) -> CommandResult:
        listing = "".join(f"GPU {n}: NVIDIA H100 (UUID: GPU-{n})\n" for n in range(2))
        if "nvidia-smi" in argv:
            return CommandResult(list(argv), 0, listing, "", 0.0)
        return super().run(argv, **more)


@pytest.mark.parametrize(("shared", "gpus"), [("node", ["0", "1", "0"]), ("device", [])])
def test_copies_that_share_a_node_take_a_gpu_each(
    shared: str, gpus: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    host = TwoGpus()
    params = options(copies=3, shared=shared, device="cuda")
    Resnet50Interference().measure(gang(host), params)
    words = [word for argv, _ in host.requests for word in argv]
    chosen = [word for word in words if word.startswith("CUDA_VISIBLE_DEVICES")]
    alone, together = chosen[: len(gpus)], chosen[len(gpus) :]
    assert alone == [f"CUDA_VISIBLE_DEVICES=GPU-{gpu}" for gpu in gpus]
    assert sorted(together) == sorted(alone)


def test_the_slowest_copy_is_named_with_its_gpu_and_the_sum_is_a_rate() -> None:
    params = options(scenario="offline", batch=8)
    texts = recorded_copies(json.dumps(recorded("offline")))
    slow = recorded("offline", device={"uuid": "GPU-9"})
    detail = slow["test"]["logs"]["detail"]
    rate = r'"result_samples_per_second", "value": '
    slow["test"]["logs"]["detail"] = re.sub(rate + r"[\d.]+", rate + "100.0", detail)
    texts["together-1"] = json.dumps(slow)
    rows = Resnet50Interference().parse(Output(texts), params)
    values = {row.metric: row for row in rows if row.subject is None}
    [judged] = [row for row in rows if row.metric == "verdict"]
    assert values["total_rate"].value == pytest.approx(read(texts["solo-0"]).rate + 100)
    assert str(judged.note).endswith("the slowest is copy 1 on GPU-9, 100/s")


def test_a_copy_that_dies_beside_the_others_keeps_what_they_all_printed() -> None:
    good = CommandResult([], 0, json.dumps(recorded()), "", 1.0)
    killed = replace(good, code=-9, stdout="", stderr="Killed by a layer")
    machine = gang(*(Scripted(good, end) for end in (good, killed, good)))
    message = r"^copy 1 beside the others: the program was killed"
    with pytest.raises(Failed, match=message):
        Resnet50Interference().run(machine, options(copies=3))
    kept = {"together-0": good.stdout, "together-1-stderr": killed.stderr, "solo-2": good.stdout}
    assert machine.output.texts.items() >= kept.items()


SERVER: dict[str, Any] = {"scenario": "server", "target_rate": 100}


def overloaded(queries: int | None = None, slower: float = 1) -> Any:
    """Return a recorded result of Server, with so many queries and percentiles so much later."""
    alone = read(json.dumps(recorded("server-overloaded")))
    late = {item: slower * value for item, value in alone.percentiles.items()}
    return replace(alone, queries=queries or alone.queries, percentiles=late)


def test_in_server_the_tail_is_the_headline_and_what_fairness_is_of() -> None:
    """Completed rates are what arrived, whatever the others cost."""
    alone = overloaded()
    built = measurements([alone, alone], [alone, overloaded(slower=10)], options(**SERVER))
    values = {item.metric: item.value for item in built if item.subject is None}
    assert built[0].metric == "tail_inflation"
    assert (values["rate_kept"], values["tail_inflation"]) == (1, 5.5)
    assert values["fairness"] == pytest.approx(1.1**2 / (2 * 1.01)), "Jain's index of 1 and 0.1"
    assert next(m for m in Resnet50Interference.metrics if m.name == "tail_inflation").headline


def with_memory(seen: float | None, start: float = 0.0, end: float = 10.0) -> Any:
    raw = recorded()
    raw["device"] = {"memory": seen}
    raw["test"] |= {"started": start, "ended": end}
    return read(json.dumps(raw))


def test_copies_that_hardly_met_are_invalid() -> None:
    copies = [with_memory(1, 0, 10), with_memory(1, 6, 16)]
    reasons = reasons_against([], copies, options(), {})
    assert reasons[0] == "the copies ran at once for 25 % of the time only: raise min_duration"
    offline = options().model_copy(update={"scenario": "offline"})
    [*_, reason] = reasons_against([], copies, offline, {})
    assert "each completes as many samples as it did alone" in reason


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
            "used the GPUs GPU-1, GPU-2, which is not one",
        ),
        (
            {"hosts": ["a", "a"], "devices": ["GPU-1", "GPU-2"]},
            {"device": "cuda", "shared": "node"},
            None,
        ),
        (
            {"hosts": ["a", "a"], "devices": ["GPU-1", None]},
            {"device": "cuda"},
            "used the GPUs GPU-1, unknown, which is not one",
        ),
    ],
)
def test_copies_that_shared_nothing_are_no_interference(
    facts: dict[str, Any], more: dict[str, Any], message: str | None
) -> None:
    params = InterferenceParams.model_validate(SINGLE | more)
    with pytest.raises(Invalid, match=message) if message else contextlib.nullcontext():
        assert Resnet50Interference().parse(Output(recorded_copies(), facts=facts), params)


def test_every_row_of_a_fast_run_is_marked() -> None:
    params = InterferenceParams.model_validate(SINGLE | {"fast": True})
    rows = Resnet50Interference().parse(Output(recorded_copies()), params)
    assert all(row.coords["fast"] == "not comparable" for row in rows)


@pytest.mark.parametrize("place", range(3))
def test_without_the_p99_of_one_copy_there_is_none_over_the_copies(place: int) -> None:
    """Where it stands must not matter, as it does to a median with NaN."""
    alone = with_memory(None)
    beside = [alone] * 3
    beside[place] = replace(alone, queries=458)
    rows = measurements([alone] * 3, beside, options(copies=3))
    subjects = [row.subject for row in rows if row.metric == "p99_inflation"]
    assert subjects == [f"copy {number}" for number in range(3) if number != place]
    assert (rows[1].metric, rows[1].n) == ("tail_inflation", 3)


def test_beside_the_others_only_latency_is_excused() -> None:
    params = options(**SERVER)
    raw = recorded("server-overloaded")
    assert reasons_against([], [read(json.dumps(raw))], params, {}) == []
    logs = raw["test"]["logs"]
    logs["detail"] += '\n:::MLLOG {"key": "result_min_duration_met", "value": false}\n'
    [reason, *_] = reasons_against([], [read(json.dumps(raw))], params, {})
    assert reason.startswith("copy 0 beside the others: LoadGen says INVALID")


@pytest.mark.parametrize(
    ("benchmark", "more", "texts"),
    [
        (Resnet50Interference(), {}, recorded_copies()),
        (
            Resnet50Overhead(),
            {"wrapper": ["env"], "pairs": 2},
            {"order": "ABBA"}
            | dict.fromkeys(("000A", "001B", "002B", "003A"), json.dumps(recorded())),
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
