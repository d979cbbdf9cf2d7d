"""Operations on VMs: what is asked of KubeVirt, and which objects their stages are read from."""

import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from perfdag.kube.client import KubeError
from perfdag.steps.scale.figures.moments import Clocks
from perfdag.steps.scale.measure.generator import Submission
from perfdag.steps.scale.measure.observer import Observer
from perfdag.steps.scale.model.operations import OPERATIONS
from perfdag.steps.scale.model.records import Record
from perfdag.steps.scale.model.templates import TemplateError
from perfdag.steps.scale.scenarios import run_vmi, vmi_operation
from perfdag.steps.scale.scenarios.vmi_spec import Spec

VM, VMI = "VirtualMachine", "VirtualMachineInstance"


class Cluster:
    """Takes requests, but refuses those about `refused`."""

    def __init__(self, refused: str = "none") -> None:
        self.requests: list[str] = []
        self._refused = refused

    async def raw(self, method: str, path: str, **_: Any) -> Any:
        self.requests.append(f"{method} {path}")
        if self._refused in path:
            raise KubeError(409, "Conflict", "No virt-handler on node n")

    async def create(self, body: Any, namespace: str) -> None:
        self.requests.append(
            f"{body['kind']} {namespace}/{body['metadata']['name']} {body['spec']}"
        )


def see(observer: Observer, kind: str, name: str, owner: str, *stages: str) -> None:
    record = observer.find(name) or Record(kind, name, name, "ns", owner)
    if name not in observer.records:
        observer.adopt(record)
    for stage in stages:
        observer.note(record, stage, 0, 0, time.monotonic_ns())


def work(
    name: Any, monkeypatch: pytest.MonkeyPatch, refused: str = "none"
) -> tuple[Any, Observer, Cluster, list[str]]:
    """Two running VMs, a and b, and the operation on them."""
    observer, cluster = Observer(None, "r", [], ["ns"]), Cluster(refused)  # type: ignore[arg-type]
    for vm in ("a", "b"):
        see(observer, VM, vm, "", "created")
        see(observer, VMI, f"{vm}-old", vm, "created", "running")
        see(observer, "Pod", f"{vm}-pod", f"{vm}-old", "created", "ready")
    notes: list[str] = []

    async def until(done: Any, timeout: float) -> bool:
        return bool(done())

    monkeypatch.setattr(vmi_operation, "simulated_nodes", AsyncMock(return_value=(set(), "")))
    session: Any = SimpleNamespace(
        observer=observer,
        kube=cluster,
        run="r",
        notes=notes,
        template=SimpleNamespace(kind=VM),
        alive=lambda: [Submission(i, vm, "ns", 0) for i, vm in enumerate("ab")],
        clocks=lambda: Clocks(time.time_ns() - time.monotonic_ns()),
        heartbeats=SimpleNamespace(pause=lambda: None),
        self_load=SimpleNamespace(pause=lambda: None),
        measure=lambda: None,
        until=until,
        wait_end=lambda timeout: f"after {timeout:g} s",
    )
    operating = vmi_operation.OperationRun(session, Spec(timeout=9), OPERATIONS[name])
    return operating, observer, cluster, notes


async def test_a_restart_is_the_end_of_the_old_instance_and_the_start_of_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    restart, observer, cluster, notes = work("restart", monkeypatch)
    await restart.request()
    assert sorted(cluster.requests)[0].endswith("/v1/namespaces/ns/virtualmachines/a/restart")
    see(observer, VMI, "a-old", "a", "deleting")
    see(observer, "Pod", "a-pod", "a-old", "gone")
    see(observer, VMI, "a-old", "a", "gone")
    assert restart.completed() == 0, "the old one had run before"
    see(observer, VMI, "a-new", "a", "created", "scheduling", "running")
    await restart.wait()
    assert (restart.completed(), notes) == (1, ["1 of 2 VMs did not complete restart after 9 s"])
    rows = {(row.name, row.stage): row for row in await restart.rows()}
    for stage in ("deleting", "pods_gone", "gone", "created", "submission_to_running"):
        assert rows["a", f"restart_{stage}"].status == "ok", stage
        assert rows["b", f"restart_{stage}"].status == "censored", stage
    assert rows["a", "restart_created"].reached > rows["a", "restart_gone"].reached


@pytest.mark.parametrize(
    ("name", "requested"),
    [
        ("migrate", "VirtualMachineInstanceMigration ns/a-migrate {'vmiName': 'a'}"),
        ("snapshot", "VirtualMachineSnapshot ns/a-snapshot {'source': {'apiGroup': 'kubevirt.io'"),
    ],
)
async def test_an_object_asks_for_a_migration_and_a_snapshot(
    name: str, requested: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    operating, observer, cluster, _ = work(name, monkeypatch)
    await operating.request()
    assert sorted(cluster.requests)[0].startswith(requested)
    kind, stage = OPERATIONS[name].kind, OPERATIONS[name].stage  # type: ignore[index]
    see(observer, kind, f"a-{name}", "", "created", stage)
    see(observer, kind, f"b-{name}", "", "created", "failed")
    await operating.wait()
    assert operating.completed() == 1
    rows = {(row.name, row.stage): row.status for row in await operating.rows()}
    last = OPERATIONS[name].steps[-1].name  # type: ignore[index]
    assert (rows["a", last], rows["b", last]) == ("ok", "censored")
    assert rows["b", f"{name}_failed"] == "ok"


async def test_a_refused_operation_is_told_and_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    operating, _, _, notes = work("pause", monkeypatch, refused="instances/b/pause")
    await operating.request()
    await operating.wait()
    assert "1 VMs refused pause: No virt-handler on node n" in notes[-1]
    rows = {row.name: row.status for row in await operating.rows()}
    assert rows == {"a": "censored", "b": "failed"}


def test_operations_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TemplateError, match="restart needs VirtualMachines"):
        run_vmi.check(Spec(operation="restart"), run_vmi.VmiRequest())
    with pytest.raises(ValueError, match="goes with burst and ladder"):
        run_vmi.check(Spec(template="vm", operation="stop"), run_vmi.VmiRequest("steady"))
    run_vmi.check(Spec(operation="migrate"), run_vmi.VmiRequest())
