"""Collect a run: its samples become one Parquet file, written once and atomically.

Collecting twice gives the same bytes: rows are in the order of the plan, and nothing depends on
the time of collecting. A planned sample that is not stored is a row too, with the status and the
text of its MissingReason.
"""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from perfdag.no_gc import gc_paused
from perfdag.plan.plan import Plan
from perfdag.results.result_files import delete_rollup, month_of, result_key
from perfdag.results.samples import read_sample, sample_key, stored_samples
from perfdag.results.schema import ID_COLUMNS
from perfdag.results.table_builder import TableBuilder
from perfdag.store.base import Store


@dataclass
class CollectionResult:
    """The result of collecting: the key of the Parquet file, its rows, and samples by status.

    `reached` holds the count and relative precision of points with `until`, `damaged` the names of
    unreadable samples. `complete`: every sample of the plan is stored.
    """

    key: str
    rows: int
    statuses: dict[str, int]
    reached: dict[str, tuple[int, float | None]]
    damaged: list[str]
    complete: bool


def collect(store: Store, plan: Plan) -> CollectionResult:
    """Write the Parquet file of a run from its samples. Raises StoreError."""
    table, collected = gather(store, plan)
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
    store.put(collected.key, sink.getvalue().to_pybytes())
    delete_rollup(store, plan.suite, month_of(plan.run_id))
    return collected


def gather(store: Store, plan: Plan) -> tuple[pa.Table, CollectionResult]:
    """Return the rows of a run as a table of SAMPLES. Raises StoreError.

    Repetitive columns are dictionary-encoded.
    """
    with gc_paused():
        return _gather(store, plan)


def _gather(store: Store, plan: Plan) -> tuple[pa.Table, CollectionResult]:
    stored = stored_samples(store, plan.run_id)
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
