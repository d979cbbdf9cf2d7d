"""Load a suite file with its includes and `--set` settings, and check everything in it."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from perfdag.benchmark import registry
from perfdag.removed import removal_note
from perfdag.suite.check_targets import unmatched_check
from perfdag.suite.checks import Check
from perfdag.suite.enumerate import point_problems
from perfdag.suite.model import Entry, LoadedSuite, Settings, Source, Suite
from perfdag.suite.settings import apply_settings, split_settings
from perfdag.suite.validation import validate_partially
from perfdag.suite.yaml_document import (
    BadDocument,
    Document,
    Problem,
    Where,
    choices,
    nearest,
    parse_document,
    read_document,
)


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
