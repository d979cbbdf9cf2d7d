"""`perfdag check` and `acks`: check a run against its thresholds and its history."""

import argparse
from datetime import UTC, datetime
from pathlib import Path

from perfdag.analysis import alerts
from perfdag.analysis.alerts import Alert, GateResult, Rules, gate_as_dict, store_record
from perfdag.analysis.gate import (
    ACKS as ACKS_KEY,
    check,
    put_acks,
    read_acks,
    read_checks,
    stored_acks,
)
from perfdag.analysis.selection import select_one
from perfdag.commands.options import (
    ACKS,
    EXIT_GATE,
    EXIT_OK,
    EXIT_REACH,
    JSON,
    RUN_HELP,
    STORE,
    SUITE,
    Verbs,
    add_verb,
    duration,
    option,
    print_json,
    print_now,
)
from perfdag.commands.runs import explain_last
from perfdag.commands.terminal import highlighted
from perfdag.results.runs import RunStore, began_at
from perfdag.store.base import Store
from perfdag.store.open import open_store
from perfdag.units import plural, short_seconds

CHECK_EPILOG = """examples:
  perfdag check last
  perfdag check last --suite daily --junit check.xml --markdown summary.md
  perfdag check last --suite daily --max-age 26h
  perfdag check last --acks acks.yaml
  perfdag check 20261120T020000Z-1a2b3c4d --json

Exit 3 means one of four things: a headline series is worse and its level is not accepted; a
threshold of the suite's `checks` is broken; a benchmark's own verdict failed; expected data is
absent, or a point has no valid sample (`optional: true` of its entry allows that).
Exit 4: the store is out of reach, or the webhook did not accept a message.
The webhook in the variable PERFDAG_WEBHOOK gets a message when this run changed something: a series
became worse or good again, a check broke, data vanished. With --max-age, every check of a run that
is too old sends one.
"""


def add_check(sub: Verbs) -> None:
    """Register the verb."""
    add_verb(
        sub,
        "check",
        run_check,
        "Check a run against the thresholds of its suite and against its history. "
        "Exit with 3 if the gate fails.",
        CHECK_EPILOG,
        option("run_id", metavar="RUN", help=RUN_HELP),
        STORE,
        SUITE,
        ACKS,
        option(
            "--max-age",
            metavar="DURATION",
            type=duration,
            help="check only the age of RUN: print one line, and exit with 3 if it is older than "
            "this, for example 26h",
        ),
        option("--junit", metavar="FILE", type=Path, help="write JUnit XML"),
        option("--markdown", metavar="FILE", type=Path, help="write a Markdown summary"),
        JSON,
    )


def run_check(args: argparse.Namespace) -> int:
    """Check a run and print its gate. Return 0, 3 if it fails, or 4 without the webhook."""
    store = open_store(args.store)
    if args.max_age is not None:
        return check_age(store, args.run_id, args.suite, args.max_age)
    runs = RunStore(store)
    run_id, suite = select_one(runs, args.run_id, args.suite)
    explain_last(runs, args.run_id, run_id)
    acks, file = read_acks(args.acks, store)
    gate = check(store, suite, run_id, Rules(read_checks(store, run_id), acks, file))
    reached = publish(store, gate)
    if args.junit:
        args.junit.write_bytes(alerts.junit(gate))
    if args.markdown:
        args.markdown.write_text(alerts.markdown(gate) + "\n")
    print_json(gate_as_dict(gate)) if args.json else print(highlighted(alerts.gate_lines(gate)))
    return EXIT_REACH if not reached else EXIT_GATE if gate.failed else EXIT_OK


def check_age(store: Store, selector: str, suite: str | None, limit: float) -> int:
    """Print the age of a run. Return 0, 3 if it began more than `limit` seconds ago, or 4.

    4: the webhook did not take the message. Raises SelectionError, StoreError.
    """
    run_id, suite = select_one(RunStore(store), selector, suite)
    age = (datetime.now(UTC) - began_at(run_id)).total_seconds()
    line = f"{suite}: run {run_id} began {short_seconds(age)} ago"
    if age <= limit:
        print_now(line)
        return EXIT_OK
    title = f"STALE {line}; at most {short_seconds(limit)} is allowed"
    print_now(title)
    alert = Alert("stale", title, title, [run_id], run_id)
    reached = alerts.send(GateResult(run_id, suite, "", alerts=[alert]))
    return EXIT_GATE if reached else EXIT_REACH


ACKS_EPILOG = """examples:
  perfdag acks set acks.yaml --store s3://bench/results
  perfdag acks show --store s3://bench/results

`perfdag check` reads ./acks.yaml, which belongs under version control. Without that file it reads
the acknowledgements of the store.
"""


def add_acks(sub: Verbs) -> None:
    """Register the verb."""
    parser = add_verb(
        sub,
        "acks",
        show_acks,
        "Validate a file of acknowledgements and put it into the store, or show the "
        "acknowledgements of the store.",
        ACKS_EPILOG,
    )
    actions = parser.add_subparsers(dest="action", metavar="set|show", required=True)
    text = "replace the acknowledgements of the store"
    format = "acks: [{series: GLOB, run: FIRST_RUN, reason: TEXT, until: DAY}]"
    file = option("file", metavar="FILE", help=format)
    add_verb(actions, "set", set_acks, text, "", file, STORE, help=text)
    text = "show the acknowledgements of the store"
    add_verb(actions, "show", show_acks, text, "", STORE, help=text)


def set_acks(args: argparse.Namespace) -> int:
    """Put a file of acknowledgements into the store. Raises BadDocument, StoreError."""
    store = open_store(args.store)
    count = plural(len(put_acks(store, args.file)), "acknowledgement")
    print(f"{count} in {store.url(ACKS_KEY)}")
    return EXIT_OK


def show_acks(args: argparse.Namespace) -> int:
    """Print the acknowledgements of the store. Raises BadDocument, StoreError."""
    acks, url = stored_acks(open_store(args.store))
    lines = [
        f"{ack.series}  from {ack.run}{f' until {ack.until}' if ack.until else ''}: {ack.reason}"
        for ack in acks
    ]
    print("\n".join(lines) or f"no acknowledgements in {url}; `perfdag acks set FILE` adds them")
    return EXIT_OK


def publish(store: Store, gate: GateResult) -> bool:
    """Send the alerts of a gate and record which were sent. Return whether the webhook took them.

    Raises StoreError.
    """
    reached = alerts.send(gate)
    store_record(store, gate)
    return reached
