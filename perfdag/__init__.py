"""perfdag: benchmarks for a Kubernetes cluster or one machine.

A script builds suites of `Suite`, `Entry` and `Permutations`, and reads results with `load`,
`compare` and `check`. Every error that it can mend is a PerfdagError: a BadDocument is a wrong
suite, a StoreError a store that cannot be used, a SelectionError a run that is missing, and a
RunError a run that ended before its last sample.
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
    "Run": "perfdag.runs.finish",
    "Verdict": "perfdag.analysis.verdict",
    "load": "perfdag.results.schema",
    "compare": "perfdag.analysis.compare",
    "check": "perfdag.analysis.gate",
    "PerfdagError": "perfdag.problems",
    "BadDocument": "perfdag.suite.document",
    "StoreError": "perfdag.store.base",
    "SelectionError": "perfdag.results.run_store",
    "RunError": "perfdag.runs",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'perfdag' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
