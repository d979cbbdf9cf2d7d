"""Settings of `--set`: `repetitions=5` is for the suite, `entry.param=value` for an entry."""

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from perfdag.benchmark import registry
from perfdag.suite.model import ENTRY_KEYS, Entry, LoadedSuite, Source, Suite
from perfdag.suite.validation import explain
from perfdag.suite.yaml_document import (
    BadDocument,
    Document,
    Problem,
    choices,
    nearest,
    parse_document,
)

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
