"""What the change-point detector promises, measured: false alarms a series and night, and how soon a step is found.

    python benchmarks/detector.py                                    # all of it: 1,000 runs of 10 series at each noise model
    python benchmarks/detector.py --part alarms --model 'spikes'     # one noise model
    python benchmarks/detector.py --part steps

An A/A series is analysed anew after each of its runs, as the gate does every night. Intervals are Wilson's of 95 % (Wilson 1927).
Ratios are to a plain z-score of each night against all nights before (|z| > 3), computed on the same series in the same run.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from perfdag.stats.changes import change_points
from tests.stats.simulate import MODELS, OUTLIERS, false_alarms, nights_to_find, verdicts


def z_alarms(model: str, series: int, runs: int, before: int = 30) -> float:
    """Alarms a series-night of the plain rule: tonight lower than three standard deviations below the 60 nights before."""
    rng = np.random.default_rng(sum(model.encode()))
    hits = 0
    for _ in range(series):
        x = np.log(MODELS[model](rng, before + runs))
        past = (x[max(0, n - 60) : n] for n in range(before, len(x)))
        hits += sum(
            tonight < nights.mean() - 3 * nights.std(ddof=1)
            for tonight, nights in zip(x[before:], past, strict=True)
        )
    return hits / (series * runs)


def wilson(hits: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Interval of a share, from `hits` of `n` (0..1); closed form of Wilson (1927)."""
    share, shrink = hits / n, 1 + z * z / n
    half = z * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, (share + z * z / (2 * n) - half) / shrink), min(
        1.0, (share + z * z / (2 * n) + half) / shrink
    )


def alarms(models: list[str], series: int, runs: int) -> bool:
    """Print false alarms of each noise model; whether all keep the target."""
    print(
        f"false alarms for the worse, % of series-nights ({series} series of {runs:,} runs each; target <= 0.3)"
    )
    kept = True
    for model, min_effect in [
        *((model, 0.05) for model in models),
        *((model, 0.03) for model in models if model == "lognormal CV 2 %"),
    ]:
        hits, nights = false_alarms(model, series, runs, min_effect)
        low, high = wilson(hits, nights)
        plain = z_alarms(model, series, runs)
        ratio = f"{hits / nights / plain:.2f} of it" if plain else "none either"
        name = model if min_effect == 0.05 else f"{model}, min_effect 3 %"
        share = f"{100 * hits / nights:5.2f}  [{100 * low:.2f}, {100 * high:.2f}]"
        print(
            f"  {name:32} {share}  ({hits} of {nights}; plain z-score {100 * plain:.2f}: {ratio})",
            flush=True,
        )
        kept &= min_effect != 0.05 or hits / nights <= 0.003
    return kept


def steps(series: int) -> bool:
    """Print how soon steps are found; whether those at CV 2 % hold the target (the last is beyond what is promised)."""
    kept = True
    print(f"steps found (target: 95 %; {series} series each)")
    for step, cv, within, min_effect in (
        (0.07, 0.02, 10, 0.05),
        (0.10, 0.02, 3, 0.05),
        (0.05, 0.02, 10, 0.03),
        (0.10, 0.05, 10, 0.05),
    ):
        result = nights_to_find(step, cv, series, within=within, min_effect=min_effect)
        low, high = wilson(int((result <= within).sum()), series)
        part = f"{100 * (result <= within).mean():5.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
        what = f"{100 * step:3.0f} % at CV {100 * cv:.0f} %, min_effect {100 * min_effect:.0f} %"
        print(
            f"  {what}: {part} within {within} runs, median run {np.median(result):.0f}", flush=True
        )
        kept &= cv > 0.02 or (result <= within).mean() >= 0.95
    return kept


def share(words: list[str], *wanted: str) -> float:
    """Share of verdicts that are one of the wanted words."""
    return sum(word in wanted for word in words) / len(words)


def pairs(models: list[str], count: int) -> bool:
    """Print how often `compare` is wrong about equal runs and finds drops; whether targets are kept."""
    print(
        f"equal pairs of runs called different by `compare`, % of {count} pairs (target: 1; 6 with outliers)"
    )
    print(
        f"  {'past runs':32}"
        + "".join(f"{past:>8}" for past in (0, 1, 5, 15))
        + "   ten series:"
        + "".join(f"{past:>7}" for past in (1, 2, 5))
    )
    kept = True
    for model in models:
        wrong = [
            share(verdicts(model, past, count, series), "better", "worse")
            for past, series in ((0, 1), (1, 1), (5, 1), (15, 1), (1, 10), (2, 10), (5, 10))
        ]
        kept &= max(wrong) <= (0.06 if model in OUTLIERS else 0.01)
        alone, pooled = (
            "".join(f"{100 * part:8.2f}" for part in parts) for parts in (wrong[:4], wrong[4:])
        )
        print(f"  {model:32}{alone}{'':14}{pooled}", flush=True)
    print(
        "drops found, %: of 80 % with no history (target 99); of 30 % with ten series of two past runs (target 90 at CV 5 %)"
    )
    for model in models:
        large = share(verdicts(model, 0, count, factor=0.2), "worse")
        small = share(verdicts(model, 2, count, series=10, factor=0.7), "worse")
        print(f"  {model:32}{100 * large:8.2f}{100 * small:8.1f}", flush=True)
        kept &= large >= 0.99 and (small >= 0.90 or model != "lognormal CV 5 %")
    return kept


def cost() -> None:
    """Print what an analysis costs."""
    rng = np.random.default_rng(0)
    values = np.exp(rng.normal(0, 0.02, (50, 60)))
    start = time.perf_counter()
    for i, x in enumerate(values):
        change_points(x, str(i))
    print(
        f"cost: {(time.perf_counter() - start) / len(values) * 1e3:.2f} ms a clean series of 60 runs"
    )


def main() -> int:
    """Print what was asked for; exit 1 where false alarms or steps found miss their targets."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=int, default=1000, help="runs of each A/A series after its first 30"
    )
    parser.add_argument("--series", type=int, default=10, help="A/A series of each noise model")
    parser.add_argument("--model", default="", help="only noise models whose name holds this")
    parser.add_argument("--part", choices=["alarms", "steps", "pairs"], help="only this part")
    args = parser.parse_args()
    kept = True
    if args.part in (None, "alarms"):
        kept = alarms([model for model in MODELS if args.model in model], args.series, args.runs)
    if args.part in (None, "steps"):
        kept &= steps(20 * args.series)
    if args.part in (None, "pairs"):
        kept &= pairs([model for model in MODELS if args.model in model], 150 * args.series)
        cost()
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
