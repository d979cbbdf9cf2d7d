"""Write the generated pages of docs/reference: keys of a suite, command line, benchmarks."""

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import yaml

from perfdag.analysis.alerts import markdown_table
from perfdag.benchmark import registry
from perfdag.commands.benchmarks import describe_benchmarks
from perfdag.commands.main import EPILOG, GROUPS, VERBS, parser

ROOT = Path(__file__).parent.parent
HEAD = """# Keys of a suite

[Write a suite](../suites.md) shows how the keys work together. The keys of `params` are those that
`perfdag benchmarks NAME` prints.

- A **time** is a number of seconds, or a text such as `500ms`, `30s`, `10m` or `2h`.
- A **size** is a number of bytes, or a text such as `4KiB` (4096 bytes) or `4kB` (4000 bytes).
- A **quantity** is written as in Kubernetes: `500m` CPUs, `8Gi` of memory.

`make generated` writes this page.
"""
BENCHMARKS_HEAD = """# Benchmarks

`perfdag benchmarks iperf` prints the parameters and metrics of one, and its clock: what starts and
what stops the time of a measurement. On the site, each name links to a page with all of that, a
chart and a suite. Another package can [add a benchmark](../adding-a-benchmark.md).

`make generated` writes this page.

"""
COMMAND_LINE_HEAD = """# Command line

`perfdag VERB --help` prints the same for one VERB, with its usage. What several commands take is
explained once, in [Common options](#common-options) or at the first of them.

`make generated` writes this page.
"""
EXAMPLES: dict[str, dict[str, str]] = yaml.load(
    r"""
Suite:
  batch_time: 10m
  budget: 1h
  checks: '[{metric: throughput, op: ">=", value: 9Gbit/s}]'
  defaults: '{hosts: {count: 2}}'
  description: the network of pool a
  entries: '[{benchmark: iperf}]'
  isolation: pod
  name: network
  pending_limit: 15m
  priority: 10
  repetitions: 5
  retries: 2
  rounds_per_batch: 1
  seed: 7
  store: s3://bench/results
  timeout: 5m
  warmup: 1
Settings:
  avoid_nodes: '[node-role.kubernetes.io/control-plane]'
  hosts: '{count: 2}'
  hugepages: '{hugepages-2Mi: 512Mi}'
  image: registry.example/bench/tools:1
  network: '{host: true}'
  node_selector: '{pool: gpu}'
  optional: true
  params: '{duration: 10s}'
  privileges: '[mtu]'
  repetitions: 10
  resources: '{cpu: 4, memory: 8Gi}'
  retries: 0
  runtime_class: kata
  scheduler: volcano
  secret: tool-licence
  shm: 8GiB
  timeout: 10m
  tolerations: '[{key: nvidia.com/gpu, operator: Exists}]'
  until: '{relative_spread: 0.02, max_repetitions: 15}'
  volume: '{storage_class: fast, size: 5GiB}'
  zones: '[eu-1a, eu-1b]'
Entry:
  benchmark: iperf
  name: tcp
  permutations: '{product: {streams: [1, 4]}}'
Permutations:
  exclude: '[{streams: {gt: 4}, network.host: true}]'
  explicit: '[{streams: 64}]'
  product: '{streams: [1, 4]}'
Until:
  max_repetitions: 15
  relative_spread: 0.02
Check:
  absolute: true
  baseline: v1.0
  cluster: gpu-*
  entry: tcp
  metric: throughput
  min_effect: 10%
  op: '">="'
  page: false
  percentile: 95
  ratio: 0.9
  slow_node: 10%
  stat: p99
  value: 9Gbit/s
  where: '{streams: 8}'
Hosts:
  count: 2
  cpus: '{client: "0", server: 2-3}'
  exclusive: true
  pairs: all
  parallel_pairs: 4
  placement: packed
  roles: '{client: {node_selector: {pool: edge}}}'
Network:
  also: '[bench/rail-1]'
  default: true
  family: ipv6
  host: true
  interface: net2
  mtu: 9000
  name: bench/rail-0
  path: service
Volume:
  access: ReadWriteMany
  claim: data
  claim_template: '{storageClassName: fast}'
  kind: emptyDir
  medium: Memory
  mode: Block
  path: /mnt/disk
  size: 5GiB
  storage_class: fast
Resources:
  limits: '{memory: 8Gi}'
  requests: '{cpu: 4}'
Cpus:
  client: '"0"'
  server: 2-3
Roles:
  client: '{node_selector: {pool: edge}}'
  server: '{node_selector: {pool: storage}}'
Role:
  node_selector: '{pool: edge}'
""",
    yaml.BaseLoader,
)
"""Each key as it is written in a suite. Parts that are absent here are Kubernetes' own."""


def suite_page(schema: dict[str, Any]) -> str:
    """Return a table of the keys of each part. Raises KeyError if a key has no example."""
    models = {"Suite": schema, **schema["$defs"]}
    lines = [HEAD]
    for part, examples in EXAMPLES.items():
        keys = models[part]["properties"]
        about = models[part]["description"].partition("\n")[0]
        if part == "Entry":
            keys = {k: v for k, v in keys.items() if k not in EXAMPLES["Settings"]}
            about += " Every key of [Settings](#settings) may stand here too."
        lines += [f"## {part}", "", about, ""]
        lines += ["| key | type | default | example | what |", "|---|---|---|---|---|"]
        for key, value in keys.items():
            default = "required" if key in models[part].get("required", ()) else _default(value)
            what = value.get("description", "").replace("|", "\\|")
            kind = _type(value)
            lines.append(f"| `{key}` | {kind} | {default} | `{examples[key]}` | {what} |")
        lines.append("")
    return "\n".join(lines)


def _default(value: dict[str, Any]) -> str:
    default = value.get("default")
    if default in (None, "", [], {}) or "$ref" in value:
        return ""
    whole = isinstance(default, float) and default % 1 == 0
    text = default if isinstance(default, str) else json.dumps(int(default) if whole else default)
    return f"`{text}`"


def _type(value: dict[str, Any]) -> str:
    """Return the type of a key in words. A part of a suite becomes a link to its table."""
    if value.get("title") in ("time", "size"):
        return str(value["title"])
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})" if name in EXAMPLES else f"{name} of Kubernetes"
    if "enum" in value:
        return ", ".join(f"`{each}`" for each in value["enum"] if each)
    if "anyOf" in value:
        kinds = dict.fromkeys(_type(each) for each in value["anyOf"] if each.get("type") != "null")
        return " or ".join(kinds)
    if value.get("type") == "array" and "items" in value:
        return f"list of {_type(value['items'])}"
    names = {"string": "text", "integer": "whole number", "object": "mapping"}
    kind: str = value["type"]
    return names.get(kind, kind)


def command_line_page() -> str:
    """Return what each command does and takes, with what several of them take explained once."""
    verbs: Any = next(each for each in parser(*VERBS)._actions if each.dest == "verb")
    commands = list(_commands(verbs))
    uses = Counter(line for command in commands for line in _arguments(command))
    common = [line for line, number in uses.items() if number > 2 and ": " in line]
    lines = [COMMAND_LINE_HEAD]
    for group, names in GROUPS.items():
        lines += [f"**{group.capitalize()}**: {_links(f'perfdag {name}' for name in names)}", ""]
    codes = dedent(EPILOG.partition("exit codes:\n")[2])
    lines += ["## Exit codes", "", "```text", codes + "```", "", "## Common options", "", *common]
    places = dict.fromkeys(common, "Common options")
    for command in commands:
        lines += ["", *_section(command, places)]
    return "\n".join(lines) + "\n"


def _commands(below: Any) -> Iterator[argparse.ArgumentParser]:
    """Yield the parser of each verb, and of each command of a verb."""
    for command in below.choices.values():
        yield command
        for action in command._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield from _commands(action)


def _arguments(command: Any) -> list[str]:
    """Return a line for each argument and option: how it is written, and what it means."""
    lines = []
    for action in command._actions:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        shape = command._get_formatter()
        names = action.option_strings
        value = shape._format_args(action, action.dest.upper() if names else action.dest)
        value = action.metavar if action.nargs == argparse.REMAINDER else value
        written = ", ".join(f"`{name} {value}".rstrip() + "`" for name in names) or f"`{value}`"
        lines.append(f"- {written}" + (f": {shape._expand_help(action)}" if action.help else ""))
    return lines


def _section(command: Any, places: dict[str, str]) -> list[str]:
    """Return the section of a command. `places` has the heading that explains a line already."""
    level = "###" if command.prog.count(" ") > 1 else "##"
    lines = [f"{level} {command.prog}", "", " ".join(command.description.split()), ""]
    new, seen = [], dict[str, list[str]]()
    for line in _arguments(command):
        if line in places and ": " in line:
            seen.setdefault(places[line], []).append(f"`{line[3:].partition('`')[0].split()[0]}`")
        else:
            new.append(line)
            places[line] = command.prog
    lines += [*new, *[""] * bool(new)]
    for place, written in seen.items():
        lines += [f"As in {_links([place])}: {', '.join(written)}", ""]
    if command.epilog:
        lines += ["```text", command.epilog.rstrip(), "```", ""]
    return lines[:-1]


def _links(headings: Iterable[str]) -> str:
    """Return links to sections of the page."""
    return ", ".join(
        f"[{name.removeprefix('perfdag ')}](#{name.lower().replace(' ', '-')})" for name in headings
    )


def benchmarks_page() -> str:
    """Return a table of perfdag's own benchmarks, and what each measures."""
    rows = []
    own = [
        each for each in registry.names() if registry.get(each).__module__.startswith("perfdag.")
    ]
    for item in (describe_benchmarks(name)[0] for name in own):
        headlines = [f"{m['name']} [{m['unit']}]" for m in item["metrics"] if m["headline"]]
        what = item["summary"].rstrip(".")
        rows.append((f"`{item['name']}`", what, ", ".join(headlines)))
    table = markdown_table(("benchmark", "what", "headline metrics"), rows)
    return BENCHMARKS_HEAD + "\n".join(table) + "\n"


PAGES = {
    "suite": lambda: suite_page(json.loads((ROOT / "suites/suite.schema.json").read_text())),
    "cli": command_line_page,
    "benchmarks": benchmarks_page,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (ROOT / f"docs/reference/{name}.md").write_text(page())
