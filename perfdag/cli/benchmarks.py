"""`perfdag benchmarks`: what can be measured, and the params, clock and metrics of one benchmark."""

import argparse
import sys
from typing import Any

EPILOG = """examples:
  perfdag benchmarks
  perfdag benchmarks iperf
  perfdag benchmarks --json
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "benchmarks",
        help="what can be measured: params, clock, metrics",
        description="List the benchmarks installed here, or show one: parameters with defaults, metrics, when its clock starts and stops.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", metavar="NAME")
    parser.add_argument("--json", action="store_true", help="as JSON on stdout")
    parser.add_argument(
        "--markdown", action="store_true", help="print the table of docs/benchmarks.md"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the list or one benchmark."""
    import orjson

    from perfdag.benchmark import registry
    from perfdag.suite.yaml_document import nearest

    names = registry.names()
    if args.name is not None and args.name not in names:
        print(
            f"no benchmark {args.name!r}; there are {', '.join(names)}{nearest(args.name, names)}",
            file=sys.stderr,
        )
        return 2
    described = [describe(name) for name in ([args.name] if args.name else names)]
    if args.json:
        print(orjson.dumps(described, option=orjson.OPT_INDENT_2).decode())
    elif args.markdown:
        print(markdown(described))
    elif args.name:
        _show(described[0])
    else:
        width = max(len(each["name"]) for each in described)
        for each in described:
            print(f"{each['name']:<{width}}  {each['summary']}")
    return 0


def describe(name: str) -> dict[str, Any]:
    """Everything a person or program may want to know of a benchmark, as plain data."""
    from perfdag.benchmark import registry

    found = registry.get(name)
    schema = found.Params.model_json_schema()
    return {
        "name": name,
        "summary": found.summary(),
        "clock": found.clock(),
        "canaries": list(found.canaries),
        "tools": [
            {"program": tool.program, "packages": dict(tool.packages)} for tool in found.tools
        ],
        "metrics": [
            {
                "name": m.name,
                "unit": m.unit,
                "better": m.better,
                "headline": m.headline,
                "about": m.about,
            }
            for m in sorted(found.metrics, key=lambda m: not m.headline)
        ],
        "params": [
            _param(key, each, key in schema.get("required", []))
            for key, each in schema["properties"].items()
        ],
    }


def markdown(described: list[dict[str, Any]]) -> str:
    """The table of all benchmarks in Markdown."""
    lines = ["| benchmark | what | headline metrics | clock |", "|---|---|---|---|"]
    for each in described:
        headlines = ", ".join(
            f"{metric['name']} [{metric['unit']}]"
            for metric in each["metrics"]
            if metric["headline"]
        )
        lines.append(
            f"| `{each['name']}` | {each['summary'].rstrip('.')} | {headlines} | {each['clock']} |"
        )
    return "\n".join(lines)


def _param(name: str, schema: dict[str, Any], required: bool) -> dict[str, Any]:
    return {
        "name": name,
        "default": schema.get("default"),
        "required": required,
        "allowed": _allowed(schema),
        "about": schema.get("description", ""),
    }


def _allowed(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(
            dict.fromkeys(text for each in schema["anyOf"] if (text := _allowed(each)) != "null")
        )
    bounds = [
        f"{word} {schema[key]:g}"
        for key, word in (("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="))
        if key in schema
    ]
    kind = str(
        schema.get("const") or schema.get("type") or schema.get("$ref", "").rpartition("/")[2]
    )
    return " ".join([kind, *bounds])


def _show(each: dict[str, Any]) -> None:
    print(
        f"{each['name']}: {each['summary']}\n\nClock: {each['clock']}\nCanaries of what it leans on: {', '.join(each['canaries'])}\n"
    )
    for tool in each["tools"]:
        print(
            f"Tool: {tool['program']} ({', '.join(f'{manager}: {package}' for manager, package in tool['packages'].items())})"
        )
    print("\nParameters")
    width = max(len(param["name"]) for param in each["params"])
    for param in each["params"]:
        default = "required" if param["required"] else f"default {param['default']}"
        about = f"  {param['about']}" if param["about"] else ""
        print(f"  {param['name']:<{width}}  {param['allowed']}; {default}{about}")
    print("\nMetrics (headlines first)")
    for metric in each["metrics"]:
        mark = "*" if metric["headline"] else " "
        print(
            f" {mark} {metric['name']} [{metric['unit']}], {metric['better']} is better: {metric['about']}"
        )
