"""perfdag: benchmarks for a Kubernetes cluster or one machine.

A script uses `Suite`, `Entry` and `Permutations` to build suites, and `load` to read results.
These names are imported on first use, so that the command line starts fast.
"""

from importlib import import_module

__version__ = "0.2.0"
IMAGES = "localhost/perfdag-{name}:1"
"""Names of the images where no other are given: those of `images/build`, or in a release its own.
.github/workflows/release.yaml sets this line, from which wheel, manifests and chart take it."""
_HOMES = {
    "Suite": "perfdag.runs.local",
    "Entry": "perfdag.suite.model",
    "Permutations": "perfdag.suite.model",
    "load": "perfdag.results.schema",
}
__all__ = ["Entry", "Permutations", "Suite", "__version__", "load"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'perfdag' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
