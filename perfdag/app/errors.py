"""The error that ends a verb with one line on stderr and an exit code."""

from perfdag.signals import EXIT_INPUT


class CommandError(Exception):
    """A verb cannot do what it was asked to do.

    The message says why and what to do. `perfdag` prints it after its name and the verb.
    """

    def __init__(self, message: str, exit_code: int = EXIT_INPUT) -> None:
        super().__init__(message)
        self.exit_code = exit_code
