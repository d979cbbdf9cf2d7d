"""Run:ai's files and programs: settings, submissions, samples, and times.csv with its pictures."""

import csv
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import orjson
import pytest

from perfdag.commands.main import main
from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale import runai, watch
from perfdag.steps.scale.objects import Record, unix_ns
from perfdag.steps.scale.runai import (
    RunFile,
    Settings,
    read_submission,
    write_json,
)
from perfdag.steps.scale.workloads import ScaleParams
from perfdag.suite.document import BadDocument
from tests.fakes.api_server import ApiServer, Request, client

from .builders import BASE, record, rows_for, submissions_of

THING = "apiVersion: {}\nkind: {}\nmetadata: {{name: '${{name}}'}}\n"


def params_of(template: str = "pod", **more: Any) -> ScaleParams:
    return ScaleParams(template=template, count=2, **{"namespace": "ns", "gpus": 0, **more})


async def submitted(kube: Kube, folder: Path, params: ScaleParams) -> RunFile:
    return (await runai.submit(kube, params, folder, Settings(), create_namespace=False))[0]


@pytest.fixture
def cluster(server: ApiServer) -> ApiServer:
    server.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ns"}})
    return server


async def test_a_folder_takes_another_submission_once_its_own_is_deleted(
    cluster: ApiServer, tmp_path: Path
) -> None:
    async with client(cluster) as kube:
        file = await submitted(kube, tmp_path, params_of())
        assert len(cluster.of("Pod")) == 2
        with pytest.raises(ValueError, match=f"holds run {file.run}; `perfdag scale delete"):
            await submitted(kube, tmp_path, params_of())
        assert await runai.delete(kube, tmp_path, 5.0) == 0
        assert cluster.of("Pod") == []
        assert (await submitted(kube, tmp_path, params_of())).run != file.run


async def test_a_submission_that_is_watched_has_times_of_the_watch_from_the_first_on(
    cluster: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "server_offset", AsyncMock(return_value=0.0))
    stamp = "2026-01-01T00:00:00Z"

    def start(request: Request) -> None:
        on = {"status": "True", "lastTransitionTime": stamp}
        conditions = [{"type": "PodScheduled", **on}, {"type": "Ready", **on}]
        request.body["status"] = {"conditions": conditions}

    cluster.on("POST .*/pods", start)
    async with client(cluster) as kube:
        params = params_of()
        _, sample = await runai.submit(kube, params, tmp_path, Settings(), False, watch=20.0)
    assert sample
    rows, facts = sample
    seen = {(row.stage, row.source) for row in rows if row.status == "ok"}
    assert {("created", "watch"), ("scheduled", "watch"), ("ready", "watch")} <= seen
    assert (facts["scheduled"], (tmp_path / "sampled.json").exists()) == (2, True)


async def test_only_the_workloads_that_a_folder_of_the_original_tool_names_are_deleted(
    cluster: ApiServer, tmp_path: Path
) -> None:
    fill(tmp_path, [item("j-1"), item("j-2")])
    async with client(cluster) as kube:
        with pytest.raises(KubeError, match=r"does not serve run\.ai/v2alpha1/TrainingW"):
            await runai.delete(kube, tmp_path, 1.0)
    kind = "run.ai/v2alpha1", "DistributedWorkload"
    cluster.serve(kind)
    for name in ("j-1", "j-2", "j-3"):
        metadata = {"name": name, "namespace": "runai-p"}
        cluster.add({"apiVersion": kind[0], "kind": kind[1], "metadata": metadata})
    async with client(cluster) as kube:
        assert await runai.delete(kube, tmp_path, 5.0) == 0
    assert cluster.names("DistributedWorkload") == ["j-3"]
    assert not (tmp_path / "run.json").exists(), "it stays a folder of that tool"


def test_a_template_of_the_original_tool_is_taken_as_it_is() -> None:
    text = """apiVersion: run.ai/v2alpha1
kind: DistributedWorkload
metadata: {name: JOB_NAME_PLACEHOLDER, namespace: runai-PROJECT_PLACEHOLDER}
spec:
  gpu: {value: "NUM_GPUS"}
  name: {value: JOB_NAME_PLACEHOLDER}
  workers: {value: NUM_WORKERS_PLACEHOLDER}
"""
    (document,) = params_of(text, gpus=0.5, workers=7).load("r").documents
    body = orjson.loads(document.render("r-0", "runai-p", 0))
    spec = {"gpu": {"value": "0.5"}, "name": {"value": "r-0"}, "workers": {"value": 7}}
    assert (body["metadata"]["name"], body["spec"]) == ("r-0", spec)


@pytest.mark.parametrize(
    ("template", "namespace", "message"),
    [
        ("pod", "nowhere", "no namespace 'nowhere'"),
        (THING.format("v1", "Podd"), "ns", "does not serve v1/Podd; check both"),
        (
            THING.format("a.example/v1", "Thing"),
            "ns",
            "does not serve a.example/v1/Thing.*install its CustomResourceDefinition",
        ),
    ],
)
async def test_what_the_cluster_has_not_is_said_and_nothing_is_created(
    template: str, namespace: str, message: str, cluster: ApiServer, tmp_path: Path
) -> None:
    params = params_of(template, namespace=namespace)
    with pytest.raises(KubeError, match=message):
        await submitted(cluster.client(), tmp_path / "out", params)
    assert cluster.of("Pod") == []
    assert not (tmp_path / "out").exists()


def test_a_folder_of_another_run_is_refused_and_one_of_the_original_tool_is_read(
    tmp_path: Path,
) -> None:
    """Run:ai's own submitter writes submitted.json alone."""
    job = {"jobName": "j-abc123", "projectName": "p", "jobNamespace": "runai-p"}
    job["submitTimestamp"] = "2026-01-01T00:00:00.500000+00:00"
    (tmp_path / "submitted.json").write_bytes(orjson.dumps([job]))
    file = read_submission(tmp_path, "distributed", None)
    assert (file.kind, file.project, file.namespaces) == ("DistributedWorkload", "p", ["runai-p"])
    assert (file.prefix, file.finished, file.submissions[0].name) == ("j-", True, "j-abc123")
    assert file.submissions[0].started_ns == unix_ns("2026-01-01T00:00:00.5Z")
    own = RunFile("r", "run.ai/v2alpha1", "TrainingWorkload", ["ns"], "p", 1)
    write_json(tmp_path / "run.json", own)
    assert read_submission(tmp_path, "training", None).run == "r"
    with pytest.raises(ValueError, match="run r is of TrainingWorkload, not distributed"):
        read_submission(tmp_path, "distributed", None)
    with pytest.raises(ValueError, match="run r was submitted to project p, not q"):
        read_submission(tmp_path, None, "q")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scheduler_event_times: [1]", r"s\.yaml:1: scheduler_event_times: must be true or false"),
        ("TEST_BACKEND_TIMES: true", "unknown key; allowed: backend_times, image, kubectl_path"),
        ("submiter: api", r"unknown key; did you mean submitter\?"),
        ("submitter: pigeon", "unknown value 'pigeon'; allowed: api, kubectl, runai-cli"),
    ],
)
def test_a_setting_that_cannot_be_is_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(BadDocument, match=message):
        runai.read_settings(tmp_path / "s.yaml")


@pytest.mark.parametrize(
    ("workload", "storage", "first", "last"),
    [
        ("training", None, "submit", []),
        ("interactive", None, "submit", ["--interactive"]),
        *(
            (
                "distributed",
                storage,
                "submit-pytorch",
                [
                    *("--clean-pod-policy", "none", "--workers", "7", "--new-pvc"),
                    "ephemeral,size=1Mi,accessmode-rwo,path=/path-new,"
                    f"storageclass={storage or 'openebs-lvmpv'},claimname=my-pvc",
                ],
            )
            for storage in ("fast", "")
        ),
    ],
)
def test_the_arguments_of_the_command_line_of_runai(
    workload: str, storage: str | None, first: str, last: list[str]
) -> None:
    """A claim is of the same class as where the workload is created as an object."""
    settings = Settings(submitter="runai-cli", runai_cli_path="cli", image="an/image")
    more: Any = {"gpus": 2, "workers": 7, "pvc": storage is not None}
    params = params_of(workload, storage_class=storage or None, **more)
    cluster = Mock(current=True)
    assert runai.program_of(cluster, params, settings) == [
        *("cli", first, "{name}", "--project", "{project}", "-i", "an/image"),
        *("--image-pull-policy", "IfNotPresent", "-g", "2"),
        *(*last, "--command", "--", "sleep", "infinity"),
    ]


def test_programs_submit_to_the_cluster_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kubectl is told the current context too: somebody may choose another while we submit."""
    config = {
        "current-context": "first",
        "clusters": [{"name": "one", "cluster": {"server": "http://first.invalid"}}],
        "contexts": [{"name": "first", "context": {"cluster": "one"}}],
    }
    (tmp_path / "config").write_bytes(orjson.dumps(config))  # JSON is YAML
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))

    def program(name: Any) -> list[str]:
        settings = Settings(submitter=name, kubectl_path="/bin/kubectl")
        return runai.program_of(Kube().cluster, params_of("training"), settings)

    argv = ["/bin/kubectl", "--context", "first", "-n", "{namespace}", "apply", "-f", "-"]
    assert program("kubectl") == argv
    assert program("runai-cli")[0] == "runai"


def test_a_plug_in_fills_the_backend_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "backend_of_tests.py").write_text(
        "def times(project, namespace):\n"
        "    return {'a': 1700000009.5} if (project, namespace) == ('p', 'other') else {}\n"
    )
    info = tmp_path / "plugin_of_tests-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin-of-tests\nVersion: 1\n")
    entry = "[perfdag.backend_times]\nours = backend_of_tests:times\n"
    (info / "entry_points.txt").write_text(entry)
    monkeypatch.syspath_prepend(tmp_path)
    backend = runai.backend_times(Settings(backend_times="ours"), "p", ["runai-p", "other"])
    assert backend == {"a": 1700000009.5}
    with pytest.raises(ValueError, match="no plug-in 'theirs'"):
        runai.backend_times(Settings(backend_times="theirs"), "p", ["p"])


Sampled = tuple[list[dict[str, Any]], dict[str, list[str]], int]


def sampled(kind: str, *records: Record, submitted: str = "a", members: int = 1) -> Sampled:
    rows = rows_for(kind, *records, submitted=submitted, members=members)
    return runai.sampled_json(rows, "p", {"b": BASE / 1e9 + 9})


def seconds(item: dict[str, Any], *keys: str) -> list[float]:
    return [
        datetime.fromisoformat(item[f"{key}Timestamp"]).timestamp() - BASE / 1e9 for key in keys
    ]


def test_a_time_that_was_not_seen_has_that_of_another_as_the_original_writes_it() -> None:
    """Its plotter reads every time of every workload; what stands in for another is listed."""
    pods = record("Pod", "a", created=1, scheduled=3), record("Pod", "c", created=1)
    last = record("Pod", "b", created=2, scheduled=4)
    (first, second), unseen, waiting = sampled("Pod", *pods, last, submitted="abc")
    assert waiting == 1
    keys = ("firstPodCreated", "lastPodCreated", "podSchedulingDecision", "podGroupCreated")
    assert seconds(first, *keys) == [1, 1, 3, 1]
    assert seconds(first, "firstEviction", "firstPVCBind", "backendJobCreated") == [3, 3, 1]
    assert seconds(second, "backendJobCreated") == [9]
    assert {"podGroupCreatedTimestamp", "firstEvictionTimestamp"} <= set(unseen["a"])
    assert "backendJobCreatedTimestamp" in unseen["a"]
    assert "backendJobCreatedTimestamp" not in unseen["b"]


SECONDS = {
    "workloadCreated": "01",
    "jobCreated": "02",
    "firstPodCreated": "03",
    "lastPodCreated": "04",
    "podGroupCreated": "05",
    "podSchedulingDecision": "06",
    "firstEviction": "06",
    "firstPVCBindRequest": "07",
    "firstPVCBind": "09",
    "backendJobCreated": "01",
}


def item(name: str, **times: str) -> dict[str, Any]:
    """A workload as the original tool writes it, never evicted and without backend times."""
    at = {f"{key}Timestamp": f"2026-01-01T00:00:{t}Z" for key, t in (SECONDS | times).items()}
    return {"jobName": name, "jobNamespace": "runai-p", "projectName": "p"} | at


def fill(folder: Path, sampled: Sequence[dict[str, Any]], submitted: Sequence[str] = ()) -> Path:
    names = submitted or [entry["jobName"] for entry in sampled]
    own = {"projectName": "p", "jobNamespace": "runai-p"}
    own["submitTimestamp"] = "2026-01-01T00:00:00.700000+00:00"
    jobs = [{"jobName": name, **own} for name in names]
    (folder / "submitted.json").write_bytes(orjson.dumps(jobs))
    (folder / "sampled.json").write_bytes(orjson.dumps(sampled))
    return folder


def test_reference_stages_and_columns(tmp_path: Path) -> None:
    """What the original writes in the place of a time that it has not is not drawn as measured."""
    result = runai.read_times(fill(tmp_path, [item("a")]))
    assert result[0].deltas == {
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
    runai.write_csv(tmp_path / "times.csv", result)
    rows = list(csv.reader((tmp_path / "times.csv").read_text().splitlines()))
    assert len(rows[0]) == len(rows[1]) == len(set(rows[0]))
    assert rows[1][rows[0].index("First Eviction")] == ""


def test_where_one_was_evicted_the_others_keep_their_row_and_ours_lists_the_unseen(
    tmp_path: Path,
) -> None:
    fill(tmp_path, [item("a"), item("b", firstEviction="05")])
    assert [entry.deltas["First Eviction"] for entry in runai.read_times(tmp_path)] == [1.0, 0.0]
    unseen = {"a": ["firstEvictionTimestamp"], "b": []}
    (tmp_path / "summary.json").write_bytes(orjson.dumps({"unseen": unseen}))
    assert [entry.deltas["First Eviction"] for entry in runai.read_times(tmp_path)] == [None, 0.0]


def test_excluded_workloads_are_named_and_kept_in_the_table(tmp_path: Path) -> None:
    late = item("late", firstPodCreated="08")
    fill(tmp_path, [item("a"), late, item("stray")], ["a", "late", "waits"])
    result = runai.read_times(tmp_path)
    assert {entry.info["jobName"]: entry.excluded for entry in result} == {
        "a": "",
        "late": "pod group older than its first pod (the pod was replaced)",
        "waits": "not scheduled when sampled",
        "stray": "not in submitted.json",
    }
    assert [len(runai.select(result, skip, None, None)) for skip in (True, False)] == [1, 3]
    assert len(runai.select(result, False, 3, 2)) == 2


@pytest.mark.parametrize(
    ("plot", "skip", "shown", "how"),
    [
        ("general", "--skip-errors", 6, "left out"),
        ("detailed", "--no-skip-errors", 12, "flagged"),
    ],
)
def test_what_was_never_scheduled_refused_or_submitted_is_counted_with_the_reason(
    plot: str,
    skip: str,
    shown: int,
    how: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of 12 workloads 10 were accepted, of which 6 were scheduled; one is of somebody else."""
    names = [f"j-{i}" for i in range(10)]
    fill(tmp_path, [item(name) for name in (*names[:6], "stray")], names)
    items = submissions_of(*names, "j-10", "j-11")
    for refused in items[10:]:
        refused.error = f'pods "{refused.name}" is forbidden: exceeded quota'
    own = "r", "run.ai/v2alpha1", "TrainingWorkload", ["runai-p"], "p", 1, True
    write_json(tmp_path / "run.json", RunFile(*own, submissions=items))
    assert main(["scale", "plot", "--plot", plot, skip, "-o", str(tmp_path)]) == 0
    output = capsys.readouterr()
    assert output.err.splitlines() == [
        f"of 13 workloads 4 {how}: not scheduled when sampled",
        f'of 13 workloads 2 {how}: refused: pods "NAME" is forbidden: exceeded quota',
        "of 13 workloads 1 left out: not in submitted.json",
    ]
    assert f"{shown} of 13 workloads" in output.out
    assert (tmp_path / f"{plot}.png").stat().st_size > 5000
    with (tmp_path / "times.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["Job Name"] for row in rows if not row["Excluded"]] == names[:6]
    assert len(rows) == 13


@pytest.mark.parametrize(
    ("file", "body", "message"),
    [
        ("submitted.json", [{}], r"workload 1 of 1 has no jobName, projectName, submitTimestamp"),
        ("submitted.json", ["x"], r"submitted\.json: 0: Input should be a valid dictionary"),
        ("sampled.json", [{"jobName": "a"}], r"sampled\.json: workload 1 of 1 has no projectName"),
        ("sampled.json", [item("a") | {"jobCreatedTimestamp": "yesterday"}], "yesterday"),
    ],
)
def test_files_of_another_shape_are_named_with_what_they_lack(
    file: str, body: Any, message: str, tmp_path: Path
) -> None:
    fill(tmp_path, [item("a")])
    (tmp_path / file).write_bytes(orjson.dumps(body))
    with pytest.raises(ValueError, match=message):
        runai.read_times(tmp_path)
