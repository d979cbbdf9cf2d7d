"""What fits before a burst, how dense the nodes were afterwards, and a steady state with a stuck
VMI.
"""

import contextlib
import time
from collections import Counter
from typing import Any
from unittest.mock import AsyncMock

import pytest

from perfdag.kube.client import Object
from perfdag.steps.scale.cluster import kubevirt, vmi_room
from perfdag.steps.scale.model.records import Record
from perfdag.steps.scale.model.stages import VMI
from perfdag.steps.scale.scenarios import session, vmi_spec, vmi_steady
from perfdag.steps.scale.scenarios.base import Result
from tests.fakes.api_server import ApiServer

from .sessions import session_of
from .test_session import Cluster

KVM = vmi_room.KVM


def node(name: str, **allocatable: str) -> Object:
    allocatable |= {"pods": "250", KVM: "1000"}
    status = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": allocatable}
    metadata = {"name": name, "labels": {"kubevirt.io/schedulable": "true"}}
    return {"kind": "Node", "metadata": metadata, "spec": {}, "status": status}


def pod(name: str, node: str, *cpus: str, **spec: Any) -> Object:
    containers = [
        {"name": f"c{i}", "resources": {"requests": {"cpu": cpu}}} for i, cpu in enumerate(cpus)
    ]
    metadata = {"name": name, "namespace": "ns"}
    return {
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": node, "containers": containers, **spec},
        "status": {"phase": "Running"},
    }


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({}, 0.4),
        ({"initContainers": [{"name": "i", "resources": {"limits": {"cpu": "2"}}}]}, 2),
        (
            {
                "initContainers": [
                    {
                        "name": "i",
                        "restartPolicy": "Always",
                        "resources": {"requests": {"cpu": "1"}},
                    }
                ]
            },
            1.4,
        ),
        ({"overhead": {"cpu": "100m"}}, 0.5),
    ],
    ids=["containers", "a larger init container", "a sidecar", "overhead of the runtime"],
)
def test_a_pod_requests_what_the_scheduler_counts(spec: Object, cpu: float) -> None:
    request = vmi_room.request_of(pod("p", "a", "300m", "100m", **spec))
    assert (float(request["cpu"]), request["pods"]) == (cpu, 1)


async def test_the_line_before_a_burst_names_what_fits_beside_other_pods() -> None:
    """Of 8 and 4 CPUs, 1 is taken: 7 and 4 VMIs of one CPU fit, and memory for 3 on each node."""
    disk = {"ephemeral-storage": "10Gi"}
    nodes = node("a", cpu="8", memory="3Gi", **disk), node("b", cpu="4", memory="3500Mi", **disk)
    server = ApiServer(*nodes)
    server.add(pod("other", "a", "1"))
    request = vmi_room.request_of(pod("virt-launcher", "", "1"))
    request |= Counter({"memory": 1 << 30, "ephemeral-storage": 1 << 28})
    line, short = await vmi_room.room_line(server.client(), request, 7)  # type: ignore[arg-type]
    assert short
    assert line == (
        "6 VMIs fit on 2 nodes, 7 are planned: cpu 11 (1 each), ephemeral-storage 80 (0.25 GiB "
        "each), memory 6 (1.00 GiB each), pods 499 (1 each)"
    )
    assert not (await vmi_room.room_line(server.client(), request, 6))[1]  # type: ignore[arg-type]
    line, short = await vmi_room.room_line(server.client(), {}, 499)
    assert line.startswith(f"499 VMIs fit on 2 nodes, 499 are planned: {KVM} 2,000 (1 each), pods")
    assert line.endswith("CPU and memory are unknown without a primer")
    server.fail(r"GET .*/pods", 403)
    line, short = await vmi_room.room_line(server.client(), request, 7)  # type: ignore[arg-type]
    assert (line.startswith("whether 7 VMIs fit is unknown: "), short) == (True, False)


def placed(name: str, node: str, at: int, gone: int = 0) -> Record:
    record = Record(VMI, name, name, "ns", "")
    record.node = node
    record.put("scheduled", received_ns=at)
    if gone:
        record.put("gone", received_ns=gone)
    return record


def test_density_is_checked_for_each_node_and_moment() -> None:
    """Two VMIs follow one another on `a`, and `b` has two at once beside an existing one."""
    facts: dict[str, Any] = {"vmis_before": {"b": 1}}
    vmis = [
        placed("1", "a", 10, 20),
        placed("2", "a", 30),
        placed("3", "b", 5),
        placed("4", "b", 6),
    ]
    note = kubevirt.check_density(vmis, facts, 2)
    assert note.startswith("1 nodes had more than 2 VMIs, b had 3:")
    assert facts["vmis_per_node_max"] == 3
    assert kubevirt.check_density(vmis, facts, 3) == ""


class Stuck(Cluster):
    """A cluster whose VMI number 4 never runs, and whose number 1 is never gone."""

    def __init__(self) -> None:
        super().__init__(lambda index: [("running", 0.0)] if index != 4 else [])

    async def delete(self, resource: str, name: str, namespace: str = "") -> bool:
        return name.endswith("-1") or await super().delete(resource, name, namespace)


async def test_a_steady_state_goes_on_without_a_vmi_that_is_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kube: Any = Stuck()
    kept: dict[str, Any] = {}

    primed = session_of(kube, kube.observer, vmi_spec.load_template("vmi", "r", 1, {}))
    nothing = AsyncMock(return_value=(set(), ""))

    async def result(*args: Any) -> Result:
        kept.update(args[-1], notes=args[2].notes)
        return Result("steady", 3, "r", [], [], {}, {})

    for name, value in {
        "primed_session": lambda *_: contextlib.nullcontext(primed),
        "own_namespaces": lambda *_: contextlib.nullcontext(),
        "check_nodes": nothing,
        "result_of": result,
        "STUCK": 0.1,
    }.items():
        monkeypatch.setattr(vmi_steady, name, value)
    monkeypatch.setattr(session, "simulated_nodes", nothing)
    spec = vmi_spec.Spec(timeout=0.5)
    before = time.monotonic()
    trace = (await vmi_steady.steady(kube, spec, 3, 1, 0.01, 0.8)).trace
    assert time.monotonic() - before < 4, "only the stuck ones are waited for, once each"
    assert kept["churn_cycles"] >= 4
    assert kept["stuck"] == 1
    assert kept["churn_throughput"] > 0
    assert trace[-2][1] in (3, 4), "all that are there run, but for the stuck one while it is there"
    text = "; ".join(kept["notes"])
    assert "1 objects did not run within 0.1 s and were not waited for: " in text
    assert "objects were not gone within 0.1 s" in text
