"""Results on S3, read as they are by pandas, pyarrow, DuckDB and Polars."""

import os
from collections.abc import Callable
from typing import Any

import pyarrow.dataset as pa_dataset
import pyarrow.parquet as pq
import pytest

from perfdag.commands.main import main
from perfdag.results.schema import SAMPLES, load_rows
from perfdag.store.s3 import S3Store
from tests.conftest import SuiteWriter
from tests.stats import synthetic


def with_pandas(folder: str, s3: Any) -> Any:
    import pandas

    frame = pandas.read_parquet(folder.removeprefix("s3://"), filesystem=s3)
    return frame.columns.tolist(), frame.groupby("suite").value.count().to_dict()


def with_pyarrow(folder: str, s3: Any) -> Any:
    table = pq.read_table(folder.removeprefix("s3://"), filesystem=s3)
    counts = table.group_by("suite").aggregate([("value", "count")]).to_pylist()
    return table.column_names, {row["suite"]: row["value_count"] for row in counts}


def with_duckdb(folder: str, s3: Any) -> Any:
    import duckdb

    with duckdb.connect() as connection:
        connection.register_filesystem(s3)
        rows = connection.sql(f"SELECT * FROM read_parquet('{folder}/**/*.parquet')")
        counts = connection.sql("SELECT suite, count(value) FROM rows GROUP BY suite").fetchall()
        return rows.columns, dict(counts)


def with_polars(folder: str, s3: Any) -> Any:
    import polars

    dataset = pa_dataset.dataset(folder.removeprefix("s3://"), filesystem=s3)
    frame = polars.scan_pyarrow_dataset(dataset).collect()
    counts = frame.group_by("suite").agg(polars.col("value").count())
    return frame.columns, dict(counts.iter_rows())


@pytest.mark.cluster
@pytest.mark.parametrize("read", [with_pandas, with_pyarrow, with_duckdb, with_polars])
def test_a_bucket_is_read_as_it_is(
    read: Callable[..., Any], write_suite: SuiteWriter, s3_root: str
) -> None:
    """Three suites: measured here, measured without any value, and over two months."""
    store = S3Store(s3_root, 5)
    root = ["--no-report", "--store", store.root]
    assert main(["run", str(write_suite.sleeps(2, 3)), *root]) == 0
    assert main(["run", *root, "--", "false"]) == 1
    synthetic.nights(store, 2, lambda night, point: 1e10, first=26)
    import s3fs

    s3 = s3fs.S3FileSystem(
        endpoint_url=os.environ["AWS_ENDPOINT_URL"], skip_instance_cache=True, asynchronous=False
    )
    columns, counts = read(store.url("results"), s3)
    assert columns == SAMPLES.names
    stored = load_rows(store).group_by("suite").aggregate([("value", "count")]).to_pylist()
    assert counts == {row["suite"]: row["value_count"] for row in stored}
    assert set(counts) == {"sleeps", "false", "net"}
