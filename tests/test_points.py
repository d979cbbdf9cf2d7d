"""Enumeration: properties that hold for any suite, and the rules that people trip over."""

import itertools
import re
from typing import Any

import orjson
import pytest
from hypothesis import given, strategies as st

from perfdag.benchmark import registry
from perfdag.plan import Plan, make_plan, order, read_plan
from perfdag.suite.document import BadDocument
from perfdag.suite.load import parse_suite
from perfdag.suite.model import Until
from perfdag.suite.points import enumerate_points

AXES = {"exit_code": st.integers(0, 255), "expected": st.integers(1, 50)}
axis_lists = st.fixed_dictionaries(
    {},
    optional={
        name: st.lists(values, min_size=1, max_size=6, unique=True) for name, values in AXES.items()
    },
)


def plan_of(entry: dict[str, Any] | list[dict[str, Any]], **keys: Any) -> Plan:
    entries = entry if isinstance(entry, list) else [entry]
    for each in entries:
        each.setdefault("benchmark", "command")
        each.setdefault("params", {"argv": ["ls"]})
    return make_plan(parse_suite(orjson.dumps({"name": "s", **keys, "entries": entries}).decode()))


def params_of(plan: Plan, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(point.params[name] for name in names) for point in plan.points]


@given(axis_lists)
def test_product_is_the_cross_product_and_nothing_else(axes: dict[str, list[int]]) -> None:
    plan = plan_of({"permutations": {"product": axes}})
    expected = set(itertools.product(*axes.values()))
    assert set(params_of(plan, *axes)) == expected
    assert len(plan.points) == len(expected)
    assert len({point.id for point in plan.points}) == len(plan.points)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=12))
def test_explicit_alone_yields_exactly_the_explicit_points(codes: list[int]) -> None:
    plan = plan_of({"permutations": {"explicit": [{"exit_code": code} for code in codes]}})
    assert sorted(params_of(plan, "exit_code")) == sorted({(code,) for code in codes})
    assert plan.merged == len(codes) - len(set(codes)), "equal points are merged and counted"


@pytest.mark.parametrize(
    ("axes", "exclude", "rest"),
    [
        ({"bs": ["4KiB", "128KiB", "1MiB"]}, {"bs": ["131072B", "1024KiB"]}, [4096]),
        ({"bs": ["4KiB", "128KiB"]}, {"bs": 4096}, [131072]),
        ({"bs": ["4KiB", "128KiB", "1MiB"]}, {"bs": [4096, "1024KiB"]}, [131072]),
        (
            {"bs": ["4KiB", "128KiB"], "size": ["64MiB", "1GiB"]},
            {"size": "1024MiB", "bs": "128KiB"},
            [4096, 4096, 131072],
        ),
        ({"bs": ["4KiB"], "runtime": [None, "1m", "90s"]}, {"runtime": 90}, [4096, 4096]),
        (
            {"bs": ["4KiB"], "volume.size": ["1GiB", "20GiB"]},
            {"volume.size": "20Gi"},
            [4096],
        ),
        (
            {"bs": ["4KiB"], "resources.memory": ["512Mi", "16Gi", "2Gi"]},
            {"resources.memory": ["0.5Gi", "2048Mi"]},
            [4096],
        ),
    ],
)
def test_exclude_reads_values_and_bounds_as_the_parameter_does(
    axes: dict[str, list[Any]], exclude: dict[str, Any], rest: list[int]
) -> None:
    plan = plan_of(
        {"benchmark": "fio", "params": {}, "permutations": {"product": axes, "exclude": [exclude]}}
    )
    assert sorted(size for (size,) in params_of(plan, "bs")) == rest


def test_a_condition_on_what_set_fixes_leaves_nothing_out_and_is_no_mistake() -> None:
    text = (
        "name: s\nentries:\n  - {benchmark: fio, permutations: {product: {bs: [4KiB, 1MiB], "
        "iodepth: [1, 8]}, exclude: [{bs: 1MiB}]}}\n"
    )
    plan = make_plan(parse_suite(text, settings=["fio.bs=1MiB"]))
    assert sorted(params_of(plan, "bs", "iodepth")) == [(1 << 20, 1), (1 << 20, 8)]


def test_each_round_has_an_order_of_its_own_so_that_drift_affects_all_points_alike() -> None:
    axes: dict[str, list[int]] = {"exit_code": list(range(9))}
    plan = plan_of({"permutations": {"product": axes}}, repetitions=4, warmup=1, seed=7)
    rounds = {tuple(index for index, _ in plan.order[at : at + 9]) for at in range(0, 45, 9)}
    assert len(rounds | {tuple(range(9))}) == 6


@given(axis_lists, st.integers(1, 5), st.integers(0, 3), st.integers(0, 10**6))
def test_the_order_holds_every_sample_once_round_by_round(
    axes: dict[str, list[int]], repetitions: int, warmup: int, seed: int
) -> None:
    plan = plan_of(
        {"permutations": {"product": axes}}, repetitions=repetitions, warmup=warmup, seed=seed
    )
    count = len(plan.points)
    rounds = [*range(-1, -warmup - 1, -1), *range(1, repetitions + 1)]
    assert [repetition for _, repetition in plan.order] == [
        each for each in rounds for _ in range(count)
    ]
    for start in range(0, len(plan.order), count):
        assert {index for index, _ in plan.order[start : start + count]} == set(range(count))
    assert order(plan.points, seed, warmup) == plan.order
    assert len({plan.key(position) for position in range(len(plan.order))}) == len(plan.order)


@given(axis_lists, st.integers(1, 4), st.sampled_from(["batch", "point", "pod"]), st.floats(1, 100))
def test_batches_hold_every_sample_once_and_one_shape(
    axes: dict[str, list[int]], repetitions: int, isolation: str, batch_time: float
) -> None:
    permutations = {"product": {**axes, "hosts.count": [1, 2]}}
    plan = plan_of(
        {"permutations": permutations},
        repetitions=repetitions,
        isolation=isolation,
        batch_time=batch_time,
    )
    held = [position for batch in plan.batches for position in batch.samples]
    assert sorted(held) == list(range(len(plan.order)))
    for batch in plan.batches:
        assert {plan.point_at(position).shape for position in batch.samples} == {batch.shape}
        if isolation == "batch":
            assert len(batch.samples) == 1 or batch.seconds <= batch_time
        elif isolation == "pod":
            assert len(batch.samples) == 1
    if isolation == "point":
        measured = [{plan.order[position][0] for position in each.samples} for each in plan.batches]
        assert sorted(measured, key=min) == [{index} for index in range(len(plan.points))]


@given(axis_lists)
def test_a_plan_survives_its_json(axes: dict[str, list[int]]) -> None:
    plan = plan_of(
        {"permutations": {"product": axes}, "until": {"relative_spread": 0.1, "max_repetitions": 8}}
    )
    assert read_plan(plan.dump()) == plan


def test_a_plan_of_another_version_is_said_to_be_one() -> None:
    raw = orjson.loads(plan_of({}).dump())
    del raw["batches"]
    with pytest.raises(
        ValueError,
        match=r"written by another perfdag \(.+\): .*; use that version, images included",
    ):
        read_plan(orjson.dumps(raw))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("run_id",), "../../etc"),
        (("run_id",), "20260101T000000Z-00000000\n"),
        (("suite",), "a/../b"),
        (("points", 0, "id"), "/etc/passwd"),
        (("options", "other"), "../x"),
        (("options", "rechecks"), ["20260101T000000Z-00000000", ".."]),
    ],
)
def test_a_plan_with_names_that_are_no_names_is_refused(
    place: tuple[str | int, ...], value: object
) -> None:
    raw = inner = orjson.loads(plan_of({}).dump())
    for part in place[:-1]:
        inner = inner[part]
    inner[place[-1]] = value
    where = ".".join(map(str, place))
    with pytest.raises(
        ValueError, match=rf"^{re.escape(where)}[.1]* '.*': (.*pattern|is not a suite name)"
    ):
        read_plan(orjson.dumps(raw))


def test_the_id_depends_on_benchmark_params_and_shape_only() -> None:
    first = plan_of({"name": "a"}, seed=1)
    second = plan_of({"name": "b", "repetitions": 7}, seed=2)
    other = plan_of({"network": {"host": True}})
    assert first.points[0].id == second.points[0].id
    assert first.points[0].id != other.points[0].id


def test_shapes_alternate_between_rounds() -> None:
    plan = plan_of({"permutations": {"product": {"hosts.count": [1, 2, 3]}}}, repetitions=4)
    shapes = [batch.shape for batch in plan.batches]
    assert len(shapes) == 12
    assert all(sorted(shapes[i : i + 3]) == [0, 1, 2] for i in range(0, 12, 3)), (
        "each block of a round has every shape once"
    )


@pytest.mark.parametrize(
    ("volume", "pods"), [("{size: 1GiB}", 4), ("{claim: data}", 1), ("{kind: emptyDir}", 1)]
)
def test_each_permutation_has_the_claim_that_its_batch_creates(volume: str, pods: int) -> None:
    plan = make_plan(
        parse_suite(
            "name: s\nrepetitions: 2\nentries:\n  - benchmark: fio\n"
            "    params: {size: 16MiB, runtime: 1s}\n"
            f"    volume: {volume}\n"
            "    permutations: {product: {rw: [read, randread]}}\n"
        )
    )
    points = [{plan.order[position][0] for position in batch.samples} for batch in plan.batches]
    assert len(points) == pods
    assert all(len(each) == (1 if pods > 1 else 2) for each in points)


def test_defaults_give_params_to_the_benchmarks_that_have_them() -> None:
    plan = make_plan(
        parse_suite(
            "name: s\ndefaults: {params: {exit_code: 3}, repetitions: 2}\nentries:\n"
            "  - {benchmark: command, params: {argv: [ls]}}\n"
        )
    )
    assert plan.points[0].params["exit_code"] == 3
    assert plan.points[0].repetitions == 2


def test_set_changes_a_parameter_an_axis_a_shape_key_and_keys_of_entry_and_suite() -> None:
    text = (
        "name: s\nentries:\n  - {benchmark: command, params: {argv: [ls]}, until: "
        "{relative_spread: 0.1, max_repetitions: 9}, permutations: "
        "{product: {exit_code: [1, 2]}}}\n"
    )
    settings = ["command.exit_code=5", "command.network.host=true", "command.argv=[id]"]
    settings += ["repetitions=4", "command.timeout=2m", "command.retries=0", "command.until=null"]
    plan = make_plan(parse_suite(text, settings=settings))
    (point,) = plan.points
    assert (point.params["exit_code"], point.params["argv"]) == (5, ["id"])
    assert (point.repetitions, point.timeout, point.retries, point.until) == (4, 120, 0, None)
    assert plan.shapes[0].network.host


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("nonsense", "write it as entry.param=value"),
        ("comand.exit_code=1", "no entry 'comand'; did you mean command? there are command"),
        ("command.exitcode=1", "command has no parameter 'exitcode'"),
        ("command.exit_code=x", "must be a whole number"),
        ("repetition=3", "did you mean repetitions?"),
        ("command.repetitions=0", "command.repetitions: must be at least 1, not 0"),
        ("command.network.mtuu=9", "command.network.mtuu: unknown key; did you mean mtu?"),
        ("command.network.mtu=9", "command.network.mtu: must be at least 576, not 9"),
        ("command.network.mtu=9000", "command.network.mtu: is set by a container of uid 0"),
        ("command.resources={foo: 3}", "command.resources.foo: no container can request 'foo'"),
        ("repetitions=0", "repetitions: must be at least 1, not 0"),
    ],
)
def test_a_bad_set_is_refused_as_such(setting: str, text: str) -> None:
    entry = (
        "{benchmark: command, params: {argv: [ls]}, permutations: {product: {exit_code: [0, 1]}}}"
    )
    with pytest.raises(BadDocument, match=text.replace("?", r"\?")) as error:
        make_plan(parse_suite(f"name: s\nentries:\n  - {entry}\n", settings=[setting]))
    assert {each.file for each in error.value.problems} == {"--set"}


def test_only_selects_by_entry_label_or_id() -> None:
    text = (
        "name: s\nentries:\n  - {benchmark: command, params: {argv: [ls]}, permutations: "
        "{product: {exit_code: [1, 2]}}}\n"
    )
    loaded = parse_suite(text)
    every = enumerate_points(loaded).points
    assert len(enumerate_points(loaded, ["comm*"]).points) == 2
    assert [p.label for p in enumerate_points(loaded, ["command/exit_code=2"]).points] == [
        "exit_code=2"
    ]
    assert enumerate_points(loaded, [every[0].id]).points == [every[0]]
    assert [p.label for p in enumerate_points(loaded, ["command/exit_code=2", "*=1"]).points] == [
        "exit_code=1",
        "exit_code=2",
    ]
    with pytest.raises(BadDocument, match="nothing: matches no point"):
        enumerate_points(loaded, ["comm*", "nothing"])


def test_an_entry_may_replace_a_default_and_null_keeps_it() -> None:
    text = (
        "name: s\nrepetitions: 9\n"
        "defaults:\n  repetitions: 2\n  timeout: 70s\n  retries: 5\n"
        "  until: {relative_spread: 0.1, max_repetitions: 8}\n"
        "  params: {env: {A: '1'}, rw: read}\n  network: {host: true}\n  shm: 1MiB\n"
        "entries:\n  - {benchmark: command, name: first, params: {argv: [ls], env: {B: "
        "'2'}}, network: {family: ipv6}, shm: null}\n"
        "  - {benchmark: command, name: second, params: {argv: [id]}, timeout: null, "
        "retries: 0, repetitions: null}\n"
    )
    plan = make_plan(parse_suite(text))
    assert [
        (p.timeout, p.retries, p.repetitions, p.until and p.until.max_repetitions)
        for p in plan.points
    ] == [(70, 5, 2, 8), (70, 0, 2, 8)]
    assert [p.params["env"] for p in plan.points] == [{"B": "2"}, {"A": "1"}]
    assert [(s.network.host, s.network.family, s.shm) for s in plan.shapes] == [
        (True, "ipv6", None),
        (True, "ipv4", 1 << 20),
    ]


@pytest.mark.parametrize("turned", [False, True])
def test_of_equal_points_the_stricter_settings_hold(turned: bool) -> None:
    entries: list[dict[str, Any]] = [
        {
            "name": "a",
            "repetitions": 2,
            "timeout": 90,
            "until": {"relative_spread": 0.1, "max_repetitions": 12},
        },
        {
            "name": "b",
            "repetitions": 4,
            "retries": 3,
            "until": {"relative_spread": 0.05, "max_repetitions": 8},
        },
        {"name": "c", "repetitions": 15},
    ]
    (point,) = plan_of(entries[::-1] if turned else entries).points
    assert (point.repetitions, point.timeout, point.retries) == (15, 90, 3)
    assert point.until == Until(relative_spread=0.05, max_repetitions=15)


def test_what_set_gives_a_key_of_an_entry_is_no_fault_of_its_file() -> None:
    text = "name: s\nentries:\n  - {benchmark: iperf, timeout: 20s, params: {duration: 5s}}\n"
    (point,) = make_plan(parse_suite(text)).points
    assert point.timeout == 20
    for changes, message in (
        (["iperf.timeout=soon"], "--set: iperf.timeout: not a duration"),
        (["timeout=soon", "iperf.timeout=null"], "--set: timeout: not a duration"),
    ):
        with pytest.raises(BadDocument, match=message):
            make_plan(parse_suite(text, settings=changes))


def test_set_prefers_a_parameter_to_a_key_of_the_entry() -> None:
    (point,) = make_plan(
        parse_suite(
            "name: s\nentries:\n  - {benchmark: vmi-burst}\n", settings=["vmi-burst.timeout=77s"]
        )
    ).points
    assert point.params["timeout"] == 77
    assert point.timeout != 77


@pytest.mark.parametrize(
    ("benchmark", "params"),
    [
        ("rdma-bandwidth", {}),
        ("rdma-latency", {}),
        ("imb", {"transport": "rdma"}),
        ("openfoam", {"transport": "rdma", "procs": 2, "nodes": 2}),
    ],
)
def test_privileges_of_a_suite_leave_a_benchmark_its_own(
    benchmark: str, params: dict[str, Any]
) -> None:
    entry = {"benchmark": benchmark, "params": params, "network": {"name": "default/net"}}
    jumbo = {**entry, "network": {"name": "default/net", "mtu": 9000}}

    def granted(entry: dict[str, Any], **keys: Any) -> list[str]:
        (shape,) = plan_of(entry, **keys).shapes
        return list(shape.privileges)

    assert granted(entry) == ["rdma"]
    assert (
        granted({**jumbo, "privileges": ["mtu"]})
        == granted({**jumbo, "privileges": ["rdma", "mtu"]})
        == ["mtu", "rdma"]
    )
    assert granted(jumbo, defaults={"privileges": ["mtu"]}) == ["mtu", "rdma"]
    assert granted({**entry, "privileges": []}) == [], (
        "what a node allows anyway need not be asked for"
    )
    iperf = {"benchmark": "iperf", "params": {}, "network": {"mtu": 9000}, "privileges": ["mtu"]}
    assert granted(iperf) == ["mtu"], "no other benchmark gets it"


def test_an_entry_and_its_defaults_may_each_have_a_part_of_what_belongs_together() -> None:
    plan = make_plan(
        parse_suite(
            "name: s\ndefaults: {privileges: [mtu], volume: {kind: hostPath}, node_selector: "
            "{example.com/disk-kind: nvme_1}}\n"
            "entries:\n  - {benchmark: command, params: {argv: [ls]}, network: {mtu: 9000, "
            "interface: bond0.100},"
            " volume: {path: /mnt}, resources: {cpu: 500m, memory: 1.5Gi, example.com/gpu: "
            "1, ephemeral-storage: 1e9}}\n"
        )
    )
    volume = plan.shapes[0].volume
    assert volume is not None
    assert (volume.kind, volume.path) == ("hostPath", "/mnt")


@pytest.mark.parametrize(
    ("benchmark", "settings", "label"),
    [
        ("fio", {"iodepth": "16", "bs": "4096", "rw": "randread"}, "random read, 4 KiB, depth 16"),
        ("fio", {"bs": "4097", "x": "true", "a": "1"}, "4097 B, a=1, x"),
        ("iperf", {"reverse": "true", "streams": "1"}, "1 stream, server sends"),
        ("iperf", {"duration": "0.5", "network.host": "false"}, "for 500 ms, pod network"),
        ("resnet50", {"wrapper": '["taskset","-c","0"]'}, "taskset -c 0"),
        ("of-another-package", {"mode": "x", "hosts.count": "2"}, "2 hosts, mode=x"),
    ],
)
def test_a_point_is_named_in_the_order_of_its_benchmark(
    benchmark: str, settings: dict[str, str], label: str
) -> None:
    assert registry.point_label(benchmark, settings) == label
    assert registry.point_label(benchmark, dict(reversed(settings.items()))) == label


def test_a_metric_has_the_label_of_its_benchmark() -> None:
    label = registry.metric_label
    assert label("fio", "iops", coords={"direction": "read"}) == "read IOPS"
    assert label("scale", "submission_to_scheduled", "p95") == "time to scheduled, p95"
    assert label("imb", "latency", "p99", {"message_bytes": 4096}) == "latency, p99, 4 KiB"
    assert label("of-another-package", "tail_latency") == "tail latency"
    assert label("of-another-package", "value") == ""


@pytest.mark.parametrize("name", registry.working())
def test_labels_and_short_forms_are_of_what_a_benchmark_has(name: str) -> None:
    benchmark = registry.get(name)
    labels = " ".join(metric.label for metric in benchmark.metrics)
    assert set(re.findall(r"{(\w+)}", labels)) <= set(benchmark.coords)
    assert set(benchmark.coords) <= benchmark.short_forms.keys()
    for metric in benchmark.metrics:
        assert "_" not in registry.metric_label(name, metric.name)
