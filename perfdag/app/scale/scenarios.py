"""Run the scenarios of `perfdag scale` and return an exit code."""

import argparse
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from perfdag.app.scale import commands

if TYPE_CHECKING:
    from perfdag.kube.client import Kube
    from perfdag.steps.scale.scenarios.result import Result
    from perfdag.steps.scale.scenarios.vmi_sizes import Capacity

T = TypeVar("T")

_OF_SCENARIO = {
    "step": "capacity",
    "churn": "steady",
    "pause": "steady",
    "duration": "steady",
    "cooldown": "ladder",
}


def vmi(args: argparse.Namespace) -> int:
    """Run a VMI scenario and write its files. Return 3 for a breached gate, 1 for a failure."""
    from perfdag.steps.scale.figures.prometheus import Prometheus
    from perfdag.steps.scale.measure.generator import connections
    from perfdag.steps.scale.model import gates
    from perfdag.steps.scale.scenarios import vmi
    from perfdag.steps.scale.scenarios.run_vmi import VmiRequest, measure

    commands.settings_of(args)
    options = {name: value for name in _OF_SCENARIO if (value := getattr(args, name)) is not None}
    for name in options:
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
        schedule=commands.schedule_of(args, args.parallel),
        parallel=args.parallel,
        replicas=args.replicas,
        per_node=args.per_node,
        primer=not args.no_primer,
        timeout=args.timeout,
        variables=commands.variables_of(args.var),
        gates=own if args.no_api_gates else gates.with_slo(own),
        prometheus=Prometheus(args.prometheus, args.prometheus_token_file, args.prometheus_ca_file)
        if args.prometheus
        else None,
        log=commands.log,
        seen=seen,
    )
    request = VmiRequest(args.scenario, args.count, lock_timeout=args.lock_timeout, **options)
    try:
        outcome = commands.on_cluster(
            args,
            _check_folder_first(args.output_dir, lambda kube: measure(kube, spec, request)),
            connections(args.parallel),
        )
    except BaseException:
        if measured:
            _write_results(
                args.output_dir, measured, None
            )  # whether they were alone is known only now
            commands.log(
                f"measured before: {', '.join(str(result.count) for result in measured)} VMIs; their files are in {args.output_dir}"
            )
        raise
    _print_results(args.output_dir, outcome.results, outcome.capacity)
    answered = (
        outcome.capacity is not None and outcome.capacity.passed and not outcome.capacity.no_data
    )
    if answered and not any(result.disturbed for result in outcome.results):
        return 0  # what ended the search is its answer
    return _code(outcome.results)


def scenario(args: argparse.Namespace) -> int:
    """Run a pod scenario and write its files. Return 3 for a breached gate, 1 for a failure."""
    from perfdag.steps.scale.measure.generator import connections
    from perfdag.steps.scale.model import gates
    from perfdag.steps.scale.scenarios import submit

    commands.settings_of(args)
    spec = submit.Spec(
        template="pod" if args.scenario == "gated" else "job",
        count=getattr(args, "count", 100),
        namespaces=args.namespace,
        parallel=args.parallel,
        workers=getattr(args, "workers", 1),
        gpus=getattr(args, "gpus", 1),
        timeout=args.timeout,
        gates=[*map(gates.parse, args.gate)],
        log=commands.log,
    )
    if min(spec.count, spec.workers, spec.parallel) < 1:
        raise ValueError("--count, --workers and --parallel are 1 or more")
    measure = _check_folder_first(
        args.output_dir,
        lambda kube: submit.exclusive(kube, spec, args.scenario, args.lock_timeout),
    )
    result = commands.on_cluster(args, measure, connections(args.parallel))
    _print_results(args.output_dir, [result], None)
    for name in submit.FIGURES:
        if (value := result.figures.get(name)) is not None:
            print(f"{name}: {value:.6g}")
    return _code([result])


def _check_folder_first(
    folder: Path, work: "Callable[[Kube], Awaitable[T]]"
) -> "Callable[[Kube], Awaitable[T]]":
    """Refuse the work if workloads of the folder's submission still exist."""

    async def checked(kube: "Kube") -> T:
        from perfdag.steps.scale.runai.submit import require_deleted

        await require_deleted(kube, folder)
        return await work(kube)

    return checked


def _print_results(folder: Path, results: "list[Result]", capacity: "Capacity | None") -> None:
    for result in results:
        print(f"{result.scenario} of {result.count}, run {result.run}")
        commands.print_stages(result.rows)
        for batch in result.facts["generator"]:
            commands.print_schedule(batch)
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

    from perfdag.steps.scale.runai import table
    from perfdag.steps.scale.runai.run_file import remove_outputs

    folder.mkdir(parents=True, exist_ok=True)
    remove_outputs(
        folder, ("stages.parquet", "summary.json", "perf-audit-results.json"), submission=True
    )
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
            "verdicts": [{**asdict(verdict), "gate": str(verdict.gate)} for verdict in r.verdicts],
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
