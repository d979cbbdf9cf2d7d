"""torchbench: models of pytorch/benchmark, timed by its run.py at a pinned commit."""

import sys
from contextlib import nullcontext
from typing import Any, ClassVar

from perfdag.benchmark.contract import Benchmark, Gang, Metric, Output, broken
from perfdag.hosts import gpu_use
from perfdag.outcome import Failed, Measurement, Skip
from perfdag.shape import Shape
from perfdag.steps import devices, gpu_watch
from perfdag.steps.torchbench import checkout, report
from perfdag.steps.torchbench.params import TorchbenchParams

_USED = ("precision", "threads", "cuda", "cudnn")
"""Values of the report that the row keeps."""
_COMPILED = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


class Torchbench(Benchmark[TorchbenchParams]):
    """Time of one batch of a model of pytorch/benchmark, by its own run.py.

    Clock: run.py's. It starts before one call of the model, with the input in place. It stops
    when the call has returned: time.time_ns() on CPU, on CUDA events between two
    synchronisations. Imports, construction, the first call and the warm-up are outside.
    """

    name: ClassVar[str] = "torchbench"
    version: ClassVar[int] = 2
    image: ClassVar[str] = "torchbench"
    canaries: ClassVar[tuple[str, ...]] = ("cpu", "memory")
    Params: ClassVar[type[TorchbenchParams]] = TorchbenchParams
    coords: ClassVar[tuple[str, ...]] = ("iteration",)
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric(
            "batch_time",
            "s",
            "lower",
            "median time of one batch: GPU events on cuda, wall time on cpu",
            headline=True,
        ),
        Metric(
            "samples_rate",
            "1/s",
            "higher",
            "samples a second: batch size by the median wall time of a batch",
        ),
        Metric(
            "batch_time_spread",
            "s",
            "lower",
            "time of one batch: min, mean, max and, where the batches suffice, p90 and p99",
        ),
        Metric(
            "iteration_time",
            "s",
            "none",
            f"time of each batch in order; with more than {report.PARTS} batches, the mean of each"
            f" of {report.PARTS} parts",
        ),
        Metric(
            "time_to_first_batch",
            "s",
            "lower",
            "construction of the model and its first call, with compilation, without imports",
        ),
        Metric(
            "wall_time", "s", "lower", "wall time of run.py from its first import to its last line"
        ),
        Metric("user_time", "s", "lower", "CPU time of the process and its children in user code"),
        Metric("system_time", "s", "lower", "CPU time of these in the kernel"),
        Metric("cpu", "1", "none", "cores used: user and system time by wall time"),
        Metric("compile_time", "s", "lower", "time in torch.compile, with an empty cache"),
        Metric(
            "cpu_memory", "B", "lower", "peak resident memory of the process, construction included"
        ),
        Metric(
            "gpu_memory",
            "B",
            "lower",
            "peak memory allocated by torch on the GPU, construction included",
        ),
        Metric("gpus_used", "1", "none", "GPUs on which the process allocated memory"),
        Metric("gpus_visible", "1", "none", "GPUs that the process could have used"),
    )

    def __init__(self) -> None:
        self._constructed: set[tuple[str, str, str]] = set()

    def check(self, params: TorchbenchParams, shape: Shape) -> list[str]:
        gpus = devices.gpus(shape)
        return broken(
            (
                params.device == "cpu" and gpus,
                f"device: cpu would hold {', '.join(gpus[:1])} idle;"
                " drop the resource, or use device: cuda",
            ),
            (
                shape.hosts.count > 1,
                f"run.py runs on one host, and hosts.count is {shape.hosts.count};"
                " leave hosts.count out",
            ),
        )

    def seconds(self, params: TorchbenchParams) -> float:
        work = (
            {"eval": 0.15, "train": 0.5}[params.test]
            * params.batch_size
            * (0.02 if params.device == "cuda" else 1)
        )
        return 15 + (params.iterations + params.warmup + 3) * work + (60 if params.compile else 0)

    def require(self, gang: Gang, params: TorchbenchParams) -> None:
        host, python = gang.hosts[0], _python(params)
        folder = checkout.locate(host, params)
        if params.device == "cuda":
            problem = gpu_use.problem(host)
            if problem:
                raise Skip(problem)
        gang.notes |= {
            "checkout": folder,
            "commit": checkout.commit(host, folder),
        }
        model = (host.name, python, params.model)
        if model not in self._constructed:
            checkout.download_weights(host, python, folder, params.model, gang.timeout)
            self._constructed.add(model)

    def provenance(self, gang: Gang, params: TorchbenchParams) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "torchbench_commit": gang.notes["commit"],
        }
        if params.device == "cuda":
            facts["gpus"] = gang.notes["gpus"] = gpu_use.facts(gang.hosts[0])
        return facts

    def run(self, gang: Gang, params: TorchbenchParams) -> list[Measurement]:
        gang.output.facts |= self.provenance(gang, params)
        facts = gang.output.facts
        gang.output = self.measure(gang, params)
        gang.output.facts |= facts | gang.output.facts
        gang.output.comparable = False
        return self.parse(gang.output, params)

    def measure(self, gang: Gang, params: TorchbenchParams) -> Output:
        host = gang.hosts[0]
        argv = [
            _python(params),
            str(checkout.RUNNER),
            "run",
            gang.notes["checkout"],
            str(params.warmup),
            str(params.iterations),
            *arguments(params),
        ]
        env = {**checkout.OFFLINE, "PYTHONDONTWRITEBYTECODE": "1"}
        # With the caches of another sample, the compilation would not be cold.
        env |= {name: f"{gang.scratch}/{name.lower()}" for name in _COMPILED}
        if params.threads:
            env |= {"OMP_NUM_THREADS": str(params.threads), "MKL_NUM_THREADS": str(params.threads)}
        before = {host.name: gang.notes["gpus"]} if "gpus" in gang.notes else None
        with (
            gpu_watch.watched([host], before)
            if params.device == "cuda"
            else nullcontext(gpu_watch.Watch()) as watch
        ):
            finished = host.run(argv, timeout=gang.timeout, env=env, cwd=gang.scratch)
            if finished.code == 0:
                values = report.read(finished.stdout)
                watch.used |= set(values.get("gpu_uuids", ()))
                if "ended" in values:
                    watch.spans[host.name].append((values["began"], values["ended"]))
        if finished.timed_out:
            raise Failed(f"{params.model} did not end within {gang.timeout:g} s", finished.texts())
        if finished.code != 0:
            raise report.explain_failure(
                params, finished.stdout + finished.stderr, finished.texts()
            ) or Failed(
                f"run.py {params.model} exited {finished.code}: {finished.tail()}", finished.texts()
            )
        # The precision may be the model's default, which another commit may change.
        versions = f"torch {values['torch']}, pytorch/benchmark {gang.notes['commit'][:12]}"
        tool = ", ".join(filter(None, (versions, values.get("precision"))))
        used = {name: values[name] for name in _USED if values.get(name) is not None}
        return Output(
            finished.texts(), [argv], tool, {**next(iter(watch.hosts.values()), {}), **used}
        )

    def parse(self, output: Output, params: TorchbenchParams) -> list[Measurement]:
        return report.parse(output, params)


def arguments(params: TorchbenchParams) -> list[str]:
    """Return run.py's arguments."""
    argv = [params.model, "-d", params.device, "-t", params.test, "--bs", str(params.batch_size)]
    # *_peak_mem would reset torch's count of the peak after the measured batches and run others.
    argv += ["--metrics", "ttfb"]
    if params.precision:
        argv += ["--precision", params.precision]
    if params.compile:
        argv += ["--torchdynamo", "inductor"]
    return argv


def _python(params: TorchbenchParams) -> str:
    return params.python or sys.executable
