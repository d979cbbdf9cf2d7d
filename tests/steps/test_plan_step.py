"""The plan step without a cluster: how the suite arrives, what Argo gets, where hosts stand."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from perfdag.kube.patch import BATCH_NUMBER, ssh_port
from perfdag.plan import make_plan
from perfdag.results.samples import SampleRecord
from perfdag.steps.pods.context import PodContext, from_environment
from perfdag.steps.pods.plan import (
    ITEM_LENGTH,
    batch_objects,
    items,
    kinds_of,
    missing_batches,
    outputs,
    suite_text,
)
from perfdag.store.base import AddressError, FolderStore
from perfdag.suite.document import BadDocument
from perfdag.suite.load import parse_suite

NASTY = "quote ' \" back\\slash {{workflow.name}} {{=1+1}} $(HOME) `id`\nsecond: line\n- {{ item"


def place(run_id: str = "20260101T000000Z-00000000") -> PodContext:
    return PodContext(
        run_id,
        "uid",
        "r/perfdag-{name}:1",
        "s3://b/r",
        workflow="wf",
        trigger="manual",
        namespace="bench",
        node="node",
        addresses=("10.0.0.1",),
    )


def suite(points: int = 3, extra: str = "") -> str:
    variants = json.dumps([{"N": str(n)} for n in range(points)])
    head = (
        f"name: s\n{extra}entries:\n  - benchmark: command\n"
        f"    params: {{argv: ['true'], expected: 1}}\n"
    )
    return head + f"    permutations: {{product: {{env: {variants}}}}}\n"


def test_a_suite_inside_the_workflow_comes_before_that_of_a_config_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, mounted = tmp_path / "inside.yaml", tmp_path / "suite.yaml"
    monkeypatch.setattr("perfdag.steps.pods.plan.SUITE_FILES", (inside, mounted))
    mounted.write_text(NASTY)
    assert suite_text({}) == NASTY
    inside.write_text("name: inside")
    assert suite_text({}) == "name: inside"


def test_every_pod_of_a_workflow_finds_the_same_run_id() -> None:
    environment = {
        "PERFDAG_WORKFLOW_UID": "u-1",
        "PERFDAG_WORKFLOW_CREATED": "2026-01-01T02:00:00Z",
    }
    assert from_environment(environment).run_id == from_environment(environment).run_id
    assert from_environment(environment).run_id.startswith("20260101T020000Z-")
    assert from_environment(environment | {"PERFDAG_RUN": "mine"}).run_id == "mine"


def test_outputs_are_numbers_and_kinds() -> None:
    plan = make_plan(parse_suite(suite(4, "batch_time: 2600ms\n")), run_id=place().run_id)
    assert len(plan.batches) == 2
    parameters = outputs(plan, place())
    assert parameters["kindof"] == ["0"] * 4  # two more for rechecks
    assert parameters["kinds"] == [
        {
            "benchmark": "command",
            "entry": "command",
            "image": "r/perfdag-base:1",
            "pods": "1",
            "ports": ["2222"],
            "netkey": "perfdag/network",
            "network": "pod",
            "turn": "",
            "lead": {"priorityClassName": "perfdag"},
        }
    ]
    assert parameters["gated"] == "false"
    assert parameters["stall"] == f"{3 * 4 * 1.3 + 2 * 600 + 3600:.0f}s"
    assert len(json.dumps(parameters)) < 256 * 1024


def test_what_is_stored_is_not_measured_again_unless_it_cannot_be_read(store: FolderStore) -> None:
    plan = make_plan(parse_suite(suite(2)), run_id=place().run_id)
    whole, cut = (f"runs/{plan.run_id}/parts/{plan.key(position)}.json" for position in range(2))
    store.put(whole, SampleRecord("p", 1, "ok").dump())
    store.put(cut, store.get(whole)[:-20])
    assert [*missing_batches(store, [(0, plan, 0)])] == [0]
    assert store.list(f"runs/{plan.run_id}/parts") == [whole]
    store.put(cut, store.get(whole))
    assert missing_batches(store, [(0, plan, 0)]) == {}


@pytest.mark.parametrize(
    ("entries", "settings", "texts"),
    [
        pytest.param(
            "{benchmark: iperf, permutations: {product: {streams: [1, 2, 64]}}}",
            "repetitions: 5, rounds_per_batch: 1",
            [f"iperf, 1..64 streams pod network, round {n} of 5" for n in range(1, 6)],
            id="spans",
        ),
        pytest.param(
            "{benchmark: iperf, permutations: {product: {network.host: [true], streams: [1, 2]}}}",
            "repetitions: 1",
            ["iperf, 1..2 streams, host network, round 1 of 1"],
            id="network once",
        ),
        pytest.param(
            "{benchmark: iperf, network: {host: true}}",
            "repetitions: 2, warmup: 1, rounds_per_batch: 1",
            [
                f"iperf host network, {which}"
                for which in ("warm-up", "round 1 of 2", "round 2 of 2")
            ],
            id="warm-up",
        ),
        pytest.param(
            "{benchmark: fio, volume: {storage_class: csi}, "
            "permutations: {product: {rw: [randread, read], bs: [4KiB]}}}",
            "repetitions: 3",
            [
                f"fio, {rw}, 4 KiB on csi, round {n} of 3"
                for rw in ("random read", "sequential read")
                for n in (1, 2, 3)
            ],
            id="volume",
        ),
        pytest.param(
            "{benchmark: command, name: a, params: {argv: [x]}}, "
            "{benchmark: command, name: b, params: {argv: [y]}}",
            "repetitions: 2",
            ["a, round 1 of 2", "a, round 2 of 2", "b, round 1 of 2", "b, round 2 of 2"],
            id="entries",
        ),
        pytest.param(
            "{benchmark: iperf, permutations: {product: {streams: [1, 2]}}}",
            "isolation: point, repetitions: 3",
            [f"iperf, {n} pod network, round 1..3 of 3" for n in ("1 stream", "2 streams")],
            id="points",
        ),
        pytest.param(
            "{benchmark: command, params: {argv: [x]}, "
            "permutations: {product: {env: [{A: '{{{workflow.name}}" + 90 * "y" + "'}]}}}",
            "isolation: pod, repetitions: 1",
            ['command, env={"A":"{ { ...' + 12 * "y" + '"}, round 1 of 1'],
            id="with what Argo replaces",
        ),
        pytest.param(
            "{benchmark: fio, name: fio-csi-cinder-ssd, "
            "volume: {storage_class: csi-cinder, size: 5GiB}, "
            "permutations: {product: {hosts.count: [2, 4], bs: [1MiB, 4MiB], numjobs: [2, 4]}}}",
            "isolation: point, repetitions: 1",
            [
                f"fio-c...r-ssd, {bs} MiB, {jobs} jobs, {n} hosts on csi-cinder pod network"
                ", round 1 of 1"
                for n in (2, 4)
                for bs in (1, 4)
                for jobs in (2, 4)
            ],
            id="long",
        ),
        pytest.param(
            "{benchmark: command, params: {argv: [x]}, permutations: {product: "
            f"{{env.A: [{90 * 'y'}, {90 * 'y'}1, {90 * 'y'}2], env.B: [a, b]}}}}}}",
            "isolation: pod, repetitions: 1",
            [
                f"command, env.A=yy...yyyyyyy{end}, env.B={b}, round 1 of 1"
                for end in ("y", 1, 2)
                for b in "ab"
            ],
            id="that differ behind what is cut",
        ),
    ],
)
def test_the_item_of_a_batch_says_what_it_measures(
    entries: str, settings: str, texts: list[str]
) -> None:
    plan = make_plan(parse_suite(f"{{name: s, {settings}, entries: [{entries}]}}"))
    left = {number: (plan, number) for number in range(len(plan.batches))}
    fanned = items(left, {})
    assert [item["n"] for item in fanned] == [str(number) for number in range(len(texts))]
    assert sorted(item["benchmark"] for item in fanned) == sorted(texts)
    assert all(len(text) <= ITEM_LENGTH for text in texts)
    assert items(left, {0: ("skipped", "4 nodes are needed, 3 fit")})[0] == {
        "benchmark": f"{plan.points[0].entry}: 4 nodes are needed, 3 fit",
        "n": "",
    }


@pytest.mark.parametrize(
    ("network", "key"),
    [
        ("{name: bench/net}", "k8s.v1.cni.cncf.io/networks"),
        ("{name: bench/net, also: [bench/b, c]}", "k8s.v1.cni.cncf.io/networks"),
        ("{name: bench/net, default: true}", "v1.multus-cni.io/default-network"),
        ("{host: true}", "perfdag/network"),
        ("{}", "perfdag/network"),
    ],
)
def test_a_network_is_an_annotation_and_a_peers_port_is_what_its_lead_calls(
    network: str, key: str
) -> None:
    text = (
        f"name: s\nentries: [{{benchmark: command, hosts: {{count: 3}}, network: {network}, "
        f"params: {{argv: ['true']}}}}]\n"
    )
    plan = make_plan(parse_suite(text), run_id=place().run_id)
    [kind] = outputs(plan, place())["kinds"]
    assert kind["netkey"] == key
    values = {"{host: true}": "host", "{}": "pod"}
    values["{name: bench/net, also: [bench/b, c]}"] = "bench/net,bench/b,c"
    assert kind["network"] == values.get(network, "bench/net")
    ports = [ssh_port(plan.shape_of(0), plan.run_id, rank) for rank in range(3)]
    assert kind["ports"] == [str(port) for port in ports]


def test_gangs_of_several_hosts_take_turns_unless_volcano_places_them() -> None:
    entries = "".join(
        f"  - {{benchmark: command, name: {name}, {shape}, params: {{argv: ['true']}}}}\n"
        for name, shape in (
            ("one", "resources: {cpu: 1}"),
            ("two", "hosts: {count: 2}"),
            ("three", "hosts: {count: 3, exclusive: true}"),
            ("four", "hosts: {count: 4}, scheduler: volcano"),
        )
    )
    plan = make_plan(parse_suite(f"name: s\nentries:\n{entries}"), run_id=place().run_id)
    assert [(each["pods"], each["turn"]) for each in outputs(plan, place())["kinds"]] == [
        ("1", ""),
        ("2", "gang"),
        ("3", "gang"),
        ("4", ""),
    ]


def test_shapes_of_every_network_are_fanned_out_over_in_the_plans_order() -> None:
    """A fan of their own would measure the batches of Multus' networks after all others: drift
    between the shapes would be a difference.
    """
    text = "name: s\nrepetitions: 6\nentries:\n" + "".join(
        (
            f"  - {{benchmark: command, name: {name}, network: {network}, params: {{argv: "
            f"['true']}}}}\n"
        )
        for name, network in (
            ("plain", "{}"),
            ("fast", "{name: bench/fast}"),
            ("host", "{host: true}"),
        )
    )
    plan = make_plan(parse_suite(text), run_id="r")
    assert len(plan.batches) == 18
    parameters = outputs(plan, place())
    kinds = [parameters["kinds"][int(kind)] for kind in parameters["kindof"][:18]]
    networks = [kind["network"] for kind in kinds]
    blocks = [networks[first : first + 3] for first in range(0, 18, 3)]
    assert all(sorted(block) == ["bench/fast", "host", "pod"] for block in blocks), networks
    assert len(set(map(tuple, blocks))) > 1, "in seeded order"


def test_an_allowed_benchmark_has_pods_and_an_account_of_its_own() -> None:
    text = (
        "name: s\nentries:\n  - {benchmark: vmi-burst}\n  - {benchmark: vmi-steady}\n"
        "  - {benchmark: command, params: {argv: ['true']}}\n"
    )
    plan = make_plan(parse_suite(text), run_id="r")
    assert len({point.shape for point in plan.points}) == 3, "what shares the pods gets no rights"
    kinds = outputs(plan, replace(place(), allowed=("vmi-burst",)))["kinds"]
    leads = {kind["benchmark"]: kind["lead"] for kind in kinds}
    assert {name: lead.get("serviceAccountName") for name, lead in leads.items()} == {
        "vmi-burst": "perfdag-measure-vmi-burst",
        "vmi-steady": None,
        "command": None,
    }
    # what it makes is deleted before the pod is killed
    patience = {name: lead.get("terminationGracePeriodSeconds") for name, lead in leads.items()}
    assert patience == {"vmi-burst": 660, "vmi-steady": None, "command": None}
    assert from_environment({"PERFDAG_ALLOWED": "scale vmi-burst"}).allowed == (
        "scale",
        "vmi-burst",
    )


@pytest.mark.parametrize(("priority", "name"), [(0, "perfdag"), (1, "perfdag-preempting")])
def test_pods_have_the_priority_class_of_their_suite(priority: int, name: str) -> None:
    plan = make_plan(parse_suite(suite(1, f"priority: {priority}\n")), run_id="r")
    [kind] = outputs(plan, place())["kinds"]
    assert kind["lead"]["priorityClassName"] == name


SHAPES = json.dumps([{"node_selector": {"n": "x" * 60 + str(n)}} for n in range(400)])
MANY_SHAPES = (
    f"name: s\nentries:\n  - benchmark: command\n    params: {{argv: ['true']}}\n"
    f"    permutations: {{explicit: {SHAPES}}}\n"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(suite(1001, "isolation: pod\n"), "isolation", id="batches"),
        pytest.param(MANY_SHAPES, "distinct shapes", id="shapes"),
        pytest.param(
            suite(300, "isolation: pod\ndefaults: {hosts: {count: 60}}\n"),
            "300 batches with all their pods are 18,900 nodes of a workflow",
            id="pods",
        ),
    ],
)
def test_too_many_of_anything_are_refused_before_anything_is_made(text: str, message: str) -> None:
    with pytest.raises(BadDocument, match=message):
        kinds_of(make_plan(parse_suite(text)))


@pytest.mark.parametrize("store", ["", "./perfdag-results", "/var/results"])
def test_a_store_that_no_other_pod_finds_is_refused(store: str) -> None:
    with pytest.raises(AddressError, match="--store s3://bucket/prefix or claim://NAME"):
        replace(place(), store=store).open()


def test_the_claim_that_pods_share_is_the_workflows_own() -> None:
    """A run that is resumed would else measure on the claim of an earlier Workflow, which is
    deleted with that one.
    """
    plan = make_plan(
        parse_suite(
            "name: s\nentries: [{benchmark: command, volume: {access: ReadWriteMany}, "
            "params: {argv: ['true']}}]\n"
        )
    )
    names = []
    for context in (place(), replace(place(), workflow_uid="another")):
        (claim,) = batch_objects(plan.shape_of(0), context, 0)
        (kind,) = outputs(plan, context)["kinds"]
        names.append(claim["metadata"]["name"])
        mounted = next(each for each in kind["lead"]["volumes"] if each["name"] == "measured")
        assert mounted["persistentVolumeClaim"]["claimName"].replace(BATCH_NUMBER, "0") == names[-1]
    assert names == ["perfdag-uid-b0", "perfdag-another-b0"]
