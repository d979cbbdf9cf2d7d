"""`perfdag benchmarks`: list the benchmarks, or describe one."""

import argparse
import logging
from typing import Any

import orjson

from perfdag.benchmark import registry
from perfdag.commands.options import JSON, CommandError, Verbs, add_verb, option, print_json
from perfdag.suite.document import choices

logger = logging.getLogger(__name__)


EPILOG = """examples:
  perfdag benchmarks
  perfdag benchmarks iperf
  perfdag benchmarks --json
"""


def add_benchmarks(sub: Verbs) -> None:
    """Register the verb."""
    add_verb(
        sub,
        "benchmarks",
        run,
        "List the benchmarks installed here, or describe one: its parameters with "
        "their defaults, its metrics, and when its clock starts and stops.",
        EPILOG,
        option("name", nargs="?", metavar="NAME"),
        JSON,
    )


def run(args: argparse.Namespace) -> int:
    """Print the list, or one benchmark."""
    descriptions = describe(args.name)
    for fault in () if args.name else registry.faults():
        logger.warning(f"perfdag benchmarks: {fault}")
    if args.json:
        print_json(descriptions)
    else:
        print(details_text(descriptions[0]) if args.name else names_text(descriptions))
    return 0


Description = dict[str, Any]
METRIC_KEYS = ("name", "unit", "better", "headline", "about")
BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<="}
"""Keys of JSON Schema that limit a number, and how they are printed."""


def describe(name: str | None = None) -> list[Description]:
    """Describe every benchmark, or the one called `name`. Raises CommandError."""
    installed = registry.names()
    if name is not None and name not in installed:
        raise CommandError(f"no benchmark {name!r}{choices(name, installed, 'there are')}")
    if name is not None and (fault := registry.fault(name)):
        raise CommandError(fault)
    return [_description(known) for known in ([name] if name else registry.working())]


def _description(name: str) -> Description:
    benchmark = registry.get(name)
    schema = benchmark.Params.model_json_schema()
    metrics = sorted(benchmark.metrics, key=lambda metric: not metric.headline)
    return {
        "name": name,
        "summary": benchmark.summary(),
        "clock": benchmark.clock(),
        "canaries": list(benchmark.canaries),
        "coords": list(benchmark.coords),
        "tools": [
            {"program": tool.program, "packages": dict(tool.packages)} for tool in benchmark.tools
        ],
        "metrics": [{key: getattr(metric, key) for key in METRIC_KEYS} for metric in metrics],
        "params": [
            {
                "name": key,
                "default": param.get("default"),
                "required": key in schema.get("required", []),
                "allowed": _allowed(param),
                "about": param.get("description", ""),
            }
            for key, param in schema["properties"].items()
        ],
    }


def _allowed(schema: dict[str, Any]) -> str:
    """Return the values that a JSON schema allows, such as `integer >= 1`."""
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        texts = dict.fromkeys(map(_allowed, schema["anyOf"]))
        return " or ".join(text for text in texts if text != "null")
    bounds = [f"{sign} {schema[key]:g}" for key, sign in BOUNDS.items() if key in schema]
    kind = schema.get("const") or schema.get("type") or schema.get("$ref", "").rpartition("/")[2]
    return " ".join([str(kind), *bounds])


def names_text(descriptions: list[Description]) -> str:
    """Return a line for each benchmark."""
    width = max(len(benchmark["name"]) for benchmark in descriptions)
    return "\n".join(f"{item['name']:<{width}}  {item['summary']}" for item in descriptions)


def details_text(benchmark: Description) -> str:
    """Return everything about one benchmark as text."""
    lines = [
        f"{benchmark['name']}: {benchmark['summary']}\n",
        f"Clock: {benchmark['clock']}",
        f"Canaries: {', '.join(benchmark['canaries'])}",
        f"Coordinates of rows: {', '.join(benchmark['coords']) or 'none'}\n",
    ]
    for tool in benchmark["tools"]:
        packages = ", ".join(f"{manager}: {name}" for manager, name in tool["packages"].items())
        lines.append(f"Tool: {tool['program']} ({packages})")
    lines.append("\nParameters")
    width = max(len(param["name"]) for param in benchmark["params"])
    for param in benchmark["params"]:
        about = f"  {param['about']}" if param["about"] else ""
        lines.append(f"  {param['name']:<{width}}  {param['allowed']}; {_default(param)}{about}")
    lines.append("\nMetrics (* headline)")
    for metric in benchmark["metrics"]:
        mark = "*" if metric["headline"] else " "
        name = f"{metric['name']} [{metric['unit']}], {metric['better']} is better"
        lines.append(f" {mark} {name}: {metric['about']}")
    return "\n".join(lines)


def _default(param: Description) -> str:
    """Return the default of a parameter as a suite writes it."""
    if param["required"]:
        return "required"
    default = param["default"]
    if default is None:
        return "optional"
    text = default if isinstance(default, str) else orjson.dumps(default).decode()
    return f"default {text or 'empty'}"
