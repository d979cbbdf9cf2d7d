"""Recordings of what the real tools print.

A recording is NAME.json beside NAME.ROLE.txt. The JSON has the parameters, the commands, the
version of the tool and the facts that the benchmark knew. The texts are as the tool wrote them, but
for the paths of the virtual environment and of temporary folders.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from perfdag.benchmark.contract import Benchmark, Gang, Output
from perfdag.hosts.local import LocalHost
from perfdag.outcome import Measurement, SampleError
from perfdag.shape import Shape, merge

TIMEOUT = 60.0


Parse = Callable[[dict[str, str], Any], list[Measurement]]
"""A benchmark's parser: the texts and the params to the values."""


class Recording(NamedTuple):
    """A benchmark, parameters of it, what its tool printed with them, and what reads that."""

    benchmark: Benchmark[Any]
    params: Any
    output: Output
    parse: Parse


def record(
    benchmark: Benchmark[Any],
    params: Mapping[str, Any],
    file: Path,
    shape: Mapping[str, Any] | None = None,
) -> None:
    """Run a benchmark on this machine and write the recording `file` (a path without suffix).

    The output of a sample that fails is recorded too.
    """
    model = benchmark.Params.model_validate(dict(params))
    shaped = Shape.model_validate(merge(benchmark.shape(model), dict(shape or {})))
    with tempfile.TemporaryDirectory() as scratch:
        hosts = [LocalHost() for _ in range(shaped.hosts.count)]
        gang = Gang(hosts, shaped, TIMEOUT, scratch)
        try:
            benchmark.require(gang, model)
            benchmark.run(gang, model)
        except SampleError as error:
            gang.output.texts |= error.texts
        output = gang.output
        paths = {scratch: "/tmp/scratch", sys.prefix: "/opt/venv"}
    texts = {role: text for role, text in output.texts.items() if text}
    sidecar = {
        "tool": output.tool,
        "commands": output.argv,
        "params": dict(params),
        "facts": output.facts,
        "texts": sorted(texts),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    for role, text in texts.items():
        file.with_name(f"{file.name}.{role}.txt").write_text(_replaced(text, paths))
    data = _replaced(json.dumps(sidecar, indent=1), paths)
    file.with_name(f"{file.name}.json").write_text(f"{data}\n")


def load(benchmark: Benchmark[Any], parse: Parse, file: Path) -> Recording:
    """Return the recording `file` (a path without suffix), which `parse` is to read."""
    sidecar = json.loads(file.with_name(f"{file.name}.json").read_text())
    texts = {
        role: file.with_name(f"{file.name}.{role}.txt").read_text() for role in sidecar["texts"]
    }
    params = benchmark.Params.model_validate(sidecar["params"])
    output = Output(texts, sidecar["commands"], sidecar["tool"], sidecar["facts"])
    return Recording(benchmark, params, output, parse)


def _replaced(text: str, paths: Mapping[str, str]) -> str:
    for old, new in paths.items():
        text = text.replace(old, new)
    return text
