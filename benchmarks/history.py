"""How fast history and compare answer: 1,000 runs of 300 series, and two runs of 10,000 rows.

    python benchmarks/history.py [--store ROOT] [--runs 1000] [--series 300]

Prints seconds, and the ratio to reading the same runs file by file without the roll-up, measured in the same run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from perfdag import rollup
from perfdag.checks import Tuning
from perfdag.comparison import compare_selections
from perfdag.history import series_of
from perfdag.results import SAMPLES
from perfdag.selection import Selection
from perfdag.store import Store, open_store
from tests.stats.synthetic import START, rows, run_id


def fill(store: Store, runs: int, series: int, repetitions: int, suite: str = "net") -> None:
    """Write runs of `series` series; one series in ten has a step of 10 % at two thirds."""
    template = rows(0, {f"streams={i}": [1.0] * repetitions for i in range(series)}, suite=suite)
    table = pa.Table.from_pylist(template, schema=SAMPLES)
    stepped = np.repeat(np.arange(series) % 10 == 0, repetitions)
    for night in range(runs):
        rng = np.random.default_rng(night)
        between = np.repeat(np.exp(rng.normal(0, 0.01, series)), repetitions)
        value = 1e10 * between * np.exp(rng.normal(0, 0.01, len(between))) * np.where(stepped & (night > runs * 2 / 3), 0.9, 1)
        name = run_id(night, suite)
        made = table.set_column(SAMPLES.get_field_index("value"), "value", pa.array(value))
        made = made.set_column(SAMPLES.get_field_index("run_id"), "run_id", pa.array([name] * len(value)))
        moment = pa.scalar(START + timedelta(days=night), pa.timestamp("us", tz="UTC"))
        made = made.set_column(SAMPLES.get_field_index("started_at"), "started_at", pa.repeat(moment, len(value)))
        sink = pa.BufferOutputStream()
        pq.write_table(made, sink, compression="zstd", store_schema=False)
        store.put(f"results/suite={suite}/month={name[:4]}-{name[4:6]}/{name}.parquet", sink.getvalue().to_pybytes())


def timed(work: Callable[[], object], times: int = 3) -> float:
    """Best of a few calls, seconds."""
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", help="an empty folder or s3:// prefix (default: a temporary folder)")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--series", type=int, default=300)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(args.store or folder)
        fill(store, args.runs, args.series, 3)
        without = timed(lambda: rollup.trends(store, "net", write_back=False), 1)
        start = time.perf_counter()
        rollup.trends(store, "net")
        print(f"first read, which writes the roll-up  {time.perf_counter() - start:7.2f} s")
        reading = timed(lambda: rollup.trends(store, "net"))
        print(
            f"reading by the roll-up                {reading:7.2f} s   {without / reading:.1f} times as fast as file by file ({without:.2f} s)"
        )
        trends = rollup.trends(store, "net")
        start = time.perf_counter()
        found = series_of(trends, Tuning())
        print(
            f"change points of {len(found)} x {len(trends.runs)}          {time.perf_counter() - start:7.2f} s   {sum(len(s.findings) for s in found)} found"
        )
        whole = timed(lambda: series_of(rollup.trends(store, "net"), Tuning()))
        limit = 3 if args.store else 1
        print(f"history                               {whole:7.2f} s   target < {limit} s")
        command = [sys.executable, "-m", "perfdag.cli", "history", "net", "--store", store.root]
        script = f"import sys; from perfdag.cli import main; sys.exit(main({command[3:]!r}))"
        walls = timed(lambda: subprocess.run([sys.executable, "-c", script], check=True, capture_output=True))
        print(f"`perfdag history net`, a new process  {walls:7.2f} s")
        fill(store, 2, 2000, 5, suite="big")
        sides = [(store, Selection(run_id(n, "big"), "big", (run_id(n, "big"),))) for n in range(2)]
        rollup.trends(store, "big")
        comparing = timed(lambda: compare_selections(sides[0], sides[1], Tuning()))
        print(f"compare of two runs of 10,000 rows    {comparing:7.2f} s   target < 1 s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
