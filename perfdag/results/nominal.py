"""The share of the link's speed beside a measured figure: a note that never decides anything."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from perfdag.benchmark import registry
from perfdag.benchmark.contract import Benchmark
from perfdag.results.summary import PointState, Series
from perfdag.units import short

BITS = {"bit/s": 1.0, "B/s": 8.0}
"""Bits of a unit. Nominal figures are in bit/s."""


def add_nominal(table: pa.Table, states: Sequence[PointState]) -> None:
    """Note `46 % of 25 Gbit/s (NIC)` in series of two nodes whose physical NICs are known.

    It is a share of the speed of the slowest NIC.
    """
    hosts = _hosts_by_point(table)
    for state in states:
        wanted = _nominal_series(state)
        if not wanted or state.point not in hosts:
            continue
        interface = (state.shape.get("network") or {}).get("interface")
        nominal = _link_speed(hosts[state.point], interface)
        for series, directions in wanted if nominal else ():
            share = series.middle * BITS[series.unit] / (nominal * directions)
            limit = short(nominal * directions, "bit/s")
            series.nominal = f"{100 * share:.0f} % of {limit} (NIC)"


def _nominal_series(state: PointState) -> list[tuple[Series, int]]:
    """Return the series that are compared, with the number of directions of their data."""
    try:
        benchmark: Benchmark[Any] = registry.get(state.benchmark)
        names = {metric.name for metric in benchmark.metrics if metric.nominal}
        compared = [series for series in state.series if series.metric in names]
        directions = benchmark.directions(benchmark.Params.model_validate(state.params))
    except Exception:  # a benchmark that is not installed here, or of another version
        return []
    return [(series, directions) for series in compared]


def _hosts_by_point(table: pa.Table) -> dict[str, dict[str, Any]]:
    """Return point -> the facts of its hosts, for points that were measured between nodes alone."""
    rows = table.filter(
        pc.and_(pc.equal(table["status"], "ok"), pc.is_valid(table["same_node"]))
    ).select(["point", "env", "same_node"])
    kinds: dict[str, dict[bool, str]] = {}
    columns = [column.to_pylist() for column in rows.columns]
    for point, env, same_node in zip(*columns, strict=True):
        kinds.setdefault(point, {})[same_node] = env
    return {
        point: orjson.loads(ways[False]) for point, ways in kinds.items() if ways.keys() == {False}
    }


def _link_speed(env: Mapping[str, Any], interface: str | None) -> float:
    """Return the speed of the slowest host's physical NIC in bit/s, or 0 if one is unknown.

    A host whose NICs differ in speed is known only where the suite names the interface.
    """
    speeds = []
    for facts in (env, *(env.get("peers") or {}).values()):
        nics = [nic for nic in facts.get("nics") or () if nic.get("driver") and nic.get("speed")]
        own = {nic["speed"] for nic in nics if interface in (None, nic["name"])}
        if len(own) != 1:
            return 0.0
        speeds.append(float(own.pop()))
    return min(speeds)
