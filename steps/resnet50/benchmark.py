"""resnet50: ResNet-50 inference under MLCommons LoadGen."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from perfdag.benchmark import contract
from perfdag.benchmark.contract import Benchmark, Gang, Output, Tool
from perfdag.outcome import Invalid, Measurement, SampleError
from perfdag.shape import Shape
from perfdag.steps.resnet50 import launch, result, workload
from perfdag.steps.resnet50.measurements import METRICS, measurements
from perfdag.steps.resnet50.params import Workload
from perfdag.steps.resnet50.summary_json import documents, seed_json
from perfdag.steps.resnet50.validity import unsteady, wrong

if TYPE_CHECKING:
    import pyarrow


class Resnet50(Benchmark[Workload]):
    """ResNet-50 inference under LoadGen: Offline, Server, SingleStream, peak rate, accuracy.

    LoadGen makes the load and says VALID or INVALID; its logs are kept verbatim. Server is open
    loop: a dynamic batcher answers Poisson arrivals. Images are preprocessed before the clock
    starts (MLPerf's rule). Preprocessing, copies and compute are reported apart as `phase_time`.
    Logits are checked against fp32 eager before and after. A run shorter than MLPerf's 600 s
    compares only with runs of its kind.

    Clock: LoadGen's own. It starts when a query was scheduled (Server) or issued (SingleStream,
    Offline). It stops when the classes are in host memory and LoadGen has them. Imports, weights,
    compilation, warm-up and preprocessing are outside.
    """

    name: ClassVar[str] = "resnet50"
    image: ClassVar[str] = "resnet50"
    canaries: ClassVar[tuple[str, ...]] = ("cpu", "memory")
    Params: ClassVar[type[contract.Params]] = Workload
    metrics = METRICS

    def check(self, params: Workload, shape: Shape) -> list[str]:
        return workload.check(params, shape)

    def seconds(self, params: Workload) -> float:
        return workload.expected(params)

    def least_seconds(self, params: Workload) -> float:
        return workload.shortest(params)

    def missing(self, gang: Gang, params: Workload) -> list[Tool]:
        return workload.missing(gang, params)

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
        values = measurements(
            measured, params, timed=unsteady(measured, params, output.facts) is None
        )
        reason = wrong(measured, params) or output.facts.get("against")
        if reason:
            raise Invalid(reason, output.texts, values)
        return values

    def series(self, output: Output) -> str:
        """Return PyTorch's and LoadGen's versions, which separate series."""
        return workload.versions(output.texts.get("result", ""))

    def exports(self, rows: "pyarrow.Table") -> Mapping[str, bytes]:
        """Return resnet50.json; several devices have one file each."""
        files = documents(rows.select(["env", "phase", "point", "repetition"]).to_pylist())
        return {
            name: json.dumps(document, indent=2).encode() + b"\n"
            for name, document in files.items()
        }


def _read(text: str, params: Workload, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON element of a readable result, and why times were left out."""
    try:
        measured = result.read(text)
    except SampleError:
        return {}
    reason = unsteady(measured, params, facts)
    return {"seed_json": seed_json(measured, params, facts)} | (
        {"times_left_out": reason} if reason else {}
    )
