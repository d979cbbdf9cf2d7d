"""Suites from the files of other tools: what their fields become, and what is not kept.

Of kube-perftest, the fields of its CRDs. Source: python/perftest of stackhpc/kube-perftest, at
commit 28e2db3: the models, and the templates of the pods. Of KubeVirt's perfscale-load-generator,
its workloads.
"""

import itertools
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    create_model,
)

from perfdag.commands.options import CommandError
from perfdag.identity import merge
from perfdag.problems import Form
from perfdag.suite.document import (
    BadDocument,
    Document,
    Where,
    choices,
    dump,
    parse_document,
    read_document,
    read_yaml,
    validated,
)
from perfdag.suite.load import parse_suite
from perfdag.suite.points import enumerate_points, nested
from perfdag.units import GoDuration, Quantity

Values = dict[str, Any]


@dataclass
class Imported:
    """The entries of a suite by name, what each does not keep, and what is left out of them."""

    entries: dict[str, Values] = field(default_factory=dict)
    lost: dict[str, dict[str, None]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def lose(self, text: str, entry: str = "") -> None:
        """Note what the suite does not keep of an entry, or of all."""
        self.lost.setdefault(text, {})[entry] = None

    def notes(self) -> list[str]:
        """Return a line for each text, after the entries that it is about."""
        return [": ".join(filter(None, (", ".join(of), text))) for text, of in self.lost.items()]


PERFTEST_OPTIONS = {
    **dict.fromkeys(("-d", "--ib-dev"), "device"),
    **dict.fromkeys(("-i", "--ib-port"), "port"),
    **dict.fromkeys(("-m", "--mtu"), "mtu"),
    **dict.fromkeys(("-x", "--gid-index"), "gid_index"),
    **dict.fromkeys(("-c", "--connection"), "connection"),
}
"""Options of perftest that are parameters here."""


def perftest_params(argv: list[str]) -> Values:
    """Return the parameters of perftest's options, with other options as `extra_args`.

    An option there is one word with its value.
    """
    params: Values = {}
    option = r"(--[\w-]+|-\w)(?:[= ]?([^\s-]\S*))?"
    for name, value in re.findall(option, " ".join(argv)):
        if value and name in PERFTEST_OPTIONS:
            params[PERFTEST_OPTIONS[name]] = int(value) if value.isdigit() else value
        else:
            equals = "=" if value and name.startswith("--") else ""
            params.setdefault("extra_args", []).append(f"{name}{equals}{value}")
    return params


Fields = dict[str, tuple[Any, Any, str]]
Lower = Annotated[str, AfterValidator(str.lower)]
# the letters of fio's sizes are powers of 1024 (32k, 2Gb), and a time may be 30 (s) or 10M (min)
FioSize = Annotated[
    str,
    BeforeValidator(
        lambda size: re.sub("(?i)([kmgtp])b?$", lambda m: f"{m[1].upper()}iB", str(size))
    ),
]
FioTime = Annotated[str, BeforeValidator(lambda v: re.sub(r"(\d)$", r"\1s", str(v).lower()))]
COMMON: Fields = {
    "hostNetwork": (bool, False, ""),
    "networkName": (str | None, None, ""),
    "resources": (dict[Literal["requests", "limits"], dict[str, Quantity]], {}, ""),
    "mtu": (int | None, None, ""),
    "image": (str | None, None, ""),
    "imagePullPolicy": (str, "IfNotPresent", ""),
}
"""Fields of every kind. Each pod is on a node that no other benchmark uses."""
MPI: Fields = {"sshPort": (int, 2222, ""), "transport": (Lower, "tcp", "transport")}
RDMA: Fields = {
    "mode": (str, "read", "mode"),
    "iterations": (int, 1000, "iterations"),
    "extraArgs": (list[str], [], ""),
}
METHODS = {
    "fixedITER": {"stop": "iterations", "solver": "PCG"},
    "fixedNORM": {"stop": "tolerance", "solver": "PCG"},
    "FOAM-DIC-PCG.fixedNORM": {"stop": "tolerance", "solver": "PCG"},
    "FOAM-GAMG-PCG.fixedNORM": {"stop": "tolerance", "solver": "GAMG"},
}
"""Methods of OpenFOAM that need no PETSc."""


class Kind(NamedTuple):
    """A kind of kube-perftest: its benchmark here, and its fields besides COMMON.

    A field has its type, its default (... of one that is required), and its parameter here, or an
    empty text.
    """

    benchmark: str
    fields: Fields
    more: Callable[[Values], Values] = lambda values: {}
    """Returns the parameters that are no field, from the values."""


KINDS = {
    "IPerf": Kind(
        "iperf",
        {
            "streams": (int, ..., "streams"),
            "duration": (Annotated[str, BeforeValidator("{}s".format)], ..., "duration"),
        },
        lambda values: {"implementation": "iperf2"},
    ),
    "MPIPingPong": Kind(
        "imb",
        MPI | {"maxlog": (int, 22, "max_log")},
        lambda values: {"benchmark": "PingPong", "mpi": "openmpi"},
    ),
    "OpenFOAM": Kind(
        "openfoam",
        {
            **MPI,
            "problemSize": (str, "S", "size"),
            "iterativeMethod": (str, "fixedNORM", ""),
            "numProcs": (int, 1, "procs"),
            "numNodes": (int, 1, "nodes"),
        },
        lambda values: METHODS.get(
            values["iterativeMethod"], {"solver": values["iterativeMethod"]}
        ),
    ),
    "RDMABandwidth": Kind(
        "rdma-bandwidth",
        RDMA | {"qps": (int, 1, "qps")},
        lambda values: {"rdma_cm": True, **perftest_params(values["extraArgs"])},
    ),
    "RDMALatency": Kind(
        "rdma-latency",
        RDMA,
        lambda values: {"rdma_cm": True, **perftest_params(values["extraArgs"])},
    ),
    "Fio": Kind(
        "fio",
        {
            "fioPort": (int, 8765, ""),
            "volumeClaimTemplate": (Values, {}, ""),
            "numWorkers": (int, 1, ""),
            # kube-perftest calls the pattern of reads and writes rw,readwrite
            "rw": (Annotated[str, AfterValidator(lambda rw: rw.split(",")[0])], "read", "rw"),
            "rwmixread": (int, 50, "rwmixread"),
            "percentageRandom": (int, 100, "percentage_random"),
            "bs": (FioSize, "4MiB", "bs"),
            "size": (FioSize, "10GiB", "size"),
            "iodepth": (int, 1, "iodepth"),
            "ioengine": (str, "libaio", "ioengine"),
            "direct": (bool, True, "direct"),
            "numJobs": (int, 1, "numjobs"),
            "nrfiles": (int, 1, "nrfiles"),
            "thread": (bool, False, "thread"),
            "runtime": (FioTime, "30s", "runtime"),
        },
        # fio uses percentage_random with random patterns only
        lambda values: {} if values["rw"].startswith("rand") else {"percentage_random": 100},
    ),
    "PyTorch": Kind(
        "torchbench",
        {
            "device": (str, "cpu", "device"),
            "model": (str, ..., "model"),
            "benchmarkType": (str, "eval", "test"),
            "inputBatchSize": (int, 64, "batch_size"),
        },
    ),
}
SPREAD = ("imb", "openfoam", "fio", "torchbench")
"""Benchmarks of kinds that kube-perftest spreads over the nodes, those of the control plane not."""
LOST: tuple[tuple[tuple[str, ...], Callable[[Values], Any], str], ...] = (
    (
        tuple(KINDS),
        lambda v: v["image"],
        "image: a pod runs perfdag's image, or one built on it",
    ),
    (
        tuple(KINDS),
        lambda v: v["imagePullPolicy"] != "IfNotPresent",
        "imagePullPolicy: `perfdag install --pull-policy {imagePullPolicy}` sets it for all runs",
    ),
    (
        tuple(KINDS)[:-1],
        lambda v: v["mtu"] and v["hostNetwork"],
        "mtu: with hostNetwork it would change the interface of the node",
    ),
    (
        ("MPIPingPong", "OpenFOAM"),
        lambda v: v["transport"] == "rdma",
        "transport RDMA: UCX chooses among rc, dc and ud, and is not held to rc_x",
    ),
    (
        ("MPIPingPong", "OpenFOAM"),
        lambda v: v["sshPort"] != 2222,
        "sshPort: perfdag chooses the port",
    ),
    (
        ("MPIPingPong",),
        lambda v: v["hostNetwork"],
        "privileged pods with hostNetwork: pods get IPC_LOCK with RDMA, and no more",
    ),
    (
        ("OpenFOAM",),
        lambda v: v["numProcs"] > v["numNodes"],
        "processes of one pod use shared memory, whatever the transport",
    ),
    (
        ("OpenFOAM",),
        lambda v: v["numProcs"] > v["numNodes"],
        "--map-by node: neighbouring ranks share a pod as far as possible",
    ),
    (
        ("OpenFOAM",),
        lambda v: "GAMG" in v["iterativeMethod"],
        "FOAM-GAMG-PCG: multigrid solves here, and does not precondition PCG",
    ),
    (("Fio",), lambda v: v["fioPort"] != 8765, "fioPort: perfdag chooses the port"),
    (
        ("Fio",),
        lambda v: v["numWorkers"] > 1,
        "with fewer nodes than workers no pod starts; the original shares nodes evenly",
    ),
    (
        ("Fio",),
        lambda v: not v["volumeClaimTemplate"],
        "no volumeClaimTemplate: fio uses a scratch folder; the original has no pod then",
    ),
)
"""What perfdag does not keep of kinds and when, each with what it does instead."""


API = Form("an apiVersion of perftest.stackhpc.com", r"^perftest\.stackhpc\.com/")


class Resource(BaseModel, extra="forbid"):
    """An object of kube-perftest."""

    api: Annotated[str, API] = Field(alias="apiVersion")
    kind: str
    metadata: Values = {}
    spec: Values = {}
    status: Any = None


class _Permutations(BaseModel, extra="forbid"):
    product: dict[str, list[Any]] = {}
    explicit: list[Values] = []

    def rows(self) -> tuple[list[Values], int]:
        """Return the fields that each permutation sets, those of the product first, and theirs."""
        axes = self.product
        product = [dict(zip(axes, row, strict=True)) for row in itertools.product(*axes.values())]
        if self.explicit and not axes:
            product = []
        return [*product, *self.explicit], len(product)


class BenchmarkSet(BaseModel, extra="forbid"):
    """The spec of a set; a single benchmark is a set without permutations."""

    template: Resource
    repetitions: int = 1
    permutations: _Permutations = _Permutations()


def read_kube_perftest(files: Sequence[str]) -> Imported:
    """Return the resources of the files as entries. Raises BadDocument."""
    imported = Imported()
    for document in itertools.chain.from_iterable(map(_documents, files)):
        resource = validated(document, document.data, Resource)
        at: Where = ()
        benchmarks = BenchmarkSet(template=resource)
        if resource.kind == "BenchmarkSet":
            at = ("spec", "template")
            benchmarks = validated(document, resource.spec, BenchmarkSet, ("spec",))
        name = benchmarks.template.kind
        if name not in KINDS:
            kinds = [*KINDS] if at else [*KINDS, "BenchmarkSet"]
            text = f"kube-perftest has no kind {name!r}{choices(name, kinds, 'it has')}"
            raise BadDocument([document.problem((*at, "kind"), "unknown-kind", text)])
        title = str(resource.metadata.get("name") or name.lower())
        _add(imported, document, benchmarks, (*at, "spec"), title)
    return imported


def _documents(file: str) -> Iterator[Document]:
    """Yield the documents of a file, each with the line numbers of the file."""
    line = 0
    for part in re.split(r"^---(?=\s|$)", read_yaml(file), flags=re.M):
        document = parse_document("\n" * line + part, file)
        line += part.count("\n")
        if document.data is not None:
            yield document


def _add(
    imported: Imported, document: Document, benchmarks: BenchmarkSet, at: Where, title: str
) -> None:
    """Add the entry of a set whose template has its fields at `at`, of what can be measured."""
    template = benchmarks.template
    kind = KINDS[template.kind]
    fields = COMMON | kind.fields
    types: Any = {field: (type_, default) for field, (type_, default, _) in fields.items()}
    model = create_model("Spec", __config__=ConfigDict(extra="forbid"), **types)
    rows, in_product = benchmarks.permutations.rows()
    values = [
        validated(document, _merge(template.spec, row), model, at).model_dump() for row in rows
    ]
    keys = [_keys(kind, of_row) for of_row in values]
    # the name of an entry holds no dot and stands once
    name = title.replace(".", "-")[:50].strip("-")
    while name in imported.entries:
        name += "-2"
    fits = not _refusal(_entry(keys[:in_product], keys[in_product:]))
    product: list[Values] = []
    explicit: list[Values] = []
    for number, (row, of_row) in enumerate(zip(rows, values, strict=True)):
        if not fits and (text := _refusal(_entry([keys[number]], []))):
            where = " ".join(f"{field}={value}" for field, value in row.items())
            imported.left_out.append(": ".join(filter(None, (name, where, text))))
            continue
        (product if number < in_product else explicit).append(keys[number])
        for kinds, applies, text in LOST:
            if template.kind in kinds and applies(of_row):
                imported.lose(text.format_map(of_row), name)
    if product or explicit:
        imported.entries[name] = {"name": name, **_entry(product, explicit)}
        if benchmarks.repetitions > 1:
            imported.entries[name]["repetitions"] = benchmarks.repetitions
            text = "repetitions: measured in interleaved rounds, not one after the other"
            imported.lose(text, name)


def _merge(below: Any, above: Any) -> Any:
    """Return the values of a template with those of a permutation, merged as kube-perftest does.

    Lists are joined, and a null changes nothing.
    """
    if isinstance(below, dict) and isinstance(above, dict):
        return below | {
            key: _merge(below[key], value) if key in below else value
            for key, value in above.items()
        }
    if isinstance(below, list) and isinstance(above, list):
        return below + above
    return below if above is None else above


def _keys(kind: Kind, values: Values) -> Values:
    """Return the keys of a point with dots: its benchmark, its shape and its parameters."""
    keys: Values = {"benchmark": kind.benchmark, "hosts.exclusive": True}
    if kind.benchmark in SPREAD:
        keys["avoid_nodes"] = ["node-role.kubernetes.io/control-plane"]
    if kind.benchmark != "torchbench":  # which has one pod, and no network fields in its template
        keys |= {"hosts.placement": "spread", "network.host": values["hostNetwork"]}
        if values["networkName"] and not values["hostNetwork"]:
            keys |= {"network.name": values["networkName"], "network.default": True}
        if values["mtu"] and not values["hostNetwork"]:
            keys |= {"network.mtu": values["mtu"], "privileges": ["mtu"]}
    if kind.benchmark == "fio":
        keys["hosts.count"] = values["numWorkers"]
        if values["volumeClaimTemplate"]:
            keys["volume"] = {"claim_template": values["volumeClaimTemplate"]}
    requests, limits = (values["resources"].get(part, {}) for part in ("requests", "limits"))
    # Kubernetes takes a limit without a request for both
    lower = {name: amount for name, amount in requests.items() if amount != limits.get(name)}
    if resources := limits | ({"requests": lower} if lower else {}):
        keys["resources"] = resources
    params = {param: values[field] for field, (_, _, param) in kind.fields.items() if param}
    return keys | {f"params.{name}": value for name, value in (params | kind.more(values)).items()}


def _refusal(entry: Values) -> str:
    """Return why perfdag cannot measure an entry, or an empty text."""
    try:
        enumerate_points(parse_suite(dump([{"name": "one", "entries": [entry]}])))
    except BadDocument as error:
        texts = (
            (re.sub(r".*](\.params)?\.?", "", each.path), each.text) for each in error.problems
        )
        return "; ".join(": ".join(filter(None, parts)) for parts in texts)
    return ""


def _entry(product: list[Values], explicit: list[Values]) -> Values:
    """Return the entry of points, without its name: what they share, and their permutations.

    The product has axes if its rows are all combinations of their values, else each row.
    """
    rows = [*product, *explicit]
    common = {
        key: value
        for key, value in rows[0].items()
        if all(key in row and row[key] == value for row in rows)
    }
    varied = [
        {key.removeprefix("params."): row[key] for key in row if key not in common} for row in rows
    ]
    if common.get("network.host") is False:  # so it is on a cluster
        del common["network.host"]
    entry = reduce(merge, (nested(key, value) for key, value in common.items()), Values())
    if len(rows) == 1:
        return entry
    axes: dict[str, list[Any]] = {}
    for row in varied[: len(product)]:
        for key, value in row.items():
            if value not in axes.setdefault(key, []):
                axes[key].append(value)
    entry["permutations"] = {"explicit": varied}
    same = all(row.keys() == axes.keys() for row in varied[: len(product)])
    if product and same and math.prod(map(len, axes.values())) == len(product):
        rest = varied[len(product) :]
        entry["permutations"] = {"product": axes} | ({"explicit": rest} if rest else {})
    return entry


LEAST_TIMEOUT, TIMEOUT = 30.0, 300.0
"""The load generator replaces timeouts up to the first by the second."""
ACTION = re.compile(r"\{\{-?\s*\.(\w+)\s*-?\}\}|\{\{.*")
IMAGE = {
    "containerPrefix": ("DOCKER_PREFIX", "registry:5000/kubevirt"),
    "containerTag": ("DOCKER_TAG", "devel"),
}
"""Input variables that may be empty -> environment variable and default, as that tool has them."""


class _Object(BaseModel):
    template: str = Field(alias="templateFile")
    variables: Values = Field({}, alias="inputVars")


class GeneratorWorkload(BaseModel, extra="allow"):
    """A workload of perfscale-load-generator."""

    name: str
    object: _Object
    type: Literal["burst", "steady-state", ""] = "burst"
    timeout: GoDuration = 300.0
    count: int = Field(ge=1)
    churn: int = Field(0, ge=0)
    pause: GoDuration = Field(20.0, alias="minChurnSleep")


def read_load_generator(files: Sequence[str]) -> Imported:
    """Return the workloads of the files as entries. Raises CommandError, BadDocument."""
    imported = Imported()
    imported.lose("the names of the objects: perfdag numbers them by run")
    for file in files:
        document = read_document(file)
        workload = validated(document, document.data, GeneratorWorkload)
        name = re.sub(r"[^a-z0-9-]+", "-", workload.name.lower())[:60].strip("-") or "workload"
        if name in imported.entries:
            raise CommandError(f"{file}: the name {workload.name} stands twice; rename one")
        template, namespace = _template(Path(file), workload, imported)
        # one creation after the other, without a primer and without gates
        timeout = workload.timeout if workload.timeout > LEAST_TIMEOUT else TIMEOUT
        params: Values = {"counts": [workload.count], "timeout": f"{timeout:g}s"}
        if workload.type == "steady-state":
            pace = {"pause": f"{workload.pause:g}s", "duration": f"{timeout:g}s"}
            params = {"count": workload.count, "churn": max(1, workload.churn), **pace}
        params |= {"template": template, "namespace": namespace, "parallel": 1}
        params |= {"primer": False, "api_gates": False}
        # A template's own ${X}, as of a shell, stands for itself.
        if variables := sorted(set(re.findall(r"\$\{(\w+)\}", template)) - {"name"}):
            params["variables"] = {variable: f"${{{variable}}}" for variable in variables}
        benchmark = "vmi-steady" if workload.type == "steady-state" else "vmi-burst"
        imported.entries[name] = {"name": name, "benchmark": benchmark, "params": params}
        if unknown := ", ".join(workload.model_extra or {}):
            imported.lose(f"{unknown}: no such key is known", name)
    return imported


def _template(path: Path, workload: GeneratorWorkload, imported: Imported) -> tuple[str, str]:
    """Return a workload's template as perfdag reads it, and its namespace. Raises CommandError."""
    source = path.parent / workload.object.template
    variables = {"replica": "${index}", "iteration": "${name}", **workload.object.variables}
    for name, (variable, default) in IMAGE.items():
        if variables.get(name) == "":
            variables[name] = os.environ.get(variable) or default
            imported.lose(f"{name} is empty: it is {variables[name]}; set {variable}")

    def fill(match: re.Match[str]) -> str:
        if match[1] in variables:
            return str(variables[match[1]])
        problem = f"no input variable `{match[1]}`; add it to inputVars of {path}"
        if not match[1]:
            problem = f"{match[0].strip()[:40]} is not read; only {{{{.variable}}}} is"
        raise CommandError(f"{source}: {problem}")

    body: Any = parse_document(ACTION.sub(fill, read_yaml(source)), str(source)).data
    if not isinstance(body, dict) or not isinstance(body.get("metadata"), dict):
        raise CommandError(f"{source}: no object of Kubernetes: it has no metadata")
    metadata = body["metadata"]
    namespace = variables.get("namespace", metadata.pop("namespace", None) or "default")
    metadata["name"] = "${name}"
    return yaml.safe_dump(body, sort_keys=False, width=100), str(namespace)


READERS: Mapping[str, tuple[Callable[[Sequence[str]], Imported], str]] = {
    "kube-perftest": (read_kube_perftest, "its benchmarks and BenchmarkSets"),
    "perfscale-load-generator": (read_load_generator, "its workloads of KubeVirt"),
}
"""What reads the files of a tool, and what of them becomes a suite."""
