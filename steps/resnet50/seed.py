"""One JSON document of a run and device: timestamp, gpu_info, benchmarks[...]."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from perfdag.stats.percentiles import needed
from perfdag.steps import gpu
from perfdag.steps.resnet50.imagenet import TOP1_FP32, reached
from perfdag.steps.resnet50.params import Workload
from perfdag.steps.resnet50.result import Result, invalid, marks, wrong


def seed_json(found: Result, params: Workload, facts: Mapping[str, Any]) -> dict[str, Any]:
    """One measurement as that document; times in ms, rates in 1/s, memory in 10^9 bytes, as its field names say. `facts`: what the GPUs did."""
    device = found.raw.get("device", {})
    gpus = gpu.used(facts.get("gpus") or [{}], {str(device.get("uuid"))})
    memory = device.get("memory")
    started = datetime.fromtimestamp(found.span[0], UTC).isoformat(timespec="seconds")
    return {
        "timestamp": started,
        "gpu_info": {
            "name": device.get("name", "unknown"),
            "cuda_version": device.get("cuda"),
            "total_memory_gb": round(memory / 1e9, 1) if memory else None,
            "driver": gpus[0].get("driver"),
        },
        "benchmarks": [entry(found, params, facts.get("against"))],
    }


def entry(found: Result, params: Workload, against: str | None = None) -> dict[str, Any]:
    """One element of `benchmarks`; `against` is why figures are not the device's own."""
    start, end = found.span
    made: dict[str, Any] = {
        "scenario": params.scenario.replace("-", "_"),
        "batch_size": params.batch,
        "duration_sec": round(end - start, 3),
    }
    tested, reason = found.tested, wrong(found, params) or against
    if tested is not None and not tested.valid:
        reason = reason or invalid(
            tested, params
        )  # of a smoke test, whose row is marked in place of invalid
    made |= {
        "valid": reason is None,
        "reason": reason,
        "precision": params.precision,
        "backend": params.backend,
    }
    made |= marks([found], params) | {"fast": params.fast}
    if tested is None:
        accuracy = found.raw["accuracy"]
        top1, images, reference = (accuracy[name] for name in ("top1", "images", "reference"))
        verdict = {
            "reference_top1": reference,
            "mlperf_top1": TOP1_FP32,
            "reached": reached(top1, images, reference),
        }
        return made | {"top1": top1, "images": images, "resize": accuracy["resize"]} | verdict
    if params.scenario in ("find-peak", "server"):
        made |= {
            "target_qps": found.raw["tests"][found.raw["answer"]]["rate"],
            "latency_bound_ms": round(params.latency_bound * 1e3, 4),
        }
    if params.scenario == "find-peak":
        peak = found.raw["peak"]
        made |= {
            "peak_rate_per_sec": peak["rate"],
            "bound": "at least" if peak["above"] is None else None,
        }
    if params.scenario in ("offline", "find-peak", "server"):
        made["throughput_samples_per_sec"] = round(found.rate, 3)
    if params.scenario != "offline":
        made |= {
            f"latency_p{p * 100:g}_ms": round(tested.percentiles[p] * 1e3, 4)
            for p in (0.5, 0.9, 0.95, 0.99, 0.999)
            if tested.queries >= needed(p)
        }
    return made


def documents(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Documents of a run by file name, one a device; empty where no sample was measured.

    Of each of the rows `env`, `phase`, `point` and `repetition` are read. Valid and invalid samples are in it once (`valid` says which),
    warm-ups are not.
    """
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        made = json.loads(row["env"] or "{}").get("sample", {}).get("seed_json")
        if made and row["phase"] == "measure":
            found[(row["point"], row["repetition"])] = made
    devices: dict[str, dict[str, Any]] = {}
    for each in sorted(found.values(), key=lambda made: str(made["timestamp"])):
        whole = devices.setdefault(each["gpu_info"]["name"], {**each, "benchmarks": []})
        whole["benchmarks"] += each["benchmarks"]
    several = len(devices) > 1
    return {
        f"resnet50{f'-{number}' if several else ''}.json": whole
        for number, whole in enumerate(devices.values(), 1)
    }
