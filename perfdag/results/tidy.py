"""Results for analysis: one value a row, with parameters and coordinates as columns."""

import contextlib
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from perfdag.results.schema import SAMPLES, load_rows
from perfdag.store.open import open_store
from perfdag.units import seconds

_BEFORE = ("run_id", "started_at", "suite", "entry", "benchmark")
_AFTER = (
    *("metric", "stat", "subject", "repetition", "value", "unit", "better", "headline"),
    *("status", "error", "noise", "nodes", "cluster", "series_id"),
)
_JSON = {"params": "param_", "shape": "shape_", "coords": "coord_"}
"""Columns of JSON, and the prefix of a key whose name another column has."""
Since = str | date | timedelta


def load(
    store: str | Path | None = None,
    *,
    suite: str | None = None,
    since: Since | None = None,
    metric: str | Sequence[str] | None = None,
    run: str | None = None,
    everything: bool = False,
) -> pa.Table:
    """Return results of a store as an Arrow table, oldest run first.

    A row is one value in the SI base unit of its column `unit`. Each parameter, shape key and
    coordinate is a column; a nested key has a dot (`network.host`). A name that another column has
    gets the prefix `param_`, `shape_` or `coord_`. A row whose benchmark has no such key is null
    there. `since` is a date, a datetime, an ISO text, or an age such as `30d`. With `everything`,
    warm-up rounds, canaries, and samples that failed or are missing are rows too.

    Raises StoreError, and ValueError for a text of `since` that is neither a date nor an age.
    """
    start = _start(since) if since is not None else None
    table = load_rows(
        open_store(str(store) if store is not None else None),
        suites=None if suite is None else [suite],
        months=None if start is None else _months(start),
        runs=None if run is None else [run],
        columns=[*_BEFORE, *_AFTER, "phase", *_JSON],
    )
    if start is not None:
        table = table.filter(pc.greater_equal(_started(table), pa.scalar(start)))
    if metric is not None:
        names = [metric] if isinstance(metric, str) else list(metric)
        table = table.filter(pc.is_in(_text(table["metric"]), pa.array(names, pa.string())))
    if not everything:
        measured = pc.and_(_equal(table, "status", "ok"), _equal(table, "phase", "measure"))
        canary = _equal(table, "benchmark", "canary")
        table = table.filter(pc.and_(measured, pc.invert(canary)))
    return _with_keys_as_columns(table)


def _with_keys_as_columns(table: pa.Table) -> pa.Table:
    columns = {name: _plain(table, name) for name in (*_BEFORE, *_AFTER)}
    keys: dict[str, Any] = {}
    for source, prefix in _JSON.items():
        for key, values in _keys(table[source]):
            keys[prefix + key if key in columns or key in keys else key] = values
    names = [*_BEFORE, *keys, *_AFTER]
    return pa.table({name: keys[name] if name in keys else columns[name] for name in names})


def _keys(column: pa.ChunkedArray) -> Iterator[tuple[str, pa.Array]]:
    """Yield the keys of the JSON objects in a dictionary-encoded column, with their values."""
    encoded = column.combine_chunks()
    indices = np.asarray(encoded.indices)
    used, position = np.unique(indices, return_inverse=True)
    objects = [dict(_flat(orjson.loads(encoded.dictionary[int(at)].as_py()))) for at in used]
    for key in dict.fromkeys(key for item in objects for key in item):
        yield key, _array([item.get(key) for item in objects]).take(pa.array(position))


def _flat(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, below in value.items():
        if isinstance(below, dict):
            yield from _flat(below, f"{prefix}{key}.")
        else:
            yield prefix + key, below


def _array(values: list[Any]) -> pa.Array:
    """Return values as an array of their type. Lists, and values of several types, become JSON."""
    kinds = {int if type(value) is float else type(value) for value in values if value is not None}
    if len(kinds) > 1 or list in kinds:
        values = [None if value is None else _json(value) for value in values]
    return pa.array(values)


def _json(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _plain(table: pa.Table, name: str) -> pa.ChunkedArray:
    return table[name].cast(SAMPLES.field(name).type)


def _started(table: pa.Table) -> pa.ChunkedArray:
    """Return the start of each sample, or that of its run if the sample never started."""
    of_run = pc.strptime(
        pc.utf8_slice_codeunits(_text(table["run_id"]), 0, 15), "%Y%m%dT%H%M%S", "us"
    )
    started = table["started_at"]
    return pc.coalesce(started, pc.assume_timezone(of_run, "UTC").cast(started.type))


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.string())


def _equal(table: pa.Table, name: str, text: str) -> pa.ChunkedArray:
    return pc.fill_null(pc.equal(_text(table[name]), text), False)


def _start(since: Since) -> datetime:
    if isinstance(since, str):
        since = _read(since)
    if isinstance(since, timedelta):
        seconds_ago = datetime.now(UTC).timestamp() - since.total_seconds()
        return datetime.fromtimestamp(max(0.0, seconds_ago), UTC)
    if not isinstance(since, datetime):
        since = datetime.combine(since, time())
    return since if since.tzinfo else since.replace(tzinfo=UTC)


def _read(text: str) -> datetime | timedelta:
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(text)
    try:
        return timedelta(seconds=seconds(text))
    except (ValueError, OverflowError):
        message = f"since: {text!r} is neither a date such as 2026-11-01 nor an age such as 30d"
        raise ValueError(message) from None


def _months(start: datetime) -> list[str]:
    """Return the months of runs whose samples may be that new; a run may last into a new month."""
    now = datetime.now(UTC)
    first, last = start.year * 12 + start.month - 2, now.year * 12 + now.month
    return [f"{month // 12}-{month % 12 + 1:02}" for month in range(first, last + 1)]
