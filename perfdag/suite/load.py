"""Load a suite file with its includes and `--set` settings, and check everything in it."""

import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from perfdag.benchmark import registry
from perfdag.benchmark.contract import Metric
from perfdag.removed import removal_note
from perfdag.shape import (
    FOLDER,
    IMAGE,
    INTERFACE,
    LABEL_KEY,
    LABEL_VALUE,
    OBJECT_NAME,
    PAIR_KINDS,
    PAIRS,
    SHAPE_KEYS,
    merge,
)
from perfdag.suite.document import (
    BadDocument,
    Document,
    Problem,
    Where,
    choices,
    nearest,
    parse_document,
    read_document,
)
from perfdag.suite.enumerate import point_problems
from perfdag.suite.model import ENTRY_KEYS, Check, Entry, LoadedSuite, Settings, Source, Suite
from perfdag.units import CPU_LIST

M = TypeVar("M", bound=BaseModel)


def validate_partially(
    document: Document,
    prefix: Where,
    raw: Any,
    model: type[M],
    problems: list[Problem],
    fallback: Mapping[str, Any] | None = None,
) -> tuple[M | None, frozenset[str]]:
    """Return the model of the value at `prefix` without its wrong keys, and these keys.

    Add mistakes to `problems`.

    The model is None if nothing remains: the value is no mapping, or a required key without a
    `fallback` is wrong.
    """
    remaining, dropped = raw, set[tuple[str | int, ...]]()
    while True:
        try:
            return model.model_validate(remaining), frozenset(str(path[0]) for path in dropped)
        except ValidationError as invalid:
            errors = invalid.errors()
        # an error of a whole mapping may be only a consequence of what was dropped from it
        certain = [
            error
            for error in errors
            if not any(path[: len(error["loc"])] == error["loc"] for path in dropped)
        ]
        problems += [explain(document, prefix, error, model) for error in certain]
        before = remaining
        for error in errors:
            if error["loc"]:
                remaining = (
                    _without(remaining, error["loc"]) if isinstance(remaining, dict) else remaining
                )
                dropped.add(error["loc"])
        remaining = {**(fallback or {}), **remaining} if isinstance(remaining, dict) else remaining
        if remaining == before:
            return None, frozenset(str(path[0]) for path in dropped)


def _without(mapping: Mapping[str, Any], path: tuple[str | int, ...]) -> dict[str, Any]:
    """Return a mapping without the key at `path`, or its innermost existing parent."""
    key, inner = str(path[0]), mapping.get(str(path[0]))
    if isinstance(inner, dict) and len(path) > 1 and path[1] in inner:
        return {**mapping, key: _without(inner, path[1:])}
    return {name: value for name, value in mapping.items() if name != key}


def error_path(error: Mapping[str, Any]) -> Where:
    """Return the path of a pydantic error without the parts that stand in no file."""
    return tuple(
        part
        for part in error["loc"]
        if not (isinstance(part, str) and part.startswith(("function-", "constrained-", "[key]")))
    )


def explain(
    document: Document, prefix: Where, error: Mapping[str, Any], model: type[BaseModel]
) -> Problem:
    """Return a pydantic error as a problem of the document."""
    where = error_path(error)
    path = prefix + where
    kind, context = error["type"], error.get("ctx", {})
    value = error.get("input")
    if kind == "extra_forbidden":
        known = sorted(_fields_at(model, where[:-1]))
        text = (
            removal_note(str(where[-1]))
            or f"unknown key{_place(document, path) or choices(where[-1], known, 'allowed:')}"
        )
    elif kind == "missing":
        text = "is required"
    elif kind in {"literal_error", "enum"}:
        allowed = str(context["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
        text = removal_note(f"{(path or ('',))[-1]}={value}") or (
            f"unknown value {value!r}{choices(value, allowed, 'allowed:')}"
        )
    elif kind == "value_error":
        text = str(error["msg"]).removeprefix("Value error, ")
    elif kind == "string_pattern_mismatch":
        form = _FORMS.get(context["pattern"], f"of the form {context['pattern']}")
        text = f"{value!r} is not {form}"
    elif kind in _TYPES:
        text = f"must be {_TYPES[kind]}" + (
            f", not {value!r}" if isinstance(value, str | int | float | bool) else ""
        )
    elif kind in _BOUNDS:
        text = f"must be {_BOUNDS[kind][0]} {context[_BOUNDS[kind][1]]}, not {value!r}"
    else:
        text = f"{error['msg'][0].lower()}{error['msg'][1:]}" + (
            f", not {value!r}" if isinstance(value, str | int | float | bool) else ""
        )
    return document.problem(path, text)


def _place(document: Document, path: Where) -> str:
    """Return where an unknown key of an entry belongs that is a parameter, or an empty text."""
    if path[:1] != ("entries",) or len(path) not in (3, 4):
        return ""
    key, benchmark = str(path[-1]), document.data["entries"][path[1]].get("benchmark")
    fields = registry.get(benchmark).Params.model_fields if registry.usable(benchmark) else {}
    if path[2:-1] == ("permutations",) and key.partition(".")[0] in {*fields, *SHAPE_KEYS}:
        return f"; write `product: {{{key}: ...}}`"
    if len(path) == 3 and key in fields:
        return f"; it is a parameter of {benchmark}: write `params: {{{key}: ...}}`"
    return ""


_TYPES = {
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "string_type": "text (in quotes, if it is a number)",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}
_FORMS = {
    IMAGE: "an image: at most 512 of a-z, A-Z, 0-9 and . _ / : @ -",
    FOLDER: "an absolute path: at most 1024 of a-z, A-Z, 0-9, space and . _ / : @ + = , ~ -",
    "^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$": "a suite name: 1 to 40 of a-z, 0-9 and -, "
    "beginning and ending with a letter or digit",
    "^[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?$": "an entry name: 1 to 63 letters, "
    "digits, - and _, a letter or digit at both ends",
    PAIRS: f"one of {PAIR_KINDS}",
    CPU_LIST: "a CPU list such as 0 or 2-3",
    OBJECT_NAME: "the name of an object of Kubernetes: at most 253 of a-z, 0-9, - and ., "
    "a letter or digit at both ends",
    INTERFACE: "the name of a network interface: 1 to 15 letters, digits, "
    "and _ . : - after the first",
    LABEL_KEY: "a label's key: at most 63 letters, digits, - _ ., "
    "which may follow a DNS name and a /",
    LABEL_VALUE: "a label's value: at most 63 letters, digits, - _ ., "
    "a letter or digit at both ends",
}


def _fields_at(model: type[BaseModel], path: Where) -> set[str]:
    """Return the field names of the model at `path` below `model`, or none."""
    current: Any = model
    for part in path:
        if isinstance(part, int):
            continue
        info = getattr(current, "model_fields", {}).get(part)
        models = _models(info.annotation) if info else []
        if not models:
            return set()
        current = models[0]
    return set(current.model_fields)


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models(part)]


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
