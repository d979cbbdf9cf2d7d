"""What goes with a run that is deleted, and what stays, against a small API server."""

import re
from dataclasses import replace
from typing import Any

import pytest

from perfdag.kube.client import KubeError
from perfdag.steps.scale.cluster.removal import PRIMER, belongs, remove_namespaces, remove_run
from perfdag.steps.scale.model.templates import RUN_LABEL
from perfdag.steps.scale.runai.run_file import name_prefix
from perfdag.steps.scale.scenarios import run_vmi, vmi
from tests.fakes.api_server import ApiServer, failure

AUTOMATIC = {"ConfigMap": [{"name": "kube-root-ca.crt"}], "ServiceAccount": [{"name": "default"}]}
OWNED = {"ownerReferences": [{"kind": "Job", "name": "gone", "uid": "u"}]}
BY_NODE = {"ownerReferences": [{"kind": "Node", "name": "n0", "uid": "u"}]}


def namespace(there: dict[str, list[dict[str, Any]]]) -> ApiServer:
    """One namespace `ns` that was made for run r, with what is put into it: metadata by kind."""
    server = ApiServer(
        {"kind": "Namespace", "metadata": {"name": "ns", "labels": {RUN_LABEL: "r"}}}
    )
    for kind, every in (AUTOMATIC | there).items():
        api = "batch/v1" if kind == "Job" else "v1"
        server.add(
            *(
                {"apiVersion": api, "kind": kind, "metadata": {"namespace": "ns", **item}}
                for item in every
            )
        )
    return server


@pytest.mark.parametrize(
    ("there", "refused", "message"),
    [
        ({}, "", ""),
        ({"Job": [{"name": "x", "labels": {RUN_LABEL: "q"}}]}, "", "Job x is in it"),
        ({"Job": [{"name": "x"}]}, "", "Job x is in it"),
        (
            {"ConfigMap": [*AUTOMATIC["ConfigMap"], {"name": "results"}]},
            "",
            "ConfigMap results is in it",
        ),
        ({"Pod": [{"name": "p"} | BY_NODE]}, "", "Pod p is in it"),
        ({"Pod": [{"name": "p"} | OWNED]}, "", ""),
        ({"Pod": [{"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"}]}, "", ""),
        ({"ConfigMap": [{"name": "heartbeat", "labels": {RUN_LABEL: "r-sample"}}]}, "", ""),
        ({}, "jobs", "we may not list jobs in it"),
    ],
)
async def test_a_namespace_goes_with_the_run_that_made_it_only_where_nothing_else_is_there(
    there: dict[str, list[dict[str, Any]]], refused: str, message: str
) -> None:
    """Of another kind than the run's, or without a label, as what Run:ai's command line submits."""
    server, output = namespace(there), list[str]()
    if refused:
        server.fail(f"GET .*/{refused}\\b", 403)
    assert await remove_namespaces(server.client(), "r", ["ns"], 5.0, output.append) == 0
    assert bool(server.of("Namespace")) is bool(message)
    assert output == (
        [f"the namespace ns, which was made for this run, stays: {message}"] if message else []
    )


@pytest.mark.parametrize("other", [True, False])
async def test_deletion_by_id_keeps_such_a_namespace_too(other: bool) -> None:
    server = namespace({"Job": [{"name": "x"}] if other else []})
    assert await remove_run(server.client(), "r", None, 2, 5.0) == 0
    assert bool(server.of("Namespace")) is other


VOLCANO = "scheduling.volcano.sh/v1beta1"


def queues(why: str) -> ApiServer:
    """Two queues and a pod of run r; `why` is what deleting queue `a` is refused with (Volcano's: until it was closed)."""
    named = [(VOLCANO, "Queue", "a"), (VOLCANO, "Queue", "b"), ("v1", "Pod", "p")]
    server = ApiServer(
        *(
            {
                "apiVersion": api,
                "kind": kind,
                "metadata": {"name": name, "labels": {RUN_LABEL: "r"}},
            }
            for api, kind, name in named
        )
    )
    server.on(
        "DELETE .*/queues/a$",
        lambda _: None if "losed" in why and server.of("Command") else failure(403, why),
    )
    return server


async def test_one_that_may_not_be_deleted_keeps_nobody_from_deleting_the_others() -> None:
    server = queues("no such right")
    with pytest.raises(KubeError, match=r"Queue a was not deleted: .*no such right"):
        await remove_run(server.client(), "r", None, 1, 5.0)
    assert [server.names(kind) for kind in ("Queue", "Pod", "Command")] == [["a"], [], []]


async def test_a_queue_of_volcano_is_closed_where_that_is_asked_for() -> None:
    """One that the run itself had no time to close."""
    server = queues("only queue with state `Closed` can be deleted, queue `a` state is `Open`")
    assert await remove_run(server.client(), "r", None, 1, 5.0) == 0
    assert (server.names("Queue"), server.names("Pod")) == ([], [])
    assert [item["target"]["name"] for item in server.of("Command")] == ["a"]


def test_names_are_those_of_a_service_too() -> None:
    """A PyTorchJob gets a Service of its name (RFC 1035: it begins with a letter), a VMI a launcher pod; a part's name is the longest."""
    spec = vmi.Spec()
    part = run_vmi.rung(spec, 98).run
    primer = replace(spec, run=f"{part}-{PRIMER}").run
    for run in (spec.run, part, primer, name_prefix(spec.run)):
        name = f"{run}-99999"
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name), name
        assert len(f"virt-launcher-{name}-abcde") <= 63
        assert run == name_prefix(spec.run) or belongs(spec.run, {"labels": {RUN_LABEL: run}})
