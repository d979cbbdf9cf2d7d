"""Write kube-perftest's resources as a suite, and list what a suite cannot keep of them."""

import itertools
import json
import math
import re
from collections.abc import Iterable
from functools import reduce
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from perfdag.app.errors import CommandError
from perfdag.app.kube_perftest.kinds import Benchmark
from perfdag.app.kube_perftest.resources import Resource, Values, read
from perfdag.benchmark import registry
from perfdag.shape import Shape, merge, overlay
from perfdag.suite.document import Document, explain
from perfdag.suite.enumerate import enumerate_points
from perfdag.suite.load import parse_suite
from perfdag.suite.permutations import nested

_NOWHERE = Document("", "")


def import_suite(files: list[str]) -> tuple[str, list[str], list[str]]:
    """Return the suite of these files as YAML, what it does not keep, and what it leaves out.

    Raises BadDocument, or CommandError if nothing can be measured.
    """
    lost: dict[str, list[str]] = {}
    left_out: list[str] = []
    entries: dict[str, Values] = {}
    for resource in read(files):
        name = _name(resource, entries)
        notes: list[str] = []
        refused: list[str] = []
        entry = _entry(resource, notes, refused)
        left_out += [f"{name}: {text}" for text in refused]
        for note in dict.fromkeys(notes):
            lost.setdefault(note, []).append(name)
        if entry is not None:
            entries[name] = {"name": name, **entry}
    notes = [f"{', '.join(names)}: {text}" for text, names in lost.items()]
    if not entries:
        raise CommandError(
            f"{', '.join(files)}: nothing can be measured; {'; '.join([*left_out, *notes][:3])}"
        )
    name = next(iter(entries)) if len(entries) == 1 else "kube-perftest"
    suite = {
        "name": re.sub(r"[^a-z0-9]+", "-", name.lower())[:40].strip("-"),
        "description": f"Imported from kube-perftest: {', '.join(Path(f).name for f in files)}.",
        "entries": list(entries.values()),
    }
    # Through JSON, since YAML writes an object that stands twice as an alias.
    plain = json.loads(json.dumps(suite))
    text = yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, width=100)
    if merged := enumerate_points(parse_suite(text)).merged:
        notes.append(f"{merged} equal benchmarks are measured once; raise `repetitions`")
    return text, notes, left_out


def _name(resource: Resource, names: Iterable[str]) -> str:
    """Return the name of the entry, which may hold no dot and stands once."""
    name = resource.name.replace(".", "-")[:60].strip("-")
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return next(free for free in itertools.chain([name], numbered) if free not in names)


def _entry(resource: Resource, notes: list[str], left_out: list[str]) -> Values | None:
    """Return the entry of a resource without its name, or None. Add what is lost to the lists."""
    product, explicit = (
        [
            keys
            for row, benchmark in part
            if (keys := _point(row, benchmark, notes, left_out)) is not None
        ]
        for part in (resource.product, resource.explicit)
    )
    rows = [*product, *explicit]
    if not rows:
        return None
    common = {
        key: value
        for key, value in rows[0].items()
        if all(key in row and row[key] == value for row in rows)
    }
    if common.get("network.host") is False:  # so it is on a cluster
        rows = [{key: row[key] for key in row if key != "network.host"} for row in rows]
        del common["network.host"]
    entry = _nested({key: common[key] for key in common if not key.startswith("params.")})
    entry |= _nested({key: common[key] for key in common if key.startswith("params.")})
    if resource.repetitions > 1:
        entry["repetitions"] = resource.repetitions
        notes.append("repetitions: measured in interleaved rounds, not one after the other")
    varied = [
        {key.removeprefix("params."): row[key] for key in row if key not in common} for row in rows
    ]
    if len(rows) > 1:
        entry["permutations"] = _permutations(varied[: len(product)], varied[len(product) :])
    return entry


def _point(
    row: Values, benchmark: Benchmark, notes: list[str], left_out: list[str]
) -> Values | None:
    """Return the keys of a point with dots, or None and the reason in `left_out`."""
    where = " ".join(f"{name}={value}" for name, value in row.items())
    try:
        params, shape, lost = benchmark.params(), benchmark.shape(), benchmark.lost()
        refused = _refused(benchmark.benchmark, params, shape)
    except ValueError as error:
        refused = str(error)
    if refused:
        left_out.append(f"{where}{': ' if where else ''}{refused}")
        return None
    notes += lost
    keys = {"benchmark": benchmark.benchmark, **shape}
    return keys | {f"params.{name}": value for name, value in params.items()}


def _refused(name: str, params: Values, keys: Values) -> str | None:
    """Return why perfdag cannot measure this, or None."""
    benchmark = registry.get(name)
    model: Any
    try:
        model = benchmark.Params
        read = model.model_validate(params)
        model = Shape
        own = {"image": benchmark.image, **overlay(benchmark.shape(read), _nested(keys))}
        shape = Shape.model_validate(own)
    except ValidationError as errors:
        error = errors.errors()[0]
        path = ".".join(map(str, error["loc"]))
        problem = explain(_NOWHERE, (), error, model)
        return f"{path}{': ' if path else ''}{problem.text}"
    texts = [*(f"{key} {text}" for key, text in shape.problems()), *benchmark.check(read, shape)]
    return "; ".join(texts) or None


def _permutations(product: list[Values], explicit: list[Values]) -> Values:
    """Return axes if the rows are all combinations of their values, else the rows."""
    axes: dict[str, list[Any]] = {}
    for row in product:
        for key, value in row.items():
            if value not in axes.setdefault(key, []):
                axes[key].append(value)
    whole = math.prod(map(len, axes.values())) == len(product)
    if product and whole and all(row.keys() == axes.keys() for row in product):
        return {"product": axes, **({"explicit": explicit} if explicit else {})}
    return {"explicit": [*product, *explicit]}


def _nested(keys: Values) -> Values:
    """Return keys with dots as mappings."""
    return reduce(merge, (nested(key, value) for key, value in keys.items()), {})
