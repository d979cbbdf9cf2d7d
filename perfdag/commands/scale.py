"""`perfdag scale`: measure workloads and VMIs at scale."""

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, Field

from perfdag import signals
from perfdag.benchmark import registry
from perfdag.commands.options import (
    EXIT_FAILED,
    EXIT_GATE,
    EXIT_INPUT,
    EXIT_OK,
    EXIT_REACH,
    CommandError,
    Option,
    logger,
    option,
    verb,
)
from perfdag.kube.client import Kube, KubeError
from perfdag.redaction import print_now
from perfdag.steps.scale import (
    cluster,
    figures,
    generate,
    objects,
    prometheus,
    rows,
    runai,
    scenario,
    vmi,
    workloads,
)
from perfdag.suite.document import Document, validated
from perfdag.terminal import text_table
from perfdag.units import GoDuration, plural, short

T = TypeVar("T")


def prometheus_options(text: str, required: bool) -> tuple[Option, ...]:
    """Return the options that select a Prometheus."""
    return (
        option("--prometheus", metavar="URL", required=required, help=text),
        option("--prometheus-token-file", metavar="FILE", help="file with a bearer token"),
        option("--prometheus-ca-file", metavar="FILE", help="file with the CA certificate"),
    )


FOLDER = (
    option(
        *("-o", "--output-dir"),
        type=Path,
        metavar="DIR",
        help="folder of the files (default: logs)",
    ),
    option(
        "--settings",
        type=Path,
        metavar="FILE",
        help="YAML with any of these: output_dir, project, submitter, runai_cli_path, "
        "kubectl_path, image, storage_class, scheduler_event_times, backend_times (an entry point "
        "of perfdag.backend_times)",
    ),
)
TYPE = {"metavar": "TYPE", "choices": tuple(workloads.RUNAI_KINDS)}
NUMBER = {"type": int, "metavar": "N"}
SWITCH = {"action": "store_true"}
WATCH = option(
    "--watch",
    default=0.0,
    metavar="SECONDS",
    help="watch until all are ready, at most SECONDS; needed for times below 1 s",
)
RATE = option("--rate", default=0.0, metavar="PER_S", help="objects a second, on a schedule")
VMI_OPTIONS = (
    *("template", "namespace", "rate", "parallel", "replicas", "per_node", "timeout"),
    *("prometheus", "prometheus_token_file", "prometheus_ca_file"),
    *("churn", "pause", "duration", "cooldown"),
)
"""Options of `scale vmi` that are parameters of the same name."""


@verb(
    "scale",
    "Create objects on a schedule and measure every stage of their life.",
    """
    examples:
      perfdag scale nodes --count 1000 --gpus 8
      perfdag scale vmi burst --count 100 -o out0
      perfdag scale submit -t training -n 2000 -p 5 --delay 1 -o out1
      perfdag scale sample -t training -o out1
      perfdag scale plot --skip-errors -o out1
      perfdag scale submit -t distributed -n 1000 --num-workers 7 \\
          --pvc -p 1 --delay 5 -o out2
      perfdag scale plot --skip-errors --plot detailed -o out2
      perfdag scale measure -l kube-burner-job=density -o out3
      perfdag scale audit --prometheus http://prometheus:9090 \\
          --from 2026-11-23T08:00:00Z -o out6
      perfdag scale delete --run r1121120501-a1b2c3
    """,
)
def run_scale(args: argparse.Namespace) -> int:
    """Run a command. Bad values and requests that the API server refuses are input errors."""
    try:
        return int(args.work(args) or EXIT_OK)
    except ValueError as error:
        raise CommandError(str(error)) from None
    except KubeError as error:
        refused = 400 <= error.status < 500 and error.status not in (401, 408, 429)
        raise CommandError(str(error), EXIT_INPUT if refused else EXIT_REACH) from None


def folder_of(args: argparse.Namespace) -> tuple[Path, runai.Settings]:
    """Return the folder and the settings, which name it if no option does. Raises ValueError."""
    settings = runai.read_settings(args.settings)
    return args.output_dir or Path(settings.output_dir), settings


def run_on_cluster(work: Callable[[Kube], Awaitable[T]], connections: int = 100) -> T:
    """Run the work on the cluster of the current context. Raises KubeError, KeyboardInterrupt."""

    async def main() -> T:
        async with Kube(connections=connections) as kube:
            return await work(kube)

    return signals.run_until_stopped(main())


def print_schedule(batch: dict[str, Any]) -> None:
    """Print whether an open loop kept its schedule."""
    parts = {
        "{:.0%} of its rate": batch["rate_share"],
        "lag p99 {:.3f} s": batch["lag_p99_s"],
        f"{{}} of {batch['planned']} never sent": batch["not_sent"] or None,
    }
    text = ", ".join(form.format(value) for form, value in parts.items() if value is not None)
    if batch["held"]:
        print_now(f"the schedule was held: {text}")
    elif batch["held"] is not None:
        logger.warning(f"the schedule was not held: {text}")


def stage_duration(seconds: float | None) -> str:
    """Return a duration of a stage; 0 s is one below the whole seconds of the API."""
    return "0 s" if seconds == 0 else short(seconds, "s")


def print_stages(observed: list[Any]) -> None:
    """Print a line for each stage: its counts, percentiles and resolution."""
    headings = ("stage", "since", "ok", "never", "unseen", "median", "p95", "p99", "+-")
    cells = [
        (
            summary.stage,
            summary.since,
            str(summary.count["ok"]),
            str(summary.count["censored"] + summary.count["failed"]),
            str(summary.count["unobserved"]),
            stage_duration(summary.seconds["p50"]),
            stage_duration(summary.seconds["p95"]),
            stage_duration(summary.seconds["p99"]),
            short(summary.resolution_s, "s"),
        )
        for summary in rows.summaries(observed)
    ]
    print_now(text_table(headings, cells, right=range(2, 9)))
    if any(row.simulated for row in observed):
        print_now("simulated nodes: these are figures of the control plane alone")


@verb(
    "scale submit",
    "Create workloads on a schedule; write submitted.json and run.json.",
    "",
    *FOLDER,
    option("-t", "--workload-type", **TYPE, default="training", help="kind of workload"),
    option(
        "--template",
        metavar="NAME|FILE",
        help="instead of -t: pod, job, pytorchjob or a YAML file",
    ),
    option("-n", "--num-workloads", type=int, required=True, help="workloads to submit"),
    option("-p", "--num-processes", default=8, help="submissions in parallel"),
    option("--num-workers", default=1, help="workers of a distributed workload"),
    option("-g", "--num-gpus", default="1", help="GPUs a pod"),
    RATE,
    option(
        "--delay",
        default=0.0,
        help="seconds between batches of -p, on an absolute schedule",
    ),
    option("--project", help="project to submit to (default: project-0)"),
    option("--pvc", **SWITCH, help="add a claim to each workload"),
    option(
        "--namespace",
        nargs="+",
        default=[],
        help="namespaces, used in turn (default: runai-<project>)",
    ),
    option("--create-namespace", **SWITCH, help="create missing namespaces"),
    option(
        "--submitter",
        choices=("api", "kubectl", "runai-cli"),
        help="how to submit (default: api)",
    ),
    WATCH,
)
def submit_workloads(args: argparse.Namespace) -> int:
    """Create the workloads. Return 1 if some were refused or not sent. Raises ValueError."""
    folder, settings = folder_of(args)
    settings.project = args.project or settings.project
    settings.submitter = args.submitter or settings.submitter
    if args.rate and args.delay:
        raise ValueError("--delay makes batches of -p, --rate sends one after the other")
    params = runai.checked(
        workloads.ScaleParams,
        {
            "template": args.template or args.workload_type,
            "count": args.num_workloads,
            "parallel": args.num_processes,
            "arrival": "constant" if args.rate else "batch" if args.delay else "closed",
            "rate": args.rate,
            "delay": args.delay,
            "workers": args.num_workers,
            "gpus": args.num_gpus,
            "pvc": args.pvc,
            "storage_class": settings.storage_class or None,
            "project": settings.project,
            "namespace": args.namespace or [f"runai-{settings.project}"],
            "variables": {"image": settings.image},
        },
    )

    async def work(kube: Kube) -> tuple[runai.RunFile, runai.Sample | None]:
        return await runai.submit(kube, params, folder, settings, args.create_namespace, args.watch)

    file, sampled = run_on_cluster(work, generate.connections(params.parallel))
    batch = file.generator
    rate = f" ({short(batch['create_rate_per_s'], '1/s')})" if batch["create_rate_per_s"] else ""
    created = f"{batch['created']} of {batch['planned']} created"
    print_now(f"run {file.run}: {created} in {batch['seconds']:.1f} s{rate}")
    print_schedule(batch)
    for text, count in batch["errors"].items():
        logger.warning(f"{count} failed: {text}")
    if sampled:
        print_sample(sampled)
    return EXIT_FAILED if batch["failed"] or batch["not_sent"] else EXIT_OK


@verb(
    "scale sample",
    "Observe the workloads and write sampled.json and stages.parquet. It can be repeated, also "
    "during the submission.",
    "",
    *FOLDER,
    option(
        "-t",
        "--workload-type",
        **TYPE,
        help="fail if the submission differs; the type, of a folder of Run:ai's own tool",
    ),
    option("-p", "--project", help="fail if the submission differs"),
    WATCH,
)
def sample_workloads(args: argparse.Namespace) -> None:
    """Observe the workloads of a run and write the files. Raises ValueError for another run."""
    folder, settings = folder_of(args)
    read = partial(runai.read_submission, folder, args.workload_type, args.project)
    print_sample(
        run_on_cluster(lambda kube: runai.sample(kube, folder, settings, read, args.watch))
    )


def print_sample(sampled: runai.Sample) -> None:
    """Print how many workloads are scheduled, and their stages."""
    observed, facts = sampled
    counts = f"{facts['scheduled']} scheduled, {facts['waiting']} waiting"
    print_now(f"{counts}, of {facts['submitted']} submitted")
    if facts["absent_kinds"]:
        logger.warning(f"not on this cluster, so not observed: {', '.join(facts['absent_kinds'])}")
    print_stages(observed)


@verb(
    "scale measure",
    "Watch objects that kube-burner, a load generator or a pipeline creates, from their creation "
    "on. Start it before them. Exit with 1 if there were none, or one is not ready.",
    "",
    option(
        *("-l", "--selector"), metavar="LABELS", required=True, help="label selector, as of kubectl"
    ),
    option(
        "--kind",
        default="v1/Pod",
        metavar="VERSION/KIND",
        help="kind that has the labels, such as apps/v1/Deployment or "
        "kubevirt.io/v1/VirtualMachineInstance; its pods are found by their owners",
    ),
    option("--namespace", nargs="+", default=[], help="only in these (default: everywhere)"),
    option(
        "--for",
        dest="seconds",
        type=float,
        metavar="SECONDS",
        help="how long (default: until all are ready or have ended, and no new one came for 30 s, "
        "at most 900)",
    ),
    *FOLDER,
)
def measure_objects(args: argparse.Namespace) -> int:
    """Watch objects of others and write the files of a sample. Raises ValueError, KubeError."""
    folder = folder_of(args)[0]
    runai.require_deleted(folder)
    folder.mkdir(parents=True, exist_ok=True)
    watched = folder, args.kind, args.selector, args.namespace, args.seconds
    sampled = run_on_cluster(lambda kube: runai.measure(kube, *watched))
    if not sampled[0]:
        raise ValueError(f"none was created with the labels {args.selector}; start this before")
    print_sample(sampled)
    return EXIT_FAILED if any(row.status == "censored" for row in sampled[0]) else EXIT_OK


@verb(
    "scale delete",
    "Delete all objects of a run, selected by folder or by id, and wait until they are gone.",
    "",
    [
        FOLDER[0],
        option(
            "--run",
            dest="run_id",
            metavar="ID",
            help="delete all objects with this run's label, of any kind (logged at the start)",
        ),
    ],
    FOLDER[1],
    option("--namespace", help="with --run: only in this namespace (default: everywhere)"),
    option("--timeout", default=600.0, metavar="SECONDS", help="how long to wait"),
)
def delete_objects(args: argparse.Namespace) -> int:
    """Delete the objects of a run, by id or folder. Return 1 if some are left in the end.

    Raises KubeError, ValueError.
    """
    folder, _ = folder_of(args)

    async def work(kube: Kube) -> int:
        if args.run_id:
            return await cluster.remove_run(kube, args.run_id, args.namespace, args.timeout)
        return await runai.delete(kube, folder, args.timeout)

    remaining = run_on_cluster(work)
    print_now(f"{remaining} left" if remaining else "all deleted")
    return EXIT_FAILED if remaining else EXIT_OK


@verb(
    "scale nodes",
    "Create simulated nodes with GPUs; needs KWOK on the cluster.",
    "",
    option("--count", default=100, help="nodes"),
    option("--gpus", default=8, help="GPUs a node"),
    option("--remove", **SWITCH, help="delete the simulated nodes"),
)
def simulate_nodes(args: argparse.Namespace) -> None:
    """Create simulated nodes and wait until they are Ready, or delete them. Raises ValueError."""
    if args.remove:
        print_now(f"{plural(run_on_cluster(cluster.remove_nodes), 'node')} deleted")
        return

    async def work(kube: Kube) -> int:
        created = await cluster.make_nodes(kube, args.count, args.gpus)
        ready = await cluster.ready_nodes(kube, args.count)
        if ready < args.count:
            raise ValueError(
                f"only {ready} of {plural(args.count, 'node')} became Ready; does KWOK run, and "
                "does it manage nodes annotated kwok.x-k8s.io/node=fake? If it is slow, repeat "
                "the command"
            )
        return created

    created = plural(run_on_cluster(work), "node")
    print_now(f"{created} created, {args.count} Ready, {args.gpus} GPUs each")


@verb(
    "scale template",
    "Print a built-in template, to edit it and give it to --template.",
    "",
    Option(("name",), {"choices": tuple(objects.built_in()), "help": "built-in template"}),
)
def print_template(args: argparse.Namespace) -> None:
    """Print a built-in template."""
    _, text = objects.template_text(args.name)
    print_now(text.rstrip("\n"))


def vmi_params(args: argparse.Namespace) -> vmi.VmiParams:
    """Return the parameters of the options. Raises ValueError for values that clash."""
    values = {
        "arrival": "constant" if args.rate else "closed",
        "gates": args.gate,
        "api_gates": not args.no_api_gates,
        "primer": not args.no_primer,
        **{name: value for name in VMI_OPTIONS if (value := getattr(args, name)) is not None},
    }
    if args.scenario == "steady":
        if len(args.count) > 1:
            raise ValueError("steady takes one --count; several are a ladder")
        return runai.checked(vmi.VmiSteadyParams, {**values, "count": args.count[0]})
    values |= {"scenario": args.scenario, "counts": args.count}
    return runai.checked(vmi.VmiBurstParams, values)


@verb(
    "scale vmi",
    "Create VMIs, wait until they run, delete them, and report the times. Exit with 3 if a "
    "gate fails or has no data.",
    "",
    *FOLDER,
    option("scenario", choices=("burst", "ladder", "steady")),
    option(
        "--template",
        default="vmi",
        metavar="NAME|FILE",
        help="vmi, vm, vmirs or a YAML file",
    ),
    option(
        "--count",
        type=int,
        nargs="+",
        default=[100],
        help="VMIs; several numbers for a ladder (default: 100)",
    ),
    option("--replicas", default=1, help="VMIs per object, with --template vmirs"),
    option("--per-node", default=200, help="most VMIs a node"),
    option("--timeout", default=900.0, help="seconds to wait for start, and for deletion"),
    option("--churn", type=int, help="steady: VMIs replaced at a time (default: 5)"),
    option("--pause", type=float, help="steady: seconds between replacements (default: 20)"),
    option("--duration", type=float, help="steady: seconds (default: 300)"),
    option("--cooldown", type=float, help="ladder: seconds between bursts (default: 60)"),
    option("--parallel", default=20, help="creations in flight"),
    option(
        "--namespace",
        nargs="+",
        default=["perfdag-vmi"],
        help="namespaces, used in turn (default: perfdag-vmi)",
    ),
    option(
        "--gate",
        action="append",
        default=[],
        metavar="'METRIC < VALUE'",
        help="add a gate to `api_p99 < 1` and `api_list_p99 < 30`, or replace one of "
        "them; also RATIO * METRIC",
    ),
    option("--no-api-gates", **SWITCH, help="omit the default API gates"),
    option("--no-primer", **SWITCH, help="do not run a VMI before the measurement"),
    *prometheus_options("query CPU, memory and work queues of KubeVirt here", False),
    RATE,
)
def measure_vmis(args: argparse.Namespace) -> int:
    """Run a VMI scenario. Return 3 for a breached gate, 1 for a failure. Raises ValueError."""
    params = vmi_params(args)
    folder, _ = folder_of(args)
    results: list[figures.Result] = []
    runai.require_deleted(folder)

    def report(result: figures.Result) -> None:
        """Report each size when it is measured, whatever happens to the next ones."""
        results.append(result)
        _write_results(folder, results)
        print_now(f"{result.scenario} of {result.count}, run {result.run}")
        print_stages(result.rows)
        for batch in result.facts["generator"]:
            print_schedule(batch)
        for text in result.facts["notes"]:
            logger.info(text)
        for verdict in result.verdicts:
            print_now(str(verdict))

    async def work(kube: Kube) -> None:
        steady = args.scenario == "steady"
        benchmark: Any = registry.get("vmi-steady" if steady else "vmi-burst")
        await benchmark.measure(kube, params, scenario.Context(seen=report))

    run_on_cluster(work, generate.connections(params.parallel))
    _write_results(folder, results)  # whether other runs disturbed them is known only now
    errors = [result.error for result in results if result.error]
    for error in dict.fromkeys(errors):
        logger.error(f"invalid: {error}")
    if errors:
        return EXIT_FAILED  # of two runs at once a gate means nothing for either
    if any(result.breached for result in results):
        return EXIT_GATE
    return EXIT_FAILED if any(result.incomplete for result in results) else EXIT_OK


def _write_results(folder: Path, results: list[figures.Result]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    runai.remove_outputs(folder, submission=True)
    stages = list(chain.from_iterable(result.rows for result in results))
    rows.write_rows(folder / "stages.parquet", stages)
    # KubeVirt's own test writes none either if not all run: its reader would draw a 0 for a time.
    if results[-1].figures["success_ratio"] == 1.0:
        runai.write_json(folder / runai.AUDIT, {"Values": figures.audit_of(results[-1])})
    runai.write_json(folder / "summary.json", {"runs": [_summary(result) for result in results]})


def _summary(result: figures.Result) -> dict[str, Any]:
    """Return a result for people: without its rows, and with gates as they are written."""
    hidden = ("rows", "stages", "verdicts")
    summary = {name: value for name, value in vars(result).items() if name not in hidden}
    verdicts = [{**asdict(verdict), "gate": str(verdict.gate)} for verdict in result.verdicts]
    return {**summary, "verdicts": verdicts}


def unix_time(text: str) -> float:
    """Return Unix seconds of an RFC 3339 time with a zone. Raises ValueError."""
    with suppress(ValueError, TypeError):
        moment = datetime.fromisoformat(text)
        if moment.tzinfo:
            return moment.timestamp()
    raise ValueError(f"{text!r} is no time with a zone, such as 2026-11-23T08:00:00Z")


def _time(text: str) -> str:
    """Return the time of an option as it is. Raises argparse.ArgumentTypeError."""
    try:
        unix_time(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


UnixTime = Annotated[float, BeforeValidator(unix_time)]


class AuditThreshold(BaseModel, extra="forbid"):
    """The most that a metric may have: a value, or `ratio` times another metric."""

    value: float = 0.0
    metric: str = ""
    ratio: float = 0.0

    def gate(self, metric: str) -> figures.Gate:
        """Return the gate that judges a metric by it."""
        if self.metric and self.ratio:
            return figures.Gate(metric, "<=", self.ratio, self.metric)
        return figures.Gate(metric, "<=", self.value)


class AuditConfig(BaseModel, extra="forbid"):
    """A configuration of KubeVirt's audit (kubevirt, tools/perfscale-audit/api/api.go).

    Times are Unix seconds, and the window is `duration` seconds long without a start.
    """

    prometheus: str = Field("", alias="prometheusURL")
    token: str = Field("", alias="prometheusBearerToken", repr=False)
    user: str = Field("", alias="prometheusUserName")
    password: str = Field("", alias="prometheusPassword", repr=False)
    start: UnixTime | None = Field(None, alias="startTime")
    end: UnixTime | None = Field(None, alias="endTime")
    duration: GoDuration = 600.0
    thresholds: dict[str, AuditThreshold] = Field({}, alias="thresholdExpectations")
    verify: Any = Field(True, alias="prometheusVerifyTLS", description="always")
    scrapes: Any = Field(None, alias="prometheusScrapeInterval", description="it is looked up")


async def past_figures(
    source: prometheus.Prometheus, start: float, end: float
) -> dict[str, float | None]:
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
    return {
        **await prometheus.audit_figures(source, start, end),
        **await prometheus.phase_figures(source, end),
        **await prometheus.single_values(source, prometheus.TRANSITION_QUERIES, start, end),
    }


@verb(
    "scale audit",
    "Write the figures of KubeVirt's perfscale-audit for any past window, from Prometheus. Exit "
    "with 3 if a threshold or a gate fails or has no data.",
    "",
    option(
        "--config",
        type=Path,
        metavar="FILE",
        help="configuration of perfscale-audit: Prometheus, window and thresholds",
    ),
    *prometheus_options("Prometheus of KubeVirt", False),
    option("--from", dest="start", type=_time, metavar="TIME", help="as 2026-11-23T08:00:00Z"),
    option("--to", dest="end", type=_time, metavar="TIME", help="end (default: now)"),
    option(
        "--gate",
        action="append",
        default=[],
        metavar="'METRIC < VALUE'",
        help="judge a figure by its key, such as vmiCreationToRunningSecondsP50; also RATIO * "
        "METRIC",
    ),
    option(
        *("-o", "--output-dir"),
        type=Path,
        default=Path("logs"),
        metavar="DIR",
        help="folder of perf-audit-results.json (default: logs)",
    ),
)
def audit_window(args: argparse.Namespace) -> int:
    """Write and judge the audit's figures of a past window. Raises KubeError, ValueError."""
    body = runai.read_json(args.config) if args.config else {}
    body = runai.checked(dict[str, Any], body, args.config)
    options = {"prometheusURL": args.prometheus, "startTime": args.start, "endTime": args.end}
    body |= {key: value for key, value in options.items() if value}
    config = validated(Document(str(args.config), "", lines={(): 0}), body, AuditConfig)
    if not config.prometheus:
        raise ValueError("no Prometheus: give --prometheus, or --config with prometheusURL")
    end = config.end or time.time()
    start = config.start or end - config.duration
    if start >= end:
        raise ValueError("the window ends before it begins")
    gates = [threshold.gate(metric) for metric, threshold in config.thresholds.items()]
    gates += [figures.parse_gate(text) for text in args.gate]
    keys = [*prometheus.TRANSITION_QUERIES, *vmi.PHASE_COUNTS]
    figures.check(gates, "the audit", (), keys, paced=False, components=True)
    source = prometheus.Prometheus(
        config.prometheus,
        args.prometheus_token_file,
        args.prometheus_ca_file,
        config.token,
        "" if config.token or not config.user else f"{config.user}:{config.password}",
    )
    past = asyncio.run(past_figures(source, start, end))
    values = {figures.audit_key(name): past[name] for name in sorted(past)}
    verdicts = figures.evaluate(gates, values)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    path = args.output_dir / runai.AUDIT
    runai.write_json(path, {"Values": figures.audit_values(values, verdicts)})
    for verdict in verdicts:
        print_now(str(verdict))
    print_now(f"wrote {path}")
    return EXIT_OK if all(verdict.passed for verdict in verdicts) else EXIT_GATE


@verb(
    "scale plot",
    "Write times.csv and general.png or detailed.png from submitted.json and sampled.json.",
    "",
    *FOLDER,
    option(
        "--plot",
        metavar="TYPE",
        choices=("general", "detailed"),
        default="general",
        help="general: until scheduled; detailed: stage by stage",
    ),
    option(
        "--skip-errors",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="leave out workloads with erroneous times",
    ),
    option("--head", **NUMBER, help="only the first N workloads, in order of submission"),
    option("--tail", **NUMBER, help="only the last N of those"),
)
def plot_times(args: argparse.Namespace) -> int:
    """Write times.csv and the chart of its times. Return 1 without data. Raises ValueError."""
    from perfdag.charts import scale as charts
    from perfdag.charts.pictures import to_bytes

    folder, _ = folder_of(args)
    workloads = runai.read_times(folder)
    table = folder / "times.csv"
    runai.write_csv(table, workloads)
    selected = runai.select(workloads, args.skip_errors, args.head, args.tail)
    excluded = []
    for reason, count in Counter(w.excluded for w in workloads if w.excluded).most_common():
        how = "left out" if args.skip_errors or reason == runai.STRAY else "flagged"
        excluded.append(f"{count} {how}: {reason}")
    for text in excluded:
        logger.info(f"of {plural(len(workloads), 'workload')} {text}")
    if not selected:
        logger.info("no data to plot")
        return EXIT_FAILED
    times = [workload.deltas for workload in selected]
    figure = charts.workloads(times, len(workloads), excluded, detailed=args.plot == "detailed")
    path = folder / f"{args.plot}.png"
    path.write_bytes(to_bytes(figure)[1])
    print_now(f"{path} and {table}: {len(selected)} of {plural(len(workloads), 'workload')}")
    return EXIT_OK
