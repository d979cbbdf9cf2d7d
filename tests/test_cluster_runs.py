"""Runs on a cluster as the command line treats them: refusals, resume, delete, and waits."""

import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import perfdag
from perfdag.kube.client import KubeError
from perfdag.kube.pods import Pod
from perfdag.plan import make_plan
from perfdag.revision import Revision
from perfdag.runs.cluster import ClusterRun, follow_run, progress_line
from perfdag.steps.pods.context import from_environment, label_workflow
from perfdag.steps.pods.plan import plan_of
from perfdag.store.base import FolderStore, StoreError
from perfdag.suite.load import parse_suite
from tests.conftest import CommandLine, Printed
from tests.fakes.api_server import Answer, ApiServer, kubeconfig

from .steps.test_plan_step import place as pod_context

Watch = Callable[..., Awaitable[int]]


def view(phase: str, *pods: Pod, **more: Any) -> ClusterRun:
    """A run in a phase of its Workflow, with these pods; `more` is of its status."""
    meta = {"name": "w", "creationTimestamp": "2026-01-01T00:00:00Z", "uid": "u"}
    return ClusterRun(
        {"metadata": meta, "spec": {}, "status": {"phase": phase, **more}}, list(pods)
    )


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Watch a run that looks so, one look after the other; return the exit code."""

    async def follow(*looks: ClusterRun | KubeError) -> int:
        left = list(looks)

        async def look(*_: Any) -> ClusterRun:
            answer = left.pop(0)
            if isinstance(answer, KubeError):
                raise answer
            return answer

        monkeypatch.setattr("perfdag.runs.cluster.read_cluster_run", look)
        monkeypatch.setattr("perfdag.runs.cluster.Kube", ApiServer().client)
        monkeypatch.setattr("perfdag.runs.cluster.POLL_INTERVAL", 0.01)
        code = await follow_run("w", "bench")
        assert left == []
        return code

    return follow


SUITE = "name: s\npriority: 7\nentries: [{benchmark: command, params: {argv: ['true']}}]\n"
LS = perfdag.Entry(benchmark="command", params={"argv": ["ls"]})
ROOT = "s3://bench/results"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    """An API server with the namespace bench."""
    server = ApiServer(namespace="bench")
    monkeypatch.setattr("perfdag.kube.client.Kube", server.client)
    return server


@pytest.fixture
def submit(
    bench: ApiServer, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Printed]:
    """Run `perfdag submit` of a suite's text in the namespace bench."""
    monkeypatch.setattr("perfdag.runs.cluster.installed_store", lambda _: ROOT)

    def run(text: str, *more: str, code: int = 0) -> Printed:
        Path("suite.yaml").write_text(text)
        return cli(["submit", "suite.yaml", "--namespace", "bench", *more], code)

    return run


def test_a_workflow_owns_the_config_map_of_its_suite(
    bench: ApiServer, submit: Callable[..., Printed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFDAG_REVISION", "v1.2")
    submit(SUITE, "--set", "repetitions=3", "--only", "command")
    [held], [workflow] = bench.of("ConfigMap"), bench.of("Workflow")
    values = {each["name"]: each["value"] for each in workflow["spec"]["arguments"]["parameters"]}
    assert held["metadata"]["name"] == values["suite"] == f"perfdag-{values['run'].lower()}"
    assert held["data"] == {"suite.yaml": SUITE}
    [owner] = held["metadata"]["ownerReferences"]
    assert owner.items() >= {"kind": "Workflow", "uid": workflow["metadata"]["uid"]}.items()
    given = {"settings": ["repetitions=3"], "only": ["command"], "revision": "v1.2"}
    assert json.loads(values["options"]) == given
    environment = {"PERFDAG_STORE": "s3://b/r", "PERFDAG_OPTIONS": values["options"]}
    monkeypatch.setattr("perfdag.steps.pods.plan.SUITE_FILES", [Path("suite.yaml")])
    plan = plan_of(from_environment(environment), FolderStore("."), environment)
    assert plan.revisions == {"command": Revision("v1.2")}


def test_a_script_submits_a_suite(bench: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfdag.runs.cluster.installed_store", lambda _: ROOT)
    Path("suite.yaml").write_text(SUITE)
    run = perfdag.Suite.read("suite.yaml").submit("bench", only=["command"])
    [held], [workflow] = bench.of("ConfigMap"), bench.of("Workflow")
    values = {each["name"]: each["value"] for each in workflow["spec"]["arguments"]["parameters"]}
    assert values == {
        "run": run,
        "suite": held["metadata"]["name"],
        "options": '{"only":["command"]}',
    }
    other = perfdag.Suite(name="s", store="s3://other/results", entries=[LS])
    with pytest.raises(perfdag.PerfdagError, match="the store s3://other/results"):
        other.submit("bench")


def test_what_is_refused_leaves_nothing(bench: ApiServer, submit: Callable[..., Printed]) -> None:
    assert (
        "the installation of namespace bench the store"
        in submit(f"store: s3://other/results\n{SUITE}", code=2).err
    )
    bench.fail("POST .*/workflows", 403)
    submit(SUITE, code=4)
    assert bench.of("ConfigMap") == bench.of("Workflow") == []


def owned(kind: str, name: str, owner: str, labels: dict[str, str]) -> dict[str, Any]:
    """An object that the object with the uid `owner` owns; its own uid is its name."""
    metadata = {"name": name, "uid": name, "ownerReferences": [{"uid": owner}], "labels": labels}
    return {"kind": kind, "metadata": metadata, "spec": {}}


def test_rm_takes_all_workflows_of_a_run_and_what_they_own_and_names_its_results(
    bench: ApiServer, cli: CommandLine
) -> None:
    run = "20260101T000000Z-00000000"
    bench.add(
        workflow({}, name="first", run_id=run, store=ROOT),
        workflow({}, name="again", run_id=run, store=ROOT),
        workflow({}, name="other", store=ROOT),
        owned("Pod", "p", "first", {"workflows.argoproj.io/workflow": "first"}),
        owned("PersistentVolumeClaim", "p-measured", "p", {}),
    )
    bench.on("GET .*/pods", lambda _: bench.collect_garbage())
    out = cli(["rm", run, "--namespace", "bench"]).out
    assert f"its results stay: perfdag rm {run} --store {ROOT} removes them" in out
    assert bench.names("Workflow") == ["other"]
    assert bench.of("Pod") == bench.of("PersistentVolumeClaim") == [], "it waits for their end"


def test_a_workflow_that_argo_submitted_has_the_labels_of_its_run_at_the_end(
    bench: ApiServer,
) -> None:
    plan = make_plan(parse_suite(SUITE))
    bench.add(workflow({}, run_id=""))
    pod = replace(pod_context(), workflow="w")
    label_workflow(pod, plan, FolderStore("store"), "worse", "8 % slower")
    [labelled] = bench.of("Workflow")
    labels = {"perfdag/run": plan.run_id, "perfdag/suite": "s", "perfdag/verdict": "worse"}
    assert labelled["metadata"]["labels"] == labels
    annotations = labelled["metadata"]["annotations"]
    assert annotations["perfdag/report"].endswith(f"/runs/{plan.run_id}/report.html")
    assert annotations["workflows.argoproj.io/description"] == "8 % slower", "in Argo's UI"


async def test_a_watch_survives_a_connection_that_is_lost_twice(
    watch: Watch, capsys: pytest.CaptureFixture[str]
) -> None:
    finish = {"type": "Pod", "id": "f", "templateName": "finish-pod", "outputs": {"exitCode": "3"}}
    lost = [KubeError(0, "Unreachable", "connection refused"), KubeError(503, "Unavailable", "no")]
    assert await watch(*lost, view("Succeeded", nodes={"f": finish})) == 3
    captured = capsys.readouterr()
    assert captured.err.count("connection lost") == 1
    assert "Succeeded" in captured.out


def test_the_exit_code_and_the_table_are_those_of_the_last_attempt() -> None:
    def node(step: str, number: int, second: int, code: str | None) -> dict[str, Any]:
        named = f"w-x7.{'onExit' if step == 'finish' else step}({number}).{step}"
        return {
            "type": "Pod",
            "id": f"{step}{number}",
            "name": named,
            "displayName": step,
            "templateName": f"{step}-pod",
            "startedAt": f"2026-01-01T00:00:0{second}Z",
            "outputs": {"exitCode": code} if code else {},
        }

    def run(*nodes: dict[str, Any]) -> ClusterRun:
        group = {"type": "Retry", "id": "r", "templateName": "finish", "outputs": {"exitCode": "9"}}
        return view("Failed", nodes={item["id"]: item for item in (*nodes, group)})

    tried = [node("finish", 2, 9, "0"), node("finish", 0, 1, "4"), node("finish", 1, 9, "137")]
    for attempts in (run(*tried), run(*tried[::-1])):
        assert attempts.exit_code() == 0
        assert (attempts.last_node("finish") or {})["id"] == "finish2"
    for finished, planned, code in (
        ("1", "0", 1),  # the rows of a run whose plan ended early say so
        ("1", "1", 1),
        ("1", "2", 2),
        ("1", "4", 4),
        ("4", None, 4),  # the plan never started
        ("4", "2", 2),  # it refused the suite
    ):
        assert run(node("finish", 0, 9, finished), node("plan", 0, 0, planned)).exit_code() == code
    assert run(node("finish", 0, 0, None)).exit_code() is None


async def test_a_watch_tells_what_a_run_waited_for_when_its_pod_is_gone(
    watch: Watch, capsys: pytest.CaptureFixture[str]
) -> None:
    trouble = "Unschedulable: persistentvolumeclaim nope not found"
    waits = Pod("plan", None, 0, None, "Pending", None, None, trouble)
    assert await watch(view("", waits), view("Failed")) == 1
    assert capsys.readouterr().err == f"workflow w Failed: plan: {trouble}\n"


def test_argos_progress_and_the_last_line_of_the_lead_are_shown() -> None:
    running = view("Running", Pod("p", 2, 0, 0, "Running", "n", "10.0.0.1"), progress="3/12")
    last = "2/4 ok command POINT=1 repetition 1 (about 3 min 5 s left)"
    assert f"3/12 of the started batches | batch 2 | pods 1 Running | {last}" in progress_line(
        running, [last]
    )


def test_who_measures_is_said() -> None:
    """Of a run what its batch measures, and while it waits for the lock who has it."""
    items = [{"benchmark": "skipped", "n": ""}, {"benchmark": "iperf streams=1..16", "n": "2"}]
    given = {"parameters": [{"name": "batches", "value": json.dumps(items)}]}
    lead = Pod("p", 2, 0, 0, "Running", "n", "10.0.0.1")
    nodes = {"f": {"templateName": "batches", "inputs": given}}
    outputs = {"parameters": [{"name": "stall", "value": "4260s"}]}
    running = view("Running", lead, nodes=nodes, outputs=outputs)
    assert "| batch 2 (iperf streams=1..16) |" in progress_line(running)
    assert running.stall == "ends early if it stands still for 1 h 11 min"
    waiting = {"mutex": {"waiting": [{"mutex": "m", "holder": "other/perfdag-daily-x7"}]}}
    assert progress_line(view("Pending", synchronization=waiting)) == (
        "Pending | other/perfdag-daily-x7 measures now"
    )
    waiting["mutex"]["holding"] = [{"mutex": "m", "holder": "w"}]
    assert progress_line(view("Running", synchronization=waiting)) == "Running"


def test_troubles_of_batches_that_are_over_are_left_out_until_the_end() -> None:
    old = Pod("old", 0, 0, 0, "Failed", "n", None, trouble="DeadlineExceeded: too long")
    now = Pod("now", 1, 0, 0, "Pending", "", None, trouble="ImagePullBackOff: no such image")
    killed = Pod("killed", 1, 0, 0, "Failed", "n", None, trouble="OOMKilled: main", created=9.0)
    again = Pod("again", 0, 0, 1, "Running", "n", "10.0.0.1")
    assert view("Running", old, now).troubles() == ["now: ImagePullBackOff: no such image"]
    assert len(view("Failed", old, now).troubles()) == 2
    assert view("Running", old, killed).troubles() == ["killed: OOMKilled: main"], (
        "its retry is not there yet"
    )
    assert view("Running", old, again).troubles() == ["old: DeadlineExceeded: too long"], (
        "its batch is under way"
    )


def test_nothing_is_submitted_to_an_installation_of_another_version(
    bench: ApiServer, cli: CommandLine
) -> None:
    Path("suite.yaml").write_text(SUITE)
    submit = ["submit", "suite.yaml", "--namespace", "bench"]
    assert "is not installed: perfdag install --namespace bench" in cli(submit, 4).err
    metadata = {"name": "perfdag", "namespace": "bench"}
    template = {"kind": "WorkflowTemplate", "apiVersion": "argoproj.io/v1alpha1"}
    bench.add(template | {"metadata": metadata, "spec": {"templates": [{"name": "finish"}]}})
    assert "is of another version: perfdag install --namespace bench" in cli(submit, 4).err
    assert bench.names("ConfigMap") == bench.names("Workflow") == []


def test_a_pod_that_ended_is_one_trouble_and_a_watchdog_that_fails_on_purpose_is_none() -> None:
    def node(template: str, code: str, **more: str) -> dict[str, Any]:
        return {
            "type": "Pod",
            "templateName": template,
            "phase": "Failed",
            "message": f"Error (exit code {code})",
            "outputs": {"exitCode": code},
            **more,
        }

    nodes = {
        "w-11": node("host", "137"),
        "w-13": node("watchdog-pod", "137"),
        "w-14": node("host", "137", displayName="host(3:3)"),  # its pod is not there any more
    }
    killed = "OOMKilled: container main passed its memory limit of 1Gi"
    pods = [
        Pod("w-rank-11", 0, 0, 0, "Failed", "n", None, killed),
        Pod(
            "w-watchdog-pod-13", None, 0, None, "Failed", "n", None,
            "main ended with exit code 137",
        ),
    ]  # fmt: skip
    assert view("Failed", *pods, nodes=nodes).troubles() == [
        f"w-rank-11: {killed}",
        "w-watchdog-pod-13: main ended with exit code 137",
        "host(3:3): Error (exit code 137)",
    ]


S3, NODE = "waiting for the store", "node-1 NotReady since 20"
AWAY, BACK = b"waiting for the store: no answer for 130 s\n", b"the store answers again\n"
SAMPLE = b"2/4 ok command x=1 repetition 1\n"


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="seconds")


def workflow(
    nodes: dict[str, Any],
    phase: str = "Running",
    *,
    name: str = "w",
    run_id: str = "20260101T020000Z-0a1b2c3d",
    store: str = "",
) -> dict[str, Any]:
    """A Workflow whose uid is its name."""
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {
            "name": name,
            "uid": name,
            "namespace": "bench",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"perfdag/run": run_id},
        },
        "spec": {},
        "status": {
            "phase": phase,
            "progress": "2/4",
            "nodes": nodes,
            "storedWorkflowTemplateSpec": {
                "podSpecPatch": json.dumps(
                    {"containers": [{"env": [{"name": "PERFDAG_STORE", "value": store}]}]}
                )
            },
        },
    }


def pod(name: str, node: str, *, lost: bool = False, **labels: Any) -> dict[str, Any]:
    container = {"name": "main", "ready": True, "state": {"running": {}}}
    conditions = [{"type": "Ready", "status": "False" if lost else "True"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "bench",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"workflows.argoproj.io/workflow": "w", **labels},
        },
        "spec": {"nodeName": node, "containers": [{"name": "main"}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [container],
            "conditions": conditions,
        },
    }


def node(seconds: float, ready: str = "Unknown") -> dict[str, Any]:
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": ago(seconds)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "node-1"},
        "status": {"conditions": [condition]},
    }


LEAD: dict[str, Any] = {"perfdag/batch": "0", "perfdag/rank": "0", "perfdag/attempt": "0"}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """A run whose lead measures on node-1 and whose watchdog is on node-2."""
    with_run = ApiServer(
        workflow({}), pod("w-rank-1", "node-1", **LEAD), pod("w-watchdog-pod-2", "node-2")
    )
    write_logs(with_run, SAMPLE, b"")
    with kubeconfig(with_run, tmp_path, monkeypatch):
        yield with_run


def write_logs(server: ApiServer, lead: bytes, watchdog: bytes) -> None:
    server.on("GET .*w-rank-1/log", lambda _: Answer(200, lead))
    server.on("GET .*w-watchdog-pod-2/log", lambda _: Answer(200, watchdog))


@pytest.mark.parametrize(
    ("lead", "watchdog", "shown", "hidden"),
    [
        (SAMPLE, AWAY, [S3, "repetition 1"], ["130 s"]),
        (SAMPLE + AWAY, AWAY, [S3], ["130 s"]),
        (SAMPLE + AWAY + BACK, AWAY + BACK, ["the store answers again"], [S3]),
        (SAMPLE, b"", ["repetition 1"], [S3]),
    ],
)
def test_a_store_that_is_away_is_read_from_the_logs(
    lead: bytes,
    watchdog: bytes,
    shown: list[str],
    hidden: list[str],
    server: ApiServer,
    cli: CommandLine,
) -> None:
    write_logs(server, lead, watchdog)
    out = cli(["status", "w", "--namespace", "bench"]).out
    assert [text for text in shown if text not in out] == []
    assert [text for text in hidden if text in out] == []


@pytest.mark.parametrize(
    ("seconds", "ready", "lost", "forbidden", "shown"),
    [
        (130, "Unknown", True, False, [NODE, "node node-1 was lost"]),
        (130, "False", True, False, [NODE]),
        (130, "Unknown", True, True, ["node node-1 was lost"]),
        (130, "True", True, False, ["node node-1 was lost"]),
        (130, "Unknown", False, False, []),
    ],
)
def test_the_nodes_of_pods_in_trouble_are_read_where_the_user_may(
    seconds: float,
    ready: str,
    lost: bool,
    forbidden: bool,
    shown: list[str],
    server: ApiServer,
    cli: CommandLine,
) -> None:
    server.add(pod("w-rank-1", "node-1", lost=lost, **LEAD), node(seconds, ready))
    if forbidden:
        server.fail("GET /api/v1/nodes", 403)
        server.fail("GET .*/log", 403)
    out = cli(["status", "w", "--namespace", "bench"]).out
    texts = [NODE, "node node-1 was lost", "NotReady"]
    expected = [*shown, *(["NotReady"] if NODE in shown else [])]
    assert {text for text in texts if text in out} >= set(expected)
    assert ("NotReady" in out) == (NODE in shown)
    assert server.count("GET /api/v1/nodes/") == (1 if lost else 0), "healthy pods cost nothing"


async def test_a_watch_says_once_what_the_run_waits_for(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("perfdag.runs.cluster.POLL_INTERVAL", 0.01)
    write_logs(server, SAMPLE, AWAY)
    server.add(workflow({}), pod("w-rank-1", "node-1", lost=True, **LEAD), node(130))
    looks = iter(range(1000))

    server.on(
        "GET .*/workflows/w$",
        lambda _: workflow({}, "Failed") if next(looks) >= 3 else None,
    )
    assert await follow_run("w", "bench") == 1
    [line] = [line for line in "".join(capsys.readouterr()).splitlines() if S3 in line]
    assert [text for text in (S3, NODE) if text not in line] == []


def test_a_pod_prints_how_long_its_store_is_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setattr("perfdag.store.s3.REPORT_SECONDS", 0.0)
    monkeypatch.setattr("perfdag.steps.pods.context.PATIENCE", 0.1)
    store = replace(pod_context(), store="s3://b/x").open()
    with pytest.raises(StoreError, match="cannot be reached"):
        store.get("a")
    assert capsys.readouterr().out.startswith("waiting for the store: no answer for ")
