"""Being told to end."""

import signal
from collections.abc import Callable
from types import FrameType

Handler = Callable[[int, FrameType | None], None]


def end_once(end: Handler = signal.default_int_handler) -> None:
    """Let SIGTERM call `end` (by default what Ctrl-C does) the first time and nothing after that.

    `timeout`, a kubelet and Argo may send it more than once, and a second one would cut short what the first began to clear away.
    """

    def first(number: int, frame: FrameType | None) -> None:
        signal.signal(number, _deaf)
        end(number, frame)

    signal.signal(signal.SIGTERM, first)


def _deaf(number: int, frame: FrameType | None) -> None:
    """A handler, and not SIG_IGN, which programs started from now on would inherit."""
