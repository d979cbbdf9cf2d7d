"""Load a suite file with its `--set` settings.

    loaded = load_suite("suite.yaml", ["iperf.duration=5s"])
    enumerate_points(loaded).points

Mistakes are reported in two passes: first all of the files' keys and values by themselves, then all
of the points that they give (`perfdag.suite.points`).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import orjson
from pydantic import ValidationError

from perfdag.benchmark import registry
from perfdag.identity import merge
from perfdag.suite.document import (
    BadDocument,
    Document,
    Problem,
    choices,
    dump,
    explain,
    nearest,
    parse_document,
    read_yaml,
)
from perfdag.suite.model import ENTRY_KEYS, Entry, LoadedSuite, Source, Suite

SUITE_KEYS = sorted(set(Suite.model_fields) - {"entries", "defaults"})
"""The keys of a suite that `--set` may give."""
SHIPPED = Path(__file__).parents[1] / "suites"
"""The folder of the suites that come with perfdag."""


def load_suite(file: Path | str, settings: Iterable[str] = ()) -> LoadedSuite:
    """Return a suite file with settings such as `entry.param=value`. Raises BadDocument.

    The name of a shipped suite stands for its file, unless a file has that name.
    """
    shipped = SHIPPED / f"{file}.yaml"
    if not Path(file).exists() and shipped.is_file():
        file = shipped
    return parse_suite(read_yaml(file), str(file), settings)


def parse_suite(text: str, file: str = "suite.yaml", settings: Iterable[str] = ()) -> LoadedSuite:
    """Return a suite from a text with `--set` settings. Raises BadDocument."""
    document = parse_document(text, file)
    problems: list[Problem] = []
    of_entries = []
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name:
            text = "write it as entry.param=value, for example iperf.duration=5s"
            problems.append(Problem("no-value", text, setting, "--set"))
        elif "." in name:
            of_entries.append((name, text))
        elif name not in SUITE_KEYS:
            text = (
                f"no such key of a suite: {name}{nearest(name, SUITE_KEYS)}; "
                "for a parameter write entry.param=value"
            )
            problems.append(Problem("unknown-key", text, setting, "--set"))
        elif isinstance(document.data, dict):
            document.data[name] = _value(text)
            document.set_keys.add(name)
    loaded = _load(document, problems)
    by_name: dict[str, Source] = {}
    for source in loaded.sources:
        first = by_name.setdefault(source.name, source)
        if first is not source:
            text = (
                f"the entry name {source.name!r} is taken (line {document.line(first.path)}); "
                "give one of them another `name`"
            )
            problems.append(source.problem(("name",), "name-taken", text))
    for name, text in of_entries:
        _set(loaded, name, text, problems)
    if problems:
        raise BadDocument(problems)
    return loaded


def suite_name(text: str) -> str:
    """Return a text as the name of a suite."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:40].strip("-") or "suite"


def command_suite(argv: Sequence[str], settings: Iterable[str], name: str = "") -> LoadedSuite:
    """Return a suite that measures one command, named as its program. Raises BadDocument."""
    entry = {"benchmark": "command", "params": {"argv": list(argv)}}
    name = suite_name(name or Path(argv[0]).name)
    suite = {"name": name, "repetitions": 10, "entries": [entry]}
    # JSON is YAML: the run stores this text as its suite, as that of a file.
    return parse_suite(orjson.dumps(suite).decode(), "(command)", settings)


def load_model(suite: Suite | Entry | str | Path) -> LoadedSuite:
    """Return a suite file, a suite, or one entry as a suite of that name. Raises BadDocument."""
    if isinstance(suite, str | Path):
        return load_suite(suite)
    if isinstance(suite, Entry):
        name = (suite.name or suite.benchmark).lower().replace("_", "-")
        suite = Suite(name=name, entries=[suite])
    return parse_suite(model_text(suite), f"Suite({suite.name!r})")


def _value(text: str) -> Any:
    """Return the value of a setting: YAML, or the text itself."""
    try:
        return parse_document(text, "--set").data
    except BadDocument:
        return text


def _load(document: Document, problems: list[Problem]) -> LoadedSuite:
    """Return a suite without settings of its entries.

    Raises BadDocument with its mistakes and the `problems` that are known.
    """
    data = document.data
    if not isinstance(data, dict):
        text = "a suite is a mapping with `name` and `entries`"
        raise BadDocument([*problems, document.problem((), "no-mapping", text)])
    entries = data.get("entries")
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        name = entry.get("benchmark") if isinstance(entry, dict) else None
        # what is no text is wrong by its type
        fault = registry.fault(name) if isinstance(name, str) else None
        if fault:
            installed = registry.names()
            if name not in installed:
                fault = f"unknown benchmark {name!r}{choices(name, installed, 'there are')}"
            problems.append(
                document.problem(("entries", index, "benchmark"), "unknown-benchmark", fault)
            )
    try:
        loaded = LoadedSuite(Suite.model_validate(data), document)
    except ValidationError as invalid:
        problems += [explain(document, (), error, Suite) for error in invalid.errors()]
    if problems:
        raise BadDocument(problems)
    for index, raw in enumerate(data["entries"]):
        entry = _with_defaults(raw, data.get("defaults") or {})
        source = Source(Entry.model_validate(entry), entry, document, ("entries", index))
        loaded.sources.append(source)
    return loaded


def _with_defaults(raw: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return an entry with those defaults that its benchmark has.

    A value of `params` replaces the default as a whole, and no other null does.
    """
    fields = registry.get(raw["benchmark"]).Params.model_fields
    params = {k: value for k, value in (defaults.get("params") or {}).items() if k in fields}
    keys = {key: value for key, value in raw.items() if value is not None or key not in ENTRY_KEYS}
    return {**merge(defaults, keys), "params": {**params, **(raw.get("params") or {})}}


def _set(loaded: LoadedSuite, setting: str, text: str, problems: list[Problem]) -> None:
    """Apply a `--set` setting to the entry that it names."""
    target, _, name = setting.partition(".")
    value = _value(text)
    source = next((source for source in loaded.sources if source.name == target), None)
    if source is None:
        names = [source.name for source in loaded.sources]
        text = f"no entry {target!r}{choices(target, names, 'there are')}"
        problems.append(Problem("unknown-entry", text, setting, "--set"))
    elif name in ENTRY_KEYS - set(registry.get(source.entry.benchmark).Params.model_fields):
        raw = {**source.raw, name: value}
        source.set_keys.add(name)
        try:
            source.entry = Entry.model_validate(raw)
            source.raw = raw
        except ValidationError as error:
            for detail in error.errors():
                problem = explain(source.document, (), detail, Entry)
                problems.append(replace(problem, path=setting, file="--set", line=0))
    elif isinstance(value, str) or not _is_variable(source.entry.benchmark, name):
        source.sets[name] = value
    else:
        source.sets[name] = text


def _is_variable(benchmark: str, name: str) -> bool:
    """Return whether a name such as `env.SIZE` is a key of a parameter whose values are texts."""
    parameter, _, key = name.partition(".")
    field = registry.get(benchmark).Params.model_fields.get(parameter)
    return bool(key and field and get_args(field.annotation)[1:] == (str,))


def model_text(suite: Suite) -> str:
    """Return the YAML of a suite that Python code built, with the keys that it set."""
    return dump([suite.model_dump(mode="json", by_alias=True, exclude_unset=True)])
