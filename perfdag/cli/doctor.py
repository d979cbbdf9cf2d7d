"""`perfdag doctor`: what is missing for a suite, here or on a cluster, and the command that adds it."""

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdag.plan.plan import Plan

EPILOG = """examples:
  perfdag doctor
  perfdag doctor suites/quick.yaml
  perfdag doctor suites/daily.yaml --cluster --namespace bench
"""


@dataclass(frozen=True)
class Finding:
    """One check: `ok`, `warn` (results may be noisy) or `missing` (points will be skipped or fail), and what to do."""

    state: str
    what: str
    do: str = ""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "doctor",
        help="what is missing for a suite, and how to get it",
        description="Check tools, store and noise of this machine, or the cluster in use, for a suite. Exit 1: something is missing.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "suite",
        nargs="?",
        metavar="SUITE",
        help="suite file; without one, every benchmark is checked",
    )
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="check the cluster that KUBECONFIG names instead of this machine",
    )
    parser.add_argument(
        "--namespace", "-n", help="with --cluster: namespace of the installation (default: perfdag)"
    )
    parser.add_argument(
        "--store", metavar="ROOT", help="folder or s3://bucket/prefix (default: the suite's)"
    )
    parser.add_argument("--json", action="store_true", help="the findings as JSON on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the findings."""
    import orjson

    from perfdag.plan.plan import make_plan
    from perfdag.suite import load as suite

    loaded = suite.load(args.suite) if args.suite else None
    plan = make_plan(loaded) if loaded else None
    root = args.store or (loaded.suite.store if loaded else None)
    if args.cluster:
        from perfdag.app.doctor.cluster import findings

        found = findings(plan, root, args.namespace)
    else:
        found = [*_tools(plan), *_shapes(plan), _store(root), *_noise()]
    if args.json:
        print(orjson.dumps([vars(each) for each in found], option=orjson.OPT_INDENT_2).decode())
    else:
        for each in found:
            print(f"{each.state:<8} {each.what}" + (f"\n         -> {each.do}" if each.do else ""))
    return 1 if any(each.state == "missing" for each in found) else 0


def _tools(plan: "Plan | None") -> list[Finding]:
    from perfdag.benchmark import registry
    from perfdag.benchmark.contract import Gang
    from perfdag.hosts.base import Finished
    from perfdag.hosts.local import LocalHost
    from perfdag.outcome import SampleError
    from perfdag.shape import Shape
    from perfdag.steps.measure import how_to_get

    class Asked(LocalHost):
        """This machine; a command by which many points ask what is here runs once."""

        def __init__(self) -> None:
            super().__init__()
            self._said: dict[str, Finished] = {}

        def run(self, argv: Sequence[str], **options: Any) -> Finished:
            key = repr((list(argv), options))
            if key not in self._said:
                self._said[key] = super().run(argv, **options)
            return self._said[key]

    here = Gang([Asked()], Shape(), 10.0, "")
    refused: dict[str, dict[str, None]] = {}
    if plan is None:
        wanted = {
            name: [
                tool for tool in registry.get(name).tools if here.lead.which(tool.program) is None
            ]
            for name in registry.names()
        }
        points = dict.fromkeys(wanted, 0)
    else:
        wanted, points = {}, Counter(point.benchmark for point in plan.points)
        for point in plan.points:
            benchmark = registry.get(point.benchmark)
            needed = wanted.setdefault(point.benchmark, [])
            try:
                needed.extend(
                    benchmark.missing(here, benchmark.Params.model_validate(point.params))
                )
            except SampleError as error:
                refused.setdefault(point.benchmark, {})[str(error)] = None
    found = []
    for name, absent in sorted(wanted.items()):
        for program, tool in {tool.program: tool for tool in absent}.items():
            found.append(
                Finding(
                    "missing",
                    f"{name}: {program} is not installed",
                    tool.advice or how_to_get(tool.packages),
                )
            )
        found += [
            Finding("missing", f"{name}: {why}", "install it, or mend the params that name it")
            for why in refused.get(name, ())
        ]
        if not absent and name not in refused:
            tools = ", ".join(tool.program for tool in registry.get(name).tools)
            said = f"what its {points[name]} points need is installed" if points[name] else tools
            found.append(Finding("ok", f"{name}: {said if tools else 'needs no tool'}"))
    return found


def _shapes(plan: "Plan | None") -> list[Finding]:
    from perfdag.app.local_run import needs_cluster
    from perfdag.shape import Shape

    found: dict[str, int] = {}
    for point in plan.points if plan else []:
        reason = needs_cluster(Shape.model_validate(plan.shapes[point.shape])) if plan else None
        if reason:
            found[reason] = found.get(reason, 0) + 1
    return [
        Finding("warn", f"{count} points will be skipped here: {reason}")
        for reason, count in found.items()
    ]


def _store(root: str | None) -> Finding:
    from perfdag.store.base import StoreError
    from perfdag.store.open import open_store

    try:
        store = open_store(root, patience=3.0)
        store.put("runs/.doctor", b"")
        store.delete("runs/.doctor")
    except StoreError as error:
        return Finding("missing", str(error), "choose another with --store, or mend it")
    return Finding("ok", f"store {store.root} can be written")


def _noise() -> list[Finding]:
    import os

    from perfdag.hosts import disturbance
    from perfdag.hosts.facts import gather

    facts = gather()
    found = []
    governor = facts.get("cpu_governor")
    if governor not in (None, "performance"):
        found.append(
            Finding(
                "warn",
                f"CPU governor is {governor}: clocks move with load",
                "cpupower frequency-set -g performance",
            )
        )
    load = disturbance.runnable()
    if load > disturbance.LOAD_LIMIT * (os.cpu_count() or 1):
        found.append(
            Finding(
                "warn",
                f"{load} tasks want a CPU now: other work disturbs what is measured",
                "stop it, or expect marked samples",
            )
        )
    return found or [Finding("ok", "no source of noise seen")]
