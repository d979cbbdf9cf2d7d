"""Tests of a benchmark: record what its tool prints, and damage the recording.

`record` writes what a real run prints, and `load` reads it. A recording is NAME.json beside
NAME.ROLE.txt. The JSON has the parameters, the commands, the version of the tool and the facts that
the benchmark knew. The texts are as the tool wrote them, but for the paths of the virtual
environment and of temporary folders.

`check` holds the parser to the contract: of the output whole, cut, garbled and with a decimal comma
it gives the same values, or a SampleError that says why. The checks raise AssertionError.
"""

import json
import random
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from perfdag.benchmark.contract import Benchmark, Gang, Measurement, Output, SampleError
from perfdag.hosts.local import LocalHost
from perfdag.identity import merge
from perfdag.results.samples import as_rows
from perfdag.shape import Shape

CUTS = (0.0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.97, 0.99, 0.999)
GARBLED = 150
"""Parts of a text that remain, and how often a text is garbled."""
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


def check(recording: Recording, roles: Sequence[str] = ("stdout",)) -> None:
    """Check a recording whole and damaged. `roles` are the texts that hold the values."""
    check_declared(recording)
    check_cut(recording, roles)
    check_garbled(recording)
    check_decimal_comma(recording)


def check_declared(recording: Recording) -> list[Measurement]:
    """Check the values: possible ones of declared metrics, a headline among them."""
    benchmark, params, output, parse = recording
    values = parse(output.texts, params)
    rows = as_rows(benchmark, values, params.model_dump(mode="json", by_alias=True))
    assert any(row["headline"] for row in rows), "no value of a headline"
    keys = [(value.metric, value.stat, str(value.coords), value.subject) for value in values]
    assert len(keys) == len(set(keys)), "a value is there twice"
    assert {name for value in values for name in value.coords} <= set(benchmark.coords)
    return values


def check_cut(recording: Recording, roles: Sequence[str]) -> None:
    """Check cut texts: the very same values, or SampleError. A half of `roles`: SampleError."""
    _, params, output, parse = recording
    undamaged = parse(output.texts, params)
    for part in CUTS:
        for role, text in output.texts.items():
            values = _parsed(recording, {**output.texts, role: text[: int(len(text) * part)]})
            if values is None or values == undamaged:
                continue
            advice = "let the parser require what follows the figure, such as its unit or line end"
            raise AssertionError(
                f"the first {part:.1%}: {_difference(undamaged, values)}; {advice}"
            )
    for role in roles:
        text = output.texts[role]
        check_refused(recording, {role: text[: len(text) // 2]})


def _difference(undamaged: Sequence[Measurement], values: Sequence[Measurement]) -> str:
    """Return the first figure that differs, before and after; None is one that is not there."""
    pairs = zip_longest(undamaged, values)
    return next(f"{before} -> {after}" for before, after in pairs if before != after)


def check_garbled(recording: Recording) -> None:
    """Check junk over any part of a text: SampleError or possible values, no other exception."""
    texts = recording.output.texts
    chance = random.Random(str(recording.params))
    for _ in range(GARBLED):
        start, length = chance.random(), chance.randrange(1, 60)
        junk = "".join(chance.choice('x}{",:]\x00\x1b\n é-') for _ in range(length))
        for role, text in texts.items():
            at = int(len(text) * start)
            _parsed(recording, {**texts, role: text[:at] + junk + text[at + len(junk) :]})


def check_decimal_comma(recording: Recording) -> None:
    """Check that 1,5 of another locale is refused, and not read as 1 or 15."""
    texts = recording.output.texts
    changed = {role: re.sub(r"(?<=\d)\.(?=\d)", ",", text) for role, text in texts.items()}
    if changed != texts:  # else the tool prints whole numbers alone
        check_refused(recording, changed)


def check_refused(recording: Recording, texts: dict[str, str] | None = None) -> None:
    """Check that the output, with `texts` in place of its own, raises SampleError."""
    broken = {**recording.output.texts, **(texts or {})}
    assert _parsed(recording, broken) is None, "a broken output has values"


def _parsed(recording: Recording, texts: dict[str, str]) -> list[Measurement] | None:
    benchmark, params, _, parse = recording
    try:
        values = parse(texts, params)
        as_rows(benchmark, values, params.model_dump(mode="json", by_alias=True))
    except SampleError:
        return None
    return values
