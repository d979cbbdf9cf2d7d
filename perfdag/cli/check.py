"""`perfdag check`: the gate of a daily run."""

import argparse
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfdag.plan.plan import Plan
    from perfdag.regress.result import Gate
    from perfdag.store.base import Store

EPILOG = """examples:
  perfdag check last
  perfdag check last --suite daily --junit check.xml --markdown summary.md
  perfdag check last --suite daily --max-age 26h
  perfdag check last --webhook http://alerts.example/perfdag --acks acks.yaml
  perfdag check 20261120T020000Z-1a2b3c4d --json

exit 3: a headline series changed for the worse in the last 7 runs and nobody accepted it, a threshold of the suite's `checks`
is broken, or data that is expected is absent. A change that a canary of the same part of the
machine explains is ENVIRONMENT and does not fail the gate. Exit 4: the store is out of reach, or the webhook did not take a message.
Messages go out once: what was told is stored under alerts/ of the store. With --max-age every check of a run that is too old sends one.
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    from perfdag.cli.options import add_store, duration

    parser = sub.add_parser(
        "check",
        help="the gate of a daily run",
        description="Hold a run against the thresholds of its suite and against its own history; exit 0 or 3.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_id", metavar="RUN", help="run id, the beginning of it, or `last`")
    add_store(parser)
    parser.add_argument(
        "--suite-file",
        metavar="FILE",
        help="take `checks` from this suite file (default: as the run had them)",
    )
    parser.add_argument(
        "--acks",
        metavar="FILE",
        help="acknowledgements (default ./acks.yaml, else acks.yaml in the store)",
    )
    parser.add_argument(
        "--max-age",
        metavar="DURATION",
        type=duration,
        help="check only the age of RUN: print one line, and exit 3 if it is older than this, for example 26h",
    )
    parser.add_argument("--junit", metavar="FILE", help="write JUnit XML")
    parser.add_argument("--markdown", metavar="FILE", help="write a Markdown summary (`-`: stdout)")
    parser.add_argument(
        "--webhook",
        metavar="URL",
        default=os.environ.get("PERFDAG_WEBHOOK"),
        help="post one JSON message a cause (PERFDAG_WEBHOOK)",
    )
    parser.add_argument(
        "--confirm",
        action="store_true",
        help="measure suspicious points twice more on this machine, then check again",
    )
    parser.add_argument("--json", action="store_true", help="the gate as JSON on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check; exit 0 or 3, 2 where the run is not there, 4 where the webhook did not take a message."""
    from perfdag.cli.compare import complain
    from perfdag.regress.acks import read_acks, read_checks
    from perfdag.regress.confirm import check_night
    from perfdag.regress.result import Rules
    from perfdag.regress.selection import SelectionError, select_one
    from perfdag.store.open import open_store

    store = open_store(args.store)
    try:
        run_id, suite = select_one(store, args.run_id, args.suite)
        if args.max_age is not None:
            return check_age(store, suite, run_id, args.max_age, args.webhook)
        here = measured_here(store, run_id)
        if args.confirm and not here:
            there = "a scheduled run measures its suspicious points again there by itself; any other: perfdag submit SUITE --only ENTRY"
            raise SelectionError(
                f"run {run_id} was measured on a cluster, and samples of this machine are not its; {there}"
            )
        accepted, file = read_acks(args.acks, store)
        rules = Rules(read_checks(store, run_id, args.suite_file), accepted, file)
        gate = check_night(store, suite, run_id, rules)
        if args.confirm and gate.confirm and not gate.confirmed:
            measure_again(store, gate)
            gate = check_night(store, suite, run_id, rules)
    except SelectionError as error:
        return complain("check", error)
    reached = finish(store, gate, args, offer=here)
    return 4 if not reached else 3 if gate.failed else 0


def measured_here(store: "Store", run_id: str) -> bool:
    """Whether a run was measured by `perfdag run`, so that it can be confirmed so too; of one without a readable plan nobody knows."""
    from perfdag.results.runs import load_plan
    from perfdag.store.base import StoreError

    try:
        return not load_plan(store, run_id).where
    except StoreError:
        return True


def finish(store: "Store", gate: "Gate", args: argparse.Namespace, *, offer: bool) -> bool:
    """Write the files, tell the webhook, remember what was told, print; False where the webhook is out of reach.

    `offer`: whether --confirm is worth a word.
    """
    from pathlib import Path

    from perfdag.regress import publish
    from perfdag.regress.gate import store_record
    from perfdag.regress.result import data

    reached = send(args.webhook, gate)
    store_record(store, gate)
    if args.junit:
        Path(args.junit).write_bytes(publish.junit(gate))
    text = publish.markdown(gate)
    if args.markdown and args.markdown != "-":
        Path(args.markdown).write_text(text + "\n")
    if args.json:
        import orjson

        print(orjson.dumps(data(gate), option=orjson.OPT_INDENT_2).decode())
    elif args.markdown == "-":
        print(text)
    else:
        show(gate, offer=offer)
    return reached


def after_run(store: "Store", plan: "Plan", code: int) -> int:
    """The gate as the last step of a run on a cluster: the exit code of the run and its gate together, 4 before 3 before 1.

    It is asked for a scheduled run, and for any whose suite has `checks`. JUnit XML and the summary go beside the report.
    """
    from perfdag.plan.gated import gated
    from perfdag.regress import publish
    from perfdag.regress.acks import unattended_rules
    from perfdag.regress.confirm import check_night
    from perfdag.regress.gate import store_record
    from perfdag.suite.checks import checks_of

    if not gated(plan):
        return code
    rules = unattended_rules(store, checks_of(plan.suite_text))
    gate = check_night(store, plan.suite, plan.run_id, rules)
    reached = send(os.environ.get("PERFDAG_WEBHOOK"), gate)
    store_record(store, gate)
    store.put(f"runs/{plan.run_id}/check.xml", publish.junit(gate))
    store.put(f"runs/{plan.run_id}/check.md", publish.markdown(gate).encode())
    show(gate)
    return 4 if not reached else 3 if gate.failed else code


def check_age(store: "Store", suite: str, run_id: str, limit: float, webhook: str | None) -> int:
    """Print the age of a run in one line.

    Return 0, 3 if the run began more than `limit` seconds ago, or 4 if the webhook did not take the message.
    Raises SelectionError if the run has no readable rows.
    """
    from datetime import UTC, datetime

    from perfdag.regress.alerts import Alert
    from perfdag.regress.result import Gate
    from perfdag.regress.rollup import read_run_medians
    from perfdag.regress.selection import SelectionError
    from perfdag.units import short_seconds

    began = [run.when for run in read_run_medians(store, suite).runs if run.run_id == run_id]
    if not began:
        raise SelectionError(f"run {run_id} has no readable rows")
    age = (datetime.now(UTC) - began[0]).total_seconds()
    line = f"{suite}: run {run_id} began {short_seconds(age)} ago"
    if age <= limit:
        print(line)
        return 0
    title = f"STALE {line}; at most {short_seconds(limit)} is allowed"
    print(title)
    alert = Alert("stale", title, title, [run_id], run_id)
    return 3 if send(webhook, Gate(run_id, suite, "", alerts=[alert])) else 4


def send(webhook: str | None, gate: "Gate") -> bool:
    """Send the alerts of a gate to the webhook, if there is one. Return False if it is out of reach."""
    from perfdag.regress import publish

    try:
        if webhook:
            publish.send(webhook, gate, gate.alerts)
    except publish.WebhookError as error:
        print(f"perfdag check: {error}", file=sys.stderr)
        return False
    return True


def show(gate: "Gate", *, offer: bool = False) -> None:
    """The gate on a terminal; `offer`: with a word on --confirm where it would help."""
    from perfdag.regress.publish import counts
    from perfdag.regress.result import worst

    for alert in worst(gate.alerts):
        print(alert.text + ("" if alert.fresh else "\n        (reported before)"))
        print()
    for each in gate.cases:
        if each.state in ("failed", "absent"):
            print(f"{each.state:8}{each.group}: {each.name}: {each.text}")
    if gate.confirmed:
        print(f"measured again the same night: {', '.join(gate.confirmed)}")
    elif gate.confirm:
        named = ", ".join(f"{each.name} {100 * each.effect:+.1f} %" for each in gate.confirm)
        print(f"suspicious tonight: {named}{' (--confirm measures them again)' if offer else ''}")
    for key in gate.damaged:
        print(f"damaged, left out: {key}")
    print(f"{counts(gate)}; {gate.runs} runs of history")
    print(f"gate {'FAILED' if gate.failed else 'passed'}  {gate.suite}  {gate.run}")


def measure_again(store: "Store", gate: "Gate") -> None:
    """Measure the suspicious points of a night twice more here, as runs of their own. Raises StoreError."""
    from perfdag.app.local_run import measure_plan
    from perfdag.cli.options import log
    from perfdag.results.collect import collect
    from perfdag.results.confirming import store_confirming_plans
    from perfdag.results.runs import load_plan

    for each in store_confirming_plans(
        store, load_plan(store, gate.run), {select_one.point for select_one in gate.confirm}
    ):
        print(
            f"confirm {each.run_id}: {', '.join(select_one.name for select_one in gate.confirm)}",
            file=sys.stderr,
        )
        measure_plan(each, store, log)
        collect(store, each)
