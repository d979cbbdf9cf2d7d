"""What the change-point detector promises, measured: false alarms a series and night, and how soon a step is found.

    python benchmarks/detector.py [--series 100]

Ratios are to a plain z-score of each night against all nights before (|z| > 3), computed on the same series in the same run.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.pop(0)  # this folder has a queue.py, which must not stand for the standard library's
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from perfdag.stats.changes import change_points
from perfdag.stats.verdicts import compare
from tests.stats.simulate import MODELS, NIGHTS, false_alarms, nights_to_find


def z_alarms(model: str, series: int, before: int = 30) -> float:
    """Alarms a series-night of the plain rule: tonight lower than three standard deviations below the nights before."""
    rng = np.random.default_rng(sum(model.encode()))
    hits = 0
    for _ in range(series):
        x = np.log(MODELS[model](rng, before + NIGHTS))
        hits += sum(x[n] < x[:n].mean() - 3 * x[:n].std(ddof=1) for n in range(before, len(x)))
    return hits / (series * NIGHTS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=100)
    series = parser.parse_args().series
    print(f"false alarms, % of series-nights ({series} series x {NIGHTS} nights, alerts for the worse; target <= 0.3)")
    for model in MODELS:
        alarms, nights = false_alarms(model, series)
        plain = z_alarms(model, series)
        ratio = f"{alarms / nights / plain:.2f} of it" if plain else "none either"
        print(f"  {model:30} {100 * alarms / nights:5.2f}   ({alarms} of {nights}; plain z-score {100 * plain:.2f}: {ratio})")
    alarms, nights = false_alarms("lognormal CV 2 %", series, min_effect=0.03)
    print(f"  {'CV 2 %, min_effect 3 %':30} {100 * alarms / nights:5.2f}   ({alarms} of {nights})")
    print("steps found (target: 95 %)")
    for step, cv, within, min_effect in ((0.07, 0.02, 10, 0.05), (0.10, 0.02, 3, 0.05), (0.05, 0.02, 10, 0.03), (0.10, 0.05, 10, 0.05)):
        found = nights_to_find(step, cv, 2 * series, within=within, min_effect=min_effect)
        part = 100 * (found <= within).mean()
        print(
            f"  {100 * step:3.0f} % at CV {100 * cv:.0f} %, min_effect {100 * min_effect:.0f} %: {part:5.1f} % within {within} runs, median night {np.median(found):.0f}"
        )
    rng = np.random.default_rng(0)
    print("equal pairs of runs called different by `compare` (1,000 pairs)")
    for past in (15, 20, 30):
        for name, model in MODELS.items():
            words = [compare(x[:1], x[1:2], x[2:], better="higher").word for x in (model(rng, past + 2) for _ in range(1000))]
            print(f"  {past} past runs, {name:30} {100 * sum(w in ('better', 'worse') for w in words) / 1000:5.2f} %")
    values = np.exp(rng.normal(0, 0.02, (50, 60)))
    start = time.perf_counter()
    for i, x in enumerate(values):
        change_points(x, str(i))
    print(f"cost: {(time.perf_counter() - start) / len(values) * 1e3:.2f} ms a clean series of 60 runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
