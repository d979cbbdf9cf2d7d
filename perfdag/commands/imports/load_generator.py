"""Suites from the workloads of KubeVirt's perfscale-load-generator."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, Field

from perfdag.commands.imports import Imported, Values, validated
from perfdag.commands.options import CommandError
from perfdag.suite.document import parse_document, read_document, read_text
from perfdag.units import GoDuration

LEAST_TIMEOUT, TIMEOUT = 30.0, 300.0
"""The load generator replaces timeouts up to the first by the second."""
ACTION = re.compile(r"\{\{-?\s*\.(\w+)\s*-?\}\}|\{\{.*")
IMAGE = {
    "containerPrefix": ("DOCKER_PREFIX", "registry:5000/kubevirt"),
    "containerTag": ("DOCKER_TAG", "devel"),
}
"""Input variables that may be empty -> environment variable and default, as that tool has them."""


class _Object(BaseModel):
    template: str = Field(alias="templateFile")
    variables: Values = Field({}, alias="inputVars")


class Workload(BaseModel, extra="allow"):
    """A workload of perfscale-load-generator."""

    name: str
    object: _Object
    type: Literal["burst", "steady-state", ""] = "burst"
    timeout: GoDuration = 300.0
    count: int = Field(ge=1)
    churn: int = Field(0, ge=0)
    pause: GoDuration = Field(20.0, alias="minChurnSleep")


def read(files: Sequence[str]) -> Imported:
    """Return the workloads of the files as entries. Raises CommandError, BadDocument."""
    imported = Imported()
    imported.lose("the names of the objects: perfdag numbers them by run")
    for file in files:
        document = read_document(file)
        workload = validated(document, document.data, Workload)
        name = re.sub(r"[^a-z0-9-]+", "-", workload.name.lower())[:60].strip("-") or "workload"
        if name in imported.entries:
            raise CommandError(f"{file}: the name {workload.name} stands twice; rename one")
        template, namespace = _template(Path(file), workload, imported)
        # one creation after the other, without a primer and without gates
        timeout = workload.timeout if workload.timeout > LEAST_TIMEOUT else TIMEOUT
        params: Values = {"counts": [workload.count], "timeout": f"{timeout:g}s"}
        if workload.type == "steady-state":
            pace = {"pause": f"{workload.pause:g}s", "duration": f"{timeout:g}s"}
            params = {"count": workload.count, "churn": max(1, workload.churn), **pace}
        params |= {"template": template, "namespace": namespace, "parallel": 1}
        params |= {"primer": False, "api_gates": False}
        # A template's own ${X}, as of a shell, stands for itself.
        if own := sorted(set(re.findall(r"\$\{(\w+)\}", template)) - {"name"}):
            params["variables"] = {variable: f"${{{variable}}}" for variable in own}
        benchmark = "vmi-steady" if workload.type == "steady-state" else "vmi-burst"
        imported.entries[name] = {"name": name, "benchmark": benchmark, "params": params}
        if unknown := ", ".join(workload.model_extra or {}):
            imported.lose(f"{unknown}: no such key is known", name)
    return imported


def _template(path: Path, workload: Workload, imported: Imported) -> tuple[str, str]:
    """Return a workload's template as perfdag reads it, and its namespace. Raises CommandError."""
    source = path.parent / workload.object.template
    variables = {"replica": "${index}", "iteration": "${name}", **workload.object.variables}
    for name, (variable, default) in IMAGE.items():
        if variables.get(name) == "":
            variables[name] = os.environ.get(variable) or default
            imported.lose(f"{name} is empty: it is {variables[name]}; set {variable}")

    def fill(match: re.Match[str]) -> str:
        if match[1] in variables:
            return str(variables[match[1]])
        why = f"no input variable `{match[1]}`; add it to inputVars of {path}"
        if not match[1]:
            why = f"{match[0].strip()[:40]} is not read; only {{{{.variable}}}} is"
        raise CommandError(f"{source}: {why}")

    body: Any = parse_document(ACTION.sub(fill, read_text(source)), str(source)).data
    if not isinstance(body, dict) or not isinstance(body.get("metadata"), dict):
        raise CommandError(f"{source}: no object of Kubernetes: it has no metadata")
    metadata = body["metadata"]
    namespace = variables.get("namespace", metadata.pop("namespace", None) or "default")
    metadata["name"] = "${name}"
    return yaml.safe_dump(body, sort_keys=False, width=100), str(namespace)
