"""What `perfdag scale vmi` and the scenarios of pods do; each takes its parsed arguments and returns an exit code."""

import argparse
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from perfdag.cli import scale_verbs

if TYPE_CHECKING:
    from perfdag.kube import Kube
    from perfdag.steps.scale.sizes import Capacity
    from perfdag.steps.scale.vmi import Result

T = TypeVar("T")

_OF_SCENARIO = {
    "step": "capacity",
    "churn": "steady",
    "pause": "steady",
    "duration": "steady",
    "cooldown": "ladder",
}


def vmi(args: argparse.Namespace) -> int:
    """Run a VMI scenario and write its files; 3 for a gate, 1 where VMIs never ran or are left, or another run was beside it."""
    from perfdag.steps.scale import gates, vmi
    from perfdag.steps.scale.generator import connections
    from perfdag.steps.scale.prometheus import Prometheus
    from perfdag.steps.scale.run_vmi import Ask, measure

    scale_verbs.settings_of(args)
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
        schedule=scale_verbs.schedule_of(args, args.parallel),
        parallel=args.parallel,
        replicas=args.replicas,
        per_node=args.per_node,
        primer=not args.no_primer,
        timeout=args.timeout,
        variables=scale_verbs.variables_of(args.var),
        gates=own if args.no_api_gates else gates.with_slo(own),
        prometheus=Prometheus(args.prometheus, args.prometheus_token_file, args.prometheus_ca_file)
        if args.prometheus
        else None,
        tell=scale_verbs.tell,
        seen=seen,
    )
    ask = Ask(args.scenario, args.count, lock_timeout=args.lock_timeout, **given)
    try:
        outcome = scale_verbs.on_cluster(
            args,
            _into(args.output_dir, lambda kube: measure(kube, spec, ask)),
            connections(args.parallel),
        )
    except BaseException:
        if measured:
            _write_results(
                args.output_dir, measured, None
            )  # whether they were alone is known only now
            scale_verbs.tell(
                f"measured before: {', '.join(str(each.count) for each in measured)} VMIs; their files are in {args.output_dir}"
            )
        raise
    _tell_results(args.output_dir, outcome.results, outcome.capacity)
    answered = (
        outcome.capacity is not None and outcome.capacity.passed and not outcome.capacity.no_data
    )
    if answered and not any(each.disturbed for each in outcome.results):
        return 0  # what ended the search is its answer
    return _code(outcome.results)


def scenario(args: argparse.Namespace) -> int:
    """Run a scenario of GPUs, gangs or the scheduler alone and write its files; 3 for a gate, 1 where pods did not come or are
    left, or another run was beside it."""
    from perfdag.steps.scale import gates, workloads
    from perfdag.steps.scale.generator import connections

    scale_verbs.settings_of(args)
    spec = workloads.Spec(
        template="pod" if args.scenario == "gated" else "job",
        count=getattr(args, "count", 100),
        namespaces=args.namespace,
        parallel=args.parallel,
        workers=getattr(args, "workers", 1),
        gpus=getattr(args, "gpus", 1),
        timeout=args.timeout,
        gates=[*map(gates.parse, args.gate)],
        tell=scale_verbs.tell,
    )
    if min(spec.count, spec.workers, spec.parallel) < 1:
        raise ValueError("--count, --workers and --parallel are 1 or more")
    measure = _into(
        args.output_dir,
        lambda kube: workloads.exclusive(kube, spec, args.scenario, args.lock_timeout),
    )
    result = scale_verbs.on_cluster(args, measure, connections(args.parallel))
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
        scale_verbs.print_stages(result.rows)
        for told in result.facts["generator"]:
            scale_verbs.tell_held(told)
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
        {
            "scenario": r.scenario,
            "count": r.count,
            "run": r.run,
            "figures": r.figures,
            "facts": r.facts,
            "calls": r.calls,
        }
        | {
            "verdicts": [{**asdict(each), "gate": str(each.gate)} for each in r.verdicts],
            "error": r.error,
            "disturbed": r.disturbed,
        }
        | {"trace": r.trace}
        for r in results
    ]
    table.write_json(
        folder / "summary.json", {"runs": runs, "capacity": asdict(capacity) if capacity else None}
    )


def _code(results: "list[Result]") -> int:
    if any(result.disturbed for result in results):
        return 1  # another run measured beside it: a gate says nothing of either
    if any(result.breached for result in results):
        return 3
    return 1 if any(result.failed for result in results) else 0
