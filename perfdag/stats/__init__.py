"""Statistics of benchmark runs: spread, verdicts, paired tests, change points, node outliers, alerts.

Everything here is pure numbers on numpy arrays; nothing reads a store. `perfdag.stats.series` is the one bridge
from the rows of `perfdag.results` to arrays.
"""
