"""What goes with a run that is deleted, and what stays, against a small API server."""

import re
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from perfdag.kube import KubeError
from perfdag.steps.scale import sizes, vmi
from perfdag.steps.scale.files import prefix_of
from perfdag.steps.scale.removal import PRIMER, belongs, remove_namespaces, remove_run
from perfdag.steps.scale.templates import RUN_LABEL

from .api import client

KINDS = {"/api/v1": ("Namespace", "Pod", "ConfigMap", "ServiceAccount"), "/apis/batch/v1": ("Job",)}
AUTOMATIC = {"configmaps": [{"name": "kube-root-ca.crt"}], "serviceaccounts": [{"name": "default"}]}
OWNED = {"ownerReferences": [{"kind": "Job", "name": "gone", "uid": "u"}]}
BY_NODE = {"ownerReferences": [{"kind": "Node", "name": "n0", "uid": "u"}]}


class Server:
    """One namespace `ns` that was made for run r, with what is put into it: metadata by plural."""

    def __init__(self, there: dict[str, list[dict[str, Any]]], refused: str = "") -> None:
        self.there, self.refused, self.namespace = AUTOMATIC | there, refused, True

    async def handle(self, request: web.Request) -> web.Response:
        path, plural = request.path, request.path.rpartition("/")[2]
        if path == "/apis":
            return web.json_response(
                {"groups": [{"preferredVersion": {"groupVersion": "batch/v1"}}]}
            )
        if path in KINDS:
            verbs = {"verbs": ["list", "delete"]}
            return web.json_response(
                {
                    "resources": [
                        {"name": f"{k.lower()}s", "kind": k, "namespaced": k != "Namespace"} | verbs
                        for k in KINDS[path]
                    ]
                }
            )
        metadata = {"name": "ns", "labels": {RUN_LABEL: "r"}}
        if path == "/api/v1/namespaces/ns":
            self.namespace = self.namespace and request.method != "DELETE"
            return web.json_response({"metadata": metadata}, status=200 if self.namespace else 404)
        if plural == self.refused:
            return web.json_response({"message": "no right"}, status=403)
        found = self.there.get(plural, [])
        if plural == "namespaces":
            found = [metadata] if self.namespace else []
        if wanted := request.query.get("labelSelector"):
            found = [each for each in found if wanted in each.get("labels", {})]
        return web.json_response(
            {"metadata": {"resourceVersion": "1"}, "items": [{"metadata": each} for each in found]}
        )


@pytest.mark.parametrize(
    ("there", "refused", "told"),
    [
        ({}, "", ""),
        ({"jobs": [{"name": "x", "labels": {RUN_LABEL: "q"}}]}, "", "Job x is in it"),
        ({"jobs": [{"name": "x"}]}, "", "Job x is in it"),
        (
            {"configmaps": [*AUTOMATIC["configmaps"], {"name": "results"}]},
            "",
            "ConfigMap results is in it",
        ),
        ({"pods": [{"name": "p"} | BY_NODE]}, "", "Pod p is in it"),
        ({"pods": [{"name": "p"} | OWNED]}, "", ""),
        ({"pods": [{"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"}]}, "", ""),
        ({"configmaps": [{"name": "heartbeat", "labels": {RUN_LABEL: "r-sample"}}]}, "", ""),
        ({}, "jobs", "we may not list jobs in it"),
    ],
)
async def test_a_namespace_goes_with_the_run_that_made_it_only_where_nothing_else_is_there(
    there: dict[str, list[dict[str, Any]]], refused: str, told: str
) -> None:
    """Of another kind than the run's, or without a label, as what Run:ai's command line submits."""
    server, said = Server(there, refused), list[str]()
    async with client(server.handle) as kube:
        assert await remove_namespaces(kube, "r", ["ns"], 5.0, said.append) == 0
    assert server.namespace is bool(told)
    assert said == (
        [f"the namespace ns, which was made for this run, stays: {told}"] if told else []
    )


@pytest.mark.parametrize("other", [True, False])
async def test_deletion_by_id_keeps_such_a_namespace_too(other: bool) -> None:
    server = Server({"jobs": [{"name": "x"}] if other else []})
    async with client(server.handle) as kube:
        assert await remove_run(kube, "r", None, 2, 5.0) == 0
    assert server.namespace is other


class Queues:
    """Two queues and a pod of run r; `why` is what deleting queue `a` is refused with (Volcano's: until it was closed)."""

    def __init__(self, why: str) -> None:
        self.there, self.why = {"queues": ["a", "b"], "pods": ["p"], "namespaces": list[str]()}, why
        self.closed: list[str] = []

    async def handle(self, request: web.Request) -> web.Response:
        path = request.path
        if path == "/apis":
            return web.json_response({"groups": [{"preferredVersion": {"groupVersion": VOLCANO}}]})
        if path in ("/api/v1", f"/apis/{VOLCANO}", "/apis/bus.volcano.sh/v1alpha1"):
            kinds = {"v1": ["Namespace", "Pod"], "v1beta1": ["Queue"]}.get(
                path.rpartition("/")[2], ["Command"]
            )
            found = [
                {"name": f"{kind.lower()}s", "kind": kind, "namespaced": kind in ("Pod", "Command")}
                for kind in kinds
            ]
            return web.json_response(
                {"resources": [each | {"verbs": ["list", "delete"]} for each in found]}
            )
        if request.method == "POST":
            self.closed.append((await request.json())["target"]["name"])
            return web.json_response({})
        where, _, name = path.rpartition("/")
        if name in self.there:
            metadata = [
                {"name": each, "uid": each, "labels": {RUN_LABEL: "r"}} for each in self.there[name]
            ]
            return web.json_response(
                {
                    "metadata": {"resourceVersion": "1"},
                    "items": [{"metadata": each} for each in metadata],
                }
            )
        if request.method == "GET":
            return web.json_response({"metadata": {"name": name, "uid": name}})
        if name == "a" and not ("losed" in self.why and self.closed):
            return web.json_response({"message": self.why}, status=403)
        self.there[where.rpartition("/")[2]].remove(name)
        return web.json_response({})


VOLCANO = "scheduling.volcano.sh/v1beta1"


async def test_one_that_may_not_be_deleted_keeps_nobody_from_deleting_the_others() -> None:
    server = Queues("no such right")
    async with client(server.handle) as kube:
        with pytest.raises(KubeError, match=r"Queue a was not deleted: .*no such right"):
            await remove_run(kube, "r", None, 1, 5.0)
    assert (server.there, server.closed) == ({"queues": ["a"], "pods": [], "namespaces": []}, [])


async def test_a_queue_of_volcano_is_closed_where_that_is_asked_for() -> None:
    """One that the run itself had no time to close."""
    server = Queues("only queue with state `Closed` can be deleted, queue `a` state is `Open`")
    async with client(server.handle) as kube:
        assert await remove_run(kube, "r", None, 1, 5.0) == 0
    assert (server.there, server.closed) == ({"queues": [], "pods": [], "namespaces": []}, ["a"])


def test_names_are_those_of_a_service_too() -> None:
    """A PyTorchJob gets a Service of its name (RFC 1035: it begins with a letter), a VMI a launcher pod; a part's name is the longest."""
    spec = vmi.Spec()
    part = sizes.rung(spec, 98).run
    primer = replace(spec, run=f"{part}-{PRIMER}").run
    for run in (spec.run, part, primer, prefix_of(spec.run)):
        name = f"{run}-99999"
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name), name
        assert len(f"virt-launcher-{name}-abcde") <= 63
        assert run == prefix_of(spec.run) or belongs(spec.run, {"labels": {RUN_LABEL: run}})
