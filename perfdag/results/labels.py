"""Labels: the settings that tell a point, a series or a node from the others."""

import re
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from glob import escape
from typing import Any

import orjson

from perfdag.benchmark import registry
from perfdag.identity import grouped
from perfdag.units import plain, short, written


def flatten(value: Any, skip: Collection[str] = (), prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the leaves of nested settings as (dotted name, text), without the keys of `skip`.

    The items of a list of mappings with a `name` go by that name.
    """
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in skip:
                yield from flatten(item, skip, f"{prefix}.{key}" if prefix else str(key))
    elif (
        isinstance(value, list)
        and value
        and all(isinstance(item, dict) and "name" in item for item in value)
    ):
        for item in value:
            rest = {key: inner for key, inner in item.items() if key != "name"}
            yield from flatten(rest, skip, f"{prefix}.{item['name']}")
    else:
        yield prefix, value if isinstance(value, str) else orjson.dumps(value).decode()


def point_settings(benchmark: str, params: Any, shape: Any, pair: str | None) -> dict[str, str]:
    """Return the settings of a point as a suite writes them: parameters, shape, pair of hosts.

    Keys are dotted.
    """
    flat = dict(flatten(params)) | dict(flatten(shape)) | ({"pair": pair} if pair else {})
    units = registry.units_of_settings(benchmark)
    return {name: written(text, units.get(name, "")) for name, text in flat.items()}


def setting(benchmark: str, name: str, value: Any) -> str:
    """Return a parameter, key of a shape or coordinate as a suite writes it: 4KiB, 50Mbit/s."""
    return written(value, registry.units_of_settings(benchmark).get(name, ""))


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


def has_name(name: str, glob: str) -> bool:
    """Return whether a glob matches the name of a series. `bs=4096` is `bs=4KiB` in both."""
    return name == glob or fnmatchcase(name, glob) or fnmatchcase(plain(name), plain(glob))


def exact(glob: str, names: Container[str]) -> str:
    """Return a glob that matches one name alone where a text is that name: `test[1000]`."""
    return escape(glob) if glob in names else glob


def words(settings: Mapping[str, str]) -> str:
    """Return settings as names of series and points have them: `bs=4KiB reverse`."""
    return " ".join(name if text == "true" else f"{name}={text}" for name, text in settings.items())


def differences_by_point(
    points: Iterable[tuple[str, str, Mapping[str, str]]],
) -> dict[str, dict[str, str]]:
    """Return point id -> the settings that tell it from the others of its entry.

    `points` are (entry, point id, settings). Settings of the shape, and what is false or unset, are
    left out where the rest tells the points apart.
    """
    differences: dict[str, dict[str, str]] = {}
    for group in grouped(points, lambda point: point[0]).values():
        _, ids, settings = zip(*group, strict=True)
        names = sorted(set[str]().union(*settings))
        varied = [name for name in names if len({texts.get(name) for texts in settings}) > 1]
        chosen = [{name: texts[name] for name in varied if name in texts} for texts in settings]
        distinct = len({tuple(texts.items()) for texts in chosen})
        rules = (lambda name, _: "." not in name), (lambda _, text: text not in ("false", "null"))
        for rule in rules:
            fewer = [{k: text for k, text in texts.items() if rule(k, text)} for texts in chosen]
            if len({tuple(texts.items()) for texts in fewer}) == distinct:
                chosen = fewer
        differences |= zip(ids, chosen, strict=True)
    return differences


_NO_EXPLANATION = ("host", "sample", "peers", "cluster", "free_bytes", "state")
_UNITS = {"bytes": "B", "speed": "bit/s", "limits": "Hz"}
"""The units of facts by the last word of their name."""
FEWEST_PEERS = 2
Facts = Mapping[str, Mapping[str, Any]]
"""Node -> its facts, as perfdag.hosts.facts gathers them."""


def difference(facts: Facts, node: str, limit: int = 300) -> str:
    """Return in which facts a node differs from most of its peers, or an empty text.

    `kernel 6.1 (others 6.8), nics.ens1.speed 10 Gbit/s (others 25 Gbit/s)`. A fact counts where
    more than half of the peers share a value. At most `limit` characters are returned.
    """
    flat = {name: fact_texts(texts, _NO_EXPLANATION) for name, texts in facts.items()}
    of_node = flat.pop(node, {})
    if not of_node or len(flat) < FEWEST_PEERS:
        return ""
    differences: list[str] = []
    for key in sorted(set(of_node).union(*flat.values())):
        text = of_node.get(key, "none")
        texts = Counter(peer.get(key, "none") for peer in flat.values())
        common, count = texts.most_common(1)[0]
        if 2 * count > len(flat) and text != common:
            differences.append(f"{key} {text} (others {common})")
    return shorten(", ".join(differences), limit)


def shorten(text: str, limit: int = 300) -> str:
    """Return the first `limit` characters of a text."""
    return text if len(text) <= limit else f"{text[:limit]} ..."


def fact_texts(facts: Mapping[str, Any], skip: Collection[str] = ()) -> dict[str, str]:
    """Return the known facts as flat text, without the keys of `skip`.

    Sizes, speeds and frequencies are rounded for people: two nodes may be alike.
    """
    texts = {}
    for key, text in flatten(dict(facts), skip):
        unit = _UNITS.get(key.rpartition(".")[2].rpartition("_")[2])
        if unit and re.fullmatch(r"\d+|\[\d+(,\d+)*\]", text):
            text = ", ".join(short(float(number), unit) for number in re.findall(r"\d+", text))
        if text != "null":
            texts[key] = text
    return texts
