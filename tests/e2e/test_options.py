"""What an installation may be asked for beyond the usual."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Namespace, installed, sleeps

pytestmark = [pytest.mark.argo, pytest.mark.slow]


@pytest.fixture(scope="module")
def wide() -> Iterator[Namespace]:
    """An installation with a NetworkPolicy and a pull secret."""
    with installed("restricted", "--pull-secret", "registry") as namespace:
        yield namespace


@pytest.fixture(scope="module")
def two_at_once() -> Iterator[Namespace]:
    """An installation that measures two batches at a time."""
    with installed("restricted", "--parallel-batches", "2") as namespace:
        yield namespace


def test_two_batches_at_once_and_a_pod_for_every_sample(
    two_at_once: Namespace, tmp_path: Path
) -> None:
    run = two_at_once.measure(
        sleeps(tmp_path, points=4, seconds=12, hosts=1, extra="isolation: pod\n")
    )
    assert run.exit_code == 0, run.output
    two_at_once.assert_complete(run.id, 4)
    labels = f"workflows.argoproj.io/workflow={run.workflow},perfdag/rank=0"
    assert len(two_at_once.objects("Pod", labels=labels)) == 4, "a pod each"
    rows = [row for row in run.rows if row["headline"]]
    spans = [(row["started_at"], row["finished_at"]) for row in rows]
    most = max(sum(start <= began < end for start, end in spans) for began, _ in spans)
    assert most == 2


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
