"""The manifests: golden files, own rules, Argo's linter, and a real API server; patches of pods.

PERFDAG_REGENERATE=1 writes the golden files anew (read the diff!); CI refuses the switch.
"""

import contextlib
import json
import os
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdag import Entry, Suite
from perfdag.benchmark.contract import Rights
from perfdag.kube.patch import PORT, Context, claim_spec, patch, ssh_port
from perfdag.plan import make_plan
from perfdag.shape import Shape
from perfdag.steps.pods.plan import MAX_KINDS
from perfdag.suite.document import BadDocument
from perfdag.suite.load import load_suite, parse_suite
from perfdag.workflows import dump, runs, templates
from perfdag.workflows.installation import Installation

from .pods import pod
from .rules import problems

GOLDEN = Path(__file__).parent / "golden"
QUICK = "name: quick\nentries:\n- benchmark: command\n  params: {argv: [ls]}\n"
LS = Entry(benchmark="command", params={"argv": ["ls"]})
NASTY = r"""
description: "quote ' \" back\\slash {{workflow.name}} {{=1+1}} $(HOME) $HOME $$ `id` # no comment"
"""
INSTALLATIONS = {
    "base": Installation(namespace="bench", store="s3://bench/results"),
    "claim": Installation(
        namespace="bench",
        store="claim://results",
        namespaced=True,
        pull_secrets=("registry",),
        parallel_batches=3,
        site=True,
        site_hosts=("bench.example", "it's: #1"),
    ),
    "cluster": Installation(
        namespace="bench",
        store="s3://bench/results",
        network_policy=False,
        pull_policy="Always",
    ),
}
CONTEXT = Context(
    "20260101T020000Z-0a1b2c3d", "uid", "registry.example/perfdag-{name}:1", "s3://bench/results"
)
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "pair": {"image": "iperf", "hosts": {"count": 2, "placement": "spread"}},
    "exclusive": {
        "hosts": {"count": 4, "exclusive": True},
        "zones": ["a", "b"],
        "avoid_nodes": ["node-role.kubernetes.io/control-plane"],
        "node_selector": {"pool": "bench"},
    },
    "wide": {"hosts": {"count": 64, "placement": "spread"}, "scheduler": "volcano"},
    "across-zones": {"hosts": {"count": 3, "pairs": "across-zones", "placement": "spread"}},
    "roles": {
        "hosts": {"count": 2, "roles": {"client": {"node_selector": {"pool": "edge"}}}},
        "node_selector": {"disk": "nvme"},
    },
    "packed": {
        "hosts": {"count": 2, "placement": "packed"},
        "tolerations": [{"key": "bench", "operator": "Exists"}],
    },
    "hostnetwork": {"network": {"host": True}, "hosts": {"count": 2}},
    "multus": {
        "network": {"name": "bench/rdma-net", "interface": "net1"},
        "resources": {"rdma/hca": 1},
        "privileges": ["rdma"],
    },
    "rdma": {"network": {"host": True}, "privileges": ["rdma"], "hosts": {"count": 2}},
    "mtu": {"network": {"mtu": 9000}, "privileges": ["mtu"]},
    "guaranteed": {
        "resources": {"cpu": 4, "memory": "8Gi"},
        "hugepages": {"hugepages-2Mi": "1Gi"},
        "shm": "2GiB",
    },
    "no-quota": {"resources": {"memory": "8Gi", "requests": {"cpu": 4}}},
    "limit-above": {"resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": 2}}},
    "claim-template": {
        "volume": {
            "claim_template": {
                "accessModes": ["ReadWriteOncePod"],
                "resources": {"requests": {"storage": "5Gi"}},
                "storageClassName": "fast",
                "volumeAttributesClassName": "gold",
                "selector": {"matchExpressions": [{"key": "rack", "operator": "Exists"}]},
                "dataSource": {"kind": "PersistentVolumeClaim", "name": "full"},
            }
        }
    },
    "existing-volume": {
        "volume": {"size": "1GiB", "claim_template": {"volumeName": "nvme", "storageClassName": ""}}
    },
    "rwo": {"volume": {"storage_class": "fast", "size": "5GiB"}},
    "rwx": {"volume": {"access": "ReadWriteMany", "size": "5GiB"}, "hosts": {"count": 2}},
    "block": {"volume": {"mode": "Block", "size": "1GiB"}},
    "block-of-root": {"volume": {"mode": "Block", "size": "1GiB"}, "privileges": ["block"]},
    "ipv6": {
        "network": {"family": "ipv6", "name": "bench/six", "default": True, "mtu": 1400},
        "hosts": {"count": 2},
        "privileges": ["mtu"],
    },
    "hostpath": {"volume": {"kind": "hostPath", "path": "/mnt/bench"}},
}


def golden(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("PERFDAG_REGENERATE"):
        assert not os.environ.get("CI"), "CI compares golden files, it does not write them"
        path.write_text(text)
    assert path.read_text() == text, (
        f"{path.name} differs; PERFDAG_REGENERATE=1 writes it, then read the diff"
    )


RULES = {
    "vmi-burst": (
        Rights(
            named=({"apiGroups": ["kubevirt.io"], "resources": ["*"], "verbs": ["create"]},),
            default=({"apiGroups": [""], "resources": ["endpoints"], "verbs": ["list"]},),
            cluster=({"nonResourceURLs": ["/metrics"], "verbs": ["get"]},),
        ),
        ("vmis", "others"),
    )
}


def documents() -> dict[str, list[dict[str, Any]]]:
    manifests = {name: templates.objects(each) for name, each in INSTALLATIONS.items()}
    quick = parse_suite(f"{QUICK}priority: 5\n")
    manifests["suite"] = [
        *runs.schedule(quick, "0 2 * * *", "0 14 * * 1-5", namespace="bench", max_age="27h"),
        runs.workflow_of_template(
            "bench",
            "quick",
            {"suite": "perfdag-suite-quick"},
            run_id="20260101T020000Z-0a1b2c3d",
            priority=5,
        ),
        runs.workflow(parse_suite(QUICK + NASTY), namespace="bench"),
    ]
    return manifests


@pytest.mark.parametrize("name", [*INSTALLATIONS, "suite"])
def test_golden(name: str) -> None:
    golden(name, dump(documents()[name]))


def _patches(shape: Shape) -> dict[str, Any]:
    """The patches of its lead, and of its peers where these differ."""
    lead, peer = (patch(shape, CONTEXT, rank) for rank in (0, 1))
    return {"lead": lead, **({} if lead == peer else {"peer": peer})}


def test_golden_patches() -> None:
    golden(
        "patches",
        dump(
            [
                {"shape": name, **_patches(Shape.model_validate(shape))}
                for name, shape in SHAPES.items()
            ]
        ),
    )


@pytest.mark.parametrize("name", [*INSTALLATIONS, "suite"])
def test_own_rules(name: str) -> None:
    assert [text for each in documents()[name] for text in problems(each)] == []


def test_a_suite_comes_unchanged_in_a_config_map_and_inside_a_workflow() -> None:
    suite = parse_suite(QUICK + NASTY)
    [text] = yaml.safe_load(dump([runs.config_map("bench", "x", suite)]))["data"].values()
    assert text == QUICK + NASTY
    assert runs.inline(parse_suite(QUICK)) == QUICK, "as it was written"
    inside = runs.inline(suite)
    assert yaml.safe_load(inside) == yaml.safe_load(text)
    assert not any(each in inside for each in ("{{", "$(", "$$")), "Argo or the kubelet replaces it"


def test_a_suite_that_no_object_can_hold_is_refused() -> None:
    suite = parse_suite(QUICK + f"description: {'x' * runs.MAX_BYTES}\n")
    for make in (lambda: runs.config_map("bench", "x", suite), lambda: runs.inline(suite)):
        with pytest.raises(BadDocument, match="or split it"):
            make()


def test_the_workflow_of_as_many_shapes_as_may_be_is_an_object_of_less_than_256_kib() -> None:
    template = next(
        each
        for each in documents()["cluster"]
        if each["kind"] == "WorkflowTemplate" and each["metadata"]["name"] == "perfdag"
    )
    holders = [
        each["name"]
        for each in template["spec"]["templates"]
        if any(
            parameter["name"] == "kinds"
            for parameter in (each.get("outputs") or {}).get("parameters") or []
        )
    ]
    assert holders == ["plan-pod"], (
        "each node that says them is another copy; the workflow's own is one more"
    )
    long = json.dumps([{"patch": {"name": 'a "quoted" word'}}] * 5000).replace(" ", "")
    while len(json.dumps(long)) > MAX_KINDS:
        long = long[:-100]
    status = {
        "outputs": long,
        "nodes": {"plan": {"outputs": long}},
        "stored": [template["spec"], template["spec"]],
    }
    assert len(json.dumps(status)) + 30_000 < runs.MAX_BYTES, (
        "room for the nodes of a hundred batches"
    )


def test_a_schedule_has_a_name_that_its_cron_workflow_may_have() -> None:
    message = "perfdag-quick-age: the CronWorkflow that checks the age of suite quick has this name"
    with pytest.raises(ValueError, match=message):
        runs.schedule(Suite(name="quick-age", entries=[LS]), "@daily", namespace="bench")
    _, age, _ = runs.schedule(Suite(name="q" * 40, entries=[LS]), "@daily", namespace="bench")
    assert len(age["metadata"]["name"]) == 52, "the longest name of a suite, as Argo has it"


@pytest.mark.skipif(shutil.which("argo") is None, reason="needs the argo command")
@pytest.mark.parametrize("name", ["base", "claim", "cluster", "suite"])
def test_argo_lint(name: str, tmp_path: Path) -> None:
    expected = ("WorkflowTemplate", "CronWorkflow", "Workflow")
    kinds = [
        each
        for each in [*documents()[name], *(documents()["base"] if name == "suite" else [])]
        if each["kind"] in expected
    ]
    file = tmp_path / "manifests.yaml"
    file.write_text(dump(kinds))
    result = subprocess.run(
        ["argo", "lint", "--offline", str(file)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def everything(namespace: str) -> list[dict[str, Any]]:
    """What an installation, a suite, its runs and their steps make, of every option and every
    shape.
    """
    options: dict[str, Any] = {
        "namespace": namespace,
        "store": "claim://results",
        "allow": {"vmi-burst": (namespace,)},
    }
    granted = {"vmi-burst": (RULES["vmi-burst"][0], (namespace,))}
    bodies = [
        each
        for namespaced in (False, True)
        for each in templates.objects(Installation(namespaced=namespaced, **options), granted)
    ]
    bodies += templates.objects(
        Installation(parallel_batches=3, pull_secrets=("registry",), site=True, **options),
        granted,
    )
    bodies += [
        {**each, "metadata": {**each["metadata"], "namespace": namespace}}
        for each in documents()["suite"]
        if each["kind"] != "Workflow"
    ]
    shipped = {
        f"{path.stem}-{number}": shape.data()
        for path in sorted((Path(__file__).parents[2] / "suites").glob("*.yaml"))
        for number, shape in enumerate(make_plan(load_suite(path)).shapes)
    }
    for name, shape in {**SHAPES, **shipped}.items():
        for rank in (0, 1):
            body = pod(shape, f"shape-{name}-{rank}", rank=rank, store="claim://results")
            bodies.append({**body, "metadata": {**body["metadata"], "namespace": namespace}})
        volume = Shape.model_validate(shape).volume
        if volume and volume.kind == "claim":
            meta = {"name": f"claim-{name}", "namespace": namespace}
            bodies.append(
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "metadata": meta,
                    "spec": claim_spec(volume),
                }
            )
    return bodies


@pytest.mark.cluster
def test_server_side_apply() -> None:
    """The API server takes every object as it is: nothing unknown, nothing pruned."""
    from perfdag.kube.client import Kube, KubeError, run_with_client

    namespace = f"perfdag-apply-{uuid.uuid4().hex[:6]}"
    as_is = {"WorkflowTemplate", "CronWorkflow"}

    async def check(client: Kube) -> set[str]:
        await client.create(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        )
        there = set()
        with contextlib.suppress(KubeError):  # a controller may have made it already
            await client.create(
                {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}},
                namespace,
            )
        try:
            for each in everything(namespace):
                try:
                    path = await client.path(
                        f"{each['apiVersion']}/{each['kind']}",
                        each["metadata"].get("namespace"),
                        each["metadata"]["name"],
                    )
                except KubeError:
                    assert each["apiVersion"].startswith("argoproj.io/"), each["kind"]
                    continue
                params = {
                    "fieldManager": "perfdag-test",
                    "dryRun": "All",
                    "fieldValidation": "Strict",
                    "force": "true",
                }
                stored = await client.request(
                    "PATCH",
                    path,
                    json=each,
                    params=params,
                    headers={"Content-Type": "application/apply-patch+yaml"},
                )
                there.add(each["kind"])
                if each["kind"] in as_is:
                    assert json.dumps(stored["spec"], sort_keys=True) == json.dumps(
                        each["spec"], sort_keys=True
                    ), each["kind"]
        finally:
            await client.delete("v1/Namespace", namespace)
        return there

    result = run_with_client(check)
    assert result >= {
        "Role",
        "ClusterRole",
        "NetworkPolicy",
        "PriorityClass",
        "Pod",
        "PersistentVolumeClaim",
        "ConfigMap",
    }
    if not result & as_is:
        pytest.skip("its Argo kinds are not on this cluster: the others were taken")
    assert result >= as_is


def test_host_ports_are_in_their_range_and_differ_by_run_and_rank() -> None:
    shape = Shape.model_validate({"network": {"host": True}})
    ports = {ssh_port(shape, f"run-{number}", 0) for number in range(200)}
    assert all(port >= 20000 and port + 2 * 4096 <= 30000 for port in ports)
    assert len(ports) > 150
    main = next(each for each in patch(shape, CONTEXT)["containers"] if each["name"] == "main")
    assert {main["ports"][0][name] for name in ("hostPort", "containerPort")} == {PORT}
