"""`perfdag scale`: workloads and VMIs at scale."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from perfdag.cli.options import log, print_now

if TYPE_CHECKING:
    from perfdag.kube.prometheus import Prometheus


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Add the folder and its settings."""
    parser.add_argument(
        "-o", "--output-dir", type=Path, metavar="DIR", help="folder of the files (default: logs)"
    )
    parser.add_argument(
        "--settings",
        type=Path,
        metavar="FILE",
        help="YAML of settings: submitter, project, backend_times ...",
    )


def add_context(parser: argparse.ArgumentParser) -> None:
    """Add the option that selects the cluster."""
    parser.add_argument("--context", help="context of the kubeconfig")


def add_lock(parser: argparse.ArgumentParser) -> None:
    """Add the option that limits the wait for other performance runs."""
    parser.add_argument(
        "--lock-timeout",
        type=float,
        default=3600.0,
        help="seconds to wait for another performance run (default: 3600)",
    )


def add_variables(parser: argparse.ArgumentParser) -> None:
    """Add the option that sets placeholders of a template."""
    parser.add_argument(
        "--var",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set a placeholder of the template; repeat the option to set more",
    )


def add_arrivals(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how objects arrive."""
    parser.add_argument(
        "--arrival",
        choices=("closed", "constant", "poisson", "burst", "ramp"),
        help="how objects arrive",
    )
    parser.add_argument(
        "--rate", type=float, default=0.0, metavar="PER_S", help="objects a second of an open loop"
    )
    parser.add_argument(
        "--burst", type=int, metavar="N", help="objects at once, with --arrival burst"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of Poisson arrivals")


def add_namespaces(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the namespaces of a scenario."""
    parser.add_argument(
        "--namespace",
        nargs="+",
        default=[default],
        help=f"namespaces, used in turn (default: {default})",
    )


def add_parallel(parser: argparse.ArgumentParser) -> None:
    """Add the number of creations in flight."""
    parser.add_argument(
        "--parallel", type=int, default=20, help="creations in flight (default: 20)"
    )


def add_prometheus(parser: argparse.ArgumentParser, text: str, *, required: bool = False) -> None:
    """Add the options that select a Prometheus."""
    parser.add_argument("--prometheus", metavar="URL", required=required, help=text)
    parser.add_argument("--prometheus-token-file", metavar="FILE", help="file with a bearer token")
    parser.add_argument("--prometheus-ca-file", metavar="FILE", help="file with the CA certificate")


def prometheus_of(args: argparse.Namespace) -> "Prometheus":
    """Return the Prometheus of the options."""
    from perfdag.kube.prometheus import Prometheus

    return Prometheus(args.prometheus, args.prometheus_token_file, args.prometheus_ca_file)


PLOTS = ("general", "detailed", "timeline", "scurves", "ecdf", "order", "api-calls")
TYPES = ("training", "distributed", "interactive")


def _add_submit(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "submit",
        help="create workloads",
        description="Create workloads on a schedule; write submitted.json and run.json.",
    )
    add_folder(parser)
    add_context(parser)
    parser.add_argument(
        "-t",
        "--workload-type",
        metavar="TYPE",
        choices=TYPES,
        default="training",
        help="training, distributed or interactive (default: training)",
    )
    parser.add_argument(
        "--template",
        metavar="NAME|FILE",
        help="instead of -t: vm, vmi, vmirs, pod, job, pytorchjob or a YAML file",
    )
    parser.add_argument(
        "-n", "--num-workloads", type=int, required=True, help="workloads to submit"
    )
    parser.add_argument(
        "-p", "--num-processes", type=int, default=8, help="submissions in parallel (default: 8)"
    )
    parser.add_argument(
        "--num-workers", type=int, default=1, help="workers of a distributed workload (default: 1)"
    )
    parser.add_argument("-g", "--num-gpus", default="1", help="GPUs a pod (default: 1)")
    parser.add_argument(
        "--delay",
        type=float,
        default=0.0,
        help="seconds between batches of -p, on an absolute schedule (default: 0)",
    )
    parser.add_argument("--project", help="project to submit to (default: project-0)")
    parser.add_argument("--pvc", action="store_true", help="add a claim to each workload")
    parser.add_argument(
        "--namespace",
        nargs="+",
        default=[],
        help="namespaces, used in turn (default: runai-<project>)",
    )
    parser.add_argument("--create-namespace", action="store_true", help="create missing namespaces")
    parser.add_argument(
        "--submitter",
        metavar="NAME",
        help="how to submit: api (default), kubectl or runai-cli",
    )
    add_variables(parser)
    add_arrivals(parser)
    add_lock(parser)
    parser.set_defaults(command_run=submit)


def _add_sample(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "sample",
        help="observe workloads",
        description="Observe the workloads and write sampled.json and stages.parquet. It can be "
        "repeated, also during the submission.",
    )
    add_folder(parser)
    add_context(parser)
    parser.add_argument(
        "-t",
        "--workload-type",
        metavar="TYPE",
        choices=TYPES,
        help="fail if the submission differs",
    )
    parser.add_argument("-p", "--project", help="fail if the submission differs")
    parser.add_argument(
        "--watch",
        type=float,
        metavar="SECONDS",
        help="watch until all are ready, at most SECONDS; needed for times below 1 s",
    )
    parser.set_defaults(command_run=sample)


def _add_plot(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "plot",
        help="draw a chart",
        description="Write times.csv and general.png or detailed.png from submitted.json and "
        "sampled.json.",
    )
    add_folder(parser)
    parser.add_argument(
        "--plot",
        metavar="TYPE",
        choices=PLOTS,
        default="general",
        help="general (default) or detailed; timeline, scurves, ecdf and order show "
        "stages.parquet, a picture for each run; api-calls shows the scenarios",
    )
    parser.add_argument(
        "--skip-errors",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="general, detailed: leave out workloads with erroneous times (default)",
    )
    parser.add_argument(
        "--head", type=int, metavar="N", help="only the first N workloads, in order of submission"
    )
    parser.add_argument("--tail", type=int, metavar="N", help="only the last N of those")
    parser.set_defaults(command_run=plot)


def _add_delete(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "delete",
        help="delete a run",
        description="Delete all objects of a run, selected by folder or by id, and wait until "
        "they are gone.",
    )
    add_folder(parser)
    add_context(parser)
    parser.add_argument(
        "--run",
        dest="run_id",
        metavar="ID",
        help="delete all objects with this run's label, of any kind (logged at the start)",
    )
    parser.add_argument(
        "--namespace", help="with --run: only in this namespace (default: everywhere)"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="how long to wait (default: 600)",
    )
    parser.set_defaults(command_run=delete)


def submit(args: argparse.Namespace) -> int:
    """Create the workloads."""
    from perfdag.app.scale import commands
    from perfdag.steps.scale.runai.submit import SubmitRequest

    session = commands.open_session(args.context, args.output_dir, args.settings, print_now, log)
    session.settings.project = args.project or session.settings.project
    session.settings.submitter = args.submitter or session.settings.submitter
    request = SubmitRequest(
        template=args.template or args.workload_type,
        count=args.num_workloads,
        parallel=args.num_processes,
        schedule=commands.schedule_of(
            args.arrival, args.rate, args.burst, args.seed, args.num_processes, args.delay
        ),
        folder=session.folder,
        settings=session.settings,
        workers=args.num_workers,
        gpus=args.num_gpus,
        pvc=args.pvc,
        namespaces=args.namespace,
        create_namespace=args.create_namespace,
        variables=commands.parse_variables(args.var),
        lock_timeout=args.lock_timeout,
        log=session.log,
    )
    return commands.submit(session, request)


def sample(args: argparse.Namespace) -> int:
    """Observe the workloads and write the files."""
    from perfdag.app.scale import commands

    return commands.sample(
        commands.open_session(args.context, args.output_dir, args.settings, print_now, log),
        watch=args.watch,
        workload_type=args.workload_type,
        project=args.project,
    )


def plot(args: argparse.Namespace) -> int:
    """Draw a chart."""
    from perfdag.app.scale import plots
    from perfdag.app.scale.commands import open_session

    session = open_session(None, args.output_dir, args.settings, print_now, log)
    return plots.plot(session, args.plot, args.skip_errors, args.head, args.tail)


def delete(args: argparse.Namespace) -> int:
    """Delete the objects of a run."""
    from perfdag.app.scale import commands

    if args.run_id and args.output_dir:
        raise ValueError("--run and -o both name a run; use one of them")
    session = commands.open_session(args.context, args.output_dir, args.settings, print_now, log)
    return commands.delete(session, args.run_id, args.namespace, args.timeout)


def _add_nodes(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "nodes",
        help="simulated nodes",
        description="Create simulated nodes with GPUs; needs KWOK on the cluster.",
    )
    add_context(parser)
    parser.add_argument("--count", type=int, default=100, help="nodes (default: 100)")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs a node (default: 8)")
    parser.add_argument("--remove", action="store_true", help="delete the simulated nodes")
    parser.set_defaults(command_run=nodes)


def nodes(args: argparse.Namespace) -> int:
    """Create or delete simulated nodes."""
    from perfdag.app.scale import commands

    if args.remove:
        return commands.delete_nodes(args.context, print_now)
    return commands.create_nodes(args.context, args.count, args.gpus, print_now)


SCENARIO_OF_OPTION = {
    "churn": "steady",
    "pause": "steady",
    "duration": "steady",
    "cooldown": "ladder",
}


def _add_vmi(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "vmi",
        help="VMI bursts, ladders, steady state",
        description="Create VMIs, wait until they run, delete them, and report the times. "
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
    add_prometheus(parser, "query CPU, memory and work queues of KubeVirt here")
    add_lock(parser)
    add_arrivals(parser)
    parser.set_defaults(command_run=vmi)


def vmi(args: argparse.Namespace) -> int:
    """Run a VMI scenario."""
    from perfdag.app.scale.commands import open_session, parse_variables, schedule_of, vmi_scenario
    from perfdag.steps.scale.figures.gates import parse_gate, with_slo
    from perfdag.steps.scale.scenarios.vmi import Spec, VmiRequest

    special = {
        name: value for name in SCENARIO_OF_OPTION if (value := getattr(args, name)) is not None
    }
    for name in special:
        if SCENARIO_OF_OPTION[name] != args.scenario:
            raise ValueError(f"--{name} needs {SCENARIO_OF_OPTION[name]}, not {args.scenario}")
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
        prometheus=prometheus_of(args) if args.prometheus else None,
        log=log,
    )
    request = VmiRequest(args.scenario, args.count, lock_timeout=args.lock_timeout, **special)
    session = open_session(args.context, args.output_dir, args.settings, print_now, log)
    return vmi_scenario(session, spec, request)


def _add_gated(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "gated",
        help="the scheduler alone",
        description="Create pods with a scheduling gate, release them together, and report the "
        "pods scheduled per second. Exit with 3 if a gate fails or has no data.",
    )
    add_folder(parser)
    add_context(parser)
    parser.add_argument("--count", type=int, default=100, help="pods (default: 100)")
    parser.add_argument("-g", "--gpus", type=int, default=1, help="GPUs a pod (default: 1)")
    add_parallel(parser)
    add_namespaces(parser, "perfdag-scale")
    parser.add_argument(
        "--timeout", type=float, default=900.0, help="seconds for each wait (default: 900)"
    )
    parser.add_argument(
        "--gate",
        action="append",
        default=[],
        metavar="'METRIC < VALUE'",
        help="limit of a metric, also as RATIO * METRIC; repeat the option to add more",
    )
    add_lock(parser)
    parser.set_defaults(command_run=gated)


def gated(args: argparse.Namespace) -> int:
    """Measure the scheduler."""
    from perfdag.app.scale.commands import gated, open_session
    from perfdag.steps.scale.figures.gates import parse_gate
    from perfdag.steps.scale.scenarios.submit import Spec

    if min(args.count, args.parallel) < 1:
        raise ValueError("--count and --parallel must be 1 or more")
    session = open_session(args.context, args.output_dir, args.settings, print_now, log)
    spec = Spec(
        template="pod",
        count=args.count,
        namespaces=args.namespace,
        parallel=args.parallel,
        gpus=args.gpus,
        timeout=args.timeout,
        gates=[parse_gate(text) for text in args.gate],
        log=log,
    )
    return gated(session, spec, args.lock_timeout)


def _add_audit(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "audit",
        help="audit a past time window",
        description="Write the figures of KubeVirt's perfscale-audit for any past window, from "
        "Prometheus.",
    )
    add_prometheus(parser, "Prometheus of KubeVirt", required=True)
    parser.add_argument(
        "--from", dest="start", metavar="TIME", required=True, help="as 2026-11-23T08:00:00Z"
    )
    parser.add_argument("--to", dest="end", metavar="TIME", help="end of the window (default: now)")
    parser.add_argument(
        "-o",
        "--output-dir",
        type=Path,
        default=Path("logs"),
        metavar="DIR",
        help="folder of perf-audit-results.json (default: logs)",
    )
    parser.set_defaults(command_run=audit)


def audit(args: argparse.Namespace) -> int:
    """Audit the window."""
    import time

    from perfdag.app.scale import commands
    from perfdag.signals import EXIT_OK

    start = commands.unix_time(args.start)
    end = commands.unix_time(args.end) if args.end else time.time()
    path = commands.audit(prometheus_of(args), start, end, args.output_dir)
    print_now(f"wrote {path}")
    return EXIT_OK


REGISTERED = (
    _add_submit,
    _add_sample,
    _add_plot,
    _add_delete,
    _add_nodes,
    _add_vmi,
    _add_gated,
    _add_audit,
)
EPILOG = """examples:
  perfdag scale nodes --count 1000 --gpus 8
  perfdag scale vmi burst --count 100 -o out0
  perfdag scale gated --count 1000 -g 0 -o out3
  perfdag scale submit -t training -n 2000 -p 5 --delay 1 -o out1
  perfdag scale sample -t training -o out1
  perfdag scale plot --skip-errors -o out1
  perfdag scale submit -t distributed -n 1000 --num-workers 7 \\
      --pvc -p 1 --delay 5 -o out2
  perfdag scale plot --skip-errors --plot detailed -o out2
  perfdag scale audit --prometheus http://prometheus:9090 \\
      --from 2026-11-23T08:00:00Z -o out6
  perfdag scale delete --run r1121120501-a1b2c3
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb and its commands."""
    parser = sub.add_parser(
        "scale",
        description="Create objects on a schedule and measure every stage of their life.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="scale", metavar="COMMAND", required=True)
    for register in REGISTERED:
        register(commands)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run a command. Bad values and requests that the API server refuses are input errors."""
    from perfdag.app.errors import CommandError
    from perfdag.kube.client import KubeError
    from perfdag.signals import EXIT_INPUT, EXIT_REACH

    try:
        code: int = args.command_run(args)
    except ValueError as error:
        raise CommandError(str(error)) from None
    except KubeError as error:
        refused = 400 <= error.status < 500 and error.status not in (401, 408, 429)
        raise CommandError(str(error), EXIT_INPUT if refused else EXIT_REACH) from None
    return code
