"""A terminal, and a command of perfdag that writes to it."""

import os
import pty
import struct
import subprocess
from collections.abc import Sequence
from fcntl import ioctl
from termios import TIOCSWINSZ

from tests.fakes.process import PERFDAG

OPTIONS = ("NO_COLOR", "FORCE_COLOR", "CI", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES")


def on_a_terminal(argv: Sequence[str], stream: str, width: int, code: int = 0, **env: str) -> str:
    """Return what `perfdag ARGV` writes where `stream` (stdout or stderr) is a terminal."""
    ours, terminal = pty.openpty()
    ioctl(terminal, TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    plain = {name: value for name, value in os.environ.items() if name not in OPTIONS}
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: terminal}
    with subprocess.Popen(
        [*PERFDAG, *argv],
        env=plain | {"TERM": "xterm-256color"} | env,
        stdout=streams["stdout"],
        stderr=streams["stderr"],
    ) as process:
        os.close(terminal)
        output = b""
        try:
            while data := os.read(ours, 65536):
                output += data
        except OSError:  # Linux says EIO where the other side is closed
            os.close(ours)
    assert process.returncode == code, output
    return output.decode()
