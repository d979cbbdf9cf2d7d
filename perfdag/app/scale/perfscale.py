"""The configuration of KubeVirt's perfscale-load-generator."""

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from perfdag.app.errors import CommandError

_GO_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_GO_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|us|ns|h|m|s)")
_IMAGE = {
    "containerPrefix": ("DOCKER_PREFIX", "registry:5000/kubevirt"),
    "containerTag": ("DOCKER_TAG", "devel"),
}
"""Input variables that may be empty -> environment variable and default, as that tool has them."""


def go_seconds(value: Any) -> float:
    """Return the seconds of a duration of Go, such as `1h30m`. Raises ValueError."""
    parts = _GO_PART.findall(value) if isinstance(value, str) else []
    if not parts or "".join(number + unit for number, unit in parts) != value:
        raise ValueError(f"{value!r} is no duration; write it as 10m, 90s or 1h30m")
    return sum(float(number) * _GO_UNITS[unit] for number, unit in parts)


Duration = Annotated[float, BeforeValidator(go_seconds)]


class _Objects(BaseModel):
    template: str = Field(validation_alias="templateFile")
    variables: dict[str, Any] = Field({}, validation_alias="inputVars")


class Workload(BaseModel):
    """A workload of perfscale-load-generator."""

    name: str
    objects: _Objects = Field(validation_alias="object")
    type: Literal["burst", "steady-state", ""] = "burst"
    timeout: Duration = 300.0
    count: int = Field(ge=1)
    churn: int = Field(0, ge=0)
    pause: Duration = Field(20.0, validation_alias="minChurnSleep")


def read_workload(path: Path) -> tuple[Workload, str, list[str]]:
    """Return a workload, its template as perfdag reads it, and what is not kept.

    Raises CommandError.
    """
    workload, raw = _read(path)
    source = path.parent / workload.objects.template
    variables = workload.objects.variables
    notes = ["the names of the objects: perfdag numbers them by run"]
    for name, (variable, default) in _IMAGE.items():
        if variables.get(name) == "":
            variables[name] = os.environ.get(variable) or default
            notes.append(f"{name} is empty: it is {variables[name]}; set {variable}")

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if name in variables:
            return str(variables[name])
        if name in ("replica", "iteration"):
            return "${name}"
        raise CommandError(f"{source}: no input variable `{name}`; add it to inputVars of {path}")

    text = re.sub(r"\{\{-?\s*\.(\w+)\s*-?\}\}", fill, _text(source))
    if "{{" in text:
        rest = text[text.index("{{") :].splitlines()[0][:40]
        raise CommandError(f"{source}: {rest} is not read; only {{{{.variable}}}} is")
    body = _parsed(source, text)
    metadata = body.get("metadata")
    if not isinstance(metadata, dict) or not body.get("kind"):
        raise CommandError(f"{source}: no object of Kubernetes: it has no kind or no metadata")
    variables.setdefault("namespace", metadata.pop("namespace", None) or "default")
    metadata.pop("namespace", None)
    metadata["name"] = "${name}"
    template = yaml.safe_dump(body, sort_keys=False, width=100)
    return workload, template, notes + _unknown(raw)


def _read(path: Path) -> tuple[Workload, dict[str, Any]]:
    raw = _parsed(path, _text(path))
    try:
        return Workload.model_validate(raw), raw
    except ValidationError as errors:
        error = errors.errors()[0]
        where = ".".join(map(str, error["loc"]))
        problem = str(error["msg"]).removeprefix("Value error, ")
        raise CommandError(f"{path}: {where}: {problem}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text"
        raise CommandError(f"cannot read {path}: {reason}") from None


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        body = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise CommandError(f"{path} is not YAML or JSON: {' '.join(str(error).split())}") from None
    if not isinstance(body, dict):
        raise CommandError(f"{path}: not a mapping of keys")
    return body


class _Loader(yaml.SafeLoader):
    """SafeLoader that leaves times as texts, as JSON does."""


_Loader.yaml_implicit_resolvers = {
    first: [item for item in resolvers if item[0] != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _unknown(raw: dict[str, Any]) -> list[str]:
    fields = Workload.model_fields.items()
    known = {str(field.validation_alias or name) for name, field in fields}
    return [f"{key}: no such key is known" for key in raw if key not in known]
