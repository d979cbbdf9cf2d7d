"""Runs: measured on this machine, followed on a cluster, finished in either place."""

from perfdag.problems import PerfdagError


class RunError(PerfdagError):
    """A run cannot begin or go on, or it ended before its last sample."""
