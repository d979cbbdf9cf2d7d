"""vmi-burst from a pod of a run: with the rights that `install --allow` grants, and without
them.
"""

import uuid
from collections.abc import Iterator

import pytest

from perfdag.kube.client import Kube, KubeError, run_with_client
from perfdag.steps.scale import cluster as nodes
from perfdag.steps.scale.objects import RUN_LABEL
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
        assert await nodes.ready_nodes(client, 5) >= 5
        await simulation.install(client, "kubevirt")

    try:
        run_with_client(work)
    except KubeError as error:
        pytest.skip(f"KubeVirt cannot be simulated here: {error}")
    yield

    async def remove(client: Kube) -> None:
        await client.delete("v1/Namespace", VMIS)

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
            return len(await client.list(f"{api}/{kind}", VMIS, labels=RUN_LABEL))

        return run_with_client(work)

    params = f"{{counts: [300], primer: false, parallel: 4, namespace: {VMIS}}}"
    suite = f"name: cut\nentries:\n  - {{benchmark: vmi-burst, params: {params}}}\n"
    workflow = bench.submit(suite)
    bench.until(lambda: there("kubevirt.io/v1", "VirtualMachineInstance") >= 20, 180, "20 VMIs")
    result = bench.perfdag("rm", workflow)
    assert result.returncode == 0, result.stdout + result.stderr
    assert there("kubevirt.io/v1", "VirtualMachineInstance") == 0
    assert there("v1", "ConfigMap") == 0
