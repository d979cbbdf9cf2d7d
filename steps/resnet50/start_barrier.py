"""Run a program behind a wrapper and coordinate its start by files.

    python -m perfdag.steps.resnet50.start_barrier FOLDER WRAPPER... PROGRAM...

The wrapper need only pass on the standard streams. FOLDER/spec is the program's first line of
standard input. When the program prints READY, create FOLDER/ready. When FOLDER/go
exists, the program gets its second line. Standard output is passed through. The exit code is the
program's, or 128 + N if signal N ended it.
"""

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

READY = "perfdag: ready"
"""The line of standard error by which a program reports that it is warm."""
_POLL = 0.002


def main(folder: Path, argv: Sequence[str]) -> int:
    """Run the program to its end."""
    # The program gets the signal as well, and its last output must pass through.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        program = subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
        return 127
    assert program.stdin is not None
    assert program.stderr is not None
    listener = threading.Thread(
        target=_listen, args=(program.stderr, folder / "ready"), daemon=True
    )
    listener.start()
    with contextlib.suppress(BrokenPipeError):
        program.stdin.write((folder / "spec").read_bytes())
        program.stdin.flush()
        while program.poll() is None and not (folder / "go").exists():
            time.sleep(_POLL)
        program.stdin.write(b"go\n")
    with contextlib.suppress(BrokenPipeError):
        program.stdin.close()
    code = program.wait()
    listener.join(1.0)  # a process that it started may hold its standard error open
    return code if code >= 0 else 128 - code


def _listen(stderr: IO[bytes], ready: Path) -> None:
    for line in stderr:
        if line.strip() == READY.encode():
            ready.touch()
            continue
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
