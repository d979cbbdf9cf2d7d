"""torchbench: models of pytorch/benchmark, timed by its run.py at a pinned commit."""

import json
import os
import re
import shutil
import statistics
import sys
import tempfile
import weakref
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

from perfdag.benchmark.contract import Benchmark, Gang, Metric, Output
from perfdag.hosts import gpu_queries
from perfdag.hosts.base import Host
from perfdag.outcome import Failed, Invalid, Measurement, Skip
from perfdag.shape import Shape
from perfdag.stats.percentiles import nearest_rank, needed
from perfdag.steps import devices, gpu_watch
from perfdag.steps.time_bins import bins
from perfdag.steps.torchbench.params import COMMIT, TorchbenchParams
from perfdag.steps.torchbench.runner import MARK

IMAGE_CHECKOUT = "/opt/torchbench"
RUNNER = Path(__file__).with_name("runner.py")
_USED = ("precision", "threads", "cuda", "cudnn")  # of the report, for the row
_COMPILED = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
_PARTS = 100  # of a run whose batches are told apart; its text in the store has each
_PRINTED = re.compile(r"^(?:CPU Wall Time|GPU Time) per batch:\s*([0-9.]+) milliseconds", re.M)
_COMPILE = re.compile(r"^PT2 Compilation time:\s*([0-9.]+) seconds", re.M)
# no way out: a model that wants to download fails at once, and the row says so
_OFFLINE = dict.fromkeys(
    ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9"
) | {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}

# of urllib, requests and transformers
_NO_NETWORK = (
    "127.0.0.1:9",
    "urlopen error",
    "OfflineModeIsEnabled",
    "ProxyError",
    "We couldn't connect to 'http",
)


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
            f"time of each batch in order; of more than {_PARTS} the mean of each of so many parts",
        ),
        Metric(
            "time_to_first_batch",
            "s",
            "lower",
            "construction of the model and its first call, compilation included; imports not",
        ),
        Metric(
            "compile_time", "s", "lower", "time in torch.compile, with no cache of an earlier one"
        ),
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
        self._homes: dict[tuple[str, str, str, str | None], str] = {}
        self._own: str | None = None

    def check(self, params: TorchbenchParams, shape: Shape) -> list[str]:
        problems = []
        gpus = devices.gpus(shape)
        if params.device == "cpu" and gpus:
            problems.append(
                f"device: cpu would hold {gpus[0]} idle; drop the resource, or use device: cuda"
            )
        if shape.hosts.count > 1:
            problems.append(
                f"run.py runs on one host, and hosts.count is {shape.hosts.count};"
                " leave hosts.count out"
            )
        return problems

    def seconds(self, params: TorchbenchParams) -> float:
        work = (
            {"eval": 0.15, "train": 0.5}[params.test]
            * params.batch_size
            * (0.02 if params.device == "cuda" else 1)
        )
        return 15 + (params.iterations + params.warmup + 3) * work + (60 if params.compile else 0)

    def prepare(self, gang: Gang, params: TorchbenchParams) -> None:
        host, python = gang.hosts[0], _python(params)
        checkout = params.path or os.environ.get("PERFDAG_TORCHBENCH") or IMAGE_CHECKOUT
        for file in ("run.py", f"torchbenchmark/models/{params.model}/__init__.py"):
            if host.run(["test", "-f", f"{checkout}/{file}"], timeout=10).code != 0:
                raise Skip(
                    f"no {file} in {checkout} on {host.name}: git clone"
                    f" https://github.com/pytorch/benchmark, check out {COMMIT[:12]},"
                    " and name the folder with the parameter path or PERFDAG_TORCHBENCH"
                )
        if params.device == "cuda":
            lacking = gpu_queries.problem(host)
            if lacking:
                raise Skip(lacking)
        gang.notes |= {
            "checkout": checkout,
            "home": self._home(host, python, params.model, gang.timeout),
            "commit": _commit(host, checkout),
        }

    def _home(self, host: Host, python: str, model: str, timeout: float) -> str:
        """Return a TORCH_HOME with the model's weights, looked up once in a run.

        Looking starts a Python with torch, which is slow.
        """
        configured = os.environ.get("TORCH_HOME")
        key = (host.name, python, model, configured)
        if key not in self._homes:
            # An image's TORCH_HOME stays as it is; missing weights go to a folder of this run.
            homes = [*([configured] if configured else []), self._own_home()]
            finished = host.run(
                [python, str(RUNNER), "weights", *homes, model], timeout=timeout, env=_OFFLINE
            )
            if (
                finished.code != 0
                and not finished.timed_out
                and (
                    not finished.stderr.strip()
                    or re.search(r"\b(ModuleNotFound|Import)Error\b", finished.stderr)
                )
            ):
                how = "pip install 'perfdag[torch]' (with uv: uv pip install)"
                raise Skip(
                    f"{python} on {host.name} has no torch and torchvision: {how},"
                    " or use the parameter python"
                )
            self._homes[key] = (
                finished.check("writing random weights").stdout.rpartition(MARK)[2].strip()
            )
        return self._homes[key]

    def _own_home(self) -> str:
        """Return a folder of this process, so that its samples share weights of hundreds of MB."""
        if self._own is None:
            self._own = tempfile.mkdtemp(prefix="perfdag-torch-home-")
            weakref.finalize(self, shutil.rmtree, self._own, ignore_errors=True)
        return self._own

    def provenance(self, gang: Gang, params: TorchbenchParams) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "torchbench_commit": gang.notes["commit"],
            "weights": "random, seeded: speed only, no accuracy",
        }
        if params.device == "cuda":
            facts["gpus"] = gang.notes["gpus"] = gpu_queries.facts(gang.hosts[0])
        return facts

    def run(self, gang: Gang, params: TorchbenchParams) -> Output:
        host = gang.hosts[0]
        argv = [
            _python(params),
            str(RUNNER),
            "run",
            gang.notes["checkout"],
            str(params.warmup),
            str(params.iterations),
            *arguments(params),
        ]
        env = {**_OFFLINE, "TORCH_HOME": gang.notes["home"], "PYTHONDONTWRITEBYTECODE": "1"}
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
                partial = read_report(finished.stdout)
                watch.used |= set(partial.get("gpu_uuids", ()))
                watch.spans += [(partial["began"], partial["ended"])] if "ended" in partial else []
        if finished.timed_out:
            raise Failed(f"{params.model} did not end within {gang.timeout:g} s", finished.texts())
        if finished.code != 0:
            raise explain_failure(
                params, finished.stdout + finished.stderr, finished.texts()
            ) or Failed(
                f"run.py {params.model} exited {finished.code}: {finished.tail()}", finished.texts()
            )
        report = read_report(finished.stdout)
        tool = f"torch {report['torch']}, pytorch/benchmark {gang.notes['commit'][:12]}"
        used = {name: report[name] for name in _USED if report.get(name) is not None}
        return Output(
            finished.texts(), [argv], tool, {**next(iter(watch.hosts.values()), {}), **used}
        )

    def series(self, output: Output) -> str:
        # The precision may be the model's default, which another commit may change.
        return ", ".join(name for name in (output.tool, output.facts.get("precision")) if name)

    def parse(self, output: Output, params: TorchbenchParams) -> list[Measurement]:
        stdout = output.texts.get("stdout", "")
        report = read_report(stdout)
        walls = _times(report, "wall_s", params)
        own = _times(report, "gpu_s", params) if params.device == "cuda" else walls
        printed = _PRINTED.search(stdout)
        median = statistics.median(own)
        # The printed median has three decimals of a millisecond. A larger difference means that
        # the raw times are not those of run.py.
        if (
            printed is None
            or abs(float(printed[1]) / 1e3 * report["batches"] - median) > 1e-6 + 0.001 * median
        ):
            raise Failed("the median that run.py prints is not that of the raw times", output.texts)
        n = len(own)
        measurements = [
            Measurement("batch_time", median, n=n),
            Measurement("samples_rate", params.batch_size / statistics.median(walls), n=n),
            Measurement("batch_time_spread", min(own), "min", n=n),
            Measurement("batch_time_spread", statistics.fmean(own), "mean", n=n),
            Measurement("batch_time_spread", max(own), "max", n=n),
            Measurement("time_to_first_batch", report["construct_s"] + report["first_call_s"]),
        ]
        for stat, part in (("p90", 0.9), ("p99", 0.99)):
            if n >= needed(part):
                measurements.append(
                    Measurement("batch_time_spread", nearest_rank(own, part), stat, n=n)
                )
        measurements += bins("iteration_time", "iteration", own, _PARTS)
        measurements += _memory(report)
        compiled = _COMPILE.search(stdout)
        if params.compile:
            seconds = report.get("compile_s") or (float(compiled[1]) if compiled else None)
            if seconds is None:
                raise Failed("compile: true, but torch names no compilation time", output.texts)
            measurements.append(Measurement("compile_time", float(seconds)))
        _check_claims(report, params, output, measurements)
        return measurements


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


def read_report(text: str) -> dict[str, Any]:
    """Return the runner's last line. Raises Failed if it is absent or cut."""
    lines = [line for line in text.splitlines() if line.startswith(MARK)]
    try:
        report: dict[str, Any] = dict(json.loads(lines[-1].removeprefix(MARK)))
    except (IndexError, ValueError, TypeError):
        raise Failed("run.py ended without a whole report", {"stdout": text}) from None
    absent = {
        "wall_s",
        "batches",
        "batch_size",
        "construct_s",
        "first_call_s",
        "max_rss_bytes",
        "device",
        "torch",
    } - report.keys()
    if absent:
        raise Failed(f"the report lacks {', '.join(sorted(absent))}", {"stdout": text})
    return report


def _commit(host: Host, checkout: str) -> str:
    """Return the checkout's commit, from the image's stamp or git.

    Raises Skip if it is unknown, since a figure of an unknown program compares with nothing.
    """
    stamp = host.run(["cat", f"{checkout}/.perfdag-commit"], timeout=10)
    if stamp.code == 0:
        return stamp.stdout.strip()
    argv = ["git", "-c", f"safe.directory={checkout}", "-C", checkout, "rev-parse", "HEAD"]
    head = host.run(argv, timeout=10) if host.which("git") else None
    if head is None or head.code != 0:
        raise Skip(
            f"{checkout} on {host.name} does not say which commit of pytorch/benchmark it is:"
            " make it a git clone (git must be installed), "
            f"or write the commit to {checkout}/.perfdag-commit"
        )
    return head.stdout.strip()


def _python(params: TorchbenchParams) -> str:
    return params.python or sys.executable


def _times(report: dict[str, Any], name: str, params: TorchbenchParams) -> list[float]:
    times = [float(time) for time in report.get(name, [])]
    if len(times) != params.iterations or not all(time > 0 for time in times):
        raise Failed(f"{len(times)} of {params.iterations} iterations have a time ({name})")
    return times


def _memory(report: dict[str, Any]) -> list[Measurement]:
    measurements = [Measurement("cpu_memory", float(report["max_rss_bytes"]))]
    if report["device"] == "cuda":
        measurements.append(Measurement("gpu_memory", float(sum(report["gpu_peak_bytes"]))))
        measurements.append(Measurement("gpus_used", float(report["gpus_used"])))
        measurements.append(Measurement("gpus_visible", float(report["gpus_visible"])))
    return measurements


def _check_claims(
    report: dict[str, Any],
    params: TorchbenchParams,
    output: Output,
    measurements: list[Measurement],
) -> None:
    """Raise Invalid if device, batch, precision or number of GPUs are not the requested ones."""
    if report["device"] != params.device or (
        params.device == "cuda" and report["gpus_used"] != params.gpus
    ):
        raise Invalid(
            f"ran on {report['device']} with {report.get('gpus_used', 0)} GPUs,"
            f" not {params.device} with {params.gpus}",
            output.texts,
            measurements,
        )
    if report["batch_size"] != params.batch_size:
        raise Invalid(
            f"{params.model} used batch size {report['batch_size']}, not {params.batch_size}",
            output.texts,
            measurements,
        )
    if params.precision and report.get("precision") != params.precision:
        raise Invalid(
            f"{params.model} used precision {report.get('precision')}, not {params.precision}",
            output.texts,
            measurements,
        )
    if params.threads and report.get("threads") != params.threads:
        raise Invalid(
            f"torch used {report.get('threads')} threads, not {params.threads}",
            output.texts,
            measurements,
        )
    if output.facts.get("against"):
        raise Invalid(output.facts["against"], output.texts, measurements)


def explain_failure(
    params: TorchbenchParams, log: str, texts: dict[str, str]
) -> Skip | Failed | None:
    """Return the exception of a failure that the log explains, or None."""
    if any(word in log for word in _NO_NETWORK):
        return Failed(
            f"{params.model} wants to download weights or data, and measuring has no network;"
            " use a model that builds its own",
            texts,
        )
    missing = re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", log)
    if missing:
        return Skip(
            f"{params.model} needs the Python package {missing[1]}:"
            " pip install -r requirements.txt of the checkout",
            texts,
        )
    unsupported = re.search(r"^NotImplementedError:?\s*(.*)", log, re.M)
    if unsupported:
        detail = f": {' '.join(unsupported[1].split())}" if unsupported[1].strip() else ""
        return Failed(
            f"{params.model} has no {params.test} like this (NotImplementedError{detail});"
            " use another test, batch size or model",
            texts,
        )
    if "out of memory" in log:
        return Failed(
            f"{params.model} with batch size {params.batch_size} does not fit into memory", texts
        )
    return None
