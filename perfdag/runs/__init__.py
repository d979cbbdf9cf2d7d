"""Runs: measured on this machine, followed on a cluster, finished in either place."""

from perfdag.problems import PerfdagError
from perfdag.signals import EXIT_INPUT


class RunError(PerfdagError):
    """A run cannot begin or go on, or it ended before its last sample."""

    def __init__(self, message: str, exit_code: int = EXIT_INPUT) -> None:
        super().__init__(message)
        self.exit_code = exit_code
