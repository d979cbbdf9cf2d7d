"""A suite as one text, whose includes are resolved, and a suite that Python code builds."""

from pathlib import Path
from typing import Any

import yaml

from perfdag.benchmark import registry
from perfdag.shape import merge
from perfdag.suite.load import load_suite, parse_suite
from perfdag.suite.model import ENTRY_KEYS, Entry, LoadedSuite, Source, Suite


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
