"""The commands of `perfdag scale`: where they work, what they measure and which files they write.

The commands return an exit code.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from perfdag import signals
from perfdag.kube.client import Kube
from perfdag.kube.prometheus import Prometheus
from perfdag.signals import EXIT_FAILED, EXIT_GATE, EXIT_OK
from perfdag.steps.scale.cluster import lease_lock, nodes
from perfdag.steps.scale.cluster.removal import remove_run
from perfdag.steps.scale.figures.prometheus import (
    audit_figures,
    phase_figures,
    scrape_intervals,
    single_values,
    transition_queries,
)
from perfdag.steps.scale.figures.rows import summaries
from perfdag.steps.scale.measure.generator import Arrival, Schedule, connections
from perfdag.steps.scale.runai import run_file
from perfdag.steps.scale.runai import sample as sampling
from perfdag.steps.scale.runai import submit as submission
from perfdag.steps.scale.runai.run_file import RunFile, remove_outputs, write_journal
from perfdag.steps.scale.runai.sample import SampleRequest
from perfdag.steps.scale.runai.settings import Settings, check_submitter, read_settings
from perfdag.steps.scale.runai.submit import SubmitRequest, require_deleted
from perfdag.steps.scale.scenarios import submit as workload_scenarios
from perfdag.steps.scale.scenarios import vmi
from perfdag.steps.scale.scenarios.session import Result
from perfdag.steps.scale.scenarios.session import Session as State
from perfdag.steps.scale.scenarios.vmi import VmiRequest
from perfdag.units import plural, short

T = TypeVar("T")
Print = Callable[[str], None]


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
    settings = read_settings(settings_file)
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


KINDS = {
    "training": "TrainingWorkload",
    "distributed": "DistributedWorkload",
    "interactive": "InteractiveWorkload",
}
PARALLEL_DELETIONS = 20


def submit(session: Session, request: SubmitRequest) -> int:
    """Create the workloads. Return 1 if some were refused or not sent. Raises ValueError."""
    check_submitter(request.settings.submitter)
    if request.count < 1 or request.parallel < 1:
        raise ValueError("-n and -p must be 1 or more")
    file = session.run(lambda kube: submission.submit(kube, request), connections(request.parallel))
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


def sample(
    session: Session,
    *,
    watch: float | None,
    workload_type: str | None,
    project: str | None,
) -> int:
    """Observe the workloads of a run and write the files.

    Raises ValueError before it writes a file if type or project of the run differ.
    """

    def check(file: RunFile) -> None:
        if workload_type and KINDS[workload_type] != file.kind:
            raise ValueError(f"run {file.run} is of {file.kind}, not {workload_type}")
        if project and project != file.project:
            raise ValueError(
                f"run {file.run} was submitted to project {file.project}, not {project}"
            )

    request = SampleRequest(session.folder, session.settings, watch, check, session.log)
    result = session.run(lambda kube: sampling.sample(kube, request))
    counts = f"{result.scheduled} scheduled, {result.waiting} waiting"
    session.output(f"{counts}, of {len(result.file.submissions)} submitted")
    if result.absent:
        session.log(f"not on this cluster, so not observed: {', '.join(result.absent)}")
    print_stages(session, result.rows)
    return EXIT_OK


def delete(session: Session, run_id: str | None, namespace: str | None, timeout: float) -> int:
    """Delete the objects of a run, by id or folder. Return 1 if some are left after `timeout` s.

    A run in progress is refused. Raises KubeError.
    """

    async def work(kube: Kube) -> int:
        if run_id:
            await lease_lock.require_ended(kube, run_id)
            return await remove_run(
                kube, run_id, namespace, PARALLEL_DELETIONS, timeout, session.log
            )
        return await submission.delete(
            kube, session.folder, PARALLEL_DELETIONS, timeout, session.log
        )

    left = session.run(work)
    session.output(f"{left} left" if left else "all deleted")
    return EXIT_FAILED if left else EXIT_OK


def create_nodes(context: str | None, count: int, gpus: int, output: Print) -> int:
    """Create simulated nodes and wait until they are Ready. Raises ValueError if they are not."""

    async def work(kube: Kube) -> tuple[int, int]:
        counts = await nodes.make_nodes(kube, count, gpus)
        if not await nodes.nodes_ready(kube, count):
            raise ValueError(
                "the nodes do not become Ready; does KWOK run, and does it manage nodes annotated "
                "kwok.x-k8s.io/node=fake?"
            )
        return counts

    created, changed = on_cluster(context, work)
    changes = f", {plural(changed, 'existing one')} changed" if changed else ""
    output(f"{plural(created, 'node')} created{changes}, {count} Ready, {gpus} GPUs each")
    return EXIT_OK


def delete_nodes(context: str | None, output: Print) -> int:
    """Delete the simulated nodes."""
    output(f"{plural(on_cluster(context, nodes.remove_nodes), 'node')} deleted")
    return EXIT_OK


JOURNAL = "journal"
"""Folder of the state of a run in progress."""
OUTPUTS = ("stages.parquet", "summary.json", "perf-audit-results.json")


def vmi_scenario(session: Session, spec: vmi.Spec, request: VmiRequest) -> int:
    """Run a VMI scenario. Return 3 for a breached gate, 1 for a failure. Raises ValueError."""
    results: list[Result] = []
    journal, announced = session.folder / JOURNAL, False

    def write_size(result: Result) -> None:
        """Write the files after each size, whatever happens to the next sizes."""
        results.append(result)
        _write_results(session.folder, results)

    def write_state(state: State) -> None:
        nonlocal announced
        if not announced:  # a killed run may have left a journal in this folder
            session.log(f"if this process is killed, `perfdag scale sample -o {journal}` goes on")
        announced = True
        write_journal(journal, state)

    spec.seen, spec.journal = write_size, write_state
    try:
        results = _measure(session, lambda kube: vmi.measure(kube, spec, request), spec.parallel)
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


def gated(session: Session, spec: workload_scenarios.Spec, lock_timeout: float) -> int:
    """Measure the scheduler alone. Return 3 for a breached gate, 1 for a failure."""
    result = _measure(
        session,
        lambda kube: workload_scenarios.exclusive(kube, spec, "gated", lock_timeout),
        spec.parallel,
    )
    _report(session, [result])
    for name in workload_scenarios.FIGURES:
        if (value := result.figures.get(name)) is not None:
            session.output(f"{name}: {value:.6g}")
    return _exit_code([result])


def _measure(session: Session, work: Callable[[Kube], Awaitable[T]], parallel: int) -> T:
    """Run the work unless workloads of the folder's submission still exist."""

    async def checked(kube: Kube) -> T:
        await require_deleted(kube, session.folder)
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
    run_file.write_rows(
        folder / "stages.parquet", [row for result in results for row in result.rows]
    )
    run_file.write_json(folder / "perf-audit-results.json", run_file.audit(results))
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
    run_file.write_json(folder / "summary.json", {"runs": runs})


def _exit_code(results: list[Result]) -> int:
    if any(result.disturbed for result in results):
        return EXIT_FAILED  # two runs at once: a gate means nothing for either
    if any(result.breached for result in results):
        return EXIT_GATE
    return EXIT_FAILED if any(result.failed for result in results) else EXIT_OK


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


async def past_figures(prometheus: Prometheus, start: float, end: float) -> dict[str, float | None]:
    """Return the audit's figures of a window in Unix seconds. Raises KubeError, ValueError."""
    gaps = await scrape_intervals(prometheus, end)
    if not gaps:
        raise ValueError(
            f"Prometheus at {prometheus.url} has no series of KubeVirt in the 5 minutes before "
            "--to; does it scrape KubeVirt, and does it still keep that time?"
        )
    if end - start < 2 * min(gaps.values()):
        raise ValueError(
            f"a window of {end - start:g} s has less than two scrapes: Prometheus scrapes every "
            f"{min(gaps.values()):g} s"
        )
    figures = await audit_figures(prometheus, start, end, gaps)
    figures |= await phase_figures(prometheus, end)
    return figures | await single_values(prometheus, transition_queries(), start, end)


def audit(prometheus: Prometheus, start: float, end: float, folder: Path) -> Path:
    """Write `perf-audit-results.json` of a past window in Unix seconds, and return its path.

    Raises KubeError, ValueError.
    """
    if start >= end:
        raise ValueError(f"the window ends before it begins: {_utc(start)} to {_utc(end)}")
    figures = asyncio.run(past_figures(prometheus, start, end))
    values = {run_file.audit_key(name): {"value": figures[name]} for name in sorted(figures)}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "perf-audit-results.json"
    run_file.write_json(path, {"Values": values})
    return path


def _utc(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")
