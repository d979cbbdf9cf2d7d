"""`perfdag doctor`: check what a suite needs, on this machine or on a cluster."""

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from perfdag.benchmark import registry
from perfdag.benchmark.contract import Gang, NotInstalled, need_tools
from perfdag.commands.options import JSON, Verbs, add_verb, option, print_json
from perfdag.commands.terminal import Finding
from perfdag.hosts import disturbance
from perfdag.hosts.base import CommandResult
from perfdag.hosts.facts import gather
from perfdag.hosts.local import LocalHost
from perfdag.kube.client import KubeError
from perfdag.kube.config import load_config
from perfdag.outcome import SampleError
from perfdag.plan.plan import Plan, make_plan
from perfdag.shape import Shape
from perfdag.signals import EXIT_FAILED, EXIT_OK
from perfdag.steps.loop import needs_cluster
from perfdag.store.base import StoreError
from perfdag.store.open import open_store
from perfdag.suite.load import load_suite

EPILOG = """examples:
  perfdag doctor
  perfdag doctor suites/quick.yaml
  perfdag doctor suites/daily.yaml --cluster --namespace bench
"""


def add_doctor(sub: Verbs) -> None:
    """Register the verb."""
    add_verb(
        sub,
        "doctor",
        run,
        "Check the tools, the store and the noise of this machine for a suite, or the "
        "cluster. Exit with 1 if something is missing.",
        EPILOG,
        option(
            "suite", nargs="?", metavar="SUITE", help="suite file (default: check every benchmark)"
        ),
        option(
            "--cluster",
            action="store_true",
            help="check the cluster that KUBECONFIG names instead of this machine",
        ),
        option(
            "--namespace",
            "-n",
            default="perfdag",
            help="with --cluster: namespace of the installation",
        ),
        option(
            "--store", metavar="ROOT", help="folder or s3://bucket/prefix (default: the suite's)"
        ),
        JSON,
    )


def run(args: argparse.Namespace) -> int:
    """Print the findings."""
    findings = findings_of(args.suite, args.store, args.namespace if args.cluster else None)
    if args.json:
        print_json([vars(finding) for finding in findings])
    else:
        print("\n".join(finding.text() for finding in findings))
    missing = any(finding.state == "missing" for finding in findings)
    return EXIT_FAILED if missing else EXIT_OK


def findings_of(suite: str | None, root: str | None, namespace: str | None) -> list[Finding]:
    """Return the findings for a suite file, or for everything if `suite` is None.

    Check the cluster if `namespace` is set, else this machine. Raises BadDocument.
    """
    loaded = load_suite(suite) if suite else None
    plan = make_plan(loaded) if loaded else None
    root = root or (loaded.suite.store if loaded else None)
    if namespace is None:
        return check_machine(plan, root)
    from perfdag.commands.doctor_cluster import check_cluster

    return check_cluster(plan, root, namespace)


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
    shapes = plan.shapes
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
        if params is None:
            need_tools(gang.hosts, benchmark.tools)
            text = f"{name}: has params without a default; only a suite says what it needs"
            return [Finding("warn", text, "perfdag doctor SUITE")]
        if benchmark.api.named and params.uses_api:
            load_config()
        benchmark.require(gang, params)
    except NotInstalled as error:
        return [
            Finding("missing", f"{name}: {tool.program} is not installed", tool.remedy)
            for tool in {tool.program: tool for tool in error.tools}.values()
        ]
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
