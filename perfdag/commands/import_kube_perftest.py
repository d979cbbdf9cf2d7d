"""Suites from the benchmarks of kube-perftest: the fields of its CRDs, and what each becomes.

Source: python/perftest of stackhpc/kube-perftest, at commit 28e2db3: the models, and the templates
of the pods.
"""

import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from pathlib import Path
from types import MappingProxyType
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
ROUNDS = "repetitions: measured in interleaved rounds, not one after the other"


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


Rows = list[tuple[Values, Benchmark]]
"""Permutations of a set, each with its benchmark."""


def read(files: list[str]) -> list[tuple[_Set, str, Rows, Rows]]:
    """Return each resource of the files, its name, and its benchmarks.

    They are those of a set's product, or the one benchmark, and the explicit ones. Raises
    BadDocument with the mistakes of all resources.
    """
    found, problems = [], list[Problem]()
    for document in (document for file in files for document in _documents(file)):
        try:
            found.append(_resource(document))
        except BadDocument as error:
            problems += error.problems
    if problems:
        raise BadDocument(problems)
    return found


def _documents(file: str) -> Iterator[Document]:
    """Yield the documents of a file, each with the line numbers of the file."""
    line = 0
    for part in re.split(r"^---(?=\s|$)", read_text(file), flags=re.M):
        document = parse_document("\n" * line + part, file)
        line += part.count("\n")
        if document.data is not None:
            yield document


def _resource(document: Document) -> tuple[_Set, str, Rows, Rows]:
    """Return the resource of a document as `read` does. Raises BadDocument."""
    resource = _validated(document, document.data, _Resource)
    own: Where = ()
    whole = _Set(template=resource)
    if resource.kind == SET:
        own, whole = ("spec", "template"), _validated(document, resource.spec, _Set, ("spec",))
    name, spec = whole.template.kind, whole.template.spec
    if name not in KINDS:
        known = choices(name, [*KINDS, *[SET] * (not own)], "it has")
        text = f"kube-perftest has no kind {name!r}{known}"
        raise BadDocument([document.problem((*own, "kind"), text)])
    axes, explicit = whole.permutations.product, whole.permutations.explicit
    if math.prod(map(len, axes.values())) > MAX_POINTS:
        text = f"more than {MAX_POINTS:,} permutations"
        raise BadDocument([document.problem(("spec", "permutations", "product"), text)])

    def benchmarks(part: str, rows: list[Values]) -> Rows:
        found = []
        for row in rows:
            places: dict[str, Where] = dict.fromkeys(row, ("spec", "permutations", part))
            data, where = _merge(spec, row), (*own, "spec")
            found.append((row, _validated(document, data, KINDS[name], where, places)))
        return found

    product = [dict(zip(axes, row, strict=True)) for row in itertools.product(*axes.values())]
    return (
        whole,
        str(resource.metadata.get("name") or name.lower()),
        benchmarks("product", product if axes or not explicit else []),
        benchmarks("explicit", explicit),
    )


def _validated(
    document: Document,
    data: Any,
    model: type[M],
    prefix: Where = (),
    prefixes: Mapping[str, Where] = MappingProxyType({}),
) -> M:
    """Return the model of data at `prefix` of the document, or at `prefixes` by key.

    Raises BadDocument.
    """
    try:
        return model.model_validate(data)
    except ValidationError as errors:
        problems = []
        for error in errors.errors():
            first = str(error["loc"][0]) if error["loc"] else ""
            problems.append(explain(document, prefixes.get(first, prefix), error, model))
        raise BadDocument(problems) from None


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
    lost: dict[str, dict[str, None]] = {}
    left_out: list[str] = []
    entries: dict[str, Values] = {}
    for whole, title, *parts in read(files):
        # The name of an entry holds no dot and stands once.
        base = title.replace(".", "-")[:60].strip("-")
        numbered = (f"{base}-{number}" for number in itertools.count(2))
        name = next(free for free in itertools.chain([base], numbered) if free not in entries)
        rows: list[list[Values]] = [[], []]
        for own, part in zip(rows, parts, strict=True):
            for row, benchmark in part:
                try:
                    own.append(_keys(benchmark))
                except ValueError as error:
                    where = " ".join(f"{name}={value}" for name, value in row.items())
                    left_out.append(": ".join(filter(None, (name, where, str(error)))))
                    continue
                for kind, applies, text in LOST:
                    if isinstance(benchmark, kind) and applies(benchmark):
                        lost.setdefault(text.format(benchmark), {})[name] = None
        if any(rows):
            entries[name] = {"name": name, **_entry(*rows)}
            if whole.repetitions > 1:
                entries[name]["repetitions"] = whole.repetitions
                lost.setdefault(ROUNDS, {})[name] = None
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


def _keys(benchmark: Benchmark) -> Values:
    """Return the keys of a point with dots. Raises ValueError if perfdag cannot measure it."""
    params, keys, program = benchmark.params(), benchmark.shape(), registry.get(benchmark.benchmark)
    try:
        read: Any = program.Params.model_validate(params)
        own = {"image": program.image, **overlay(program.shape(read), _nested(keys))}
        shape = Shape.model_validate(own)
    except ValidationError as errors:
        error = errors.errors()[0]
        text = str(error["msg"]).removeprefix("Value error, ")
        raise ValueError(": ".join([*map(str, error["loc"]), text])) from None
    texts = [*(f"{key} {text}" for key, text in shape.problems()), *program.check(read, shape)]
    if texts:
        raise ValueError("; ".join(texts))
    named = {f"params.{name}": value for name, value in params.items()}
    return {"benchmark": benchmark.benchmark, **keys, **named}


def _entry(product: list[Values], explicit: list[Values]) -> Values:
    """Return the entry of points, without its name: what they share, and their permutations."""
    rows = [*product, *explicit]
    common = {
        key: value
        for key, value in rows[0].items()
        if all(key in row and row[key] == value for row in rows)
    }
    left_out = {*common}
    if common.get("network.host") is False:  # so it is on a cluster
        del common["network.host"]
    entry = _nested(common)
    if len(rows) > 1:
        varied = [
            {key.removeprefix("params."): row[key] for key in row if key not in left_out}
            for row in rows
        ]
        entry["permutations"] = _permutations(varied[: len(product)], varied[len(product) :])
    return entry


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
