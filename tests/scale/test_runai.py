"""The files, settings and submitters of Run:ai's scale test tool."""

import csv
import random
import re
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from perfdag import kubeconfig
from perfdag.kube import Kube, KubeError
from perfdag.steps.scale import runai, times
from perfdag.steps.scale.commands import Order, _submitter
from perfdag.steps.scale.files import RunFile, forget, read_run, write_run
from perfdag.steps.scale.generator import CommandSubmitter, Submission, Submitted
from perfdag.steps.scale.rows import Row
from perfdag.steps.scale.schedule import Schedule


class TestRunaiFiles:
    def folder(self, tmp_path: Path, sampled: list[dict[str, Any]]) -> Path:
        submitted = [
            {
                "jobName": each["jobName"],
                "projectName": "p",
                "jobNamespace": "runai-p",
                "submitTimestamp": "2026-01-01T00:00:00.700000+00:00",
            }
            for each in sampled
        ]
        (tmp_path / "submitted.json").write_bytes(orjson.dumps(submitted))
        (tmp_path / "sampled.json").write_bytes(orjson.dumps(sampled))
        return tmp_path

    def item(self, name: str, **times: str | None) -> dict[str, Any]:
        second = {
            "workloadCreatedTimestamp": "01",
            "jobCreatedTimestamp": "02",
            "firstPodCreatedTimestamp": "03",
            "lastPodCreatedTimestamp": "04",
            "podGroupCreatedTimestamp": "05",
            "podSchedulingDecisionTimestamp": "06",
            "firstEvictionTimestamp": None,
            "firstPVCBindRequestTimestamp": "07",
            "firstPVCBindTimestamp": "09",
            "backendJobCreatedTimestamp": None,
        } | times
        stamps = {key: f"2026-01-01T00:00:{at}Z" if at else None for key, at in second.items()}
        return {"jobName": name, "jobNamespace": "runai-p", "projectName": "p"} | stamps

    def test_reference_stages_and_columns(self, tmp_path: Path) -> None:
        found = times.read_times(self.folder(tmp_path, [self.item("a")]))
        assert found[0].deltas == {
            "Workload Creation": 1.0,
            "Job Creation": 1.0,
            "First Pod Creation": 1.0,
            "Last Pod Creation": 2.0,
            "Pod Group Creation": 2.0,
            "Pod Scheduling Decision": 1.0,
            "First Eviction": None,
            "First PVC Bind Request": 2.0,
            "First PVC Bind": 2.0,
            "Backend Job Creation": None,
            "Total Pod Scheduling Decision": 6.0,
            "Total Backend Job Creation": None,
        }
        times.write_csv(tmp_path / "times.csv", found)
        rows = list(csv.reader((tmp_path / "times.csv").open()))
        assert len(rows[0]) == len(rows[1]) == len(set(rows[0]))
        assert rows[1][rows[0].index("First Eviction")] == ""

    @pytest.mark.parametrize("ahead", [-0.45, 0.02, 0.45])
    @pytest.mark.parametrize("watched", [False, True])
    def test_the_time_of_submission_is_on_the_clock_of_the_others(self, tmp_path: Path, ahead: float, watched: bool) -> None:
        """True: 0.3 s from the submission to each stage. Without a watch all but the submission are whole seconds of the server's clock."""
        chance, base, rows, submitted = random.Random(5), 1_767_225_600, [], []
        for i in range(2000):
            sent = base + i + chance.random()
            key = {"jobName": f"j-{i}", "projectName": "p", "jobNamespace": "n"}
            submitted.append(key | {"submitTimestamp": datetime.fromtimestamp(sent, UTC).isoformat()})
            api, received = float(int(sent + 0.3 + ahead)), sent + 0.3 if watched else None
            for stage in ("workload_created", "first_pod_created", "scheduled"):
                named = Row("r", i, f"j-{i}", "n", "TrainingWorkload", "", stage, "submitted", "ok", 0.3)
                rows.append(replace(named, api_time=api, receive_time=received))
        sampled, waiting = runai.sampled_json(rows, "p")
        (tmp_path / "submitted.json").write_bytes(orjson.dumps(submitted))
        (tmp_path / "sampled.json").write_bytes(orjson.dumps(sampled))
        (tmp_path / "summary.json").write_bytes(orjson.dumps({"server_clock_ahead_s": ahead}))
        totals = [each.deltas["Total Pod Scheduling Decision"] or 0.0 for each in times.read_times(tmp_path)]
        assert (len(totals), waiting) == (2000, 0)
        assert sum(totals) / 2000 == pytest.approx(0.3, abs=0.05)
        assert all(each == int(each) for each in totals) != watched

    def test_the_time_of_submission_is_when_it_was_due(self, tmp_path: Path) -> None:
        """One that was due at 0.7 s and sent 3 s later waited for the client too, as the rows' stages say."""
        self.folder(tmp_path, [self.item("a")])
        due = round(datetime(2026, 1, 1, 0, 0, 0, 700_000, tzinfo=UTC).timestamp() * 1e9)
        sent = Submission(0, "a", "runai-p", due, due + 3 * 10**9, due + 4 * 10**9)
        (tmp_path / "submitted.json").write_bytes(orjson.dumps(runai.submitted_json(Submitted("r", [sent], 0.0, 0), "p")))
        (found,) = times.read_times(tmp_path)
        assert found.deltas["Total Pod Scheduling Decision"] == 6.0

    def test_excluded_workloads_are_named_and_kept_in_the_table(self, tmp_path: Path) -> None:
        late_pod = self.item("late", firstPodCreatedTimestamp="08")
        found = times.read_times(self.folder(tmp_path, [self.item("a"), late_pod, self.item("b")]))
        assert [each.excluded != "" for each in found] == [False, True, False]
        assert len(times.select(found, True, None, None)) == 2
        assert len(times.select(found, False, None, None)) == 3
        assert [each.info["jobName"] for each in times.select(found, True, 2, 1)] == ["b"]

    def test_what_was_submitted_after_the_sample_is_not_said_to_wait(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path, [self.item("a"), self.item("waits"), self.item("later")])
        body = orjson.loads((folder / "submitted.json").read_bytes())
        body[2]["submitTimestamp"] = "2026-01-01T00:00:09+00:00"
        (folder / "submitted.json").write_bytes(orjson.dumps(body))
        (folder / "sampled.json").write_bytes(orjson.dumps([self.item("a")]))
        (folder / "summary.json").write_bytes(orjson.dumps({"sampled_at": datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC).timestamp()}))
        assert [each.excluded for each in times.read_times(folder)] == ["", "not scheduled when sampled", "not sampled"]

    def test_one_that_has_a_node_is_scheduled_whatever_else_was_not_seen(self, tmp_path: Path) -> None:
        rows = [Row("r", 0, "a", "runai-p", "TrainingWorkload", "", "scheduled", "pod_group_created", "ok", api_time=1_767_225_606.0)]
        sampled, waiting = runai.sampled_json(rows, "p")
        assert waiting == 0
        self.folder(tmp_path, sampled)
        (tmp_path / "summary.json").write_bytes(orjson.dumps({"server_clock_ahead_s": 0.5}))
        (found,) = times.read_times(tmp_path)
        assert (found.excluded, found.deltas["Total Pod Scheduling Decision"], found.deltas["Workload Creation"]) == ("", 5.0, None)

    def partly_scheduled(self, folder: Path) -> None:
        """Of 12 workloads 10 were accepted, of which 6 were scheduled."""
        self.folder(folder, [self.item(f"j-{i}") for i in range(10)])
        (folder / "sampled.json").write_bytes(orjson.dumps([self.item(f"j-{i}") for i in range(6)]))
        due = round(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1e9)
        error = 'pods "j-10" is forbidden: exceeded quota'
        items = [Submission(i, f"j-{i}", "runai-p", due, due, due + 1, error=error if i > 9 else "") for i in range(12)]
        file = RunFile("r", "run.ai/v2alpha1", "TrainingWorkload", ["runai-p"], "p", 1, 1, True, items, {})
        file.submissions[11].error = 'pods "j-11" is forbidden: exceeded quota'
        write_run(folder / "run.json", file, Submitted("r", items, 0.0, 0))

    @pytest.mark.parametrize("plot", ["general", "detailed"])
    @pytest.mark.parametrize(("skip", "shown", "how"), [("--skip-errors", 6, "left out"), ("--no-skip-errors", 12, "flagged")])
    def test_what_was_never_scheduled_or_refused_is_counted_with_the_reason(
        self,
        plot: str,
        skip: str,
        shown: int,
        how: str,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        from perfdag.charts import style
        from perfdag.cli import main

        drawn: list[str] = []
        monkeypatch.setattr(style, "to_bytes", lambda figure: (drawn.extend(each.get_text() for each in figure.texts), b"x"))
        self.partly_scheduled(tmp_path)
        assert main(["scale", "plot", "--plot", plot, skip, "-o", str(tmp_path)]) == 0
        reasons = [f"4 {how}: not scheduled when sampled", f'2 {how}: refused: pods "NAME" is forbidden: exceeded quota']
        said = capsys.readouterr()
        assert said.err.splitlines() == [f"of 12 workloads {each}" for each in reasons]
        assert f"{shown} of 12 workloads" in said.out
        with (tmp_path / "times.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert [row["Job Name"] for row in rows if not row["Excluded"]] == [f"j-{i}" for i in range(6)]
        assert len(rows) == 12
        assert all(row["Total Pod Scheduling Decision"] == "" and row["Workload Submitted"] for row in rows if row["Excluded"])
        title, subtitle = drawn
        assert ("6 of 12" if plot == "general" or shown == 6 else "12 workloads") in title
        assert all(each in subtitle.replace("\n", " ") for each in reasons)

    def test_a_run_of_which_nothing_was_scheduled_is_no_picture_of_none(self, tmp_path: Path) -> None:
        from perfdag.charts import scale as charts

        self.folder(tmp_path, [self.item("a")])
        (tmp_path / "sampled.json").write_text("[]")
        (only,) = times.read_times(tmp_path)
        assert only.excluded == "not scheduled when sampled"
        assert charts.general([(only.info["submitTimestamp"], only.deltas)]).texts[0].get_text().endswith("scheduling: 0 of 1 workloads")

    def test_missing_files_and_bad_settings_say_what_to_do(self, tmp_path: Path) -> None:
        with pytest.raises(runai.SettingsError, match="perfdag scale submit"):
            times.read_times(tmp_path)
        (tmp_path / "s.yaml").write_text("submiter: api")
        with pytest.raises(runai.SettingsError, match=r"submiter; there are .*submitter"):
            runai.read_settings(tmp_path / "s.yaml")
        (tmp_path / "s.yaml").write_text("submitter: carrier-pigeon")
        with pytest.raises(runai.SettingsError, match="there are api, kubectl, runai-cli"):
            runai.read_settings(tmp_path / "s.yaml")

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("output_dir: 5", "output_dir: input should be a valid string"),
            ("scheduler_event_times: [1]", "scheduler_event_times: input should be a valid boolean"),
        ],
    )
    def test_a_setting_of_another_type_is_named(self, text: str, told: str, tmp_path: Path) -> None:
        (tmp_path / "s.yaml").write_text(text)
        with pytest.raises(runai.SettingsError, match=rf"s\.yaml: {re.escape(told)}"):
            runai.read_settings(tmp_path / "s.yaml")

    @pytest.mark.parametrize(
        ("file", "body", "told"),
        [
            ("submitted.json", [{}], r"submitted\.json: workload 1 of 1 has no jobName, projectName, submitTimestamp"),
            ("submitted.json", ["x"], r"submitted\.json: workload 1 of 1 has no jobName"),
            ("sampled.json", [{"jobName": "a"}], r"sampled\.json: workload 1 of 1 has no projectName"),
            ("submitted.json", {}, r"submitted\.json is not a list of workloads"),
        ],
    )
    def test_files_of_another_shape_are_named_with_what_they_lack(self, file: str, body: Any, told: str, tmp_path: Path) -> None:
        self.folder(tmp_path, [self.item("a")])
        (tmp_path / file).write_bytes(orjson.dumps(body))
        with pytest.raises(runai.SettingsError, match=told):
            times.read_times(tmp_path)

    def test_a_time_that_is_none_is_named(self, tmp_path: Path) -> None:
        self.folder(tmp_path, [{**self.item("a"), "jobCreatedTimestamp": "yesterday"}])
        with pytest.raises(runai.SettingsError, match=r"workload a: jobCreatedTimestamp is 'yesterday', not a time"):
            times.read_times(tmp_path)

    @pytest.mark.parametrize(
        ("body", "told"),
        [({}, "submissions"), ([], "submissions"), ({"submissions": [[1]]}, "submissions"), ({"submissions": []}, "run: field required")],
    )
    def test_a_run_file_of_another_shape_is_named(self, body: Any, told: str, tmp_path: Path) -> None:
        (tmp_path / "run.json").write_bytes(orjson.dumps(body))
        with pytest.raises(runai.SettingsError, match=rf"run\.json: {told}"):
            read_run(tmp_path, 0)

    def test_nothing_of_an_earlier_run_is_left_beside_the_next(self, tmp_path: Path) -> None:
        ours = ("summary.json", "times.csv", "general.png", "timeline.png", "scurves-400.png", "ecdf-400-2.png", "sampled.json")
        theirs = {"notes.txt", "photo.png", "general-notes.png", "order.pdf"}
        for name in (*ours, "perf-audit-results.json", "run.json", *theirs):
            (tmp_path / name).touch()
        forget(tmp_path, ["summary.json"])
        assert {each.name for each in tmp_path.iterdir()} == {*theirs, "run.json", "summary.json"}
        forget(tmp_path, submission=True)
        assert {each.name for each in tmp_path.iterdir()} == theirs

    def test_the_cli_gets_an_argument_list(self) -> None:
        argv = runai.runai_argv(runai.Settings(), "distributed", "2", 7, True)
        assert argv[:3] == ["runai", "submit-pytorch", "{name}"]
        assert argv[argv.index("--workers") + 1] == "7"
        assert argv[-4:] == ["--command", "--", "sleep", "infinity"]


def fake_cli(folder: Path, body: str = "") -> str:
    """A stand-in for Run:ai's command line that writes down its arguments, one a line."""
    path = folder / "fake-runai"
    path.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> "{folder}/said"\necho -- >> "{folder}/said"\n{body}\n')
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

    async def told(self, folder: Path, workload: str, **more: Any) -> list[str]:
        settings = runai.Settings(runai_cli_path=fake_cli(folder), image="an/image", storage_class=more.get("storage_class", ""))
        argv = runai.runai_argv(settings, workload, "2", 7, more.get("pvc", False))
        submitter = CommandSubmitter(None, argv, reads_input=False)  # type: ignore[arg-type]
        assert await submitter.submit([self.BODY], "runai-p one", Counter()) == ""
        return (folder / "said").read_text().split("\n")[:-2]

    async def test_a_training_workload(self, tmp_path: Path) -> None:
        before = ["submit", "j-7", "--project", "p one", "-i", "an/image", "--image-pull-policy", "IfNotPresent", "-g", "2"]
        assert await self.told(tmp_path, "training") == [*before, "--command", "--", "sleep", "infinity"]

    @pytest.mark.parametrize(("given", "storage"), [("fast", "fast"), ("", "openebs-lvmpv")])
    async def test_a_distributed_workload_with_a_claim(self, given: str, storage: str, tmp_path: Path) -> None:
        """As the tool asks for it, and of the same class as where the workload is created as an object."""
        said = await self.told(tmp_path, "distributed", pvc=True, storage_class=given)
        assert said[:2] == ["submit-pytorch", "j-7"]
        claim = ["--new-pvc", f"ephemeral,size=1Mi,accessmode-rwo,path=/path-new,storageclass={storage},claimname=my-pvc"]
        assert said[10:] == ["--clean-pod-policy", "none", "--workers", "7", *claim, "--command", "--", "sleep", "infinity"]

    async def test_an_interactive_workload(self, tmp_path: Path) -> None:
        assert (await self.told(tmp_path, "interactive"))[10:] == ["--interactive", "--command", "--", "sleep", "infinity"]

    async def test_what_it_refuses_and_when_it_hangs_is_told(self, tmp_path: Path) -> None:
        refuses = CommandSubmitter(None, [fake_cli(tmp_path, "echo 'no such project' >&2; exit 3")])  # type: ignore[arg-type]
        with pytest.raises(KubeError, match="fake-runai: no such project"):
            await refuses.submit([self.BODY], "n", Counter())
        hangs = CommandSubmitter(None, [fake_cli(tmp_path, "sleep 60")], timeout=0.5)  # type: ignore[arg-type]
        with pytest.raises(KubeError, match=r"did not end in 0\.5 s"):
            await hangs.submit([self.BODY], "n", Counter())
        with pytest.raises(KubeError, match=r"cannot be run: No such file.*--submitter api"):
            await CommandSubmitter(None, [str(tmp_path / "absent")]).submit([self.BODY], "n", Counter())  # type: ignore[arg-type]

    def test_a_plug_in_is_a_submitter_too(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "submitter_of_tests.py").write_text("def make(kube, settings):\n    return (kube, settings.project)\n")
        installed(tmp_path, "perfdag.submitters", "sdk = submitter_of_tests:make")
        monkeypatch.syspath_prepend(tmp_path)
        runai.check_submitter("sdk")
        order = Order("pod", 1, 1, Schedule(), tmp_path, runai.Settings(submitter="sdk", project="p"))
        assert _submitter("kube", order) == ("kube", "p")  # type: ignore[arg-type]
        with pytest.raises(runai.SettingsError, match="submitter 'sdc'; there are api, kubectl, runai-cli, sdk"):
            runai.check_submitter("sdc")


class TestContext:
    """Other programs create the objects in the cluster whose rights, lock and namespace were asked for."""

    CONFIG = {
        "current-context": "first",
        "clusters": [{"name": name, "cluster": {"server": f"http://{name}.invalid"}} for name in ("first", "second")],
        "contexts": [{"name": name, "context": {"cluster": name}} for name in ("first", "second")],
    }

    @pytest.fixture(autouse=True)
    def config(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "config").write_bytes(orjson.dumps(self.CONFIG))  # JSON is YAML
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))

    def submitter(self, kube: Kube, name: str) -> Any:
        settings = runai.Settings(submitter=name, kubectl_path="/bin/kubectl")
        return _submitter(kube, Order("training", 1, 1, Schedule(), Path(), settings))

    @pytest.mark.parametrize(("context", "told"), [(None, "first"), ("second", "second")])
    def test_kubectl_is_told_it(self, context: str | None, told: str) -> None:
        """The current one too: somebody may choose another while we submit."""
        argv = self.submitter(Kube(context=context), "kubectl")._argv
        assert argv == ["/bin/kubectl", "--context", told, "-n", "{namespace}", "apply", "-f", "-"]

    def test_in_a_pod_there_is_none(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "token").write_text("t")
        monkeypatch.setattr(kubeconfig, "SERVICE_ACCOUNT", tmp_path)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("KUBECONFIG")
        for name in ("kubectl", "runai-cli"):
            assert "--context" not in self.submitter(Kube(), name)._argv

    def test_the_command_line_of_runai_takes_the_current_one_alone(self) -> None:
        for context in (None, "first"):
            assert self.submitter(Kube(context=context), "runai-cli")._argv[0] == "runai"
        with pytest.raises(
            runai.SettingsError, match=r"submits to the current context.* not to 'second'; .*kubectl config use-context second"
        ):
            self.submitter(Kube(context="second"), "runai-cli")


class TestBackendTimes:
    def test_a_plug_in_fills_the_backend_row(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "backend_of_tests.py").write_text(
            "def times(project, namespace):\n    return {'a': 1767225610.5} if (project, namespace) == ('p', 'other') else {}\n"
        )
        installed(tmp_path, "perfdag.backend_times", "ours = backend_of_tests:times")
        monkeypatch.syspath_prepend(tmp_path)
        backend = runai.backend_times(runai.Settings(backend_times="ours"), "p", ["runai-p", "other"])
        assert backend == {"a": 1767225610.5}
        stages = ("workload_created", "first_pod_created", "scheduled")
        rows = [
            Row("r", i, name, "runai-p", "TrainingWorkload", "", stage, "submitted", "ok", 1.0, receive_time=1767225603.0)
            for i, name in enumerate("ab")
            for stage in stages
        ]
        first, second = runai.sampled_json(rows, "p", backend)[0]
        assert first["backendJobCreatedTimestamp"] == "2026-01-01T00:00:10.500000+00:00"
        assert second["backendJobCreatedTimestamp"] is None, "unobserved, not nought"

    def test_none_is_asked_for_and_one_that_is_not_installed(self) -> None:
        assert runai.backend_times(runai.Settings(), "p", ["n"]) == {}
        with pytest.raises(runai.SettingsError, match="no backend_times plug-in 'theirs' is installed"):
            runai.backend_times(runai.Settings(backend_times="theirs"), "p", ["n"])


class TestVersion:
    class Cluster:
        """A cluster with Run:ai's ConfigMap, or without."""

        def __init__(self, data: dict[str, str] | None) -> None:
            self.data = data

        async def resource(self, api_version: str, kind: str) -> str:
            return f"{api_version} {kind}"

        async def get(self, resource: str, name: str, namespace: str) -> dict[str, Any]:
            if (resource, name, namespace) != ("v1 ConfigMap", "runai-public", "runai") or self.data is None:
                raise KubeError(404, "NotFound", "not found")
            return {"data": self.data}

    @pytest.mark.parametrize(("data", "version"), [({"cluster-version": "2.18.44"}, "2.18.44"), ({}, None), (None, None)])
    async def test_it_is_what_the_cluster_publishes(self, data: dict[str, str] | None, version: str | None) -> None:
        assert await runai.runai_version(self.Cluster(data)) == version  # type: ignore[arg-type]

    @pytest.mark.parametrize(("version", "tool"), [("2.18.44", "Run:ai 2.18.44"), (None, "perfdag")])
    def test_rows_name_it_as_the_tool(self, version: str | None, tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
        from perfdag.benchmark import Gang, get
        from perfdag.shape import Shape
        from perfdag.steps import scale_workloads
        from perfdag.steps.scale.vmi import Result

        async def measured(spec: Any, params: Any) -> Result:
            return Result("submit", 1, "r", [], [], {}, {"simulated": False, "runai_version": version})

        monkeypatch.setattr(scale_workloads, "_measure", measured)
        found = get("scale")
        output = found.run(Gang([], Shape(), 60.0, "/nowhere"), found.Params.model_validate({"template": "training"}))
        assert output.tool == tool
