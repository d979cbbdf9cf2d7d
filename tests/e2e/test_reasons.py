"""Why a batch does not start is told while it waits: in the watch line and on the Workflow
within 30 s, with no limit set by the suite.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfdag.kube.client import run_with_client
from perfdag.results.samples import NOTES
from perfdag.store.s3 import open_store
from perfdag.workflows import runs

from .conftest import Namespace, quota
from .faults import is_done

pytestmark = [pytest.mark.argo, pytest.mark.slow]


CASES = {
    "request": ("resources: {cpu: 500}", "Insufficient cpu"),
    "quota": ("resources: {ephemeral-storage: 4Gi}", "exceeded quota"),
}


@pytest.mark.parametrize(("shape", "words"), CASES.values(), ids=CASES)
def test_the_reason_is_told_within_30_s(bench: Namespace, shape: str, words: str) -> None:
    entry = f"{{benchmark: command, {shape}, params: {{argv: [sleep, '0.1']}}}}"
    with quota(bench) if "quota" in words else contextlib.nullcontext():
        name = bench.submit(f"name: waits\nentries: [{entry}]\n")
        run_id = bench.run_id(name)
        labels = f"workflows.argoproj.io/workflow={name},perfdag/rank=0"
        try:
            bench.until(
                lambda: (
                    bench.objects("Pod", labels=labels)
                    or ("quota" in words and words in str(bench.workflow(name).get("status")))
                ),
                240,
                "pod, or its refusal",
            )
            start = time.monotonic()
            bench.until(
                lambda: words in bench.perfdag("status", name).stdout,
                30,
                "reason in the watch line",
            )
            bench.until(
                lambda: words in bench.workflow(name)["metadata"]["annotations"].get(NOTES, ""),
                30,
                "reason on the Workflow, which the last step writes into the rows",
            )
            assert time.monotonic() - start < 30
        finally:  # it would keep the lock of those that are measured next
            bench.perfdag("rm", run_id, check=True)


SUITE = "name: bad\npending_limit: 30s\nentries:\n  - {benchmark: command, params: {argv: ['true']}"
REFUSED: dict[str, tuple[str | None, str, int, str]] = {
    "no ConfigMap": (None, "", 2, "no ConfigMap bad here has a key suite.yaml"),
    "no suite.yaml": ("", "", 2, "no ConfigMap bad here has a key suite.yaml"),
    "a suite with two mistakes": (
        "name: bad\nentries:\n  - {benchmark: ipref}\n  - {benchmark: foi}\n",
        "",
        2,
        "suite.yaml:3: entries[0].benchmark: unknown benchmark 'ipref'",
    ),
    "no Secret of the store": (f"{SUITE}}}", "perfdag-store", 4, "no credentials; set AWS_"),
    "no image of the installation": (
        f"{SUITE}}}",
        "localhost/no-{name}:1",
        4,
        "ImagePullBackOff on node-",
    ),
    "an image that no node has": (
        f"{SUITE}, image: 'localhost/no:1'}}",
        "",
        4,
        "ImagePullBackOff on node-",
    ),
    "too few nodes": (
        f"{SUITE}, hosts: {{count: 99, placement: spread}}}}",
        "",
        4,
        "99 nodes needed (placement: spread), ",
    ),
    "Pod Security": (
        f"{SUITE}, network: {{host: true}}}}",
        "",
        4,
        'violates PodSecurity "restrict',
    ),
}
"""What a ConfigMap has, what else is amiss, the exit code, and the reason.

It is no text of Argo's own, except where Argo could not make a pod.
"""


@pytest.mark.parametrize("case", REFUSED)
def test_a_run_that_cannot_be_says_why_in_one_line(bench: Namespace, case: str) -> None:
    suite, amiss, code, words = REFUSED[case]
    with spoiled(bench, suite, amiss):
        body = runs.workflow_of_template(bench.name, "bad", {"suite": "bad"})
        name = run_with_client(lambda client: client.create(body))["metadata"]["name"]
        watched = bench.watch(name)
    output = watched.stdout + watched.stderr
    assert watched.returncode == code, output
    assert words in output
    assert "Traceback" not in output
    nodes = bench.workflow(name)["status"]["nodes"].values()
    told = [f"{node['displayName']} {node.get('message')}".replace("(", "") for node in nodes]
    at_end = case != "no image of the installation"  # Argo forgets why what it ends was pending
    assert (
        any(words.replace("(", "").replace(")", "") in each.replace(")", "") for each in told)
        == at_end
    )
    assert is_done(bench, name)  # the lock is free


@contextlib.contextmanager
def spoiled(bench: Namespace, suite: str | None, amiss: str) -> Iterator[None]:
    """A ConfigMap `bad` with this suite, if any, and no Secret or no image of the installation."""
    kind = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "bad"}}
    if suite is not None:
        data = {"suite.yaml": suite} if suite else {"other": "x"}
        run_with_client(lambda client: client.create({**kind, "data": data}, bench.name))
    if "/" in amiss:
        bench.install("--images", amiss, "--pending-limit", "30s")
    elif amiss:
        bench.delete("Secret", amiss)
    try:
        yield
    finally:
        bench.delete("ConfigMap", "bad")
        if amiss:
            bench.install()


def test_a_suite_that_the_namespace_refuses_is_not_submitted(
    bench: Namespace, tmp_path: Path
) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(f"{SUITE}, network: {{host: true}}}}")
    result = bench.perfdag("submit", str(file))
    assert result.returncode == 2
    [line] = result.stderr.splitlines()
    assert "needs Pod Security level privileged (host network)" in line
    assert "kubectl label" in line


def test_a_gang_of_which_one_half_has_room_ends_and_the_rest_is_measured(
    bench: Namespace,
) -> None:
    nodes = [node for node in bench.objects("Node") if node["metadata"]["name"] in bench.nodes()]
    half = 0.6 * max(_cpus(node["status"]["allocatable"]["cpu"]) for node in nodes)
    count = len(nodes) + 1
    run = bench.measure(
        "name: half\npending_limit: 30s\nentries:\n"
        f"  - {{benchmark: command, name: half, hosts: {{count: {count}}}, resources: {{cpu: "
        f"'{half:.2f}'}}, params: {{argv: [sleep, '0.1']}}}}\n"
        "  - {benchmark: command, name: good, params: {argv: [sleep, '0.2']}}\n"
    )
    assert run.exit_code == 1, run.output
    assert {row["entry"]: row["status"] for row in run.rows} == {"good": "ok", "half": "failed"}
    assert "Insufficient cpu" in run.by_entry()["half"]["error"]
    placed = [
        pod
        for pod in bench.objects("Pod", labels=f"workflows.argoproj.io/workflow={run.workflow}")
        if pod["spec"].get("nodeName")
    ]
    assert {pod["status"]["phase"] for pod in placed} <= {"Succeeded", "Failed"}, (
        "what was placed holds its node no longer"
    )
    report = open_store(bench.store).get(f"runs/{run.id}/report.html").decode()
    assert "Insufficient cpu" in report


def _cpus(quantity: str) -> float:
    return float(quantity[:-1]) / 1000 if quantity.endswith("m") else float(quantity)
