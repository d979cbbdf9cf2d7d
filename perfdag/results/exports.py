"""Documents that benchmarks derive from their rows, for other programs, in the folder of a run."""

import pyarrow as pa
import pyarrow.compute as pc

from perfdag.benchmark import registry
from perfdag.results.samples import run_folder
from perfdag.store.base import Store


def write(store: Store, run_id: str, rows: pa.Table) -> list[str]:
    """Write the exports of every benchmark of a run.

    Return a line for each: its address, or an error. An export that fails affects neither the
    others nor the run. Raises StoreError.
    """
    lines: list[str] = []
    for name in filter(registry.usable, sorted(set(pc.unique(rows["benchmark"]).to_pylist()))):
        exporter = registry.get(name)
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
