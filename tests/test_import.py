"""`perfdag import kube-perftest` against what kube-perftest's own templates make of the same
resources.

golden/kube-perftest.json holds, for each benchmark of golden/kube-perftest.yaml, the measuring pods
that the templates render and the options of the tool; beside each option stands what it is here,
empty where perfdag has none.
"""

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdag.benchmark import registry
from perfdag.benchmark.contract import Gang
from perfdag.commands.main import main
from perfdag.hosts.local import LocalHost
from perfdag.plan import Plan, make_plan, place_hosts
from perfdag.shape import Shape
from perfdag.steps.fio import Target, job_file
from perfdag.steps.imb import openmpi_command
from perfdag.steps.iperf import iperf2_command
from perfdag.steps.mpi import openmpi_mpirun
from perfdag.steps.pods.plan import outputs
from perfdag.steps.torchbench import arguments
from perfdag.suite.load import load_suite, parse_suite
from tests.conftest import CommandLine
from tests.steps.test_plan_step import place

GOLDEN = Path(__file__).parent / "golden"
POINTS: dict[str, list[dict[str, Any]]] = json.loads((GOLDEN / "kube-perftest.json").read_text())
ENTRIES = [(entry, number) for entry in POINTS for number in range(len(POINTS[entry]))]


def options(benchmark: str, values: dict[str, Any], shape: Shape) -> str:
    """Return what the tool gets, as one line."""
    result = registry.get(benchmark)
    params: Any = result.Params.model_validate(values)
    hosts = [LocalHost(f"10.0.0.{number + 1}", f"n{number}") for number in range(shape.hosts.count)]
    gang: Any = Gang(hosts, shape, 60, "/scratch")
    measured: Any = result
    match benchmark:
        case "iperf":
            words = iperf2_command(params, "--client", "10.0.0.1", 5001)
        case "imb":
            shape = shape.model_copy(
                update={"network": shape.network.model_copy(update={"interface": "eth0"})}
            )
            words = openmpi_command(Gang(hosts, shape, 60, "/scratch"), "mpirun", params)
        case "openfoam":
            words = openmpi_mpirun(gang, "mpirun", params.procs, params.transport)
        case "fio":
            words = job_file(params, Target(gang.hosts[0], "/perfdag/volume", None, {})).split()
        case "torchbench":
            words = arguments(params)
        case _:
            words = measured.arguments(params, None)
    return f" {' '.join(words)} "


@pytest.fixture(scope="module")
def plan() -> Plan:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["import", "kube-perftest", str(GOLDEN / "kube-perftest.yaml")]) == 0
    return place_hosts(make_plan(parse_suite(printed.getvalue())))


@pytest.fixture(scope="module")
def shapes(plan: Plan) -> dict[int, dict[str, Any]]:
    """Return what Argo gets of each shape of the plan."""
    kinds = outputs(plan, place(plan.run_id))["kinds"]
    return {index: kind for (index, _), kind in zip(plan.kinds(), kinds, strict=True)}


def points_of(plan: Plan, entry: str) -> list[Any]:
    return [point for point in plan.points if point.entry == entry]


@pytest.mark.parametrize(("entry", "number"), ENTRIES)
def test_options_and_pods_are_those_of_the_original(
    plan: Plan, shapes: dict[int, dict[str, Any]], entry: str, number: int
) -> None:
    original, points = POINTS[entry][number], points_of(plan, entry)
    assert len(points) == len(POINTS[entry])
    point = points[number]
    shape, manifest = plan.shapes[point.shape], shapes[point.shape]
    line = options(point.benchmark, point.params, shape)
    assert [here for here in original["options"].values() if f" {here} " not in line and here] == []

    patch = manifest["lead"]
    network = {manifest["netkey"]: manifest["network"]} if "multus" in manifest["netkey"] else {}
    assert network == original["annotations"]
    assert shape.hosts.count == original["pods"]
    assert bool(patch.get("hostNetwork")) == original["hostNetwork"]
    commands = [
        " ".join(each["command"])
        for each in patch.get("initContainers", [])
        if each["name"] == "mtu"
    ]
    assert [each.replace("dev ", "") for each in commands] == original["mtu"]
    containers = patch.get("containers", [])
    measuring: dict[str, Any] = next((each for each in containers if each["name"] == "main"), {})
    assert measuring.get("resources", {}).get("limits", {}) == {
        name: str(value) for name, value in original["limits"].items()
    }


@pytest.mark.parametrize("entry", POINTS)
def test_pods_are_apart_and_no_other_benchmark_is_on_their_nodes(
    plan: Plan, shapes: dict[int, dict[str, Any]], entry: str
) -> None:
    for point in points_of(plan, entry):
        patch = shapes[point.shape]["lead"]
        terms = patch["affinity"]["podAntiAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        assert {term["topologyKey"] for term in terms} == {"kubernetes.io/hostname"}
        assert ("control-plane" in str(patch["affinity"].get("nodeAffinity"))) == (
            point.benchmark in ("imb", "openfoam", "fio", "torchbench")
        )
        others = [
            term["labelSelector"]["matchExpressions"]
            for term in terms
            if "namespaceSelector" in term
        ]
        assert [[each["operator"] for each in result] for result in others] == [
            ["Exists", "NotIn"]
        ] * 2
        assert sum("namespaceSelector" not in term for term in terms) == (
            plan.shapes[point.shape].hosts.count > 1
        )


def test_the_example_suite_has_the_same_points(plan: Plan) -> None:
    """suites/everything.yaml has perfdag's own defaults where they differ."""
    example = make_plan(load_suite(GOLDEN.parents[1] / "suites/everything.yaml"))
    entries = {point.entry for point in example.points if not point.entry.endswith("-here")}
    assert entries == POINTS.keys() - {"fio-spellings", "mpi-rdma"}
    for entry in entries:
        for here, original in zip(points_of(example, entry), points_of(plan, entry), strict=True):
            differ = {name for name in here.params if here.params[name] != original.params[name]}
            assert differ <= {"mpi", "rdma_cm"}, entry
            shapes = (example.shapes[here.shape], plan.shapes[original.shape])
            left, right = (Shape.model_validate(shape).network for shape in shapes)
            assert (left.name, left.default, left.mtu) == (right.name, right.default, right.mtu)
            assert bool(left.host) == bool(right.host)
    assert len(points_of(plan, "iperf-set")) == 2 * 7 + 1


def resource(spec: str, kind: str = "Fio", name: str = "a") -> str:
    return (
        f"apiVersion: perftest.stackhpc.com/v1alpha1\nkind: {kind}\nmetadata: {{name: {name}}}\n"
        f"spec: {spec}\n"
    )


Import = Callable[..., tuple[list[dict[str, Any]], str]]


@pytest.fixture
def imported(tmp_path: Path, cli: CommandLine) -> Import:
    """Import resources; return the entries of the suite, and what is said about them."""

    def run(*texts: str, code: int = 0) -> tuple[list[dict[str, Any]], str]:
        file = tmp_path / "original.yaml"
        file.write_text("---\n".join(texts))
        printed = cli(["import", "kube-perftest", str(file)], code)
        return yaml.safe_load(printed.out)["entries"], printed.err

    return run


def benchmark_set(kind: str, spec: str, permutations: str) -> str:
    template = f"{{apiVersion: perftest.stackhpc.com/v1alpha1, kind: {kind}, spec: {spec}}}"
    return resource(
        f"{{repetitions: 3, template: {template}, permutations: {permutations}}}", "BenchmarkSet"
    )


@pytest.mark.parametrize(
    ("field", "param", "value"),
    [
        ("bs: 32k", "bs", "32KiB"),
        ("bs: 4096", "bs", "4096"),
        ("direct: 0, bs: 1000", "bs", "1000"),
        ("size: 1T", "size", "1TiB"),
        ("size: 2Gb", "size", "2GiB"),
        ("runtime: 5", "runtime", "5s"),
        ("runtime: 2M", "runtime", "2m"),
        ("runtime: 500ms", "runtime", "500ms"),
        ("rw: 'rw,readwrite'", "rw", "rw"),
        ("numJobs: 4", "numjobs", 4),
        ("percentageRandom: 10", "percentage_random", 100),
        ("thread: true", "thread", True),
        ("mtu: 9000", "bs", "4MiB"),
    ],
)
def test_fios_spellings_and_defaults(imported: Import, field: str, param: str, value: Any) -> None:
    [entry], _ = imported(resource(f"{{{field}}}"))
    assert entry["params"][param] == value


def test_requests_limits_and_claims_stay_as_they_are(imported: Import) -> None:
    resources = (
        "requests: {cpu: 1, memory: 1Gi, nvidia.com/nic: 1}, limits: {cpu: 1000m, memory: 2Gi, "
        "nvidia.com/nic: 1}"
    )
    claim = (
        "{accessModes: [ReadWriteMany], storageClassName: fast, volumeMode: Filesystem, "
        "resources: {requests: {storage: 50Gi}}}"
    )
    [entry], _ = imported(resource(f"{{resources: {{{resources}}}, volumeClaimTemplate: {claim}}}"))
    parsed = Shape.model_validate({"resources": entry["resources"]}).resources
    assert parsed.amounts("requests") == {"cpu": 1, "memory": "1Gi", "nvidia.com/nic": 1}
    assert parsed.amounts("limits") == {"cpu": "1000m", "memory": "2Gi", "nvidia.com/nic": 1}
    assert entry["volume"] == {"claim_template": yaml.safe_load(claim)}


def test_lists_of_a_template_and_a_permutation_are_joined(imported: Import) -> None:
    text = benchmark_set(
        "RDMABandwidth",
        "{hostNetwork: true, extraArgs: [--tclass=96, -x, '3']}",
        "{explicit: [{extraArgs: [--ib-dev=mlx5_0]}, {extraArgs: [-d, mlx5_1]}]}",
    )
    [entry], notes = imported(text)
    assert entry["params"] == {
        **{"mode": "read", "iterations": 1000, "rdma_cm": True, "qps": 1},
        **{"gid_index": 3, "extra_args": ["--tclass=96"]},
    }
    assert entry["permutations"] == {"explicit": [{"device": "mlx5_0"}, {"device": "mlx5_1"}]}
    assert entry["repetitions"] == 3
    assert "interleaved" in notes


def test_what_cannot_be_measured_is_left_out_and_listed(imported: Import) -> None:
    text = benchmark_set("OpenFOAM", "{}", "{product: {numProcs: [2, 3], numNodes: [1, 2]}}")
    [entry], notes = imported(text, code=1)
    rows = [{"procs": 2, "nodes": 1}, {"procs": 2, "nodes": 2}, {"procs": 3, "nodes": 1}]
    assert entry["permutations"] == {"explicit": rows}
    assert "left out: a: numProcs=3 numNodes=2: procs (3) is not divisible by nodes (2)" in notes
    text = benchmark_set("Fio", "{}", "{product: {rw: [read, rread]}}")
    assert "left out: a: rw=rread: rw: unknown value 'rread'; did you" in imported(text, code=1)[1]


@pytest.mark.parametrize(
    ("kind", "spec", "note"),
    [
        ("Fio", "{image: other}", "image: a pod runs"),
        ("Fio", "{fioPort: 9000}", "fioPort: "),
        ("Fio", "{}", "no volumeClaimTemplate"),
        ("Fio", "{hostNetwork: true, mtu: 9000}", "mtu: with hostNetwork"),
        ("MPIPingPong", "{sshPort: 2200}", "sshPort: "),
        ("MPIPingPong", "{hostNetwork: true}", "privileged"),
        ("OpenFOAM", "{iterativeMethod: FOAM-GAMG-PCG.fixedNORM}", "GAMG"),
        ("OpenFOAM", "{numProcs: 2}", "shared memory"),
        ("IPerf", "{streams: 1, duration: 1, imagePullPolicy: Always}", "--pull-policy Always"),
    ],
)
def test_what_is_not_kept_is_listed(imported: Import, kind: str, spec: str, note: str) -> None:
    [_], notes = imported(resource(spec, kind))
    assert note in notes
    assert note not in imported(resource("{streams: 1, duration: 1}", "IPerf"))[1]


def test_a_name_stands_once(imported: Import) -> None:
    spec = "{streams: 1, duration: 1}"
    entries, _ = imported(*(resource(spec, "IPerf", name) for name in ("a.b", "a-b")))
    assert [entry["name"] for entry in entries] == ["a-b", "a-b-2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (resource("{}", "IPref"), "original.yaml:2: kind: kube-perftest has no kind 'IPref'"),
        (
            benchmark_set("Iperf", "{}", "{}"),
            "original.yaml:4: spec.template.kind: kube-perftest has no kind 'Iperf'",
        ),
        (resource("{bs: 1X}"), "nothing can be measured; a: bs: unknown unit 'X' in '1X'"),
        (resource("{numjobs: 1}"), "spec.numjobs: unknown key"),
        (resource("{streams: 1}", "IPerf"), "spec.duration: is required"),
        (resource("{}").replace("perftest.stackhpc.com", "example.com"), "apiVersion: "),
        ("[1]\n", "must be a mapping"),
        (resource("{iterativeMethod: PETSc-ICC-CG.fixedNORM}", "OpenFOAM"), "PETSc"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, cli: CommandLine, text: str, message: str) -> None:
    file = tmp_path / "original.yaml"
    file.write_text(text)
    printed = cli(["import", "kube-perftest", str(file)], 2)
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert message in printed.err


def test_another_format_or_file_is_named(cli: CommandLine) -> None:
    for words, message in (
        (
            ["kubeperf", "a.yaml"],
            "argument COMMAND: invalid choice: 'kubeperf' (choose from 'kube-perftest', "
            "'perfscale-load-generator', 'history', 'hyperfine', 'pytest-benchmark', 'asv', "
            "'google-benchmark')\n",
        ),
        (["kube-perftest", "absent.yaml"], "absent.yaml: no such file\n"),
    ):
        assert cli(["import", *words], 2).err.endswith(message)


def test_a_benchmark_that_is_left_out_ends_with_exit_code_1(imported: Import) -> None:
    whole = resource("{image: other, duration: 30, streams: 8}", "IPerf", "a")
    entries, notes = imported(
        whole, resource("{numProcs: 3, numNodes: 2}", "OpenFOAM", "b"), code=1
    )
    assert [entry["name"] for entry in entries] == ["a"]
    assert "left out: b: procs (3) is not divisible by nodes (2)" in notes
    assert "not kept: a: image: a pod runs perfdag's image" in notes
