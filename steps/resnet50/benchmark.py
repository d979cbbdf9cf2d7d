"""resnet50: ResNet-50 inference under MLCommons LoadGen.

It starts the program on hosts, reads what it prints, and judges whether that is what it claims.
"""

import json
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from perfdag.benchmark.contract import (
    Benchmark,
    Gang,
    Host,
    Invalid,
    Measurement,
    Metric,
    NotInstalled,
    Output,
    Problem,
    Remark,
    SampleError,
    Shape,
    ShortForm,
    Skip,
    Tool,
)
from perfdag.hosts import gpu_use
from perfdag.identity import grouped
from perfdag.steps.resnet50.workload import (
    PERCENTILES,
    TAIL,
    Result,
    Workload,
    caveats,
    kept,
    read,
)

if TYPE_CHECKING:
    import pyarrow

DRIVER = Tool(
    "the NVIDIA driver (nvidia-smi)",
    {"apt": "nvidia-driver", "dnf": "nvidia-driver", "zypper": "nvidia-driver-G06"},
)
MARKS = ("fast", "loadgen")
"""Coordinates of `caveats`."""
W = TypeVar("W", bound=Workload)
METRICS = (
    Metric(
        "throughput",
        "1/s",
        "higher",
        "samples completed per second in Offline",
        headline=True,
        counts="samples",
    ),
    Metric(
        "tail_latency",
        "s",
        "lower",
        "the scenario's own result: p99 in Server, p90 in SingleStream",
        headline=True,
    ),
    Metric("latency", "s", "lower", "time from the schedule to the answer, by percentile and mean"),
    Metric(
        "estimated_latency",
        "s",
        "lower",
        "SingleStream's p90 at 99 % confidence (early stopping)",
        elapsed=False,
    ),
    Metric(
        "completed_rate",
        "1/s",
        "none",
        "queries completed per second",
        counts="queries",
        label="queries completed",
    ),
    Metric(
        "scheduled_rate",
        "1/s",
        "none",
        "queries that LoadGen scheduled per second",
        counts="queries",
        label="queries scheduled",
    ),
    Metric(
        "target_rate",
        "1/s",
        "none",
        "queries per second that Server asked for, given or by default",
        counts="queries",
    ),
    Metric(
        "largest_rate",
        "1/s",
        "none",
        "most queries per second that hold latency_bound, by the search for the default of"
        " target_rate, which is nine tenths of it; 0: none holds it",
        counts="queries",
    ),
    Metric("batch_size", "1", "none", "mean samples in a batch of the dynamic batcher"),
    Metric(
        "first_batch",
        "s",
        "lower",
        "time of the first batch: lazy initialisation, compilation, tuning",
        label="time of the first batch",
    ),
    Metric(
        "compile_time",
        "s",
        "lower",
        "torch.compile: first minus steady batch of a size (coordinate batch), and their total;"
        " without lazy initialisation",
        lowest=-math.inf,
    ),
    Metric(
        "warm_batch",
        "s",
        "lower",
        "median time of a batch at the end of the warm-up, closed loop",
        label="time of a warm batch",
    ),
    Metric(
        "cost_per_million",
        "currency",
        "lower",
        "price of a million samples at this rate; the coordinates name the currency",
        label="cost of a million samples",
    ),
)


def missing(host: Host, params: Workload, argv: Sequence[str]) -> list[Tool]:
    """Return what a host lacks to run the program's argv: a wrapper, Python, or its packages."""
    if host.which(argv[0]) is None:
        return [Tool(argv[0], {}, f"install it on {host.name}, or correct its path")]
    wanted = ["perfdag", "pydantic", "mlperf_loadgen"]
    if params.system != "stub":
        wanted += ["torch", "torchvision"]
    code = (
        "import importlib.util,sys;print(*[n for n in sys.argv[1:] if"
        " importlib.util.find_spec(n) is None])"
    )
    finished = host.run([*argv[:-2], "-c", code, *wanted], timeout=60)
    behind = f" behind {argv[0]}" if len(argv) > 3 else ""
    if finished.code == 0:
        advice = f"{argv[-3]} -m pip install '/path/to/perfdag[torch]'" if params.python else ""
        names = finished.stdout.split()
        packages = {"pip": "'perfdag[torch]'"}
        return [Tool(f"{name} (Python){behind}", packages, advice) for name in names]
    advice = f"{host.name} reports: {finished.tail() or f'exit code {finished.code}'}"
    return [Tool(f"{argv[-3]} (Python){behind}", {}, advice)]


@contextmanager
def naming(run: str) -> Iterator[None]:
    """Name the run of an error in the block."""
    try:
        yield
    except SampleError as error:
        raise type(error)(f"{run}: {error}") from error


class WorkloadBenchmark(Benchmark[W], Generic[W]):
    """The base of the benchmarks of a workload; each starts the program in its own way."""

    canaries: ClassVar[tuple[str, ...]] = ("cpu", "memory")
    short_forms: ClassVar[Mapping[str, ShortForm]] = {
        "scenario": {"offline": "Offline", "server": "Server", "single-stream": "SingleStream"},
        "device": {"cpu": "CPU", "cuda": "GPU"},
        "precision": "{}",
        "backend": {"eager": "eager", "compile": "compiled"},
        "batch": "batch {}",
        "threads": "{} threads",
        "target_rate": "{} queries/s",
        "latency_bound": "bound {}",
        "max_delay": "delay {}",
        "wrapper": "{}",
        "copies": "{} copies",
        "shared": {"device": "on one device", "node": "on one node"},
        "when": {"alone": "alone", "together": "together"},
        "side": "{}",
        "pair": "pair {}",
        "pairs": "{} pairs",
        "limit": "limit {}",
        "currency": "{}",
        "system": "{}",
        "fast": {"true": "smoke test", "false": "whole run", "not comparable": "smoke test"},
        "loadgen": "LoadGen says {}",
    }

    def shape(self, params: W) -> dict[str, Any]:
        return {"image": "resnet50"}

    def check(self, params: W, shape: Shape) -> Iterator[Problem]:
        gpus = [name for name in shape.resources.both if "gpu" in name or "mig" in name]
        if gpus and params.device == "cpu" and params.system == "resnet50":
            yield Problem(
                "idle-gpu",
                f"resources ask for {', '.join(gpus)} but device is cpu:"
                " set device: cuda, or leave the resource out",
            )

    def seconds(self, params: W) -> float:
        return params.seconds()

    def gpus(self, params: W) -> int:
        return 1

    def argvs(self, params: W) -> list[list[str]]:
        """Return the command lines of the program, each once."""
        return [params.argv()]

    def require(self, gang: Gang, params: W) -> None:
        hosts = list(dict.fromkeys(gang.hosts))  # copies may share one
        with_gpus = hosts if params.device == "cuda" else []
        lacking = {
            tool.program: tool
            for host in hosts
            for argv in self.argvs(params)
            for tool in missing(host, params, argv)
        }
        if any(host.which("nvidia-smi") is None for host in with_gpus):
            lacking[DRIVER.program] = DRIVER
        if lacking:
            raise NotInstalled(list(lacking.values()))
        for host in with_gpus:
            if reason := gpu_use.problem(host):
                raise Skip(f"device cuda: {reason}")

    def run(self, gang: Gang, params: W) -> list[Measurement]:
        hosts = list(dict.fromkeys(gang.hosts))  # copies may share one
        names = {host: name for name, host in gpu_use.by_name(hosts).items()}
        used: list[str | None] = []
        with gpu_use.watched(hosts if params.device == "cuda" else []) as watch:
            runs = self.measure(gang, params)
            for host, result in runs:
                name = names[host]
                watch.spans[name].append(result.span)
                uuid = str(result.device.get("uuid", ""))
                gpus = gpu_use.used(watch.hosts.get(name, {}).get("gpus", []), {uuid})
                # A MIG slice has a uuid of its own. A pod that sees one GPU used that one.
                used.append(gpus[0].get("uuid") if len(gpus) == 1 else None)
            watch.used |= set(filter(None, used))
        _, first = runs[0]
        output = gang.output
        output.argv = self.argvs(params)
        output.comparable = False
        output.tool = f"LoadGen {first.loadgen}"
        if torch := first.raw.get("versions", {}).get("torch"):
            output.tool = f"torch {torch}, {output.tool}"
        if "largest_rate" in first.raw:  # its figures do not compare with those of another load
            output.tool += ", at a searched rate"
        names_of_facts = ("model", "device", "versions")
        output.facts |= {name: first.raw[name] for name in names_of_facts if name in first.raw}
        output.facts |= {"span": first.span, "devices": used}
        if watch.hosts:
            (_, lead), *peers = watch.hosts.items()
            output.facts |= lead | {"against": watch.against, "used": sorted(watch.used)}
            if peers:
                output.facts["peers"] = dict(peers)
        return self.parse(output, params)

    @abstractmethod
    def measure(self, gang: Gang, params: W) -> list[tuple[Host, Result]]:
        """Run the programs; keep what they print in the texts of `gang.output`."""

    @abstractmethod
    def parse(self, output: Output, params: W) -> list[Measurement]:
        """Return the values of the texts. Raises Failed, Invalid."""


class Resnet50(WorkloadBenchmark[Workload]):
    """ResNet-50 inference under LoadGen: Offline, Server, SingleStream.

    LoadGen makes the load and says VALID or INVALID; its logs are kept verbatim. Server is open
    loop: a dynamic batcher answers Poisson arrivals. Images are preprocessed before the clock
    starts (MLPerf's rule).
    A run shorter than MLPerf's 600 s compares only with runs of its kind.

    Clock: LoadGen's own. It starts when a query was scheduled (Server) or issued (SingleStream,
    Offline). It stops when the classes are in host memory and LoadGen has them. Imports, weights,
    compilation, warm-up and preprocessing are outside.
    """

    coords: ClassVar[tuple[str, ...]] = ("batch", "currency", *MARKS)
    remarks = (
        Remark(r"(?i)^\d+ errors? encountered", "invalid"),
        Remark(r"(?i)^\d+ warnings? encountered", "note"),
    )
    metrics = METRICS

    def measure(self, gang: Gang, params: Workload) -> list[tuple[Host, Result]]:
        texts = gang.output.texts
        host = gang.hosts[0]
        finished = host.run(params.argv(), timeout=gang.timeout, stdin=params.stdin())
        result = kept(texts, "result", finished, params)
        texts |= {f"mlperf_log_{name}": text for name, text in result.raw["test"]["logs"].items()}
        return [(host, result)]

    def parse(self, output: Output, params: Workload) -> list[Measurement]:
        result = read(output.texts.get("result", ""))
        values = measurements(result, params)
        if reason := result.fault(params) or output.facts.get("against"):
            raise Invalid(reason, output.texts, values)
        return values

    def exports(self, rows: "pyarrow.Table") -> Mapping[str, bytes]:
        """Return resnet50.json; several devices have one file each."""
        files = documents(rows.select(DOCUMENTED).to_pylist())
        return {
            name: json.dumps(document, indent=2).encode() + b"\n"
            for name, document in files.items()
        }


def measurements(result: Result, params: Workload) -> list[Measurement]:
    """Return all values, with the caveats in the coordinates."""
    marked = caveats([result], params)
    return [
        replace(row, coords={**row.coords, **marked})
        for row in (*_of_test(result, params), *_of_batches(result.raw["warmup"], params))
        if math.isfinite(row.value)
    ]


def _of_test(result: Result, params: Workload) -> Iterator[Measurement]:
    test = result.raw["test"]
    n = result.queries
    if params.scenario == "offline":
        yield Measurement("throughput", result.rate, n=n)
    else:
        tail = TAIL[params.scenario]
        yield Measurement("tail_latency", result.latency(tail), tail, n=n)
        for stat in PERCENTILES:
            yield Measurement("latency", result.latency(stat), stat, n=n)
        for metric, value, stat in (
            ("latency", result.mean, "mean"),
            ("estimated_latency", result.estimate, tail),
            ("completed_rate", result.completed_rate, "value"),
            ("scheduled_rate", result.scheduled_rate, "value"),
        ):
            if value is not None:
                yield Measurement(metric, float(value), stat, n=n)
    if params.scenario == "server":
        yield Measurement("target_rate", float(test["rate"]))
        if "largest_rate" in result.raw:
            yield Measurement("largest_rate", float(result.raw["largest_rate"]))
        sizes = {int(size): count for size, count in test["batches"].items()}
        if batches := sum(sizes.values()):
            mean = sum(size * count for size, count in sizes.items()) / batches
            yield Measurement("batch_size", mean, "mean", n=batches)
    if params.price_per_hour is not None:
        cost = params.price_per_hour / 3600 / result.rate * 1e6
        yield Measurement("cost_per_million", cost, coords={"currency": params.currency})


def _of_batches(warm: Mapping[str, Any], params: Workload) -> Iterator[Measurement]:
    yield Measurement("first_batch", warm["first"], n=1)
    yield Measurement("warm_batch", warm["steady"], "p50", {"batch": params.batch})
    if params.backend == "compile" and params.system != "stub":
        extra = {int(k): max(0.0, first - steady) for k, (first, steady) in warm["by_size"].items()}
        for size, seconds in sorted(extra.items()):
            yield Measurement("compile_time", seconds, coords={"batch": size}, n=1)
        yield Measurement("compile_time", sum(extra.values()), "total", n=len(extra))


DOCUMENTED = [
    *("phase", "point", "repetition", "params", "coords", "metric", "stat", "value"),
    *("status", "error", "env"),
]
"""Columns that a document needs."""


def documents(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the documents of a run by file name, one a device; empty without samples.

    `rows` have the columns DOCUMENTED. Valid and invalid samples appear once (`valid` says which);
    warm-ups do not. As the field names say, times are in ms, rates in 1/s, memory in 10^9 bytes.
    """
    samples = grouped(
        (row for row in rows if row["phase"] == "measure"),
        key=lambda row: (row["point"], row["repetition"]),
    )
    measured = [
        (facts, sample)
        for sample in samples.values()
        if "span" in (facts := json.loads(sample[0]["env"] or "{}").get("sample", {}))
    ]
    whole: dict[str, dict[str, Any]] = {}
    for facts, sample in sorted(measured, key=lambda pair: float(pair[0]["span"][0])):
        gpu = gpu_info(facts)
        started = datetime.fromtimestamp(facts["span"][0], UTC).isoformat(timespec="seconds")
        first = {"timestamp": started, "gpu_info": gpu, "benchmarks": []}
        document = whole.setdefault(gpu["name"], first)
        document["benchmarks"].append(entry(sample, facts["span"]))
    several = len(whole) > 1
    return {
        f"resnet50{f'-{number}' if several else ''}.json": document
        for number, document in enumerate(whole.values(), 1)
    }


def gpu_info(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the device of a sample; on a CPU, that."""
    device = facts.get("device", {})
    gpus = gpu_use.used(facts.get("gpus") or [{}], {str(device.get("uuid"))})
    memory = device.get("memory")
    return {
        "name": device.get("name", "unknown"),
        "cuda_version": device.get("cuda"),
        "total_memory_gb": round(memory / 1e9, 1) if memory else None,
        "driver": gpus[0].get("driver"),
    }


def entry(rows: Sequence[Mapping[str, Any]], span: Sequence[float]) -> dict[str, Any]:
    """Return the element of `benchmarks` for the rows of a sample and the time of its test."""
    params = Workload.model_validate_json(rows[0]["params"])
    values = {(row["metric"], row["stat"]): row["value"] for row in rows}
    coords = json.loads(rows[0]["coords"] or "{}")
    invalid = "LoadGen says INVALID of a smoke test" if "loadgen" in coords else None
    reason = rows[0]["error"] or invalid
    element: dict[str, Any] = {
        "scenario": params.scenario.replace("-", "_"),
        "batch_size": params.batch,
        "duration_sec": round(span[1] - span[0], 3),
        "valid": reason is None,
        "reason": reason,
        "precision": params.precision,
        "backend": params.backend,
        "fast": params.fast,
    }
    if params.scenario == "server":
        element["target_qps"] = values["target_rate", "value"]
        element["latency_bound_ms"] = round(params.latency_bound * 1e3, 4)
    rate = {"offline": "throughput", "server": "completed_rate"}.get(params.scenario)
    if rate:
        element["throughput_samples_per_sec"] = round(values[rate, "value"], 3)
    element |= {
        f"latency_{stat}_ms": round(values["latency", stat] * 1e3, 4)
        for stat in PERCENTILES
        if ("latency", stat) in values
    }
    return element
