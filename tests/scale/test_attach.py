"""A run that is found again by its label, and what an interrupted sample of it leaves to go on from."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from perfdag.kube import KubeError, Resource
from perfdag.steps.scale import runai, sampling
from perfdag.steps.scale.attach import attach, find, follow
from perfdag.steps.scale.clock import Offset
from perfdag.steps.scale.files import RunFile, write_run
from perfdag.steps.scale.generator import Submitted
from perfdag.steps.scale.observer import Observer

from .test_completion import SECOND, record


class Cluster:
    """A cluster with two namespaces and what a run made there."""

    def __init__(self, *bodies: dict[str, Any]) -> None:
        self.bodies = bodies

    async def request(self, verb: str, path: str) -> dict[str, Any]:
        if path == "/apis":
            return {"groups": [{"preferredVersion": {"groupVersion": "batch/v1"}}]}
        kinds = {"/api/v1": ["ConfigMap", "Pod"], "/apis/batch/v1": ["Job"]}[path]
        return {
            "resources": [
                {
                    "name": f"{kind.lower()}s",
                    "kind": kind,
                    "namespaced": True,
                    "verbs": ["list", "delete"],
                }
                for kind in kinds
            ]
        }

    async def resource(self, api_version: str, kind: str) -> Resource:
        return Resource(api_version, kind, f"{kind.lower()}s", True)

    async def list(
        self, resource: Resource, namespace: str | None, *, labels: str
    ) -> list[dict[str, Any]]:
        run = labels.removeprefix("perfdag/run=").removesuffix(",perfdag/index")
        return [
            each
            for each in self.bodies
            if each["kind"] == resource.kind
            and each["metadata"]["labels"].get("perfdag/run") == run
            and "perfdag/index" in each["metadata"]["labels"]
        ]


def job(index: int, run: str = "r", kind: str = "Job") -> dict[str, Any]:
    labels = {"perfdag/run": run, "perfdag/index": str(index)}
    metadata = {"name": f"j-{index}", "namespace": "runai-p", "uid": f"u{index}", "labels": labels}
    metadata["annotations"] = {"perfdag/intended": f"2026-01-01T00:00:0{index}.500000Z"}
    return {"kind": kind, "metadata": metadata, "spec": {"parallelism": 2, "completions": 2}}


class TestAttach:
    async def test_a_run_is_found_by_its_id_with_the_time_each_was_due(self) -> None:
        cluster: Any = Cluster(job(1), job(0), job(2, "other"), job(0, kind="ConfigMap"))
        kinds = await find(cluster, "r", None)
        file = await attach(cluster, "r", kinds, None)
        assert (file.api_version, file.kind, file.namespaces, file.project, file.expected_pods) == (
            "batch/v1",
            "Job",
            ["runai-p"],
            "p",
            2,
        )
        assert [each.name for each in file.submissions] == ["j-0", "j-1"]
        assert file.submissions[1].intended_ns - file.submissions[0].intended_ns == pytest.approx(
            SECOND, abs=1e6
        )
        assert file.others == [("v1", "ConfigMap")]

    async def test_a_run_that_is_not_there_and_one_of_two_kinds_are_told(self) -> None:
        with pytest.raises(KubeError, match="nothing of run q is on this cluster"):
            await find(Cluster(job(0)), "q", None)  # type: ignore[arg-type]
        both: Any = Cluster(job(0), job(1, kind="Pod"))
        with pytest.raises(
            runai.SettingsError,
            match=r"run r created Pod, Job; which is measured is in its run\.json",
        ):
            await attach(both, "r", await find(both, "r", None), None)

    async def test_what_is_gone_was_submitted_all_the_same(self, tmp_path: Path) -> None:
        """Jobs with a TTL: of two one goes and a third comes, then all are gone, for a second sample of the folder, too."""
        cluster: Any = Cluster(job(0), job(1), job(0, kind="ConfigMap"))
        read = await follow(cluster, "r", None, None)

        async def names(*there: dict[str, Any]) -> list[str]:
            cluster.bodies = there
            file = await read()
            write_run(tmp_path / "run.json", file, Submitted("r", file.submissions, 0.0, 0))
            return [each.name for each in file.submissions]

        due = (await read()).submissions[0].intended_ns
        assert await names(job(1), job(2), job(0, kind="ConfigMap")) == ["j-0", "j-1", "j-2"]
        assert await names() == ["j-0", "j-1", "j-2"]
        assert (await read()).submissions[0].intended_ns == due
        read = await sampling._reader(
            cluster, sampling.Look(tmp_path, runai.Settings(), run="r"), 0
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
        cluster: Any = Cluster(job(0), pod)
        kinds = await find(cluster, "r", None)
        assert [each.kind for each in kinds] == ["Job"]
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
        look = sampling.Look(tmp_path, runai.Settings(), run="r")
        for name in old:
            (tmp_path / name).write_text('{"run": "q"}')
        cluster: Any = Cluster(job(0), job(1))
        observers: list[Observer] = []

        class Asleep(Observer):
            async def __aenter__(self) -> Observer:
                observers.append(self)
                return self

        async def stop(*_: Any) -> None:
            raise KeyError

        monkeypatch.setattr(sampling, "server_offset", stop)
        with pytest.raises(KeyError):
            await sampling.sample(cluster, look)
        assert {each.name for each in tmp_path.iterdir()} == {*old, "run.json", "submitted.json"}
        seen = Observer(None, "r", [], ["runai-p"])  # type: ignore[arg-type]
        seen._adopt(record("Pod", "p", "u0", created=1, scheduled=2))
        seen.save(tmp_path / "observed.jsonl")
        cluster.bodies = (job(1),)

        async def known(*_: Any) -> Any:
            return Offset(0.0, 0.0)

        async def none(*_: Any) -> Any:
            return set(), ""

        for name, answer in {
            "server_offset": known,
            "simulated_nodes": none,
            "Observer": Asleep,
        }.items():
            monkeypatch.setattr(sampling, name, answer)
        got = await sampling.sample(cluster, look)
        assert "p" in observers[0].records
        assert [each.name for each in got.file.submissions] == ["j-0", "j-1"], (
            "one that went meanwhile was submitted"
        )
        made = {
            "run.json",
            "submitted.json",
            "observed.jsonl",
            "sampled.json",
            "stages.parquet",
            "summary.json",
        }
        assert {each.name for each in tmp_path.iterdir()} == {"notes.txt", *made}
        assert orjson.loads((tmp_path / "summary.json").read_bytes())["not_scheduled"] == [
            "j-0",
            "j-1",
        ]
        (tmp_path / "general.png").touch()
        await sampling.sample(cluster, look)
        assert (tmp_path / "general.png").exists()

    async def test_a_folder_of_another_run_is_not_written_to(self, tmp_path: Path) -> None:
        write_run(
            tmp_path / "run.json",
            RunFile("q", "v1", "Pod", ["ns"], "p", 1, 1, True, [], {}),
            Submitted("q", [], 0.0, 0),
        )
        with pytest.raises(runai.SettingsError, match="holds run q; give another folder"):
            await sampling.sample(None, sampling.Look(tmp_path, runai.Settings(), run="r"))  # type: ignore[arg-type]

    async def test_a_folder_with_the_state_of_another_run_is_not_written_to(
        self, tmp_path: Path
    ) -> None:
        Observer(None, "q", [], ["runai-p"]).save(tmp_path / "observed.jsonl")  # type: ignore[arg-type]
        cluster: Any = Cluster(job(0))
        with pytest.raises(
            runai.SettingsError, match="it is the state of run q, not r; give another folder"
        ):
            await sampling.sample(cluster, sampling.Look(tmp_path, runai.Settings(), run="r"))
        assert [each.name for each in tmp_path.iterdir()] == ["observed.jsonl"]
