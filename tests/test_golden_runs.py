"""Golden runs: which rows one run of each family has.

Values, times and names of machines are masked.

`PERFDAG_REGENERATE=1 pytest tests/test_golden_runs.py` writes them anew (tests/golden/README.md).
"""

import shutil
import uuid
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import perfdag
from perfdag.benchmark.registry import get
from tests.conftest import CommandLine
from tests.simulation import simulate
from tests.test_golden import GOLDEN, compare

ENTRIES = {
    "command": "{benchmark: command, params: {argv: [echo, 'speed 3.5'], metrics: {speed: {regex: 'speed ([0-9.]+)', unit: B/s, better: higher}}}}",  # noqa: E501
    "iperf": "{benchmark: iperf, params: {duration: 1s, streams: 2}}",
    "iperf2": "{benchmark: iperf, params: {implementation: iperf2, duration: 1s, streams: 2}}",
    "fio": "{benchmark: fio, params: {size: 16MiB, runtime: 300ms, rw: randread}}",
    "imb": "{benchmark: imb, params: {max_log: 6, iterations: 50}}",
    "queue-scaling": "{benchmark: queue-scaling, params: {limit: 2, factor: 1.2, command: [sleep, '0.1']}, timeout: 120s}",  # noqa: E501
    "resnet50": "{benchmark: resnet50, params: {system: stub, scenario: offline, batch: 8, fast: true, min_duration: 200ms}}",  # noqa: E501
    "resnet50-server": "{benchmark: resnet50, params: {system: stub, scenario: server, target_rate: 100, latency_bound: 1s, fast: true, min_duration: 200ms}}",  # noqa: E501
}
NEEDS = {"iperf": "iperf3", "iperf2": "iperf", "fio": "fio"}
ON_KWOK = {
    "vmi-burst": "{{benchmark: vmi-burst, params: {{counts: [5], api_gates: false, namespace: perfdag-test-{id}, timeout: 60s}}, timeout: 180s}}",  # noqa: E501
    "scale": "{{benchmark: scale, params: {{template: job, count: 100, parallel: 10, namespace: perfdag-test-{id}, timeout: 60s}}, timeout: 180s}}",  # noqa: E501
}
COLUMNS = ("entry", "benchmark", "metric", "unit", "better", "stat", "status", "headline")
MASKED = {"call": "any", "message": "any"}
"""Coordinates whose values differ from run to run: requests of the cluster's own controllers."""
FASTER = ("p9", "best_")
"""Statistics that only runs of enough operations or of enough seconds have."""


def masked(store: str, run_id: str | None = None) -> dict[str, Any]:
    """Return the rows of a run, by default the only one of a store, without what differs.

    `series` is how many series the rows are of, so that a series that splits or joins is seen.
    """
    table = perfdag.load(store, run=run_id, everything=True)
    counts: Counter[tuple[tuple[str, Any], ...]] = Counter()
    series: dict[tuple[tuple[str, Any], ...], set[str]] = {}
    for row in table.to_pylist():
        if str(row["stat"]).startswith(FASTER):
            continue
        kept = {name: row[name] for name in COLUMNS if row[name] is not None}
        kept["of_an_object"] = row["subject"] is not None
        key = tuple({**kept, **coordinates(row)}.items())
        counts[key] += 1
        series.setdefault(key, set()).add(row["series_id"])
    rows = [{**dict(key), "rows": n, "series": len(series[key])} for key, n in counts.items()]
    for row in rows:
        if any(f"coord_{name}" in row for name in MASKED):
            del row["rows"], row["series"]
    return {"rows": sorted(rows, key=lambda row: sorted((k, str(v)) for k, v in row.items()))}


def coordinates(row: dict[str, Any]) -> dict[str, Any]:
    """Return the coordinates of a row.

    `load` gives a coordinate a prefix if another column, such as a parameter, has its name.
    """
    if row["benchmark"] == "canary":
        return {}
    benchmark = get(row["benchmark"])
    found = {}
    for name in benchmark.coords:
        plain = None if name in benchmark.Params.model_fields else row.get(name)
        value = row.get(f"coord_{name}", plain)
        if value is not None:
            found[f"coord_{name}"] = MASKED.get(name, value)
    return found


def run(cli: CommandLine, name: str, entry: str, tmp_path: Path) -> dict[str, Any]:
    suite = tmp_path / "suite.yaml"
    suite.write_text(f"name: golden\nrepetitions: 2\nentries:\n  - {entry}\n")
    cli(["run", str(suite), "--store", str(tmp_path / "store")])
    return masked(str(tmp_path / "store"))


@pytest.mark.parametrize("name", ENTRIES)
def test_a_run_on_one_machine_has_its_golden_rows(
    name: str, cli: CommandLine, tmp_path: Path
) -> None:
    tool = NEEDS.get(name)
    if tool and not shutil.which(tool):
        pytest.skip(f"{tool} is not installed")
    if name.startswith("resnet50") and not find_spec("mlperf_loadgen"):
        pytest.skip("mlcommons-loadgen is not installed")
    compare(GOLDEN / "runs" / f"{name}.json", run(cli, name, ENTRIES[name], tmp_path))


@pytest.mark.cluster
@pytest.mark.parametrize("name", ON_KWOK)
def test_a_run_on_kwok_has_its_golden_rows(name: str, cli: CommandLine, tmp_path: Path) -> None:
    cli(["scale", "nodes", "--count", "20", "--gpus", "8"])
    simulate("kubevirt")
    entry = ON_KWOK[name].format(id=uuid.uuid4().hex[:6])
    found = run(cli, name, entry, tmp_path)
    for row in found["rows"]:
        row.pop("rows", None)  # an object skips a stage that it passes between two looks
    compare(GOLDEN / "runs" / f"{name}.json", found)
