"""Every recording as what a parser reads: the benchmark, its parameters, and the output.

This is the one place that knows how a file of this folder becomes an Output. The tests of damage
and the golden rows use the same table. A name is FAMILY/RECORDING.
"""

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from perfdag.benchmark.contract import Gang, Measurement, Output, SampleError, metrics_by_name
from perfdag.benchmark.registry import get
from perfdag.hosts.local import LocalHost
from perfdag.shape import Shape
from perfdag.steps import openfoam as foam, rdma, torchbench as torch
from perfdag.steps.queue.scaling_benchmark import QueueScalingParams, parse as parse_queue
from perfdag.steps.scale import api_metrics
from perfdag.testing import Recording
from tests.fakes.files import write_programs
from tests.recorded import record
from tests.recorded.loadgen.record import CASES as LOADGEN, SHORT

HERE = Path(__file__).parent
Outcome = dict[str, Any]
"""The status, the first line of the error, and the rows without what is not set."""

# -- how each family becomes an Output -----------------------------------------------------------


def text(name: str) -> str:
    """Return the text of a file of this folder."""
    return (HERE / name).read_text()


def of_method(benchmark: Any, params: dict[str, Any], output: Output) -> Recording:
    """A recording of a benchmark whose parser is a method that also reads the facts."""

    def parse(texts: dict[str, str], params: Any) -> list[Measurement]:
        rows: list[Measurement] = benchmark.parse(replace(output, texts=texts), params)
        return rows

    return Recording(benchmark, benchmark.Params.model_validate(params), output, parse)


def openfoam(name: str, **params: Any) -> Recording:
    """OpenFOAM's log, with times of the mesh that were not recorded."""
    benchmark = get("openfoam")
    timing = "mesh_s=0.25\ndecompose_s=0.5\n"
    output = Output({"stdout": text(f"openfoam/{name}.stdout"), "timing": timing})
    return Recording(benchmark, benchmark.Params.model_validate(params), output, foam.parse)


def perftest(name: str, benchmark: str = "rdma-bandwidth", **params: Any) -> Recording:
    measured = get(benchmark)
    parse = rdma.parse_bandwidth if benchmark == "rdma-bandwidth" else rdma.parse_latency
    output = Output({"client0": text(f"perftest/{name}")}, tool="perftest 6.06")
    return Recording(measured, measured.Params.model_validate(params), output, parse)


def torchbench(name: str) -> Recording:
    model, test, batch = name.split("-")
    benchmark = get("torchbench")
    params = {"model": model, "test": test, "batch_size": int(batch)}
    output = Output({"stdout": text(f"torchbench/{name}.stdout")}, tool="torch 2.15.0")
    return Recording(benchmark, benchmark.Params.model_validate(params), output, torch.parse)


def loadgen(name: str) -> Recording:
    benchmark = get("resnet50")
    params = {**SHORT, **LOADGEN[name], "price_per_hour": 3.6}
    return of_method(
        benchmark,
        params,
        Output({"result": text(f"loadgen/{name}.json")}),
    )


def loadgen_in_several_runs(name: str, texts: dict[str, str], **params: Any) -> Recording:
    """One run of LoadGen in place of each run of a benchmark of several."""
    benchmark = get(name)
    params = {"system": "stub", "scenario": "single-stream", **params}
    return of_method(benchmark, params, Output(texts))


def queue(name: str) -> Recording:
    benchmark, params = get("queue-scaling"), QueueScalingParams(limit=3)
    output = Output({"stdout": text(f"queue/{name}.json")})
    return Recording(benchmark, params, output, parse_queue)


# -- the table -----------------------------------------------------------------------------------


class Case(NamedTuple):
    """How a recording is loaded, and how it is damaged.

    The half of each of the texts `halves` must be refused. None: it is not damaged.
    """

    load: Callable[[], Recording]
    halves: tuple[str, ...] | None = None


def _halves(name: str) -> tuple[str, ...] | None:
    if name == "iperf/no-such-congestion":
        return None
    return ("stdout",) if name.startswith("imb/") else ("client",)


_LOG = ("stdout",)
_FOAM: dict[str, tuple[dict[str, Any], tuple[str, ...] | None]] = {
    "xs-1-proc": ({"size": "XS"}, _LOG),
    "xs-2-procs": ({"size": "XS", "procs": 2}, _LOG),
    "xs-2-procs-openmpi5": (
        {"size": "XS", "time_steps": 5, "procs": 2, "oversubscribe": True},
        None,
    ),
    "s-1-proc": ({"size": "S", "time_steps": 3}, None),
    "s-2-procs": ({"size": "S", "time_steps": 3, "procs": 2}, None),
    "gamg-tolerance": (
        {
            "cells": 16,
            "time_steps": 5,
            "solver": "GAMG",
            "stop": "tolerance",
            "tolerance": 1e-6,
        },
        _LOG,
    ),
    "diverged": ({"cells": 12, "time_steps": 40, "delta_t": 0.5, "pressure_iterations": 1}, None),
    "runaway": ({"cells": 50, "time_steps": 8, "pressure_iterations": 8}, None),
    "gang-2-pods": (
        {
            "cells": 16,
            "time_steps": 5,
            "pressure_iterations": 50,
            "procs": 2,
            "nodes": 2,
            "oversubscribe": True,
        },
        None,
    ),
}
_LATENCY: dict[str, Any] = {"benchmark": "rdma-latency"}
_PERFTEST: dict[str, tuple[dict[str, Any], tuple[str, ...] | None]] = {
    "constructed-write-bw-all-26.04.txt": ({}, ("client0",)),
    "constructed-write-bw-65536-duration.txt": ({"duration": "10s", "sizes": [65536]}, None),
    "constructed-read-lat-all-26.04.txt": ({**_LATENCY, "mode": "read"}, ("client0",)),
    "constructed-send-lat-duration.txt": (
        {**_LATENCY, "mode": "send", "duration": "10s", "sizes": [2]},
        None,
    ),
    "printed-write-bw-all-25.01.txt": ({"rdma_cm": True}, None),
    "printed-read-lat-all-25.01.txt": ({**_LATENCY, "mode": "read", "rdma_cm": True}, None),
}
_SINGLE_STREAM = "loadgen/single-stream.json"
_TORCHBENCH_DAMAGED = ("alexnet-eval-2", "resnet50-eval-1")

CASES: dict[str, Case] = {
    **{name: Case(partial(record.load, name), _halves(name)) for name in record.CASES},
    **{
        f"openfoam/{name}": Case(partial(openfoam, name, **params), halves)
        for name, (params, halves) in _FOAM.items()
    },
    **{
        f"perftest/{name}": Case(partial(perftest, name, **params), halves)
        for name, (params, halves) in _PERFTEST.items()
    },
    **{
        f"torchbench/{file.stem}": Case(
            partial(torchbench, file.stem), _LOG if file.stem in _TORCHBENCH_DAMAGED else None
        )
        for file in sorted((HERE / "torchbench").glob("*.stdout"))
    },
    **{f"loadgen/{name}": Case(partial(loadgen, name)) for name in LOADGEN},
    "loadgen/overhead": Case(
        lambda: loadgen_in_several_runs(
            "resnet50-overhead",
            {"order": "ABBA"}
            | dict.fromkeys(("000A", "001B", "002B", "003A"), text(_SINGLE_STREAM)),
            wrapper=["treated"],
            pairs=2,
        )
    ),
    "loadgen/interference": Case(
        lambda: loadgen_in_several_runs(
            "resnet50-interference",
            dict.fromkeys(("solo-0", "solo-1", "together-0", "together-1"), text(_SINGLE_STREAM)),
        )
    ),
    "queue/validate": Case(partial(queue, "validate")),
}

DAMAGED = {name: case for name, case in CASES.items() if case.halves is not None}
"""The recordings whose damage a parser must notice."""

# -- what a recording becomes --------------------------------------------------------------------


def parsed(case: Case) -> Outcome:
    """Return what the parser of a benchmark makes of a recording."""
    benchmark, params, output, parse = case.load()
    declared = metrics_by_name(benchmark, params.model_dump(mode="json", by_alias=True))
    status, error, measurements = "ok", "", []
    try:
        measurements = parse(output.texts, params)
    except SampleError as raised:
        status, error, measurements = raised.status, _first_line(raised), raised.measurements
    rows = [_row(each, declared[each.metric]) for each in measurements]
    return _outcome(status, error, rows)


def without_device() -> Outcome:
    """Return what a sample of perftest becomes on a machine without an RDMA device."""
    with tempfile.TemporaryDirectory() as folder:
        script = f"cat {HERE}/perftest/no-device.txt >&2\nexit 1"
        write_programs(Path(folder), {"ib_write_bw": script})
        benchmark = get("rdma-bandwidth")
        hosts = [LocalHost(name="client"), LocalHost(name="server")]
        gang = Gang(hosts, Shape.model_validate({"hosts": {"count": 2}}), 10, folder)
        path = {"PATH": f"{folder}:{os.environ['PATH']}"}
        try:
            with patch.dict(os.environ, path):
                benchmark.run(gang, benchmark.Params())
        except SampleError as error:
            return _outcome(error.status, _first_line(error).partition(":")[0], [])
    raise AssertionError("a run without a device has a value")


def api_server() -> Outcome:
    """Return the requests between two scrapes of a real API server, and their latencies."""
    before, after = api_metrics.Scrape(), api_metrics.Scrape()
    for scrape, name in ((before, "before"), (after, "after")):
        for line in text(f"apiserver/{name}.txt").splitlines():
            api_metrics.add(scrape, line.encode())
    calls = api_metrics.delta(before, after)
    figures = {
        **api_metrics.latencies(calls),
        **api_metrics.counts(calls),
        **{f"{call.name} p99": call.p99 for call in calls},
        **{f"{call.name} count": call.count for call in calls},
    }
    return _outcome("ok", "", [{"metric": name, "value": figures[name]} for name in figures])


OUTCOMES: dict[str, Callable[[], Outcome]] = {
    **{name: partial(parsed, case) for name, case in CASES.items()},
    "perftest/no-device": without_device,
    "apiserver/pods": api_server,
}
"""What today's code makes of each recording, by name."""


def _first_line(error: SampleError) -> str:
    return str(error).partition("\n")[0]


def _row(measurement: Measurement, metric: Any) -> dict[str, Any]:
    row = {
        "metric": measurement.metric,
        "stat": measurement.stat,
        "value": measurement.value,
        "unit": metric.unit,
        "better": metric.better,
        "coords": dict(measurement.coords),
        "subject": measurement.subject,
        "n": measurement.n,
        "note": measurement.note,
    }
    return {name: value for name, value in row.items() if value not in (None, {})}


def _outcome(status: str, error: str, rows: list[dict[str, Any]]) -> Outcome:
    def order(row: dict[str, Any]) -> str:
        keys = ("metric", "coords", "stat", "subject")
        return json.dumps([row.get(key) for key in keys], sort_keys=True)

    return {"status": status, "error": error, "rows": sorted(rows, key=order)}
