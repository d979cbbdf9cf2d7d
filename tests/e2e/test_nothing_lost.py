"""Faults on a real cluster: each run ends with rows equal to the plan and none twice, or with
the reason in the rows.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from perfdag.kube.client import Kube, run_with_client
from tests.fakes.proxy import Proxy

from .conftest import Namespace, samples_of, sleeps

pytestmark = [pytest.mark.argo, pytest.mark.slow]


@pytest.mark.parametrize("rank", [0, 1], ids=["lead", "peer"])
def test_a_deleted_pod_loses_nothing(bench: Namespace, tmp_path: Path, rank: int) -> None:
    name = bench.submit(sleeps(tmp_path, points=12, seconds=2.0))
    run_id = bench.run_id(name)
    deleted = bench.pod(name, rank)["metadata"]
    before = bench.under_way(run_id, 6)
    bench.delete("Pod", deleted["name"])
    bench.until(
        lambda: bench.pod(name, rank)["metadata"]["uid"] != deleted["uid"], 90, "younger pod"
    )
    result = bench.watch(name)
    assert result.returncode == 0, result.stdout + result.stderr
    bench.assert_complete(run_id, 12)
    attempts = {row["point"]: row["attempt"] for row in bench.rows(run_id)}
    assert before <= bench.stored(run_id)
    # Argo 4.1 creates a deleted pod again in the same attempt. A lead goes on there, if its peers
    # still wait for it, and a gang without one of its peers ends.
    assert set(attempts.values()) in ([{1, 2}] if rank else [{1}, {1, 2}])


def test_what_runs_out_of_memory_or_kills_its_pod_costs_only_its_own_samples(
    bench: Namespace,
) -> None:
    eats = "[python3, -c, 'x = [bytearray(1 << 20) for _ in range(1000)]']"
    kills = "[sh, -c, 'kill -9 $PPID']"  # as the kernel does where all of a container is to go
    name = bench.submit(
        "name: oom\nrepetitions: 2\npending_limit: 60s\nentries:\n"
        "  - {benchmark: command, name: eats, resources: {memory: 300Mi}, permutations: {explicit: "
        f"[{{argv: [sleep, '0.1']}}, {{argv: {eats}}}, {{argv: [sleep, '3']}}]}}}}\n"
        f"  - {{benchmark: command, name: kills, params: {{argv: {kills}}}}}\n"
    )
    run_id = bench.run_id(name)
    bench.under_way(run_id)
    # the kernel ends the process that ate and no pod: the sample says so, and the others of its
    # batch go on
    bench.until(
        lambda: any("OOMKilled" in (row["error"] or "") for row in bench.rows(run_id)),
        240,
        "reason in the row",
    )
    argv = [sys.executable, "-m", "perfdag", "show", run_id, "--store", bench.store]
    assert (
        "OOMKilled" in subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    ), "the results of a run that is under way"
    run = bench.finish(name)
    assert run.exit_code == 1
    states = sorted((row["entry"], row["status"]) for row in samples_of(run.rows))
    assert states == [("eats", "failed")] * 2 + [("eats", "ok")] * 4 + [("kills", "failed")] * 2
    failed = [row for row in run.rows if (row["entry"], row["status"]) == ("eats", "failed")]
    assert all("bytearray" in row["params"] and "OOMKilled" in row["error"] for row in failed)
    why = "2 pods were lost while they measured this point"
    assert {row["error"] for row in run.rows if row["entry"] == "kills"} == {why}


@pytest.fixture
def proxy(bench: Namespace) -> Iterator[Proxy]:
    """The S3 server as the pods of the namespace reach it for the time of a test."""
    endpoint = urlsplit(os.environ["AWS_ENDPOINT_URL"])
    try:
        server = Proxy((endpoint.hostname or "", endpoint.port or 80), endpoint.hostname or "")
    except OSError:
        pytest.skip(
            f"no port can be opened on {endpoint.hostname}: the S3 server is not on this machine"
        )

    async def point(client: Kube, port: int) -> None:
        data = {"AWS_ENDPOINT_URL": f"{endpoint.scheme}://{endpoint.hostname}:{port}"}
        await client.patch("v1/Secret", "perfdag-store", {"stringData": data}, bench.name)

    run_with_client(lambda client: point(client, server.port))
    try:
        yield server
    finally:
        run_with_client(lambda client: point(client, endpoint.port or 80))
        server.close()


def test_a_store_that_is_away_for_30_s_loses_nothing(
    bench: Namespace, proxy: Proxy, tmp_path: Path
) -> None:
    name = bench.submit(sleeps(tmp_path, points=10, hosts=1))
    run_id = bench.run_id(name)
    bench.under_way(run_id)
    proxy.leave()
    time.sleep(30)
    before = len(bench.stored(run_id))
    proxy.away = False
    assert before < 10
    assert bench.watch(name).returncode == 0
    bench.assert_complete(run_id, 10)
