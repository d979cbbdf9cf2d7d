"""The templates and the values schema of the Helm chart: `perfdag install` with values for options.

    python -m perfdag.workflows.chart deploy/helm/perfdag

A value stands in a line, or decides whether lines are there. Leaving out one option at a time finds
these lines: no line of an object is written here. If a package adds a benchmark with rights, this
module writes a chart that can allow it.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import groupby
from pathlib import Path
from typing import Any

from perfdag.benchmark import registry
from perfdag.kube.patch import KEEP_PODS
from perfdag.store.open import CLUSTER_ADDRESS
from perfdag.workflows import templates
from perfdag.workflows.emit import dump
from perfdag.workflows.templates import Installation

NUMBERS = {
    "parallelBatches": 987654301,
    "pendingLimit": 987654302,
    "deadline": 987654303,
    "keep": 987654304,
    "keepPods": 987654305,
}
# with every option that adds something; `@` marks a value, and Hera takes no text for a pull policy
ALL = Installation(
    namespace="@.Release.Namespace@",
    images="@image:{name}@",
    store="claim://claims-of-values",
    store_secret="@.Values.storeSecret@",
    pull_policy="Never",
    pull_secrets=("@secret@",),
    cluster_scope=True,
    lock_namespace="@.Values.lockNamespace@",
    parallel_batches=NUMBERS["parallelBatches"],
    pending_limit=NUMBERS["pendingLimit"],
    deadline=NUMBERS["deadline"],
    keep=NUMBERS["keep"],
    keep_pods=NUMBERS["keepPods"],
    network_policy=True,
    allow={"@allow@": ()},
)
NAMED = "@named@"
"""Stands for each namespace of a benchmark that is allowed; a chart creates no namespaces."""
TEMPLATE, CLASSES = "WorkflowTemplate", ".Values.priorityClasses"
OPTIONS: dict[str, dict[str, Any]] = {
    ".Values.pullSecrets": {"pull_secrets": ()},
    ".Values.clusterScope": {"cluster_scope": False},
    "not .Values.namespaced": {"namespaced": True},
    CLASSES: {},
    ".Values.networkPolicy": {"network_policy": False},
    "gt (int .Values.parallelBatches) 1": {"parallel_batches": 1},
    ".Values.allow": {"allow": {}},
}
"""Options that add lines: their condition in Helm, and how an installation leaves them out."""
NEEDED = (
    '{{ required "store: s3://bucket/prefix or claim://NAME is needed, for pods share no folder '
    'with this machine" .Values.store | toJson }}'
)
CLAIMS = """{{- $claims := "-" }}
{{- if hasPrefix "claim://" .Values.store }}
{{- $claims = trimPrefix "claim://" .Values.store }}
{{- end }}
"""
"""What `perfdag.workflows.containers.is_claim` computes."""
ABOUT = (
    "{{- /* `make generated` writes this from the definitions of `perfdag install`. "
    "Argo's own opening braces are quoted for Helm. */ -}}\n"
)

Needs = frozenset[tuple[str, bool]]
"""Options that something needs: (option, whether it is enabled)."""


@dataclass(frozen=True)
class Object:
    """An object of an installation: the options that it needs, and those that each line needs."""

    kind: str
    needs: frozenset[str]
    lines: list[tuple[Needs, str]]


def allowed() -> dict[str, str]:
    """Return the condition in Helm for each benchmark that declares rights."""
    return {
        name: f'hasKey .Values.allow "{name}"'
        for name in registry.working()
        if registry.get(name).api.named
    }


def rendered(left_out: Iterable[str] = ()) -> dict[tuple[str, str], list[str]]:
    """Return the lines of every object by kind and name, without some options.

    The two scopes of a WorkflowTemplate are one object.
    """
    missing = set(left_out)
    changes = {key: value for option in missing for key, value in OPTIONS.get(option, {}).items()}
    granted = {
        name: (registry.get(name).api, (NAMED,))
        for name, option in allowed().items()
        if option not in missing
    }
    return {
        (_kind(body["kind"]), body["metadata"]["name"]): dump([body]).splitlines()
        for body in templates.objects(replace(ALL, **changes), granted)
        if body["kind"] != "Namespace"
        and (body["kind"] != "PriorityClass" or CLASSES not in missing)
    }


def _kind(kind: str) -> str:
    return kind.removeprefix("Cluster") if kind.endswith(TEMPLATE) else kind


def objects() -> list[Object]:
    """Return every object that an installation may have, in an order that can be applied."""
    without = {option: rendered([option]) for option in [*OPTIONS, *allowed().values()]}
    result = []
    for key, full in rendered().items():
        needs = frozenset(option for option, others in without.items() if key not in others)
        fewer = {
            option: others[key]
            for option, others in without.items()
            if others.get(key, full) != full
        }
        result.append(Object(key[0], needs, _lines(full, fewer)))
    return result


def _lines(full: list[str], without: dict[str, list[str]]) -> list[tuple[Needs, str]]:
    """Return the lines of an object with every option, and those that replace them without one."""
    needs: list[Needs] = [frozenset()] * len(full)
    instead: list[list[tuple[Needs, str]]] = [[] for _ in range(len(full) + 1)]
    for option, fewer in without.items():
        for kind, start, end, first, last in SequenceMatcher(
            None, full, fewer, autojunk=False
        ).get_opcodes():
            if kind != "equal":
                needs[start:end] = [others | {(option, True)} for others in needs[start:end]]
                instead[end] += [(frozenset({(option, False)}), line) for line in fewer[first:last]]
    result = []
    for number, line in enumerate(full):
        result += [*instead[number], (needs[number], line)]
    return result + instead[-1]


def _templated(item: Object) -> Iterator[str]:
    """Yield the lines of a Helm template, with their conditions."""
    whole = frozenset((option, True) for option in item.needs)
    yield from _if(whole)
    named = [
        name
        for name, option in allowed().items()
        if option in item.needs and any(NAMED in line for _, line in item.lines)
    ]
    yield from (f'{{{{- range index .Values.allow "{name}" }}}}' for name in named)
    yield "---"
    before: Needs = frozenset()
    for needs, group in groupby(item.lines, key=lambda line: line[0]):
        if len(needs) == 1 and before == {(option, not enabled) for option, enabled in needs}:
            yield "{{- else }}"
        else:
            yield from [*_end(before), *_if(needs)]
        yield from (_line(text) for _, text in group)
        before = needs
    yield from [*_end(before), *("{{- end }}" for _ in named), *_end(whole)]


def _if(needs: Needs) -> list[str]:
    conditions = [
        option if enabled else option[4:] if option.startswith("not ") else _not(option)
        for option, enabled in sorted(needs)
    ]
    operands = (f"({condition})" if " " in condition else condition for condition in conditions)
    both = conditions[0] if len(conditions) == 1 else " ".join(["and", *operands])
    return [f"{{{{- if {both} }}}}"] if needs else []


def _not(option: str) -> str:
    return f"not ({option})" if " " in option else f"not {option}"


def _end(needs: Needs) -> list[str]:
    return ["{{- end }}"] if needs else []


def _line(text: str) -> str:
    """Return a line for Helm, with its values as JSON and Argo's braces as text.

    JSON keeps a value from ending a line or a quote.
    """
    line = text.replace("{{", '{{ "{{" }}').replace(f"value: {ALL.store}", f"value: {NEEDED}")
    line = line.replace("claims-of-values", "{{ $claims }}")
    line = line.replace(
        "'@allow@'", '{{ keys .Values.allow | sortAlpha | join " " | toJson }}'
    ).replace("'@image:{name}@'", "{{ toJson .Values.images }}")
    line = line.replace(f"'{NAMED}'", "{{ toJson . }}")
    line = re.sub(
        r"'@image:(\w+)@'", r'{{ .Values.images | replace "{name}" "\1" | toJson }}', line
    )
    line = re.sub(r"'@(\.[\w.]+)@'", r"{{ toJson $\1 }}", line)
    line = re.sub(r"@(\.[\w.]+)@", r"{{ $\1 }}", line)
    line = re.sub(r"\b(imagePullPolicy|value): Never$", r"\1: {{ .Values.pullPolicy }}", line)
    line = re.sub(
        r"^( *)- name: '@secret@'$",
        r"\1{{- range .Values.pullSecrets }}\n\1- name: {{ toJson . }}\n\1{{- end }}",
        line,
    )
    for name, number in NUMBERS.items():
        line = line.replace(str(number), f"{{{{ int64 .Values.{name} }}}}")
    return line


def schema() -> dict[str, Any]:
    """Return the JSON schema of the values: Helm refuses unknown values and impossible ones."""
    name = {"type": "string", "pattern": "^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"}
    count, switch = {"type": "integer", "minimum": 1}, {"type": "boolean"}
    values: dict[str, Any] = {
        "store": {"type": "string", "pattern": f"^{CLUSTER_ADDRESS}?$"},
        "storeSecret": name,
        "images": {"type": "string", "pattern": r"^\S+$"},
        "pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
        "pullSecrets": {"type": "array", "items": name},
        "clusterScope": switch,
        "namespaced": switch,
        "priorityClasses": switch,
        "networkPolicy": switch,
        "lockNamespace": name,
        "pendingLimit": count,
        "deadline": count,
        "keep": count,
        "keepPods": {**count, "minimum": KEEP_PODS},
        "parallelBatches": count,
        "allow": {
            "type": "object",
            "properties": {
                benchmark: {"type": "array", "items": name, "minItems": 1, "uniqueItems": True}
                for benchmark in sorted(allowed())
            },
            "additionalProperties": False,
        },
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "required": [*values],
        "properties": {
            **values,
            "global": {"type": "object"},
        },  # Helm gives the last to a chart that another one depends on
        "additionalProperties": False,
    }


def files() -> dict[str, str]:
    """Return the files of the chart by their path in it: templates, and the schema of values."""
    allowed_options = set(allowed().values())
    texts = {
        "templates/rights.yaml": ABOUT,
        "templates/allowed.yaml": ABOUT,
        "templates/workflows.yaml": ABOUT + CLAIMS,
    }
    for body in objects():
        file = (
            "workflows"
            if body.kind == TEMPLATE
            else "allowed"
            if allowed_options & body.needs
            else "rights"
        )
        texts[f"templates/{file}.yaml"] += "".join(f"{line}\n" for line in _templated(body))
    return {**texts, "values.schema.json": json.dumps(schema(), indent=2) + "\n"}


def write(chart: Path) -> None:
    """Write the files into the folder of a chart."""
    for name, text in files().items():
        (chart / name).write_text(text)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
