"""Where hosts of a cluster are placed, and the Job that needs no Argo."""

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from perfdag.commands.doctor import check_requirements
from perfdag.kube.patch import Context, hardened, patch, pod_security
from perfdag.plan import Plan, duet_on_cluster, make_plan, place_hosts, prepare_duet
from perfdag.steps.loop import needs_cluster
from perfdag.steps.pods.cluster import unmet
from perfdag.suite.load import parse_suite
from perfdag.terminal import plan_text
from tests.conftest import CommandLine
from tests.fakes.files import write_files, write_programs
from tests.steps.test_feasibility import cluster

RDMA = {"network": {"host": True}}


def plan_of(*entries: dict[str, Any]) -> Plan:
    return make_plan(parse_suite(orjson.dumps({"name": "s", "entries": entries}).decode()))


@pytest.mark.parametrize(
    ("entry", "placement"),
    [
        ({"benchmark": "iperf"}, "spread"),
        ({"benchmark": "iperf", "hosts": {"count": 3, "pairs": "all"}}, "spread"),
        ({"benchmark": "imb", "hosts": {"count": 2}}, "spread"),
        ({"benchmark": "imb", "hosts": {"count": 1}}, None),
        ({"benchmark": "openfoam", "params": {"nodes": 2, "procs": 4}}, "spread"),
        ({"benchmark": "rdma-latency", **RDMA}, "spread"),
        ({"benchmark": "rdma-bandwidth", **RDMA}, "spread"),
        ({"benchmark": "fio", "hosts": {"count": 2}}, "any"),
        ({"benchmark": "iperf", "hosts": {"placement": "any"}}, "any"),
        ({"benchmark": "iperf", "hosts": {"placement": "packed"}}, "packed"),
    ],
)
def test_several_hosts_have_the_placement_of_their_benchmark_on_a_cluster(
    entry: dict[str, Any], placement: str | None
) -> None:
    plan = plan_of(entry)
    there = place_hosts(plan)
    [shape] = there.shapes
    assert shape.hosts.placement == placement
    affinity = str(patch(shape, Context(plan.run_id, "uid", "i", "s3://b")))
    assert ("podAntiAffinity" in affinity) == (placement == "spread")
    assert [point.id for point in there.points] == [point.id for point in plan.points]
    own = entry.get("hosts", {}).get("placement")
    wish = f"placement on a cluster: {placement}"
    assert (wish in plan_text(plan)) == (placement is not None and own is None)


def test_the_default_placement_changes_nothing_on_one_machine() -> None:
    spread = {"benchmark": "iperf", "name": "wish", "hosts": {"placement": "spread"}}
    default, wish = plan_of({"benchmark": "iperf"}, spread).shapes
    assert needs_cluster(default) is None
    assert "placement: spread" in (needs_cluster(wish) or "")


def test_benchmarks_of_different_placements_share_no_pods() -> None:
    hosts = {"hosts": {"count": 2}, "image": "registry.example/all:1"}
    plan = plan_of({"benchmark": "fio", **hosts}, {"benchmark": "iperf", **hosts})
    placements = {shape.hosts.placement for shape in place_hosts(plan).shapes}
    assert placements == {"any", "spread"}


def test_both_variants_of_a_duet_are_spread() -> None:
    suite = parse_suite("name: s\nentries: [{benchmark: iperf}]")
    duet = duet_on_cluster(prepare_duet(suite, suite, ("", ""), 8))
    for plan in (duet.a, duet.b):
        assert plan.shapes[0].hosts.placement == "spread"


async def test_too_few_nodes_are_found_and_the_points_are_skipped() -> None:
    params = {"benchmark": "Allreduce", "ranks": 3}
    plan = place_hosts(plan_of({"benchmark": "imb", "hosts": {"count": 3}, "params": params}))
    reason = "3 nodes needed (placement: spread), 2 fit"
    found = [each async for each in check_requirements(cluster(), plan, "bench")]
    [few] = [each for each in found if each.state == "missing" and "nodes" in each.what]
    assert (few.what, few.do) == (reason, "use fewer hosts, or placement: any")
    assert await unmet(cluster(), plan.shapes, "bench") == {0: reason}


@pytest.mark.parametrize(
    ("entry", "warning"),
    [
        ("{benchmark: resnet50, params: {device: cuda}}", "resnet50 uses 1 of the 8 GPUs"),
        ("{benchmark: torchbench, params: {device: cuda}}", "torchbench uses 1 of the 8 GPUs"),
        ("{benchmark: command, params: {argv: ['true']}}", None),
        (
            "{benchmark: resnet50-interference, params: {device: cuda, copies: 8, shared: node}}",
            None,
        ),
    ],
)
def test_plan_warns_of_gpus_that_a_benchmark_would_leave_idle(
    entry: str, warning: str | None, tmp_path: Path, cli: CommandLine
) -> None:
    suite = tmp_path / "suite.yaml"
    resources = "defaults: {resources: {nvidia.com/gpu: 8}}"
    suite.write_text(f"name: idle\n{resources}\nentries:\n  - {entry}\n")
    printed = cli(["plan", str(suite)]).out
    assert ("warning: " in printed) == (warning is not None)
    assert warning is None or f"{warning} that its pods ask for" in printed


JOB = Path(__file__).parent.parent / "deploy" / "job.yaml"


def test_the_job_is_restricted_asks_for_one_gpu_and_runs_a_suite_that_plans(
    tmp_path: Path, cli: CommandLine
) -> None:
    job = yaml.safe_load(JOB.read_text())
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    assert job["metadata"] == {"name": "perfdag-gpu"}
    pod = job["spec"]["template"]["spec"]
    [main] = pod["containers"]
    assert pod["restartPolicy"] == "Never"
    assert main["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert pod["securityContext"].items() <= pod_security(False).items()
    assert main["securityContext"].items() <= hardened().items()
    [script] = main["args"]
    command, _, rest = script.partition(" <<EOF\n")
    text, _, after = rest.partition("\nEOF\n")
    words = shlex.split(command)
    suite = tmp_path / "suite.yaml"
    suite.write_text(text)
    words[words.index("/dev/stdin")] = str(suite)
    words[words.index("/tmp/results")] = str(tmp_path)
    assert words[:2] == ["perfdag", "run"]
    assert "offline" in cli([*words[1:], "--dry-run"]).out
    assert after.splitlines() == [
        "status=$?",
        "cat /tmp/results/runs/*/resnet50.json",
        "exit $status",
    ]


KUBECTL = """
case "$*" in
*job/perfdag-gpu*jsonpath*) cat "$STATES/now"; cp "$STATES/then" "$STATES/now";;
*nodes*) echo 1;;
apply*) cat >/dev/null;;
logs*) printf '[1/1] offline\n{\n}\n';;
esac
"""


def bash(script: str, folder: Path, end: str) -> int:
    """Run a script with a kubectl whose Job has ended at the second look; return its exit code."""
    (folder / "now").write_text("")
    (folder / "then").write_text({"Failed": "FailureTarget Failed"}.get(end, end))
    scripts = {"kubectl": KUBECTL, "sleep": "", "gcloud": 'echo "$*" >>"$STATES/gcloud"'}
    programs = write_programs(folder / "bin", scripts)
    variables = {"PATH": f"{programs}:{os.environ['PATH']}", "STATES": str(folder), "PROJECT": "p"}
    finished = subprocess.run(
        ["bash", "-c", script], env=variables, cwd=folder, stdin=subprocess.DEVNULL, timeout=60
    )
    return finished.returncode


@pytest.mark.parametrize(("end", "code"), [("Complete", 0), ("Failed", 1)])
def test_the_wait_for_the_job_ends_at_either_end_with_its_summary(
    end: str, code: int, tmp_path: Path
) -> None:
    root = JOB.parent.parent
    _, _, section = (root / "docs/gpu.md").read_text().partition("## Without Argo")
    commands = "".join(re.findall(r"^    .*\n", section, re.M))
    assert bash(commands, tmp_path, end) == 0
    assert (tmp_path / "benchmark_results.json").read_text() == "{\n}\n"
    write_programs(tmp_path / "images", {"build": ""})
    write_files(tmp_path, {"examples/gke.sh": (root / "examples/gke.sh").read_text()})
    write_files(tmp_path, {"deploy/job.yaml": JOB.read_text()})
    assert bash("bash examples/gke.sh", tmp_path, end) == code
    assert (tmp_path / "results/baseline/benchmark_results.json").read_text() == "{\n}\n"
    assert "clusters delete gpu-benchmark" in (tmp_path / "gcloud").read_text()
