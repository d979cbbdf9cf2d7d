"""What `doctor --cluster` says of Argo, of the rights of its service accounts, and of the store
as a pod reaches it.
"""

import uuid
from typing import Any

import pytest

from perfdag.app.cluster.installation import installation_objects
from perfdag.app.doctor import argo, store_claim
from perfdag.app.doctor import cluster as doctor_cluster
from perfdag.app.doctor import rights as doctor_rights
from perfdag.app.doctor.finding import Finding
from perfdag.kube.client import Kube, run_with_client
from perfdag.workflows.templates import Installation
from tests.fakes.api_server import ApiServer, failure


def account(access: bool | int = True, name: str = "perfdag-run") -> Kube:
    """A client of an API server with this account, which answers what it is asked of access with
    a verdict or an HTTP status.
    """
    server = ApiServer({"kind": "ServiceAccount", "metadata": {"name": name, "namespace": "bench"}})
    verdict = {"status": {"allowed": access}} if isinstance(access, bool) else failure(access)
    server.on("accessreviews", lambda _: verdict)
    return server.client()


def deployment(image: str) -> dict[str, Any]:
    spec = {"template": {"spec": {"containers": [{"image": image}]}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "argo", "namespace": "argo"},
        "spec": spec,
    }


def definition(*fields: str) -> dict[str, Any]:
    templates = {"templates": {"items": {"properties": {field: {} for field in fields}}}}
    spec = {
        "versions": [
            {
                "schema": {
                    "openAPIV3Schema": {
                        "properties": {"spec": {"properties": templates if fields else {}}}
                    }
                }
            }
        ]
    }
    metadata = {"name": "workflowtemplates.argoproj.io"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": spec,
    }


@pytest.mark.parametrize(
    ("objects", "state"),
    [
        ([deployment("quay.io/argoproj/workflow-controller:v4.1.2")], "ok"),
        ([deployment("quay.io/argoproj/workflow-controller:v4.0.5")], "missing"),
        ([deployment("r/workflow-controller@sha256:00"), definition("pendingTimeout")], "ok"),
        ([definition("timeout")], "missing"),
        ([definition()], "warn"),
        ([], "warn"),
    ],
)
async def test_argo_has_to_know_pending_timeout(objects: list[dict[str, Any]], state: str) -> None:
    *_, last = await argo.check_argo(ApiServer(*objects).client())
    assert last.state == state
    assert "4.1" in last.what + last.do


@pytest.mark.parametrize(
    ("kube", "state", "words"),
    [
        (account(), "ok", "has its rights"),
        (account(False), "missing", "may not create podgroups"),
        (account(403), "warn", "is not known"),
        (account(name="another"), "missing", "there is no service account perfdag-run"),
    ],
)
async def test_an_account_is_there_and_has_its_rights_or_nobody_knows(
    kube: Kube, state: str, words: str
) -> None:
    finding: Finding = await doctor_rights.check_account(
        kube, "bench", "perfdag-run", [("x", "podgroups", "create")], "install"
    )
    assert finding.state == state
    assert words in finding.what


@pytest.mark.parametrize(
    ("access", "state", "words"),
    [(True, "ok", "you may submit"), (False, "missing", "you may not create workflows")],
)
async def test_whoever_asks_may_submit_or_is_told_what_is_missing(
    access: bool, state: str, words: str
) -> None:
    finding = await doctor_rights.check_user(account(access), "bench")
    assert (finding.state, finding.what[: len(words)]) == (state, words)


@pytest.mark.parametrize(
    ("modes", "parallel", "words"),
    [
        (["ReadWriteOnce"], 1, None),
        (["ReadWriteMany"], 3, None),
        (["ReadWriteOnce"], 3, "claim results is ReadWriteOnce, and 3 batches at once"),
        (None, 1, "there is no claim results in bench"),
    ],
)
async def test_a_claim_that_two_nodes_cannot_mount_is_found_where_batches_overlap(
    modes: list[str] | None, parallel: int, words: str | None
) -> None:
    server = ApiServer()
    if modes is not None:
        metadata = {"name": "results", "namespace": "bench"}
        server.add(
            {"kind": "PersistentVolumeClaim", "metadata": metadata, "spec": {"accessModes": modes}}
        )
    cluster = server.client()
    findings = await store_claim.check_claim(cluster, "bench", "claim://results", parallel)
    assert [finding.what[: len(words or "")] for finding in findings] == ([words] if words else [])
    assert await store_claim.check_claim(cluster, "bench", "s3://b/r", parallel) == []


def test_every_right_that_a_role_grants_is_asked_for() -> None:
    roles = {
        item["metadata"]["name"]: item["rules"]
        for item in installation_objects(Installation(store="s3://b/r"))
        if item["kind"] == "Role"
    }
    granted = {
        name: {
            (group, resource, verb)
            for rule in rules
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
        for name, rules in roles.items()
    }
    assert {
        name: set(rights) for name, rights in doctor_rights.required_rights().items()
    } == granted
    assert ("", "pods", "list") in granted["perfdag-measure"] & granted["perfdag-run"]
    assert ("argoproj.io", "workflowtaskresults", "patch") in granted["perfdag-finish"]


@pytest.mark.argo
def test_an_installation_on_a_real_api_server(s3_root: str) -> None:
    name = f"perfdag-doctor-{uuid.uuid4().hex[:6]}"

    async def make(client: Kube) -> None:
        await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        images = "localhost/nowhere-{name}:1"
        for item in installation_objects(
            Installation(
                namespace=name, store=s3_root, namespaced=True, images=images, pull_policy="Never"
            )
        ):
            await client.apply(item)
        await client.delete(await client.resource("v1", "ServiceAccount"), "perfdag-finish", name)

    async def remove(client: Kube) -> None:
        await client.delete(await client.resource("v1", "Namespace"), name)

    run_with_client(make)
    try:
        findings = {item.what: item for item in doctor_cluster.check_cluster(None, None, name)}
    finally:
        run_with_client(remove)
    assert findings["service account perfdag-run has its rights"].state == "ok"
    assert findings["service account perfdag-measure has its rights"].state == "ok"
    assert findings[f"there is no service account perfdag-finish in {name}"].state == "missing"
    assert findings["Argo's CRDs are of 4.1 or newer (they know pendingTimeout)"].state == "ok"
    [pod] = [item for what, item in findings.items() if "did not start" in what]
    assert "ErrImageNeverPull" in pod.what, (
        "its pod is made of the installation's image, and was admitted"
    )
