"""torchbench: models of pytorch/benchmark, timed by its run.py at a pinned commit."""

import json
import os
import re
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from perfdag.benchmark.contract import (
    Benchmark,
    Failed,
    Form,
    Gang,
    Host,
    Invalid,
    Measurement,
    Metric,
    Params,
    Problem,
    Shape,
    ShortForm,
    Skip,
    argv_of,
    bins,
    needed,
)
from perfdag.hosts import gpu_use
from perfdag.stats.robust import nearest_rank
from perfdag.steps.torchbench_runner import MARK, NO_TORCH

COMMIT = "0e83c440a51cd63464fee34724d01b7c814ce39b"
RUNNER = Path(__file__).with_name("torchbench_runner.py")
PARTS = 100
"""Most parts of a run for which the time of a batch is reported."""
OFFLINE = {
    **dict.fromkeys(
        ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9"
    ),
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
"""Environment without a network: a model that wants to download fails at once."""
_NO_NETWORK = (
    r"127\.0\.0\.1:9|urlopen error|OfflineModeIsEnabled|ProxyError|We couldn't connect to 'http"
)
"""Messages of urllib, requests and transformers."""
# run.py refuses the others, except amp on a CPU, which it accepts and computes as fp32.
_PRECISIONS = {
    "cpu": ("fp32", "bf16", "amp_bf16"),
    "cuda": ("fp32", "tf32", "fp16", "bf16", "amp", "amp_fp16"),
}


class TorchbenchParams(Params):
    """Options of run.py, and how long it measures."""

    retired: ClassVar[Mapping[str, Any]] = {"compile": False}
    model: Annotated[str, Form("the name of a model", r"^\w+$")] = Field(
        "resnet50",
        description="model of pytorch/benchmark, for example alexnet, resnet50, llama",
    )
    test: Literal["eval", "train"] = Field(
        "eval", description="inference or training; some models have inference only"
    )
    device: Literal["cpu", "cuda"] = Field(
        "cpu", description="cuda: one GPU, which is what run.py drives"
    )
    batch_size: int = Field(
        1,
        ge=1,
        le=65536,
        description="samples of a batch; a model that feeds another number has no samples_rate",
    )
    precision: Literal["fp32", "tf32", "fp16", "bf16", "amp", "amp_fp16", "amp_bf16"] | None = (
        Field(
            None,
            description="default as upstream: fp32 on CPU,"
            " fp16 for many models' inference on CUDA; the rows and charts name the one used",
        )
    )
    iterations: int = Field(10, ge=3, le=100_000, description="measured batches")
    warmup: int = Field(
        3, ge=0, le=10_000, description="batches after the first and before the measured ones"
    )
    # It has one value, and stays because it is part of the id of every point that is stored.
    gpus: Literal[1] = Field(1, description="GPUs used; run.py uses one")
    threads: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        None, description="CPU threads of torch; default its own choice"
    )
    path: str | None = Field(
        None,
        description="checkout of pytorch/benchmark; default $PERFDAG_TORCHBENCH, or the image's",
    )
    python: str | None = Field(
        None, description="interpreter that has torch; default the one that runs perfdag"
    )

    def problems(self) -> Iterator[Problem]:
        """Yield the parameters that contradict one another."""
        precisions = _PRECISIONS[self.device]
        if self.precision and self.precision not in precisions:
            yield Problem(
                "no-precision",
                f"precision {self.precision}: device {self.device} has {', '.join(precisions)}",
            )


class Torchbench(Benchmark[TorchbenchParams]):
    """Time of one batch of a model of pytorch/benchmark, by its own run.py.

    Clock: run.py's. It starts before one call of the model, with the input in place. It stops
    when the call has returned: time.time_ns() on CPU, on CUDA events between two
    synchronisations. Imports, construction, the first call and the warm-up are outside.
    """

    version: ClassVar[int] = 2
    canaries: ClassVar[tuple[str, ...]] = ("cpu", "memory")
    coords: ClassVar[tuple[str, ...]] = ("iteration",)
    short_forms: ClassVar[Mapping[str, ShortForm]] = {
        "model": "{}",
        "test": {"eval": "inference", "train": "training"},
        "batch_size": "batch {}",
        "precision": "{}",
        "device": {"cpu": "CPU", "cuda": "GPU"},
        "iteration": "iteration {}",
        "threads": "{} threads",
        "iterations": "{} iterations",
        "warmup": "warm-up {}",
    }
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
            counts="samples",
            label="throughput",
        ),
        Metric(
            "batch_time_spread",
            "s",
            "lower",
            "time of one batch: min, mean, max and, where the batches suffice, p90 and p99",
            label="batch time",
        ),
        Metric(
            "iteration_time",
            "s",
            "none",
            f"time of each batch in order; with more than {PARTS} batches, the mean of each"
            f" of {PARTS} parts",
        ),
        Metric(
            "time_to_first_batch",
            "s",
            "lower",
            "construction of the model and its first call, without imports",
        ),
        Metric(
            "wall_time", "s", "lower", "wall time of run.py from its first import to its last line"
        ),
        Metric(
            "user_time",
            "s",
            "lower",
            "CPU time of the process and its children in user code",
            elapsed=False,
        ),
        Metric("system_time", "s", "lower", "CPU time of these in the kernel", elapsed=False),
        Metric(
            "cpu",
            "1",
            "none",
            "cores used: user and system time by wall time",
            label="cores used",
        ),
        Metric(
            "cpu_memory",
            "B",
            "lower",
            "peak resident memory of the process, construction included",
            label="peak memory",
        ),
        Metric(
            "gpu_memory",
            "B",
            "lower",
            "peak memory allocated by torch on the GPU, construction included",
            label="peak GPU memory",
        ),
        Metric(
            "gpus_used",
            "1",
            "none",
            "GPUs on which the process allocated memory",
            label="GPUs used",
        ),
        Metric(
            "gpus_visible",
            "1",
            "none",
            "GPUs that the process could have used",
            label="GPUs visible",
        ),
    )

    def __init__(self) -> None:
        self._constructed: set[tuple[str, str, str]] = set()

    def shape(self, params: TorchbenchParams) -> dict[str, Any]:
        return {"image": "torchbench"}

    def check(self, params: TorchbenchParams, shape: Shape) -> Iterator[Problem]:
        gpus = shape.gpus()
        if params.device == "cpu" and gpus:
            yield Problem(
                "idle-gpu",
                f"device: cpu would hold {', '.join(gpus[:1])} idle;"
                " drop the resource, or use device: cuda",
            )
        if shape.hosts.count > 1:
            yield Problem(
                "many-hosts",
                f"run.py runs on one host, and hosts.count is {shape.hosts.count};"
                " leave hosts.count out",
            )

    def gpus(self, params: TorchbenchParams) -> int:
        return params.gpus

    def seconds(self, params: TorchbenchParams) -> float:
        sample = (0.15 if params.test == "eval" else 0.5) * (0.02 if params.device == "cuda" else 1)
        batches = params.iterations + params.warmup + 3
        return 15 + batches * sample * params.batch_size

    def require(self, gang: Gang, params: TorchbenchParams) -> None:
        host = gang.hosts[0]
        folder = checkout(params)
        for file in ("run.py", f"torchbenchmark/models/{params.model}/__init__.py"):
            if host.run(["test", "-f", f"{folder}/{file}"], timeout=10).code != 0:
                raise Skip(
                    f"no {file} in {folder} on {host.name}: git clone"
                    f" https://github.com/pytorch/benchmark, check out {COMMIT[:12]},"
                    " and name the folder with the parameter path or PERFDAG_TORCHBENCH"
                )
        if params.device == "cuda" and (problem := gpu_use.problem(host)):
            raise Skip(problem)

    def run(self, gang: Gang, params: TorchbenchParams) -> list[Measurement]:
        host = gang.hosts[0]
        folder = checkout(params)
        commit = commit_of(host, folder)
        self._download_weights(gang, params)
        argv = [params.python or sys.executable, str(RUNNER), "run", folder, str(params.warmup)]
        argv += [str(params.iterations), *arguments(params)]
        env = {**OFFLINE, "PYTHONDONTWRITEBYTECODE": "1"}
        if params.threads:
            env |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(params.threads))
        with_gpus = [host] if params.device == "cuda" else []
        with gpu_use.watched(with_gpus) as watch:
            finished = host.run(argv, timeout=gang.timeout, env=env, cwd=gang.scratch)
            gang.output.texts |= finished.texts()
            gang.output.argv.append(argv)
            if finished.code == 0 and not finished.timed_out:
                report = read(finished.stdout)
                watch.used |= set(report.get("gpu_uuids", ()))
                if "ended" in report:
                    watch.spans[host.name].append((report["began"], report["ended"]))
        log = finished.stdout + finished.stderr
        if finished.code != 0 and re.search(_NO_NETWORK, log):
            raise Failed(
                f"{params.model} lacks weights or data, which could not be downloaded before the"
                " run: download them where there is a network, and copy them here"
                " (TORCH_HOME, HF_HOME)"
            )
        if missing := re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", log):
            raise Skip(
                f"{params.model} needs the Python package {missing[1]}:"
                " pip install -r requirements.txt of the checkout"
            )
        finished.check(f"run.py {params.model}")
        # The precision may be the model's default, which another commit may change.
        versions = (f"torch {report['torch']}", f"pytorch/benchmark {commit[:12]}")
        gang.output.tool = ", ".join(filter(None, (*versions, report.get("precision"))))
        gang.output.comparable = False
        gang.output.facts |= {"torchbench_commit": commit, **watch.hosts.get(host.name, {})}
        gang.output.facts |= {
            name: report[name]
            for name in ("precision", "threads", "cuda", "cudnn")
            if report.get(name) is not None
        }
        rows = parse(gang.output.texts, params)
        if not report["feeds_batch"]:
            note = f"no samples_rate: {params.model} feeds other than {params.batch_size} samples"
            gang.output.notes.append(note)
        if watch.against:
            raise Invalid(watch.against, measurements=rows)
        return rows

    def _download_weights(self, gang: Gang, params: TorchbenchParams) -> None:
        """Construct the model once with a network, since measuring has none.

        Raises Skip if torch is missing. Another failure is explained by the run that follows.
        """
        host = gang.hosts[0]
        python = params.python or sys.executable
        if (host.name, python, params.model) in self._constructed:
            return
        argv = [python, str(RUNNER), "construct", checkout(params), params.model]
        finished = host.run(argv, timeout=gang.timeout, env={"PYTHONDONTWRITEBYTECODE": "1"})
        is_silent = finished.code != 0 and not finished.timed_out and not finished.stderr.strip()
        if finished.code == NO_TORCH or is_silent:
            raise Skip(
                f"{python} on {host.name} has no torch and torchvision:"
                " pip install 'perfdag[torch]' (with uv: uv pip install),"
                " or use the parameter python"
            )
        self._constructed.add((host.name, python, params.model))


def checkout(params: TorchbenchParams) -> str:
    """Return the folder of pytorch/benchmark."""
    return params.path or os.environ.get("PERFDAG_TORCHBENCH") or "/opt/torchbench"


def commit_of(host: Host, folder: str) -> str:
    """Return the checkout's commit, from the image's stamp or git.

    Raises Skip if it is unknown: a figure of an unknown program compares with nothing.
    """
    stamp = host.run(["cat", f"{folder}/.perfdag-commit"], timeout=10)
    if stamp.code == 0:
        return stamp.stdout.strip()
    argv = ["git", "-c", f"safe.directory={folder}", "-C", folder, "rev-parse", "HEAD"]
    head = host.run(argv, timeout=10) if host.which("git") else None
    if head is None or head.code != 0:
        raise Skip(
            f"{folder} on {host.name} does not say which commit of pytorch/benchmark it is:"
            " make it a git clone (git must be installed),"
            f" or write the commit to {folder}/.perfdag-commit"
        )
    return head.stdout.strip()


def arguments(params: TorchbenchParams) -> list[str]:
    """Return run.py's arguments."""
    options = {
        "-d": params.device,
        "-t": params.test,
        "--bs": params.batch_size,
        # *_peak_mem would reset torch's count of the peak after the measured batches and run others
        "--metrics": "ttfb",
        "--precision": params.precision,
    }
    return [params.model, *argv_of(options)]


def read(text: str) -> dict[str, Any]:
    """Return the runner's last line. Raises Failed if it is absent or cut."""
    lines = [line for line in text.splitlines() if line.startswith(MARK)]
    try:
        report: dict[str, Any] = dict(json.loads(lines[-1].removeprefix(MARK)))
    except (IndexError, ValueError, TypeError):
        raise Failed("run.py ended without a whole report") from None
    return report


def parse(texts: Mapping[str, str], params: TorchbenchParams) -> list[Measurement]:
    """Return the values of the runner's report.

    Raises Failed if a batch is missing, Invalid if device, batch, precision or threads are not the
    requested ones.
    """
    report = read(texts.get("stdout", ""))
    try:
        rows = _rows(report, params)
        gpus = report.get("gpus_used", 0)
        checks = (
            (report["device"], params.device, "device"),
            (gpus, params.gpus if params.device == "cuda" else 0, "GPUs"),
            (report["batch_size"], params.batch_size, "batch size"),
            (report.get("precision"), params.precision, "precision"),
            (report.get("threads"), params.threads, "threads"),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise Failed(f"the report of run.py lacks {error}") from None
    for used, requested, name in checks:
        if requested is not None and used != requested:
            raise Invalid(
                f"{params.model}: {name} {requested} was requested, run.py used {used}",
                measurements=rows,
            )
    return rows


def _rows(report: dict[str, Any], params: TorchbenchParams) -> list[Measurement]:
    walls = [float(time) for time in report["wall_s"]]
    batches = [float(time) for time in report["gpu_s"]] if params.device == "cuda" else walls
    n = len(batches)
    if not n == len(walls) == params.iterations or not min(*batches, *walls) > 0:
        raise Failed(f"{n} of {params.iterations} iterations have a time")
    rows = [Measurement("batch_time", statistics.median(batches), n=n)]
    if report["feeds_batch"]:
        rows.append(Measurement("samples_rate", params.batch_size / statistics.median(walls), n=n))
    spread = {"min": min(batches), "mean": statistics.fmean(batches), "max": max(batches)}
    spread |= {
        f"p{percent}": nearest_rank(batches, percent / 100)
        for percent in (90, 99)
        if n >= needed(percent / 100)
    }
    rows += [Measurement("batch_time_spread", value, stat, n=n) for stat, value in spread.items()]
    rows += bins("iteration_time", "iteration", batches, PARTS)
    figures = {
        "time_to_first_batch": report["construct_s"] + report["first_call_s"],
        "wall_time": report["process_s"],
        "user_time": report["user_s"],
        "system_time": report["system_s"],
        "cpu": (report["user_s"] + report["system_s"]) / report["process_s"],
        "cpu_memory": report["max_rss_bytes"],
    }
    if report["device"] == "cuda":
        figures["gpu_memory"] = sum(report["gpu_peak_bytes"])
        figures |= {name: report[name] for name in ("gpus_used", "gpus_visible")}
    return rows + [Measurement(name, float(value)) for name, value in figures.items()]
