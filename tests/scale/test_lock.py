"""The lock of performance runs and the check of the nodes, against a server that is played here."""

import asyncio
from typing import Any

import pytest

from perfdag.kube import KubeError, Resource
from perfdag.steps.scale import kubevirt, lock


class Server:
    """Answers what a lock and a check of nodes ask for."""

    namespace = "ns"

    def __init__(self, holder: str = "", **lists: list[dict[str, Any]]) -> None:
        self.holder, self.lists, self.puts = holder, lists, list[str]()

    async def resource(self, api_version: str, kind: str) -> Resource:
        if kind != "Lease" and kind not in self.lists:
            raise KubeError(404, "NoKind", f"no {kind}")
        return Resource(api_version, kind, f"{kind.lower()}s", True)

    async def get(self, resource: Resource, name: str, namespace: str) -> dict[str, Any]:
        return {"metadata": {"resourceVersion": "7"}, "spec": {"holderIdentity": self.holder}}

    async def list(self, resource: Resource) -> list[dict[str, Any]]:
        return self.lists[resource.kind]

    async def request(self, verb: str, path: str, *, json: dict[str, Any]) -> None:
        assert json["metadata"]["resourceVersion"] == "7", "refused where it changed hands since"
        self.puts.append(json["spec"]["holderIdentity"])


@pytest.mark.parametrize(("holder", "renewed"), [("me", True), ("another", False)])
async def test_a_lock_that_another_took_is_not_kept_alive_for_it(holder: str, renewed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "LIFE", 0.03)
    server, told = Server(holder), list[str]()
    run = lock.ExclusiveRun(server, "me", 1.0, told.append)  # type: ignore[arg-type]
    renewing = asyncio.create_task(run._renew())
    await asyncio.sleep(0.1)
    renewing.cancel()
    await asyncio.gather(renewing, return_exceptions=True)
    assert bool(server.puts) == renewed
    assert ("performance run another took the cluster" in "".join(told)) != renewed


def node(name: str, ready: str = "True") -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {}}, "spec": {}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}


async def test_vmis_already_there_count_and_nodes_that_are_not_ready_do_not() -> None:
    phases = ["Running"] * 60 + ["Scheduling"] * 40 + ["Succeeded", "Failed"] * 30
    there = [{"metadata": {}, "status": {"phase": phase}} for phase in phases]
    server: Any = Server(Node=[node("a"), node("b"), node("c", "False")], VirtualMachineInstance=there)
    assert (await kubevirt.check_nodes(server, 300, 200))["nodes"] == 2
    with pytest.raises(kubevirt.TooDenseError, match="301 VMIs beside 100 already there on 2 nodes is over 200 a node; 3 nodes are needed"):
        await kubevirt.check_nodes(server, 301, 200)
