"""Amdahl's law and the Universal Scalability Law, fitted to throughput over replicas.

X(n) = l n / (1 + s (n - 1) + k n (n - 1)): l is the throughput of one replica, s the serial share
(contention) and k the cost of coherence. Amdahl's law has k = 0.
n / X is linear in (1/l, s/l, k/l). The fit is weighted least squares with equal relative errors and
no
negative parameter.
Source: N. J. Gunther, Guerrilla Capacity Planning, Springer 2007, chapters 4 to 6.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True)
class ScalabilityLaw:
    """Parameters of a fit.

    ``rate``: items a second of one replica; ``error``: rms of the relative residuals.
    """

    rate: float
    sigma: float
    kappa: float
    error: float

    def throughput(self, n: float) -> float:
        """Return items a second with n replicas."""
        return self.rate * n / (1 + self.sigma * (n - 1) + self.kappa * n * (n - 1))

    @property
    def knee(self) -> float | None:
        """Return the replicas beyond which throughput falls; None if it never does."""
        return (
            math.sqrt((1 - self.sigma) / self.kappa) if self.kappa > 0 and self.sigma < 1 else None
        )

    @property
    def ceiling(self) -> float | None:
        """Return the most items a second of any number of replicas; None without a bound."""
        knee = self.knee
        if knee is not None:
            return self.throughput(max(1.0, knee))
        return self.rate / self.sigma if self.sigma > 0 else None

    def as_json(self) -> dict[str, float | None]:
        """Return the parameters, knee and ceiling as plain numbers."""
        return {
            "rate_per_second": self.rate,
            "sigma": self.sigma,
            "kappa": self.kappa,
            "relative_error": self.error,
            "knee_replicas": self.knee,
            "ceiling_per_second": self.ceiling,
        }


def fit(points: Sequence[tuple[int, float]], coherence: bool = True) -> ScalabilityLaw | None:
    """Fit a law to (replicas, items a second); without ``coherence``, Amdahl's.

    Return None with fewer distinct numbers of replicas than parameters.
    """
    points = [(n, x) for n, x in points if n > 0 and x > 0]
    columns = 3 if coherence else 2
    if len({n for n, _ in points}) < columns:
        return None
    best: tuple[float, list[float]] | None = None
    for size in range(columns):
        for free in combinations(range(1, columns), size):
            solved = _least_squares(points, (0, *free))
            if solved is None or min(solved) < 0:
                continue
            rest = _squares(points, solved)
            if best is None or rest < best[0]:
                best = rest, solved
    if best is None:
        return None
    rest, (a, b, c) = best
    return ScalabilityLaw(1 / a, b / a, c / a, math.sqrt(rest / len(points)))


def _row(n: int) -> tuple[float, float, float]:
    return 1.0, n - 1.0, float(n) * (n - 1)


def _squares(points: Sequence[tuple[int, float]], solved: Sequence[float]) -> float:
    return sum(
        (1 - x / n * sum(p * f for p, f in zip(solved, _row(n), strict=True))) ** 2
        for n, x in points
    )


def _least_squares(points: Sequence[tuple[int, float]], free: Sequence[int]) -> list[float] | None:
    """Solve the normal equations of the free columns, with rows weighted by X/n."""
    size = len(free)
    matrix = [[0.0] * (size + 1) for _ in range(size)]
    for n, x in points:
        row = [_row(n)[column] * x / n for column in free]
        for i in range(size):
            for j in range(size):
                matrix[i][j] += row[i] * row[j]
            matrix[i][size] += row[i]
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(matrix[r][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        if abs(matrix[i][i]) < 1e-300:
            return None
        for r in range(size):
            if r != i:
                factor = matrix[r][i] / matrix[i][i]
                matrix[r] = [
                    value - factor * above
                    for value, above in zip(matrix[r], matrix[i], strict=True)
                ]
    solved = [0.0, 0.0, 0.0]
    for i, column in enumerate(free):
        solved[column] = matrix[i][size] / matrix[i][i]
    return solved if solved[0] > 0 else None
