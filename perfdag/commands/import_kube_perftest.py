"""Suites from the benchmarks of kube-perftest."""

import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

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
from perfdag.suite.enumerate import enumerate_points
from perfdag.suite.load import parse_suite
from perfdag.suite.permutations import nested
from perfdag.suite.placement import MAX_POINTS
from perfdag.units import parse_quantity

_SECONDS = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {
    letter + end: 1024.0**power
    for power, letter in enumerate(("", "k", "m", "g", "t", "p"))
    for end in ("", "b")
}
"""fio's own units, in capitals or not. Its k is 1024."""
_OPTIONS = {
    "d": "device",
    "ib-dev": "device",
    "i": "port",
    "ib-port": "port",
    "m": "mtu",
    "mtu": "mtu",
    "x": "gid_index",
    "gid-index": "gid_index",
    "c": "connection",
    "connection": "connection",
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


FioSize = Annotated[int, _fio(_BYTES, "size", "32k, 1M, 10G"), Field(gt=0)]
FioTime = Annotated[float, _fio(_SECONDS, "time", "30s, 10M (minutes), 500ms"), Field(gt=0)]


def arguments(argv: list[str]) -> dict[str, Any]:
    """Return the parameters of perftest's options, with other options as `extra_args`.

    An option there is one word with its value.
    """
    joined: list[str] = []
    for word in argv:
        if joined and not word.startswith("-"):
            joined[-1] += f"={word}" if joined[-1].startswith("--") else word
        else:
            joined.append(word)
    params: dict[str, Any] = {}
    extra = []
    for word in joined:
        match = re.fullmatch(r"--([a-z_-]+)=(.+)|-([a-z])(.+)", word)
        name = _OPTIONS.get(match[1] or match[3]) if match else None
        if match and name:
            value = match[2] or match[4]
            params[name] = int(value) if value.isdigit() else value
        else:
            extra.append(word)
    return params | ({"extra_args": extra} if extra else {})


def bytes_text(size: int) -> str:
    """Return a size as text, in the largest unit that needs no fraction."""
    for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB")):
        if size % 1024 ** (power + 1):
            return f"{size // 1024**power}{unit}"
    return f"{size >> 50}PiB"


Text = Annotated[str, Field(min_length=1)]
Positive = Annotated[int, Field(gt=0)]


class Strict(BaseModel):
    """A part of a resource, with the fields of its CRD alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ContainerResources(Strict):
    """Resources of the containers of a benchmark."""

    requests: dict[str, Any] = {}
    limits: dict[str, Any] = {}

    def shape(self) -> dict[str, Any]:
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
    """What all benchmarks share. Each pod is on a node that no other benchmark uses."""

    benchmark: ClassVar[str]
    several: ClassVar[bool] = True
    """Whether it measures several pods, each on a node of its own."""
    exclusive: ClassVar[bool] = False
    """Whether the template keeps all pods apart, and not only those of other benchmarks."""

    hostNetwork: bool = False
    networkName: Text | None = None
    resources: ContainerResources = ContainerResources()
    mtu: Positive | None = None
    image: Text | None = None
    imagePullPolicy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"

    def params(self) -> dict[str, Any]:
        """Return the parameters of perfdag's benchmark."""
        raise NotImplementedError

    def shape(self) -> dict[str, Any]:
        """Return the keys of the shape, with dots."""
        keys: dict[str, Any] = {"hosts.exclusive": True}
        if self.several:
            keys |= {"hosts.placement": "spread", "network.host": self.hostNetwork}
            if self.networkName and not self.hostNetwork:
                keys |= {"network.name": self.networkName, "network.default": True}
            if self.mtu and not self.hostNetwork:
                keys |= {"network.mtu": self.mtu, "privileges": ["mtu"]}
        if resources := self.resources.shape():
            keys["resources"] = resources
        return keys

    def lost(self) -> list[str]:
        """Return what perfdag does not keep of this resource, each with what it does instead."""
        texts = []
        if self.image:
            texts.append("image: a pod runs perfdag's image, or one built on it")
        if self.imagePullPolicy != "IfNotPresent":
            policy = f"--pull-policy {self.imagePullPolicy}"
            texts.append(f"imagePullPolicy: `perfdag install {policy}` sets it for all runs")
        if self.several and self.mtu and self.hostNetwork:
            texts.append("mtu: with hostNetwork it would change the interface of the node")
        if not self.exclusive:
            texts.append("nodes of the control plane are not left out; a taint does that")
        return texts


class IPerf(Benchmark):
    """Throughput with iperf."""

    benchmark: ClassVar[str] = "iperf"
    exclusive: ClassVar[bool] = True
    duration: Positive
    streams: Positive

    def params(self) -> dict[str, Any]:
        return {"streams": self.streams, "duration": f"{self.duration}s"}

    def lost(self) -> list[str]:
        return [*super().lost(), "iperf 2: iperf3 measures instead; do not compare their figures"]


class _Mpi(Benchmark):
    sshPort: Positive = 2222
    transport: Literal["TCP", "RDMA"] = "TCP"

    def lost(self) -> list[str]:
        rdma, port = self.transport == "RDMA", self.sshPort != 2222
        tls = "transport RDMA: UCX chooses among rc, dc and ud, and is not held to rc_x"
        return [*super().lost(), *[tls] * rdma, *["sshPort: perfdag chooses the port"] * port]


class MPIPingPong(_Mpi):
    """PingPong of IMB-MPI1 with Open MPI."""

    benchmark: ClassVar[str] = "imb"
    maxlog: Positive = 22

    def params(self) -> dict[str, Any]:
        transport = self.transport.lower()
        return {
            "benchmark": "PingPong",
            "mpi": "openmpi",
            "transport": transport,
            "max_log": self.maxlog,
        }

    def lost(self) -> list[str]:
        privileged = "privileged pods with hostNetwork: pods get IPC_LOCK with RDMA, and no more"
        return [*super().lost(), *[privileged] * self.hostNetwork]


class OpenFOAM(_Mpi):
    """The lid-driven cavity of OpenFOAM's committee for HPC."""

    benchmark: ClassVar[str] = "openfoam"
    problemSize: Literal["S", "M", "XL", "XXL"] = "S"
    iterativeMethod: Literal[
        "fixedITER",
        "fixedNORM",
        "FOAM-DIC-PCG.fixedNORM",
        "FOAM-GAMG-PCG.fixedNORM",
        "PETSc-AMG-CG.fixedNORM",
        "PETSc-AMG-CG.fixedNORM.caching",
        "PETSc-ICC-CG.fixedNORM",
    ] = "fixedNORM"
    numProcs: Positive = 1
    numNodes: Positive = 1

    def params(self) -> dict[str, Any]:
        if self.iterativeMethod.startswith("PETSc"):
            raise ValueError(f"{self.iterativeMethod} needs an OpenFOAM built with PETSc")
        return {
            "transport": self.transport.lower(),
            "size": self.problemSize,
            "stop": "iterations" if self.iterativeMethod == "fixedITER" else "tolerance",
            "solver": "GAMG" if "GAMG" in self.iterativeMethod else "PCG",
            "procs": self.numProcs,
            "nodes": self.numNodes,
        }

    def lost(self) -> list[str]:
        within = self.numProcs > self.numNodes
        gamg = "GAMG" in self.iterativeMethod
        return [
            *super().lost(),
            *["processes of one pod use shared memory, whatever the transport"] * within,
            *["--map-by node: neighbouring ranks share a pod as far as possible"] * within,
            *["FOAM-GAMG-PCG: multigrid solves here, and does not precondition PCG"] * gamg,
        ]


class _Rdma(Benchmark):
    exclusive: ClassVar[bool] = True
    mode: Literal["read", "write"] = "read"
    iterations: Annotated[int, Field(ge=5)] = 1000
    extraArgs: list[Text] = []

    def params(self) -> dict[str, Any]:
        params = {"mode": self.mode, "iterations": self.iterations, "rdma_cm": True}
        return params | arguments(self.extraArgs)


class RDMABandwidth(_Rdma):
    """Bandwidth with perftest."""

    benchmark: ClassVar[str] = "rdma-bandwidth"
    qps: Positive = 1

    def params(self) -> dict[str, Any]:
        return super().params() | {"qps": self.qps}


class RDMALatency(_Rdma):
    """Latency with perftest."""

    benchmark: ClassVar[str] = "rdma-latency"


class Fio(Benchmark):
    """fio on a volume of each worker."""

    benchmark: ClassVar[str] = "fio"
    fioPort: Annotated[int, Field(ge=1024)] = 8765
    volumeClaimTemplate: dict[str, Any] = {}
    numWorkers: Positive = 1
    rw: Literal["read", "write", "randread", "randwrite", "rw,readwrite", "randrw"] = "read"
    bs: FioSize = 4 << 20
    iodepth: Positive = 1
    ioengine: Literal["libaio"] = "libaio"
    nrfiles: Positive = 1
    rwmixread: Annotated[int, Field(ge=0, le=100)] = 50
    percentageRandom: Annotated[int, Field(ge=0, le=100)] = 100
    direct: Literal[0, 1] = 1
    runtime: FioTime = 30.0
    numJobs: Positive = 1
    size: FioSize = 10 << 30
    thread: bool = False

    def params(self) -> dict[str, Any]:
        # fio uses percentage_random with random patterns only.
        percentage = self.percentageRandom if self.rw.startswith("rand") else 100
        return {
            "rw": self.rw.partition(",")[0],
            "rwmixread": self.rwmixread,
            "percentage_random": percentage,
            "bs": bytes_text(self.bs),
            "size": bytes_text(self.size),
            "iodepth": self.iodepth,
            "ioengine": self.ioengine,
            "direct": bool(self.direct),
            "numjobs": self.numJobs,
            "nrfiles": self.nrfiles,
            "thread": self.thread,
            "runtime": f"{self.runtime:g}s",
        }

    def shape(self) -> dict[str, Any]:
        keys = super().shape() | {"hosts.count": self.numWorkers}
        if self.volumeClaimTemplate:
            keys["volume"] = {"claim_template": self.volumeClaimTemplate}
        return keys

    def lost(self) -> list[str]:
        port = self.fioPort != 8765
        evenly = "with fewer nodes than workers no pod starts; the original shares nodes evenly"
        empty = "no volumeClaimTemplate: fio uses a scratch folder; the original has no pod then"
        return [
            *super().lost(),
            *["fioPort: perfdag chooses the port"] * port,
            *[evenly] * (self.numWorkers > 1),
            *[empty] * (not self.volumeClaimTemplate),
        ]


class PyTorch(Benchmark):
    """One model of pytorch/benchmark. Its template has no network fields."""

    benchmark: ClassVar[str] = "torchbench"
    several: ClassVar[bool] = False
    device: Literal["cpu", "cuda"] = "cpu"
    model: Literal["alexnet", "resnet50", "llama"]
    benchmarkType: Literal["train", "eval"] = "eval"
    inputBatchSize: Annotated[int, Field(ge=2, multiple_of=2)] = 64

    def params(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "model": self.model,
            "test": self.benchmarkType,
            "batch_size": self.inputBatchSize,
        }


KINDS: dict[str, type[Benchmark]] = {
    kind.__name__: kind
    for kind in (IPerf, MPIPingPong, OpenFOAM, RDMABandwidth, RDMALatency, Fio, PyTorch)
}


_NOWHERE = Document("", "")


GROUP = "perftest.stackhpc.com/"
SET = "BenchmarkSet"
Values = dict[str, Any]
M = TypeVar("M", bound=BaseModel)


class _Metadata(BaseModel):
    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")]


class _Resource(Strict):
    apiVersion: Annotated[str, Field(pattern=f"^{re.escape(GROUP)}")]
    kind: str
    metadata: _Metadata
    spec: Values
    status: Any = None


class _Template(Strict):
    apiVersion: Annotated[str, Field(pattern=f"^{re.escape(GROUP)}")]
    kind: str
    spec: Values = {}


class _Permutations(Strict):
    product: dict[str, list[Any]] = {}
    explicit: list[Values] = []


class _Set(Strict):
    template: _Template
    repetitions: Positive = 1
    permutations: _Permutations = _Permutations()


@dataclass(frozen=True)
class Resource:
    """The benchmarks of a resource: one, or those of a set, each with its permutation."""

    document: Document
    name: str
    repetitions: int
    product: list[tuple[Values, Benchmark]]
    """Those of the product of a set, or the one benchmark."""
    explicit: list[tuple[Values, Benchmark]]


def read(files: list[str]) -> list[Resource]:
    """Return the resources of the files. Raises BadDocument with all mistakes."""
    problems: list[Problem] = []
    resources = []
    for file in files:
        for document in _documents(file):
            resources += _resource(document, problems)
    if problems:
        raise BadDocument(problems)
    return resources


def _documents(file: str) -> Iterator[Document]:
    """Yield the documents of a file, each with the line numbers of the file."""
    line = 0
    for part in re.split(r"^---(?=\s|$)", read_text(file), flags=re.M):
        document = parse_document("\n" * line + part, file)
        line += part.count("\n")
        if document.data is not None:
            yield document


def _resource(document: Document, problems: list[Problem]) -> list[Resource]:
    """Return the resource of a document, or nothing and its mistakes in `problems`."""
    resource = _validated(document, document.data, _Resource, problems)
    if resource is None:
        return []
    if resource.kind == SET:
        resource_set = _validated(document, resource.spec, _Set, problems, prefix=("spec",))
    else:
        template = _Template(apiVersion=resource.apiVersion, kind=resource.kind, spec=resource.spec)
        resource_set = _Set(template=template)
    if resource_set is None:
        return []
    own: Where = ("spec", "template") if resource.kind == SET else ()
    template, axes = resource_set.template, resource_set.permutations.product
    if template.kind not in KINDS:
        known = [*KINDS, *[SET] * (not own)]
        text = (
            f"kube-perftest has no kind {template.kind!r}{choices(template.kind, known, 'it has')}"
        )
        problems.append(document.problem((*own, "kind"), text))
        return []
    if math.prod(map(len, axes.values())) > MAX_POINTS:
        text = f"more than {MAX_POINTS:,} permutations"
        problems.append(document.problem(("spec", "permutations", "product"), text))
        return []
    product = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    explicit = resource_set.permutations.explicit
    expanded: dict[str, list[tuple[Values, Benchmark]]] = {"product": [], "explicit": []}
    for part, rows in (
        ("product", product if axes or not explicit else []),
        ("explicit", explicit),
    ):
        for row in rows:
            benchmark = _validated(
                document,
                _merge(template.spec, row),
                KINDS[template.kind],
                problems,
                (*own, "spec"),
                dict.fromkeys(row, ("spec", "permutations", part)),
            )
            if benchmark is not None:
                expanded[part].append((row, benchmark))
    return [Resource(document, resource.metadata.name, resource_set.repetitions, **expanded)]


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
        params, shape, lost = benchmark.params(), benchmark.shape(), benchmark.lost()
        refused = _refused(benchmark.benchmark, params, shape)
    except ValueError as error:
        refused = str(error)
    if refused:
        left_out.append(f"{where}{': ' if where else ''}{refused}")
        return None
    notes += lost
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
        problem = explain(_NOWHERE, (), error, model)
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
