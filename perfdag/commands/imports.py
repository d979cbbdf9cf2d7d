"""`perfdag import`: a suite from the files of another tool, or runs from earlier figures."""

import argparse
import csv
import itertools
import logging
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
)

from perfdag import __version__
from perfdag.commands.options import (
    EXIT_FAILED,
    EXIT_OK,
    STORE,
    CommandError,
    option,
    run_work,
    verb,
)
from perfdag.identity import digest, merge
from perfdag.suite.document import (
    BadDocument,
    Document,
    Where,
    choices,
    dump,
    explain,
    parse_document,
    read_document,
    read_text,
)
from perfdag.suite.load import parse_suite, suite_name
from perfdag.suite.points import MAX_POINTS, enumerate_points, nested
from perfdag.units import Quantity, plural, seconds, to_base

logger = logging.getLogger(__name__)
Values = dict[str, Any]
M = TypeVar("M", bound=BaseModel)


class Imported:
    """The entries of a suite by name, what each does not keep, and what is left out of them."""

    def __init__(self) -> None:
        self.entries: dict[str, Values] = {}
        self.lost: dict[str, dict[str, None]] = {}
        self.left_out: list[str] = []

    def lose(self, text: str, entry: str = "") -> None:
        """Note what the suite does not keep of an entry, or of all."""
        self.lost.setdefault(text, {})[entry] = None

    def notes(self) -> list[str]:
        """Return a line for each text, after the entries that it is about."""
        return [": ".join(filter(None, (", ".join(of), text))) for text, of in self.lost.items()]


verb(
    "import",
    "Print a suite with the semantics of another tool's files, or store the runs of a history.",
    """
    examples:
      perfdag import kube-perftest iperf-set.yaml fio.yaml > suite.yaml
      perfdag import perfscale-load-generator kubevirt-burst-100.yaml > suite.yaml
      perfdag import history boot.csv

    What a suite cannot keep is listed on stderr. Exit code 1: a benchmark is left out.
    docs/kube-perftest.md compares the two.
    """,
)(run_work)


def import_suite(args: argparse.Namespace) -> int:
    """Print the suite of another tool's files, and what it does not keep.

    Return 1 if a benchmark is left out. Raises BadDocument, or CommandError if nothing is left.
    """
    imported, names = SUITES[args.action][0](args.files), [Path(file).name for file in args.files]
    entries = imported.entries
    if not entries:
        causes = "; ".join([*imported.left_out, *imported.notes()][:3])
        raise CommandError(f"{', '.join(names)}: nothing can be measured; {causes}")
    name = next(iter(entries)) if len(entries) == 1 else args.action.removeprefix("perfscale-")
    suite = {
        "name": suite_name(name),
        "description": f"Imported from {args.action}: {', '.join(names)}.",
        "entries": [*entries.values()],
    }
    text = dump([suite])
    if merged := enumerate_points(parse_suite(text)).merged:
        imported.lose(f"{merged} equal benchmarks are measured once; raise `repetitions`")
    print(text, end="")
    for note in imported.notes():
        logger.info(f"not kept: {note}")
    for benchmark in imported.left_out:
        logger.info(f"left out: {benchmark}")
    return EXIT_FAILED if imported.left_out else EXIT_OK


def validated(document: Document, data: Any, model: type[M], at: Where = ()) -> M:
    """Return the model of the data at `at` of a document. Raises BadDocument."""
    try:
        return model.model_validate(data)
    except ValidationError as errors:
        mistakes = (explain(document, at, error, model) for error in errors.errors())
        raise BadDocument(mistakes) from None


# kube-perftest: the fields of its CRDs, and what each becomes. Source: python/perftest of
# stackhpc/kube-perftest, at commit 28e2db3: the models, and the templates of the pods.

PERFTEST_OPTIONS = {
    **dict.fromkeys(("-d", "--ib-dev"), "device"),
    **dict.fromkeys(("-i", "--ib-port"), "port"),
    **dict.fromkeys(("-m", "--mtu"), "mtu"),
    **dict.fromkeys(("-x", "--gid-index"), "gid_index"),
    **dict.fromkeys(("-c", "--connection"), "connection"),
}
"""Options of perftest that are parameters here."""


def arguments(argv: list[str]) -> Values:
    """Return the parameters of perftest's options, with other options as `extra_args`.

    An option there is one word with its value.
    """
    params: Values = {}
    words = r"(--[\w-]+|-\w)(?:[= ]?([^\s-]\S*))?"
    for name, value in re.findall(words, " ".join(argv)):
        if value and name in PERFTEST_OPTIONS:
            params[PERFTEST_OPTIONS[name]] = int(value) if value.isdigit() else value
        else:
            equals = "=" if value and name.startswith("--") else ""
            params.setdefault("extra_args", []).append(f"{name}{equals}{value}")
    return params


REQUIRED = Ellipsis
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

    A field has its type, its default, and its parameter here, or an empty text.
    """

    benchmark: str
    fields: Fields
    more: Callable[[Values], Values] = lambda values: {}
    """Returns the parameters that are no field, from the values."""


KINDS = {
    "IPerf": Kind(
        "iperf",
        {
            "streams": (int, REQUIRED, "streams"),
            "duration": (Annotated[str, BeforeValidator("{}s".format)], REQUIRED, "duration"),
        },
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
            "model": (str, REQUIRED, "model"),
            "benchmarkType": (str, "eval", "test"),
            "inputBatchSize": (int, 64, "batch_size"),
        },
    ),
}
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


class Resource(BaseModel, extra="forbid"):
    """An object of kube-perftest."""

    api: str = Field(alias="apiVersion", pattern=r"^perftest\.stackhpc\.com/")
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
        whole = [dict(zip(axes, row, strict=True)) for row in itertools.product(*axes.values())]
        product = whole if axes or not self.explicit else []
        return [*product, *self.explicit], len(product)


class BenchmarkSet(BaseModel, extra="forbid"):
    """The spec of a set; a single benchmark is a set without permutations."""

    template: Resource
    repetitions: int = 1
    permutations: _Permutations = _Permutations()


def read_kube_perftest(files: Sequence[str]) -> Imported:
    """Return the resources of the files as entries. Raises BadDocument."""
    imported = Imported()
    for document in (document for file in files for document in _documents(file)):
        resource = validated(document, document.data, Resource)
        at: Where = ()
        whole = BenchmarkSet(template=resource)
        if resource.kind == "BenchmarkSet":
            at = ("spec", "template")
            whole = validated(document, resource.spec, BenchmarkSet, ("spec",))
        name = whole.template.kind
        if name not in KINDS:
            known = choices(name, [*KINDS, *["BenchmarkSet"] * (not at)], "it has")
            text = f"kube-perftest has no kind {name!r}{known}"
            raise BadDocument([document.problem((*at, "kind"), "unknown-kind", text)])
        if math.prod(map(len, whole.permutations.product.values())) > MAX_POINTS:
            text = f"more than {MAX_POINTS:,} permutations"
            raise BadDocument(
                [document.problem(("spec", "permutations", "product"), "many-points", text)]
            )
        title = str(resource.metadata.get("name") or name.lower())
        _add(imported, document, whole, (*at, "spec"), title)
    return imported


def _documents(file: str) -> Iterator[Document]:
    """Yield the documents of a file, each with the line numbers of the file."""
    line = 0
    for part in re.split(r"^---(?=\s|$)", read_text(file), flags=re.M):
        document = parse_document("\n" * line + part, file)
        line += part.count("\n")
        if document.data is not None:
            yield document


def _add(
    imported: Imported, document: Document, whole: BenchmarkSet, at: Where, title: str
) -> None:
    """Add the entry of a set whose template has its fields at `at`, of what can be measured."""
    kind, fields = KINDS[whole.template.kind], COMMON | KINDS[whole.template.kind].fields
    types: Any = {field: (type_, default) for field, (type_, default, _) in fields.items()}
    model = create_model("Spec", __config__=ConfigDict(extra="forbid"), **types)
    rows, number = whole.permutations.rows()
    values = [
        validated(document, _merge(whole.template.spec, row), model, at).model_dump()
        for row in rows
    ]
    keys = [_keys(kind, each) for each in values]
    # the name of an entry holds no dot and stands once
    name = title.replace(".", "-")[:50].strip("-")
    while name in imported.entries:
        name += "-2"
    is_whole, measured = not _refusal(_entry(keys[:number], keys[number:])), list[int]()
    for i, (row, each) in enumerate(zip(rows, values, strict=True)):
        if text := "" if is_whole else _refusal(_entry([keys[i]], [])):
            where = " ".join(f"{field}={value}" for field, value in row.items())
            imported.left_out.append(": ".join(filter(None, (name, where, text))))
            continue
        measured.append(i)
        for kinds, applies, text in LOST:
            if whole.template.kind in kinds and applies(each):
                imported.lose(text.format_map(each), name)
    if measured:
        product = [keys[i] for i in measured if i < number]
        explicit = [keys[i] for i in measured if i >= number]
        imported.entries[name] = {"name": name, **_entry(product, explicit)}
        if whole.repetitions > 1:
            imported.entries[name]["repetitions"] = whole.repetitions
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
    own = {name: amount for name, amount in requests.items() if amount != limits.get(name)}
    if resources := limits | ({"requests": own} if own else {}):
        keys["resources"] = resources
    params = {here: values[field] for field, (_, _, here) in kind.fields.items() if here}
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


# perfscale-load-generator of KubeVirt: its workloads

LEAST_TIMEOUT, TIMEOUT = 30.0, 300.0
"""The load generator replaces timeouts up to the first by the second."""
ACTION = re.compile(r"\{\{-?\s*\.(\w+)\s*-?\}\}|\{\{.*")
IMAGE = {
    "containerPrefix": ("DOCKER_PREFIX", "registry:5000/kubevirt"),
    "containerTag": ("DOCKER_TAG", "devel"),
}
"""Input variables that may be empty -> environment variable and default, as that tool has them."""


def go_seconds(value: Any) -> float:
    """Return the seconds of a duration of Go, such as `1h30m`. Raises ValueError."""
    parts = re.findall(r"\d+(?:\.\d+)?(?:ms|us|ns|h|m|s)", str(value))
    if not parts or "".join(parts) != value:
        raise ValueError(f"{value!r} is no duration; write it as 10m, 90s or 1h30m")
    return sum(map(seconds, parts))


Duration = Annotated[float, BeforeValidator(go_seconds)]


class _Object(BaseModel):
    template: str = Field(alias="templateFile")
    variables: Values = Field({}, alias="inputVars")


class Workload(BaseModel, extra="allow"):
    """A workload of perfscale-load-generator."""

    name: str
    object: _Object
    type: Literal["burst", "steady-state", ""] = "burst"
    timeout: Duration = 300.0
    count: int = Field(ge=1)
    churn: int = Field(0, ge=0)
    pause: Duration = Field(20.0, alias="minChurnSleep")


def read_load_generator(files: Sequence[str]) -> Imported:
    """Return the workloads of the files as entries. Raises CommandError, BadDocument."""
    imported = Imported()
    imported.lose("the names of the objects: perfdag numbers them by run")
    for file in files:
        document = read_document(file)
        workload = validated(document, document.data, Workload)
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
        if own := sorted(set(re.findall(r"\$\{(\w+)\}", template)) - {"name"}):
            params["variables"] = {variable: f"${{{variable}}}" for variable in own}
        benchmark = "vmi-steady" if workload.type == "steady-state" else "vmi-burst"
        imported.entries[name] = {"name": name, "benchmark": benchmark, "params": params}
        if unknown := ", ".join(workload.model_extra or {}):
            imported.lose(f"{unknown}: no such key is known", name)
    return imported


def _template(path: Path, workload: Workload, imported: Imported) -> tuple[str, str]:
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
        why = f"no input variable `{match[1]}`; add it to inputVars of {path}"
        if not match[1]:
            why = f"{match[0].strip()[:40]} is not read; only {{{{.variable}}}} is"
        raise CommandError(f"{source}: {why}")

    body: Any = parse_document(ACTION.sub(fill, read_text(source)), str(source)).data
    if not isinstance(body, dict) or not isinstance(body.get("metadata"), dict):
        raise CommandError(f"{source}: no object of Kubernetes: it has no metadata")
    metadata = body["metadata"]
    namespace = variables.get("namespace", metadata.pop("namespace", None) or "default")
    metadata["name"] = "${name}"
    return yaml.safe_dump(body, sort_keys=False, width=100), str(namespace)


SUITES: dict[str, tuple[Callable[[Sequence[str]], Imported], str]] = {
    "kube-perftest": (read_kube_perftest, "its benchmarks and BenchmarkSets"),
    "perfscale-load-generator": (read_load_generator, "its workloads of KubeVirt"),
}
"""The reader of each format, and what it reads."""


for name, (_, kind) in SUITES.items():
    verb(
        f"import {name}",
        f"Print a suite from {kind}.",
        "",
        option("files", nargs="+", metavar="FILE", help="YAML files"),
    )(import_suite)


# a history: a CSV file of earlier figures

COLUMNS = ("time", "series", "value", "unit", "better")
SHOWN = 20
"""Lines on stderr about a file."""


class History:
    """The rows of a CSV file, and a line for what is unusual in it and what was done."""

    def __init__(self, path: Path, suite: str) -> None:
        self.path, self.suite = path, suite
        self.rows: list[Values] = []
        self.notes: list[str] = []
        self.undated = 0
        """Lines without a time, which are left out."""
        self._first: dict[str, tuple[str, str]] = {}

    def read(self) -> None:
        """Read the file. Raises CommandError."""
        try:
            with self.path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
                reader = csv.DictReader(file)
                reader.fieldnames = [(name or "").strip().lower() for name in next(reader.reader)]
                if missing := [name for name in COLUMNS[:3] if name not in reader.fieldnames]:
                    columns = f"the columns are {', '.join(COLUMNS)}"
                    raise CommandError(f"{self.path}: no column {', '.join(missing)}; {columns}")
                for fields in reader:
                    texts = [(fields.get(name) or "").strip() for name in COLUMNS]
                    self._add(reader.line_num, *texts)
        except (OSError, csv.Error, StopIteration) as error:
            raise CommandError(f"{self.path}: {str(error) or 'it is empty'}") from None

    def _add(self, line: int, when: str, name: str, text: str, unit: str, better: str) -> None:
        time = moment(when)
        if time is None:
            self.undated += 1
            self.notes.append(f"line {line}: {when!r} is no time; left out")
            return
        series = " ".join("".join(c if c.isprintable() else " " for c in name).split())
        if not series:
            series = self.suite
            self.notes.append(f"line {line}: no series; kept as series {series}")
        series, unit, factor, better = self._known(line, series, unit, better.lower())
        error = None
        try:
            value: float | None = float(text) * factor
        except ValueError:
            value = None
        if value is None or not math.isfinite(value):
            value, error = None, f"line {line}: value {text!r} is no number"
            self.notes.append(f"{error}; kept as an invalid sample of {series}")
        metric = None if error else "value"
        self.rows.append(
            {
                **{"entry": series, "point": digest("import", series), "benchmark": "import"},
                **{"series_id": digest(self.suite, series), "suite": self.suite},
                **{"params": "{}", "shape": "{}", "coords": "{}", "env": "{}", "nodes": []},
                **{"metric": metric, "stat": metric, "value": value, "headline": not error},
                **{"unit": unit, "better": better, "phase": "measure", "trigger": "import"},
                **{"status": "invalid" if error else "ok", "error": error},
                **{"started_at": time, "finished_at": time, "perfdag_version": __version__},
                **{"raw_uri": f"{self.path.name}:{line}"},
            }
        )

    def _known(self, line: int, series: str, unit: str, better: str) -> tuple[str, str, float, str]:
        """Return series, base unit, the factor to it, and the direction, as of the first line.

        Values of another dimension are another series.
        """
        word = better if better in ("higher", "lower") else "none"
        first, kept = self._first.setdefault(series, (unit or "1", word))
        own, factor = base_unit(unit or first)
        if own != base_unit(first)[0]:
            other = f"{series} ({own})"
            self.notes.append(f"line {line}: {series} in {unit}, first in {first}; kept as {other}")
            return self._known(line, other, unit, better)
        if better not in ("", kept):
            self.notes.append(f"line {line}: {series} is better {better!r}; taken as {kept}")
        return series, own, factor, kept

    def runs(self) -> list[list[Values]]:
        """Return the rows of each run, oldest first."""
        self.rows.sort(key=lambda row: row["started_at"])
        groups = itertools.groupby(self.rows, key=lambda row: row["started_at"])
        runs = [(time, [*rows]) for time, rows in groups]
        for time, rows in runs:
            run_id = f"{time:%Y%m%dT%H%M%SZ}-{digest(self.suite, self.path.name)[:8]}"
            count: Counter[str] = Counter()
            for row in rows:
                count[row["entry"]] += 1
                number = count[row["entry"]]
                sample = digest(row["series_id"], run_id, str(number))
                row |= {"run_id": run_id, "repetition": number, "sample_id": sample}
        return [rows for _, rows in runs]


def base_unit(unit: str) -> tuple[str, float]:
    """Return the base unit of a unit and the factor to it. One of the user's own is its own."""
    try:
        return to_base(unit)
    except ValueError:
        return unit, 1.0


def moment(text: str) -> datetime | None:
    """Return a time in UTC in whole seconds, or None if the text is none from 1970 on."""
    try:
        if re.fullmatch(r"\d{9,}(\.\d+)?", text):
            time = datetime.fromtimestamp(float(text) / (1000 if float(text) > 1e11 else 1), UTC)
        else:
            time = datetime.fromisoformat(text)
            time = time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return time.replace(microsecond=0) if time.year >= 1970 else None


@verb(
    "import history",
    "Store earlier figures as runs, so that `history`, `check`, `compare` and `site` know them. "
    "What is unusual in the file is listed on stderr.",
    """
    examples:
      perfdag import history boot.csv
      perfdag import history boot.csv --suite nightly --store s3://bench/results

    The columns are time, series, value, unit and better. A time is ISO 8601 (UTC if it names no
    zone) or seconds since 1970, cut to whole seconds. Values of equal times are one run, and
    several of one series are its repetitions. A unit such as ms or MiB/s becomes its base unit.
    better is higher, lower or none. The same file gives the same runs again. Exit code 1: a line
    has no time.
    """,
    option("file", metavar="FILE", help="CSV file with a line of column names"),
    STORE,
    option("--suite", metavar="NAME", help="suite of the runs (default: name of FILE)"),
)
def import_history(args: argparse.Namespace) -> int:
    """Store the runs of a file, and list what is unusual in it. Return 1 if lines were left out."""
    import pyarrow as pa

    from perfdag.results.collect import write_rows
    from perfdag.results.schema import SAMPLES, SCHEMA_VERSION
    from perfdag.store.s3 import open_store

    path = Path(args.file)
    suite, store = args.suite or suite_name(path.stem), open_store(args.store)
    if not re.fullmatch("[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", suite):
        raise CommandError("--suite: at most 40 lower-case letters, digits and -, such as boot")
    history = History(path, suite)
    history.read()
    runs = history.runs()
    for rows in runs:
        versioned = [row | {"schema_version": SCHEMA_VERSION} for row in rows]
        table = pa.Table.from_pylist(versioned, schema=SAMPLES)
        write_rows(store, suite, rows[0]["run_id"], table)
    more = [f"and {len(history.notes) - SHOWN} more lines"] * (len(history.notes) > SHOWN)
    for text in [*history.notes[:SHOWN], *more]:
        logger.info(f"{path}: {text}")
    if not runs:
        raise CommandError(f"{path}: no line has a time, so nothing was stored")
    stored = f"{plural(len(runs), 'run')}, {plural(len(history.rows), 'value')}, suite {suite}"
    print(f"{stored}, store {store.root}; perfdag history {suite} shows them")
    return EXIT_FAILED if history.undated else EXIT_OK
