"""Queueing theory and a queue in virtual time, to hold the search against."""

import math

import numpy as np


def md1_wait_cdf(x: float, rate: float, service: float) -> float:
    """P(wait <= x) of M/D/1 (Erlang 1909; Tijms, A First Course in Stochastic Models, 9.2):
    times in seconds, rate in 1/s.
    """
    rho = rate * service
    terms = []
    for k in range(math.floor(x / service) + 1):
        y = rate * (k * service - x)
        terms.append(y**k / math.factorial(k) * math.exp(-y))
    return (1 - rho) * math.fsum(terms)


def md1_peak(bound: float, service: float, p: float = 0.99) -> float:
    """Highest rate (1/s) at which wait + service stays within `bound` for a share `p` of the
    queries, by bisection.
    """
    low, high = 0.0, 1 / service
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if md1_wait_cdf(bound - service, middle, service) >= p else (low, middle)
        )
    return low


def late_share(rate: float, service: float, bound: float, queries: int, seed: int) -> float:
    """Share of queries beyond `bound` in one simulated M/D/1 run: Lindley's recursion,
    vectorised.
    """
    arrivals = np.random.default_rng(seed).exponential(1 / rate, queries).cumsum()
    order = np.arange(queries)
    ends = service * (order + 1) + np.maximum.accumulate(arrivals - service * order)
    return float((ends - arrivals > bound).mean())
