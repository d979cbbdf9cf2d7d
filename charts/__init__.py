"""Charts of rows, and the one-file HTML report.

A benchmark declares its charts in `charts/benchmarks.py`, or another package does by an entry point
of the group `perfdag.charts` with the name of the benchmark: a list of `perfdag.charts.view.View`,
or of functions from its rows in one run to pairs of a slug (a-z, 0-9, `-`) and a figure. One
without a declaration has a chart of each of its first headline metrics.
"""

import os

# Figures of this package need no backend. Importing matplotlib fails where one is not installed.
os.environ.pop("MPLBACKEND", None)
