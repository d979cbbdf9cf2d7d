"""Configurations of KubeVirt's perfscale-audit and perfscale-load-generator, as those tools read
them.
"""

from pathlib import Path

import pytest
import yaml

from perfdag.benchmark import registry
from perfdag.commands.imports import go_seconds, import_workloads
from perfdag.commands.options import CommandError
from perfdag.steps.scale.model.templates import load
from perfdag.suite.load import parse_suite
from tests.conftest import CommandLine

TEMPLATE = """apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata:
  name: vmi-{{.replica}}
  labels: {app: "vmi-{{ .replica }}"}
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
    argv = ["import", "perfscale-load-generator", str(workload), str(steady)]
    output = cli(argv)
    assert "not kept: the names of the objects" in output.err
    assert "not kept: steady: qps: no such key is known" in output.err
    parse_suite(output.out)
    first, second = yaml.safe_load(output.out)["entries"]
    assert (first["benchmark"], second["benchmark"]) == ("vmi-burst", "vmi-steady")
    for entry in (first, second):
        benchmark = registry.get(entry["benchmark"])
        params = benchmark.Params.model_validate(entry["params"])
        assert benchmark.check(params, None) == []  # type: ignore[arg-type]
        assert entry["params"]["namespace"] == "density"
        assert entry["params"]["parallel"] == 1, "the load generator creates one after the other"
    assert (first["params"]["counts"], first["params"]["timeout"]) == ([5], "600s")
    pace = {key: second["params"][key] for key in ("count", "churn", "pause", "duration")}
    assert pace == {"count": 5, "churn": 2, "pause": "90s", "duration": "300s"}, "20 s become 5 min"
    template = load(first["params"]["template"], "r", first["params"]["variables"])
    body = yaml.safe_load(template.documents[0].render("x-1", "density", 0))
    assert body["metadata"]["name"] == "x-1"
    assert body["metadata"]["labels"]["app"] == "vmi-x-1"
    assert body["spec"] == {
        "domain": {"resources": {"requests": {"memory": "90Mi"}}},
        "volumes": [{"name": "disk1", "cloudInitNoCloud": {"userData": "echo ${HOME}"}}],
    }


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("count: 5", "count: 0", "burst.yaml: count: Input should be greater than or equal to 1"),
        ("timeout: 10m", "timeout: 10", "burst.yaml: timeout: 10 is no duration; write it as 10m"),
        (
            'type: "burst"',
            "type: chaos",
            "type: Input should be 'burst', 'steady-state'",
        ),
        (", memory: 90Mi", "", "no input variable `memory`; add it to inputVars of"),
        ("templates/vmi.yaml", "absent.yaml", "cannot read "),
        ("count: 5", "count: [", "burst.yaml is not YAML or JSON: "),
    ],
)
def test_a_workload_that_cannot_be_read_is_one_line(
    old: str, new: str, message: str, workload: Path, cli: CommandLine
) -> None:
    workload.write_text(workload.read_text().replace(old, new))
    output = cli(["import", "perfscale-load-generator", str(workload)], 2)
    assert message in output.err
    assert output.err.count("\n") == 1


def test_a_construct_of_go_templates_that_is_not_read_is_named(workload: Path) -> None:
    source = workload.parent / "templates" / "vmi.yaml"
    source.write_text(TEMPLATE.replace("{{.memory}}", "{{if .big}}9Gi{{end}}"))
    with pytest.raises(CommandError, match=r"\{\{if \.big\}\}.* is not read; only"):
        import_workloads([str(workload)])


@pytest.mark.parametrize(
    ("text", "seconds"), [("10m", 600), ("1h30m", 5400), ("1.5s", 1.5), ("300ms", 0.3)]
)
def test_durations_are_those_of_go(text: str, seconds: float) -> None:
    assert go_seconds(text) == pytest.approx(seconds)
    with pytest.raises(ValueError, match="is no duration"):
        go_seconds(f"{text}x")
