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
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    create_model,
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
PERFTEST_OPTIONS = {
    **dict.fromkeys(("d", "ib-dev"), "device"),
    **dict.fromkeys(("i", "ib-port"), "port"),
    **dict.fromkeys(("m", "mtu"), "mtu"),
    **dict.fromkeys(("x", "gid-index"), "gid_index"),
    **dict.fromkeys(("c", "connection"), "connection"),
}
"""Options of perftest that are parameters here."""


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


class Kind(NamedTuple):
    """A kind of kube-perftest: its fields, and what they are here."""

    benchmark: str
    fields: dict[str, tuple[Any, Any, str]]
    """The type of each field, its default, and its parameter here, or an empty text."""
    more: Callable[[Values], Values] = lambda values: {}
    """Returns the parameters that are no field, from the values. Raises ValueError."""


def _fio(unit: str, form: str, what: str, examples: str) -> Any:
    """Return the type of a text of fio, of numbers of `form`, in the `unit` of one without."""

    def read(value: Any) -> str:
        match = re.fullmatch(rf"(\d*[1-9]\d*)({form})", str(value), flags=re.I)
        if match is None:
            raise ValueError(f"{value!r} is not a {what} of fio, such as {examples}")
        prefix = match[2].lower() if what == "time" else f"{match[2][:1].strip('bB').upper()}iB"
        return f"{match[1]}{unit if prefix in ('', 'iB') else prefix}"

    return Annotated[str, BeforeValidator(read)]


def _openfoam(values: Values) -> Values:
    method = values["iterativeMethod"]
    if method.startswith("PETSc"):
        raise ValueError(f"{method} needs an OpenFOAM built with PETSc")
    stop = "iterations" if method == "fixedITER" else "tolerance"
    return {"stop": stop, "solver": "GAMG" if "GAMG" in method else "PCG"}


def _fio_params(values: Values) -> Values:
    rw = values["rw"].partition(",")[0]
    # fio uses percentage_random with random patterns only
    return {"rw": rw} | ({} if rw.startswith("rand") else {"percentage_random": 100})


REQUIRED = Ellipsis
Text = Annotated[str, Field(min_length=1)]
Positive = Annotated[int, Field(gt=0)]
Share = Annotated[int, Field(ge=0, le=100)]
COMMON: dict[str, tuple[Any, Any, str]] = {
    "hostNetwork": (bool, False, ""),
    "networkName": (Text | None, None, ""),
    "resources": (dict[Literal["requests", "limits"], Values], {}, ""),
    "mtu": (Positive | None, None, ""),
    "image": (Text | None, None, ""),
    "imagePullPolicy": (Literal["Always", "IfNotPresent", "Never"], "IfNotPresent", ""),
}
"""Fields of every kind. Each pod is on a node that no other benchmark uses."""
MPI: dict[str, tuple[Any, Any, str]] = {
    "sshPort": (Positive, 2222, ""),
    "transport": (
        Annotated[Literal["TCP", "RDMA"], PlainSerializer(str.lower)],
        "TCP",
        "transport",
    ),
}
RDMA: dict[str, tuple[Any, Any, str]] = {
    "mode": (Literal["read", "write"], "read", "mode"),
    "iterations": (Annotated[int, Field(ge=5)], 1000, "iterations"),
    "extraArgs": (list[Text], [], ""),
}
METHODS = Literal[
    "fixedITER",
    "fixedNORM",
    "FOAM-DIC-PCG.fixedNORM",
    "FOAM-GAMG-PCG.fixedNORM",
    "PETSc-AMG-CG.fixedNORM",
    "PETSc-AMG-CG.fixedNORM.caching",
    "PETSc-ICC-CG.fixedNORM",
]
PATTERNS = Literal["read", "write", "randread", "randwrite", "rw,readwrite", "randrw"]
KINDS = {
    "IPerf": Kind(
        "iperf",
        {
            "streams": (Positive, REQUIRED, "streams"),
            "duration": (
                Annotated[Positive, PlainSerializer(lambda seconds: f"{seconds}s")],
                REQUIRED,
                "duration",
            ),
        },
    ),
    "MPIPingPong": Kind(
        "imb",
        MPI | {"maxlog": (Positive, 22, "max_log")},
        lambda values: {"benchmark": "PingPong", "mpi": "openmpi"},
    ),
    "OpenFOAM": Kind(
        "openfoam",
        {
            **MPI,
            "problemSize": (Literal["S", "M", "XL", "XXL"], "S", "size"),
            "iterativeMethod": (METHODS, "fixedNORM", ""),
            "numProcs": (Positive, 1, "procs"),
            "numNodes": (Positive, 1, "nodes"),
        },
        _openfoam,
    ),
    "RDMABandwidth": Kind(
        "rdma-bandwidth",
        RDMA | {"qps": (Positive, 1, "qps")},
        lambda values: {"rdma_cm": True, **arguments(values["extraArgs"])},
    ),
    "RDMALatency": Kind(
        "rdma-latency",
        RDMA,
        lambda values: {"rdma_cm": True, **arguments(values["extraArgs"])},
    ),
    "Fio": Kind(
        "fio",
        {
            "fioPort": (Annotated[int, Field(ge=1024)], 8765, ""),
            "volumeClaimTemplate": (Values, {}, ""),
            "numWorkers": (Positive, 1, ""),
            "rw": (PATTERNS, "read", "rw"),
            "rwmixread": (Share, 50, "rwmixread"),
            "percentageRandom": (Share, 100, "percentage_random"),
            "bs": (_fio("B", "[kmgtp]?b?", "size", "32k, 1M, 10G"), "4MiB", "bs"),
            "size": (_fio("B", "[kmgtp]?b?", "size", "32k, 1M, 10G"), "10GiB", "size"),
            "iodepth": (Positive, 1, "iodepth"),
            "ioengine": (Literal["libaio"], "libaio", "ioengine"),
            "direct": (Annotated[Literal[0, 1], PlainSerializer(bool)], 1, "direct"),
            "numJobs": (Positive, 1, "numjobs"),
            "nrfiles": (Positive, 1, "nrfiles"),
            "thread": (bool, False, "thread"),
            "runtime": (
                _fio("s", "|us|ms|s|m|h|d", "time", "30s, 10M (minutes), 500ms"),
                "30s",
                "runtime",
            ),
        },
        _fio_params,
    ),
    "PyTorch": Kind(
        "torchbench",
        {
            "device": (Literal["cpu", "cuda"], "cpu", "device"),
            "model": (Literal["alexnet", "resnet50", "llama"], REQUIRED, "model"),
            "benchmarkType": (Literal["train", "eval"], "eval", "test"),
            "inputBatchSize": (Annotated[int, Field(ge=2, multiple_of=2)], 64, "batch_size"),
        },
    ),
}


def _model(name: str) -> type[BaseModel]:
    """Return the model of the spec of a kind."""
    fields = (COMMON | KINDS[name].fields).items()
    columns: Any = {field: (kind, default) for field, (kind, default, _) in fields}
    return create_model(name, __config__=ConfigDict(extra="forbid"), **columns)


MODELS = {name: _model(name) for name in KINDS}


def shape_of(name: str, values: Values) -> Values:
    """Return the keys of the shape of a benchmark, with dots."""
    keys: Values = {"hosts.exclusive": True}
    if name != "PyTorch":  # which measures one pod, and has no network fields in its template
        keys |= {"hosts.placement": "spread", "network.host": values["hostNetwork"]}
        if values["networkName"] and not values["hostNetwork"]:
            keys |= {"network.name": values["networkName"], "network.default": True}
        if values["mtu"] and not values["hostNetwork"]:
            keys |= {"network.mtu": values["mtu"], "privileges": ["mtu"]}
    if name == "Fio":
        keys["hosts.count"] = values["numWorkers"]
        if values["volumeClaimTemplate"]:
            keys["volume"] = {"claim_template": values["volumeClaimTemplate"]}
    requests, limits = (values["resources"].get(part, {}) for part in ("requests", "limits"))
    # Kubernetes takes a limit without a request for both
    apart = {
        resource: amount
        for resource, amount in requests.items()
        if parse_quantity(amount) != parse_quantity(limits.get(resource, 0))
    }
    resources: Values = {key: limits[key] for key in limits if key not in apart}
    if apart:
        own = {key: limits[key] for key in apart if key in limits}
        resources |= {"requests": apart, **({"limits": own} if own else {})}
    return keys | ({"resources": resources} if resources else {})


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
        ("MPIPingPong", "OpenFOAM", "Fio", "PyTorch"),
        bool,
        "nodes of the control plane are not left out; a taint does that",
    ),
    (("IPerf",), bool, "iperf 2: iperf3 measures instead; do not compare their figures"),
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
ROUNDS = "repetitions: measured in interleaved rounds, not one after the other"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Resource(_Strict):
    apiVersion: Annotated[str, Field(pattern=f"^{re.escape(GROUP)}")]
    kind: str
    metadata: Values = {}
    spec: Values = {}
    status: Any = None


class _Permutations(_Strict):
    product: dict[str, list[Any]] = {}
    explicit: list[Values] = []


class _Set(_Strict):
    template: _Resource
    repetitions: Positive = 1
    permutations: _Permutations = _Permutations()


Rows = list[tuple[Values, Values]]
"""Permutations of a set, each with all values of its benchmark."""


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
    resource = validated(document, document.data, _Resource)
    own: Where = ()
    whole = _Set(template=resource)
    if resource.kind == SET:
        own, whole = ("spec", "template"), validated(document, resource.spec, _Set, ("spec",))
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
            read = validated(document, data, MODELS[name], where, places)
            found.append((row, read.model_dump()))
        return found

    product = [dict(zip(axes, row, strict=True)) for row in itertools.product(*axes.values())]
    return (
        whole,
        str(resource.metadata.get("name") or name.lower()),
        benchmarks("product", product if axes or not explicit else []),
        benchmarks("explicit", explicit),
    )


def validated(
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
        kind = whole.template.kind
        # The name of an entry holds no dot and stands once.
        base = title.replace(".", "-")[:60].strip("-")
        numbered = (f"{base}-{number}" for number in itertools.count(2))
        name = next(free for free in itertools.chain([base], numbered) if free not in entries)
        rows: list[list[Values]] = [[], []]
        for own, part in zip(rows, parts, strict=True):
            for row, values in part:
                try:
                    own.append(_keys(kind, values))
                except ValueError as error:
                    where = " ".join(f"{name}={value}" for name, value in row.items())
                    left_out.append(": ".join(filter(None, (name, where, str(error)))))
                    continue
                for kinds, applies, text in LOST:
                    if kind in kinds and applies(values):
                        lost.setdefault(text.format_map(values), {})[name] = None
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


def _keys(name: str, values: Values) -> Values:
    """Return the keys of a point with dots. Raises ValueError if perfdag cannot measure it."""
    kind, keys = KINDS[name], shape_of(name, values)
    params = {here: values[field] for field, (_, _, here) in kind.fields.items() if here}
    params |= kind.more(values)
    program = registry.get(kind.benchmark)
    try:
        read: Any = program.Params.model_validate(params)
        own = {"image": "base", **overlay(program.shape(read), _nested(keys))}
        shape = Shape.model_validate(own)
    except ValidationError as errors:
        error = errors.errors()[0]
        text = str(error["msg"]).removeprefix("Value error, ")
        raise ValueError(": ".join([*map(str, error["loc"]), text])) from None
    texts = [*(f"{key} {text}" for key, text in shape.problems()), *program.check(read, shape)]
    if texts:
        raise ValueError("; ".join(texts))
    named = {f"params.{key}": value for key, value in params.items()}
    return {"benchmark": kind.benchmark, **keys, **named}


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
