"""Steps against a real API server: what the cluster refuses of one batch costs that batch alone; the events of a pod that waits."""

import os
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from perfdag import kube
from perfdag.collect import gather, load_plan
from perfdag.kube import Kube, KubeError
from perfdag.plan import make_plan
from perfdag.steps.place import Here
from perfdag.steps.plan import step
from perfdag.steps.pods import read, told
from perfdag.store import open_store
from perfdag.suite import loads

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
"""


@pytest.fixture
def here(s3_root: str) -> Iterator[Here]:
    if "KUBECONFIG" not in os.environ:
        pytest.skip("KUBECONFIG is not set: no cluster to test against")
    name = f"perfdag-plan-{uuid.uuid4().hex[:6]}"
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "tight"}, "spec": {"hard": {"requests.storage": "1Gi"}}}
    by_hand = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany"],
        "storageClassName": name,
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": {"path": "/nonexistent"},
    }
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": by_hand}

    async def make(client: Kube) -> str:
        await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        await client.create(volume)
        await client.create(quota, name)
        # what objects are owned by has to be there, or they are collected: any object with a uid serves
        owner = await client.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}}, name)
        return str(owner["metadata"]["uid"])

    async def remove(client: Kube) -> None:
        await client.delete(await client.resource("v1", "PersistentVolume"), name)
        await client.delete(await client.resource("v1", "Namespace"), name)

    uid = kube.run(make)
    yield replace(place(), store=s3_root, workflow_uid=uid, namespace=name)
    kube.run(remove)


def test_the_rest_is_measured_and_the_rows_say_why(here: Here, tmp_path: Path) -> None:
    async def volcano(client: Kube) -> bool:
        try:
            await client.resource("scheduling.volcano.sh/v1beta1", "PodGroup")
        except KubeError:
            return False
        return True

    if kube.run(volcano):
        pytest.skip("this cluster has Volcano")
    store = open_store(here.store)
    plan = make_plan(loads(SUITE.replace("STORAGE", here.namespace)), run_id=here.run_id)
    store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
    out = tmp_path / "out"
    step(here, out, {})
    left: list[int] = [number for name in ("batches", "batchesnet", "duels") for number in orjson.loads((out / name).read_bytes())]
    entries = [plan.points[plan.order[batch.samples[0]][0]].entry for batch in plan.batches]
    assert [entries[number] for number in left] == ["good"]
    stored = load_plan(store, here.run_id)
    assert stored.where["cluster"], "the uid of kube-system"
    rows: list[dict[str, Any]] = gather(store, stored)[0].to_pylist()
    found = {row["entry"]: (row["status"], row["error"]) for row in rows}
    assert found["good"][0] == "missing"
    assert found["volcano"][0] == "skipped"
    assert "scheduling.volcano.sh" in found["volcano"][1]
    assert found["gadget"] == ("skipped", "no node has example.com/no-such-gadget")
    assert found["network"][0] == "skipped"
    assert "nowhere/none" in found["network"][1]
    assert found["full"][0] == "failed"
    assert "exceeded quota" in found["full"][1]


def test_the_events_of_a_pod_that_waits_are_read(here: Here) -> None:
    # of a scheduler that is not there: nothing is ever said of it in its status
    spec = {"schedulerName": "nobody", "containers": [{"name": "main", "image": "none"}]}

    async def work(client: Kube) -> list[str | None]:
        made = await client.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}, here.namespace)
        of = {"kind": "Pod", "namespace": here.namespace, "name": "p", "uid": made["metadata"]["uid"]}
        for kind, reason, at in (("Normal", "Scheduled", "02"), ("Warning", "FailedMount", "01"), ("Warning", "Older", "00")):
            meta = {"name": f"p.{reason.lower()}"}
            event = {"apiVersion": "v1", "kind": "Event", "metadata": meta, "type": kind, "reason": reason, "message": "it is not there"}
            await client.create({**event, "involvedObject": of, "lastTimestamp": f"2026-01-01T00:00:{at}Z"}, here.namespace)
        listed = await client.list(await client.resource("v1", "Pod"), here.namespace)
        waited = [replace(read(each), created=0.0) for each in listed]
        return [pod.trouble for pod in await told(client, here.namespace, waited)]

    assert kube.run(work) == ["FailedMount: it is not there"]
