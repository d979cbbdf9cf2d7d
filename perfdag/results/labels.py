"""Labels of points: the settings that tell a point from the other points of its entry."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson


def flatten(value: Any, skip: Collection[str] = (), prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the leaves of nested settings as (dotted name, text), without the keys of `skip`.

    The items of a list of mappings with a `name` go by that name.
    """
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in skip:
                yield from flatten(item, skip, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list) and value and all(_is_named(item) for item in value):
        for item in value:
            rest = {key: inner for key, inner in item.items() if key != "name"}
            yield from flatten(rest, skip, f"{prefix}.{item['name']}")
    else:
        yield prefix, value if isinstance(value, str) else orjson.dumps(value).decode()


def _is_named(item: Any) -> bool:
    return isinstance(item, dict) and "name" in item


def point_settings(params: Any, shape: Any, pair: str | None) -> dict[str, str]:
    """Return the settings of a point as flat text: parameters, dotted shape keys, pair of hosts."""
    flat = dict(flatten(params)) | dict(flatten(shape))
    return flat | ({"pair": pair} if pair else {})


def span_of(hosts: Sequence[str], nodes: Mapping[str, Any]) -> str | None:
    """Return whether several hosts were on one `node`, on `nodes`, or in several `zones`.

    `hosts` has the node of each host, and `nodes` the facts of the nodes of the cluster.
    """
    if len(hosts) < 2:
        return None
    if len(set(hosts)) == 1:
        return "node"
    zones = {nodes.get(name, {}).get("zone") for name in hosts}
    return "zones" if len(zones - {None}) > 1 else "nodes"


def series_name(metric: str, stat: str, coords: Mapping[str, Any], span: str | None) -> str:
    """Return a metric with its statistic, coordinates and span: `latency p99 between nodes`."""
    return (
        metric
        + ("" if stat == "value" else f" {stat}")
        + "".join(f" {key}={value}" for key, value in coords.items())
        + (f" between {span}" if span in ("nodes", "zones") else "")
    )


def labels_by_point(
    points: Iterable[tuple[str, str, Mapping[str, str]]],
) -> dict[str, str]:
    """Return point id -> label (`streams=4 network.host=true`) of (entry, point id, settings)."""
    entries: dict[str, dict[str, Mapping[str, str]]] = {}
    for entry, point, settings in points:
        entries.setdefault(entry, {})[point] = settings
    labels = {}
    for group in entries.values():
        names = sorted({name for settings in group.values() for name in settings})
        varied = [
            name for name in names if len({settings.get(name) for settings in group.values()}) > 1
        ]
        for point, settings in group.items():
            labels[point] = " ".join(
                f"{name}={settings[name]}" for name in varied if name in settings
            )
    return labels
