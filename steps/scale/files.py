"""The files of a run: run.json, and stages.parquet.

With run.json another process can take a sample.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import orjson

from perfdag.steps.scale.generate import Submission
from perfdag.steps.scale.rows import Row

T = TypeVar("T")
AUDIT = "perf-audit-results.json"
OUTPUTS = ("stages.parquet", "summary.json", AUDIT)
_SAMPLED = ("sampled.json", "times.csv", "general.png", "detailed.png")
_SUBMITTED = ("run.json", "submitted.json")


class SettingsError(ValueError):
    """A settings file or a file of a run that cannot be used."""


def write_json(path: Path, value: Any) -> None:
    """Write JSON (atomically, keys in the order given)."""
    new = path.with_suffix(".new")
    new.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2))
    new.replace(path)


def checked(kind: type[T], body: Any, where: object = "") -> T:
    """Return a value of a type from its parts. Raises SettingsError in one line with the key."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(body)
    except ValidationError as errors:
        error = errors.errors()[0]
        text = error["msg"].removeprefix("Value error, ")
        words = str(where), ".".join(map(str, error["loc"])), text
        raise SettingsError(": ".join(filter(None, words))) from None


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows (atomically). Times are Unix seconds; the columns are the fields of Row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"float": pa.float64(), "int": pa.int64(), "bool": pa.bool_()}
    schema = pa.schema(
        (column.name, next((types[t] for t in types if t in str(column.type)), pa.string()))
        for column in fields(Row)
    )
    columns = {column.name: [getattr(row, column.name) for row in rows] for column in fields(Row)}
    new = path.with_suffix(".new")
    pq.write_table(pa.table(columns, schema=schema), new, compression="zstd")
    new.replace(path)


@dataclass
class RunFile:
    """The contents of run.json; monotonic times are carried as Unix ns in the file."""

    run: str
    api_version: str
    kind: str
    namespaces: list[str]
    project: str
    expected_pods: int | None
    finished: bool = False
    submissions: list[Submission] = field(default_factory=list)
    generator: dict[str, Any] = field(default_factory=dict)
    others: list[tuple[str, str]] = field(default_factory=list)
    """(apiVersion, kind) of the objects created together with every workload."""
    prefix: str = ""
    """The prefix of the names of workloads without the run's label, as of Run:ai's CLI."""


def write_run(path: Path, file: RunFile) -> None:
    """Write run.json (atomically)."""
    shift = time.time_ns() - time.monotonic_ns()
    rows = [astuple(_shifted(item, shift)) for item in file.submissions]
    write_json(path, vars(file) | {"submissions": rows})


def _shifted(item: Submission, shift: int) -> Submission:
    return replace(
        item,
        intended_ns=item.intended_ns + shift if item.intended_ns else 0,
        started_ns=item.started_ns + shift if item.started_ns else 0,
        answered_ns=item.answered_ns + shift if item.answered_ns else 0,
    )


def read_run(folder: Path) -> RunFile:
    """Read run.json, its times turned into this process's monotonic ns. Raises SettingsError."""
    path = folder / "run.json"
    shift = time.monotonic_ns() - time.time_ns()
    try:
        body = orjson.loads(path.read_bytes())
        body["submissions"] = [_shifted(Submission(*row), shift) for row in body["submissions"]]
    except FileNotFoundError:
        raise SettingsError(f"no {path}; run `perfdag scale submit -o {folder}` first") from None
    except (KeyError, TypeError, ValueError) as error:
        raise SettingsError(f"cannot read {path}: {error!r}") from None
    return checked(RunFile, body, path)


def remove_outputs(folder: Path, *, submission: bool = False) -> None:
    """Remove the output files of an earlier run, so that they are not mixed with the next one.

    `submission` also removes the files of the submission itself.
    """
    for name in (*_SAMPLED, *OUTPUTS, *(_SUBMITTED if submission else ())):
        (folder / name).unlink(missing_ok=True)


def read_summary(folder: Path) -> dict[str, Any]:
    """Return the contents of summary.json, or an empty dictionary if it cannot be read."""
    with suppress(OSError, ValueError):
        if isinstance(summary := orjson.loads((folder / "summary.json").read_bytes()), dict):
            return summary
    return {}
