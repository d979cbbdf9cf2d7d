"""`perfdag scale vmi`: VMI bursts, ladders, steady state."""

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

SCENARIO_OF_OPTION = {
    "churn": "steady",
    "pause": "steady",
    "duration": "steady",
    "cooldown": "ladder",
}


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "vmi",
        "VMI bursts, ladders, steady state",
        "Create VMIs, wait until they run, delete them, and report the times. "
        "Exit with 3 if a gate fails or has no data.",
    )
    add_folder(parser)
    add_context(parser)
    parser.add_argument("scenario", choices=("burst", "ladder", "steady"))
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
        help="VMIs; several numbers for a ladder (default: 100)",
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
    from perfdag.app.scale.commands import open_session, parse_variables, schedule_of
    from perfdag.app.scale.scenarios import vmi_scenario
    from perfdag.kube.prometheus import Prometheus
    from perfdag.steps.scale.figures.gates import parse_gate, with_slo
    from perfdag.steps.scale.scenarios.vmi import Spec, VmiRequest

    special = {
        name: value for name in SCENARIO_OF_OPTION if (value := getattr(args, name)) is not None
    }
    for name in special:
        if SCENARIO_OF_OPTION[name] != args.scenario:
            raise ValueError(f"--{name} needs {SCENARIO_OF_OPTION[name]}, not {args.scenario}")
    prometheus = None
    if args.prometheus:
        prometheus = Prometheus(
            args.prometheus, args.prometheus_token_file, args.prometheus_ca_file
        )
    gates = [parse_gate(text) for text in args.gate]
    spec = Spec(
        template=args.template,
        namespaces=args.namespace,
        schedule=schedule_of(args.arrival, args.rate, args.burst, args.seed, args.parallel, 0.0),
        parallel=args.parallel,
        replicas=args.replicas,
        per_node=args.per_node,
        primer=not args.no_primer,
        timeout=args.timeout,
        variables=parse_variables(args.var),
        gates=gates if args.no_api_gates else with_slo(gates),
        prometheus=prometheus,
        log=log,
    )
    request = VmiRequest(args.scenario, args.count, lock_timeout=args.lock_timeout, **special)
    session = open_session(args.context, args.output_dir, args.settings, print_now, log)
    return vmi_scenario(session, spec, request)
