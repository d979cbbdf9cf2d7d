"""Suites from the benchmarks of kube-perftest: the fields of its CRDs, and what each becomes.

Source: python/perftest of stackhpc/kube-perftest, at commit 28e2db3: the models, and the templates
of the pods.
"""

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
)

from perfdag.benchmark import registry
from perfdag.commands.options import CommandError
from perfdag.shape import Shape, merge, overlay
from perfdag.suite.document import (
    BadDocument,
    Document,
    Problem,
    Where,
    choices,
    explain,
    parse_document,
    read_text,
)
from perfdag.suite.load import parse_suite
from perfdag.suite.permutations import nested
from perfdag.suite.points import MAX_POINTS, enumerate_points
from perfdag.units import parse_quantity

Values = dict[str, Any]
M = TypeVar("M", bound=BaseModel)
GROUP = "perftest.stackhpc.com/"
SET = "BenchmarkSet"
SECONDS = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
BYTES = {
    letter + end: 1024.0**power
    for power, letter in enumerate(("", "k", "m", "g", "t", "p"))
    for end in ("", "b")
}
"""fio's own units, in capitals or not. Its k is 1024."""
PERFTEST_OPTIONS = {
    **dict.fromkeys(("d", "ib-dev"), "device"),
    **dict.fromkeys(("i", "ib-port"), "port"),
    **dict.fromkeys(("m", "mtu"), "mtu"),
    **dict.fromkeys(("x", "gid-index"), "gid_index"),
    **dict.fromkeys(("c", "connection"), "connection"),
}
"""Options of perftest that are parameters here."""


def _fio(units: dict[str, float], what: str, examples: str) -> BeforeValidator:
    """Return a validator that reads a value as fio does, in bytes or seconds."""

    def read(value: Any) -> float:
        match = re.fullmatch(r"(\d+)([a-z]*)", str(value).lower())
        if match is None or match[2] not in units:
            raise ValueError(f"{value!r} is not a {what} of fio, such as {examples}")
        return int(match[1]) * units[match[2]]

    return BeforeValidator(read)


def bytes_text(size: int) -> str:
    """Return a size as text, in the largest unit that needs no fraction."""
    for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB")):
        if size % 1024 ** (power + 1):
            return f"{size // 1024**power}{unit}"
    return f"{size >> 50}PiB"


def arguments(argv: list[str]) -> Values:
    """Return the parameters of perftest's options, with other options as `extra_args`.

    An option there is one word with its value.
    """
    joined: list[str] = []
    for word in argv:
        if joined and not word.startswith("-"):
            joined[-1] += f"={word}" if joined[-1].startswith("--") else word
        else:
            joined.append(word)
    params: Values = {}
    for word in joined:
        match = re.fullmatch(r"--([a-z_-]+)=(.+)|-([a-z])(.+)", word)
        name = PERFTEST_OPTIONS.get(match[1] or match[3]) if match else None
        if match and name:
            value = match[2] or match[4]
            params[name] = int(value) if value.isdigit() else value
        else:
            params.setdefault("extra_args", []).append(word)
    return params


Text = Annotated[str, Field(min_length=1)]
Positive = Annotated[int, Field(gt=0)]
Share = Annotated[int, Field(ge=0, le=100)]
Time = PlainSerializer(lambda seconds: f"{seconds:g}s")
FioTime = Annotated[float, _fio(SECONDS, "time", "30s, 10M (minutes), 500ms"), Field(gt=0), Time]
FioSize = Annotated[
    int, _fio(BYTES, "size", "32k, 1M, 10G"), Field(gt=0), PlainSerializer(bytes_text)
]
Transport = Annotated[Literal["TCP", "RDMA"], PlainSerializer(str.lower)]


def _here(name: str, default: Any = ...) -> Any:
    """Return a field that is parameter `name` of perfdag's benchmark."""
    return Field(default, serialization_alias=name)


def _apart(default: Any) -> Any:
    """Return a field that is no parameter of perfdag's benchmark."""
    return Field(default, exclude=True)


class Strict(BaseModel):
    """A part of a resource, with the fields of its CRD alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ContainerResources(Strict):
    """Resources of the containers of a benchmark."""

    requests: Values = {}
    limits: Values = {}

    def shape(self) -> Values:
        """Return the shape's resources. Kubernetes takes a limit without a request for both."""
        apart = {
            name: amount
            for name, amount in self.requests.items()
            if parse_quantity(amount) != parse_quantity(self.limits.get(name, 0))
        }
        both = {name: amount for name, amount in self.limits.items() if name not in apart}
        limits = {name: self.limits[name] for name in apart if name in self.limits}
        return (
            both | ({"requests": apart} if apart else {}) | ({"limits": limits} if limits else {})
        )


class Benchmark(Strict):
    """What all benchmarks share. Each pod is on a node that no other benchmark uses.

    The fields that a kind adds are the parameters of perfdag's benchmark, with `fixed`.
    """

    benchmark: ClassVar[str]
    fixed: ClassVar[Values] = {}

    hostNetwork: bool = _apart(False)
    networkName: Text | None = _apart(None)
    resources: ContainerResources = _apart(ContainerResources())
    mtu: Positive | None = _apart(None)
    image: Text | None = _apart(None)
    imagePullPolicy: Literal["Always", "IfNotPresent", "Never"] = _apart("IfNotPresent")

    def params(self) -> Values:
        """Return the parameters of perfdag's benchmark. Raises ValueError."""
        return self.model_dump(by_alias=True) | self.fixed

    def shape(self) -> Values:
        """Return the keys of the shape, with dots."""
        keys: Values = {"hosts.exclusive": True}
        if not isinstance(self, PyTorch):  # which measures one pod
            keys |= {"hosts.placement": "spread", "network.host": self.hostNetwork}
            if self.networkName and not self.hostNetwork:
                keys |= {"network.name": self.networkName, "network.default": True}
            if self.mtu and not self.hostNetwork:
                keys |= {"network.mtu": self.mtu, "privileges": ["mtu"]}
        if resources := self.resources.shape():
            keys["resources"] = resources
        return keys


class IPerf(Benchmark):
    """Throughput with iperf."""

    benchmark: ClassVar[str] = "iperf"
    streams: Positive
    duration: Annotated[Positive, Time]


class _Mpi(Benchmark):
    sshPort: Positive = _apart(2222)
    transport: Transport = "TCP"


class MPIPingPong(_Mpi):
    """PingPong of IMB-MPI1 with Open MPI."""

    benchmark: ClassVar[str] = "imb"
    fixed: ClassVar[Values] = {"benchmark": "PingPong", "mpi": "openmpi"}
    maxlog: Positive = _here("max_log", 22)


class OpenFOAM(_Mpi):
    """The lid-driven cavity of OpenFOAM's committee for HPC."""

    benchmark: ClassVar[str] = "openfoam"
    problemSize: Literal["S", "M", "XL", "XXL"] = _here("size", "S")
    iterativeMethod: Literal[
        "fixedITER",
        "fixedNORM",
        "FOAM-DIC-PCG.fixedNORM",
        "FOAM-GAMG-PCG.fixedNORM",
        "PETSc-AMG-CG.fixedNORM",
        "PETSc-AMG-CG.fixedNORM.caching",
        "PETSc-ICC-CG.fixedNORM",
    ] = _apart("fixedNORM")
    numProcs: Positive = _here("procs", 1)
    numNodes: Positive = _here("nodes", 1)

    def params(self) -> Values:
        if self.iterativeMethod.startswith("PETSc"):
            raise ValueError(f"{self.iterativeMethod} needs an OpenFOAM built with PETSc")
        return super().params() | {
            "stop": "iterations" if self.iterativeMethod == "fixedITER" else "tolerance",
            "solver": "GAMG" if "GAMG" in self.iterativeMethod else "PCG",
        }


class _Rdma(Benchmark):
    fixed: ClassVar[Values] = {"rdma_cm": True}
    mode: Literal["read", "write"] = "read"
    iterations: Annotated[int, Field(ge=5)] = 1000
    extraArgs: list[Text] = _apart([])

    def params(self) -> Values:
        return super().params() | arguments(self.extraArgs)


class RDMABandwidth(_Rdma):
    """Bandwidth with perftest."""

    benchmark: ClassVar[str] = "rdma-bandwidth"
    qps: Positive = 1


class RDMALatency(_Rdma):
    """Latency with perftest."""

    benchmark: ClassVar[str] = "rdma-latency"


class Fio(Benchmark):
    """fio on a volume of each worker."""

    benchmark: ClassVar[str] = "fio"
    fioPort: Annotated[int, Field(ge=1024)] = _apart(8765)
    volumeClaimTemplate: Values = _apart({})
    numWorkers: Positive = _apart(1)
    rw: Literal["read", "write", "randread", "randwrite", "rw,readwrite", "randrw"] = "read"
    rwmixread: Share = 50
    percentageRandom: Share = _here("percentage_random", 100)
    bs: FioSize = 4 << 20
    size: FioSize = 10 << 30
    iodepth: Positive = 1
    ioengine: Literal["libaio"] = "libaio"
    direct: Annotated[Literal[0, 1], PlainSerializer(bool)] = 1
    numJobs: Positive = _here("numjobs", 1)
    nrfiles: Positive = 1
    thread: bool = False
    runtime: FioTime = 30.0

    def params(self) -> Values:
        params = super().params() | {"rw": self.rw.partition(",")[0]}
        if not self.rw.startswith("rand"):  # fio uses percentage_random with random patterns only
            params["percentage_random"] = 100
        return params

    def shape(self) -> Values:
        keys = super().shape() | {"hosts.count": self.numWorkers}
        if self.volumeClaimTemplate:
            keys["volume"] = {"claim_template": self.volumeClaimTemplate}
        return keys


class PyTorch(Benchmark):
    """One model of pytorch/benchmark. Its template has no network fields."""

    benchmark: ClassVar[str] = "torchbench"
    device: Literal["cpu", "cuda"] = "cpu"
    model: Literal["alexnet", "resnet50", "llama"]
    benchmarkType: Literal["train", "eval"] = _here("test", "eval")
    inputBatchSize: Annotated[int, Field(ge=2, multiple_of=2)] = _here("batch_size", 64)


KINDS: dict[str, type[Benchmark]] = {
    kind.__name__: kind
    for kind in (IPerf, MPIPingPong, OpenFOAM, RDMABandwidth, RDMALatency, Fio, PyTorch)
}
LOST: tuple[tuple[type[Benchmark], Callable[[Any], Any], str], ...] = (
    (Benchmark, lambda b: b.image, "image: a pod runs perfdag's image, or one built on it"),
    (
        Benchmark,
        lambda b: b.imagePullPolicy != "IfNotPresent",
        "imagePullPolicy: `perfdag install --pull-policy {0.imagePullPolicy}` sets it for all runs",
    ),
    (
        Benchmark,
        lambda b: b.mtu and b.hostNetwork and not isinstance(b, PyTorch),
        "mtu: with hostNetwork it would change the interface of the node",
    ),
    (
        Benchmark,
        lambda b: not isinstance(b, IPerf | _Rdma),
        "nodes of the control plane are not left out; a taint does that",
    ),
    (IPerf, bool, "iperf 2: iperf3 measures instead; do not compare their figures"),
    (
        _Mpi,
        lambda b: b.transport == "RDMA",
        "transport RDMA: UCX chooses among rc, dc and ud, and is not held to rc_x",
    ),
    (_Mpi, lambda b: b.sshPort != 2222, "sshPort: perfdag chooses the port"),
    (
        MPIPingPong,
        lambda b: b.hostNetwork,
        "privileged pods with hostNetwork: pods get IPC_LOCK with RDMA, and no more",
    ),
    (
        OpenFOAM,
        lambda b: b.numProcs > b.numNodes,
        "processes of one pod use shared memory, whatever the transport",
    ),
    (
        OpenFOAM,
        lambda b: b.numProcs > b.numNodes,
        "--map-by node: neighbouring ranks share a pod as far as possible",
    ),
    (
        OpenFOAM,
        lambda b: "GAMG" in b.iterativeMethod,
        "FOAM-GAMG-PCG: multigrid solves here, and does not precondition PCG",
    ),
    (Fio, lambda b: b.fioPort != 8765, "fioPort: perfdag chooses the port"),
    (
        Fio,
        lambda b: b.numWorkers > 1,
        "with fewer nodes than workers no pod starts; the original shares nodes evenly",
    ),
    (
        Fio,
        lambda b: not b.volumeClaimTemplate,
        "no volumeClaimTemplate: fio uses a scratch folder; the original has no pod then",
    ),
)
"""What perfdag does not keep of a kind and when, each with what it does instead."""


class _Permutations(Strict):
    product: dict[str, list[Any]] = {}
    explicit: list[Values] = []


class _Resource(Strict):
    apiVersion: Annotated[str, Field(pattern=f"^{re.escape(GROUP)}")]
    kind: str
    metadata: Values = {}
    spec: Values = {}
    status: Any = None


class _Set(Strict):
    template: _Resource
    repetitions: Positive = 1
    permutations: _Permutations = _Permutations()


@dataclass(frozen=True)
class Resource:
    """The benchmarks of a resource: one, or those of a set, each with its permutation."""

    name: str
    repetitions: int
    product: list[tuple[Values, Benchmark]]
    """Those of the product of a set, or the one benchmark."""
    explicit: list[tuple[Values, Benchmark]]


def read(files: list[str]) -> list[Resource]:
    """Return the resources of the files. Raises BadDocument with all mistakes."""
    problems: list[Problem] = []
    read = [_resource(document, problems) for file in files for document in _documents(file)]
    if problems:
        raise BadDocument(problems)
    return [resource for resource in read if resource]


def _documents(file: str) -> Iterator[Document]:
    """Yield the documents of a file, each with the line numbers of the file."""
    line = 0
    for part in re.split(r"^---(?=\s|$)", read_text(file), flags=re.M):
        document = parse_document("\n" * line + part, file)
        line += part.count("\n")
        if document.data is not None:
            yield document


def _resource(document: Document, problems: list[Problem]) -> Resource | None:
    """Return the resource of a document, or None and its mistakes in `problems`."""
    resource = _validated(document, document.data, _Resource, problems)
    if resource is None:
        return None
    own: Where = ()
    whole: _Set | None = _Set(template=resource)
    if resource.kind == SET:
        own = ("spec", "template")
        whole = _validated(document, resource.spec, _Set, problems, ("spec",))
    if whole is None:
        return None
    template, axes = whole.template, whole.permutations.product
    if template.kind not in KINDS:
        text = f"kube-perftest has no kind {template.kind!r}"
        text += choices(template.kind, [*KINDS, *[SET] * (not own)], "it has")
        problems.append(document.problem((*own, "kind"), text))
        return None
    if math.prod(map(len, axes.values())) > MAX_POINTS:
        text = f"more than {MAX_POINTS:,} permutations"
        problems.append(document.problem(("spec", "permutations", "product"), text))
        return None

    def benchmarks(part: str, rows: list[Values]) -> list[tuple[Values, Benchmark]]:
        kind, found = KINDS[template.kind], []
        for row in rows:
            places: dict[str, Where] = dict.fromkeys(row, ("spec", "permutations", part))
            spec = _merge(template.spec, row)
            if benchmark := _validated(document, spec, kind, problems, (*own, "spec"), places):
                found.append((row, benchmark))
        return found

    explicit = whole.permutations.explicit
    product = [dict(zip(axes, row, strict=True)) for row in itertools.product(*axes.values())]
    return Resource(
        str(resource.metadata.get("name") or template.kind.lower()),
        whole.repetitions,
        benchmarks("product", product if axes or not explicit else []),
        benchmarks("explicit", explicit),
    )


def _validated(
    document: Document,
    data: Any,
    model: type[M],
    problems: list[Problem],
    prefix: Where = (),
    prefixes: dict[str, Where] | None = None,
) -> M | None:
    """Return the model, or None and the mistakes in `problems`.

    The data stands at `prefix` of the document, except for the keys of `prefixes`.
    """
    try:
        return model.model_validate(data)
    except ValidationError as errors:
        for error in errors.errors():
            first = str(error["loc"][0]) if error["loc"] else ""
            problems.append(explain(document, (prefixes or {}).get(first, prefix), error, model))
        return None


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


def import_suite(files: list[str]) -> tuple[str, list[str], list[str]]:
    """Return the suite of these files as YAML, what it does not keep, and what it leaves out.

    Raises BadDocument, or CommandError if nothing can be measured.
    """
    lost: dict[str, list[str]] = {}
    left_out: list[str] = []
    entries: dict[str, Values] = {}
    for resource in read(files):
        name = _name(resource, entries)
        notes: list[str] = []
        refused: list[str] = []
        entry = _entry(resource, notes, refused)
        left_out += [f"{name}: {text}" for text in refused]
        for note in dict.fromkeys(notes):
            lost.setdefault(note, []).append(name)
        if entry is not None:
            entries[name] = {"name": name, **entry}
    notes = [f"{', '.join(names)}: {text}" for text, names in lost.items()]
    if not entries:
        raise CommandError(
            f"{', '.join(files)}: nothing can be measured; {'; '.join([*left_out, *notes][:3])}"
        )
    name = next(iter(entries)) if len(entries) == 1 else "kube-perftest"
    suite = {
        "name": re.sub(r"[^a-z0-9]+", "-", name.lower())[:40].strip("-"),
        "description": f"Imported from kube-perftest: {', '.join(Path(f).name for f in files)}.",
        "entries": list(entries.values()),
    }
    # Through JSON, since YAML writes an object that stands twice as an alias.
    plain = json.loads(json.dumps(suite))
    text = yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, width=100)
    if merged := enumerate_points(parse_suite(text)).merged:
        notes.append(f"{merged} equal benchmarks are measured once; raise `repetitions`")
    return text, notes, left_out


def _name(resource: Resource, names: Iterable[str]) -> str:
    """Return the name of the entry, which may hold no dot and stands once."""
    name = resource.name.replace(".", "-")[:60].strip("-")
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return next(free for free in itertools.chain([name], numbered) if free not in names)


def _entry(resource: Resource, notes: list[str], left_out: list[str]) -> Values | None:
    """Return the entry of a resource without its name, or None. Add what is lost to the lists."""
    product, explicit = (
        [
            keys
            for row, benchmark in part
            if (keys := _point(row, benchmark, notes, left_out)) is not None
        ]
        for part in (resource.product, resource.explicit)
    )
    rows = [*product, *explicit]
    if not rows:
        return None
    common = {
        key: value
        for key, value in rows[0].items()
        if all(key in row and row[key] == value for row in rows)
    }
    if common.get("network.host") is False:  # so it is on a cluster
        rows = [{key: row[key] for key in row if key != "network.host"} for row in rows]
        del common["network.host"]
    entry = _nested({key: common[key] for key in common if not key.startswith("params.")})
    entry |= _nested({key: common[key] for key in common if key.startswith("params.")})
    if resource.repetitions > 1:
        entry["repetitions"] = resource.repetitions
        notes.append("repetitions: measured in interleaved rounds, not one after the other")
    varied = [
        {key.removeprefix("params."): row[key] for key in row if key not in common} for row in rows
    ]
    if len(rows) > 1:
        entry["permutations"] = _permutations(varied[: len(product)], varied[len(product) :])
    return entry


def _point(
    row: Values, benchmark: Benchmark, notes: list[str], left_out: list[str]
) -> Values | None:
    """Return the keys of a point with dots, or None and the reason in `left_out`."""
    where = " ".join(f"{name}={value}" for name, value in row.items())
    try:
        params, shape = benchmark.params(), benchmark.shape()
        refused = _refused(benchmark.benchmark, params, shape)
    except ValueError as error:
        refused = str(error)
    if refused:
        left_out.append(f"{where}{': ' if where else ''}{refused}")
        return None
    notes += [
        text.format(benchmark)
        for kind, applies, text in LOST
        if isinstance(benchmark, kind) and applies(benchmark)
    ]
    keys = {"benchmark": benchmark.benchmark, **shape}
    return keys | {f"params.{name}": value for name, value in params.items()}


def _refused(name: str, params: Values, keys: Values) -> str | None:
    """Return why perfdag cannot measure this, or None."""
    benchmark = registry.get(name)
    model: Any
    try:
        model = benchmark.Params
        read = model.model_validate(params)
        model = Shape
        own = {"image": benchmark.image, **overlay(benchmark.shape(read), _nested(keys))}
        shape = Shape.model_validate(own)
    except ValidationError as errors:
        error = errors.errors()[0]
        path = ".".join(map(str, error["loc"]))
        problem = explain(Document("", ""), (), error, model)
        return f"{path}{': ' if path else ''}{problem.text}"
    texts = [*(f"{key} {text}" for key, text in shape.problems()), *benchmark.check(read, shape)]
    return "; ".join(texts) or None


def _permutations(product: list[Values], explicit: list[Values]) -> Values:
    """Return axes if the rows are all combinations of their values, else the rows."""
    axes: dict[str, list[Any]] = {}
    for row in product:
        for key, value in row.items():
            if value not in axes.setdefault(key, []):
                axes[key].append(value)
    whole = math.prod(map(len, axes.values())) == len(product)
    if product and whole and all(row.keys() == axes.keys() for row in product):
        return {"product": axes, **({"explicit": explicit} if explicit else {})}
    return {"explicit": [*product, *explicit]}


def _nested(keys: Values) -> Values:
    """Return keys with dots as mappings."""
    return reduce(merge, (nested(key, value) for key, value in keys.items()), {})
