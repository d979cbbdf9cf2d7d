"""`perfdag scale` and the import of KubeVirt's load generator, as a user runs them."""

import asyncio
import contextlib
import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import orjson
import pytest
import yaml

from perfdag.benchmark import registry
from perfdag.commands import scale
from perfdag.commands.main import main
from perfdag.kube.client import KubeError
from perfdag.steps.scale import runai, scenario, vmi
from perfdag.steps.scale.figures import Result
from perfdag.steps.scale.objects import load
from perfdag.steps.scale.prometheus import Prometheus
from perfdag.steps.scale.runai import RunFile, write_json
from perfdag.steps.scale.scenario import Context
from perfdag.suite.load import parse_suite
from tests.conftest import CommandLine
from tests.fakes.api_server import ApiServer

from .test_scenario import measured

REFUSED = [
    ("steady --churn 500 --count 100", "churn: 500 is too many of 100"),
    ("steady --churn -1", "churn: Input should be greater than or equal to 1"),
    ("steady --count 5 6", "steady takes one --count"),
    ("burst --churn 5", "churn: Extra inputs are not permitted"),
    ("burst --count 100 400", "several are a ladder"),
    ("burst --count 0", "counts.0: Input should be greater than or equal to 1"),
    ("burst --template pod", "Pod creates no VMI"),
    ("burst --template nowhere.yaml", "built in are"),
    ("burst --parallel 1001", "parallel: Input should be less than or equal to 1000"),
    ("burst --timeout nan", "timeout: "),
    ("ladder --cooldown inf --count 1 2", "cooldown: "),
    (
        "burst --gate creation_to_runing_p95<60",
        "called creation_to_runing_p95; the nearest is creation_to_running_p95",
    ),
    ("burst --gate avgVirtAPICPUUsage<1", "avgVirtAPICPUUsage needs a Prometheus"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_what_cannot_be_is_told_before_anything_is_waited_for(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setattr(scale, "run_on_cluster", lambda work, _: asyncio.run(work(None)))
    output = cli(["scale", "vmi", *words.split(), "-o", str(tmp_path / "out")], 2).err
    assert message in output
    assert output.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("end", "gate", "code"),
    [
        (None, "api_p99 < 1", 0),
        (None, "api_p99 < 0.05", 3),
        (None, "creation_to_failed_p50 < 9", 3),
        (KubeError(0, "Unreachable", "away"), "api_p99 < 1", 1),
        (KeyboardInterrupt(), "api_p99 < 1", 130),
    ],
)
def test_the_files_of_each_size_are_written_however_it_ends(
    end: BaseException | None,
    gate: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And take the place of what an earlier submission left, but nothing else."""

    async def burst(kube: Any, params: vmi.VmiParams, context: Context, count: int) -> Result:
        return measured(params, context, count)

    async def ladder(self: Any, kube: Any, params: Any, context: Context) -> None:
        await vmi_ladder(self, kube, params, context)
        if end:
            raise end

    vmi_ladder = vmi.VmiBurst.scenario
    monkeypatch.setattr(vmi.VmiBurst, "scenario", ladder)
    monkeypatch.setattr(vmi, "burst", burst)
    monkeypatch.setattr(vmi, "check_nodes", AsyncMock())
    monkeypatch.setattr(scenario, "own_namespaces", lambda *_: contextlib.nullcontext())
    kube = ApiServer().client()
    monkeypatch.setattr(scale, "run_on_cluster", lambda work, _: asyncio.run(work(kube)))
    write_json(tmp_path / "run.json", RunFile("q", "v1", "Pod", ["ns"], "p", 1, deleted=True))
    for name in ("submitted.json", "sampled.json", "general.png", "notes.txt"):
        (tmp_path / name).touch()
    words = ["--count", "400", "600", "--cooldown", "0", "--no-api-gates", "--gate", gate]
    assert main(["scale", "vmi", "ladder", *words, "-o", str(tmp_path)]) == code
    assert {item.name for item in tmp_path.iterdir()} == {"notes.txt", *runai.OUTPUTS}
    runs = orjson.loads((tmp_path / "summary.json").read_bytes())["runs"]
    assert [run["count"] for run in runs] == [400, 600]
    output = capsys.readouterr()
    if code == 1:
        assert "invalid: a later size was not measured: away" in output.err
    else:
        assert "burst of 600, run " in output.out
    if not end:
        assert ("passed", "BREACHED", "no data for")[1 if "0.05" in gate else 2 * (code > 0)] in (
            output.out
        )


def test_a_built_in_template_is_printed_and_can_be_used(tmp_path: Path, cli: CommandLine) -> None:
    text = cli(["scale", "template", "training"]).out
    (tmp_path / "t.yaml").write_text(text.replace("1Mi", "${memory}"))
    assert load(str(tmp_path / "t.yaml"), "r", {"memory": "1Gi"}).kind == "TrainingWorkload"


WINDOW = ["--from", "2026-11-23T08:00:00Z", "--to", "2026-11-23T09:05:00+01:00"]
END = 1795421100.0


@pytest.fixture
def queries_sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Scrapes each 15 s until END, and a value for what is asked of KubeVirt's histograms."""
    queries: list[dict[str, Any]] = []

    async def query(self: Any, wanted: Any, path: str = "") -> dict[str, Any]:
        queries.append(dict(wanted))
        scrapes = [[END - 15 * i, "1"] for i in range(20, -1, -1)]
        data = {}
        for name, params in wanted.items():
            value = "6.5" if "from_creation" in params["query"] else "NaN"
            value = "0" if "increase(" in params["query"] else value
            metric = {"verb": "PATCH", "resource": "pods"}
            if params["query"] == "sum by (phase) (node:kubevirt_vmi_phase:sum)":
                value, metric = "97", {"phase": "running"}
            answer = {"metric": metric, "value": [END, value]}
            data[name] = {"result": [answer | {"values": scrapes}]}
        return data

    monkeypatch.setattr(Prometheus, "query", query)
    return queries


def test_a_past_window_has_the_keys_of_the_audit(
    queries_sent: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["scale", "audit", "--prometheus", "http://p", "-o", str(tmp_path), *WINDOW]
    assert main(argv) == 0
    path = tmp_path / "perf-audit-results.json"
    assert str(path) in capsys.readouterr().out
    values = {key: item["value"] for key, item in json.loads(path.read_text())["Values"].items()}
    assert values["vmiCreationToRunningSecondsP95"] == 6.5
    assert "vmiDeletionToSucceededSecondsP95" not in values, "NaN is no data"
    assert values["PATCH-pods-count"] == 0, "the counter did not grow"
    assert values["running-phase-count"] == 97
    by_name = {name: params for many in queries_sent for name, params in many.items()}
    running = by_name["vmiCreationToRunningSecondsP95"]
    assert running["time"] == f"{END:.3f}"
    assert "histogram_quantile(0.95, sum by (le) (rate(" in running["query"]
    assert "[300s]" in running["query"], "the window is 5 minutes long"


CONFIG = """{
\t"prometheusURL": "http://p",
\t"prometheusUserName": "",
\t"prometheusPassword": "",
\t"prometheusBearerToken": "",
\t"prometheusVerifyTLS": false,
\t"startTime": "2026-11-23T08:00:00Z",
\t"endTime": "2026-11-23T08:05:00Z",
\t"duration": "5m0s",
\t"prometheusScrapeInterval": 30000000000,
\t"thresholdExpectations": {
\t\t"PATCH-pods-count": {"value": 0, "metric": "running-phase-count", "ratio": 2},
\t\t"vmiCreationToRunningSecondsP50": {"value": 45}
\t}
}"""


@pytest.mark.parametrize(
    ("old", "new", "more", "exceeded", "code"),
    [
        ("", "", [], [], 0),
        ('"value": 45', '"value": 6.4', [], ["vmiCreationToRunningSecondsP50"], 3),
        ("", "", ["--gate", "running-phase-count >= 100"], ["running-phase-count"], 3),
        ('SecondsP50"', 'SecondsP50s"', [], [], 2),
        ("08:00:00Z", "08:00:00", [], [], 2),
        ("thresholdExpectations", "thresholds", [], [], 2),
        ('"value": 45', '"valeu": 45', [], [], 2),
    ],
)
def test_a_configuration_of_the_audit_of_kubevirt_is_judged(
    old: str,
    new: str,
    more: list[str],
    exceeded: list[str],
    code: int,
    queries_sent: list[dict[str, Any]],
    tmp_path: Path,
    cli: CommandLine,
) -> None:
    config = tmp_path / "perf-audit-input.json"
    config.write_text(CONFIG.replace(old, new))
    output = cli(["scale", "audit", "--config", str(config), "-o", str(tmp_path), *more], code)
    if code == 2:
        assert re.search("nearest is vmiCreat|startTime: .* zone|mean (thr|value)", output.err)
        return
    values = json.loads((tmp_path / "perf-audit-results.json").read_text())["Values"]
    judged = {key: item["thresholdResult"] for key, item in values.items() if len(item) > 1}
    assert [key for key, result in judged.items() if result["thresholdExceeded"]] == exceeded
    ratio = {"thresholdValue": 194.0, "thresholdMetric": "running-phase-count"}
    assert judged["PATCH-pods-count"].items() >= ratio.items()
    assert "[300s]" in queries_sent[1]["avgVirtAPICPUUsage"]["query"]
    assert output.out.count("gate ") == len(judged)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--from", "yesterday"], "--from: 'yesterday' is no time with a zone, such as 2026-11-23"),
        (["--to", "2026-11-23T08:00:00"], "--to: '2026-11-23T08:00:00' is no time with a zone"),
        (["--from", WINDOW[3], "--to", WINDOW[1]], "the window ends before it begins"),
        (["--from", "2026-11-23T08:04:50Z", *WINDOW[2:]], "a window of 10 s has less than two"),
    ],
)
def test_a_window_that_cannot_be_audited_is_refused(
    argv: list[str],
    message: str,
    queries_sent: list[dict[str, Any]],
    tmp_path: Path,
    cli: CommandLine,
) -> None:
    assert (
        message
        in cli(["scale", "audit", "--prometheus", "http://p", "-o", str(tmp_path), *argv], 2).err
    )
    assert not list(tmp_path.iterdir())


TEMPLATE = """apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata:
  name: vmi-{{.replica}}
  labels: {app: "kubevirt-density-{{.iteration}}-{{ .replica }}"}
  namespace: {{.namespace}}
spec:
  domain: {resources: {requests: {memory: {{.memory}}}}}
  volumes:
  - name: disk1
    cloudInitNoCloud: {userData: "echo ${HOME}"}
"""
WORKLOAD = """name: {name}
timeout: {timeout}
count: 5
type: "{type}"
object:
  templateFile: templates/vmi.yaml
  inputVars: {{namespace: density, memory: 90Mi}}
{more}"""


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "vmi.yaml").write_text(TEMPLATE)
    path = tmp_path / "burst.yaml"
    path.write_text(WORKLOAD.format(name="burst-5", timeout="10m", type="burst", more=""))
    return path


def test_a_burst_and_a_steady_state_become_a_suite_that_can_run(
    workload: Path, cli: CommandLine
) -> None:
    steady = workload.with_name("steady.yaml")
    more = "churn: 2\nminChurnSleep: 1m30s\nqps: 5\n"
    steady.write_text(WORKLOAD.format(name="Steady", timeout="20s", type="steady-state", more=more))
    output = cli(["import", "perfscale-load-generator", str(workload), str(steady)])
    assert "not kept: the names of the objects" in output.err
    assert "not kept: steady: qps: no such key is known" in output.err
    parse_suite(output.out)
    first, second = yaml.safe_load(output.out)["entries"]
    assert (first["benchmark"], second["benchmark"]) == ("vmi-burst", "vmi-steady")
    for entry in (first, second):
        benchmark = registry.get(entry["benchmark"])
        params = benchmark.Params.model_validate(entry["params"])
        assert not list(benchmark.check(params, None))  # type: ignore[arg-type]
        assert entry["params"]["namespace"] == "density"
        assert entry["params"]["parallel"] == 1, "the load generator creates one after the other"
    assert (first["params"]["counts"], first["params"]["timeout"]) == ([5], "600s")
    pace = {key: second["params"][key] for key in ("count", "churn", "pause", "duration")}
    assert pace == {"count": 5, "churn": 2, "pause": "90s", "duration": "300s"}, "20 s become 5 min"
    template = load(first["params"]["template"], "r", first["params"]["variables"])
    run = "r1126070304-a1b2c3"
    body = yaml.safe_load(template.documents[0].render(f"{run}-99999", "density", 99_999))
    assert body["metadata"]["name"] == f"{run}-99999"
    label = body["metadata"]["labels"]["app"]
    assert (label, len(label) < 64) == (f"kubevirt-density-{run}-99999-99999", True)
    assert body["spec"] == {
        "domain": {"resources": {"requests": {"memory": "90Mi"}}},
        "volumes": [{"name": "disk1", "cloudInitNoCloud": {"userData": "echo ${HOME}"}}],
    }


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("count: 5", "count: 0", "burst.yaml:3: count: must be at least 1, not 0"),
        (
            "timeout: 10m",
            "timeout: 10",
            "burst.yaml:2: timeout: 10 is no duration; write it as 10m",
        ),
        (
            'type: "burst"',
            "type: chaos",
            "burst.yaml:4: type: unknown value 'chaos'; allowed: burst, steady-state",
        ),
        (", memory: 90Mi", "", "no input variable `memory`; add it to inputVars of"),
        ("templates/vmi.yaml", "absent.yaml", "absent.yaml: no such file"),
        ("count: 5", "count: [", "burst.yaml:5: not YAML: "),
        ("{{.memory}}", "{{if .big}}9Gi{{end}}", "{{if .big}}"),
    ],
)
def test_a_workload_that_cannot_be_read_is_one_line(
    old: str, new: str, message: str, workload: Path, cli: CommandLine
) -> None:
    for file in (workload, workload.parent / "templates" / "vmi.yaml"):
        file.write_text(file.read_text().replace(old, new))
    output = cli(["import", "perfscale-load-generator", str(workload)], 2)
    assert message in output.err
    assert output.err.count("\n") == 1
