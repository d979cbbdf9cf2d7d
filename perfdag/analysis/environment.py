"""What is recorded around the values of a run, and what of it changed between two runs.

Every surface that names a cause asks here: `compare`, `check`, history, the report and the site.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from perfdag.results.labels import fact_texts
from perfdag.results.schema import codes, distinct, objects
from perfdag.revision import CHANGES, commit_range, commits_between, short_revision
from perfdag.units import plural

Environment = Mapping[str, str]
"""What is recorded around a run as flat text: `kernel` -> `6.1`. A bar joins several values."""

COLUMNS = (
    *("benchmark", "env", "nodes", "env_class", "perfdag_version", "tool", "image_digest"),
    *("revision", "revision_folder", "suite_revision"),
)
"""The columns of rows that an environment is read from."""
REVISION = "revision"
_SUITE = "suite revision"
_FOLDER = "revision folder"
_UNKNOWN = "not known"
_NODES = "nodes"
_OF_NODE = " of node "
"""Between a fact and a node, where the nodes of a run differ in it."""
_VOLATILE = ("host", "sample", "peers", "free_bytes", "path", "load")
"""Facts that differ between runs and explain nothing: pod, free space, load before it."""
_LISTS = ("nics", "rdma", "gpus")
"""Facts that list devices, of which one may be gone."""
_OF_SOME = ("tool ", "image ", "filesystem ")
"""Beginnings of what only some benchmarks have. A run without these measured something else."""
_TEXTS = {
    REVISION: "revision",
    _FOLDER: "revision_folder",
    _SUITE: "suite_revision",
    "env_class": "env_class",
    "perfdag_version": "perfdag_version",
}
"""What columns of text are called in an environment."""
_ORDER = {REVISION: 0, _SUITE: 2, "perfdag_version": 3, _NODES: 4}
"""The place of some causes among the others, which is 1: the nodes may be chance."""
_REPEATS = 3
"""A fact that differed between all neighbours of so many pairs of runs is new in every run."""


def environment(table: pa.Table) -> dict[str, str]:
    """Return the environment of a run, of the rows in a table.

    The facts of all nodes count alike, because which of them leads a gang is chance. Where nodes
    differ in a fact, its value is also there for each of them.
    """
    values: dict[str, set[str]] = {}
    by_node: dict[str, dict[str, str]] = {}
    unknown: list[set[str]] = []
    for node, facts in _facts(table):
        texts = fact_texts(facts, _VOLATILE)
        by_node.setdefault(node, {}).update(texts)
        unknown.append({key for key, value in facts.items() if value is None})
        for key, text in texts.items():
            values.setdefault(key, set()).add(text)
    if len(by_node) > 1:
        several = [
            key for key, texts in values.items() if len(texts) > 1 and not key.startswith(_OF_SOME)
        ]
        for node, texts in by_node.items():
            values |= {f"{key}{_OF_NODE}{node}": {texts.get(key, "-")} for key in several}
    values[_UNKNOWN] = set.intersection(*unknown) if unknown else set()
    values |= {key: set(distinct(table[column])) for key, column in _TEXTS.items()}
    for key, text in _of_benchmarks(table):
        values.setdefault(key, set()).add(text)
    values[_NODES] = set(distinct(table["nodes"].combine_chunks().flatten()))
    return {key: " | ".join(sorted(texts)) for key, texts in sorted(values.items()) if texts}


def _facts(table: pa.Table) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each node of a run with its facts, and what samples say of their file systems."""
    environments, texts = codes(table["env"])
    numbers, first = np.unique(environments, return_index=True)
    for number, row in zip(numbers.tolist(), first.tolist(), strict=True):
        if number < 0:  # the sample has none
            continue
        lead = orjson.loads(texts[number])
        nodes = table["nodes"][row].as_py() or [""]
        hosts = {nodes[0]: lead, **lead.get("peers", {})}
        used = lead.get("sample", {}).get("filesystem") or []  # in the order of its hosts
        filesystems = used if isinstance(used, list) else [used]
        for node, filesystem in zip(nodes, filesystems, strict=False):
            place = filesystem.get("mount") or filesystem.get("device") or "unknown"
            hosts.get(node, lead)[f"filesystem {place}"] = filesystem
        yield from hosts.items()


def _of_benchmarks(table: pa.Table) -> Iterator[tuple[str, str]]:
    """Yield the tool and the image of each benchmark. The tool of a command is its program."""
    columns = [objects(table[name]) for name in ("benchmark", "tool", "image_digest")]
    for benchmark, tool, image in set(zip(*columns, strict=True)):
        if tool and benchmark != "command":
            yield f"tool {benchmark}", tool
        if image:
            yield f"image {benchmark}", image


def short_revisions(text: str) -> str:
    """Return the revisions of a run for people, joined by a bar as an environment has them."""
    return " | ".join(map(short_revision, text.split(" | ")))


@dataclass(frozen=True)
class Changes:
    """What differs between two environments.

    `values` has what both have, before and after, with the likeliest cause first. `unknown` names
    what one or both of them could not tell. `recorded`: both have more than a version of perfdag.
    """

    values: dict[str, tuple[str, str]] = field(default_factory=dict)
    unknown: Sequence[str] = ()
    recorded: bool = True
    folders: Sequence[str] = ()

    @property
    def text(self) -> str:
        """What changed, such as `revision a1b2c3 -> d4e5f6 (12 commits); kernel 6.1 -> 6.8`."""
        return "; ".join(f"{key} {change}" for key, change in self.lines())

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield what changed and how, for people."""
        for key, (before, after) in self.values.items():
            if key in (REVISION, _SUITE):
                change = f"{short_revisions(before)} -> {short_revisions(after)}"
                count = commits_between(before, after, (".", *self.folders))
                yield key, f"{change} ({plural(count, 'commit')})" if count else change
            else:
                yield key, f"{before} -> {after}"

    @property
    def nothing(self) -> str:
        """What to say where nothing changed."""
        return "no recorded difference" if self.recorded else "nothing was recorded"

    @property
    def bisect(self) -> str:
        """The command that searches the commit between both revisions, or an empty text."""
        ends = commit_range(*self.values[REVISION]) if REVISION in self.values else None
        return f"git bisect start {ends[1]} {ends[0]}" if ends else ""


def changes(before: Environment, after: Environment, past: Sequence[Environment] = ()) -> Changes:
    """Return what differs between two environments.

    A fact that was new in each of the newest runs of `past`, up to `before`, explains nothing. A
    revision does so although each run has a new one.
    """
    values: dict[str, tuple[str, str]] = {}
    texts = f"{before.get(_UNKNOWN, '')} | {after.get(_UNKNOWN, '')}"
    unknown = set(filter(None, texts.split(" | ")))
    for key in {*before, *after} - {_UNKNOWN, _FOLDER}:
        old = _value(before, key)
        new = _value(after, key)
        if key == REVISION and old == new and (new or "").endswith(CHANGES):
            unknown.add("changes that no commit has")
        if old == new or _is_new_in_every_run(key, past):
            continue
        if old is not None and new is not None:
            values[key] = old, new
        elif device := _device(key):
            values |= _lost_or_found(device, before, after)
        elif not key.startswith(_OF_SOME) and _OF_NODE not in key:
            unknown.add(key)
    if before.get(_NODES) == after.get(_NODES):
        # Each node says more than the sum of them.
        for key in [key.partition(_OF_NODE)[0] for key in values if _OF_NODE in key]:
            values.pop(key, None)
    if values.get(_SUITE) == values.get(REVISION):  # both lie in one repository
        values.pop(_SUITE, None)
    recorded = all(environment.keys() - {"perfdag_version"} for environment in (before, after))
    folders = filter(None, (after.get(_FOLDER), before.get(_FOLDER)))
    ordered = {
        key: values[key] for key in sorted(values, key=lambda key: (_ORDER.get(key, 1), key))
    }
    return Changes(ordered, sorted(unknown), recorded, tuple(folders))


def _value(environment: Environment, key: str) -> str | None:
    """Return a value. The nodes of a run share a fact that is not there for each of them."""
    fact, of_node, node = key.partition(_OF_NODE)
    if key in environment or not of_node:
        return environment.get(key)
    return environment.get(fact) if node in environment.get(_NODES, "").split(" | ") else None


def _device(key: str) -> str:
    """Return the device of a fact, such as `nics.ens1`, or an empty text."""
    return ".".join(key.split(".")[:2]) if key.partition(".")[0] in _LISTS else ""


def _lost_or_found(
    device: str, before: Environment, after: Environment
) -> dict[str, tuple[str, str]]:
    """Return that a device is gone or new, where both environments list such devices."""
    kind = device.partition(".")[0]
    of_kind = [[key for key in side if key.partition(".")[0] == kind] for side in (before, after)]
    had, has = (device in map(_device, keys) for keys in of_kind)
    if not all(of_kind) or had == has:
        return {}
    return {device: ("present", "absent") if had else ("absent", "present")}


def _is_new_in_every_run(key: str, past: Sequence[Environment]) -> bool:
    """Return whether a fact differed between all neighbours of the newest runs."""
    if key in (REVISION, _SUITE):
        return False
    newest = [run.get(key) for run in past[-_REPEATS - 1 :]]
    values = [value for value in newest if value is not None]
    return len(values) > _REPEATS and all(a != b for a, b in pairwise(values))
