"""Amdahl's law and the Universal Scalability Law, fitted to throughput over replicas.

X(n) = l n / (1 + s (n - 1) + k n (n - 1)): l is the throughput of one replica, s the serial share
(contention) and k the cost of coherence. Amdahl's law has k = 0.
n / X is linear in (1/l, s/l, k/l). The fit is least squares of relative errors, without a negative
parameter.
An interval is a profile: it holds each value with which the best fit of the rest is not worse than
Student's t allows. A knee is shown if its interval ends, that is, if k = 0 fits worse than that.
Sources: N. J. Gunther, Guerrilla Capacity Planning, Springer 2007, chapters 4 to 6; D. M. Bates and
D. G. Watts, Nonlinear Regression Analysis, Wiley 1988, section 6.1 (profile intervals).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from perfdag.stats.student import student_t

Interval = tuple[float, float]
Column = Callable[[float], float]

_SMALLEST_ERROR = 1e-6
"""Relative error of a rate below which a fit is exact."""


@dataclass(frozen=True)
class ScalabilityLaw:
    """Parameters of a fit, with their 99 % intervals.

    `rate`: items a second of one replica; `error`: rms of the relative residuals.
    An interval is None if there are no more points than parameters.
    """

    rate: float
    sigma: float
    kappa: float
    error: float
    sigma_interval: Interval | None = None
    kappa_interval: Interval | None = None
    knee_interval: Interval | None = None

    def throughput(self, n: float) -> float:
        """Return items a second with n replicas."""
        return self.rate * n / (1 + self.sigma * (n - 1) + self.kappa * n * (n - 1))

    @property
    def knee(self) -> float | None:
        """Return the replicas beyond which throughput falls; None if the data show no knee."""
        return math.sqrt((1 - self.sigma) / self.kappa) if self.knee_interval else None

    @property
    def ceiling(self) -> float | None:
        """Return the most items a second of any number of replicas; None without a bound."""
        knee = self.knee
        if knee is not None:
            return self.throughput(max(1.0, knee))
        return self.rate / self.sigma if self.sigma > 0 else None

    def as_json(self) -> dict[str, float | list[float] | None]:
        """Return the parameters, knee and ceiling as plain numbers, intervals as lists."""

        def ends(interval: Interval | None) -> list[float] | None:
            return list(interval) if interval and math.isfinite(interval[1]) else None

        return {
            "rate_per_second": self.rate,
            "sigma": self.sigma,
            "sigma_interval": ends(self.sigma_interval),
            "kappa": self.kappa,
            "kappa_interval": ends(self.kappa_interval),
            "relative_error": self.error,
            "knee_replicas": self.knee,
            "knee_interval": ends(self.knee_interval),
            "ceiling_per_second": self.ceiling,
        }


def fit(points: Sequence[tuple[int, float]], coherence: bool = True) -> ScalabilityLaw | None:
    """Fit a law to (replicas, items a second); without `coherence`, Amdahl's.

    Return None with fewer distinct numbers of replicas than parameters.
    """
    points = [(n, x) for n, x in points if n > 0 and x > 0]
    columns = [_one, _serial, _coherence][: 3 if coherence else 2]
    if len({n for n, _ in points}) < len(columns):
        return None
    rest, solved = _fit(points, columns)
    a, b, c = (*solved, 0.0)[:3]
    law = ScalabilityLaw(1 / a, b / a, c / a, math.sqrt(rest / len(points)))
    freedom = len(points) - len(columns)
    if not freedom:
        return law
    unbounded = _least_squares(points, columns)
    noise = (_squares(points, columns, unbounded) if unbounded else rest) / freedom
    quantile = student_t(0.995, freedom)
    worst = rest + quantile**2 * max(noise, _SMALLEST_ERROR**2)

    def interval(best: float, profile: Callable[[float], list[Column]]) -> Interval:
        def fits(value: float) -> bool:
            return _fit(points, profile(value))[0] <= worst

        return _end(fits, best, down=True), _end(fits, best, down=False)

    last = [_coherence] if coherence else []
    sigma = interval(law.sigma, lambda s: [lambda n: 1 + s * (n - 1), *last])
    if not coherence:
        return ScalabilityLaw(law.rate, law.sigma, 0.0, law.error, sigma)
    kappa = interval(law.kappa, lambda k: [lambda n: 1 + k * n * (n - 1), _serial])
    knee = None
    if kappa[0] > 0 and law.sigma < 1:
        # s = 1 - k K^2 has two extremes that are not negative: s = 1 with k = 0, and s = 0.
        knee = interval(
            math.sqrt((1 - law.sigma) / law.kappa),
            lambda knee: [lambda n: n, lambda n: knee**2 + n * (n - 1)],
        )
    return ScalabilityLaw(law.rate, law.sigma, law.kappa, law.error, sigma, kappa, knee)


def _one(n: float) -> float:
    return 1.0


def _serial(n: float) -> float:
    return n - 1


def _coherence(n: float) -> float:
    return n * (n - 1)


def _end(fits: Callable[[float], bool], best: float, down: bool) -> float:
    """Return where the values that fit end, below or above the best one; 0 or inf if nowhere."""
    inside, outside = best, 0.0 if down else max(2 * best, 1e-3)
    if down and (best <= 0 or fits(0.0)):
        return 0.0
    while not down and fits(outside):
        if outside > 1e6:
            return math.inf
        inside, outside = outside, 2 * outside
    for _ in range(30):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if fits(middle) else (inside, middle)
    return inside


def _fit(
    points: Sequence[tuple[int, float]], columns: Sequence[Column]
) -> tuple[float, list[float]]:
    """Return the residual sum of squares and the coefficients of the best fit, none negative."""
    best: tuple[float, list[float]] = (math.inf, [])
    for size in range(1, len(columns) + 1):
        for free in combinations(range(len(columns)), size):
            solved = _least_squares(points, [columns[i] for i in free])
            if solved is None or min(solved) < 0:
                continue
            rest = _squares(points, [columns[i] for i in free], solved)
            if rest < best[0]:
                coefficients = dict(zip(free, solved, strict=True))
                best = rest, [coefficients.get(i, 0.0) for i in range(len(columns))]
    return best


def _squares(
    points: Sequence[tuple[int, float]], columns: Sequence[Column], solved: Sequence[float]
) -> float:
    return sum(
        (1 - x / n * sum(p * column(n) for p, column in zip(solved, columns, strict=True))) ** 2
        for n, x in points
    )


def _least_squares(
    points: Sequence[tuple[int, float]], columns: Sequence[Column]
) -> list[float] | None:
    """Return the coefficients of the rows weighted by X/n; None if they have no one solution."""
    rows = [[column(n) * x / n for column in columns] for n, x in points]
    solved, _, rank, _ = np.linalg.lstsq(rows, np.ones(len(rows)))
    return [float(value) for value in solved] if rank == len(columns) else None
