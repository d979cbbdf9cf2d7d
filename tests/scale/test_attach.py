"""A run that is found again by its label, and what an interrupted sample of it leaves to go on from."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from perfdag.kube.client import KubeError
from perfdag.steps.scale.measure.clock import Offset
from perfdag.steps.scale.measure.generator import Submitted
from perfdag.steps.scale.measure.observer import Observer
from perfdag.steps.scale.runai import sample, settings
from perfdag.steps.scale.runai.run_file import RunFile, attach, find, follow, write_run
from tests.fakes.api_server import ApiServer

from .test_completion import SECOND, record


def job(index: int, run: str = "r", kind: str = "Job") -> dict[str, Any]:
    labels = {"perfdag/run": run, "perfdag/index": str(index)}
    metadata = {"name": f"j-{index}", "namespace": "runai-p", "uid": f"u{index}", "labels": labels}
    metadata["annotations"] = {"perfdag/intended": f"2026-01-01T00:00:0{index}.500000Z"}
    api = "batch/v1" if kind == "Job" else "v1"
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": metadata,
        "spec": {"parallelism": 2, "completions": 2},
    }


class TestAttach:
    async def test_a_run_is_found_by_its_id_with_the_time_each_was_due(self) -> None:
        cluster = ApiServer(job(1), job(0), job(2, "other"), job(0, kind="ConfigMap")).client()
        kinds = await find(cluster, "r", None)
        file = await attach(cluster, "r", kinds, None)
        assert (file.api_version, file.kind, file.namespaces, file.project, file.expected_pods) == (
            "batch/v1",
            "Job",
            ["runai-p"],
            "p",
            2,
        )
        assert [submission.name for submission in file.submissions] == ["j-0", "j-1"]
        assert file.submissions[1].intended_ns - file.submissions[0].intended_ns == pytest.approx(
            SECOND, abs=1e6
        )
        assert file.others == [("v1", "ConfigMap")]

    async def test_a_run_that_is_not_there_and_one_of_two_kinds_are_told(self) -> None:
        with pytest.raises(KubeError, match="nothing of run q is on this cluster"):
            await find(ApiServer(job(0)).client(), "q", None)
        both = ApiServer(job(0), job(1, kind="Pod")).client()
        with pytest.raises(
            settings.SettingsError,
            match=r"run r created Pod, Job, and only its run\.json tells which",
        ):
            await attach(both, "r", await find(both, "r", None), None)

    async def test_what_is_gone_was_submitted_all_the_same(self, tmp_path: Path) -> None:
        """Jobs with a TTL: of two one goes and a third comes, then all are gone, for a second sample of the folder, too."""
        server = ApiServer(job(0), job(1), job(0, kind="ConfigMap"))
        cluster = server.client()
        read = await follow(cluster, "r", None, None)

        async def names(*there: dict[str, Any]) -> list[str]:
            server.remove()
            server.add(*there)
            file = await read()
            write_run(tmp_path / "run.json", file, Submitted("r", file.submissions, 0.0, 0))
            return [submission.name for submission in file.submissions]

        due = (await read()).submissions[0].intended_ns
        assert await names(job(1), job(2), job(0, kind="ConfigMap")) == ["j-0", "j-1", "j-2"]
        assert await names() == ["j-0", "j-1", "j-2"]
        assert (await read()).submissions[0].intended_ns == due
        read = await sample.reader(
            cluster, sample.SampleRequest(tmp_path, settings.Settings(), run="r"), 0
        )
        assert await names(job(0, kind="ConfigMap")) == ["j-0", "j-1", "j-2"], (
            "the ConfigMap is not what is measured"
        )
        assert await names(job(3)) == ["j-0", "j-1", "j-2", "j-3"]

    async def test_what_a_controller_made_with_the_labels_of_its_object_is_not_the_runs_own(
        self,
    ) -> None:
        """KubeVirt's launcher pods."""
        pod = job(0, kind="Pod")
        pod["metadata"] |= {
            "uid": "p",
            "ownerReferences": [{"uid": "u0", "kind": "Job", "controller": True}],
        }
        cluster = ApiServer(job(0), pod).client()
        kinds = await find(cluster, "r", None)
        assert [kind.kind for kind in kinds] == ["Job"]
        assert (await attach(cluster, "r", kinds, None)).others == []

    async def test_a_run_found_by_its_id_takes_the_place_of_what_a_scenario_left_in_the_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """When it has results, and not before: a sample that is interrupted leaves what was there, and is gone on with."""
        old = (
            "perf-audit-results.json",
            "scurves-400.png",
            "notes.txt",
            "sampled.json",
            "summary.json",
            "times.csv",
        )
        request = sample.SampleRequest(tmp_path, settings.Settings(), run="r")
        for name in old:
            (tmp_path / name).write_text('{"run": "q"}')
        server = ApiServer(job(0), job(1))
        cluster = server.client()
        observers: list[Observer] = []

        class Asleep(Observer):
            async def __aenter__(self) -> Observer:
                observers.append(self)
                return self

        async def stop(*_: Any) -> None:
            raise KeyError

        monkeypatch.setattr(sample, "server_offset", stop)
        with pytest.raises(KeyError):
            await sample.sample(cluster, request)
        assert {item.name for item in tmp_path.iterdir()} == {*old, "run.json", "submitted.json"}
        seen = Observer(None, "r", [], ["runai-p"])  # type: ignore[arg-type]
        seen.adopt(record("Pod", "p", "u0", created=1, scheduled=2))
        seen.save(tmp_path / "observed.jsonl")
        server.remove()
        server.add(job(1))

        async def known(*_: Any) -> Any:
            return Offset(0.0, 0.0)

        async def none(*_: Any) -> Any:
            return set(), ""

        for name, answer in {
            "server_offset": known,
            "simulated_nodes": none,
            "Observer": Asleep,
        }.items():
            monkeypatch.setattr(sample, name, answer)
        got = await sample.sample(cluster, request)
        assert "p" in observers[0].records
        assert [item.name for item in got.file.submissions] == ["j-0", "j-1"], (
            "one that went meanwhile was submitted"
        )
        created = {
            "run.json",
            "submitted.json",
            "observed.jsonl",
            "sampled.json",
            "stages.parquet",
            "summary.json",
        }
        assert {item.name for item in tmp_path.iterdir()} == {"notes.txt", *created}
        assert orjson.loads((tmp_path / "summary.json").read_bytes())["not_scheduled"] == [
            "j-0",
            "j-1",
        ]
        (tmp_path / "general.png").touch()
        await sample.sample(cluster, request)
        assert (tmp_path / "general.png").exists()

    async def test_a_folder_of_another_run_is_not_written_to(self, tmp_path: Path) -> None:
        write_run(
            tmp_path / "run.json",
            RunFile("q", "v1", "Pod", ["ns"], "p", 1, 1, True, [], {}),
            Submitted("q", [], 0.0, 0),
        )
        with pytest.raises(settings.SettingsError, match="holds run q; give another folder"):
            await sample.sample(None, sample.SampleRequest(tmp_path, settings.Settings(), run="r"))  # type: ignore[arg-type]

    async def test_a_folder_with_the_state_of_another_run_is_not_written_to(
        self, tmp_path: Path
    ) -> None:
        Observer(None, "q", [], ["runai-p"]).save(tmp_path / "observed.jsonl")  # type: ignore[arg-type]
        cluster = ApiServer(job(0)).client()
        with pytest.raises(
            settings.SettingsError, match="it is the state of run q, not r; give another folder"
        ):
            await sample.sample(
                cluster, sample.SampleRequest(tmp_path, settings.Settings(), run="r")
            )
        assert [item.name for item in tmp_path.iterdir()] == ["observed.jsonl"]
