"""Several sizes of a burst: the search for capacity, ladders, and what is kept of them."""

import asyncio
import contextlib
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import orjson
import pytest

from perfdag.benchmark.contract import Output
from perfdag.commands import scale
from perfdag.commands.main import main
from perfdag.kube.client import KubeError
from perfdag.outcome import VERDICT, Invalid
from perfdag.steps.scale.figures import gates
from perfdag.steps.scale.measure.generator import GeneratorResult
from perfdag.steps.scale.runai import run_file
from perfdag.steps.scale.runai.run_file import RunFile, write_run
from perfdag.steps.scale.scenarios import vmi
from perfdag.steps.scale.scenarios.session import Result
from perfdag.steps.scale.vmi_benchmark import parse_results
from tests.conftest import CommandLine
from tests.fakes.api_server import ApiServer


class Taken:
    """A lock that another run takes meanwhile, which is seen at the end."""

    lost = ""

    def __init__(self, *_: Any) -> None:
        pass

    async def __aenter__(self) -> "Taken":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.lost = "performance run x took the cluster over"


class TestLadder:
    @pytest.fixture
    def broken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A cluster that takes 600 VMIs; at 800 its API server goes away."""

        async def burst(kube: Any, spec: vmi.Spec, count: int) -> Result:
            if count > 600:
                raise KubeError(0, "Unreachable", "no answer from https://x")
            facts: dict[str, Any] = {
                "generator": [],
                "notes": [],
                "simulated": False,
                "kubevirt_version": "v1.6",
            }
            figures: dict[str, float | None] = {
                "api_p99": 0.1,
                "left_behind": 0.0,
                "success_ratio": 1.0,
            }
            return Result(
                "burst",
                count,
                spec.run,
                [],
                [],
                figures,
                facts,
                gates.evaluate(spec.gates, figures),
            )

        monkeypatch.setattr(vmi, "burst", burst)
        monkeypatch.setattr(vmi, "check_nodes", AsyncMock())
        monkeypatch.setattr(vmi, "own_namespaces", lambda *_: contextlib.nullcontext())

    async def test_sizes_before_one_that_broke_are_kept_and_it_is_a_size_without_data(
        self, broken: None
    ) -> None:
        spec = vmi.Spec(
            gates=[gates.parse_gate("api_p99 < 1"), gates.parse_gate("left_behind <= 0")]
        )
        started, messages = time.monotonic(), list[str]()
        spec.log = messages.append
        results = await vmi.ladder(None, spec, [400, 600, 800, 1000], 0.1)  # type: ignore[arg-type]
        assert time.monotonic() - started >= 0.2
        assert messages.count("cooling down for 0.1 s") == 2
        assert [item.passed for item in results[-1].verdicts] == [None, None]
        audit = run_file.audit(results)
        assert audit["Values"]["api_p99"]["value"] == 0.1, "of the last size that was measured"
        assert len(audit["Rungs"]) == 3
        assert [(item.count, item.failed, item.error) for item in results] == [
            (400, False, ""),
            (600, False, ""),
            (800, True, "no answer from https://x"),
        ]
        texts = {
            "results": orjson.dumps(
                {"capacity": None, "results": [asdict(item) for item in results]}
            ).decode()
        }
        with pytest.raises(Invalid, match="800 VMIs were not measured: no answer") as caught:
            parse_results(Output(texts))
        breached = {
            (item.coords or {})["count"]: item.value
            for item in caught.value.measurements
            if item.metric == VERDICT
        }
        assert breached == {400: 1.0, 600: 1.0, 800: 0.0}
        with pytest.raises(KubeError):
            await vmi.ladder(None, spec, [800], 0.0)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "end", [KubeError(0, "Unreachable", "away"), KeyboardInterrupt()], ids=["error", "Ctrl-C"]
    )
    def test_the_files_of_sizes_before_are_written_however_it_ends(
        self,
        end: BaseException,
        broken: None,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        async def measure(kube: Any, spec: vmi.Spec, ask: Any) -> None:
            await vmi.ladder(kube, spec, [400, 600], 0.0)
            raise end

        monkeypatch.setattr(vmi, "measure", measure)
        monkeypatch.setattr(scale, "on_cluster", lambda args, work, _: asyncio.run(work(None)))
        assert main(["scale", "vmi", "ladder", "--count", "400", "600", "-o", str(tmp_path)]) in (
            4,
            130,
        )
        assert [
            run["count"] for run in orjson.loads((tmp_path / "summary.json").read_bytes())["runs"]
        ] == [400, 600]
        assert (
            f"measured before: 400, 600 VMIs; their files are in {tmp_path}"
            in capsys.readouterr().err
        )

    def test_the_folder_of_a_submission_is_taken_over_where_nothing_of_it_is_left(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def measure(kube: Any, spec: vmi.Spec, ask: Any) -> list[Result]:
            figures: dict[str, float | None] = {"left_behind": 0.0, "success_ratio": 1.0}
            facts: dict[str, Any] = {"generator": [], "notes": []}
            return [Result("steady", 9, "r", [], [], figures, facts, trace=[(0.0, 0), (2.5, 9)])]

        write_run(
            tmp_path / "run.json",
            RunFile("q", "v1", "Pod", ["ns"], "p", 1, 1, True, [], {}),
            GeneratorResult("q", [], 0.0, 0),
        )
        pictures = ("general.png", "scurves-400.png")
        for name in ("submitted.json", "sampled.json", "observed.jsonl", *pictures, "notes.txt"):
            (tmp_path / name).touch()
        monkeypatch.setattr(vmi, "measure", measure)
        kube = ApiServer().client()
        monkeypatch.setattr(scale, "on_cluster", lambda args, work, _: asyncio.run(work(kube)))
        assert main(["scale", "vmi", "steady", "-o", str(tmp_path)]) == 0
        names = {item.name for item in tmp_path.iterdir()}
        assert names == {
            "notes.txt",
            "stages.parquet",
            "summary.json",
            "perf-audit-results.json",
        }
        (run,) = orjson.loads((tmp_path / "summary.json").read_bytes())["runs"]
        assert run["trace"] == [[0.0, 0], [2.5, 9]]

    def test_a_breached_gate_is_exit_3_and_named(
        self, broken: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
    ) -> None:
        monkeypatch.setattr(vmi, "ExclusiveRun", lambda *_: Taken())
        monkeypatch.setattr(Taken, "__aexit__", AsyncMock())
        monkeypatch.setattr(scale, "on_cluster", lambda args, work, _: asyncio.run(work(None)))
        limits = [
            "--no-api-gates",
            "--gate",
            "api_p99 < 0.05",
            "--gate",
            "creation_to_failed_p50 < 9",
        ]
        words = ["scale", "vmi", "ladder", "--count", "100", *limits, "-o", str(tmp_path)]
        printed = cli(words, 3).out
        assert "gate api_p99 < 0.05" in printed
        assert "BREACHED" in printed
        assert "no data for creation_to_failed_p50" in printed
        (run,) = orjson.loads((tmp_path / "summary.json").read_bytes())["runs"]
        assert [verdict["passed"] for verdict in run["verdicts"]] == [False, None]

    def test_a_run_that_was_not_alone_is_told_and_fails(
        self, broken: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another run takes the Lease while this one measures."""
        outcomes: list[list[Result]] = []

        def on_cluster(args: Any, work: Any, connections: int) -> list[Result]:
            outcomes.append(asyncio.run(work(None)))
            return outcomes[-1]

        monkeypatch.setattr(vmi, "ExclusiveRun", Taken)
        monkeypatch.setattr(scale, "on_cluster", on_cluster)
        assert main(["scale", "vmi", "ladder", "--count", "100", "-o", str(tmp_path)]) == 1
        texts = {"results": [asdict(item) for item in outcomes[0]]}
        with pytest.raises(Invalid, match="performance run x took the cluster over"):
            parse_results(Output({"results": orjson.dumps(texts).decode()}))
