"""Run the commands of `perfdag scale` and return an exit code; `scale_scenarios` has the scenarios."""

import argparse
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from perfdag.kube.client import Kube
    from perfdag.steps.scale.model.schedule import Schedule

T = TypeVar("T")


def on_cluster(
    args: argparse.Namespace, work: "Callable[[Kube], Awaitable[T]]", connections: int = 100
) -> T:
    """Run the work on the cluster of `--context`. Raises KubeError, KeyboardInterrupt."""
    from perfdag import signals
    from perfdag.kube.client import Kube

    async def main() -> T:
        async with Kube(context=args.context, connections=connections) as kube:
            return await work(kube)

    return signals.run_until_stopped(main())


def log(text: str) -> None:
    """Say how it goes."""
    print(text, file=sys.stderr, flush=True)


def settings_of(args: argparse.Namespace) -> Any:
    """Read `--settings`, and take the output folder from there by default. Raises SettingsError."""
    from perfdag.steps.scale.runai.settings import read_settings

    settings = read_settings(args.settings)
    args.output_dir = args.output_dir or Path(settings.output_dir)
    return settings


def schedule_of(args: argparse.Namespace, parallel: int, delay: float = 0.0) -> "Schedule":
    """Return the schedule of the arguments. Raises ValueError for an invalid combination."""
    from perfdag.steps.scale.model.schedule import Arrival, Schedule

    arrival: Arrival = args.arrival or (
        "batch" if delay > 0 else "constant" if args.rate else "closed"
    )
    if args.arrival and delay > 0:
        raise ValueError(
            "--delay makes batches of -p; leave it out with --arrival, which takes --rate"
        )
    if args.burst is not None and arrival != "burst":
        raise ValueError(f"--burst goes with --arrival burst, not {arrival}")
    if args.seed and arrival != "poisson":
        raise ValueError(f"--seed goes with --arrival poisson, not {arrival}")
    return Schedule(arrival, args.rate, args.burst or parallel, delay, args.seed)


def variables_of(options: list[str]) -> dict[str, str]:
    """The variables of `--var NAME=VALUE`. Raises ValueError for another form."""
    pairs = [text.partition("=") for text in options]
    if any(not name or not middle for name, middle, _ in pairs):
        raise ValueError("--var is NAME=VALUE")
    return {name: value for name, _, value in pairs}


def print_schedule(batch: dict[str, Any]) -> None:
    """What became of an open loop's schedule."""
    if batch["held"] is None:
        return
    parts = [] if batch["rate_share"] is None else [f"{batch['rate_share']:.0%} of its rate"]
    parts += [] if batch["lag_p99_s"] is None else [f"lag p99 {batch['lag_p99_s']:.3f} s"]
    parts += [f"{batch['not_sent']} of {batch['planned']} never sent"] if batch["not_sent"] else []
    text = f"the schedule was {'held' if batch['held'] else 'not held'}: {', '.join(parts)}"
    print(text, file=sys.stdout if batch["held"] else sys.stderr)


def submit(args: argparse.Namespace) -> int:
    """Create the workloads. Return 1 if some were refused or not sent."""
    from perfdag.steps.scale.measure.generator import connections
    from perfdag.steps.scale.runai.settings import check_submitter
    from perfdag.steps.scale.runai.submit import SubmitRequest, submit

    settings = settings_of(args)
    check_submitter(args.submitter or settings.submitter)
    settings.project = args.project or settings.project
    settings.submitter = args.submitter or settings.submitter
    if args.num_workloads < 1 or args.num_processes < 1:
        raise ValueError("-n and -p are 1 or more")
    request = SubmitRequest(
        template=args.template or args.workload_type,
        count=args.num_workloads,
        parallel=args.num_processes,
        schedule=schedule_of(args, args.num_processes, args.delay),
        folder=args.output_dir,
        settings=settings,
        workers=args.num_workers,
        gpus=args.num_gpus,
        pvc=args.pvc,
        namespaces=args.namespace or [],
        create_namespace=args.create_namespace,
        variables=variables_of(args.var),
        lock_timeout=args.lock_timeout,
        log=log,
    )
    file = on_cluster(args, lambda kube: submit(kube, request), connections(args.num_processes))
    generated = file.generator
    print(
        f"run {file.run}: {generated['created']} of {generated['planned']} created in {generated['seconds']:.1f} s",
        end="",
    )
    print(f" ({generated['create_rate_per_s']:.0f}/s)" if generated["create_rate_per_s"] else "")
    print_schedule(generated)
    if generated["retries"]:
        print(
            f"tried again: {', '.join(f'{count} x {cause}' for cause, count in generated['retries'].items())}",
            file=sys.stderr,
        )
    for text, count in generated["errors"].items():
        print(f"{count} failed: {text}", file=sys.stderr)
    return 1 if generated["failed"] or generated["not_sent"] else 0


def sample(args: argparse.Namespace) -> int:
    """See how far they are and write the files."""
    from perfdag.steps.scale.runai.sample import SampleRequest, sample

    settings = settings_of(args)
    kind = {
        "training": "TrainingWorkload",
        "distributed": "DistributedWorkload",
        "interactive": "InteractiveWorkload",
    }

    def meant(file: Any) -> None:
        if args.workload_type and kind[args.workload_type] != file.kind:
            raise ValueError(f"run {file.run} is of {file.kind}, not {args.workload_type}")
        if args.project and args.project != file.project:
            raise ValueError(
                f"run {file.run} was submitted to project {file.project}, not {args.project}"
            )

    request = SampleRequest(
        args.output_dir, settings, args.watch, args.run_id, args.namespace, meant, log
    )
    got = on_cluster(args, lambda kube: sample(kube, request))
    print(
        f"{got.scheduled} scheduled, {got.waiting} waiting, of {len(got.file.submissions)} submitted"
    )
    if got.absent:
        print(f"not on this cluster, so not observed: {', '.join(got.absent)}", file=sys.stderr)
    print_stages(got.rows)
    return 0


def print_stages(rows: list[Any]) -> None:
    """Print one line per stage."""
    from perfdag.steps.scale.figures.percentiles import summaries
    from perfdag.units import short

    simulated = any(row.simulated for row in rows)
    print(
        f"{'stage':<24}{'since':<20}{'ok':>6}{'never':>7}{'unseen':>8}{'median':>12}{'p95':>12}{'p99':>12}   +-"
    )
    for summary in summaries(rows):
        values = "".join(
            f"{short(value, 's'):>12}" for value in (summary.p50, summary.p95, summary.p99)
        )
        never = summary.censored + summary.failed
        error = short(summary.resolution_s, "s") if summary.resolution_s is not None else "-"
        print(
            f"{summary.stage:<24}{summary.since:<20}{summary.ok:>6}{never:>7}{summary.unobserved:>8}{values}   {error}"
        )
    if simulated:
        print("simulated nodes: these are figures of the control plane alone")


def delete(args: argparse.Namespace) -> int:
    """Delete the workloads. Return 1 if some are left."""
    from perfdag.steps.scale.cluster.removal import remove_run
    from perfdag.steps.scale.runai.submit import delete

    if args.run_id and args.output_dir:
        raise ValueError("--run and -o name a run each; give one of them")
    settings_of(args)

    async def work(kube: "Kube") -> int:
        if args.run_id:
            return await remove_run(kube, args.run_id, args.namespace, 20, args.timeout, log)
        return await delete(kube, args.output_dir, 20, args.timeout, log)

    left = on_cluster(args, work)
    print(f"{left} left" if left else "all deleted")
    return 1 if left else 0


def nodes(args: argparse.Namespace) -> int:
    """Make or delete simulated nodes."""
    from perfdag.steps.scale.cluster import kwok_nodes

    async def work(kube: "Kube") -> int:
        if args.remove:
            print(f"{await kwok_nodes.remove_nodes(kube)} nodes deleted")
            return 0
        created, changed = await kwok_nodes.make_nodes(kube, args.count, args.gpus)
        if not await kwok_nodes.nodes_ready(kube, args.count):
            raise ValueError(
                "the nodes do not become Ready; is KWOK running and managing nodes annotated kwok.x-k8s.io/node=fake?"
            )
        changed_text = f", {changed} that were there changed" if changed else ""
        print(f"{created} nodes made{changed_text}, {args.count} Ready, {args.gpus} GPUs each")
        return 0

    return on_cluster(args, work)


def simulate(args: argparse.Namespace) -> int:
    """Put KubeVirt's or Run:ai's Stages and CRDs on the cluster, or take them away."""
    from perfdag.steps.scale.cluster import simulation

    delays = {name: (low, high) for name, low, high in map(simulation.parse_delay, args.delay)}
    if not 0 <= args.failures <= 100:
        raise ValueError("--failures is a percentage, 0 to 100")
    if args.remove and (delays or args.failures):
        raise ValueError("--remove takes neither --delay nor --failures")
    simulation.objects(
        args.system, delays, args.failures
    )  # says what is wrong before the cluster is asked

    async def work(kube: "Kube") -> int:
        if args.remove:
            await simulation.remove(kube, args.system)
            print(f"{args.system} is no longer simulated")
        else:
            print(
                f"{args.system} simulated: {', '.join(await simulation.install(kube, args.system, delays, args.failures))}"
            )
        return 0

    return on_cluster(args, work)
