"""`perfdag run`: measure a suite or a command on this machine."""

import argparse
import shutil
from pathlib import Path

from perfdag.app.errors import CommandError
from perfdag.cli.options import add_suite_options, check_resume, log, print_json
from perfdag.cli.parsers import Parser
from perfdag.signals import EXIT_OK

EPILOG = """examples:
  perfdag run suites/quick.yaml
  perfdag run suites/quick.yaml --dry-run
  perfdag run suites/quick.yaml --only 'iperf*' \\
      --set iperf.duration=2s --set repetitions=5
  perfdag run suites/quick.yaml --store s3://bench/results
  perfdag run --resume last
  perfdag run -- sleep 0.1
  perfdag run --set repetitions=50 -- sleep 0.1
"""


def add(sub: "argparse._SubParsersAction[Parser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "run",
        usage="perfdag run [OPTION ...] [SUITE | -- COMMAND ...]",
        description="Measure every point of a suite on this machine. Each sample is stored as it "
        "ends. Then collect the run, draw its charts and write its report. If the suite has "
        "`checks`, the run is checked as `perfdag check` does. The words after `--` are a command "
        "whose wall time is measured 10 times; it needs no suite.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "suite",
        nargs="?",
        metavar="SUITE",
        help="suite file; not needed with --resume or a command",
    )
    add_suite_options(parser)
    parser.add_argument(
        "--store",
        metavar="ROOT",
        help="folder or s3://bucket/prefix (default: the suite's, else ./perfdag-results)",
    )
    parser.add_argument(
        "--resume",
        metavar="RUN",
        help="continue this run of --store (`last`: the newest): measure only what is not stored "
        "yet",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument(
        "--no-recheck",
        action="store_true",
        help="do not measure points again that are beyond their level for the worse",
    )
    parser.add_argument("--no-report", action="store_true", help="collect only; no charts")
    parser.takes_command = True
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run or resume a suite; return the exit code."""
    check_resume(args)
    if args.command and args.suite:
        raise CommandError("name a suite file or a command after `--`, not both")
    if args.suite and not Path(args.suite).exists() and shutil.which(args.suite):
        raise CommandError(
            f"{args.suite} is no suite file; to measure a command: perfdag run -- {args.suite}"
        )
    from perfdag.app.local_run import plan_run, run_plan
    from perfdag.store.open import open_store

    planned = plan_run(
        args.suite, args.settings, args.only, args.store, args.resume, log, args.command
    )
    if args.dry_run:
        from perfdag.app.plan_text import plan_text

        print(planned.plan.dump().decode() if args.json else plan_text(planned.plan))
        return EXIT_OK
    result = run_plan(planned, log, charts=not args.no_report, recheck=not args.no_recheck)
    from perfdag.app.gate import publish_gate
    from perfdag.app.result_text import result_data, result_text

    gate = publish_gate(open_store(planned.root), result, log)
    if args.json:
        print_json(result_data(result) | ({"gate": gate.data()} if gate else {}))
    else:
        print(result_text(result))
        if gate:
            print(gate.text())
    return (gate and gate.exit_code) or result.exit_code
