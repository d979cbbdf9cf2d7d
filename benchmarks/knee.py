"""How often the Universal Scalability Law shows a knee, by simulation.

Prints for each limit and true law the share of validations that show a knee, and the share of the
99 % intervals that hold the true one. Limits: a knee of linear data in at most 1 %, a knee up to
0.9 of the limit in at least 90 % (limits 8 to 32, noise 2 %). Exit code 1 if one does not hold.
"""

import argparse
import random

from perfdag.steps.queue.validate.scalability_laws import ScalabilityLaw, fit
from perfdag.steps.queue.validate.validate import Plan

NOISE = 0.02
LIMITS = (4, 8, 16, 32)
MOST_FALSE, LEAST_SHOWN = 0.01, 0.9


def shares(law: ScalabilityLaw, limit: int, trials: int, knee: float | None) -> tuple[float, float]:
    """Return the share of trials that show a knee, and that of their intervals with the true
    one.
    """
    chance, order = random.Random(limit), Plan(limit).order()
    knees = hits = 0
    for _ in range(trials):
        law_fit = fit([(n, law.throughput(n) * chance.gauss(1, NOISE)) for n in order])
        if law_fit and law_fit.knee_interval:
            knees += 1
            low, high = law_fit.knee_interval
            hits += knee is not None and low <= knee <= high
    return knees / trials, hits / max(knees, 1)


def main() -> int:
    """Simulate all laws, print one line each, and compare with the limits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2000, help="validations for each law")
    trials = parser.parse_args().trials
    any_failed = False
    for limit in LIMITS:
        for sigma, part in ((0.0, None), (0.2, None), (0.05, 0.5), (0.05, 0.7), (0.05, 0.9)):
            knee = part * limit if part else None
            kappa = (1 - sigma) / knee**2 if knee else 0.0
            knees, hits = shares(ScalabilityLaw(10.0, sigma, kappa, 0.0), limit, trials, knee)
            text = f"limit {limit:>2}  serial share {sigma:.2f}  "
            if knee is None:
                bad = knees > MOST_FALSE
                text += f"no knee    shown {100 * knees:5.1f} % (limit {100 * MOST_FALSE:.0f} %)"
            else:
                bad = limit >= 8 and knees < LEAST_SHOWN
                text += f"knee {knee:5.1f}  shown {100 * knees:5.1f} % "
                text += f"(limit {100 * LEAST_SHOWN:.0f} %)  in its interval {100 * hits:5.1f} %"
            print(text + ("  TOO BAD" if bad else ""), flush=True)
            any_failed |= bad
    return int(any_failed)


if __name__ == "__main__":
    raise SystemExit(main())
