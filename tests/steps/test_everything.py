"""The suite `everything` against a golden list: every point of every example of kube-perftest's README, written from that README."""

import json
from pathlib import Path
from typing import Any

import pytest

from perfdag.shape import Shape
from perfdag.suite.enumerate import enumerate_points
from perfdag.suite.load import load_suite
from perfdag.suite.point import Enumerated

ROOT = Path(__file__).parents[2]
GOLDEN: dict[str, list[dict[str, Any]]] = json.loads(
    (ROOT / "tests/golden/kube-perftest.json").read_text()
)


@pytest.fixture(scope="module")
def everything() -> Enumerated:
    return enumerate_points(load_suite(ROOT / "suites/everything.yaml"))


def _at(data: Any, path: str) -> Any:
    for name in path.split("."):
        data = data[name]
    return data


@pytest.mark.parametrize("entry", GOLDEN)
def test_the_points_of_each_example(everything: Enumerated, entry: str) -> None:
    points = [point for point in everything.points if point.entry == entry]
    found = []
    for point, golden in zip(points, GOLDEN[entry], strict=True):
        shape = Shape.model_validate(everything.shapes[point.shape]).model_dump(mode="json")
        found.append(
            {
                "benchmark": point.benchmark,
                "params": {name: point.params[name] for name in golden["params"]},
                "shape": {name: _at(shape, name) for name in golden["shape"]},
            }
        )
    assert found == GOLDEN[entry]


def test_the_iperf_set_is_exactly_fifteen(everything: Enumerated) -> None:
    assert len([point for point in everything.points if point.entry == "iperf-set"]) == 2 * 7 + 1
    assert len(GOLDEN["iperf-set"]) == 15


def test_nothing_is_there_beyond_the_examples_but_what_runs_anywhere(
    everything: Enumerated,
) -> None:
    assert {point.entry for point in everything.points if not point.entry.endswith("-here")} == set(
        GOLDEN
    )


@pytest.mark.parametrize("name", ["network", "mpi", "storage"])
def test_the_ready_suites_plan(name: str) -> None:
    assert enumerate_points(load_suite(ROOT / f"suites/{name}.yaml")).points


def test_each_field_of_the_examples_is_in_the_table() -> None:
    page = (ROOT / "docs/kube-perftest.md").read_text()
    fields = (
        "hostNetwork networkName resources mtu template repetitions permutations.product permutations.explicit streams duration transport maxlog "
        "problemSize numProcs numNodes mode iterations qps extraArgs direct iodepth ioengine nrfiles numJobs bs rw percentageRandom runtime rwmixread "
        "size numWorkers thread volumeClaimTemplate device model benchmarkType inputBatchSize"
    )
    absent = [field for field in fields.split() if f"`{field}`" not in page]
    assert absent == []
