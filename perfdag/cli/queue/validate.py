"""`perfdag queue validate`: does throughput grow with the backends?"""

import argparse

from perfdag.cli.options import log, print_json
from perfdag.cli.queue.program_options import add_program
from perfdag.exit_codes import EXIT_GATE, EXIT_OK

EXAMPLES = """\
  perfdag queue validate --local --limit 4 --factor 1.8 -- sleep 0.2
  perfdag queue validate perfdag-queue-sleep -n bench --limit 16 --factor 1.8
  perfdag queue validate perfdag-queue-media -n bench --limit 8 --factor 1.4 \\
      --deploy objects.yaml
"""


def add(programs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the program."""
    parser = add_program(
        programs,
        "validate",
        "double the backends up to LIMIT: does throughput grow by FACTOR each time?",
        EXAMPLES,
    )
    parser.add_argument("deployment", nargs="?", help="name of the backends' Deployment")
    for name, metavar, text in (
        ("client", "SERVICE", "the client's Service (default: DEPLOYMENT-client)"),
        ("client-namespace", "NAMESPACE", "its namespace (default: the Deployment's)"),
        ("client-url", "URL", "the client's control port; PERFDAG_QUEUE_TOKEN is its token"),
        (
            "deploy",
            "FILE",
            "apply these objects (of `manifests`) first, except those that scale the Deployment, "
            "and delete them at the end",
        ),
    ):
        parser.add_argument(f"--{name}", metavar=metavar, help=text)
    parser.add_argument("-n", "--namespace", help="its namespace (default: the context's)")
    parser.add_argument(
        "--local",
        action="store_true",
        help="use processes of this machine instead of pods; the command follows --",
    )
    parser.add_argument("--limit", type=int, required=True, help="most replicas; measured too")
    for name, default, text in (
        ("factor", 1.8, "required growth of throughput with each doubling"),
        ("scale-timeout", 120.0, "seconds for replicas to come or go"),
        ("timeout", 120.0, "seconds for a step to become steady, or 16 of its items"),
        ("tolerance", 0.05, "relative difference below which windows are steady"),
    ):
        parser.add_argument(
            f"--{name}", type=float, default=default, help=f"{text} (default: %(default)s)"
        )
    parser.add_argument(
        "--glob", default="", help="with --local: the first file that matches replaces FILENAME"
    )
    parser.add_argument(
        "--item-limit",
        type=float,
        default=0.0,
        help="with --local: seconds an item may run, 0 for no limit",
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="of the order of the steps (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument(
        "command", nargs="*", metavar="-- COMMAND", help="with --local: the backends' workload"
    )
    parser.set_defaults(program_run=run)


def run(args: argparse.Namespace) -> int:
    """Validate a Deployment, or processes of this machine. Return 3 if a step fails."""
    from perfdag.app.queue import validation
    from perfdag.steps.queue.validate.steady_state import SteadyCriteria
    from perfdag.steps.queue.validate.validate import Plan
    from perfdag.steps.queue.validate.verdict import summary

    criteria = SteadyCriteria(seconds=args.timeout, tolerance=args.tolerance)
    plan = Plan(args.limit, args.factor, args.scale_timeout, criteria, args.seed)
    if args.local:
        command = [*([args.deployment] if args.deployment else []), *args.command]
        verdict = validation.validate_local(command, plan, args.glob, args.item_limit, log)
    elif not args.deployment:
        raise ValueError("name a Deployment, or use --local and a command")
    elif args.glob or args.item_limit:
        raise ValueError(
            "--glob and --item-limit need --local: "
            "the manifest of a Deployment has them (glob, limit)"
        )
    else:
        client = validation.ClientAddress(args.client, args.client_namespace, args.client_url)
        verdict = validation.validate_deployment(
            args.deployment, args.namespace, client, plan, args.deploy, log
        )
    print_json(verdict.as_json()) if args.json else print(summary(verdict))
    return EXIT_GATE if verdict.word == "failed" else EXIT_OK
