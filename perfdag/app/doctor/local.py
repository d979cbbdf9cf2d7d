"""Check this machine for a suite: tools, shapes, store and sources of noise."""

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

from perfdag.app.doctor.finding import Finding
from perfdag.app.local_run import needs_cluster
from perfdag.benchmark import registry
from perfdag.benchmark.contract import Gang, Tool
from perfdag.hosts import disturbance
from perfdag.hosts.base import Finished
from perfdag.hosts.facts import gather
from perfdag.hosts.local import LocalHost
from perfdag.hosts.packages import install_command
from perfdag.outcome import SampleError
from perfdag.plan.plan import Plan
from perfdag.shape import Shape
from perfdag.store.base import StoreError
from perfdag.store.open import open_store


def check_machine(plan: Plan | None, root: str | None) -> list[Finding]:
    """Return the findings for this machine; without a plan those of every benchmark."""
    tools = _plan_tools(plan) if plan else _all_tools()
    return [*tools, *(_shapes(plan) if plan else []), _store(root), *_noise()]


class _CachingHost(LocalHost):
    """This machine; a command that many points run is run once."""

    def __init__(self) -> None:
        super().__init__()
        self._results: dict[str, Finished] = {}

    def run(self, argv: Sequence[str], **options: Any) -> Finished:
        key = repr((list(argv), options))
        if key not in self._results:
            self._results[key] = super().run(argv, **options)
        return self._results[key]


def _all_tools() -> list[Finding]:
    """Return the findings of the tools of every benchmark."""
    host = LocalHost()
    findings = []
    for name in sorted(registry.names()):
        tools = registry.get(name).tools
        if absent := [tool for tool in tools if host.which(tool.program) is None]:
            findings += _absent(name, absent)
        else:
            programs = ", ".join(tool.program for tool in tools)
            findings.append(Finding("ok", f"{name}: {programs or 'needs no tool'}"))
    return findings


def _plan_tools(plan: Plan) -> list[Finding]:
    """Return the findings of the tools that the points of a plan need."""
    gang = Gang([_CachingHost()], Shape(), 10.0, "")
    points = Counter(point.benchmark for point in plan.points)
    absent: dict[str, list[Tool]] = {name: [] for name in points}
    errors: dict[str, dict[str, None]] = {name: {} for name in points}
    for point in plan.points:
        benchmark = registry.get(point.benchmark)
        params = benchmark.Params.model_validate(point.params)
        try:
            absent[point.benchmark] += benchmark.missing(gang, params)
        except SampleError as error:
            errors[point.benchmark][str(error)] = None
    findings = []
    for name in sorted(points):
        findings += _absent(name, absent[name])
        advice = "install it, or correct the params that name it"
        findings += [Finding("missing", f"{name}: {error}", advice) for error in errors[name]]
        if not absent[name] and not errors[name]:
            tools = f"what its {points[name]} points need is installed"
            text = tools if registry.get(name).tools else "needs no tool"
            findings.append(Finding("ok", f"{name}: {text}"))
    return findings


def _absent(name: str, tools: list[Tool]) -> list[Finding]:
    return [
        Finding(
            "missing",
            f"{name}: {program} is not installed",
            tool.advice or install_command(tool.packages),
        )
        for program, tool in {tool.program: tool for tool in tools}.items()
    ]


def _shapes(plan: Plan) -> list[Finding]:
    """Return a finding for each reason why points need a cluster."""
    shapes = [Shape.model_validate(shape) for shape in plan.shapes]
    reasons = Counter(filter(None, (needs_cluster(shapes[point.shape]) for point in plan.points)))
    return [
        Finding("warn", f"{count} points will be skipped here: {reason}")
        for reason, count in reasons.items()
    ]


def _store(root: str | None) -> Finding:
    try:
        store = open_store(root, patience=3.0)
        store.put("runs/doctor", b"")
        store.delete("runs/doctor")
    except StoreError as error:
        return Finding("missing", str(error), "repair it, or choose another store with --store")
    return Finding("ok", f"store {store.root} can be written")


def _noise() -> list[Finding]:
    """Return the sources of noise on this machine."""
    findings = []
    governor = gather().get("cpu_governor")
    if governor not in (None, "performance"):
        findings.append(
            Finding(
                "warn",
                f"CPU governor is {governor}: the clock frequency changes with the load",
                "cpupower frequency-set -g performance",
            )
        )
    load = disturbance.runnable()
    if load > disturbance.LOAD_LIMIT * (os.cpu_count() or 1):
        findings.append(
            Finding(
                "warn",
                f"{load} tasks are runnable now: other work disturbs the measurement",
                "stop it, or expect samples marked as noisy",
            )
        )
    return findings or [Finding("ok", "no source of noise seen")]
