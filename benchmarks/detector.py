"""What compare and the gate promise, measured on made-up series: wrong verdicts, false alerts, and
how soon a step is found.

    python benchmarks/detector.py                                    # all of it, in a few minutes
    python benchmarks/detector.py --part alerts --model spikes       # one noise model
    python benchmarks/detector.py --part steps

A series is folded run by run, as the gate does it every night. Intervals are Wilson's of 95 %
(Wilson 1927). Exit 1 where a target is missed.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from perfdag.stats.levels import fold_levels
from tests.stats.simulate import (
    ALL_MODELS,
    MODELS,
    MOVING,
    OUTLIERS,
    false_alerts,
    nights_to_find,
    verdicts,
)


def wilson(hits: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Interval of a share, from `hits` of `n` (0..1); closed form of Wilson (1927)."""
    share, shrink = hits / n, 1 + z * z / n
    half = z * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, (share + z * z / (2 * n) - half) / shrink), min(
        1.0, (share + z * z / (2 * n) + half) / shrink
    )


def interval(hits: int, n: int) -> str:
    """A share in % with its interval."""
    low, high = wilson(hits, n)
    return f"{100 * hits / n:6.3f} [{100 * low:.3f}, {100 * high:.3f}]"


def alerts(models: list[str], series: int, runs: int) -> bool:
    """Print false alerts of each noise model; whether all keep the targets."""
    print(f"alerts of equal runs, % of series-nights ({series} series of {runs:,} runs each)")
    print(f"  {'':32}three-run rule (<= 0.03)      both rules (<= 0.3)          red nights")
    ok = True
    for model in models:
        result = false_alerts(model, series, runs)
        both = result.three_runs + result.permutations
        shares = (
            f"{interval(result.three_runs, result.nights):28}  {interval(both, result.nights):28}"
        )
        print(f"  {model:32}{shares} {100 * result.red / result.nights:6.2f}", flush=True)
        if model != MOVING:
            ok &= result.three_runs <= 0.0003 * result.nights and both <= 0.003 * result.nights
    return ok


def steps(series: int) -> bool:
    """Print how soon steps are found and that their alerts stay open; whether targets are kept."""
    ok = True
    print(f"steps found, and the alert still open 30 nights after the step ({series} series each)")
    for step, cv, within, min_effect, target in (
        (0.35, 0.02, 3, 0.05, 0.99),
        (0.10, 0.02, 3, 0.05, 0.0),
        (0.07, 0.02, 10, 0.05, 0.95),
        (0.05, 0.02, 10, 0.03, 0.0),
        (0.10, 0.05, 10, 0.05, 0.0),
    ):
        nights = nights_to_find(step, cv, series, min_effect)
        hits, lost_percent = int((nights <= within).sum()), 100 * (nights == 99).mean()
        what = f"{100 * step:3.0f} % at CV {100 * cv:.0f} %, min_effect {100 * min_effect:.0f} %"
        print(
            f"  {what}: {interval(hits, series)} within {within} runs, median run "
            f"{np.median(nights):.0f}, "
            f"not found or lost {lost_percent:.1f} %",
            flush=True,
        )
        ok &= hits >= target * series
    return ok


def share(words: list[str], *names: str) -> float:
    """Share of verdicts that are one of the wanted words."""
    return sum(word in names for word in words) / len(words)


def pairs(models: list[str], count: int) -> bool:
    """Print how often `compare` is wrong about equal runs and finds drops; whether targets are
    kept.
    """
    print(
        f"equal pairs of runs called different by `compare`, % of {count} pairs (target: 1; "
        f"6 with outliers)"
    )
    print(
        f"  {'past runs':32}"
        + "".join(f"{past:>8}" for past in (0, 1, 5, 15))
        + "   ten series:"
        + "".join(f"{past:>7}" for past in (1, 2, 5))
    )
    ok = True
    for model in models:
        wrong = [
            share(verdicts(model, past, count, series), "better", "worse")
            for past, series in ((0, 1), (1, 1), (5, 1), (15, 1), (1, 10), (2, 10), (5, 10))
        ]
        ok &= max(wrong) <= (0.06 if model in OUTLIERS else 0.01)
        alone, pool_width = (
            "".join(f"{100 * part:8.2f}" for part in parts) for parts in (wrong[:4], wrong[4:])
        )
        print(f"  {model:32}{alone}{'':14}{pool_width}", flush=True)
    print(
        "drops found, %: of 80 % with no history (target 99); of 30 % with ten series of two "
        "past runs (target 90 at CV 5 %)"
    )
    for model in models:
        large = share(verdicts(model, 0, count, factor=0.2), "worse")
        small = share(verdicts(model, 2, count, series=10, factor=0.7), "worse")
        print(f"  {model:32}{100 * large:8.2f}{100 * small:8.1f}", flush=True)
        ok &= large >= 0.99 and (small >= 0.90 or model != "lognormal CV 5 %")
    return ok


def cost() -> None:
    """Print what an analysis costs."""
    rng = np.random.default_rng(0)
    values = np.exp(rng.normal(0, 0.02, (50, 60)))
    start = time.perf_counter()
    for x in values:
        fold_levels(x, better="higher")
    print(
        f"cost: {(time.perf_counter() - start) / len(values) * 1e3:.2f} ms a clean series of "
        f"60 runs"
    )


def main() -> int:
    """Print what was asked for; exit 1 where a target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=int, default=1000, help="runs of each series without a change"
    )
    parser.add_argument("--series", type=int, default=20, help="series of each noise model")
    parser.add_argument("--model", default="", help="only noise models whose name holds this")
    parser.add_argument("--part", choices=["alerts", "steps", "pairs"], help="only this part")
    args = parser.parse_args()
    ok = True
    if args.part in (None, "alerts"):
        models = [model for model in ALL_MODELS if args.model in model]
        ok = alerts(models, args.series, args.runs)
    if args.part in (None, "steps"):
        ok &= steps(50 * args.series)
    if args.part in (None, "pairs"):
        ok &= pairs([model for model in MODELS if args.model in model], 100 * args.series)
        cost()
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
