"""`perfdag scale measure`: what others create while it watches."""

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pyarrow.parquet as pq
import pytest

from perfdag.commands import scale
from perfdag.commands.main import main
from perfdag.steps.scale import runai, watch
from tests.fakes.api_server import ApiServer, client

BEFORE = "2026-01-01T00:00:00Z"


def body(kind: str, name: str, app: str, owner: str = "", ready: bool = False) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": "ns", "uid": name}
    metadata |= {"labels": {"app": app}, "creationTimestamp": BEFORE}
    if owner:
        metadata["ownerReferences"] = [{"uid": owner, "controller": True}]
    types = ("PodScheduled", "Ready") if ready else ()
    conditions = [{"type": name, "status": "True", "lastTransitionTime": BEFORE} for name in types]
    api = {"Pod": "v1"}.get(kind, "apps/v1")
    status = {"conditions": conditions}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": {}, "status": status}


@pytest.fixture
def quick(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    monkeypatch.setattr(watch, "server_offset", AsyncMock(return_value=0.0))
    monkeypatch.setattr(runai, "QUIET_S", 0.5)
    monkeypatch.setattr(runai, "PARTIAL_S", 0.1)
    monkeypatch.setattr(runai, "LIMIT_S", 20.0)
    return server


def pods(*names: str, ready: bool) -> list[dict[str, Any]]:
    return [body("Pod", name, "web", "set", ready=ready) for name in names]


DEPLOYMENT = [body("Deployment", "d", "web"), body("ReplicaSet", "r", "", "d")]
PODS_OF_IT = [body("Pod", "p", "", "r", ready=True), body("Pod", "q", "", "elsewhere", ready=True)]


@pytest.mark.parametrize(
    ("words", "steps", "code", "said"),
    [
        ("", [pods("a", "b", ready=False), pods("a", "b", ready=True)], 0, "0 waiting, of 2 sub"),
        ("--for 1", [pods("a", "b", ready=True), pods("c", ready=False)], 1, "1 waiting, of 3 sub"),
        ("--for 0.3 --namespace other", [pods("a", ready=True)], 2, "none was created with the la"),
        ("--kind apps/v1/Deployment", [DEPLOYMENT, PODS_OF_IT], 0, "0 waiting, of 1 submitted"),
    ],
)
def test_what_others_create_is_measured_from_its_creation_until_all_are_ready(
    words: str,
    steps: list[list[dict[str, Any]]],
    code: int,
    said: str,
    quick: ApiServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    quick.add(body("Pod", "old", "web", "set", ready=True), body("Pod", "theirs", "db"))
    involved = {"uid": "set", "kind": "ReplicaSet", "namespace": "ns"}
    event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "ns"}}
    quick.add(event | {"involvedObject": involved, "reason": "SuccessfulCreate"})

    async def beside(work: Any) -> Any:
        """Watch, and create the objects of each step meanwhile."""
        async with client(quick) as kube:
            watching = asyncio.create_task(work(kube))
            while not quick.count("watch=1"):
                await asyncio.sleep(0.01)
            for bodies in steps:
                await asyncio.sleep(0.2)
                quick.add(*bodies)
            return await watching

    monkeypatch.setattr(scale, "run_on_cluster", lambda work: asyncio.run(beside(work)))
    argv = ["scale", "measure", "-l", "app=web", *words.split(), "-o", str(tmp_path)]
    assert main(argv) == code, capsys.readouterr()
    output = capsys.readouterr()
    assert said in output.out + output.err
    if not words:
        rows = pq.read_table(tmp_path / "stages.parquet").to_pylist()
        ok = {(row["stage"], row["since"], row["source"]) for row in rows if row["status"] == "ok"}
        assert ("creation_to_ready", "created", "watch") in ok
        assert "submitted" not in {row["since"] for row in rows}
        assert 0.1 < min(row["seconds"] for row in rows if row["stage"] == "scheduled") < 5
        assert {row["name"] for row in rows} == {"a", "b"}, "not the one that was there before"
