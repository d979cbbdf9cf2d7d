"""`perfdag init` and `new`: write a suite, or the files of a new benchmark."""

import argparse
import keyword
import os
import re
from pathlib import Path

from perfdag.benchmark import registry
from perfdag.commands.options import CommandError, Verbs, add_verb, option
from perfdag.hosts.local import LocalHost
from perfdag.signals import EXIT_OK
from perfdag.suite.load import suite_name

INIT_EPILOG = """examples:
  perfdag init
  perfdag init net.yaml --cluster
"""


def add_init(sub: Verbs) -> None:
    """Register the verb."""
    add_verb(
        sub,
        "init",
        run_init,
        "Write a small suite with comments, as a beginning. It measures this machine "
        "with the tools that are installed, or with --cluster two nodes of a cluster.",
        INIT_EPILOG,
        option("file", nargs="?", metavar="FILE", default="suite.yaml", help="new file"),
        option("--cluster", action="store_true", help="for a cluster, not this machine"),
    )


def run_init(args: argparse.Namespace) -> int:
    """Write the suite and print the command that runs it."""
    print(f"wrote {args.file}; run it: {write_suite(args.file, args.cluster)}")
    return EXIT_OK


NEW_EPILOG = """examples:
  perfdag new sysbench
  perfdag new sysbench --folder ../sysbench
"""


def add_new(sub: Verbs) -> None:
    """Register the verb."""
    add_verb(
        sub,
        "new",
        run_new,
        "Write a package with one benchmark: its entry point, its code, its "
        "Containerfile, a test that records the tool, and a suite. It measures dd until you "
        "change it.",
        NEW_EPILOG,
        option("name", metavar="NAME", help="name of the benchmark in suites"),
        option(
            "--folder", metavar="FOLDER", help="new folder of the package (default: ./perfdag-NAME)"
        ),
    )


def run_new(args: argparse.Namespace) -> int:
    """Write the files and print what to do next."""
    files = write_benchmark(args.name, args.folder)
    for file in files:
        print(file)
    root = files[0].parent
    print(f"next: pip install -e {root} && perfdag run {root}/suite.yaml")
    return EXIT_OK


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
    name = suite_name(Path(file).stem)
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


def _is_installed(benchmark: str) -> bool:
    tools = registry.get(benchmark).tools
    return all(LocalHost().which(tool.program) for tool in tools)


def _comment(text: str) -> str:
    advice = "  # not installed here: `perfdag doctor` says how to get it\n"
    return advice + "".join(f"  #{line[1:]}" for line in text.splitlines(keepends=True))


NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "perfdag-{name}"
version = "0.1.0"
description = "The benchmark {name} for perfdag"
requires-python = ">=3.11"
dependencies = ["perfdag"]

[project.entry-points."perfdag.benchmarks"]
{name} = "{module}:{cls}"

[tool.hatch.build.targets.wheel]
packages = ["{module}"]

[tool.pytest.ini_options]
testpaths = ["tests"]
"""
_BENCHMARK = '''\
import re

from pydantic import Field

from perfdag.benchmark.contract import Benchmark, Gang, Metric, Output, Params, Tool
from perfdag.outcome import Failed, Measurement
from perfdag.units import Size

_COPIED = re.compile(r"^(\\d+) bytes .*copied, (\\d+\\.?\\d*(?:e-?\\d+)?) s,", re.M)


class {cls}Params(Params):
    block: Size = Field(65536, ge=1, description="bytes of a block")
    count: int = Field(20000, ge=1, description="blocks to copy")


class {cls}(Benchmark[{cls}Params]):
    """Throughput of dd from /dev/zero to /dev/null. Replace dd by your tool.

    Clock: starts and stops in dd, around the copy.
    """

    name, image, Params = "{name}", "{name}", {cls}Params
    metrics = (Metric("throughput", "B/s", "higher", "bytes copied a second", headline=True),)
    tools = (Tool("dd", {{"apt": "coreutils"}}),)

    def seconds(self, params: {cls}Params) -> float:
        return 1.0

    def run(self, gang: Gang, params: {cls}Params) -> list[Measurement]:
        size = [f"bs={{params.block}}", f"count={{params.count}}"]
        argv = ["dd", "if=/dev/zero", "of=/dev/null", *size]
        finished = gang.hosts[0].run(argv, timeout=gang.timeout)
        gang.output = Output(finished.texts(), [argv], "dd")
        if finished.timed_out or finished.code != 0:
            raise Failed(f"dd exited {{finished.code}}: {{finished.tail()}}")
        return parse(gang.output.texts, params)


def parse(texts: dict[str, str], params: {cls}Params) -> list[Measurement]:
    copied = _COPIED.search(texts.get("stderr", ""))
    if copied is None or int(copied[1]) != params.block * params.count:
        raise Failed("dd printed no time for all blocks")
    return [Measurement("throughput", int(copied[1]) / float(copied[2]))]
'''
_CONTAINERFILE = """\
# {name} on perfdag's base image.
ARG BASE=localhost/perfdag-base:1
FROM ${{BASE}}
USER 0
RUN apt-get update && apt-get install -y --no-install-recommends coreutils \\
 && rm -rf /var/lib/apt/lists/*
USER 1000
"""
_TEST = '''\
"""{name}: its parser on what the real tool printed."""

from pathlib import Path

from perfdag import testing
from {module} import {cls}, parse

RECORDING = Path(__file__).parent / "recorded" / "default"


def test_the_parser_notices_damage() -> None:
    benchmark = {cls}()
    if not RECORDING.with_name("default.json").exists():  # record once, and keep the files
        testing.record(benchmark, {{}}, RECORDING)
    testing.check(testing.load(benchmark, parse, RECORDING), roles=["stderr"])
'''
_SUITE = """\
name: {name}
repetitions: 3
entries:
  - benchmark: {name}
    permutations: {{product: {{block: [4KiB, 64KiB, 1MiB]}}}}
"""


def write_benchmark(name: str, folder: str | None) -> list[Path]:
    """Write the files of a benchmark called `name` into a new folder, and return them.

    The default folder is ./perfdag-NAME. Raises CommandError for a name that is no name or is
    taken, and for a folder that exists.
    """
    if not NAME.fullmatch(name) or keyword.iskeyword(name):
        raise CommandError(f"{name!r}: a name has a-z, 0-9 and -, and begins with a letter")
    if name in registry.names():
        raise CommandError(f"package {registry.package(name)} has a benchmark {name}; rename yours")
    root = Path(folder or f"perfdag-{name}")
    if os.path.lexists(root):
        raise CommandError(f"{root} exists; remove it, or name another folder with --folder")
    module = f"perfdag_{name.replace('-', '_')}"
    cls = "".join(part.capitalize() for part in name.split("-"))
    files = {
        "pyproject.toml": _PROJECT,
        f"{module}/__init__.py": _BENCHMARK,
        f"{module}/Containerfile": _CONTAINERFILE,
        "tests/test_recording.py": _TEST,
        "suite.yaml": _SUITE,
    }
    try:
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text.format(name=name, module=module, cls=cls))
    except OSError as error:
        raise CommandError(f"cannot write {error.filename or root}: {error.strerror}") from None
    return [root / path for path in files]
