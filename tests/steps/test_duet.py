"""Two variants side by side without a cluster: who measures when, what idle pods used, where the
pods have to be.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from perfdag.hosts.local import LocalHost
from perfdag.kube.pod_patch import ssh_port
from perfdag.plan.ab import Duet, on_cluster, prepare_duet, stored_duet
from perfdag.plan.plan import Plan
from perfdag.results.runs import load_plan
from perfdag.results.samples import SampleRecord, read_sample, sample_key, stored_samples
from perfdag.steps.measure import MeasuringLoop
from perfdag.steps.runner import budget, duet, idle
from perfdag.steps.runner.gather import Hosts
from perfdag.steps.runner.idle import IdleMeter
from perfdag.steps.runner.plan_outputs import outputs
from perfdag.steps.runner.progress import ProgressReporter
from perfdag.steps.site import Site
from perfdag.store.folder import FolderStore
from perfdag.suite.load import parse_suite
from perfdag.suite.yaml_document import BadDocument

from .test_plan_step import place

SUITE = """\
name: s
entries:
  - {benchmark: command, name: one, params: {argv: ['true'], expected: 0.1}}
"""
PAIR = SUITE.replace("name: one,", "name: one, hosts: {count: 2, placement: spread},")


def duet_of(
    text: str = SUITE, a: tuple[str, ...] = (), b: tuple[str, ...] = ("one.env.X=x",)
) -> Duet:
    return on_cluster(
        prepare_duet(
            parse_suite(text, settings=list(a)), parse_suite(text, settings=list(b)), ("a", "b"), 8
        )
    )


def test_cpu_time_of_both_cgroup_versions() -> None:
    assert idle.cpu_seconds("usage_usec 2500000\nuser_usec 1\n") == 2.5
    assert idle.cpu_seconds("1500000000\n") == 1.5
    assert idle.cpu_seconds("nr_periods 0\nnr_throttled 0\n") is None
    assert idle.cpu_seconds("") is None


def test_points_of_equal_shapes_share_their_pods_for_all_blocks() -> None:
    text = (
        SUITE + "  - {benchmark: command, name: two, hosts: {count: 2}, params: {argv: ['true']}}\n"
    )
    result = duet_of(text)
    assert [len(each.batches) for each in (result.a, result.b)] == [2, 2]
    for plan in (result.a, result.b):
        assert sorted(position for batch in plan.batches for position in batch.samples) == list(
            range(len(plan.order))
        )
        assert plan.options["cluster"] is True


@pytest.mark.parametrize(
    ("text", "b", "message"),
    [
        (SUITE, "one.hosts.count=2", "A has 1 hosts and B 2"),
        (
            SUITE.replace("name: one,", "name: one, volume: {access: ReadWriteMany},"),
            "one.env.X=x",
            "shared by both variants",
        ),
    ],
)
def test_what_cannot_stand_side_by_side_is_refused(text: str, b: str, message: str) -> None:
    with pytest.raises(BadDocument, match=message):
        duet_of(text, b=(b,))


def test_two_suites_may_differ_in_the_runtime_class() -> None:
    plain = """\
name: overhead
entries:
  - {benchmark: resnet50, name: one, image: loadgen, params: {system: stub, scenario: single-stream, min_queries: 100, min_duration: 1s}}
"""  # noqa: E501
    sandboxed = plain.replace("name: one,", "name: one, runtime_class: kata,")
    result = on_cluster(
        prepare_duet(parse_suite(plain), parse_suite(sandboxed), ("plain", "kata"), 8)
    )
    parameters = outputs(result.a, place(result.a.run_id), set(), result.b)
    a, b = (json.loads(json.dumps(each["patch"])) for each in parameters["shapes"])
    assert "runtimeClassName" not in a
    assert b["runtimeClassName"] == "kata"
    near = b["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert near[0]["topologyKey"] == "kubernetes.io/hostname"


def test_pods_of_both_variants_are_told_where_to_be() -> None:
    result = duet_of(PAIR, a=("one.network.host=true",), b=("one.network.name=bench/net",))
    parameters = outputs(result.a, place(result.a.run_id), set(), result.b)
    assert (parameters["batches"], parameters["duets"]) == ([], [0])
    assert parameters["shapeof"] == [{"s": "0", "t": "1", "n": "2", "turn": "gang"}]
    a, b = (json.loads(json.dumps(each["patch"])) for each in parameters["shapes"])
    assert a["hostNetwork"]
    assert "hostNetwork" not in b
    apart = [
        each["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0][
            "labelSelector"
        ]
        for each in (a, b)
    ]
    assert [each["matchExpressions"][0]["values"] for each in apart] == [["0", "1"], ["2", "3"]]
    assert {each["matchLabels"]["perfdag/run"] for each in apart} == {result.a.run_id}
    assert "podAffinity" not in a["affinity"]
    near = b["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    selected = {
        "perfdag/run": result.a.run_id,
        "perfdag/batch": "@BATCH@",
        "perfdag/attempt": "@ATTEMPT@",
        "perfdag/rank": "@TWIN@",
    }
    assert [each["labelSelector"]["matchLabels"] for each in near] == [selected]
    assert [each["network"] for each in parameters["shapes"]] == ["host", "bench/net"]


def test_two_variants_on_the_host_network_have_ports_of_their_own() -> None:
    result = duet_of(PAIR, a=("one.network.host=true",), b=("one.network.host=true", "one.env.X=x"))
    ports = [
        ssh_port(plan.shape_of(0), result.a.run_id, rank)
        for rank, plan in enumerate((result.a, result.b))
    ]
    assert ports[0] != ports[1]
    parameters = outputs(result.a, place(result.a.run_id), set(), result.b)
    assert [int(each["port"]) + rank for rank, each in enumerate(parameters["shapes"])] == ports


class Second(LocalHost):
    """The first pod of variant B, in this process: orders go through its pipes as ssh would
    write them.
    """

    def __init__(self, home: Path) -> None:
        super().__init__()
        self.home, self.orders = home, list[str]()

    def ask(self, order: str, timeout: float) -> str:
        self.orders.append(order)
        line = f'echo {order} >"$PERFDAG_PEER/orders" && cat "$PERFDAG_PEER/answers"'
        environment = {**os.environ, "PERFDAG_PEER": str(self.home)}
        return subprocess.run(
            ["sh", "-c", line],
            env=environment,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout.strip()


def _run(
    store: FolderStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    idle: list[float | None],
    text: str = SUITE,
) -> tuple[Duet, Second]:
    result = duet_of(text)
    for plan in (result.a, result.b):
        store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
    monkeypatch.setattr(duet, "site_of", lambda *_: Site(hosts_for=lambda _: [LocalHost()]))
    monkeypatch.setattr(
        duet,
        "loop_of_b",
        lambda *_: MeasuringLoop(
            result.b, store, Site(hosts_for=lambda _: [LocalHost()]), ProgressReporter(1)
        ),
    )
    monkeypatch.setattr(IdleMeter, "most", lambda _: idle.pop(0) if len(idle) > 1 else idle[0])
    second = Second(tmp_path / "peer")
    duet.follow(place(), result.b, 0, 0, second.home)
    mine, others = Hosts([LocalHost()], {}), Hosts([], {}, [second])  # type: ignore[list-item]
    duet.measure_rounds(place(), store, result, 0, mine, others)
    return result, second


def _parts(store: FolderStore, plan: Plan) -> list[SampleRecord]:
    names = sorted(
        name for name in stored_samples(store, plan.run_id) if not name.startswith("canary")
    )
    return [read_sample(store.get(sample_key(plan.run_id, name))) for name in names]


@pytest.mark.slow
def test_variants_take_turns_and_rows_say_what_idle_pods_used(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, second = _run(store, tmp_path, monkeypatch, [0.01])
    parts: dict[str, list[SampleRecord]] = {
        plan.variant or "": _parts(store, plan) for plan in (result.a, result.b)
    }
    assert {letter: len(each) for letter, each in parts.items()} == {"A": 16, "B": 16}
    assert [int(each) for each in second.orders] == list(range(1, 17))
    everything = sorted(
        (part.started_at, letter) for letter, each in parts.items() for part in each
    )
    assert "".join(letter for _, letter in everything) == "".join(result.blocks)
    assert {part.facts["idle_cpus"] for each in parts.values() for part in each} == {0.01}
    assert {part.status for each in parts.values() for part in each} == {"ok"}


@pytest.mark.slow
def test_a_round_beside_busy_pods_is_invalid(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, _ = _run(store, tmp_path, monkeypatch, [0.01, 0.8, None, 0.02])
    bad: list[Any] = [
        part.error
        for plan in (result.a, result.b)
        for part in _parts(store, plan)
        if part.status == "invalid"
    ]
    assert len(bad) == 2
    assert any("was 0.80" in each for each in bad)
    assert any("could not be read" in each for each in bad)


def test_a_spent_budget_ends_both_variants_between_two_rounds(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = iter([*[0.0] * 5, *[2000.0] * 50])
    monkeypatch.setattr(budget, "deadline", lambda *_: 1000.0)
    monkeypatch.setattr(
        duet, "time", type("Clock", (), {"monotonic": staticmethod(lambda: next(turns))})
    )
    monkeypatch.setattr(
        duet, "IdleMeter", type("Quiet", (), {"__init__": lambda *_: None, "most": lambda _: 0.01})
    )
    result, _ = _run(store, tmp_path, monkeypatch, [0.01], f"budget: 1000s\n{SUITE}")
    assert [len(_parts(store, plan)) for plan in (result.a, result.b)] in ([2, 3], [3, 2])
    for plan in (result.a, result.b):
        assert b"the budget of 1000 s was spent" in store.get(
            f"runs/{plan.run_id}/notes/budget-0.json"
        )


def test_a_round_of_the_second_variant_is_waited_for_as_long_as_its_samples_may_take() -> None:
    common = "{system: stub, scenario: single-stream, min_queries: 100, min_duration: 1s"
    result = duet_of(f"""\
name: s
entries:
  - {{benchmark: command, name: one, timeout: 60s, retries: 2, params: {{argv: ['true']}}}}
  - {{benchmark: resnet50-overhead, timeout: 100s, retries: 0, params: {common}, wrapper: [env], pairs: 6}}}}
  - {{benchmark: resnet50-interference, timeout: 100s, retries: 0, params: {common}, copies: 3}}}}
  - {{benchmark: rdma-latency, timeout: 100s, retries: 0, resources: {{rdma/hca: 1}}, params: {{mode: send, sizes: [2, 64, 4096]}}}}
  - {{benchmark: fio, timeout: 100s, retries: 0}}
  - {{benchmark: openfoam, timeout: 100s, retries: 0, params: {{size: XS}}}}
""")  # noqa: E501
    waits = {
        result.b.point_at(each).benchmark: duet.patience(result.b, [each]) - duet.SLACK
        for each in range(len(result.b.order))
    }
    own = {
        "command": 180,
        "resnet50-overhead": 1200,
        "resnet50-interference": 400,
        "rdma-latency": 300,
        "fio": 400,
        "openfoam": 300,
    }
    assert waits == own
    assert duet.patience(result.b, range(3)) > duet.patience(result.b, range(2))


def test_what_was_not_marked_or_cannot_be_read_is_measured_again(store: FolderStore) -> None:
    result = duet_of()
    for position, facts in ((0, {"idle_cpus": 0.0}), (1, {})):
        part = SampleRecord(result.a.points[0].id, 1, "ok", facts=facts)
        store.put(sample_key(result.a.run_id, result.a.key(position)), part.dump())
    store.put(sample_key(result.a.run_id, result.a.key(2)), b'{"schema"')
    idle.forget_unmarked(store, result.a, result.a.batches[0].samples)
    assert stored_samples(store, result.a.run_id) == {result.a.key(0)}


def test_the_order_is_of_the_run_unless_the_suite_gives_a_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of(run_id: str, text: str = SUITE) -> Duet:
        monkeypatch.setattr("perfdag.plan.ab.new_run_id", lambda: run_id)
        return duet_of(text)

    ids = [f"20261120T02000{i}Z-1a2b3c4d" for i in range(8)]
    orders = {tuple(of(each).blocks) for each in ids}
    assert len(orders) > 4
    assert {tuple(sorted(each)) for each in orders} == {("ABBA",) * 4 + ("BAAB",) * 4}
    assert len({of(each).a.seed for each in ids}) == 8
    assert of(ids[0]).blocks == of(ids[0]).blocks == stored_duet(of(ids[0]).b, of(ids[0]).a).blocks
    assert len({tuple(of(each, f"seed: 0\n{SUITE}").blocks) for each in ids}) == 1


def test_the_stored_plans_are_one_duel(store: FolderStore) -> None:
    result = duet_of()
    for plan in (result.a, result.b):
        store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
    again = duet.load_duet(store, load_plan(store, result.b.run_id))
    assert (again.a.run_id, again.b.run_id, again.blocks) == (
        result.a.run_id,
        result.b.run_id,
        result.blocks,
    )
