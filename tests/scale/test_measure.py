"""`perfdag scale measure`: workloads that others create, on the in-memory API server and on
KWOK.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import orjson
import pyarrow.parquet as pq
import pytest

from perfdag.kube.client import Kube
from perfdag.steps.scale.measure.clock import Offset
from perfdag.steps.scale.scenarios import foreign, observation
from tests.fakes.api_server import ApiServer, client

STAMP = "2026-01-01T00:00:00Z"


def body(kind: str, name: str, app: str, owner: str = "", **status: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": "ns", "uid": name}
    metadata |= {"labels": {"app": app} if app else {}, "creationTimestamp": STAMP}
    if owner:
        metadata["ownerReferences"] = [{"uid": owner, "kind": "Any", "controller": True}]
    api = {"Pod": "v1"}.get(kind, "apps/v1")
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": {}, "status": status}


def ready(name: str, app: str = "", owner: str = "") -> dict[str, Any]:
    conditions = [
        {"type": name, "status": "True", "lastTransitionTime": STAMP}
        for name in ("PodScheduled", "Ready")
    ]
    return body("Pod", name, app, owner, conditions=conditions)


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """No clock to compare with, and a short wait for more workloads."""

    for name, answer in {
        "server_offset": AsyncMock(return_value=Offset(0.0, 0.0)),
        "drift": AsyncMock(return_value=({}, "")),
    }.items():
        monkeypatch.setattr(observation, name, answer)
    monkeypatch.setattr(foreign, "QUIET", 0.5)
    monkeypatch.setattr(foreign, "LOOK", 0.1)


async def measure(server: ApiServer, path: Path, *later: Any, **more: Any) -> foreign.Observation:
    """What is seen of what `later` adds one after the other."""
    messages: list[str] = []
    options: dict[str, Any] = {"selector": "app=web", "namespaces": ["ns"], "timeout": 20.0} | more
    request = foreign.Request(**options, log=messages.append)
    async with client(server) as kube:
        task = asyncio.create_task(foreign.measure(kube, request, path / "state"))
        while not messages and not task.done():
            await asyncio.sleep(0.01)
        for bodies in later:
            await asyncio.sleep(0.2)
            server.add(*bodies)
        return await task


async def test_pods_with_the_labels_are_measured_until_all_are_ready(
    calm: None, tmp_path: Path
) -> None:
    """Neither those of others nor those that were there before; nobody knows when one was
    submitted.
    """
    server = ApiServer(ready("old", "web"), ready("other", "db"))
    first, then = body("Pod", "a", "web"), body("Pod", "b", "web")
    result = await measure(
        server, tmp_path, [first, ready("c", "db")], [then], [ready("a", "web"), ready("b", "web")]
    )
    assert (result.workloads, result.older, result.done) == (2, 1, True)
    rows = {(row.name, row.stage): row for row in result.rows if row.status == "ok"}
    assert {name for name, _ in rows} == {"a", "b"}
    assert ("a", "created") not in rows
    assert 0.3 < (rows["a", "submission_to_ready"].seconds or 0) < 10.0
    assert rows["a", "submission_to_ready"].source == "receive"
    assert (rows["b", "scheduled"].seconds or 0) < (rows["a", "scheduled"].seconds or 0)
    assert (
        orjson.loads((tmp_path / "state").read_bytes().splitlines()[0])["run"]
        == rows["a", "scheduled"].run
    )


async def test_pods_are_found_by_their_owners_and_existing_ones_on_request(
    calm: None, tmp_path: Path
) -> None:
    server = ApiServer(body("Deployment", "d0", "web"), body("Deployment", "other", "db"))
    workloads = [
        body("Deployment", "d", "web"),
        body("ReplicaSet", "r", "", "d"),
        ready("p", "", "r"),
        ready("q", "", "elsewhere"),
    ]
    result = await measure(
        server, tmp_path, workloads, kind="deployment", seconds=1.5, existing=True
    )
    assert (result.workloads, result.older, result.done) == (2, 0, False)
    rows = {(row.name, row.stage): row for row in result.rows}
    assert rows["d", "ready"].status == "ok"
    assert rows["d", "ready"].objects == 1
    assert rows["d0", "ready"].status == "censored"


async def test_a_kind_that_is_not_served_and_one_of_two_groups_are_told() -> None:
    kube = ApiServer().client()
    with pytest.raises(ValueError, match="--kind Widget: the cluster serves no such kind"):
        await foreign.kind_of(kube, "Widget")
    with pytest.raises(ValueError, match=r"is ambiguous; it is one of Job\.batch, Job\.batch\.vol"):
        await foreign.kind_of(kube, "job")
    assert (await foreign.kind_of(kube, "job.batch")).api_version == "batch/v1"


@pytest.mark.cluster
async def test_a_deployment_that_kubectl_creates_on_simulated_nodes(
    kube: Kube, nodes: None, namespace: str, tmp_path: Path
) -> None:
    argv = ["scale", "measure", "-l", "app=web", "--kind", "Deployment", "--namespace", namespace]
    out = tmp_path / "out"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "perfdag",
        *argv,
        "-o",
        str(out),
        "--timeout",
        "120",
        env={**os.environ},
    )
    while not (out / "observed.jsonl").exists():
        await asyncio.sleep(0.1)
        assert process.returncode is None
    pod = {
        "nodeSelector": {"perfdag/simulated": "true"},
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "c", "image": "none"}],
    }
    for name in ("one", "two"):
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": pod}
        spec = {"replicas": 3, "selector": {"matchLabels": labels}, "template": template}
        metadata = {"name": name, "labels": {"app": "web"}}
        deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata}
        await kube.create(deployment | {"spec": spec}, namespace)
    assert await process.wait() == 0
    rows = pq.read_table(out / "stages.parquet").to_pylist()
    whole = [row for row in rows if row["stage"] == "ready"]
    assert [(row["name"], row["status"], row["objects"]) for row in whole] == [
        ("one", "ok", 3),
        ("two", "ok", 3),
    ]
    assert all(row["source"] == "receive" and row["resolution_s"] for row in whole)
