"""What finish deletes of the cluster, and what it leaves for `argo retry`."""

from dataclasses import replace
from typing import Any

import pytest

from perfdag.plan.plan import Plan, make_plan
from perfdag.results.confirming import ROUNDS
from perfdag.steps.runner import cleanup
from perfdag.suite.load import parse_suite
from perfdag.workflows.rights import FINISH
from tests.fakes.api_server import ApiServer

from .test_plan_step import place

SUITE = """\
name: s
rounds_per_batch: 1
entries:
  - {benchmark: command, name: shared, repetitions: 2, volume: {access: ReadWriteMany}, params: {argv: ['true']}}
  - {benchmark: command, name: own, volume: {access: ReadWriteOnce}, params: {argv: ['true']}}
  - {benchmark: command, name: theirs, volume: {claim: data}, params: {argv: ['true']}}
  - {benchmark: command, name: gang, hosts: {count: 2}, scheduler: volcano, params: {argv: ['true']}}
"""


def made() -> tuple[Plan, dict[str, list[int]]]:
    """A plan, and the batches of each of its entries."""
    plan = make_plan(parse_suite(SUITE), run_id=place().run_id)
    entries: dict[str, list[int]] = {}
    for number, batch in enumerate(plan.batches):
        entries.setdefault(plan.points[plan.order[batch.samples[0]][0]].entry, []).append(number)
    return plan, entries


def workflow(phases: dict[int, str]) -> dict[str, Any]:
    """A Workflow whose gangs ended so, by batch."""
    inputs = {
        number: {"parameters": [{"name": "batch", "value": str(number)}]} for number in phases
    }
    nodes = {
        str(number): {"templateName": "gang", "phase": phase, "inputs": inputs[number]}
        for number, phase in phases.items()
    }
    kind = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": place().workflow, "namespace": "bench"},
    }
    return {
        **kind,
        "spec": {},
        "status": {"nodes": nodes | {"f": {"templateName": "finish", "phase": "Running"}}},
    }


def test_a_run_that_was_measured_leaves_no_claim_podgroup_or_key_pair() -> None:
    plan, entries = made()
    found = cleanup.releasable(place(), plan)
    claims = {
        ("v1", "PersistentVolumeClaim", f"perfdag-uid-b{number}") for number in entries["shared"]
    }
    group = ("scheduling.volcano.sh/v1beta1", "PodGroup", f"perfdag-uid-b{entries['gang'][0]}")
    assert len(claims) == 2
    assert {*claims, group, ("v1", "Secret", "perfdag-ssh-uid")} <= set(found)
    assert all("uid" in name for _, _, name in found), (
        "nothing of another Workflow, and no claim of the suite's own"
    )
    first = len(plan.batches)
    asked = [int(name.rpartition("-b")[2]) for _, kind, name in found if kind != "Secret"]
    own = {plan.batches[number].shape for number in (*entries["shared"], *entries["gang"])}
    confirming = {
        first + each * len(plan.shapes) + shape for each in range(ROUNDS) for shape in own
    }
    assert {number for number in asked if number >= first} == confirming


def test_what_argo_retry_would_measure_again_keeps_what_it_needs() -> None:
    plan, entries = made()
    done, failed = entries["shared"]
    ended = {
        done: "Succeeded",
        failed: "Failed",
        entries["gang"][0]: "Error",
        len(plan.batches): "Succeeded",
    }
    assert cleanup.measured_batches(workflow(ended)) == {done, len(plan.batches)}
    assert cleanup.of_batches(place(), plan, {done}) == [
        ("v1", "PersistentVolumeClaim", f"perfdag-uid-b{done}")
    ]


def test_a_run_that_was_resumed_clears_what_its_earlier_workflows_have() -> None:
    plan, entries = made()
    plan.where = {"workflow_uid": "uid", "before": {"old": {}}}
    found = {name for _, _, name in cleanup.releasable(place(), plan)}
    assert {
        f"perfdag-{uid}-b{number}"
        for uid in ("uid", "old")
        for number in (*entries["shared"], *entries["gang"])
    } <= found
    assert {"perfdag-ssh-uid", "perfdag-ssh-old"} <= found


def test_each_is_deleted_by_its_name_with_the_rights_of_finish(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, entries = made()
    ended = workflow({entries["shared"][0]: "Succeeded", entries["shared"][1]: "Failed"})
    server = ApiServer(ended)
    monkeypatch.setattr("perfdag.kube.client.Kube", server.client)

    def asked() -> set[tuple[str, str]]:
        """Kinds and verbs of all requests for objects, each of which FINISH allows."""
        verbs = set()
        for request in server.requests:
            api, namespaced, rest = request.path.partition("/namespaces/")
            if namespaced:
                namespace, kind, name = rest.split("/")
                if request.method == "DELETE":
                    group = api.removeprefix("/apis/").rpartition("/")[0] if "/apis/" in api else ""
                    assert any(
                        group in rule["apiGroups"]
                        and kind in rule["resources"]
                        and "delete" in rule["verbs"]
                        for rule in FINISH
                    )
                    assert (namespace, "uid" in name) == ("bench", True)
                verbs.add((kind, request.method.lower()))
        return verbs

    cleanup.release(place(), plan, "Failed")
    assert asked() == {("workflows", "get"), ("persistentvolumeclaims", "delete")}
    cleanup.release(place(), plan, "Succeeded")
    assert asked() == {
        ("workflows", "get"),
        *((kind, "delete") for kind in ("persistentvolumeclaims", "secrets", "podgroups")),
    }
    assert {
        (name, verb)
        for rule in FINISH
        for name in rule["resources"]
        for verb in rule["verbs"]
        if verb == "delete"
    } <= asked()

    server.fail(".", 403, "you may not")
    cleanup.release(replace(place(), workflow="w"), plan, "Succeeded")
    assert "you may not" in capsys.readouterr().err
