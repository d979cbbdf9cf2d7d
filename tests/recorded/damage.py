"""Ways in which an output can be broken, and what a parser owes then: the same values, or a SampleError that says why."""

import dataclasses
import math
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from perfdag.benchmark.contract import Output
from perfdag.outcome import SampleError
from tests.recorded.record import CASES, load

Recording = str | tuple[Any, Any, Output]
"""A name of record.py's, or a benchmark with params and output."""


def _loaded(recording: Recording) -> tuple[Any, Any, Output]:
    return load(recording) if isinstance(recording, str) else recording


def names(benchmark: str, but: tuple[str, ...] = ()) -> list[str]:
    """Recordings of a benchmark."""
    return [
        name for name in CASES if name.startswith(f"{benchmark}/") and name.split("/")[1] not in but
    ]


def outputs(output: Output, change: Any) -> Iterator[Output]:
    """The output with `change` applied to each of its texts alone."""
    for role, text in output.texts.items():
        yield dataclasses.replace(output, texts={**output.texts, role: change(text)})


def assert_declared(recording: Recording) -> list[Any]:
    """Parse a recording: it has values, all finite and of declared metrics, a headline among them."""
    benchmark, params, output = _loaded(recording)
    found: list[Any] = benchmark.parse(output, params)
    assert any(benchmark.metric(each.metric).headline for each in found)
    assert all(math.isfinite(each.value) and each.value >= 0 for each in found)
    keys = [(each.metric, each.stat, str(each.coords), each.subject) for each in found]
    assert len(keys) == len(set(keys))
    assert {name for each in found for name in each.coords} <= set(benchmark.coords)
    return found


def assert_cut_is_noticed(recording: Recording, roles: tuple[str, ...]) -> None:
    """Cut anywhere: the very same values (what was cut is not read) or SampleError; cut in the middle of `roles`: SampleError."""
    benchmark, params, output = _loaded(recording)
    whole = benchmark.parse(output, params)
    for part in (0.0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.97, 0.99, 0.999):
        for cut in outputs(output, lambda text, part=part: text[: int(len(text) * part)]):
            try:
                assert benchmark.parse(cut, params) == whole
            except SampleError:
                continue
    for role in roles:
        texts = {**output.texts, role: output.texts[role][: len(output.texts[role]) // 2]}
        with pytest.raises(SampleError):
            benchmark.parse(dataclasses.replace(output, texts=texts), params)


def assert_garbled_is_noticed(recording: Recording) -> None:
    """Junk over any part of any text is a SampleError or leaves finite values: never another exception."""
    benchmark, params, output = _loaded(recording)
    chance = random.Random(recording if isinstance(recording, str) else str(params))
    for _ in range(150):
        start, length = chance.random(), chance.randrange(1, 60)
        junk = "".join(chance.choice('x}{",:]\x00\x1b\n é-') for _ in range(length))
        for broken in outputs(
            output,
            lambda text, start=start, junk=junk: (
                text[: int(len(text) * start)] + junk + text[int(len(text) * start) + len(junk) :]
            ),
        ):
            try:
                assert all(math.isfinite(each.value) for each in benchmark.parse(broken, params))
            except SampleError:
                continue


def assert_decimal_comma_is_noticed(recording: Recording) -> None:
    """A locale that writes 1,5 for 1.5 is refused rather than read as 1 or 15."""
    benchmark, params, output = _loaded(recording)
    texts = {role: re.sub(r"(?<=\d)\.(?=\d)", ",", text) for role, text in output.texts.items()}
    with pytest.raises(SampleError):
        benchmark.parse(dataclasses.replace(output, texts=texts), params)


def assert_is_sample_error(recording: Recording) -> None:
    """Parsing it says what is wrong, and raises nothing else."""
    benchmark, params, output = _loaded(recording)
    with pytest.raises(SampleError):
        benchmark.parse(output, params)
