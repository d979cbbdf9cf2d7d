r"""Programs that perfdag starts on a host of a run, as `python -m perfdag.steps.on_host MODE ...`.

`lines ARGV...` prints each line of the command's stdout as `<seconds since its start>\t<line>`.
`rank ARGV...` adds a last line
`perfdag-rank max_rss_bytes=<n> user_s=<s> system_s=<s>` (getrusage(2) of the child).
Both exit with the command's own exit code, 128 + n for signal n.

`connect SECONDS ADDRESS PORT...` waits until each address answers, through a Service or without.
`listen ADDRESS PORT...` is what answers.
"""

import contextlib
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

PROGRAM = ("python3", "-m", "perfdag.steps.on_host")
RANK_LINE = "perfdag-rank max_rss_bytes="


def lines(argv: Sequence[str]) -> int:
    """Run argv, stamp its stdout with monotonic seconds since its start, return its exit code."""
    start = time.monotonic()
    out = sys.stdout.buffer
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            out.write(b"%.6f\t%s" % (time.monotonic() - start, line))
        code = process.wait()
    out.write(b"%.6f\tperfdag-exit %d\n" % (time.monotonic() - start, code))
    out.flush()
    return code if code >= 0 else 128 - code


def rank(argv: Sequence[str]) -> int:
    """Run argv with this process's stdin, stdout and stderr; return its exit code."""
    code = subprocess.call(argv)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Write once: lines of several ranks share a pipe.
    memory = f"{RANK_LINE}{used.ru_maxrss * 1024}"
    sys.stdout.write(f"{memory} user_s={used.ru_utime:.6f} system_s={used.ru_stime:.6f}\n")
    sys.stdout.flush()
    return code if code >= 0 else 128 - code


def listen(address: str, ports: Sequence[int]) -> None:
    """Accept connections until the process ends. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.ExitStack() as servers:
        for port in ports:
            server = socket.create_server((address, port), family=family, backlog=4096)
            servers.enter_context(server)
        time.sleep(600)


def connect(seconds: float, targets: Sequence[tuple[str, int]]) -> str | None:
    """Connect to each address and port. Return which did not answer within `seconds`, or None."""
    deadline = time.monotonic() + seconds
    for target in targets:
        while True:
            try:
                socket.create_connection(target, timeout=1.0).close()
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    return f"{target[0]} port {target[1]}: {error}"
                time.sleep(0.1)
    return None


def main(mode: str, *words: str) -> str | int | None:
    """Run a mode and return what the process exits with."""
    if mode == "listen":
        listen(words[0], list(map(int, words[1:])))
        return None
    if mode == "connect":
        return connect(float(words[0]), list(zip(words[1::2], map(int, words[2::2]), strict=True)))
    try:
        return (lines if mode == "lines" else rank)(words)
    except OSError as error:
        print(f"{words[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201 - a command's own message
        return 127


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
