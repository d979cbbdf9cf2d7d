"""Amdahl's law and the Universal Scalability Law, fitted to throughput over replicas.

X(n) = l n / (1 + s (n - 1) + k n (n - 1)): l is the throughput of one replica, s the serial share
(contention) and k the cost of coherence. Amdahl's law has k = 0.
n / X is linear in (1/l, s/l, k/l). The fit is least squares of relative errors, without a negative
parameter.
Source: N. J. Gunther, Guerrilla Capacity Planning, Springer 2007, chapters 4 to 6.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

_COLUMNS: tuple[Callable[[float], float], ...] = (
    lambda n: 1.0,
    lambda n: n - 1,
    lambda n: n * (n - 1),
)


@dataclass(frozen=True)
class ScalabilityLaw:
    """Parameters of a fit.

    `rate`: items a second of one replica; `error`: rms of the relative residuals.
    """

    rate: float
    sigma: float
    kappa: float
    error: float

    def throughput(self, n: float) -> float:
        """Return items a second with n replicas."""
        return self.rate * n / (1 + self.sigma * (n - 1) + self.kappa * n * (n - 1))

    def as_json(self) -> dict[str, float]:
        """Return the parameters as plain numbers."""
        return {
            "rate_per_second": self.rate,
            "sigma": self.sigma,
            "kappa": self.kappa,
            "relative_error": self.error,
        }


def fit(points: Sequence[tuple[int, float]], coherence: bool = True) -> ScalabilityLaw | None:
    """Fit a law to (replicas, items a second); without `coherence`, Amdahl's.

    Return None with fewer distinct numbers of replicas than parameters.
    """
    points = [(n, x) for n, x in points if n > 0 and x > 0]
    count = 3 if coherence else 2
    if len({n for n, _ in points}) < count:
        return None
    best, rest = np.zeros(count), math.inf
    # The best fit without a negative parameter is that of the parameters that are not zero.
    for size in range(1, count + 1):
        for free in combinations(range(count), size):
            rows = np.array([[_COLUMNS[i](n) * x / n for i in free] for n, x in points])
            solved, _, rank, _ = np.linalg.lstsq(rows, np.ones(len(points)))
            squares = float(((1 - rows @ solved) ** 2).sum())
            if rank == size and solved.min() >= 0 and squares < rest:
                best, rest = np.zeros(count), squares
                best[list(free)] = solved
    a, b, c = (*map(float, best), 0.0)[:3]
    return ScalabilityLaw(1 / a, b / a, c / a, math.sqrt(rest / len(points)))
