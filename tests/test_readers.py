"""The folder of results, read as it is by pandas, pyarrow, DuckDB and Polars, here and on S3."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas
import polars
import pyarrow.dataset as pa_dataset
import pyarrow.parquet as pq
import pytest
import s3fs

from perfdag.commands.main import main
from perfdag.results.schema import SAMPLES, load_rows
from perfdag.store.base import FolderStore, Store
from perfdag.store.s3 import S3Store
from tests.conftest import SuiteWriter
from tests.stats import synthetic


def with_pandas(folder: str, s3: Any) -> Any:
    frame = pandas.read_parquet(folder, filesystem=s3)
    return frame.columns.tolist(), frame.groupby("suite").value.count().to_dict()


def with_pyarrow(folder: str, s3: Any) -> Any:
    table = pq.read_table(folder, filesystem=s3)
    counts = table.group_by("suite").aggregate([("value", "count")]).to_pylist()
    return table.column_names, {row["suite"]: row["value_count"] for row in counts}


def with_duckdb(folder: str, s3: Any) -> Any:
    with duckdb.connect() as connection:
        if s3:
            connection.register_filesystem(s3)
        rows = connection.sql(f"SELECT * FROM read_parquet('{folder}/**/*.parquet')")
        counts = connection.sql("SELECT suite, count(value) FROM rows GROUP BY suite").fetchall()
        return rows.columns, dict(counts)


def with_polars(folder: str, s3: Any) -> Any:
    if s3:
        frame = polars.scan_pyarrow_dataset(pa_dataset.dataset(folder, filesystem=s3)).collect()
    else:
        frame = polars.read_parquet(folder)
    counts = frame.group_by("suite").agg(polars.col("value").count())
    return frame.columns, dict(counts.iter_rows())


@pytest.fixture
def fill(write_suite: SuiteWriter) -> Callable[[Store], None]:
    """Store three suites: measured here, measured without any value, and over two months."""

    def fill(store: Store) -> None:
        failing = write_suite(
            "name: failing\nentries: [{benchmark: command, params: {argv: ['false']}}]", "f.yaml"
        )
        root = ["--no-report", "--store", store.root]
        assert main(["run", str(write_suite.sleeps(2, 3)), *root]) == 0
        assert main(["run", str(failing), *root]) == 1
        synthetic.nights(store, 2, lambda night, point: 1e10, first=26)

    return fill


READERS = pytest.mark.parametrize("read", [with_pandas, with_pyarrow, with_duckdb, with_polars])


def check(store: Store, columns: list[str], counts: dict[str, int]) -> None:
    own = load_rows(store).group_by("suite").aggregate([("value", "count")]).to_pylist()
    assert columns == SAMPLES.names
    assert counts == {row["suite"]: row["value_count"] for row in own}
    assert set(counts) == {"sleeps", "failing", "net"}


@READERS
def test_a_folder_is_read_as_it_is(
    read: Callable[..., Any], fill: Callable[[Store], None], tmp_path: Path
) -> None:
    store = FolderStore(str(tmp_path / "store"))
    fill(store)
    check(store, *read(store.url("results"), None))


@pytest.mark.cluster
@READERS
def test_a_bucket_is_read_as_it_is(
    read: Callable[..., Any], fill: Callable[[Store], None], s3_root: str
) -> None:
    store = S3Store(s3_root, 5)
    fill(store)
    s3 = s3fs.S3FileSystem(
        endpoint_url=os.environ["AWS_ENDPOINT_URL"], skip_instance_cache=True, asynchronous=False
    )
    folder = store.url("results")
    check(store, *read(folder if read is with_duckdb else folder.removeprefix("s3://"), s3))
