"""The files of a run: run.json, stages.parquet and KubeVirt's audit.

With run.json another process can take a sample.
"""

import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import orjson

from perfdag.steps.scale.figures import Result, Verdict
from perfdag.steps.scale.generate import Submission
from perfdag.steps.scale.prometheus import AUDIT_KEYS, REQUESTS, is_request_count
from perfdag.steps.scale.rows import Row

T = TypeVar("T")
_AUDIT_STAGES = {
    "creation_to_running": "vmiCreationToRunningSeconds",
    "deletion_to_succeeded": "vmiDeletionToSucceededSeconds",
    "deletion_to_failed": "vmiDeletionToFailedSeconds",
}
"""Stages of VMIs. Those of a VM or a replica set begin with `vmi_`."""
_OWN = (
    "throughput_mean",
    "throughput_best_5s",
    "api_p99",
    "success_ratio",
    "deletion_p50",
    "deletion_p95",
    "deletion_p99",
)
AUDIT = "perf-audit-results.json"
OUTPUTS = ("stages.parquet", "summary.json", AUDIT)
_SAMPLED = ("sampled.json", "times.csv", *OUTPUTS)
_SUBMITTED = ("run.json", "submitted.json")
_PICTURE = re.compile(r"(general|detailed|timeline|scurves|ecdf|order|api-calls)(-\d+){0,2}\.png")


class SettingsError(ValueError):
    """A settings file or a file of a run that cannot be used."""


def write_json(path: Path, value: Any) -> None:
    """Write JSON (atomically, keys in the order given)."""
    new = path.with_suffix(".new")
    new.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2))
    new.replace(path)


def checked(path: Path, kind: type[T], body: Any) -> T:
    """Convert the content of a file to a dataclass. Raises SettingsError with file and key."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{key}: " for key in first["loc"][:1])
        raise SettingsError(f"{path}: {where}{first['msg'].lower()}") from None


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


def audit_of(results: Sequence[Result]) -> dict[str, Any]:
    """Return the last measured result in the form of KubeVirt's tools/perfscale-audit.

    `Rungs` holds the same for every size with all gates. Figures of our own have other names.
    """
    rungs = [
        {
            "Count": result.count,
            "Values": _values(result),
            "Gates": [
                {"gate": str(v.gate), "value": v.value, "passed": v.passed} for v in result.verdicts
            ],
        }
        for result in results
    ]
    measured = [rung for rung, result in zip(rungs, results, strict=True) if not result.error]
    last = [*rungs[:1], *measured][-1:]
    return {"Values": last[0]["Values"] if last else {}, "Rungs": rungs}


def _values(result: Result) -> dict[str, Any]:
    figures, values = result.figures, dict[str, Any]()
    for stage, key in _AUDIT_STAGES.items():
        vmi = f"vmi_{stage}" if f"vmi_{stage}_p50" in figures else stage
        for p in (50, 95, 99):
            values[f"{key}P{p}"] = {"value": figures.get(f"{vmi}_p{p}")}
    for name, value in figures.items():
        if name.endswith("-count") or is_request_count(name):
            values[audit_key(name)] = {"value": value}
    for name in (*sorted(AUDIT_KEYS), *_OWN):
        values[name] = {"value": figures.get(name)}
    # Of several gates on a metric, a breach comes last and is shown. A gate sees the worse value of
    # creation and deletion.
    for verdict in sorted(result.verdicts, key=lambda verdict: not verdict.passed):
        judged = {"value": verdict.value, "thresholdResult": threshold_result(verdict)}
        values[audit_key(verdict.gate.metric)] = judged
    return values


def threshold_result(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as the audit writes it."""
    gate, threshold = verdict.gate, verdict.threshold
    result = {"thresholdValue": threshold, "thresholdExceeded": not verdict.passed}
    if not gate.other:
        return result
    known = threshold and verdict.value is not None
    ratio = verdict.value * gate.value / threshold if known else None  # type: ignore[operator]
    return {**result, "thresholdMetric": audit_key(gate.other), "thresholdRatio": ratio}


def audit_key(figure: str) -> str:
    """Return the audit's key of a figure.

    The audit counts requests of KubeVirt's pods; those of all clients get a prefix.
    """
    if figure.startswith(f"{REQUESTS}/"):
        return f"{figure.removeprefix(f'{REQUESTS}/')}-count"
    counts_requests = figure.endswith("-count") and not figure.endswith("-phase-count")
    return f"apiserver/{figure}" if counts_requests else figure


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
    return checked(path, RunFile, body)


def remove_outputs(folder: Path, but: Iterable[str] = (), *, submission: bool = False) -> None:
    """Remove the output files of an earlier run, so that they are not mixed with the next one.

    Files in `but` stay. `submission` also removes the files of the submission itself.
    """
    outputs = {*_SAMPLED, *(_SUBMITTED if submission else ())} - {*but}
    for path in list(folder.iterdir()):
        if path.name in outputs or _PICTURE.fullmatch(path.name):
            path.unlink()


def read_summary(folder: Path) -> dict[str, Any]:
    """Return the contents of summary.json, or an empty dictionary if it cannot be read."""
    with suppress(OSError, ValueError):
        if isinstance(summary := orjson.loads((folder / "summary.json").read_bytes()), dict):
            return summary
    return {}
