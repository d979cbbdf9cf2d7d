"""One JSON document of a run: timestamp, gpu_info, benchmarks[...]."""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from perfdag.stats.percentiles import needed
from perfdag.steps.resnet50.params import Workload
from perfdag.steps.resnet50.result import Result


def seed_json(found: Result, params: Workload, facts: Mapping[str, Any]) -> dict[str, Any]:
    """One measurement as that document; times in ms, rates in 1/s, memory in 10^9 bytes, as its field names say."""
    device, gpus = found.raw.get("device", {}), facts.get("gpus") or [{}]
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
        "benchmarks": [entry(found, params)],
    }


def entry(found: Result, params: Workload) -> dict[str, Any]:
    """One element of `benchmarks`."""
    start, end = found.span
    made: dict[str, Any] = {
        "scenario": params.scenario.replace("-", "_"),
        "batch_size": params.batch,
        "duration_sec": round(end - start, 3),
    }
    tested = found.tested
    if tested is None:
        return made
    made |= {"valid": tested.valid, "precision": params.precision, "backend": params.backend, "fast": params.fast}
    if params.scenario in ("offline", "find-peak", "server"):
        made["throughput_samples_per_sec"] = round(found.rate, 3)
    if params.scenario != "offline":
        made |= {
            f"latency_p{p * 100:g}_ms": round(tested.percentiles[p] * 1e3, 4)
            for p in (0.5, 0.9, 0.95, 0.99, 0.999)
            if tested.queries >= needed(p)
        }
    return made


def merge(documents: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Documents of one run as one: the first's timestamp and device, all benchmarks. Raises ValueError for none, or for two devices."""
    given = list(documents)
    if not given:
        raise ValueError("no measurement to write")
    names = {each["gpu_info"]["name"] for each in given}
    if len(names) > 1:
        raise ValueError(f"measurements of {len(names)} devices ({', '.join(sorted(names))}): write one document for each")
    return {**given[0], "benchmarks": [one for each in given for one in each["benchmarks"]]}


def from_rows(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The document of a run's rows (`params`, `env`, `status`, `point`, `repetition` of each): every valid or invalid sample once.

    Raises ValueError where no row is of resnet50 or they are of two devices.
    """
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        env = json.loads(row["env"] or "{}")
        made = env.get("sample", {}).get("seed_json")
        if row["benchmark"] == "resnet50" and made:
            found[(row["point"], row["repetition"])] = made
    return merge(found.values())


def main() -> int:
    """Print the document of one run's Parquet file."""
    parser = argparse.ArgumentParser(prog="python -m perfdag.steps.resnet50.seed", description="a run's Parquet file as one JSON document")
    parser.add_argument("rows", metavar="FILE.parquet")
    args = parser.parse_args()
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(args.rows, columns=["benchmark", "point", "repetition", "env"])
        document = from_rows(table.to_pylist())
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{args.rows}: {error}\n")
        return 2
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
