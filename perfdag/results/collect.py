"""Collect a run: its samples become one Parquet file, written once and atomically.

Collecting twice gives the same bytes: rows are in the order of the plan, and nothing depends on
the time of collecting. A planned sample that is not stored is a row too, with the status and the
text of its MissingReason. Samples may be removed once they are collected: their rows stay.
"""

from collections.abc import Set
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from perfdag.no_gc import gc_paused
from perfdag.plan.plan import Plan
from perfdag.results.result_files import month_of, result_key, rollup_key
from perfdag.results.samples import read_sample, sample_key, stored_samples
from perfdag.results.schema import ID_COLUMNS, SAMPLES, explain_unreadable, read_rows
from perfdag.results.summary import statuses_of
from perfdag.results.table_builder import TableBuilder
from perfdag.store.base import DamagedError, NotStoredError, Store


@dataclass
class CollectionResult:
    """The result of collecting: the key of the Parquet file, its rows, and samples by status.

    `reached` holds the count and relative precision of points with `until`, `damaged` the names of
    unreadable samples. `complete`: every sample of the plan is stored. `kept`: samples were removed
    after they were collected, and the rows are those of the Parquet file, which stays as it is.
    """

    key: str
    rows: int
    statuses: dict[str, int]
    reached: dict[str, tuple[int, float | None]]
    damaged: list[str]
    complete: bool
    kept: bool = False


def collect(store: Store, plan: Plan) -> CollectionResult:
    """Write the Parquet file of a run from its samples. Raises StoreError."""
    table, collected = gather(store, plan)
    if not collected.kept:
        write_rows(store, plan.suite, plan.run_id, table)
    return collected


def write_rows(store: Store, suite: str, run_id: str, table: pa.Table) -> None:
    """Write the Parquet file of a run from a table of SAMPLES. Raises StoreError."""
    sink = pa.BufferOutputStream()
    # Without the Arrow schema a reader gets plain strings, whatever the encoding in memory.
    # A dictionary of distinct values only makes the file larger.
    encoded = [name for name in table.column_names if name not in ID_COLUMNS]
    pq.write_table(
        table,
        sink,
        compression="zstd",
        store_schema=False,
        version="2.6",
        data_page_version="1.0",
        use_dictionary=encoded,
    )
    store.put(result_key(suite, run_id), sink.getvalue().to_pybytes())
    # It is a cache, and lacks these rows.
    store.delete(rollup_key(suite, month_of(run_id)))


def gather(store: Store, plan: Plan) -> tuple[pa.Table, CollectionResult]:
    """Return the rows of a run as a table of SAMPLES. Raises StoreError.

    Repetitive columns are dictionary-encoded.
    """
    stored = stored_samples(store, plan.run_id)
    if (rows := kept_rows(store, plan, stored)) is not None:
        key, statuses = result_key(plan.suite, plan.run_id), statuses_of(rows)
        return rows, CollectionResult(key, rows.num_rows, statuses, {}, [], True, kept=True)
    with gc_paused():
        return _gather(store, plan, stored)


def kept_rows(store: Store, plan: Plan, stored: Set[str]) -> pa.Table | None:
    """Return the rows of a run that has samples no more that it was collected from, or None.

    `stored` has the names of its samples. Raises StoreError, DamagedError where nothing else is
    left of the run.
    """
    key = result_key(plan.suite, plan.run_id)
    try:
        data = store.get(key)
        sources = read_rows(data, pa.schema([SAMPLES.field("raw_uri")]))["raw_uri"]
    except (NotStoredError, pa.ArrowInvalid, OSError):
        if plan.order:
            return None
        raise DamagedError(f"store {store.root}: {explain_unreadable(store, key)}") from None
    names = filter(None, pc.unique(sources).to_pylist())
    collected = {name.rpartition("/")[2].removesuffix(".json") for name in names}
    return read_rows(data) if collected - stored or not plan.order else None


def _gather(store: Store, plan: Plan, stored: Set[str]) -> tuple[pa.Table, CollectionResult]:
    builder = TableBuilder(plan, store)
    damaged = []
    order = sorted(
        range(len(plan.order)),
        key=lambda pos: (plan.point_at(pos).benchmark, *plan.order[pos]),
    )
    names = [(pos, plan.key(pos)) for pos in order]
    present = [(pos, name) for pos, name in names if name in stored]
    contents = store.get_many([sample_key(plan.run_id, name) for _, name in present])
    absent: list[int] = []
    for (pos, name), (_, data) in zip(present, contents, strict=True):
        try:
            builder.add(pos, read_sample(data))
        except ValueError:
            damaged.append(name)
            absent.append(pos)
    absent += [pos for pos, name in names if name not in stored]
    builder.add_absent(absent)
    canaries = sorted(name for name in stored if name.startswith("canary-"))
    for name, (_, data) in zip(
        canaries, store.get_many([sample_key(plan.run_id, name) for name in canaries]), strict=True
    ):
        try:
            builder.add_canary(read_sample(data))
        except ValueError:
            damaged.append(name)
    table = builder.table()
    return table, CollectionResult(
        result_key(plan.suite, plan.run_id),
        table.num_rows,
        builder.statuses,
        builder.reached,
        damaged,
        complete=not absent,
    )
