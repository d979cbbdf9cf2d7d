"""Charts of rows, and the one-file HTML report.

A benchmark declares its charts in `charts/benchmarks.py`, or another package does by an entry point
of the group `perfdag.charts` with the name of the benchmark: a list of `perfdag.charts.view.View`,
or of functions from its rows in one run to pairs of a slug (a-z, 0-9, `-`) and a figure. One
without a declaration has a chart of each of its first headline metrics.
"""

import os
import sys
from contextlib import suppress
from importlib.util import find_spec

from perfdag.problems import PerfdagError

# The data of the site and the grouping of series work without matplotlib.
if "matplotlib" not in sys.modules and find_spec("matplotlib"):
    # Importing matplotlib fails where the backend is not installed, as that of a notebook, and
    # figures of this package need none. A script that draws windows gets its backend back.
    _backend = os.environ.pop("MPLBACKEND", "")
    try:
        import matplotlib
    except UnicodeDecodeError as error:
        raise PerfdagError(
            f"no charts, because matplotlib cannot read your matplotlibrc as UTF-8: {error.reason} "
            f"at byte {error.start}; mend it, then `perfdag report`"
        ) from None
    finally:
        if _backend:
            os.environ["MPLBACKEND"] = _backend
    if _backend:
        with suppress(ValueError):
            matplotlib.rcParams["backend"] = _backend
