"""What the sub-verbs of `perfdag scale` do; each takes its parsed arguments and returns an exit code."""

import argparse
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from perfdag.kube import Kube
    from perfdag.steps.scale.schedule import Schedule
    from perfdag.steps.scale.sizes import Capacity
    from perfdag.steps.scale.vmi import Result

T = TypeVar("T")


def _on_cluster(args: argparse.Namespace, work: "Callable[[Kube], Awaitable[T]]", connections: int = 100) -> T:
    import asyncio
    import signal

    from perfdag.kube import run

    async def stoppable(kube: "Kube") -> T:
        """SIGTERM is what Ctrl-C is: what was made is deleted. It is heard once, since `timeout` and others send it to the group too."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()

        def stop() -> None:
            if task and not task.cancelling():
                task.cancel()

        loop.add_signal_handler(signal.SIGTERM, stop)
        try:
            return await work(kube)
        finally:
            loop.remove_signal_handler(signal.SIGTERM)

    try:
        return run(stoppable, context=args.context, connections=connections)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def settings_of(args: argparse.Namespace) -> Any:
    """The settings of `--settings`; the folder of the files is theirs where no other is given. Raises SettingsError."""
    from perfdag.steps.scale.runai import read_settings

    settings = read_settings(args.settings)
    args.output_dir = args.output_dir or Path(settings.output_dir)
    return settings


def _schedule(args: argparse.Namespace, parallel: int, delay: float = 0.0) -> "Schedule":
    from perfdag.steps.scale.schedule import Arrival, Schedule

    arrival: Arrival = args.arrival or ("batch" if delay > 0 else "constant" if args.rate else "closed")
    if args.arrival and delay > 0:
        raise ValueError("--delay makes batches of -p; leave it out with --arrival, which takes --rate")
    if args.burst is not None and arrival != "burst":
        raise ValueError(f"--burst goes with --arrival burst, not {arrival}")
    if args.seed and arrival != "poisson":
        raise ValueError(f"--seed goes with --arrival poisson, not {arrival}")
    return Schedule(arrival, args.rate, args.burst or parallel, delay, args.seed)


def _values(given: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    if any(not name or not middle for name, middle, _ in pairs):
        raise ValueError("--var is NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _tell_held(told: dict[str, Any]) -> None:
    """What became of an open loop's schedule."""
    if told["held"] is None:
        return
    said = [] if told["rate_share"] is None else [f"{told['rate_share']:.0%} of its rate"]
    said += [] if told["lag_p99_s"] is None else [f"lag p99 {told['lag_p99_s']:.3f} s"]
    said += [f"{told['not_sent']} of {told['planned']} never sent"] if told["not_sent"] else []
    text = f"the schedule was {'held' if told['held'] else 'not held'}: {', '.join(said)}"
    print(text, file=sys.stdout if told["held"] else sys.stderr)


def submit(args: argparse.Namespace) -> int:
    """Create the workloads; 1 where some were refused or not sent."""
    from perfdag.steps.scale.commands import Order, submit
    from perfdag.steps.scale.generator import connections
    from perfdag.steps.scale.runai import check_submitter

    settings = settings_of(args)
    check_submitter(args.submitter or settings.submitter)
    settings.project = args.project or settings.project
    settings.submitter = args.submitter or settings.submitter
    if args.num_workloads < 1 or args.num_processes < 1:
        raise ValueError("-n and -p are 1 or more")
    order = Order(
        template=args.template or args.workload_type,
        count=args.num_workloads,
        parallel=args.num_processes,
        schedule=_schedule(args, args.num_processes, args.delay),
        folder=args.output_dir,
        settings=settings,
        workers=args.num_workers,
        gpus=args.num_gpus,
        pvc=args.pvc,
        namespaces=args.namespace or [],
        create_namespace=args.create_namespace,
        variables=_values(args.var),
        lock_timeout=args.lock_timeout,
        tell=_tell,
    )
    file = _on_cluster(args, lambda kube: submit(kube, order), connections(args.num_processes))
    told = file.generator
    print(f"run {file.run}: {told['created']} of {told['planned']} created in {told['seconds']:.1f} s", end="")
    print(f" ({told['create_rate_per_s']:.0f}/s)" if told["create_rate_per_s"] else "")
    _tell_held(told)
    if told["retries"]:
        print(f"tried again: {', '.join(f'{count} x {cause}' for cause, count in told['retries'].items())}", file=sys.stderr)
    for text, count in told["errors"].items():
        print(f"{count} failed: {text}", file=sys.stderr)
    return 1 if told["failed"] or told["not_sent"] else 0


def sample(args: argparse.Namespace) -> int:
    """See how far they are and write the files."""
    from perfdag.steps.scale.sampling import Look, sample

    settings = settings_of(args)
    kind = {"training": "TrainingWorkload", "distributed": "DistributedWorkload", "interactive": "InteractiveWorkload"}

    def meant(file: Any) -> None:
        if args.workload_type and kind[args.workload_type] != file.kind:
            raise ValueError(f"run {file.run} is of {file.kind}, not {args.workload_type}")
        if args.project and args.project != file.project:
            raise ValueError(f"run {file.run} was submitted to project {file.project}, not {args.project}")

    look = Look(args.output_dir, settings, args.watch, args.run_id, args.namespace, meant, _tell)
    got = _on_cluster(args, lambda kube: sample(kube, look))
    print(f"{got.scheduled} scheduled, {got.waiting} waiting, of {len(got.file.submissions)} submitted")
    if got.absent:
        print(f"not on this cluster, so not observed: {', '.join(got.absent)}", file=sys.stderr)
    _print_stages(got.rows)
    return 0


def _print_stages(rows: list[Any]) -> None:
    from perfdag.steps.scale.summary import summaries
    from perfdag.units import short

    simulated = any(row.simulated for row in rows)
    print(f"{'stage':<24}{'since':<20}{'ok':>6}{'never':>7}{'unseen':>8}{'median':>12}{'p95':>12}{'p99':>12}   +-")
    for each in summaries(rows):
        values = "".join(f"{short(value, 's'):>12}" for value in (each.p50, each.p95, each.p99))
        never = each.censored + each.failed
        error = short(each.resolution_s, "s") if each.resolution_s is not None else "-"
        print(f"{each.stage:<24}{each.since:<20}{each.ok:>6}{never:>7}{each.unobserved:>8}{values}   {error}")
    if simulated:
        print("simulated nodes: these are figures of the control plane alone")


def delete(args: argparse.Namespace) -> int:
    """Delete the workloads; 1 where some are left."""
    from perfdag.steps.scale.commands import delete
    from perfdag.steps.scale.removal import remove_run

    if args.run_id and args.output_dir:
        raise ValueError("--run and -o name a run each; give one of them")
    settings_of(args)

    async def work(kube: "Kube") -> int:
        if args.run_id:
            return await remove_run(kube, args.run_id, args.namespace, 20, args.timeout, _tell)
        return await delete(kube, args.output_dir, 20, args.timeout, _tell)

    left = _on_cluster(args, work)
    print(f"{left} left" if left else "all deleted")
    return 1 if left else 0


def nodes(args: argparse.Namespace) -> int:
    """Make or delete simulated nodes."""
    from perfdag.steps.scale import simulate

    async def work(kube: "Kube") -> int:
        if args.remove:
            print(f"{await simulate.remove_nodes(kube)} nodes deleted")
            return 0
        made, changed = await simulate.make_nodes(kube, args.count, args.gpus)
        if not await simulate.nodes_ready(kube, args.count):
            raise ValueError("the nodes do not become Ready; is KWOK running and managing nodes annotated kwok.x-k8s.io/node=fake?")
        told = f", {changed} that were there changed" if changed else ""
        print(f"{made} nodes made{told}, {args.count} Ready, {args.gpus} GPUs each")
        return 0

    return _on_cluster(args, work)


def simulate(args: argparse.Namespace) -> int:
    """Put KubeVirt's or Run:ai's Stages and CRDs on the cluster, or take them away."""
    from perfdag.steps.scale import simulate

    delays = {name: (low, high) for name, low, high in map(simulate.parse_delay, args.delay)}
    if not 0 <= args.failures <= 100:
        raise ValueError("--failures is a percentage, 0 to 100")
    if args.remove and (delays or args.failures):
        raise ValueError("--remove takes neither --delay nor --failures")
    simulate.stages(args.system, delays, args.failures)  # says what is wrong before the cluster is asked

    async def work(kube: "Kube") -> int:
        if args.remove:
            await simulate.remove(kube, args.system)
            print(f"{args.system} is no longer simulated")
        else:
            print(f"{args.system} simulated: {', '.join(await simulate.install(kube, args.system, delays, args.failures))}")
        return 0

    return _on_cluster(args, work)


_OF_SCENARIO = {"step": "capacity", "churn": "steady", "pause": "steady", "duration": "steady", "cooldown": "ladder"}


def vmi(args: argparse.Namespace) -> int:
    """Run a VMI scenario and write its files; 3 for a gate, 1 where VMIs never ran or are left, or another run was beside it."""
    from perfdag.steps.scale import gates, vmi
    from perfdag.steps.scale.generator import connections
    from perfdag.steps.scale.prometheus import Prometheus
    from perfdag.steps.scale.run_vmi import Ask, measure

    settings_of(args)
    given = {name: value for name in _OF_SCENARIO if (value := getattr(args, name)) is not None}
    for name in given:
        if _OF_SCENARIO[name] != args.scenario:
            raise ValueError(f"--{name} goes with {_OF_SCENARIO[name]}, not {args.scenario}")
    own = [*map(gates.parse, args.gate)]
    measured: list[Result] = []

    def seen(result: "Result") -> None:
        """A size that was measured is on disk whatever becomes of those after it."""
        measured.append(result)
        _write_results(args.output_dir, measured, None)

    spec = vmi.Spec(
        template=args.template,
        namespaces=args.namespace,
        schedule=_schedule(args, args.parallel),
        parallel=args.parallel,
        replicas=args.replicas,
        per_node=args.per_node,
        primer=not args.no_primer,
        timeout=args.timeout,
        variables=_values(args.var),
        gates=own if args.no_api_gates else gates.with_slo(own),
        prometheus=Prometheus(args.prometheus, args.prometheus_token_file, args.prometheus_ca_file) if args.prometheus else None,
        tell=_tell,
        seen=seen,
    )
    ask = Ask(args.scenario, args.count, lock_timeout=args.lock_timeout, **given)
    try:
        outcome = _on_cluster(args, _into(args.output_dir, lambda kube: measure(kube, spec, ask)), connections(args.parallel))
    except BaseException:
        if measured:
            _write_results(args.output_dir, measured, None)  # whether they were alone is known only now
            _tell(f"measured before: {', '.join(str(each.count) for each in measured)} VMIs; their files are in {args.output_dir}")
        raise
    _tell_results(args.output_dir, outcome.results, outcome.capacity)
    answered = outcome.capacity is not None and outcome.capacity.passed and not outcome.capacity.no_data
    if answered and not any(each.disturbed for each in outcome.results):
        return 0  # what ended the search is its answer
    return _code(outcome.results)


def scenario(args: argparse.Namespace) -> int:
    """Run a scenario of GPUs, gangs or the scheduler alone and write its files; 3 for a gate, 1 where pods did not come or are
    left, or another run was beside it."""
    from perfdag.steps.scale import gates, workloads
    from perfdag.steps.scale.generator import connections

    settings_of(args)
    spec = workloads.Spec(
        template="pod" if args.scenario == "gated" else "job",
        count=getattr(args, "count", 100),
        namespaces=args.namespace,
        parallel=args.parallel,
        workers=getattr(args, "workers", 1),
        gpus=getattr(args, "gpus", 1),
        timeout=args.timeout,
        gates=[*map(gates.parse, args.gate)],
        tell=_tell,
    )
    if min(spec.count, spec.workers, spec.parallel) < 1:
        raise ValueError("--count, --workers and --parallel are 1 or more")
    measure = _into(args.output_dir, lambda kube: workloads.exclusive(kube, spec, args.scenario, args.lock_timeout))
    result = _on_cluster(args, measure, connections(args.parallel))
    _tell_results(args.output_dir, [result], None)
    for name in workloads.FIGURES:
        if (value := result.figures.get(name)) is not None:
            print(f"{name}: {value:.6g}")
    return _code([result])


def _into(folder: Path, work: "Callable[[Kube], Awaitable[T]]") -> "Callable[[Kube], Awaitable[T]]":
    """The work, where its files may go into the folder: not over those of a submission whose workloads are still there."""

    async def checked(kube: "Kube") -> T:
        from perfdag.steps.scale.commands import finished

        await finished(kube, folder)
        return await work(kube)

    return checked


def _tell_results(folder: Path, results: "list[Result]", capacity: "Capacity | None") -> None:
    for result in results:
        print(f"{result.scenario} of {result.count}, run {result.run}")
        _print_stages(result.rows)
        for told in result.facts["generator"]:
            _tell_held(told)
        for text in result.facts["notes"]:
            print(text, file=sys.stderr)
        for verdict in result.verdicts:
            print(verdict)
    if capacity is not None:
        bound = f" at least: {capacity.stopped}" if capacity.stopped else ""
        print(f"capacity: {capacity.passed} VMIs passed every gate{bound}")
    _write_results(folder, results, capacity)


def _write_results(folder: Path, results: "list[Result]", capacity: "Capacity | None") -> None:
    from dataclasses import asdict

    from perfdag.steps.scale import table
    from perfdag.steps.scale.files import forget

    folder.mkdir(parents=True, exist_ok=True)
    forget(folder, ("stages.parquet", "summary.json", "perf-audit-results.json"), submission=True)
    table.write_rows(folder / "stages.parquet", [row for result in results for row in result.rows])
    table.write_json(folder / "perf-audit-results.json", table.audit(results))
    runs = [
        {"scenario": r.scenario, "count": r.count, "run": r.run, "figures": r.figures, "facts": r.facts, "calls": r.calls}
        | {"verdicts": [{**asdict(each), "gate": str(each.gate)} for each in r.verdicts], "error": r.error, "disturbed": r.disturbed}
        | {"trace": r.trace}
        for r in results
    ]
    table.write_json(folder / "summary.json", {"runs": runs, "capacity": asdict(capacity) if capacity else None})


def _code(results: "list[Result]") -> int:
    if any(result.disturbed for result in results):
        return 1  # another run measured beside it: a gate says nothing of either
    if any(result.breached for result in results):
        return 3
    return 1 if any(result.failed for result in results) else 0
