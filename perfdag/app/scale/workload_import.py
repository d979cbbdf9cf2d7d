"""Write workloads of KubeVirt's perfscale-load-generator as a suite."""

import re
from pathlib import Path
from typing import Any

import yaml

from perfdag.app.errors import CommandError
from perfdag.app.scale.perfscale import Workload, read_workload
from perfdag.suite.load import parse_suite

LEAST_TIMEOUT, TIMEOUT = 30.0, 300.0
"""The load generator replaces timeouts up to the first by the second."""


def import_workloads(files: list[str]) -> tuple[str, list[str]]:
    """Return the suite of these workloads as YAML, and what it does not keep.

    Raises CommandError, BadDocument.
    """
    entries: dict[str, dict[str, Any]] = {}
    lost: dict[str, list[str]] = {}
    for file in files:
        workload, template, notes = read_workload(Path(file))
        name = re.sub(r"[^a-z0-9-]+", "-", workload.name.lower())[:60].strip("-") or "workload"
        if name in entries:
            raise CommandError(f"{file}: the name {workload.name} stands twice; rename one")
        entries[name] = {"name": name, **_entry(workload, template)}
        for note in notes:
            lost.setdefault(note, []).append(name)
    names = [Path(file).name for file in files]
    suite = {
        "name": next(iter(entries))[:40].strip("-") if len(entries) == 1 else "load-generator",
        "description": f"Imported from perfscale-load-generator: {', '.join(names)}.",
        "entries": list(entries.values()),
    }
    text = yaml.dump(suite, Dumper=_Dumper, sort_keys=False, width=100)
    parse_suite(text)
    return text, [f"{', '.join(names)}: {note}" for note, names in lost.items()]


def _entry(workload: Workload, template: str) -> dict[str, Any]:
    """Return the entry: one creation after the other, without a primer and without gates."""
    timeout = workload.timeout if workload.timeout > LEAST_TIMEOUT else TIMEOUT
    common: dict[str, Any] = {
        "template": template,
        "namespace": str(workload.objects.variables["namespace"]),
        "parallel": 1,
        "primer": False,
        "api_gates": False,
    }
    # A template's own ${X}, as of a shell, stands for itself.
    if own := sorted(set(re.findall(r"\$\{(\w+)\}", template)) - {"name"}):
        common["variables"] = {variable: f"${{{variable}}}" for variable in own}
    if workload.type == "steady-state":
        pace = {"pause": f"{workload.pause:g}s", "duration": f"{timeout:g}s"}
        churn = {"count": workload.count, "churn": max(1, workload.churn), **pace}
        return {"benchmark": "vmi-steady", "params": {**churn, **common}}
    burst = {"counts": [workload.count], "timeout": f"{timeout:g}s"}
    return {"benchmark": "vmi-burst", "params": {**burst, **common}}


class _Dumper(yaml.SafeDumper):
    """SafeDumper that writes a text of several lines as a block."""


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _block)
