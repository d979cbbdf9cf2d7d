"""What an installation may be asked for beyond the usual."""

import json
from collections.abc import Iterator

import pytest

from perfdag.kube.client import Kube, run_with_client

from .conftest import Namespace, installed

pytestmark = [pytest.mark.argo, pytest.mark.slow]


@pytest.fixture(scope="module")
def wide() -> Iterator[Namespace]:
    """An installation with a ClusterWorkflowTemplate, a NetworkPolicy and a pull secret."""
    with installed("restricted", "--cluster-scope", "--pull-secret", "registry") as namespace:
        yield namespace
        run_with_client(_remove_templates)


async def _remove_templates(client: Kube) -> None:
    kind = await client.resource("argoproj.io/v1alpha1", "ClusterWorkflowTemplate")
    for each in await client.list(kind, labels="app.kubernetes.io/managed-by=perfdag"):
        await client.delete(kind, each["metadata"]["name"])


def test_iperf_behind_a_network_policy_from_templates_of_the_cluster(
    wide: Namespace,
) -> None:
    name = wide.submit(
        "name: wide\npending_limit: 90s\nentries:\n"
        "  - {benchmark: iperf, hosts: {count: 2}, params: {duration: 1s}}\n"
    )
    pod = wide.pod(name, 1)
    assert {"name": "registry"} in pod["spec"]["imagePullSecrets"]
    run = wide.finish(name)
    run.assert_ok()
    assert {json.loads(row["env"])["cluster"]["network_policy"] for row in run.rows} == {True}
