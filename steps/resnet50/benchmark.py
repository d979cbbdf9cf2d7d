"""resnet50: ResNet-50 inference under MLCommons LoadGen."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from perfdag.benchmark import contract
from perfdag.benchmark.contract import Gang, Output
from perfdag.hosts import gpu_queries
from perfdag.outcome import Invalid, Measurement, SampleError
from perfdag.stats.percentiles import needed
from perfdag.steps.resnet50 import launch, result, workload
from perfdag.steps.resnet50.measurements import COORDS, MARKS, METRICS, caveats, measurements
from perfdag.steps.resnet50.params import Workload
from perfdag.steps.resnet50.result import Result
from perfdag.steps.resnet50.validity import invalid, result_fault


def summary_document(run: Result, params: Workload, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return one measurement as a document; `facts` has what the GPUs did.

    As the field names say, times are in ms, rates in 1/s, memory in 10^9 bytes.
    """
    device = run.raw.get("device", {})
    gpus = gpu_queries.used(facts.get("gpus") or [{}], {str(device.get("uuid"))})
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


class Resnet50(workload.WorkloadBenchmark[Workload]):
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

    def run(self, gang: Gang, params: Workload) -> Output:
        host, argv = gang.hosts[0], [*launch.wrapper_argv(params), *launch.program_argv(params)]
        with launch.watched([host], params) as watch:
            finished = host.run(argv, timeout=gang.timeout, stdin=launch.program_input(params))
            text = watch.result_text(host, finished)
        facts = {**workload.program_facts({"result": text}), **watch.facts}
        return Output(
            workload.texts(text, finished.stderr),
            [argv],
            workload.versions(text),
            {**facts, **_read(text, params, facts)},
        )

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
