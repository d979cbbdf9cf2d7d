"""vmi-burst from a pod of a run: with the rights that `install --allow` grants, and without
them.
"""

import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from perfdag.kube.client import Kube, KubeError, run_with_client
from perfdag.steps.scale import cluster as nodes
from perfdag.steps.scale.objects import RUN_LABEL
from perfdag.store.open import open_store
from tests import simulation

from .conftest import Namespace

VMIS = f"perfdag-vmi-{uuid.uuid4().hex[:6]}"
"""The namespace of the VMIs, which `install --allow` makes."""
pytestmark = [pytest.mark.argo, pytest.mark.slow]


@pytest.fixture(scope="module")
def kubevirt(restricted: Namespace) -> Iterator[None]:
    """KubeVirt as KWOK plays it, with nodes of its own; the namespace of the VMIs goes at the
    end.
    """

    async def work(client: Kube) -> None:
        await nodes.make_nodes(client, 5, 8)
        assert await nodes.nodes_ready(client, 5)
        await simulation.install(client, "kubevirt")

    try:
        run_with_client(work)
    except KubeError as error:
        pytest.skip(f"KubeVirt cannot be simulated here: {error}")
    yield

    async def remove(client: Kube) -> None:
        await client.delete(await client.resource("v1", "Namespace"), VMIS)

    run_with_client(remove)


@pytest.fixture
def allowed(bench: Namespace) -> Iterator[None]:
    """The installation with vmi-burst allowed, and without it again at the end."""
    bench.install("--allow", f"vmi-burst={VMIS}")
    yield
    bench.install()


def test_a_burst_runs_under_the_account_that_install_made(
    bench: Namespace, kubevirt: None, allowed: None
) -> None:
    """20 VMIs at once beside a benchmark without rights."""
    run = bench.measure(
        f"name: burst\nentries:\n  - benchmark: vmi-burst\n"
        f"    params: {{counts: [20], namespace: {VMIS}, timeout: 60s}}\n"
        "    timeout: 120s\n  - {benchmark: command, params: {argv: ['true']}}\n"
    )
    run.assert_ok()
    rows = [row for row in run.rows if row["benchmark"] == "vmi-burst"]
    accounts = {
        pod["metadata"]["labels"]["perfdag/batch"]: pod["spec"]["serviceAccountName"]
        for pod in bench.objects(
            "Pod", labels=f"workflows.argoproj.io/workflow={run.workflow},perfdag/measuring=true"
        )
    }
    assert sorted(accounts.values()) == ["perfdag-measure", "perfdag-measure-vmi-burst"], (
        "rights are not lent to the other benchmark"
    )
    value = {
        (row["metric"], row["stat"]): row["value"]
        for row in rows
        if row["headline"] or row["metric"] in ("success_ratio", "left_behind")
    }
    assert value["success_ratio", "value"] == 1.0
    assert value["left_behind", "value"] == 0.0
    assert value["creation_to_running", "p50"] > 0
    assert (
        len(
            [
                row
                for row in rows
                if row["metric"] == "object_latency" and "creation_to_running" in str(row["coords"])
            ]
        )
        == 20
    )


def test_a_burst_whose_run_is_deleted_leaves_nothing(
    bench: Namespace, kubevirt: None, allowed: None
) -> None:
    """Deleted amid its creations, in a namespace that stays: the pod has the time to delete what
    it made.
    """

    def there(api: str, kind: str) -> int:
        async def work(client: Kube) -> int:
            return len(await client.list(await client.resource(api, kind), VMIS, labels=RUN_LABEL))

        return run_with_client(work)

    params = f"{{counts: [300], primer: false, parallel: 4, namespace: {VMIS}}}"
    suite = f"name: cut\nentries:\n  - {{benchmark: vmi-burst, params: {params}}}\n"
    workflow = bench.submit(suite)
    bench.until(lambda: there("kubevirt.io/v1", "VirtualMachineInstance") >= 20, 180, "20 VMIs")
    result = bench.perfdag("rm", workflow)
    assert result.returncode == 0, result.stdout + result.stderr
    assert there("kubevirt.io/v1", "VirtualMachineInstance") == 0
    assert there("v1", "ConfigMap") == 0


KEPT = 20.0
"""Seconds until the journal in the store has what was seen: a state each 2 s, a copy each 5 s."""


def test_the_journal_of_a_killed_pod_has_what_ran_before(
    bench: Namespace, kubevirt: None, allowed: None, tmp_path: Path
) -> None:
    """Of VMIs that run 1 to 60 s after their creation, the pod that is killed saw the first. In
    its last second it deletes the others.
    """

    def running() -> set[str]:
        async def work(client: Kube) -> set[str]:
            kind = await client.resource("kubevirt.io/v1", "VirtualMachineInstance")
            return {
                vmi["metadata"]["uid"]
                for vmi in await client.list(kind, VMIS, labels=RUN_LABEL)
                if (vmi.get("status") or {}).get("phase") == "Running"
            }

        return run_with_client(work)

    def scale(*words: str) -> None:
        argv = [sys.executable, "-m", "perfdag", "scale", *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    delays = {"vmi-running": (1000, 60_000)}
    run_with_client(lambda client: simulation.install(client, "kubevirt", delays))
    params = f"{{counts: [40], primer: false, api_gates: false, namespace: {VMIS}}}"
    entry = f"  - {{benchmark: vmi-burst, params: {params}}}\n"
    workflow = bench.submit(f"name: killed\nretries: 0\nentries:\n{entry}")
    kept = bench.until(lambda: len(found := running()) >= 8 and found, 180, "8 running VMIs")
    time.sleep(KEPT)
    bench.delete("Pod", bench.pod(workflow, 0)["metadata"]["name"])
    store = open_store(bench.store)
    keys = store.list(f"runs/{bench.run_id(workflow)}/journal")
    for key, data in store.get_many(keys):
        (tmp_path / Path(key).name).write_bytes(data)
    scale("sample", "-o", str(tmp_path), "--watch", "90")
    rows = pq.read_table(tmp_path / "stages.parquet").to_pylist()
    ran = {row["uid"]: row for row in rows if (row["stage"], row["status"]) == ("running", "ok")}
    assert kept <= ran.keys(), "the journal kept what ran"
    assert all(ran[uid]["receive_time"] for uid in kept), "the journal kept when it was seen"
    bench.perfdag("rm", workflow)
    scale("delete", "--run", rows[0]["run"])
    run_with_client(lambda client: simulation.install(client, "kubevirt"))
