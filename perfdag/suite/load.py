"""Load a suite file with its includes and `--set` settings, and check everything in it."""

import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from perfdag.benchmark import registry
from perfdag.benchmark.contract import Metric
from perfdag.removed import removal_note
from perfdag.shape import (
    merge,
)
from perfdag.suite.document import (
    BadDocument,
    Document,
    Problem,
    Where,
    choices,
    explain,
    nearest,
    parse_document,
    read_document,
    validate_partially,
)
from perfdag.suite.enumerate import point_problems
from perfdag.suite.model import ENTRY_KEYS, Check, Entry, LoadedSuite, Settings, Source, Suite

EntrySettings = list[tuple[str, str, Any]]
"""(entry, parameter or key, value) of each setting of an entry."""


def split_settings(
    document: Document, data: dict[str, Any], settings: Iterable[str], problems: list[Problem]
) -> EntrySettings:
    """Return (entry, name, value) of the settings of entries.

    Those of the suite replace keys of `data`.
    """
    entry_settings: EntrySettings = []
    for setting in settings:
        left, equals, right = setting.partition("=")
        if not equals or not left:
            problems.append(
                Problem(
                    "--set",
                    0,
                    setting,
                    "write it as entry.param=value, for example iperf.duration=5s",
                )
            )
            continue
        try:
            value = parse_document(right, "--set").data
        except BadDocument:
            value = right
        target, dot, name = left.partition(".")
        if dot:
            entry_settings.append((target, name, value))
        elif target in Suite.model_fields and target not in {"entries", "include", "defaults"}:
            data[target] = value
            document.set_keys.add(target)
        else:
            known = sorted(set(Suite.model_fields) - {"entries", "include", "defaults"})
            problems.append(
                Problem(
                    "--set",
                    0,
                    setting,
                    f"no such key of a suite: {target}{nearest(target, known)}; "
                    "for a parameter write entry.param=value",
                )
            )
    return entry_settings


def apply_settings(loaded: LoadedSuite, settings: EntrySettings, problems: list[Problem]) -> None:
    """Apply `--set` settings to the entries that they name."""
    names = [source.name for source in loaded.sources]
    for target, name, value in settings:
        targets = [source for source in loaded.sources if source.name == target]
        if not targets and not loaded.incomplete:
            problems.append(
                Problem(
                    "--set",
                    0,
                    f"{target}.{name}",
                    f"no entry {target!r}{choices(target, names, 'there are')}",
                )
            )
        for source in targets:
            if name in ENTRY_KEYS and not _is_param(source, name):
                _set_key(source, name, value, problems)
            else:
                source.sets[name] = value


def _is_param(source: Source, name: str) -> bool:
    return (
        registry.usable(source.entry.benchmark)
        and name in registry.get(source.entry.benchmark).Params.model_fields
    )


def _set_key(source: Source, name: str, value: Any, problems: list[Problem]) -> None:
    """Replace a key that every entry has beside its params and shape keys."""
    raw = {**source.raw, name: value}
    try:
        source.entry, source.raw = Entry.model_validate(raw), raw
        source.set_keys.add((name,))
    except ValidationError as error:
        problems += [
            Problem(
                "--set",
                0,
                f"{source.name}.{name}",
                explain(source.document, (), detail, Entry).text,
            )
            for detail in error.errors()
        ]


def unmatched_check(
    check: Check, entries: Mapping[str, Sequence[Metric]]
) -> tuple[str, str] | None:
    """Return (field, error) of a check that no metric can match, or None.

    `entries` maps the name of an entry to its metrics.
    """
    named = [entry for entry in entries if fnmatch.fnmatchcase(entry, check.entry or "*")]
    if not named:
        names = choices(check.entry, entries, "there are")
        return "entry", f"no entry matches {check.entry!r}{names}"
    targets = [
        (entry, metric)
        for entry in named
        for metric in entries[entry]
        if fnmatch.fnmatchcase(metric.name, check.metric)
    ]
    if not targets:
        of = f"entry {check.entry}" if check.entry else "the entries"
        known = list(dict.fromkeys(metric.name for entry in named for metric in entries[entry]))
        names = choices(check.metric, known, "there are")
        return "metric", f"no metric of {of} matches {check.metric!r}{names}"
    unit = check.value.unit if check.value is not None else ""
    for entry, metric in targets:
        if unit and metric.unit != unit:
            return "value", (
                f"is in {unit}, and {metric.name} of {entry} is in {metric.unit}; "
                f"write it in {metric.unit} or as a bare number"
            )
    return None


def load_suite(file: Path | str, settings: Iterable[str] = ()) -> LoadedSuite:
    """Return a suite file with its includes and its `--set` settings, such as `entry.param=value`.

    Raises BadDocument.
    """
    return _load_or_raise(
        read_document(file), settings, Path(file).parent, (str(Path(file).resolve()),)
    )


def parse_suite(text: str, file: str = "suite.yaml", settings: Iterable[str] = ()) -> LoadedSuite:
    """Read a suite from a text. Includes are relative to the folder of `file`.

    Raises BadDocument.
    """
    return _load_or_raise(parse_document(text, file), settings, Path(file).parent, (file,))


def _load_or_raise(
    document: Document, settings: Iterable[str], folder: Path, chain: tuple[str, ...]
) -> LoadedSuite:
    problems: list[Problem] = []
    loaded = _load(document, settings, folder, chain, problems)
    if problems:
        raise BadDocument([*problems, *(point_problems(loaded) if loaded else ())])
    assert loaded is not None
    return loaded


def _load(
    document: Document,
    settings: Iterable[str],
    folder: Path,
    chain: tuple[str, ...],
    problems: list[Problem],
) -> LoadedSuite | None:
    """Return what can be read of a suite file, or None if it is no suite.

    Add its mistakes to `problems`.
    """
    if not isinstance(document.data, dict):
        problems.append(document.problem((), "a suite is a mapping with `name` and `entries`"))
        return None
    entry_settings = split_settings(document, document.data, settings, problems)
    loaded, checks = _read(document, document.data, problems)
    names = (
        [loaded.suite.include] if isinstance(loaded.suite.include, str) else loaded.suite.include
    )
    included = [
        source for name in names for source in _include(loaded, name, folder, chain, problems)
    ]
    loaded.sources = [*included, *loaded.sources]
    _check_names(loaded, problems)
    apply_settings(loaded, entry_settings, problems)
    _check_checks(loaded, checks, problems)
    if not loaded.sources and not problems:
        problems.append(
            document.problem(
                ("entries",), "no entries: a suite needs at least one, or an `include`"
            )
        )
    return loaded


def _read(
    document: Document, data: dict[str, Any], problems: list[Problem]
) -> tuple[LoadedSuite, list[tuple[int, Check]]]:
    """Return the suite and its indexed checks without what is wrong."""
    parts = {
        key: data[key]
        for key, kind in (("entries", list), ("checks", list), ("defaults", dict))
        if isinstance(data.get(key), kind)
    }
    outer = {**data, **{key: type(value)() for key, value in parts.items()}}
    suite, refused = validate_partially(document, (), outer, Suite, problems, {"name": "unnamed"})
    raw_defaults = parts.get("defaults", {})
    defaults, refused_defaults = validate_partially(
        document, ("defaults",), raw_defaults, Settings, problems
    )
    refused_defaults |= refused & {"defaults"}
    loaded = LoadedSuite(suite or Suite(name="unnamed"), document, incomplete="entries" in refused)
    for index, raw in enumerate(parts.get("entries", [])):
        path: Where = ("entries", index)
        entry, refused_keys = validate_partially(document, path, raw, Entry, problems)
        if entry is None:
            loaded.incomplete = True
            continue
        name = entry.name or entry.benchmark
        wrong_keys = refused_keys | refused_defaults
        loaded.sources.append(
            Source(
                entry,
                raw,
                defaults or Settings(),
                raw_defaults,
                document,
                path,
                name,
                refused=wrong_keys,
            )
        )
    checks = []
    for index, raw in enumerate(parts.get("checks", [])):
        check, _ = validate_partially(document, ("checks", index), raw, Check, problems)
        if check is not None:
            checks.append((index, check))
    update = {
        "defaults": defaults or Settings(),
        "entries": [source.entry for source in loaded.sources],
        "checks": [check for _, check in checks],
    }
    loaded.suite = loaded.suite.model_copy(update=update)
    return loaded, checks


def _include(
    loaded: LoadedSuite, name: str, folder: Path, chain: tuple[str, ...], problems: list[Problem]
) -> list[Source]:
    """Return the entries of another suite file."""
    target = folder / name
    if not target.exists():
        known = (
            sorted(path.name for path in target.parent.glob("*.yaml"))
            if target.parent.is_dir()
            else []
        )
        problems.append(
            loaded.document.problem(
                ("include",), f"no such file: {target}{nearest(target.name, known)}"
            )
        )
    elif str(target.resolve()) in chain:
        problems.append(loaded.document.problem(("include",), f"{name} includes itself"))
    else:
        try:
            inner = _load(
                read_document(target), (), target.parent, (*chain, str(target.resolve())), problems
            )
        except BadDocument as error:
            inner = None
            problems += error.problems
        if inner is not None:
            if inner.suite.checks:
                text = (
                    "the checks of an included file are not looked at; "
                    f"move them to {loaded.document.file}"
                )
                problems.append(inner.document.problem(("checks",), text))
            loaded.incomplete |= inner.incomplete
            loaded.notes += [*_unused_keys(inner, loaded), *inner.notes]
            return inner.sources
    loaded.incomplete = True
    return []


def _unused_keys(inner: LoadedSuite, outer: LoadedSuite) -> Iterator[str]:
    """Yield a sentence about keys of an included file that the including file overrules."""
    keys = [
        key for key in ("repetitions", "timeout", "retries") if key in inner.suite.model_fields_set
    ]
    unused = [key for key in keys if getattr(inner.suite, key) != getattr(outer.suite, key)]
    if unused:
        yield (
            f"{inner.document.file}: {', '.join(unused)} of an included file "
            "are not used, but those under its `defaults` are"
        )


def _check_names(loaded: LoadedSuite, problems: list[Problem]) -> None:
    seen: dict[str, Source] = {}
    for source in loaded.sources:
        known = registry.names()
        if source.entry.benchmark not in known:
            text = removal_note(source.entry.benchmark) or (
                f"unknown benchmark {source.entry.benchmark!r}"
                f"{choices(source.entry.benchmark, known, 'there are')}"
            )
            problems.append(source.document.problem((*source.path, "benchmark"), text))
        elif fault := registry.fault(source.entry.benchmark):
            problems.append(source.document.problem((*source.path, "benchmark"), fault))
        if "name" in source.refused:
            continue
        if source.name in seen:
            other = seen[source.name]
            text = (
                f"the entry name {source.name!r} is taken "
                f"(line {other.document.line(other.path)}); give one of them another `name`"
            )
            problems.append(source.document.problem((*source.path, "name"), text))
        seen[source.name] = source


def _params(source: Source) -> dict[str, Any]:
    return {**source.defaults.params, **source.entry.params, **source.sets}


def _check_checks(
    loaded: LoadedSuite, checks: list[tuple[int, Check]], problems: list[Problem]
) -> None:
    """Report checks without effect: of no entry, of no metric, or in another unit.

    If entries are unknown, only the unit is certain.
    """
    entries = {
        source.name: [
            *registry.get(source.entry.benchmark).declared_metrics(_params(source)).values()
        ]
        for source in loaded.known_sources()
    }
    complete = not loaded.incomplete and len(entries) == len(
        {source.name for source in loaded.sources}
    )
    for index, check in checks if entries else ():
        if unmatched := unmatched_check(check, entries):
            key, text = unmatched
            if complete or key == "value":
                problems.append(loaded.document.problem(("checks", index, key), text))


def suite_text(loaded: LoadedSuite) -> str:
    """Return the suite as one text: as written, or with the entries of its includes in place."""
    if not loaded.suite.include:
        return loaded.document.text
    suite = {
        key: value
        for key, value in loaded.document.data.items()
        if key not in ("include", "entries", "defaults")
    }
    return _dump({**suite, "entries": [_entry(source) for source in loaded.sources]})


def model_text(suite: Suite) -> str:
    """Return the YAML of a suite that Python code built, with the keys that it set."""
    return _dump(suite.model_dump(mode="json", by_alias=True, exclude_unset=True))


def load_model(suite: Suite | Entry | str | Path) -> LoadedSuite:
    """Return a suite file, a suite, or one entry as a suite of that name. Raises BadDocument."""
    if isinstance(suite, str | Path):
        return load_suite(suite)
    if isinstance(suite, Entry):
        name = (suite.name or suite.benchmark).lower().replace("_", "-")
        suite = Suite(name=name, entries=[suite])
    return parse_suite(model_text(suite), f"Suite({suite.name!r})")


def _entry(source: Source) -> dict[str, Any]:
    """Return an entry with the defaults of its file."""
    fields = registry.get(source.entry.benchmark).Params.model_fields
    defaults = source.raw_defaults.get("params") or {}
    params = {name: value for name, value in defaults.items() if name in fields}
    own = {
        name: value
        for name, value in source.raw.items()
        if value is not None or name not in ENTRY_KEYS
    }
    entry = merge(source.raw_defaults, {"name": source.name, **own})
    # As in enumeration, a value of params replaces the default as a whole.
    return {**entry, "params": {**params, **source.entry.params}}


def _dump(data: dict[str, Any]) -> str:
    return yaml.safe_dump(data, sort_keys=False, width=10**9, allow_unicode=True)
