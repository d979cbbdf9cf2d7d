"""Run the scenarios of `perfdag scale`, write their files, and return an exit code."""

import shutil
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from perfdag.app.scale.commands import (
    Session,
    print_schedule,
    print_stages,
)
from perfdag.exit_codes import EXIT_FAILED, EXIT_GATE, EXIT_OK
from perfdag.kube.client import Kube
from perfdag.steps.scale.measure.generator import connections
from perfdag.steps.scale.runai import run_file
from perfdag.steps.scale.runai.run_file import remove_outputs, write_journal
from perfdag.steps.scale.runai.submit import require_deleted
from perfdag.steps.scale.scenarios import submit, vmi
from perfdag.steps.scale.scenarios.session import Result
from perfdag.steps.scale.scenarios.session import Session as State
from perfdag.steps.scale.scenarios.vmi import VmiRequest

T = TypeVar("T")
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


def gated(session: Session, spec: submit.Spec, lock_timeout: float) -> int:
    """Measure the scheduler alone. Return 3 for a breached gate, 1 for a failure."""
    result = _measure(
        session, lambda kube: submit.exclusive(kube, spec, "gated", lock_timeout), spec.parallel
    )
    _report(session, [result])
    for name in submit.FIGURES:
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
