"""resnet50: ResNet-50 inference under MLCommons LoadGen."""

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from perfdag.benchmark import contract
from perfdag.benchmark.contract import Gang, Metric, Output
from perfdag.hosts import gpu_use
from perfdag.outcome import Invalid, Measurement, SampleError
from perfdag.stats.robust import needed
from perfdag.steps.resnet50 import launch, result
from perfdag.steps.resnet50.params import Workload
from perfdag.steps.resnet50.result import (
    MARKS,
    PERCENTILES,
    TAIL,
    Result,
    caveats,
    invalid,
    result_fault,
)

METRICS = (
    Metric("throughput", "1/s", "higher", "samples completed per second in Offline", headline=True),
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
    ),
    Metric("completed_rate", "1/s", "none", "queries completed per second"),
    Metric("scheduled_rate", "1/s", "none", "queries that LoadGen scheduled per second"),
    Metric(
        "target_rate",
        "1/s",
        "none",
        "queries per second that Server asked for, given or by default",
    ),
    Metric("batch_size", "1", "none", "mean samples in a batch of the dynamic batcher"),
    Metric(
        "phase_time",
        "s",
        "lower",
        "time of one full batch by phase, with an idle device before and after: preprocess, copy,"
        " compute (on CUDA by events), postprocess",
    ),
    Metric(
        "first_batch",
        "s",
        "lower",
        "time of the first batch: lazy initialisation, compilation, tuning",
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
        "warm_batch", "s", "lower", "median time of a batch at the end of the warm-up, closed loop"
    ),
    Metric(
        "cost_per_million",
        "currency",
        "lower",
        "price of a million samples at this rate; the coordinates name the currency",
    ),
)
COORDS = ("batch", "currency", "phase")


def measurements(result: Result, params: Workload) -> list[Measurement]:
    """Return all values, with the caveats in the coordinates."""
    marked = caveats([result], params)
    return [
        replace(row, coords={**row.coords, **marked})
        for row in (*_of_test(result, params), *_batches(result.raw, params))
        if math.isfinite(row.value)
    ]


def _batches(raw: Mapping[str, Any], params: Workload) -> Iterator[Measurement]:
    for phase, seconds in raw.get("phases", {}).items():
        yield Measurement(
            "phase_time",
            statistics.median(seconds),
            "p50",
            {"phase": phase, "batch": params.batch},
            len(seconds),
        )
    if warm := raw.get("warmup"):
        yield Measurement("first_batch", warm["first"], n=1)
        yield Measurement("warm_batch", warm["steady"], "p50", {"batch": params.batch})
        yield from _compiled(warm, params)


def _compiled(warm: Mapping[str, Any], params: Workload) -> Iterator[Measurement]:
    if params.backend != "compile" or params.system == "stub":
        return
    seconds = {
        int(size): max(0.0, first - steady) for size, (first, steady) in warm["by_size"].items()
    }
    for size, extra in sorted(seconds.items()):
        yield Measurement("compile_time", extra, coords={"batch": size}, n=1)
    yield Measurement("compile_time", sum(seconds.values()), "total", n=len(seconds))


def _of_test(result: Result, params: Workload) -> Iterator[Measurement]:
    tested, test = result.tested, result.raw["test"]
    queries = tested.queries
    if params.scenario == "offline":
        yield Measurement("throughput", result.rate, n=queries)
    else:
        tail = TAIL[params.scenario]
        if queries >= needed(PERCENTILES[tail]):
            yield Measurement(
                "tail_latency", tested.percentiles[PERCENTILES[tail]], tail, n=queries
            )
        for stat, p in PERCENTILES.items():
            if queries >= needed(p):
                yield Measurement("latency", tested.percentiles[p], stat, n=queries)
        if tested.mean is not None:
            yield Measurement("latency", tested.mean, "mean", n=queries)
    if tested.estimate is not None:
        yield Measurement("estimated_latency", tested.estimate, TAIL[params.scenario], n=queries)
    for metric, value in (
        ("completed_rate", tested.rate),
        ("scheduled_rate", tested.scheduled_rate),
    ):
        if value is not None and params.scenario != "offline":
            yield Measurement(metric, value, n=queries)
    if params.scenario == "server":
        yield Measurement("target_rate", float(test["rate"]))
        sizes = {int(size): count for size, count in test["batches"].items()}
        batches = sum(sizes.values())
        if batches:
            mean = sum(size * count for size, count in sizes.items()) / batches
            yield Measurement("batch_size", mean, "mean", n=batches)
    if params.price_per_hour is not None:
        yield Measurement(
            "cost_per_million",
            cost_per_million(params.price_per_hour, result.rate),
            coords={"currency": params.currency},
        )


def cost_per_million(price_per_hour: float, rate: float) -> float:
    """Return the price of a million samples: price / 3600 s / rate * 10^6."""
    return price_per_hour / 3600 / rate * 1e6


def summary_document(run: Result, params: Workload, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return one measurement as a document; `facts` has what the GPUs did.

    As the field names say, times are in ms, rates in 1/s, memory in 10^9 bytes.
    """
    device = run.raw.get("device", {})
    gpus = gpu_use.used(facts.get("gpus") or [{}], {str(device.get("uuid"))})
    memory = device.get("memory")
    started = datetime.fromtimestamp(run.span[0], UTC).isoformat(timespec="seconds")
    return {
        "timestamp": started,
        "gpu_info": {
            "name": device.get("name", "unknown"),
            "cuda_version": device.get("cuda"),
            "total_memory_gb": round(memory / 1e9, 1) if memory else None,
            "driver": gpus[0].get("driver"),
        },
        "benchmarks": [entry(run, params, facts.get("against"))],
    }


def entry(run: Result, params: Workload, against: str | None = None) -> dict[str, Any]:
    """Return an element of `benchmarks`; `against` is why figures are not the device's own."""
    start, end = run.span
    element: dict[str, Any] = {
        "scenario": params.scenario.replace("-", "_"),
        "batch_size": params.batch,
        "duration_sec": round(end - start, 3),
    }
    tested, reason = run.tested, result_fault(run, params) or against
    if not tested.valid:
        # The row of a smoke test is marked instead of being invalid.
        reason = reason or invalid(tested, params)
    element |= {
        "valid": reason is None,
        "reason": reason,
        "precision": params.precision,
        "backend": params.backend,
    }
    element |= caveats([run], params) | {"fast": params.fast}
    if params.scenario == "server":
        element |= {
            "target_qps": round(run.raw["test"]["rate"], 3),
            "latency_bound_ms": round(params.latency_bound * 1e3, 4),
        }
    if params.scenario in ("offline", "server"):
        element["throughput_samples_per_sec"] = round(run.rate, 3)
    if params.scenario != "offline":
        element |= {
            f"latency_p{p * 100:g}_ms": round(tested.percentiles[p] * 1e3, 4)
            for p in (0.5, 0.9, 0.95, 0.99, 0.999)
            if tested.queries >= needed(p)
        }
    return element


def documents(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the documents of a run by file name, one a device; empty without samples.

    Each row needs `env`, `phase`, `point` and `repetition`. Valid and invalid samples appear once
    (`valid` says which); warm-ups do not.
    """
    by_sample: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        document = json.loads(row["env"] or "{}").get("sample", {}).get("summary_document")
        if document and row["phase"] == "measure":
            by_sample[(row["point"], row["repetition"])] = document
    devices: dict[str, dict[str, Any]] = {}
    for document in sorted(by_sample.values(), key=lambda document: str(document["timestamp"])):
        whole = devices.setdefault(document["gpu_info"]["name"], {**document, "benchmarks": []})
        whole["benchmarks"] += document["benchmarks"]
    several = len(devices) > 1
    return {
        f"resnet50{f'-{number}' if several else ''}.json": whole
        for number, whole in enumerate(devices.values(), 1)
    }


if TYPE_CHECKING:
    import pyarrow


class Resnet50(launch.WorkloadBenchmark[Workload]):
    """ResNet-50 inference under LoadGen: Offline, Server, SingleStream.

    LoadGen makes the load and says VALID or INVALID; its logs are kept verbatim. Server is open
    loop: a dynamic batcher answers Poisson arrivals. Images are preprocessed before the clock
    starts (MLPerf's rule). Preprocessing, copies and compute are reported apart as `phase_time`.
    A run shorter than MLPerf's 600 s compares only with runs of its kind.

    Clock: LoadGen's own. It starts when a query was scheduled (Server) or issued (SingleStream,
    Offline). It stops when the classes are in host memory and LoadGen has them. Imports, weights,
    compilation, warm-up and preprocessing are outside.
    """

    name: ClassVar[str] = "resnet50"
    Params: ClassVar[type[contract.Params]] = Workload
    coords: ClassVar[tuple[str, ...]] = (*COORDS, *MARKS)
    metrics = METRICS

    def measure(self, gang: Gang, params: Workload) -> Output:
        host, argv = gang.hosts[0], [*launch.wrapper_argv(params), *launch.program_argv(params)]
        with launch.watched([host], params) as watch:
            finished = host.run(argv, timeout=gang.timeout, stdin=launch.program_input(params))
            text = watch.result_text(host, finished)
        facts = {**launch.program_facts({"result": text}), **watch.facts}
        return Output(
            launch.texts_of(text, finished.stderr),
            [argv],
            launch.versions(text),
            {**facts, **_read(text, params, facts)},
        )

    def run(self, gang: Gang, params: Workload) -> list[Measurement]:
        gang.output = self.measure(gang, params)
        gang.output.comparable = False
        return self.parse(gang.output, params)

    def parse(self, output: Output, params: Workload) -> list[Measurement]:
        measured = result.read(output.texts.get("result", ""))
        values = measurements(measured, params)
        reason = result_fault(measured, params) or output.facts.get("against")
        if reason:
            raise Invalid(reason, output.texts, values)
        return values

    def exports(self, rows: "pyarrow.Table") -> Mapping[str, bytes]:
        """Return resnet50.json; several devices have one file each."""
        files = documents(rows.select(["env", "phase", "point", "repetition"]).to_pylist())
        return {
            name: json.dumps(document, indent=2).encode() + b"\n"
            for name, document in files.items()
        }


def _read(text: str, params: Workload, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the summary document of a readable result."""
    try:
        return {"summary_document": summary_document(result.read(text), params, facts)}
    except SampleError:
        return {}
