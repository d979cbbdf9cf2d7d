"""`perfdag scale vmi`: VMI bursts, ladders, steady state, capacity."""

import argparse

from perfdag.cli.options import log, print_now
from perfdag.cli.scale.command_options import (
    add_arrivals,
    add_command,
    add_context,
    add_folder,
    add_lock,
    add_namespaces,
    add_parallel,
    add_variables,
)


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "vmi",
        "VMI bursts, ladders, steady state, capacity",
        "Create VMIs, wait until they run, delete them, and report the times. "
        "Exit with 3 if a gate fails or has no data.",
    )
    add_folder(parser)
    add_context(parser)
    parser.add_argument("scenario", choices=("burst", "ladder", "steady", "capacity"))
    parser.add_argument(
        "--template",
        default="vmi",
        metavar="NAME|FILE",
        help="vmi, vm, vmirs or a YAML file (default: vmi)",
    )
    add_variables(parser)
    parser.add_argument(
        "--count",
        type=int,
        nargs="+",
        default=[100],
        help="VMIs; several numbers for a ladder; the limit for capacity (default: 100)",
    )
    for name, kind, default, text in (
        ("replicas", int, 1, "VMIs per object, with --template vmirs"),
        ("per-node", int, 200, "most VMIs a node"),
        ("timeout", float, 900.0, "seconds to wait for start, and for deletion"),
    ):
        parser.add_argument(
            f"--{name}", type=kind, default=default, help=f"{text} (default: {default:g})"
        )
    for name, kind, text in (
        ("step", int, "capacity: VMIs added per step (default: 100)"),
        ("churn", int, "steady: VMIs replaced at a time (default: 5)"),
        ("pause", float, "steady: seconds between replacements (default: 20)"),
        ("duration", float, "steady: seconds (default: 300)"),
        ("cooldown", float, "ladder: seconds between bursts (default: 60)"),
    ):
        parser.add_argument(f"--{name}", type=kind, help=text)
    add_parallel(parser)
    add_namespaces(parser, "perfdag-vmi")
    parser.add_argument(
        "--gate",
        action="append",
        default=[],
        metavar="'METRIC < VALUE'",
        help="add a gate to `api_p99 < 1` and `api_list_p99 < 30`, or replace one of them; also "
        "RATIO * METRIC",
    )
    parser.add_argument("--no-api-gates", action="store_true", help="omit the default API gates")
    parser.add_argument(
        "--no-primer", action="store_true", help="do not run a VMI before the measurement"
    )
    for name, metavar, text in (
        ("prometheus", "URL", "query CPU, memory and work queues of KubeVirt here"),
        ("prometheus-token-file", "FILE", "file with a bearer token for Prometheus"),
        ("prometheus-ca-file", "FILE", "file with the CA certificate of Prometheus"),
    ):
        parser.add_argument(f"--{name}", metavar=metavar, help=text)
    add_lock(parser)
    add_arrivals(parser)
    parser.set_defaults(command_run=run)


def run(args: argparse.Namespace) -> int:
    """Run a VMI scenario."""
    from perfdag.app.scale.scenarios import SCENARIO_OF_OPTION, VmiOptions, vmi_scenario
    from perfdag.app.scale.session import Arrivals, open_session
    from perfdag.steps.scale.figures.prometheus import Prometheus

    special = {name: getattr(args, name) for name in SCENARIO_OF_OPTION}
    prometheus = None
    if args.prometheus:
        prometheus = Prometheus(
            args.prometheus, args.prometheus_token_file, args.prometheus_ca_file
        )
    options = VmiOptions(
        scenario=args.scenario,
        counts=args.count,
        special={name: value for name, value in special.items() if value is not None},
        template=args.template,
        namespaces=args.namespace,
        arrivals=Arrivals(args.arrival, args.rate, args.burst, args.seed),
        parallel=args.parallel,
        replicas=args.replicas,
        per_node=args.per_node,
        primer=not args.no_primer,
        timeout=args.timeout,
        variables=args.var,
        gates=args.gate,
        api_gates=not args.no_api_gates,
        prometheus=prometheus,
        lock_timeout=args.lock_timeout,
    )
    session = open_session(args.context, args.output_dir, args.settings, print_now, log)
    return vmi_scenario(session, options)
