"""A terminal, and a command of perfdag that writes to it: a child, so that it has streams of its
own.
"""

import os
import pty
import struct
import sys
from collections.abc import Sequence
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

from perfdag.cli import main

OPTIONS = ("NO_COLOR", "FORCE_COLOR", "CI", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES")


def on_a_terminal(argv: Sequence[str], stream: str, width: int, code: int = 0, **env: str) -> str:
    """Return what `perfdag ARGV` writes where `stream` (stdout or stderr) is a terminal."""
    child, terminal = pty.fork()
    if not child:
        end = 99
        try:
            end = _run(argv, stream, env)
        finally:
            os._exit(end)
    ioctl(terminal, TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    output = b""
    try:
        while data := os.read(terminal, 65536):
            output += data
    except OSError:  # Linux says EIO where the other side is closed
        os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code, output
    return output.decode()


def _run(argv: Sequence[str], stream: str, env: dict[str, str]) -> int:
    """Run the command in the child, whose other stream goes nowhere."""
    for name in OPTIONS:
        os.environ.pop(name, None)
    os.environ.update({"TERM": "xterm-256color"} | env)
    with Path("/dev/tty").open("w", buffering=1) as tty, Path(os.devnull).open("w") as nowhere:
        sys.stdout, sys.stderr = (tty, nowhere) if stream == "stdout" else (nowhere, tty)
        return main(list(argv))
