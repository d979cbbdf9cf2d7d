"""Read kube-perftest's resources from YAML files, and expand their permutations."""

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from perfdag.app.kube_perftest.kinds import KINDS, Benchmark, Positive, Strict
from perfdag.suite.document import (
    BadDocument,
    Document,
    Problem,
    Where,
    choices,
    explain,
    parse_document,
    read_text,
)
from perfdag.suite.placement import MAX_POINTS

GROUP = "perftest.stackhpc.com/"
SET = "BenchmarkSet"
Values = dict[str, Any]
M = TypeVar("M", bound=BaseModel)


class _Metadata(BaseModel):
    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")]


class _Resource(Strict):
    apiVersion: Annotated[str, Field(pattern=f"^{re.escape(GROUP)}")]
    kind: str
    metadata: _Metadata
    spec: Values
    status: Any = None


class _Template(Strict):
    apiVersion: Annotated[str, Field(pattern=f"^{re.escape(GROUP)}")]
    kind: str
    spec: Values = {}


class _Permutations(Strict):
    product: dict[str, list[Any]] = {}
    explicit: list[Values] = []


class _Set(Strict):
    template: _Template
    repetitions: Positive = 1
    permutations: _Permutations = _Permutations()


@dataclass(frozen=True)
class Resource:
    """The benchmarks of a resource: one, or those of a set, each with its permutation."""

    document: Document
    name: str
    repetitions: int
    product: list[tuple[Values, Benchmark]]
    """Those of the product of a set, or the one benchmark."""
    explicit: list[tuple[Values, Benchmark]]


def read(files: list[str]) -> list[Resource]:
    """Return the resources of the files. Raises BadDocument with all mistakes."""
    problems: list[Problem] = []
    resources = []
    for file in files:
        for document in _documents(file):
            resources += _resource(document, problems)
    if problems:
        raise BadDocument(problems)
    return resources


def _documents(file: str) -> Iterator[Document]:
    """Yield the documents of a file, each with the line numbers of the file."""
    line = 0
    for part in re.split(r"^---(?=\s|$)", read_text(file), flags=re.M):
        document = parse_document("\n" * line + part, file)
        line += part.count("\n")
        if document.data is not None:
            yield document


def _resource(document: Document, problems: list[Problem]) -> list[Resource]:
    """Return the resource of a document, or nothing and its mistakes in `problems`."""
    resource = _validated(document, document.data, _Resource, problems)
    if resource is None:
        return []
    if resource.kind == SET:
        resource_set = _validated(document, resource.spec, _Set, problems, prefix=("spec",))
    else:
        template = _Template(apiVersion=resource.apiVersion, kind=resource.kind, spec=resource.spec)
        resource_set = _Set(template=template)
    if resource_set is None:
        return []
    own: Where = ("spec", "template") if resource.kind == SET else ()
    template, axes = resource_set.template, resource_set.permutations.product
    if template.kind not in KINDS:
        known = [*KINDS, *[SET] * (not own)]
        text = (
            f"kube-perftest has no kind {template.kind!r}{choices(template.kind, known, 'it has')}"
        )
        problems.append(document.problem((*own, "kind"), text))
        return []
    if math.prod(map(len, axes.values())) > MAX_POINTS:
        text = f"more than {MAX_POINTS:,} permutations"
        problems.append(document.problem(("spec", "permutations", "product"), text))
        return []
    product = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    explicit = resource_set.permutations.explicit
    expanded: dict[str, list[tuple[Values, Benchmark]]] = {"product": [], "explicit": []}
    for part, rows in (
        ("product", product if axes or not explicit else []),
        ("explicit", explicit),
    ):
        for row in rows:
            benchmark = _validated(
                document,
                _merge(template.spec, row),
                KINDS[template.kind],
                problems,
                (*own, "spec"),
                dict.fromkeys(row, ("spec", "permutations", part)),
            )
            if benchmark is not None:
                expanded[part].append((row, benchmark))
    return [Resource(document, resource.metadata.name, resource_set.repetitions, **expanded)]


def _validated(
    document: Document,
    data: Any,
    model: type[M],
    problems: list[Problem],
    prefix: Where = (),
    prefixes: dict[str, Where] | None = None,
) -> M | None:
    """Return the model, or None and the mistakes in `problems`.

    The data stands at `prefix` of the document, except for the keys of `prefixes`.
    """
    try:
        return model.model_validate(data)
    except ValidationError as errors:
        for error in errors.errors():
            first = str(error["loc"][0]) if error["loc"] else ""
            problems.append(explain(document, (prefixes or {}).get(first, prefix), error, model))
        return None


def _merge(below: Any, above: Any) -> Any:
    """Return the values of a template with those of a permutation, merged as kube-perftest does.

    Lists are joined, and a null changes nothing.
    """
    if isinstance(below, dict) and isinstance(above, dict):
        return below | {
            key: _merge(below[key], value) if key in below else value
            for key, value in above.items()
        }
    if isinstance(below, list) and isinstance(above, list):
        return below + above
    return below if above is None else above
