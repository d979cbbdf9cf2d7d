"""Exit codes of measuring pods, which the watchdog and Argo decide by."""

from types import FrameType

EXIT_RETRYABLE = 75
"""EX_TEMPFAIL: another attempt may succeed."""
EXIT_REFUSED = 77
"""EX_NOPERM: another attempt would be refused too."""


def exit_retryable(number: int, frame: FrameType | None) -> None:
    """Exit on a signal so that Argo tries again. A signal handler."""
    raise SystemExit(EXIT_RETRYABLE)
