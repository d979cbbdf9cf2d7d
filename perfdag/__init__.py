"""perfdag: benchmarks for a Kubernetes cluster or one machine."""

__version__ = "0.1.0"
