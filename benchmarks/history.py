"""How fast history and compare answer: 1,000 runs of 300 series, and two runs of 10,000 rows.

    python benchmarks/history.py [--store ROOT] [--runs 1000] [--series 300]

Prints seconds, and the ratio to reading the same runs file by file without the roll-up, measured in
the same run; exit 1 where a limit is not held: history within 1 s from a folder and 3 s from S3, as
a command within 1 s more (it starts and imports first), the change points of noisy series (CV 5 %)
within 12 s of CPU time, check of the newest run within 0.7 s of CPU time, compare within 1 s.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from limits import at_most

from perfdag.analysis import medians
from perfdag.analysis.compare import compare_selections
from perfdag.analysis.gate import check
from perfdag.analysis.history import series_of
from perfdag.analysis.verdict import Tuning
from perfdag.results.run_store import Selection
from perfdag.results.schema import SAMPLES
from perfdag.store.base import Store
from perfdag.store.s3 import open_store
from tests.stats.synthetic import START, rows, run_id


def fill(store: Store, runs: int, series: int, repetitions: int, suite: str = "net") -> None:
    """Write runs of `series` series; one series in ten has a step of 10 % at two thirds."""
    template = rows(0, {f"streams={i}": [1.0] * repetitions for i in range(series)}, suite=suite)
    table = pa.Table.from_pylist(template, schema=SAMPLES)
    steps = np.repeat(np.arange(series) % 10 == 0, repetitions)
    for night in range(runs):
        rng = np.random.default_rng(night)
        between = np.repeat(np.exp(rng.normal(0, 0.01, series)), repetitions)
        value = (
            1e10
            * between
            * np.exp(rng.normal(0, 0.01, len(between)))
            * np.where(steps & (night > runs * 2 / 3), 0.9, 1)
        )
        name = run_id(night, suite)
        table = table.set_column(SAMPLES.get_field_index("value"), "value", pa.array(value))
        table = table.set_column(
            SAMPLES.get_field_index("run_id"), "run_id", pa.array([name] * len(value))
        )
        moment = pa.scalar(START + timedelta(days=night), pa.timestamp("us", tz="UTC"))
        table = table.set_column(
            SAMPLES.get_field_index("started_at"), "started_at", pa.repeat(moment, len(value))
        )
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd", store_schema=False)
        store.put(
            f"results/{suite}/{name[:4]}-{name[4:6]}/{name}.parquet",
            sink.getvalue().to_pybytes(),
        )


def best_time(work: Callable[[], object], times: int = 3) -> tuple[float, float]:
    """Wall and CPU seconds of the best of a few calls; on a busy machine the CPU's tell what a
    quiet one would take.
    """
    result = []
    for _ in range(times):
        start, cpu = time.perf_counter(), _cpu()
        work()
        result.append((time.perf_counter() - start, _cpu() - cpu))
    return min(result)


def _cpu() -> float:
    cpu_before = os.times()
    return (
        cpu_before.user + cpu_before.system + cpu_before.children_user + cpu_before.children_system
    )


def text_of(pair: tuple[float, float]) -> str:
    """Wall and CPU seconds in columns."""
    return f"{pair[0]:7.2f} s wall {pair[1]:7.2f} s CPU"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--store", help="an empty folder or s3:// prefix (default: a temporary folder)"
    )
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--series", type=int, default=300)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(args.store or folder)
        remote = (args.store or "").startswith("s3://")
        fill(store, args.runs, args.series, 3)
        first = best_time(lambda: medians.read_run_medians(store, "net"), 1)
        print(f"first read, which writes the roll-up  {text_of(first)}")
        reading = best_time(lambda: medians.read_run_medians(store, "net"))
        print(
            f"reading by the roll-up                {text_of(reading)}   "
            f"{first[0] / reading[0]:.1f} times as fast as the first read"
        )
        trends = medians.read_run_medians(store, "net")
        result = series_of(trends, Tuning())
        changes = best_time(lambda: series_of(trends, Tuning()))
        print(
            f"change points of {len(result)} x {len(trends.runs)}          "
            f"{text_of(changes)}   {sum(len(s.steps) for s in result)} found"
        )
        whole = best_time(lambda: series_of(medians.read_run_medians(store, "net"), Tuning()))
        print(f"history                               {text_of(whole)}")
        ok = [at_most("wall time", whole[0], 3.0 if remote else 1.0, "s")]
        words = ["history", "net", "--store", store.root]
        script = f"import sys; from perfdag.commands.main import main; sys.exit(main({words!r}))"
        walls = best_time(
            lambda: subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
        )
        print(
            f"`perfdag history net`, a new process  {text_of(walls)}   "
            f"{walls[0] / whole[0]:.1f} times the answer alone"
        )
        ok.append(at_most("wall time", walls[0], 4.0 if remote else 2.0, "s"))
        judging = best_time(lambda: check(trends.runs[-1].run_id, store.root))
        print(f"check of the newest run               {text_of(judging)}")
        ok.append(at_most("CPU time", judging[1], 0.7, "s"))
        noise = np.random.default_rng(0).normal(0, 0.05, trends.value.shape)
        noisy = replace(trends, value=np.exp(noise))
        folding = best_time(lambda: series_of(noisy, Tuning()), 1)
        print(f"change points where CV is 5 %         {text_of(folding)}")
        ok.append(at_most("CPU time", folding[1], 12.0, "s"))
        fill(store, 2, 2000, 5, suite="big")
        sides = [(store, Selection(run_id(n, "big"), "big", (run_id(n, "big"),))) for n in range(2)]
        medians.read_run_medians(store, "big")
        comparing = best_time(lambda: compare_selections(sides[0], sides[1]))
        print(f"compare of two runs of 10,000 rows    {text_of(comparing)}")
        ok.append(at_most("wall time", comparing[0], 1.0, "s"))
    return 0 if all(ok) else 1


if __name__ == "__main__":
    sys.exit(main())
