"""`perfdag benchmarks`: list or describe them; `init` and `new`: write a suite, or a benchmark."""

import argparse
import os
import re
import shlex
from pathlib import Path
from typing import Any

import orjson

from perfdag.benchmark import registry
from perfdag.commands.options import (
    JSON,
    CommandError,
    logger,
    option,
    print_json,
    verb,
)
from perfdag.hosts.local import LocalHost
from perfdag.suite.document import choices
from perfdag.suite.load import SHIPPED, load_suite, suite_name
from perfdag.terminal import text_table
from perfdag.units import written


@verb(
    "benchmarks",
    "List the benchmarks installed here, or describe one: its parameters with "
    "their defaults, its metrics, and when its clock starts and stops.",
    """
    examples:
      perfdag benchmarks
      perfdag benchmarks iperf
      perfdag benchmarks --json
    """,
    option("name", nargs="?", metavar="NAME"),
    JSON,
)
def list_benchmarks(args: argparse.Namespace) -> None:
    """Print the list, or one benchmark."""
    descriptions = describe_benchmarks(args.name)
    for fault in () if args.name else registry.faults():
        logger.warning(f"perfdag benchmarks: {fault}")
    if args.json:
        print_json(descriptions)
    elif args.name:
        print(details_text(descriptions[0]))
    else:
        width = max(len(benchmark["name"]) for benchmark in descriptions)
        for item in descriptions:
            print(f"{item['name']:<{width}}  {item['summary']}")


Description = dict[str, Any]
QUANTITIES = {
    "time": "time (10s, 500ms, 5m)",
    "size": "size (4KiB, 1MB, 1GiB)",
    "bit rate": "bit rate (10Gbit/s, 500Mbit/s)",
}
"""What the schema calls a quantity with its unit, and how a suite writes it."""
BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<="}
"""Keys of JSON Schema that limit a number, and how they are printed."""

KINDS = ("const", "pattern", "type", "$ref")
"""Keys of JSON Schema that say what a value is, the first of which is printed."""


def describe_benchmarks(name: str | None = None) -> list[Description]:
    """Describe every benchmark, or the one called `name`. Raises CommandError."""
    installed = registry.names()
    if name is not None and name not in installed:
        raise CommandError(f"no benchmark {name!r}{choices(name, installed, 'there are')}")
    if name is not None and (fault := registry.fault(name)):
        raise CommandError(fault)
    return [_description(benchmark) for benchmark in ([name] if name else registry.working())]


def _description(name: str) -> Description:
    benchmark = registry.get(name)
    schema = benchmark.Params.model_json_schema()
    units = registry.units_of_settings(name)
    headlines_first = sorted(benchmark.metrics, key=lambda metric: not metric.headline)
    metrics = [
        {
            "name": metric.name,
            "unit": metric.unit,
            "better": metric.better,
            "headline": metric.headline,
            "about": metric.about,
        }
        for metric in headlines_first
    ]
    params = [
        {
            "name": key,
            "default": param.get("default"),
            "unit": units.get(key, ""),
            "required": key in schema.get("required", []),
            "allowed": _allowed(param),
            "about": param.get("description", ""),
        }
        for key, param in schema["properties"].items()
    ]
    return {
        "name": name,
        "summary": benchmark.summary(),
        "clock": benchmark.clock(),
        "canaries": list(benchmark.canaries),
        "coords": list(benchmark.coords),
        "tools": [
            {"program": tool.program, "packages": dict(tool.packages)} for tool in benchmark.tools
        ],
        "metrics": metrics,
        "params": params,
    }


def _allowed(schema: dict[str, Any]) -> str:
    """Return the values that a JSON schema allows, such as `integer >= 1` or `an absolute path`."""
    if schema.get("title") in QUANTITIES:
        return QUANTITIES[schema["title"]]
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        texts = dict.fromkeys(map(_allowed, schema["anyOf"]))
        return " or ".join(text for text in texts if text != "null")
    if "patternErrorMessage" in schema:
        return str(schema["patternErrorMessage"])
    bounds = [f"{sign} {schema[key]:g}" for key, sign in BOUNDS.items() if key in schema]
    kind = next((schema[key] for key in KINDS if key in schema), "")
    return " ".join([str(kind).removeprefix("#/$defs/"), *bounds])


def details_text(benchmark: Description) -> str:
    """Return everything about one benchmark as text."""
    tools = []
    for tool in benchmark["tools"]:
        packages = [f"{manager}: {name}" for manager, name in tool["packages"].items()]
        tools.append(f"Tool: {tool['program']} ({', '.join(packages)})")
    params = [
        (param["name"], param["allowed"], _default(param), param["about"])
        for param in benchmark["params"]
    ]
    metrics = [
        (metric["name"], metric["unit"], metric["better"], metric["about"])
        for metric in benchmark["metrics"]
    ]
    styles = ["bold" if metric["headline"] else "" for metric in benchmark["metrics"]]
    return "\n".join(
        [
            f"{benchmark['name']}: {benchmark['summary']}\n",
            f"Clock: {benchmark['clock']}",
            f"Canaries: {', '.join(benchmark['canaries'])}",
            f"Coordinates of rows: {', '.join(benchmark['coords']) or 'none'}",
            *tools,
            "",
            text_table(("parameter", "allowed", "default", ""), params),
            "",
            text_table(("metric", "unit", "better", ""), metrics, styles=styles),
        ]
    )


def _default(param: Description) -> str:
    """Return the default of a parameter as a suite writes it."""
    default = param["default"]
    if param["required"]:
        return "(required)"
    if default is None:
        return "(none)"
    if param["unit"] == "s":
        return f"{default:g}s"
    if param["unit"] and isinstance(default, int):
        return written(default, param["unit"])
    if isinstance(default, str):
        return default or "(empty)"
    return orjson.dumps(default).decode()


@verb(
    "suites",
    "List the suites that come with perfdag. A verb that takes a suite file takes such a name too.",
    """
    examples:
      perfdag suites
    """,
)
def list_suites(args: argparse.Namespace) -> None:
    """Print name and description of each shipped suite, and the folder of the files."""
    suites = [load_suite(file) for file in sorted(SHIPPED.glob("*.yaml"))]
    rows = [[loaded.suite.name, loaded.suite.description or ""] for loaded in suites]
    print(text_table(("suite", "measures"), rows))
    print(f"{SHIPPED.resolve()}/ has the files; copy one to change it")


@verb(
    "init",
    "Write a small suite with comments, as a beginning. It measures this machine "
    "with the tools that are installed, or with --cluster two nodes of a cluster.",
    """
    examples:
      perfdag init
      perfdag init net.yaml --cluster
    """,
    option("file", nargs="?", metavar="FILE", default="suite.yaml", help="new file"),
    option("--cluster", action="store_true", help="for a cluster, not this machine"),
)
def run_init(args: argparse.Namespace) -> None:
    """Write a suite with comments, and print the command that runs it.

    For this machine, a benchmark whose tools are absent is a comment. Raises CommandError if the
    file exists or cannot be written.
    """

    def usable(text: str, benchmark: str) -> str:
        tools = registry.get(benchmark).tools
        if args.cluster or all(LocalHost().which(tool.program) for tool in tools):
            return text
        advice = "  # not installed here: `perfdag doctor` says how to get it\n"
        return advice + "".join(f"  #{line[1:]}" for line in text.splitlines(keepends=True))

    templates = _templates()
    templates.filters["usable"] = usable
    text = templates.get_template("suite.yaml.j2").render(
        name=suite_name(Path(args.file).stem), cluster=args.cluster
    )
    try:
        with Path(args.file).open("x") as output:
            output.write(text)
    except FileExistsError:
        raise CommandError(f"{args.file} exists; name another file") from None
    except OSError as error:
        raise CommandError(f"{args.file}: {error.strerror}; name another file") from None
    command = f"perfdag {'submit' if args.cluster else 'run'} {args.file}"
    print(f"wrote {args.file}; run it: {command}")


NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@verb(
    "new",
    "Write a package with one benchmark: its entry point, its code, its "
    "Containerfile, a test that records the tool, and a suite. It measures dd until you "
    "change it.",
    """
    examples:
      perfdag new sysbench
      perfdag new sysbench --folder ../sysbench
    """,
    option("name", metavar="NAME", help="name of the benchmark in suites"),
    option(
        "--folder", metavar="FOLDER", help="new folder of the package (default: ./perfdag-NAME)"
    ),
)
def run_new(args: argparse.Namespace) -> None:
    """Write the files of a benchmark into a new folder, print them, and what to do next.

    Raises CommandError for a name that is no name or is taken, and for a folder that exists.
    """
    name: str = args.name
    if not NAME.fullmatch(name):
        raise CommandError(f"{name!r}: a name has a-z, 0-9 and -, and begins with a letter")
    if name in registry.names():
        raise CommandError(f"package {registry.package(name)} has a benchmark {name}; rename yours")
    root = Path(args.folder or f"perfdag-{name}")
    if os.path.lexists(root):
        raise CommandError(f"{root} exists; remove it, or name another folder with --folder")
    module = f"perfdag_{name.replace('-', '_')}"
    cls = "".join(part.capitalize() for part in name.split("-"))
    names = {"name": name, "module": module, "cls": cls}
    templates, files = _templates(), []
    try:
        for template in templates.list_templates(filter_func=lambda path: "benchmark/" in path):
            path = template.removeprefix("benchmark/").removesuffix(".j2")
            files.append(root / path.replace("package/", f"{module}/"))
            files[-1].parent.mkdir(parents=True, exist_ok=True)
            files[-1].write_text(templates.get_template(template).render(names))
    except OSError as error:
        raise CommandError(f"cannot write {error.filename or root}: {error.strerror}") from None
    print(*files, sep="\n")
    suite = shlex.quote(f"{root}/suite.yaml")
    print(f"next: pip install -e {shlex.quote(str(root))} && perfdag run {suite}")


def _templates() -> Any:  # an Environment of jinja2
    """Return the templates of the files that `init` and `new` write."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("perfdag.commands"),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
