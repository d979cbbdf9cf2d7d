"""The environment of rows as flat text, and text columns as numbers."""

import math
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from perfdag.results.labels import flatten

_VOLATILE = ("host", "sample", "free_bytes", "load")
"""Facts that differ between runs and explain nothing: pod, sample, free space, load before it."""


def environment(table: pa.Table) -> dict[str, str]:
    """Return the environment of a run as flat text. A bar joins several values of one key.

    The facts of all nodes count alike: which of them leads a gang is chance.
    """
    values: dict[str, set[str]] = {}
    for text in _distinct(table["env"]):
        lead = orjson.loads(text)
        for facts in (lead, *lead.pop("peers", {}).values()):
            for key, value in flatten(facts, _VOLATILE):
                if value != "null":
                    values.setdefault(key, set()).add(value)
    for name in ("env_class", "perfdag_version", "tool"):
        for text in _distinct(table[name]):
            values.setdefault(name, set()).add(text)
    digests, texts = codes(table["image_digest"])
    for i in np.unique(digests, return_index=True)[1]:
        if digests[i] >= 0:
            values.setdefault(f"image {table['benchmark'][int(i)].as_py()}", set()).add(
                texts[digests[i]]
            )
    nodes = set(_distinct(table["nodes"].combine_chunks().flatten()))
    if nodes:
        values["nodes"] = nodes
    return {key: " | ".join(sorted(values)) for key, values in sorted(values.items())}


def _distinct(column: pa.ChunkedArray | pa.Array) -> list[str]:
    return [text for text in pc.unique(column).to_pylist() if text]


def codes(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], list[Any]]:
    """Return a text column as numbers, and the text of each number. Null is -1."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    array = column.unify_dictionaries().combine_chunks()
    return numbers(array.indices, -1).astype(np.int64), array.dictionary.to_pylist()


def numbers(column: pa.ChunkedArray | pa.Array, absent: float = math.nan) -> NDArray[Any]:
    """Return a numeric column as an array, with `absent` where it is null.

    A column without nulls goes through dlpack, because to_numpy imports pandas where it is
    installed, which takes longer than everything else.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if array.null_count:
        filled: NDArray[Any] = np.nan_to_num(array.to_numpy(zero_copy_only=False), nan=absent)
        return filled
    return np.from_dlpack(array)
