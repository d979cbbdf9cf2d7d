"""Read the report of runner.py, and explain why run.py failed."""

import json
import re
import statistics
from typing import Any

from perfdag.benchmark.contract import Output
from perfdag.outcome import Failed, Invalid, Measurement, Skip
from perfdag.stats.robust import nearest_rank, needed
from perfdag.steps.reports import bins
from perfdag.steps.torchbench.params import TorchbenchParams
from perfdag.steps.torchbench.runner import MARK

PARTS = 100
"""Most parts of a run for which the time of a batch is reported."""
_PRINTED = re.compile(r"^(?:CPU Wall Time|GPU Time) per batch:\s*([0-9.]+) milliseconds", re.M)


_COMPILE = re.compile(r"^PT2 Compilation time:\s*([0-9.]+) seconds", re.M)


# Messages of urllib, requests and transformers.
_NO_NETWORK = (
    "127.0.0.1:9",
    "urlopen error",
    "OfflineModeIsEnabled",
    "ProxyError",
    "We couldn't connect to 'http",
)


def parse(output: Output, params: TorchbenchParams) -> list[Measurement]:
    """Return the measurements. Raises Failed or Invalid if they are not those requested."""
    stdout = output.texts.get("stdout", "")
    report = read(stdout)
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
        Measurement("wall_time", report["process_s"]),
        Measurement("user_time", report["user_s"]),
        Measurement("system_time", report["system_s"]),
        Measurement("cpu", (report["user_s"] + report["system_s"]) / report["process_s"]),
    ]
    for stat, part in (("p90", 0.9), ("p99", 0.99)):
        if n >= needed(part):
            measurements.append(
                Measurement("batch_time_spread", nearest_rank(own, part), stat, n=n)
            )
    measurements += bins("iteration_time", "iteration", own, PARTS)
    measurements += _memory(report)
    compiled = _COMPILE.search(stdout)
    if params.compile:
        seconds = report.get("compile_s") or (float(compiled[1]) if compiled else None)
        if seconds is None:
            raise Failed("compile: true, but torch names no compilation time", output.texts)
        measurements.append(Measurement("compile_time", float(seconds)))
    _check_request(report, params, output, measurements)
    return measurements


def read(text: str) -> dict[str, Any]:
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
        "process_s",
        "user_s",
        "system_s",
        "device",
        "torch",
    } - report.keys()
    if absent:
        raise Failed(f"the report lacks {', '.join(sorted(absent))}", {"stdout": text})
    return report


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


def _check_request(
    report: dict[str, Any],
    params: TorchbenchParams,
    output: Output,
    measurements: list[Measurement],
) -> None:
    """Raise Invalid if device, batch, precision or number of GPUs are not the requested ones."""
    gpus = report.get("gpus_used", 0)
    checks = (
        (
            report["device"] != params.device or (params.device == "cuda" and gpus != params.gpus),
            f"ran on {report['device']} with {gpus} GPUs, not {params.device} with {params.gpus}",
        ),
        (
            report["batch_size"] != params.batch_size,
            f"{params.model} used batch size {report['batch_size']}, not {params.batch_size}",
        ),
        (
            params.precision and report.get("precision") != params.precision,
            f"{params.model} used precision {report.get('precision')}, not {params.precision}",
        ),
        (
            params.threads and report.get("threads") != params.threads,
            f"torch used {report.get('threads')} threads, not {params.threads}",
        ),
        (output.facts.get("against"), str(output.facts.get("against"))),
    )
    reason = next((text for wrong, text in checks if wrong), None)
    if reason:
        raise Invalid(reason, output.texts, measurements)


def explain_failure(
    params: TorchbenchParams, log: str, texts: dict[str, str]
) -> Skip | Failed | None:
    """Return the exception of a failure that the log explains, or None."""
    if any(word in log for word in _NO_NETWORK):
        return Failed(
            f"{params.model} lacks weights or data, which could not be downloaded before the run:"
            " download them where there is a network, and copy them here (TORCH_HOME, HF_HOME)",
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
