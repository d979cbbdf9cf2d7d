"""Why a batch does not start is told while it waits: in the watch line and on the Workflow
within 30 s, with no limit set by the suite.
"""

import contextlib
import time

import pytest

from perfdag.results.missing_reason import NOTES
from perfdag.store.open import open_store

from .conftest import Namespace, quota

pytestmark = [pytest.mark.argo, pytest.mark.slow]


CASES = {
    "request": ("resources: {cpu: 500}", "Insufficient cpu"),
    "image": ("image: 'localhost/no-such-image:1'", "no-such-image"),
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
