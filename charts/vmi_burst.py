"""Charts of the benchmark vmi-burst."""

from perfdag.charts.scale import figures

__all__ = ["figures"]
