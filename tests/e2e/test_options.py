"""What an installation may be asked for beyond the usual."""

import json
from collections.abc import Iterator

import pytest

from .conftest import Namespace, installed

pytestmark = [pytest.mark.argo, pytest.mark.slow]


@pytest.fixture(scope="module")
def wide() -> Iterator[Namespace]:
    """An installation with a NetworkPolicy and a pull secret."""
    with installed("restricted", "--pull-secret", "registry") as namespace:
        yield namespace


def test_iperf_behind_a_network_policy(
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
