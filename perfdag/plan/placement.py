"""The placement of several hosts on a cluster: the suite's, or the default of the benchmark."""

from dataclasses import replace
from typing import Any

from perfdag.benchmark import registry
from perfdag.plan.plan import Plan


def cluster_shapes(plan: Plan) -> list[dict[str, Any]]:
    """Return the shapes of a plan, each of several hosts with its placement on a cluster."""
    benchmarks = {point.shape: point.benchmark for point in plan.points}
    shapes = []
    for number, shape in enumerate(plan.shapes):
        hosts = shape.get("hosts", {})
        if hosts.get("count", 1) > 1 and number in benchmarks:
            default = registry.get(benchmarks[number]).placement
            shape = {**shape, "hosts": {"placement": default, **hosts}}
        shapes.append(shape)
    return shapes


def place_hosts(plan: Plan) -> Plan:
    """Return the plan as a cluster runs it. The ids of its points stay."""
    return replace(plan, shapes=cluster_shapes(plan))
