"""The plan step against a real API server: what the cluster refuses of one batch costs that batch
alone.
"""

import os
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
import yaml

from perfdag.kube.client import Kube, run_with_client
from perfdag.plan import make_plan
from perfdag.results.collect import gather
from perfdag.results.run_store import stored_plan
from perfdag.steps.pods.context import PodContext
from perfdag.steps.pods.plan import step
from perfdag.store.s3 import open_store
from perfdag.suite.load import parse_suite
from perfdag.workflows import templates
from perfdag.workflows.installation import Installation

from .test_plan_step import place

pytestmark = pytest.mark.cluster
SUITE = """\
name: refused
entries:
  - {benchmark: command, name: good, params: {argv: ['true']}}
  - {benchmark: command, name: volcano, scheduler: volcano, hosts: {count: 2}, params: {argv: ['true']}}
  - {benchmark: command, name: gadget, resources: {example.com/no-such-gadget: 1}, params: {argv: ['true']}}
  - {benchmark: command, name: network, network: {name: nowhere/none}, params: {argv: ['true']}}
  - {benchmark: command, name: full, volume: {access: ReadWriteMany, size: 2GiB, storage_class: STORAGE}, params: {argv: ['true']}}
"""  # noqa: E501


@pytest.fixture
def here(s3_root: str) -> Iterator[PodContext]:
    name = f"perfdag-plan-{uuid.uuid4().hex[:6]}"
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "tight"},
        "spec": {"hard": {"requests.storage": "1Gi"}},
    }
    by_hand = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany"],
        "storageClassName": name,
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": {"path": "/nonexistent"},
    }
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": by_hand,
    }

    async def make(client: Kube) -> str:
        await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        await client.create(volume)
        await client.create(quota, name)
        # what objects are owned by has to be there, or they are collected: any object with a uid
        # serves
        owner = await client.create(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}}, name
        )
        return str(owner["metadata"]["uid"])

    async def remove(client: Kube) -> None:
        await client.delete("v1/PersistentVolume", name)
        await client.delete("v1/Namespace", name)

    uid = run_with_client(make)
    yield replace(place(), store=s3_root, workflow_uid=uid, namespace=name)
    run_with_client(remove)


@pytest.fixture(params=[False, True], ids=["cluster-wide", "namespaced"])
def as_account(
    here: PodContext,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[bool]:
    """As the service account of the steps in an installation, which is `namespaced` or not: a
    kubeconfig with its token.
    """
    installed = templates.objects(
        Installation(namespace=here.namespace, store=here.store, namespaced=request.param)
    )
    # classes stay: every installation of the cluster shares them
    classes = [each for each in installed if each["kind"] == "PriorityClass"]
    rights = [each for each in installed if each not in classes and "spec" not in each]

    async def make(client: Kube) -> str:
        for each in [*rights, *classes]:
            await client.apply(each)
        path = f"/api/v1/namespaces/{here.namespace}/serviceaccounts/perfdag-run/token"
        request_body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 600},
        }
        return str((await client.request("POST", path, json=request_body))["status"]["token"])

    async def remove(client: Kube) -> None:
        for each in rights:
            if each["kind"].startswith("Cluster"):
                kind = f"{each['apiVersion']}/{each['kind']}"
                await client.delete(kind, each["metadata"]["name"])

    usual = os.environ["KUBECONFIG"]
    config = yaml.safe_load(Path(usual).read_text())
    config["users"] = [
        {"name": each["name"], "user": {"token": run_with_client(make)}} for each in config["users"]
    ]
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    yield request.param
    monkeypatch.setenv("KUBECONFIG", usual)
    run_with_client(remove)


def test_the_rights_of_an_installation_are_enough(
    here: PodContext, as_account: bool, tmp_path: Path
) -> None:
    store = open_store(here.store)
    plan = make_plan(parse_suite(SUITE.replace("STORAGE", here.namespace)), run_id=here.run_id)
    store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
    step(here, tmp_path / "out", {})
    stored = stored_plan(store, here.run_id)
    assert (stored.where["cluster"], stored.where["nodes"], stored.where["daemons"]).count(
        None
    ) == (3 if as_account else 0)
    rows = {row["entry"]: row for row in gather(store, stored)[0].to_pylist()}
    result = {entry: row["status"] for entry, row in rows.items()}
    assert "exceeded quota" in rows["full"]["error"]
    # who may not read nodes does not know what they lack, and the scheduler will tell
    assert result["gadget"] == ("missing" if as_account else "skipped")
    assert (result["good"], result["network"], result["full"]) == ("missing", "skipped", "failed")
    # one that may not be read may not be there: pods do without it
    kinds = orjson.loads((tmp_path / "out" / "kinds").read_bytes())
    classes = {each["lead"].get("priorityClassName") for each in kinds}
    assert classes == {None if as_account else "perfdag"}
