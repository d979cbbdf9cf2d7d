"""`perfdag import`: a suite from the files of another tool, or runs from earlier figures."""

import argparse
import logging
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from perfdag.commands import import_history
from perfdag.commands.import_kube_perftest import import_suite, validated
from perfdag.commands.options import EXIT_FAILED, EXIT_OK, CommandError, Verbs, add_verb, option
from perfdag.suite.document import dump, parse_document, read_document, read_text
from perfdag.suite.load import parse_suite

logger = logging.getLogger(__name__)


SUITES = {
    "kube-perftest": "its benchmarks and BenchmarkSets",
    "perfscale-load-generator": "its workloads of KubeVirt",
}
EPILOG = """examples:
  perfdag import kube-perftest iperf-set.yaml fio.yaml > suite.yaml
  perfdag import perfscale-load-generator kubevirt-burst-100.yaml > suite.yaml
  perfdag import history boot.csv

What a suite cannot keep is listed on stderr. Exit code 1: a benchmark is left out.
docs/kube-perftest.md compares the two.
"""


def add_import(sub: Verbs) -> None:
    """Register the verb."""
    parser = add_verb(
        sub,
        "import",
        import_suite_file,
        "Print a suite with the semantics of another tool's files, or store the runs of a history.",
        EPILOG,
    )
    formats = parser.add_subparsers(dest="format", metavar="FORMAT", required=True)
    files = option("files", nargs="+", metavar="FILE", help="YAML files")
    for name, kind in SUITES.items():
        text = f"print a suite from {kind}"
        add_verb(formats, name, import_suite_file, text, "", files, help=text)
    import_history.add(formats)


def import_suite_file(args: argparse.Namespace) -> int:
    """Print the suite, and what it does not keep."""
    left_out: list[str] = []
    if args.format == "kube-perftest":
        text, notes, left_out = import_suite(args.files)
    else:
        text, notes = import_workloads(args.files)
    print(text, end="")
    for note in notes:
        logger.info(f"not kept: {note}")
    for benchmark in left_out:
        logger.info(f"left out: {benchmark}")
    return EXIT_FAILED if left_out else EXIT_OK


LEAST_TIMEOUT, TIMEOUT = 30.0, 300.0
"""The load generator replaces timeouts up to the first by the second."""
_GO_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_GO_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|us|ns|h|m|s)")
_ACTION = re.compile(r"\{\{-?\s*\.(\w+)\s*-?\}\}|\{\{.*")
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


class _Object(BaseModel):
    template: str = Field(alias="templateFile")
    variables: dict[str, Any] = Field({}, alias="inputVars")


class Workload(BaseModel):
    """A workload of perfscale-load-generator."""

    model_config = ConfigDict(extra="allow")

    name: str
    object: _Object
    type: Literal["burst", "steady-state", ""] = "burst"
    timeout: Duration = 300.0
    count: int = Field(ge=1)
    churn: int = Field(0, ge=0)
    pause: Duration = Field(20.0, alias="minChurnSleep")


def import_workloads(files: list[str]) -> tuple[str, list[str]]:
    """Return the suite of these workloads as YAML, and what it does not keep.

    Raises CommandError, BadDocument.
    """
    entries: dict[str, dict[str, Any]] = {}
    lost = ["the names of the objects: perfdag numbers them by run"]
    for file in files:
        document = read_document(file)
        workload = validated(document, document.data, Workload)
        name = re.sub(r"[^a-z0-9-]+", "-", workload.name.lower())[:60].strip("-") or "workload"
        if name in entries:
            raise CommandError(f"{file}: the name {workload.name} stands twice; rename one")
        entries[name] = {"name": name, **_entry(Path(file), workload, lost)}
        known = ", ".join(workload.model_extra or {})
        lost += [f"{name}: {known}: no such key is known"] if known else []
    names = ", ".join(Path(file).name for file in files)
    suite = {
        "name": next(iter(entries))[:40].strip("-") if len(entries) == 1 else "load-generator",
        "description": f"Imported from perfscale-load-generator: {names}.",
        "entries": list(entries.values()),
    }
    text = dump([suite])
    parse_suite(text)
    return text, lost


def _entry(path: Path, workload: Workload, lost: list[str]) -> dict[str, Any]:
    """Return the entry: one creation after the other, without a primer and without gates."""
    template, namespace = _template(path, workload, lost)
    timeout = workload.timeout if workload.timeout > LEAST_TIMEOUT else TIMEOUT
    params: dict[str, Any] = {"counts": [workload.count], "timeout": f"{timeout:g}s"}
    if workload.type == "steady-state":
        pace = {"pause": f"{workload.pause:g}s", "duration": f"{timeout:g}s"}
        params = {"count": workload.count, "churn": max(1, workload.churn), **pace}
    params |= {"template": template, "namespace": namespace, "parallel": 1}
    params |= {"primer": False, "api_gates": False}
    # A template's own ${X}, as of a shell, stands for itself.
    if own := sorted(set(re.findall(r"\$\{(\w+)\}", template)) - {"name"}):
        params["variables"] = {variable: f"${{{variable}}}" for variable in own}
    benchmark = "vmi-steady" if workload.type == "steady-state" else "vmi-burst"
    return {"benchmark": benchmark, "params": params}


def _template(path: Path, workload: Workload, lost: list[str]) -> tuple[str, str]:
    """Return a workload's template as perfdag reads it, and its namespace. Raises CommandError."""
    source = path.parent / workload.object.template
    variables = {"replica": "${index}", "iteration": "${name}", **workload.object.variables}
    for name, (variable, default) in _IMAGE.items():
        if variables.get(name) == "":
            variables[name] = os.environ.get(variable) or default
            lost.append(f"{name} is empty: it is {variables[name]}; set {variable}")

    def fill(match: re.Match[str]) -> str:
        if match[1] in variables:
            return str(variables[match[1]])
        why = f"no input variable `{match[1]}`; add it to inputVars of {path}"
        if not match[1]:
            why = f"{match[0].strip()[:40]} is not read; only {{{{.variable}}}} is"
        raise CommandError(f"{source}: {why}")

    body: Any = parse_document(_ACTION.sub(fill, read_text(source)), str(source)).data
    if not isinstance(body, dict) or not isinstance(body.get("metadata"), dict):
        raise CommandError(f"{source}: no object of Kubernetes: it has no metadata")
    metadata = body["metadata"]
    namespace = variables.get("namespace", metadata.pop("namespace", None) or "default")
    metadata["name"] = "${name}"
    return yaml.safe_dump(body, sort_keys=False, width=100), str(namespace)
