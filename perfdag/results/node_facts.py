"""The facts in which a node differs from its peers: what may explain that it is slow."""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from perfdag.results.labels import flatten
from perfdag.units import short

if TYPE_CHECKING:
    import pyarrow as pa

_NO_EXPLANATION = ("host", "sample", "peers", "cluster", "free_bytes", "state")
_UNITS = {"bytes": "B", "speed": "bit/s"}
FEWEST_PEERS = 2
Facts = Mapping[str, Mapping[str, Any]]
"""Node -> its facts, as perfdag.hosts.facts gathers them."""


def facts_of_nodes(table: "pa.Table") -> dict[str, dict[str, Any]]:
    """Return the newest facts of the nodes of a table with the columns `env` and `nodes`."""
    from pyarrow.types import is_dictionary

    facts: dict[str, dict[str, Any]] = {}
    column = table["env"]
    if not is_dictionary(column.type):
        column = column.dictionary_encode()
    first = iter([names[0] if names else None for names in table["nodes"].to_pylist()])
    for chunk in column.chunks:
        known = dict.fromkeys(zip(chunk.indices.to_pylist(), first, strict=False))
        for index, node in known:
            if index is not None and node is not None:
                env = orjson.loads(chunk.dictionary[index].as_py())
                facts |= {node: env, **env.get("peers", {})}
    return facts


def difference(facts: Facts, node: str, limit: int = 300) -> str:
    """Return in which facts a node differs from most of its peers, or an empty text.

    `kernel 6.1 (others 6.8), nics.ens1.speed 10 Gbit/s (others 25 Gbit/s)`. A fact counts where
    more than half of the peers share a value. At most `limit` characters are returned.
    """
    flat = {name: _texts(texts) for name, texts in facts.items()}
    own = flat.pop(node, {})
    if not own or len(flat) < FEWEST_PEERS:
        return ""
    differences: list[str] = []
    for key in sorted({key for texts in flat.values() for key in texts} | own.keys()):
        values = Counter(texts.get(key, "none") for texts in flat.values())
        ((common, count),) = values.most_common(1)
        if 2 * count > len(flat) and own.get(key, "none") != common:
            differences.append(f"{key} {own.get(key, 'none')} (others {common})")
    text = ", ".join(differences)
    return text if len(text) <= limit else f"{text[:limit]} ..."


def _texts(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return facts as flat text, sizes and speeds rounded for people: two nodes may be alike."""
    texts = {}
    for key, value in flatten(dict(facts), _NO_EXPLANATION):
        unit = _UNITS.get(key.rpartition(".")[2].rpartition("_")[2])
        number = unit and value.isdigit()
        texts[key] = short(float(value), unit) if unit and number else value
    return {key: value for key, value in texts.items() if value != "null"}
