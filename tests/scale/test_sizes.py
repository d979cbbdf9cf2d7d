"""Several sizes of a burst: the search for capacity, ladders, and what is kept of them."""

import asyncio
import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import orjson
import pytest

from perfdag.app.scale import commands
from perfdag.benchmark.contract import Output
from perfdag.cli import main
from perfdag.kube.client import KubeError
from perfdag.outcome import VERDICT, Invalid
from perfdag.steps.scale.measure.generator import GeneratorResult
from perfdag.steps.scale.model import gates
from perfdag.steps.scale.runai import submit, table
from perfdag.steps.scale.runai.run_file import RunFile, write_run
from perfdag.steps.scale.scenarios import run_vmi, vmi, vmi_capacity, vmi_spec
from perfdag.steps.scale.scenarios.base import Result
from perfdag.steps.scale.vmi_benchmark import parse_results


class TestCapacity:
    @pytest.mark.parametrize(
        ("step", "limit", "knee", "found", "tried"),
        [
            (100, 2000, 700, (700, 712), [*range(100, 900, 100), 750, 725, 712]),
            (100, 2000, 764, (762, 768), [*range(100, 900, 100), 750, 775, 762, 768]),
            (10, 50, 33, (33, 34), [10, 20, 30, 40, 35, 32, 33, 34]),
            (1000, 2000, 0, (0, 1000), [1000]),
            (100, 450, 450, (450, 0), [100, 200, 300, 400, 450]),
        ],
    )
    async def test_growth_and_bisection_enclose_the_limit_with_few_creations(
        self, step: int, limit: int, knee: int, found: tuple[int, int], tried: list[int]
    ) -> None:
        """Up to `knee` VMIs a burst runs in 8 s, beyond it in 90: too long for the gate."""
        gate = gates.parse_gate("creation_to_running_p95 < 60")

        async def measure(count: int) -> Result:
            figures = {
                "creation_to_running_p95": 8.0 if count <= knee else 90.0,
                "success_ratio": 1.0,
                "left_behind": None,
            }
            verdicts = gates.evaluate([gate], figures)
            return Result("capacity", count, "r", [], [], figures, {}, verdicts)

        passed, results = await vmi_capacity.search(measure, vmi_spec.Spec(), step, limit)
        assert (passed.passed, passed.failed) == found
        assert [item.count for item in results] == tried
        assert len(tried) <= vmi_capacity.most_sizes(step, limit)
        assert passed.stopped == ("" if found[1] else "the limit of 450 was reached")

    def test_a_limit_of_2000_needs_at_most_2400_creations(self) -> None:
        assert 100 * vmi_capacity.most_sizes(100, 2000) == 2400

    async def test_a_step_that_cannot_be_made_leaves_a_lower_bound(self) -> None:
        error = KubeError(500, "Broken", "etcd is away")

        async def measure(count: int) -> Result:
            if count > 200:
                raise error
            figures = {"left_behind": None, "success_ratio": 1.0}
            return Result("capacity", count, "r", [], [], figures, {})

        seen: list[Result] = []
        passed, result = await vmi_capacity.search(
            measure, vmi_spec.Spec(seen=seen.append), 100, 450
        )
        assert passed == vmi_capacity.Capacity(200, str(error))
        assert [item.count for item in result] == [item.count for item in seen] == [100, 200]
        with pytest.raises(KubeError):
            await vmi_capacity.search(measure, vmi_spec.Spec(), 300, 450)

    @pytest.mark.parametrize(
        ("figures", "result"),
        [
            ({}, vmi_capacity.Capacity(1, "gate api_p99 < 1: no data for api_p99", no_data=True)),
            ({"running_p50": 9.0}, vmi_capacity.Capacity(1, failed=2)),
            ({"success_ratio": 0.9}, vmi_capacity.Capacity(1, failed=2)),
        ],
        ids=["no data alone", "another gate failed", "not all run"],
    )
    async def test_a_size_of_which_only_data_is_missing_has_not_failed(
        self,
        figures: dict[str, float | None],
        result: vmi_capacity.Capacity,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        """At 2 VMIs the API server's metrics are absent, and `figures` are as they are there."""
        held = [gates.parse_gate("api_p99 < 1"), gates.parse_gate("running_p50 < 5")]

        async def measure(count: int) -> Result:
            seen = {"api_p99": 0.1, "running_p50": 1.0, "left_behind": None, "success_ratio": 1.0}
            seen |= {"api_p99": None, **figures} if count == 2 else {}
            facts: dict[str, Any] = {"generator": [], "notes": []}
            verdicts = gates.evaluate(held, seen)
            return Result("capacity", count, "r", [], [], seen, facts, verdicts)

        passed, results = await vmi_capacity.search(measure, vmi_spec.Spec(), 1, 4)
        assert (passed, len(results)) == (result, 2)
        monkeypatch.setattr(commands, "on_cluster", lambda *_: run_vmi.Outcome(results, passed))
        words = ["scale", "vmi", "capacity", "--step", "1", "--count", "4", "-o", str(tmp_path)]
        assert main(words) == (3 if result.no_data else 0)

    @pytest.mark.parametrize(
        ("sizes", "passed", "gate", "failed"),
        [
            ((10, 20, 30), 20, False, []),
            ((10,), 0, False, [10]),
            ((10, 20, 30), 20, None, [30]),
            ((10,), 0, None, [10]),
        ],
    )
    def test_of_a_search_in_a_suite_a_first_step_that_fails_and_an_end_without_data_are_breaches(
        self, sizes: tuple[int, ...], passed: int, gate: bool | None, failed: list[int]
    ) -> None:
        output = self.searched(sizes, passed, 1.0, gate)
        results = parse_results(output)
        assert ("lower bound" in output.facts["notes"]) == (gate is None)
        (limit,) = [item for item in results if item.metric == "capacity"]
        decided = gate is not None
        beyond = f"{sizes[-1]} did not" if decided else "no larger size was decided"
        assert (limit.value, limit.note) == (passed, f"{passed} held, {beyond}")
        breached = [
            (item.coords or {})["count"]
            for item in results
            if item.metric == VERDICT and not item.value
        ]
        assert breached == failed

    def test_a_rate_that_only_the_step_which_ended_a_search_did_not_hold_is_its_answer_too(
        self,
    ) -> None:
        results = parse_results(self.searched((10, 20, 30), 20, 1.0, late=(30,)))
        assert [item.value for item in results if item.metric == "capacity"] == [20]
        with pytest.raises(
            Invalid, match="the open loop did not hold its rate of 20 VMIs"
        ) as caught:
            parse_results(self.searched((10, 20, 30), 20, 1.0, late=(20, 30)))
        assert {(item.coords or {}).get("count") for item in caught.value.measurements} == {
            10,
            20,
            30,
            None,
        }

    def test_a_search_whose_first_step_never_ran_is_invalid(self) -> None:
        with pytest.raises(Invalid, match="never ran"):
            parse_results(self.searched((10,), 0, 0.5))

    def searched(
        self,
        sizes: tuple[int, ...],
        passed: int,
        ran: float,
        last: bool | None = False,
        late: tuple[int, ...] = (),
    ) -> Output:
        """What a search leaves whose last size broke its gate (`last` None: had no data for it), of
        which a share of `ran` VMIs ran, and of whose sizes these did not hold their rate.
        """
        gate = {"metric": "api_p99", "op": "<", "value": 1.0, "other": None}
        results = [
            {"count": size, "rows": [], "stages": [], "calls": [], "error": "", "disturbed": ""}
            | {"facts": {"notes": [], "generator": [{"held": size not in late}]}}
            | {"figures": {"left_behind": 0.0, "success_ratio": ran if size == sizes[-1] else 1.0}}
            | {
                "verdicts": [
                    {
                        "gate": gate,
                        "value": 0.5,
                        "threshold": 1.0,
                        "passed": size != sizes[-1] or last,
                    }
                ]
            }
            for size in sizes
        ]
        capacity = {
            "passed": passed,
            "stopped": "" if last is False else "no data",
            "no_data": last is None,
            "failed": 0 if last is None else sizes[-1],
        }
        return Output(
            {"results": orjson.dumps({"capacity": capacity, "results": results}).decode()}
        )


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

        async def burst(kube: Any, spec: vmi_spec.Spec, count: int) -> Result:
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
        monkeypatch.setattr(run_vmi, "check_nodes", AsyncMock())
        monkeypatch.setattr(run_vmi, "own_namespaces", lambda *_: contextlib.nullcontext())

    async def test_sizes_before_one_that_broke_are_kept_and_it_is_a_size_without_data(
        self, broken: None
    ) -> None:
        spec = vmi_spec.Spec(
            gates=[gates.parse_gate("api_p99 < 1"), gates.parse_gate("left_behind <= 0")]
        )
        results = await run_vmi.ladder(None, spec, [400, 600, 800, 1000], 0.0)  # type: ignore[arg-type]
        assert [item.passed for item in results[-1].verdicts] == [None, None]
        audit = table.audit(results)
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
            await run_vmi.ladder(None, spec, [800], 0.0)  # type: ignore[arg-type]

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
        async def measure(kube: Any, spec: vmi_spec.Spec, ask: Any) -> None:
            await run_vmi.ladder(kube, spec, [400, 600], 0.0)
            raise end

        monkeypatch.setattr(run_vmi, "measure", measure)
        monkeypatch.setattr(commands, "on_cluster", lambda args, work, _: asyncio.run(work(None)))
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

    def test_the_files_of_sizes_before_an_interruption_say_that_they_were_not_alone(
        self, broken: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another run took the Lease at 600 VMIs, which is seen when this one ends."""
        measured = vmi.burst

        async def burst(kube: Any, spec: vmi_spec.Spec, count: int) -> Result:
            if count == 600:
                raise KeyboardInterrupt
            return await measured(kube, spec, count)

        monkeypatch.setattr(vmi, "burst", burst)
        monkeypatch.setattr(run_vmi, "ExclusiveRun", Taken)
        monkeypatch.setattr(commands, "on_cluster", lambda args, work, _: asyncio.run(work(None)))
        assert (
            main(
                [
                    "scale",
                    "vmi",
                    "ladder",
                    "--count",
                    "400",
                    "600",
                    "--cooldown",
                    "0",
                    "-o",
                    str(tmp_path),
                ]
            )
            == 130
        )
        (run,) = orjson.loads((tmp_path / "summary.json").read_bytes())["runs"]
        assert (run["count"], run["disturbed"]) == (
            400,
            "performance run x took the cluster over",
        )

    @pytest.mark.parametrize("live", [False, True])
    def test_the_folder_of_a_submission_is_taken_over_where_nothing_of_it_is_left(
        self,
        live: bool,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        async def measure(kube: Any, spec: vmi_spec.Spec, ask: Any) -> run_vmi.Outcome:
            figures: dict[str, float | None] = {"left_behind": 0.0, "success_ratio": 1.0}
            facts: dict[str, Any] = {"generator": [], "notes": []}
            return run_vmi.Outcome(
                [Result("steady", 9, "r", [], [], figures, facts, trace=[(0.0, 0), (2.5, 9)])]
            )

        class Cluster:
            async def resource(self, api_version: str, kind: str) -> str:
                return kind

        write_run(
            tmp_path / "run.json",
            RunFile("q", "v1", "Pod", ["ns"], "p", 1, 1, True, [], {}),
            GeneratorResult("q", [], 0.0, 0),
        )
        before = {
            "submitted.json",
            "sampled.json",
            "observed.jsonl",
            "general.png",
            "scurves-400.png",
            "notes.txt",
        }
        for name in before:
            (tmp_path / name).touch()
        monkeypatch.setattr(run_vmi, "measure", measure)
        monkeypatch.setattr(submit, "objects_of_run", AsyncMock(return_value=[1] * live))
        monkeypatch.setattr(
            commands, "on_cluster", lambda args, work, _: asyncio.run(work(Cluster()))
        )
        code, names = (
            main(["scale", "vmi", "steady", "-o", str(tmp_path)]),
            {item.name for item in tmp_path.iterdir()},
        )
        if live:
            assert (code, names) == (2, {*before, "run.json"})
            assert (
                "holds run q; still there: 1 object; `perfdag scale delete -o"
                in capsys.readouterr().err
            )
        else:
            assert (code, names) == (
                0,
                {"notes.txt", "stages.parquet", "summary.json", "perf-audit-results.json"},
            )
            (run,) = orjson.loads((tmp_path / "summary.json").read_bytes())["runs"]
            assert run["trace"] == [[0.0, 0], [2.5, 9]]

    @pytest.mark.parametrize("scenario", ["ladder", "capacity"])
    def test_a_run_that_was_not_alone_is_told_and_fails(
        self, scenario: str, broken: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another run takes the Lease while this one measures."""
        outcomes: list[run_vmi.Outcome] = []

        def on_cluster(args: Any, work: Any, connections: int) -> run_vmi.Outcome:
            outcomes.append(asyncio.run(work(None)))
            return outcomes[-1]

        async def capacity(kube: Any, spec: vmi_spec.Spec, step: int, limit: int) -> Any:
            result = await vmi.burst(kube, spec, step)
            spec.seen(result)
            return vmi_capacity.Capacity(step, "no more"), [result]

        monkeypatch.setattr(run_vmi, "ExclusiveRun", Taken)
        monkeypatch.setattr(run_vmi, "capacity", capacity)
        monkeypatch.setattr(commands, "on_cluster", on_cluster)
        words = (
            ["--count", "200", "--step", "100"] if scenario == "capacity" else ["--count", "100"]
        )
        assert main(["scale", "vmi", scenario, *words, "-o", str(tmp_path)]) == 1
        (outcome,) = outcomes
        texts = {
            "capacity": outcome.capacity and asdict(outcome.capacity),
            "results": [asdict(item) for item in outcome.results],
        }
        with pytest.raises(Invalid, match="performance run x took the cluster over"):
            parse_results(Output({"results": orjson.dumps(texts).decode()}))
