"""torchbench: models of pytorch/benchmark, timed by its own run.py at a pinned commit, on CPU or GPU."""

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

from perfdag.benchmark import Benchmark, Failed, Gang, Invalid, Measurement, Metric, Output, Skip
from perfdag.hosts import Host
from perfdag.shape import Shape
from perfdag.stats.percentiles import nearest_rank, needed
from perfdag.steps import devices, gpu, gpu_watch
from perfdag.steps.profile import parts
from perfdag.steps.torchbench_params import COMMIT, TorchbenchParams
from perfdag.steps.torchbench_run import MARK

IMAGE_CHECKOUT = "/opt/torchbench"
RUNNER = Path(__file__).with_name("torchbench_run.py")
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

    Clock: run.py's. It starts before one call of the model, its input in place, and stops when the call has returned: time.time_ns() on CPU,
    on CUDA events between two synchronisations. Imports, construction, the first call and the warm-up are outside.
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
                f"run.py runs on one host, and hosts.count is {shape.hosts.count}; leave hosts.count out"
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
                    f"no {file} in {checkout} on {host.name}: git clone https://github.com/pytorch/benchmark, check out {COMMIT[:12]}, "
                    "and name the folder with the parameter path or PERFDAG_TORCHBENCH"
                )
        if params.device == "cuda":
            lacking = gpu.problem(host)
            if lacking:
                raise Skip(lacking)
        gang.notes |= {
            "checkout": checkout,
            "home": self._home(host, python, params.model, gang.timeout),
            "commit": _commit(host, checkout),
        }

    def _home(self, host: Host, python: str, model: str, timeout: float) -> str:
        """TORCH_HOME with the model's weights. To look costs a start of Python with torch, so each is looked for once in a run."""
        given = os.environ.get("TORCH_HOME")
        asked = (host.name, python, model, given)
        if asked not in self._homes:
            # an image's TORCH_HOME is not ours to write to; what it lacks is made in a folder of our own
            homes = [*([given] if given else []), self._own_home()]
            made = host.run(
                [python, str(RUNNER), "weights", *homes, model], timeout=timeout, env=_OFFLINE
            )
            if (
                made.code != 0
                and not made.timed_out
                and (
                    not made.stderr.strip()
                    or re.search(r"\b(ModuleNotFound|Import)Error\b", made.stderr)
                )
            ):
                how = "pip install 'perfdag[torch]' (with uv: uv pip install)"
                raise Skip(
                    f"{python} on {host.name} has no torch and torchvision: {how}, or use the parameter python"
                )
            self._homes[asked] = (
                made.check("writing random weights").stdout.rpartition(MARK)[2].strip()
            )
        return self._homes[asked]

    def _own_home(self) -> str:
        """A folder that goes with this process: the hundreds of MB of some models are not written anew for each sample."""
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
            facts["gpus"] = gang.notes["gpus"] = gpu.facts(gang.hosts[0])
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
        # a sample that found what another compiled would be called as cold as that one
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
                said = read_report(finished.stdout)
                watch.used |= set(said.get("gpu_uuids", ()))
                watch.spans += [(said["began"], said["ended"])] if "ended" in said else []
        if finished.timed_out:
            raise Failed(f"{params.model} did not end within {gang.timeout:g} s", finished.texts())
        if finished.code != 0:
            raise _explained(params, finished.stdout + finished.stderr, finished.texts()) or Failed(
                f"run.py {params.model} exited {finished.code}: {finished.tail()}", finished.texts()
            )
        report = read_report(finished.stdout)
        tool = f"torch {report['torch']}, pytorch/benchmark {gang.notes['commit'][:12]}"
        used = {name: report[name] for name in _USED if report.get(name) is not None}
        return Output(
            finished.texts(), [argv], tool, {**next(iter(watch.hosts.values()), {}), **used}
        )

    def series(self, output: Output) -> str:
        # where it is not a parameter it is the model's default for the device, which another commit may change
        return ", ".join(each for each in (output.tool, output.facts.get("precision")) if each)

    def parse(self, output: Output, params: TorchbenchParams) -> list[Measurement]:
        stdout = output.texts.get("stdout", "")
        report = read_report(stdout)
        walls = _times(report, "wall_s", params)
        own = _times(report, "gpu_s", params) if params.device == "cuda" else walls
        printed = _PRINTED.search(stdout)
        median = statistics.median(own)
        # the printed median has three decimals of a millisecond; the two differ only if the raw times are not those of run.py
        if (
            printed is None
            or abs(float(printed[1]) / 1e3 * report["batches"] - median) > 1e-6 + 0.001 * median
        ):
            raise Failed("the median that run.py prints is not that of the raw times", output.texts)
        n = len(own)
        made = [
            Measurement("batch_time", median, n=n),
            Measurement("samples_rate", params.batch_size / statistics.median(walls), n=n),
            Measurement("batch_time_spread", min(own), "min", n=n),
            Measurement("batch_time_spread", statistics.fmean(own), "mean", n=n),
            Measurement("batch_time_spread", max(own), "max", n=n),
            Measurement("time_to_first_batch", report["construct_s"] + report["first_call_s"]),
        ]
        for stat, part in (("p90", 0.9), ("p99", 0.99)):
            if n >= needed(part):
                made.append(Measurement("batch_time_spread", nearest_rank(own, part), stat, n=n))
        made += parts("iteration_time", "iteration", own, _PARTS)
        made += _memory(report)
        compiled = _COMPILE.search(stdout)
        if params.compile:
            took = report.get("compile_s") or (float(compiled[1]) if compiled else None)
            if took is None:
                raise Failed("compile: true, but torch names no compilation time", output.texts)
            made.append(Measurement("compile_time", float(took)))
        _check_claims(report, params, output, made)
        return made


def arguments(params: TorchbenchParams) -> list[str]:
    """run.py's arguments."""
    argv = [params.model, "-d", params.device, "-t", params.test, "--bs", str(params.batch_size)]
    # no *_peak_mem: for them it clears torch's count of the peak after the measured batches, and runs others
    argv += ["--metrics", "ttfb"]
    if params.precision:
        argv += ["--precision", params.precision]
    if params.compile:
        argv += ["--torchdynamo", "inductor"]
    return argv


def read_report(text: str) -> dict[str, Any]:
    """The runner's last line. Raises Failed where it is absent or cut."""
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
    """The checkout's commit, from the image's stamp or git. Raises Skip: a figure whose program is unknown compares with nothing."""
    stamp = host.run(["cat", f"{checkout}/.perfdag-commit"], timeout=10)
    if stamp.code == 0:
        return stamp.stdout.strip()
    asked = ["git", "-c", f"safe.directory={checkout}", "-C", checkout, "rev-parse", "HEAD"]
    head = host.run(asked, timeout=10) if host.which("git") else None
    if head is None or head.code != 0:
        raise Skip(
            f"{checkout} on {host.name} does not say which commit of pytorch/benchmark it is: make it a git clone (git must be installed), "
            f"or write the commit to {checkout}/.perfdag-commit"
        )
    return head.stdout.strip()


def _python(params: TorchbenchParams) -> str:
    return params.python or sys.executable


def _times(report: dict[str, Any], name: str, params: TorchbenchParams) -> list[float]:
    times = [float(each) for each in report.get(name, [])]
    if len(times) != params.iterations or not all(each > 0 for each in times):
        raise Failed(f"{len(times)} of {params.iterations} iterations have a time ({name})")
    return times


def _memory(report: dict[str, Any]) -> list[Measurement]:
    made = [Measurement("cpu_memory", float(report["max_rss_bytes"]))]
    if report["device"] == "cuda":
        made.append(Measurement("gpu_memory", float(sum(report["gpu_peak_bytes"]))))
        made.append(Measurement("gpus_used", float(report["gpus_used"])))
        made.append(Measurement("gpus_visible", float(report["gpus_visible"])))
    return made


def _check_claims(
    report: dict[str, Any], params: TorchbenchParams, output: Output, made: list[Measurement]
) -> None:
    """Raise Invalid where another device, batch, precision or number of GPUs was measured than asked for."""
    if report["device"] != params.device or (
        params.device == "cuda" and report["gpus_used"] != params.gpus
    ):
        raise Invalid(
            f"ran on {report['device']} with {report.get('gpus_used', 0)} GPUs, not {params.device} with {params.gpus}",
            output.texts,
            made,
        )
    if report["batch_size"] != params.batch_size:
        raise Invalid(
            f"{params.model} used batch size {report['batch_size']}, not {params.batch_size}",
            output.texts,
            made,
        )
    if params.precision and report.get("precision") != params.precision:
        raise Invalid(
            f"{params.model} used precision {report.get('precision')}, not {params.precision}",
            output.texts,
            made,
        )
    if params.threads and report.get("threads") != params.threads:
        raise Invalid(
            f"torch used {report.get('threads')} threads, not {params.threads}", output.texts, made
        )
    if output.facts.get("against"):
        raise Invalid(output.facts["against"], output.texts, made)


def _explained(params: TorchbenchParams, said: str, texts: dict[str, str]) -> Skip | Failed | None:
    if any(each in said for each in _NO_NETWORK):
        return Failed(
            f"{params.model} wants to download weights or data, and measuring has no network; use a model that builds its own",
            texts,
        )
    missing = re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", said)
    if missing:
        return Skip(
            f"{params.model} needs the Python package {missing[1]}: pip install -r requirements.txt of the checkout",
            texts,
        )
    lacking = re.search(r"^NotImplementedError:?\s*(.*)", said, re.M)
    if lacking:
        said_why = f": {' '.join(lacking[1].split())}" if lacking[1].strip() else ""
        return Failed(
            f"{params.model} has no {params.test} like this (NotImplementedError{said_why}); use another test, batch size or model",
            texts,
        )
    if "out of memory" in said:
        return Failed(
            f"{params.model} with batch size {params.batch_size} does not fit into memory", texts
        )
    return None
