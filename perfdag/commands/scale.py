"""`perfdag scale`: measure workloads and VMIs at scale."""

import argparse
import asyncio
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import orjson
from pydantic import ValidationError

from perfdag import signals
from perfdag.commands.options import log, print_now
from perfdag.kube.client import Kube
from perfdag.kube.prometheus import Prometheus
from perfdag.signals import EXIT_FAILED, EXIT_GATE, EXIT_OK
from perfdag.steps.scale import cluster, prometheus, runai, times, vmi, workloads
from perfdag.steps.scale.api_metrics import DELETION
from perfdag.steps.scale.cleanup import remove_run
from perfdag.steps.scale.figures import Result, call_name
from perfdag.steps.scale.files import (
    OUTPUTS,
    RunFile,
    audit,
    audit_key,
    remove_outputs,
    write_journal,
    write_json,
    write_rows,
)
from perfdag.steps.scale.generate import Arrival, Schedule, connections
from perfdag.steps.scale.objects import built_in, template_text
from perfdag.steps.scale.rows import summaries
from perfdag.steps.scale.runai import SampleRequest, Settings, SubmitRequest
from perfdag.steps.scale.scenario import Context, ScenarioParams
from perfdag.steps.scale.watch import Observer
from perfdag.units import plural, short

T = TypeVar("T")
P = TypeVar("P", bound=ScenarioParams)
Print = Callable[[str], None]


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


def prometheus_of(args: argparse.Namespace) -> Prometheus:
    """Return the Prometheus of the options."""
    return Prometheus(args.prometheus, args.prometheus_token_file, args.prometheus_ca_file)


PLOTS = ("general", "detailed", "timeline", "scurves", "ecdf", "order", "api-calls")
TYPES = tuple(workloads.RUNAI_KINDS)


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
    parser.set_defaults(command_run=run_submit)


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
        help="fail if the submission differs; of a folder of Run:ai's own tool: its type",
    )
    parser.add_argument("-p", "--project", help="fail if the submission differs")
    parser.add_argument(
        "--watch",
        type=float,
        metavar="SECONDS",
        help="watch until all are ready, at most SECONDS; needed for times below 1 s",
    )
    parser.set_defaults(command_run=run_sample)


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
    parser.set_defaults(command_run=run_plot)


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
    parser.set_defaults(command_run=run_delete)


def run_submit(args: argparse.Namespace) -> int:
    """Create the workloads."""
    session = open_session(args.context, args.output_dir, args.settings, print_now, log)
    session.settings.project = args.project or session.settings.project
    session.settings.submitter = args.submitter or session.settings.submitter
    request = SubmitRequest(
        template=args.template or args.workload_type,
        count=args.num_workloads,
        parallel=args.num_processes,
        schedule=schedule_of(
            args.arrival, args.rate, args.burst, args.seed, args.num_processes, args.delay
        ),
        folder=session.folder,
        settings=session.settings,
        workers=args.num_workers,
        gpus=args.num_gpus,
        pvc=args.pvc,
        namespaces=args.namespace,
        create_namespace=args.create_namespace,
        variables=parse_variables(args.var),
        lock_timeout=args.lock_timeout,
        log=session.log,
    )
    return submit_workloads(session, request)


def run_sample(args: argparse.Namespace) -> int:
    """Observe the workloads and write the files."""
    session = open_session(args.context, args.output_dir, args.settings, print_now, log)
    settings = session.settings
    return sample_workloads(
        session,
        SampleRequest(session.folder, settings, args.watch, args.workload_type, args.project, log),
    )


def run_plot(args: argparse.Namespace) -> int:
    """Draw a chart."""
    session = open_session(None, args.output_dir, args.settings, print_now, log)
    return write_plots(session, args.plot, args.skip_errors, args.head, args.tail)


def run_delete(args: argparse.Namespace) -> int:
    """Delete the objects of a run."""
    if args.run_id and args.output_dir:
        raise ValueError("--run and -o both name a run; use one of them")
    session = open_session(args.context, args.output_dir, args.settings, print_now, log)
    return delete_workloads(session, args.run_id, args.namespace, args.timeout)


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
    parser.set_defaults(command_run=run_nodes)


def run_nodes(args: argparse.Namespace) -> int:
    """Create or delete simulated nodes."""
    if args.remove:
        return delete_nodes(args.context, print_now)
    return create_nodes(args.context, args.count, args.gpus, print_now)


VMI_OPTIONS = (
    "rate",
    "seed",
    "parallel",
    "replicas",
    "per_node",
    "timeout",
    "lock_timeout",
    "prometheus",
    "prometheus_token_file",
    "prometheus_ca_file",
)
"""Options of `scale vmi` that are parameters of the same name."""
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
    parser.set_defaults(command_run=run_vmi)


def run_vmi(args: argparse.Namespace) -> int:
    """Run a VMI scenario."""
    special = {
        name: value for name in SCENARIO_OF_OPTION if (value := getattr(args, name)) is not None
    }
    for name in special:
        if SCENARIO_OF_OPTION[name] != args.scenario:
            raise ValueError(f"--{name} needs {SCENARIO_OF_OPTION[name]}, not {args.scenario}")
    if args.scenario == "steady" and len(args.count) > 1:
        raise ValueError("steady takes one --count; several are a ladder")
    sizes = {"count": args.count[0]} if args.scenario == "steady" else {"counts": args.count}
    values = {
        "template": args.template,
        "variables": parse_variables(args.var),
        "namespace": args.namespace,
        "arrival": args.arrival or ("constant" if args.rate else "closed"),
        "gates": args.gate,
        "api_gates": not args.no_api_gates,
        "primer": not args.no_primer,
        **{name: getattr(args, name) for name in VMI_OPTIONS},
        **sizes,
        **special,
    }
    session = open_session(args.context, args.output_dir, args.settings, print_now, log)
    if args.scenario == "steady":
        return vmi_scenario(session, _checked(vmi.VmiSteadyParams, values))
    values["scenario"] = args.scenario
    return vmi_scenario(session, _checked(vmi.VmiBurstParams, values))


def _checked(kind: type[P], values: dict[str, Any]) -> P:
    """Return the parameters of a scenario. Raises ValueError in one line."""
    try:
        return kind.model_validate(values)
    except ValidationError as errors:
        error = errors.errors()[0]
        where = ".".join(map(str, error["loc"]))
        raise ValueError(f"{where}: {error['msg'].removeprefix('Value error, ')}") from None


GATED_OPTIONS = ("count", "parallel", "gpus", "timeout", "lock_timeout")
"""Options of `scale gated` that are parameters of the same name."""


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
    parser.set_defaults(command_run=run_gated)


def run_gated(args: argparse.Namespace) -> int:
    """Measure the scheduler."""
    session = open_session(args.context, args.output_dir, args.settings, print_now, log)
    values = {
        "scenario": "gated",
        "template": "pod",
        "namespace": args.namespace,
        "gates": args.gate,
        **{name: getattr(args, name) for name in GATED_OPTIONS},
    }
    return gated(session, _checked(workloads.ScaleParams, values))


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
    parser.set_defaults(command_run=run_audit)


def run_audit(args: argparse.Namespace) -> int:
    """Audit the window."""
    import time

    from perfdag.signals import EXIT_OK

    start = unix_time(args.start)
    end = unix_time(args.end) if args.end else time.time()
    path = audit_window(prometheus_of(args), start, end, args.output_dir)
    print_now(f"wrote {path}")
    return EXIT_OK


def _add_template(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "template",
        help="print a built-in template",
        description="Print a built-in template, to edit it and give it to --template.",
    )
    parser.add_argument("name", choices=tuple(built_in()), metavar="NAME", help=", ".join(built_in()))
    parser.set_defaults(command_run=run_template)


def run_template(args: argparse.Namespace) -> int:
    """Print the template."""
    print(template_text(args.name)[1], end="")
    return EXIT_OK


REGISTERED = (
    _add_template,
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


def add_scale(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
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
    from perfdag.commands.options import CommandError
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


@dataclass(frozen=True)
class Session:
    """Where a command works: a context of the kubeconfig, a folder, and its settings.

    `output` receives results, `log` progress and warnings.
    """

    context: str | None
    folder: Path
    settings: Settings
    output: Print
    log: Print

    def run(self, work: Callable[[Kube], Awaitable[T]], connections: int = 100) -> T:
        """Run the work on the session's cluster. Raises KubeError, KeyboardInterrupt."""
        return on_cluster(self.context, work, connections)


def open_session(
    context: str | None, folder: Path | None, settings_file: Path | None, output: Print, log: Print
) -> Session:
    """Read the settings, which name the folder if `folder` is None. Raises SettingsError."""
    settings = runai.read_settings(settings_file)
    return Session(context, folder or Path(settings.output_dir), settings, output, log)


def on_cluster(
    context: str | None, work: Callable[[Kube], Awaitable[T]], connections: int = 100
) -> T:
    """Run the work on the cluster of a context. Raises KubeError, KeyboardInterrupt."""

    async def main() -> T:
        async with Kube(context=context, connections=connections) as kube:
            return await work(kube)

    return signals.run_until_stopped(main())


def schedule_of(
    pattern: Arrival | None, rate: float, burst: int | None, seed: int, parallel: int, delay: float
) -> Schedule:
    """Return how objects arrive: a pattern, its rate per second, the size of a burst, a seed.

    `delay` (s) makes batches of `parallel` objects. Raises ValueError for values that clash.
    """
    name = pattern or ("batch" if delay > 0 else "constant" if rate else "closed")
    if pattern and delay > 0:
        raise ValueError("--delay makes batches of -p; use --rate with --arrival")
    if burst is not None and name != "burst":
        raise ValueError(f"--burst needs --arrival burst, not {name}")
    if seed and name != "poisson":
        raise ValueError(f"--seed needs --arrival poisson, not {name}")
    return Schedule(name, rate, burst or parallel, delay, seed)


def parse_variables(options: list[str]) -> dict[str, str]:
    """Parse `NAME=VALUE` texts. Raises ValueError for another form."""
    pairs = [text.partition("=") for text in options]
    if any(not name or not middle for name, middle, _ in pairs):
        raise ValueError("--var is NAME=VALUE")
    return {name: value for name, _, value in pairs}


def print_schedule(session: Session, batch: dict[str, Any]) -> None:
    """Print whether an open loop kept its schedule."""
    if batch["held"] is None:
        return
    parts = [] if batch["rate_share"] is None else [f"{batch['rate_share']:.0%} of its rate"]
    parts += [] if batch["lag_p99_s"] is None else [f"lag p99 {batch['lag_p99_s']:.3f} s"]
    parts += [f"{batch['not_sent']} of {batch['planned']} never sent"] if batch["not_sent"] else []
    if batch["held"]:
        session.output(f"the schedule was held: {', '.join(parts)}")
    else:
        session.log(f"the schedule was not held: {', '.join(parts)}")


def print_stages(session: Session, rows: list[Any]) -> None:
    """Print a line for each stage: its counts, percentiles and resolution."""
    numbers = f"{'ok':>6}{'never':>7}{'unseen':>8}{'median':>12}{'p95':>12}{'p99':>12}"
    stages = summaries(rows)
    wide = max((len(summary.stage) for summary in stages), default=0) + 2
    since = max((len(summary.since) for summary in stages), default=0) + 2
    session.output(f"{'stage':<{wide}}{'since':<{since}}{numbers}   +-")
    for summary in stages:
        values = (summary.p50, summary.p95, summary.p99)
        times = "".join(f"{short(value, 's'):>12}" for value in values)
        never = summary.censored + summary.failed
        error = short(summary.resolution_s, "s") if summary.resolution_s is not None else "-"
        counts = f"{summary.ok:>6}{never:>7}{summary.unobserved:>8}"
        session.output(f"{summary.stage:<{wide}}{summary.since:<{since}}{counts}{times}   {error}")
    if any(row.simulated for row in rows):
        session.output("simulated nodes: these are figures of the control plane alone")


def submit_workloads(session: Session, request: SubmitRequest) -> int:
    """Create the workloads. Return 1 if some were refused or not sent. Raises ValueError."""
    runai.check_submitter(request.settings.submitter)
    if request.count < 1 or request.parallel < 1:
        raise ValueError("-n and -p must be 1 or more")
    file = session.run(lambda kube: runai.submit(kube, request), connections(request.parallel))
    batch = file.generator
    rate = f" ({batch['create_rate_per_s']:.0f}/s)" if batch["create_rate_per_s"] else ""
    created = f"{batch['created']} of {batch['planned']} created"
    session.output(f"run {file.run}: {created} in {batch['seconds']:.1f} s{rate}")
    print_schedule(session, batch)
    if batch["retries"]:
        causes = ", ".join(f"{count} x {cause}" for cause, count in batch["retries"].items())
        session.log(f"tried again: {causes}")
    for text, count in batch["errors"].items():
        session.log(f"{count} failed: {text}")
    return EXIT_FAILED if batch["failed"] or batch["not_sent"] else EXIT_OK


def sample_workloads(session: Session, request: SampleRequest) -> int:
    """Observe the workloads of a run and write the files. Raises ValueError for another run."""
    result = session.run(lambda kube: runai.sample(kube, request))
    counts = f"{result.scheduled} scheduled, {result.waiting} waiting"
    session.output(f"{counts}, of {len(result.file.submissions)} submitted")
    if result.absent:
        session.log(f"not on this cluster, so not observed: {', '.join(result.absent)}")
    print_stages(session, result.rows)
    return EXIT_OK


def delete_workloads(
    session: Session, run_id: str | None, namespace: str | None, timeout: float
) -> int:
    """Delete the objects of a run, by id or folder. Return 1 if some are left after `timeout` s.

    A run in progress is refused. Raises KubeError.
    """

    async def work(kube: Kube) -> int:
        if run_id:
            await cluster.require_ended(kube, run_id)
            return await remove_run(kube, run_id, namespace, timeout, session.log)
        return await runai.delete(kube, session.folder, timeout, session.log)

    left = session.run(work)
    session.output(f"{left} left" if left else "all deleted")
    return EXIT_FAILED if left else EXIT_OK


def create_nodes(context: str | None, count: int, gpus: int, output: Print) -> int:
    """Create simulated nodes and wait until they are Ready. Raises ValueError if they are not."""

    async def work(kube: Kube) -> int:
        created = await cluster.make_nodes(kube, count, gpus)
        if not await cluster.nodes_ready(kube, count):
            raise ValueError(
                "the nodes do not become Ready; does KWOK run, and does it manage nodes annotated "
                "kwok.x-k8s.io/node=fake?"
            )
        return created

    created = on_cluster(context, work)
    output(f"{plural(created, 'node')} created, {count} Ready, {gpus} GPUs each")
    return EXIT_OK


def delete_nodes(context: str | None, output: Print) -> int:
    """Delete the simulated nodes."""
    output(f"{plural(on_cluster(context, cluster.remove_nodes), 'node')} deleted")
    return EXIT_OK


JOURNAL = "journal"
"""Folder of the state of a run in progress."""


def vmi_scenario(session: Session, params: vmi.VmiParams) -> int:
    """Run a VMI scenario. Return 3 for a breached gate, 1 for a failure. Raises ValueError."""
    results: list[Result] = []
    journal, announced = session.folder / JOURNAL, False

    def write_size(result: Result) -> None:
        """Write the files after each size, whatever happens to the next sizes."""
        results.append(result)
        _write_results(session.folder, results)

    def write_state(file: RunFile, observer: Observer) -> None:
        nonlocal announced
        if not announced:  # a killed run may have left a journal in this folder
            session.log(f"if this process is killed, `perfdag scale sample -o {journal}` goes on")
        announced = True
        write_journal(journal, file, observer)

    context = Context(log=session.log, seen=write_size, journal=write_state)
    try:
        _measure(session, lambda kube: vmi.measure(kube, params, context), params.parallel)
    except BaseException:
        if results:
            # Whether other runs disturbed these sizes is known only now.
            _write_results(session.folder, results)
            counts = ", ".join(str(result.count) for result in results)
            session.log(f"measured before: {counts} VMIs; their files are in {session.folder}")
        raise
    shutil.rmtree(journal, ignore_errors=True)
    _report(session, results)
    return _exit_code(results)


def gated(session: Session, params: workloads.ScaleParams) -> int:
    """Measure the scheduler alone. Return 3 for a breached gate, 1 for a failure."""
    context = Context(log=session.log)
    result = _measure(
        session, lambda kube: workloads.measure(kube, params, context), params.parallel
    )
    _report(session, [result])
    for name in workloads.FIGURES:
        if (value := result.figures.get(name)) is not None:
            session.output(f"{name}: {value:.6g}")
    return _exit_code([result])


def _measure(session: Session, work: Callable[[Kube], Awaitable[T]], parallel: int) -> T:
    """Run the work unless workloads of the folder's submission still exist."""

    async def checked(kube: Kube) -> T:
        await runai.require_deleted(kube, session.folder)
        return await work(kube)

    return session.run(checked, connections(parallel))


def _report(session: Session, results: list[Result]) -> None:
    """Print the results and write their files."""
    for result in results:
        session.output(f"{result.scenario} of {result.count}, run {result.run}")
        print_stages(session, result.rows)
        for batch in result.facts["generator"]:
            print_schedule(session, batch)
        for text in result.facts["notes"]:
            session.log(text)
        if result.disturbed:
            session.log(f"invalid: {result.disturbed}")
        for verdict in result.verdicts:
            session.output(str(verdict))
    _write_results(session.folder, results)


def _write_results(folder: Path, results: list[Result]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    remove_outputs(folder, OUTPUTS, submission=True)
    write_rows(folder / "stages.parquet", [row for result in results for row in result.rows])
    write_json(folder / "perf-audit-results.json", audit(results))
    runs = [
        {
            "scenario": result.scenario,
            "count": result.count,
            "run": result.run,
            "figures": result.figures,
            "facts": result.facts,
            "calls": result.calls,
            "verdicts": [{**asdict(v), "gate": str(v.gate)} for v in result.verdicts],
            "error": result.error,
            "disturbed": result.disturbed,
            "trace": result.trace,
        }
        for result in results
    ]
    write_json(folder / "summary.json", {"runs": runs})


def _exit_code(results: list[Result]) -> int:
    if any(result.disturbed for result in results):
        return EXIT_FAILED  # two runs at once: a gate means nothing for either
    if any(result.breached for result in results):
        return EXIT_GATE
    return EXIT_FAILED if any(result.incomplete for result in results) else EXIT_OK


def unix_time(text: str) -> float:
    """Return Unix seconds of an RFC 3339 time with a zone. Raises ValueError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError(
            f"{text!r} is no time with a zone; write it as 2026-11-23T08:00:00Z or ...+01:00"
        )
    return moment.timestamp()


async def past_figures(source: Prometheus, start: float, end: float) -> dict[str, float | None]:
    """Return the audit's figures of a window in Unix seconds. Raises KubeError, ValueError."""
    gap = await prometheus.scrape_interval(source, end)
    if gap is None:
        raise ValueError(
            f"Prometheus at {source.url} has no series of KubeVirt in the 5 minutes before "
            "--to; does it scrape KubeVirt, and does it still keep that time?"
        )
    if end - start < 2 * gap:
        raise ValueError(
            f"a window of {end - start:g} s has less than two scrapes: Prometheus scrapes every "
            f"{gap:g} s"
        )
    figures = await prometheus.audit_figures(source, start, end)
    figures |= await prometheus.phase_figures(source, end)
    transitions = prometheus.transition_queries()
    return figures | await prometheus.single_values(source, transitions, start, end)


def audit_window(source: Prometheus, start: float, end: float, folder: Path) -> Path:
    """Write `perf-audit-results.json` of a past window in Unix seconds, and return its path.

    Raises KubeError, ValueError.
    """
    if start >= end:
        raise ValueError(f"the window ends before it begins: {_utc(start)} to {_utc(end)}")
    figures = asyncio.run(past_figures(source, start, end))
    values = {audit_key(name): {"value": figures[name]} for name in sorted(figures)}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "perf-audit-results.json"
    write_json(path, {"Values": values})
    return path


def _utc(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")


STAGE_CHARTS = {
    "timeline": "timeline",
    "scurves": "s_curves",
    "ecdf": "ecdf",
    "order": "by_order",
}
"""The function of `perfdag.charts.benchmarks.scale` that draws each kind of plot."""


def write_plots(
    session: Session, chart: str, skip_errors: bool | None, head: int | None, tail: int | None
) -> int:
    """Draw a chart of the folder. Return 1 without data.

    `head` and `tail` select workloads in the order of submission. Raises ValueError.
    """
    if chart in ("general", "detailed"):
        return _plot_times(session, chart, skip_errors is not False, head, tail)
    if skip_errors is not None:
        raise ValueError(
            f"--skip-errors needs --plot general or detailed; {chart} counts absent stages"
        )
    if chart == "api-calls":
        if head or tail:
            raise ValueError("--head and --tail select objects; API calls are counted of all")
        return _plot_calls(session)
    return _plot_stages(session, chart, head, tail)


def _plot_times(
    session: Session, chart: str, skip: bool, head: int | None, tail: int | None
) -> int:
    """Write times.csv and the chart of its times."""
    from perfdag.charts.benchmarks import deltas as charts
    from perfdag.charts.files import to_bytes

    workloads = times.read_times(session.folder)
    table = session.folder / "times.csv"
    times.write_csv(table, workloads)
    selected = times.select(workloads, skip, head, tail)
    excluded = [
        f"{count} {'left out' if skip else 'flagged'}: {reason}"
        for reason, count in times.exclusion_counts(workloads).items()
    ]
    for text in excluded:
        session.log(f"of {plural(len(workloads), 'workload')} {text}")
    if not selected:
        session.log("no data to plot")
        return EXIT_FAILED
    deltas = [(str(workload.info["submitTimestamp"]), workload.deltas) for workload in selected]
    draw = charts.general if chart == "general" else charts.detailed
    path = session.folder / f"{chart}.png"
    path.write_bytes(to_bytes(draw(deltas, len(workloads), excluded))[1])
    session.output(f"{path} and {table}: {len(selected)} of {plural(len(workloads), 'workload')}")
    return EXIT_OK


def _plot_stages(session: Session, chart: str, head: int | None, tail: int | None) -> int:
    """Draw stages.parquet, a picture for each run."""
    import pyarrow.parquet as pq

    from perfdag.charts.benchmarks import scale as charts
    from perfdag.charts.benchmarks.stages import of_runs
    from perfdag.charts.files import to_bytes

    folder = session.folder
    source = folder / "stages.parquet"
    if not source.exists():
        raise ValueError(
            f"no {source}; run `perfdag scale sample -o {folder}` or `perfdag scale vmi` first"
        )
    rows = pq.read_table(source, use_threads=False).to_pylist()
    for name, stages in of_runs(rows, head, tail).items():
        path = folder / f"{chart}{'-' if name else ''}{name}.png"
        path.write_bytes(to_bytes(getattr(charts, STAGE_CHARTS[chart])(stages))[1])
        session.output(str(path))
    return EXIT_OK


def _plot_calls(session: Session) -> int:
    """Draw the API calls of the scenarios in summary.json by the number of objects."""
    from perfdag.charts.benchmarks import scale as charts
    from perfdag.charts.files import to_bytes

    source = session.folder / "summary.json"
    runs = orjson.loads(source.read_bytes()).get("runs") if source.exists() else None
    if not runs:
        raise ValueError(
            f"no API calls in {source}; `perfdag scale vmi` and the scenarios count them"
        )
    counts: dict[int, dict[str, float]] = {}
    unit = "objects" if any(run["scenario"] == "gated" for run in runs) else "vms"
    for run in runs:
        size = run["count"] * (1 if unit == "objects" else run["facts"].get("members") or 1)
        for figure, value in run["figures"].items():
            name = figure.removeprefix(f"{DELETION}/")
            if (call := call_name(name)) and value is not None:
                label = call if name == figure else f"{DELETION}: {call}"
                counts.setdefault(size, {})[label] = value
    if not counts:
        session.log("no data to plot: no API calls were counted")
        return EXIT_FAILED
    path = session.folder / "api-calls.png"
    path.write_bytes(to_bytes(charts.api_calls(counts, unit))[1])
    session.output(str(path))
    return EXIT_OK
