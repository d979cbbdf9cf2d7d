"""The monthly roll-ups of a suite, which make reading its history fast.

`<root>/rollups/<suite>/<YYYY-MM>.parquet` has one row per series and run, and describes
runs and series in its metadata. It is a cache: missing runs are read from their own files.
`collect` deletes the roll-up of a month when it writes a run of that month.
"""

import contextlib
from dataclasses import asdict

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from perfdag.regress.run_medians import COLUMNS, MonthlyRollup, RunMedians, add_run, merge_months
from perfdag.regress.series import RunInfo, SeriesInfo
from perfdag.results.runs import VERSION, month_of, result_key, rollup_key, stored_runs
from perfdag.results.schema import SAMPLES, read_rows
from perfdag.store.base import Store, StoreError


def read_run_medians(store: Store, suite: str, *, write_back: bool = True) -> RunMedians:
    """Return the run medians of a suite, from roll-ups where they are up to date.

    Runs of `ab` are left out. An incomplete roll-up is written back where `write_back`, and a
    failure to write is ignored. Unreadable files are left out and named in `damaged`. Raises
    StoreError.
    """
    stored: dict[str, dict[str, str]] = {}
    for run_id, _ in stored_runs(store, suite):
        stored.setdefault(month_of(run_id), {})[run_id] = result_key(suite, run_id)
    present = set(store.list(f"rollups/{suite}"))
    wanted = [key for month in sorted(stored) if (key := rollup_key(suite, month)) in present]
    months = {month: MonthlyRollup() for month in stored}
    for key, data in store.get_many(wanted):
        with contextlib.suppress(pa.ArrowInvalid, OSError, ValueError, KeyError, TypeError):
            months[key.rpartition("/")[2].removesuffix(".parquet")] = _read(data)
    damaged: list[str] = []
    for month, runs in stored.items():
        if _complete(store, months[month], runs, damaged) and write_back:
            with contextlib.suppress(StoreError):
                store.put(rollup_key(suite, month), _write(months[month]))
    return merge_months(
        suite,
        [months[month] for month in sorted(months)],
        {r for runs in stored.values() for r in runs},
        damaged,
    )


def _complete(
    store: Store, month: MonthlyRollup, stored: dict[str, str], damaged: list[str]
) -> bool:
    """Read the runs that a month lacks. Return whether there were any and all were readable."""
    missing = [key for run_id, key in sorted(stored.items()) if run_id not in month.runs]
    schema = pa.schema([SAMPLES.field(name) for name in COLUMNS])
    changed, refused = False, list[str]()
    for key, data in store.get_many(missing):
        try:
            rows = read_rows(data, schema)
            if rows["run_id"].null_count:  # another program wrote the file
                raise OSError("rows without a run")
            refused += add_run(month, rows)
            changed = True
        except (pa.ArrowInvalid, OSError):
            damaged.append(key)
    damaged += refused
    return changed and not refused


def _write(month: MonthlyRollup) -> bytes:
    envs = {repr(run.env): run.env for run in month.runs.values()}
    number = {text: i for i, text in enumerate(envs)}
    points: dict[tuple[str, str], int] = {}
    runs = []
    for run in month.runs.values():
        counts = [
            (points.setdefault((key, p[3]), len(points)), p[0], p[1], p[2])
            for key, p in run.points.items()
        ]
        # Most points of a run have the same state: one list of numbers for all of them.
        alike = sorted({count[1:] for count in counts})
        grouped = [
            [*state, [count[0] for count in counts if count[1:] == state]] for state in alike
        ]
        runs.append(
            [run.run_id, run.started_at, run.trigger, run.cluster, number[repr(run.env)], grouped]
        )
    about = {
        "version": VERSION,
        "points": list(points),
        "runs": runs,
        "envs": list(envs.values()),
        "series": [list(asdict(info).values()) for info in month.series.values()],
    }
    table = pa.concat_tables(month.rows) if month.rows else _empty()
    table = table.replace_schema_metadata({b"perfdag": orjson.dumps(about)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _empty() -> pa.Table:
    types = [pa.string(), pa.string(), pa.float64(), pa.float64(), pa.float64(), pa.int32()]
    names = ["run_id", "series_id", "value", "low", "high", "n"]
    return pa.schema(list(zip(names, types, strict=True))).empty_table()


def _read(data: bytes) -> MonthlyRollup:
    # read_table would import pyarrow.dataset and pandas, which takes longer than everything else.
    table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    about = orjson.loads(table.schema.metadata[b"perfdag"])
    if about["version"] != VERSION:
        raise ValueError("another version")
    runs = {}
    alike: dict[bytes, dict[str, tuple[int, int, str, str]]] = {}
    for run_id, started, trigger, cluster, env, states in about["runs"]:
        # Most runs have the same state of every point. They share one dict.
        points = alike.setdefault(orjson.dumps(states), {})
        if not points:
            for ok, bad, error, which in states:
                points.update(
                    {about["points"][i][0]: (ok, bad, error, about["points"][i][1]) for i in which}
                )
        runs[run_id] = RunInfo(run_id, started, trigger, cluster, about["envs"][env], points)
    series = {columns[0]: SeriesInfo(*columns) for columns in about["series"]}
    return MonthlyRollup(runs, series, [table.replace_schema_metadata(None)])
