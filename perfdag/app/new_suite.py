"""Suites that perfdag writes: one with comments to begin with, and one of a single command."""

import re
from collections.abc import Sequence
from pathlib import Path

import orjson

from perfdag.app.errors import CommandError
from perfdag.benchmark import registry
from perfdag.hosts.local import LocalHost
from perfdag.suite.load import parse_suite
from perfdag.suite.model import LoadedSuite

HEAD = """\
# The samples of a run: every point, in `repetitions` rounds of random order.
# docs/suites.md explains every key; `perfdag benchmarks NAME` lists the params of a benchmark.
name: {name}
repetitions: 6       # samples of a point; from 6 on, the spread is a confidence interval
"""
CLUSTER = """# store: s3://bucket/prefix       # default: the store of the installation
defaults:
  hosts: {count: 2, placement: spread}   # one pod on each of two nodes
"""
ENTRIES = {
    "iperf": """\
  - benchmark: iperf       # TCP throughput between two hosts
    params: {duration: 2s}
    permutations:
      product: {streams: [1, 4]}         # each combination is a point
""",
    "fio": """\
  - benchmark: fio         # storage: a scratch folder on a disk, or params.directory
    hosts: {count: 1}
    params: {runtime: 2s, size: 64MiB}
    permutations:
      explicit:                          # each line is a point
        - {rw: randread, bs: 4KiB, iodepth: 16}
        - {rw: write, bs: 1MiB, iodepth: 4}
""",
    "command": """\
  - benchmark: command     # wall time of any command
    hosts: {count: 1}
    params: {argv: [sleep, "0.1"], expected: 0.1}
""",
}
CHECKS = """\
checks:                    # `perfdag check last` exits with 3 if one of them does not hold
  - {entry: command, metric: wall_time, op: <, value: 1s}
"""


def write_suite(file: str, cluster: bool) -> str:
    """Write a suite with comments, and return the command that runs it.

    For this machine, a benchmark whose tools are absent is a comment. Raises CommandError if the
    file exists or cannot be written.
    """
    name = _name(Path(file).stem)
    entries = [
        text if cluster or _is_installed(benchmark) else _comment(text)
        for benchmark, text in ENTRIES.items()
    ]
    text = "".join([HEAD.format(name=name), CLUSTER * cluster, "entries:\n", *entries, CHECKS])
    try:
        with Path(file).open("x") as output:
            output.write(text)
    except FileExistsError:
        raise CommandError(f"{file} exists; name another file") from None
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}; name another file") from None
    return f"perfdag {'submit' if cluster else 'run'} {file}"


def command_suite(argv: Sequence[str], settings: Sequence[str]) -> LoadedSuite:
    """Return a suite that measures one command. Raises BadDocument."""
    name = _name(Path(argv[0]).name)
    entry = {"benchmark": "command", "params": {"argv": list(argv)}}
    suite = {"name": name, "repetitions": 10, "entries": [entry]}
    return parse_suite(orjson.dumps(suite).decode(), "(command)", settings)


def _name(text: str) -> str:
    """Return a text as the name of a suite."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:40].strip("-") or "suite"


def _is_installed(benchmark: str) -> bool:
    tools = registry.get(benchmark).tools
    return all(LocalHost().which(tool.program) for tool in tools)


def _comment(text: str) -> str:
    advice = "  # not installed here: `perfdag doctor` says how to get it\n"
    return advice + "".join(f"  #{line[1:]}" for line in text.splitlines(keepends=True))
