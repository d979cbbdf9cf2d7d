"""Charts of the benchmark vmi-steady."""

from perfdag.charts.scale import figures

__all__ = ["figures"]
