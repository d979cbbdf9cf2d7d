"""Check this machine for a suite: tools, shapes, store and sources of noise."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from perfdag.app.doctor.finding import Finding
from perfdag.app.local_run import needs_cluster
from perfdag.benchmark import registry
from perfdag.benchmark.contract import Gang
from perfdag.hosts import disturbance
from perfdag.hosts.base import CommandResult, install_command
from perfdag.hosts.facts import gather
from perfdag.hosts.local import LocalHost
from perfdag.kube.client import KubeError
from perfdag.kube.config import load_config
from perfdag.outcome import SampleError
from perfdag.plan.plan import Plan
from perfdag.shape import Shape
from perfdag.store.base import StoreError
from perfdag.store.open import open_store


def check_machine(plan: Plan | None, root: str | None) -> list[Finding]:
    """Return the findings for this machine; without a plan those of every benchmark."""
    subjects = _of_plan(plan) if plan else _of_all()
    broken = [] if plan else registry.faults()
    advice = "repair the package, or uninstall it"
    faults = [Finding("missing", text, advice) for text in broken]
    return [*_benchmarks(subjects), *faults, _store(root), *_noise()]


@dataclass(frozen=True)
class _Subject:
    """What a benchmark is asked about: the params and shape of a point, or its defaults.

    `params` is None where a parameter has no default.
    """

    name: str
    params: Any
    shape: Shape
    optional: bool = False


def _of_plan(plan: Plan) -> list[_Subject]:
    shapes = [Shape.model_validate(shape) for shape in plan.shapes]
    return [
        _Subject(
            point.benchmark,
            registry.get(point.benchmark).Params.model_validate(point.params),
            shapes[point.shape],
            point.optional,
        )
        for point in plan.points
    ]


def _of_all() -> list[_Subject]:
    """Return every benchmark with its default params."""
    subjects = []
    for name in registry.working():
        try:
            params = registry.get(name).Params()
        except ValidationError:
            params = None
        subjects.append(_Subject(name, params, Shape()))
    return subjects


class _CachingHost(LocalHost):
    """This machine; a command that many points run is run once."""

    def __init__(self) -> None:
        super().__init__()
        self._results: dict[str, CommandResult] = {}

    def run(self, argv: Sequence[str], **options: Any) -> CommandResult:
        key = repr((list(argv), options))
        if key not in self._results:
            self._results[key] = super().run(argv, **options)
        return self._results[key]


def _benchmarks(subjects: list[_Subject]) -> list[Finding]:
    """Ask each benchmark whether it could run here; it is ok only if nothing would be skipped."""
    host = _CachingHost()
    findings = []
    for name in sorted({subject.name for subject in subjects}):
        own = [subject for subject in subjects if subject.name == name]
        counts = Counter(
            replace(finding, state="warn") if subject.optional else finding
            for subject in own
            for finding in _lacks(subject, host)
        )
        findings += [_with_count(finding, count, len(own)) for finding, count in counts.items()]
        if not counts:
            points = f"its {len(own)} points need" if len(own) > 1 else "it needs"
            findings.append(Finding("ok", f"{name}: what {points} is here"))
    return findings


def _with_count(finding: Finding, count: int, points: int) -> Finding:
    if count == points:
        return finding
    return replace(finding, what=f"{finding.what} ({count} of {points} points)")


def _lacks(subject: _Subject, host: LocalHost) -> list[Finding]:
    """Return why this machine would skip a subject: its shape, its tools, or what it requires."""
    name, params = subject.name, subject.params
    benchmark = registry.get(name)
    if reason := needs_cluster(subject.shape):
        return [Finding("missing", f"{name}: {reason}", "measure it with perfdag submit")]
    gang = Gang([host] * subject.shape.hosts.count, subject.shape, 60.0, "")
    try:
        tools = (
            benchmark.missing(gang, params)
            if params is not None
            else [tool for tool in benchmark.tools if host.which(tool.program) is None]
        )
        if tools:
            return [
                Finding(
                    "missing",
                    f"{name}: {tool.program} is not installed",
                    tool.advice or install_command(tool.packages),
                )
                for tool in {tool.program: tool for tool in tools}.values()
            ]
        if params is None:
            text = f"{name}: has params without a default; only a suite says what it needs"
            return [Finding("warn", text, "perfdag doctor SUITE")]
        if benchmark.uses_api(params):
            load_config()
        benchmark.require(gang, params)
    except (SampleError, KubeError) as error:
        return [Finding("missing", f"{name}: {error}")]
    return []


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
