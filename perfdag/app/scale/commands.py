"""Where the commands of `perfdag scale` work, and those that submit, sample and delete.

The commands return an exit code.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from perfdag import signals
from perfdag.exit_codes import EXIT_FAILED, EXIT_OK
from perfdag.kube.client import Kube
from perfdag.steps.scale.cluster import lease_lock, nodes
from perfdag.steps.scale.cluster.removal import remove_run
from perfdag.steps.scale.figures.rows import summaries
from perfdag.steps.scale.measure.generator import Arrival, Schedule, connections
from perfdag.steps.scale.runai import sample as sampling
from perfdag.steps.scale.runai import submit as submission
from perfdag.steps.scale.runai.run_file import RunFile
from perfdag.steps.scale.runai.sample import SampleRequest
from perfdag.steps.scale.runai.settings import Settings, check_submitter, read_settings
from perfdag.steps.scale.runai.submit import SubmitRequest
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
