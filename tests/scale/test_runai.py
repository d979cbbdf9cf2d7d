"""Submissions for Run:ai, and runs that are found by their label."""

from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale.figures.rows import Row
from perfdag.steps.scale.measure.generator import CommandSubmitter, Schedule
from perfdag.steps.scale.runai import settings as runai
from perfdag.steps.scale.runai.run_file import (
    read_run,
    remove_outputs,
)
from perfdag.steps.scale.runai.submit import SubmitRequest, submitter_for
from perfdag.steps.scale.scenarios.submit import runai_version
from tests.fakes.api_server import ApiServer


class TestRunaiFiles:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("output_dir: 5", r"s\.yaml: output_dir: input should be a valid string"),
            (
                "scheduler_event_times: [1]",
                r"s\.yaml: scheduler_event_times: input should be a valid boolean",
            ),
            ("submiter: api", r"submiter; there are .*submitter"),
            ("submitter: carrier-pigeon", "there are api, kubectl, runai-cli"),
        ],
    )
    def test_a_setting_that_cannot_be_is_named(
        self, text: str, message: str, tmp_path: Path
    ) -> None:
        (tmp_path / "s.yaml").write_text(text)
        with pytest.raises(runai.SettingsError, match=message):
            runai.read_settings(tmp_path / "s.yaml")

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ({}, "submissions"),
            ([], "submissions"),
            ({"submissions": [[1]]}, "submissions"),
            ({"submissions": []}, "run: field required"),
        ],
    )
    def test_a_run_file_of_another_shape_is_named(
        self, body: Any, message: str, tmp_path: Path
    ) -> None:
        (tmp_path / "run.json").write_bytes(orjson.dumps(body))
        with pytest.raises(runai.SettingsError, match=rf"run\.json: {message}"):
            read_run(tmp_path, 0)

    def test_nothing_of_an_earlier_run_is_left_beside_the_next(self, tmp_path: Path) -> None:
        ours = (
            "summary.json",
            "times.csv",
            "general.png",
            "timeline.png",
            "scurves-400.png",
            "ecdf-400-2.png",
            "sampled.json",
        )
        theirs = {"notes.txt", "photo.png", "general-notes.png", "order.pdf"}
        for name in (*ours, "perf-audit-results.json", "run.json", *theirs):
            (tmp_path / name).touch()
        remove_outputs(tmp_path, ["summary.json"])
        assert {item.name for item in tmp_path.iterdir()} == {*theirs, "run.json", "summary.json"}
        remove_outputs(tmp_path, submission=True)
        assert {item.name for item in tmp_path.iterdir()} == theirs


def submitter(*argv: str, **options: Any) -> CommandSubmitter:
    """A submitter by a command, which needs no API server."""
    kube: Any = None
    return CommandSubmitter(kube, list(argv), **options)


def fake_cli(folder: Path, body: str = "") -> str:
    """A stand-in for Run:ai's command line that writes down its arguments, one a line."""
    path = folder / "fake-runai"
    path.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" >> "{folder}/said"\necho -- >> "{folder}/said"\n{body}\n'
    )
    path.chmod(0o755)
    return str(path)


def installed(folder: Path, group: str, entry: str) -> None:
    """A distribution in a folder that is (or gets) on sys.path."""
    info = folder / "plugin_of_tests-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin-of-tests\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{entry}\n")


class TestSubmitters:
    BODY = orjson.dumps({"metadata": {"name": "j-7", "namespace": "runai-p one"}})

    @pytest.mark.parametrize(
        ("workload", "storage", "first", "last"),
        [
            pytest.param("training", None, "submit", [], id="training"),
            pytest.param("interactive", None, "submit", ["--interactive"], id="interactive"),
            *(
                pytest.param(
                    "distributed",
                    storage,
                    "submit-pytorch",
                    [
                        *("--clean-pod-policy", "none", "--workers", "7", "--new-pvc"),
                        "ephemeral,size=1Mi,accessmode-rwo,path=/path-new,"
                        f"storageclass={storage or 'openebs-lvmpv'},claimname=my-pvc",
                    ],
                    id=f"distributed with a claim of class {storage or 'by default'}",
                )
                for storage in ("fast", "")
            ),
        ],
    )
    async def test_the_command_line_of_runai_gets_an_argument_list(
        self, workload: str, storage: str | None, first: str, last: list[str], tmp_path: Path
    ) -> None:
        """A claim is of the same class as where the workload is created as an object."""
        path = fake_cli(tmp_path)
        settings = runai.Settings(
            runai_cli_path=path, image="an/image", storage_class=storage or ""
        )
        argv = runai.runai_argv(settings, workload, "2", 7, storage is not None)
        by_command = submitter(*argv, reads_input=False)
        assert await by_command.submit([self.BODY], "runai-p one", Counter()) == ""
        assert (tmp_path / "said").read_text().split("\n")[:-2] == [
            *(first, "j-7", "--project", "p one", "-i", "an/image"),
            *("--image-pull-policy", "IfNotPresent", "-g", "2"),
            *(*last, "--command", "--", "sleep", "infinity"),
        ]

    @pytest.mark.parametrize(
        ("script", "message"),
        [
            ("echo 'no such project' >&2; exit 3", "fake-runai: no such project"),
            ("sleep 60", r"did not end in 0\.5 s"),
            (None, "cannot be run: No such file.*--submitter api"),
        ],
    )
    async def test_what_it_refuses_and_when_it_hangs_is_told(
        self, script: str | None, message: str, tmp_path: Path
    ) -> None:
        program = str(tmp_path / "absent") if script is None else fake_cli(tmp_path, script)
        with pytest.raises(KubeError, match=message):
            await submitter(program, timeout=0.5).submit([self.BODY], "n", Counter())


class TestContext:
    """Other programs create the objects in the cluster whose rights, lock and namespace were
    asked for.
    """

    CONFIG = {
        "current-context": "first",
        "clusters": [
            {"name": name, "cluster": {"server": f"http://{name}.invalid"}}
            for name in ("first", "second")
        ],
        "contexts": [{"name": name, "context": {"cluster": name}} for name in ("first", "second")],
    }

    @pytest.fixture(autouse=True)
    def config(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "config").write_bytes(orjson.dumps(self.CONFIG))  # JSON is YAML
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))

    def submitter(self, kube: Kube, name: str) -> Any:
        settings = runai.Settings(submitter=name, kubectl_path="/bin/kubectl")
        return submitter_for(kube, SubmitRequest("training", 1, 1, Schedule(), Path(), settings))

    @pytest.mark.parametrize(("context", "message"), [(None, "first"), ("second", "second")])
    def test_kubectl_is_told_it(self, context: str | None, message: str) -> None:
        """The current one too: somebody may choose another while we submit."""
        argv = self.submitter(Kube(context=context), "kubectl").argv
        assert argv == [
            "/bin/kubectl",
            "--context",
            message,
            "-n",
            "{namespace}",
            "apply",
            "-f",
            "-",
        ]

    def test_the_command_line_of_runai_takes_the_current_one_alone(self) -> None:
        for context in (None, "first"):
            assert self.submitter(Kube(context=context), "runai-cli").argv[0] == "runai"
        with pytest.raises(
            runai.SettingsError,
            match=(
                r"submits to the current context.* not to 'second'; .*kubectl config use-context "
                r"second"
            ),
        ):
            self.submitter(Kube(context="second"), "runai-cli")


class TestBackendTimes:
    def test_a_plug_in_fills_the_backend_row(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "backend_of_tests.py").write_text(
            "def times(project, namespace):\n"
            "    return {'a': 1767225610.5} if (project, namespace) == ('p', 'other') else "
            "{}\n"
        )
        installed(tmp_path, "perfdag.backend_times", "ours = backend_of_tests:times")
        monkeypatch.syspath_prepend(tmp_path)
        backend = runai.backend_times(
            runai.Settings(backend_times="ours"), "p", ["runai-p", "other"]
        )
        assert backend == {"a": 1767225610.5}
        stages = ("workload_created", "first_pod_created", "scheduled")
        rows = [
            Row(
                "r",
                i,
                name,
                "runai-p",
                "TrainingWorkload",
                "",
                stage,
                "submitted",
                "ok",
                1.0,
                receive_time=1767225603.0,
            )
            for i, name in enumerate("ab")
            for stage in stages
        ]
        first, second = runai.sampled_json(rows, "p", backend)[0]
        assert first["backendJobCreatedTimestamp"] == "2026-01-01T00:00:10.500000+00:00"
        assert second["backendJobCreatedTimestamp"] is None, "unobserved, not nought"


class TestVersion:
    @pytest.mark.parametrize(
        ("data", "version"), [({"cluster-version": "2.18.44"}, "2.18.44"), ({}, None), (None, None)]
    )
    async def test_it_is_what_the_cluster_publishes(
        self, data: dict[str, str] | None, version: str | None, server: ApiServer
    ) -> None:
        if data is not None:
            server.add(
                {
                    "kind": "ConfigMap",
                    "metadata": {"name": "runai-public", "namespace": "runai"},
                    "data": data,
                }
            )
        assert await runai_version(server.client()) == version
