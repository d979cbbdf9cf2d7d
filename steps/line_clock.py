r"""Run a command and report times: `lines` stamps its output, `rank` reports its memory.

    python -m perfdag.steps.line_clock lines ARGV...
    python -m perfdag.steps.line_clock rank ARGV...

`lines` prints each line of the command's stdout as `<seconds since its start>\t<line>`.
`rank` adds a last line
`perfdag-rank max_rss_bytes=<n> user_s=<s> system_s=<s>` (getrusage(2) of the child).
Both exit with the command's own exit code, 128 + n for signal n.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Sequence

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


def main(argv: Sequence[str]) -> int:
    """Run the mode that argv names. Raises SystemExit with a usage line if it names none."""
    modes = {"lines": lines, "rank": rank}
    if len(argv) < 2 or argv[0] not in modes:
        raise SystemExit("usage: python -m perfdag.steps.line_clock lines|rank ARGV...")
    try:
        return modes[argv[0]](argv[1:])
    except OSError as error:
        print(f"{argv[1]}: {error.strerror}", file=sys.stderr)  # noqa: T201 - a command's own message
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
