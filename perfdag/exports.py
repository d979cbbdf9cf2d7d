"""Files that benchmarks make of their rows, in the folder of a run: a document in a form that other programs read."""

import pyarrow as pa
import pyarrow.compute as pc

from perfdag import benchmark
from perfdag.samples import run_folder
from perfdag.store import Store


def write(store: Store, run_id: str, rows: pa.Table) -> list[str]:
    """Write the exports of every benchmark in the rows of a run; returns a line each: its address, or why it could not be made.

    An export that fails costs no other and not the run. Raises StoreError.
    """
    lines: list[str] = []
    for name in sorted(set(pc.unique(rows["benchmark"]).to_pylist()) & set(benchmark.names())):
        exporter = benchmark.get(name)
        if type(exporter).exports is benchmark.Benchmark.exports:
            continue
        try:
            files = exporter.exports(rows.filter(pc.equal(rows["benchmark"], name)))
        except Exception as error:
            lines.append(f"not written, export of {name}: {type(error).__name__}: {error}")
            continue
        for file, data in files.items():
            key = f"{run_folder(run_id)}/{file}"
            store.put(key, data)
            lines.append(store.url(key))
    return lines
