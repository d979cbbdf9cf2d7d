"""Write the files of a new benchmark: a package with one entry point, its image and its test."""

import keyword
import os
import re
from pathlib import Path

from perfdag.app.errors import CommandError
from perfdag.benchmark import registry

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
