"""Quantiles of Student's t."""

import math
from functools import lru_cache
from statistics import NormalDist

EXACT = 30
"""Degrees of freedom up to which the distribution is summed, and from which a series is enough."""


@lru_cache(maxsize=1024)
def student_t(p: float, freedom: int) -> float:
    """Return the quantile of Student's t for 0.5 < p < 1, good to 0.01 %.

    Up to EXACT degrees of freedom, invert the distribution function (Abramowitz and Stegun 26.7.3
    and 26.7.4) by bisection. Above, use the Cornish-Fisher expansion (26.7.5). Below one degree of
    freedom, return that of one.
    """
    v = max(freedom, 1)
    if v > EXACT:
        z = NormalDist().inv_cdf(p)
        first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
        third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
        return z + first / v + second / v**2 + third / v**3
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        low, high = (angle, high) if _within(angle, v) < 2 * p - 1 else (low, angle)
    return math.sqrt(v) * math.tan(low)


def _within(angle: float, v: int) -> float:
    """Return P(|T| <= sqrt(v) tan(angle)) for v degrees of freedom."""
    cosine = math.cos(angle)
    term, total = (1.0, 0.0) if v % 2 == 0 else (cosine, 0.0)
    for k in range(v % 2, v - 1, 2):
        total += term
        term *= cosine**2 * (k + 1) / (k + 2)
    if v % 2 == 0:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + math.sin(angle) * total)
