"""Run a command and say when: `lines` puts a clock before every line it prints, `rank` reports the memory it needed.

`python -m perfdag.steps.stamp lines ARGV...` prints each line of the command's stdout as `<seconds since its start>\\t<line>`.
`python -m perfdag.steps.stamp rank ARGV...` adds one line `perfdag-rank max_rss_bytes=<n> user_s=<s> system_s=<s>` after its end
(getrusage(2) of the child). Both exit with the command's own exit code, 128 + n for signal n.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Sequence

RANK_LINE = "perfdag-rank max_rss_bytes="


def lines(argv: Sequence[str]) -> int:
    """Exit code of argv; its stdout is copied with a clock (seconds, monotonic, from just before it was started)."""
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
    """Exit code of argv, which keeps this process's stdin, stdout and stderr."""
    code = subprocess.call(argv)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    # one write: lines of several ranks share a pipe
    sys.stdout.write(
        f"{RANK_LINE}{used.ru_maxrss * 1024} user_s={used.ru_utime:.6f} system_s={used.ru_stime:.6f}\n"
    )
    sys.stdout.flush()
    return code if code >= 0 else 128 - code


def main(argv: Sequence[str]) -> int:
    """Raises SystemExit with a usage line where argv names no mode."""
    modes = {"lines": lines, "rank": rank}
    if len(argv) < 2 or argv[0] not in modes:
        raise SystemExit("usage: python -m perfdag.steps.stamp lines|rank ARGV...")
    try:
        return modes[argv[0]](argv[1:])
    except OSError as error:
        print(f"{argv[1]}: {error.strerror}", file=sys.stderr)  # noqa: T201 - a command's own message
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
