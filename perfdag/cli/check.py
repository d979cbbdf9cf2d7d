"""`perfdag check`: the gate of a daily run."""

import argparse
import os
from pathlib import Path

from perfdag.app.errors import CommandError
from perfdag.cli.options import RUN_HELP, add_acks, add_store, duration, log, print_json

EPILOG = """examples:
  perfdag check last
  perfdag check last --suite daily --junit check.xml --markdown summary.md
  perfdag check last --suite daily --max-age 26h
  perfdag check last --webhook-file webhook.url --acks acks.yaml
  perfdag check 20261120T020000Z-1a2b3c4d --json

Exit 3 means one of four things: a headline series is worse and its level is not accepted; a
threshold of the suite's `checks` is broken; a benchmark's own verdict failed; expected data is
absent, or a point has no valid sample (`optional: true` of its entry allows that).
Exit 4: the store is out of reach, or the webhook did not accept a message.
The webhook gets a message when this run changed something: a series became worse or good again, a
check broke, data vanished. With --max-age, every check of a run that is too old sends one.
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "check",
        description="Check a run against the thresholds of its suite and against its history. "
        "Exit with 3 if the gate fails.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_id", metavar="RUN", help=RUN_HELP)
    add_store(parser)
    add_acks(parser)
    parser.add_argument(
        "--max-age",
        metavar="DURATION",
        type=duration,
        help="check only the age of RUN: print one line, and exit with 3 if the run is older than "
        "this, for example 26h",
    )
    parser.add_argument("--junit", metavar="FILE", type=Path, help="write JUnit XML")
    parser.add_argument("--markdown", metavar="FILE", help="write a Markdown summary (`-`: stdout)")
    parser.add_argument(
        "--webhook-file",
        metavar="FILE",
        type=Path,
        help="post one JSON message per cause to the URL in this file (default: the URL in the "
        "variable PERFDAG_WEBHOOK); arguments of a process are no place for a secret",
    )
    parser.add_argument("--json", action="store_true", help="print the gate as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check a run and print its gate. Return 0, 3 if it fails, or 4 without the webhook."""
    from perfdag.app import gate

    if args.max_age is not None:
        line, code = gate.check_age(
            args.run_id, args.store, args.suite, args.max_age, _webhook(args.webhook_file), log
        )
        print(line)
        return code
    outcome = gate.check_run(
        args.run_id,
        root=args.store,
        suite=args.suite,
        acks_file=args.acks,
        webhook=_webhook(args.webhook_file),
        report=log,
    )
    if args.junit:
        args.junit.write_bytes(outcome.junit())
    if args.markdown and args.markdown != "-":
        Path(args.markdown).write_text(outcome.markdown() + "\n")
    if args.json:
        print_json(outcome.data())
    else:
        print(outcome.markdown() if args.markdown == "-" else outcome.text())
    return outcome.exit_code


def _webhook(file: Path | None) -> str | None:
    """Return the URL of the webhook, or None without one. Raises CommandError."""
    if file is None:
        return os.environ.get("PERFDAG_WEBHOOK")
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        # It is not quoted: it may be the URL itself.
        raise CommandError(f"--webhook-file: {reason}; name a file that holds the URL") from None
