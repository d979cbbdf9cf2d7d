"""The files of a run: run.json, stages.parquet, KubeVirt's audit, and a benchmark's journal.

With run.json another process can take a sample. The journal is the state of a benchmark's session,
in the store while it measures. A killed pod leaves it there for `perfdag scale sample`.
"""

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import orjson

from perfdag.steps.scale.figures.gates import Verdict
from perfdag.steps.scale.figures.prometheus import KEYS, REQUESTS, is_request_count
from perfdag.steps.scale.figures.rows import Row
from perfdag.steps.scale.measure.generator import GeneratorResult, Submission
from perfdag.steps.scale.runai.settings import SettingsError, checked
from perfdag.steps.scale.scenarios.session import Result, Session
from perfdag.steps.scale.scenarios.vmi import Spec
from perfdag.store.base import StoreError

_NUMBERS = {
    "seconds",
    "resolution_s",
    "api_time",
    "event_time",
    "receive_time",
    "reached",
    "intended",
    "submitted",
}
_AUDIT = {
    "creation_to_running": "vmiCreationToRunningSeconds",
    "deletion_to_succeeded": "vmiDeletionToSucceededSeconds",
    "deletion_to_failed": "vmiDeletionToFailedSeconds",
}
"""Stages of VMIs. Those of a VM or a replica set begin with `vmi_`."""
_OWN: tuple[str, ...] = ("throughput_mean", "throughput_best_5s", "api_p99", "success_ratio")
_OWN += tuple(f"deletion_p{p}" for p in (50, 95, 99))
_SERVER = "apiserver/"
"""Prefix of request counts of all clients, which the audit does not have."""


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows (atomically). Times are Unix seconds; the columns are the fields of Row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types: dict[str, Any] = {
        "index": pa.int64(),
        "retries": pa.int64(),
        "objects": pa.int64(),
        "simulated": pa.bool_(),
    }
    schema = pa.schema(
        [
            (f.name, types.get(f.name, pa.float64() if f.name in _NUMBERS else pa.string()))
            for f in fields(Row)
        ]
    )
    columns = {f.name: [getattr(row, f.name) for row in rows] for f in fields(Row)}
    new = path.with_suffix(".new")
    pq.write_table(pa.table(columns, schema=schema), new, compression="zstd")
    new.replace(path)


def audit(results: Sequence[Result]) -> dict[str, Any]:
    """Return the last measured result in the form of KubeVirt's tools/perfscale-audit.

    `Rungs` holds the same for every size with all gates. Figures of our own have other names.
    """
    if not results:
        return {"Values": {}, "Rungs": []}
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
    last = max(i for i, result in enumerate(results) if i == 0 or not result.error)
    return {"Values": rungs[last]["Values"], "Rungs": rungs}


def _values(result: Result) -> dict[str, Any]:
    figures, values = result.figures, dict[str, Any]()
    for stage, key in _AUDIT.items():
        vmi = f"vmi_{stage}" if f"vmi_{stage}_p50" in figures else stage
        for p in (50, 95, 99):
            values[f"{key}P{p}"] = {"value": figures.get(f"{vmi}_p{p}")}
    for name, value in figures.items():
        if name.endswith("-count"):
            values[_count_key(name)] = {"value": value}
        elif is_request_count(name):
            values[audit_key(name)] = {"value": value}
    for name in (*sorted(KEYS), *_OWN):
        values[name] = {"value": figures.get(name)}
    # Of several gates on a metric, a breach comes last and is shown.
    for verdict in sorted(result.verdicts, key=lambda verdict: not verdict.passed):
        # A gate sees the worse value of creation and deletion.
        values[_count_key(verdict.gate.metric)] = {
            "value": verdict.value,
            "thresholdResult": threshold_result(verdict, _count_key(verdict.gate.other or "")),
        }
    return values


def threshold_result(verdict: Verdict, other: str) -> dict[str, Any]:
    """Return a verdict as the audit writes it. `other` is the key of the gate's other metric."""
    result: dict[str, Any] = {
        "thresholdValue": verdict.threshold,
        "thresholdExceeded": not verdict.passed,
    }
    if other:
        result |= {"thresholdMetric": other, "thresholdRatio": verdict.ratio}
    return result


def audit_key(figure: str) -> str:
    """Return the audit's key of a figure from Prometheus."""
    if not is_request_count(figure):
        return figure
    return f"{figure.removeprefix(f'{REQUESTS}/')}-count"


def _count_key(figure: str) -> str:
    """Return the key of a figure: request counts of all clients get a prefix."""
    counts_requests = figure.endswith("-count") and not figure.endswith("-phase-count")
    return _SERVER + figure if counts_requests else figure


def write_json(path: Path, value: Any) -> None:
    """Write JSON (atomically, keys in the order given)."""
    new = path.with_suffix(".new")
    new.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2))
    new.replace(path)


@dataclass
class RunFile:
    """The contents of run.json; monotonic times are carried as Unix ns in the file."""

    run: str
    api_version: str
    kind: str
    namespaces: list[str]
    project: str
    workers: int
    expected_pods: int | None
    finished: bool
    submissions: list[Submission]
    generator: dict[str, Any]
    others: list[tuple[str, str]] = field(default_factory=list)
    """(apiVersion, kind) of the objects created together with every workload."""
    labelled: bool = True
    """Whether workloads carry the run's label. Run:ai's CLI sets none, so its workloads match by
    name.
    """


_OUTPUTS = (
    "observed.jsonl",
    "sampled.json",
    "stages.parquet",
    "summary.json",
    "times.csv",
    "perf-audit-results.json",
)
_SUBMISSION = ("run.json", "submitted.json")
_PICTURE = re.compile(r"(general|detailed|timeline|scurves|ecdf|order|api-calls)(-\d+){0,2}\.png")


def remove_outputs(folder: Path, but: Iterable[str] = (), *, submission: bool = False) -> None:
    """Remove the output files of an earlier run, so that they are not mixed with the next one.

    Files in `but` stay. `submission` also removes the files of the submission itself.
    """
    outputs = {*_OUTPUTS, *(_SUBMISSION if submission else ())} - {*but}
    for path in [
        path for path in folder.iterdir() if path.name in outputs or _PICTURE.fullmatch(path.name)
    ]:
        path.unlink()


def read_summary(folder: Path) -> dict[str, Any]:
    """Return the contents of summary.json, or an empty dictionary if it cannot be read."""
    with suppress(OSError, ValueError):
        if isinstance(summary := orjson.loads((folder / "summary.json").read_bytes()), dict):
            return summary
    return {}


def name_prefix(run: str) -> str:
    """Return the prefix of the names of a submission's workloads."""
    return f"j-{run[-6:]}"


def write_run(path: Path, file: RunFile, done: GeneratorResult) -> None:
    """Write run.json (atomically)."""
    shift = round(done.started_wall * 1e9) - done.started_ns
    rows = [
        [
            item.index,
            item.name,
            item.namespace,
            item.intended_ns + shift,
            item.started_ns + shift if item.started_ns else 0,
            item.answered_ns + shift if item.answered_ns else 0,
            item.uid,
            item.retries,
            item.error,
        ]
        for item in file.submissions
    ]
    body = {key: value for key, value in vars(file).items() if key != "submissions"}
    write_json(path, body | {"submissions": rows})


def write_journal(folder: Path, session: Session) -> None:
    """Write a session's submissions and records, so that a sample of the folder can go on."""
    last = session.template.documents[-1]
    place, expected = session.namespaces, session.expected_pods
    file = RunFile(
        session.run,
        last.api_version,
        last.kind,
        place,
        place[0],
        expected or 1,
        expected,
        True,
        session.submissions,
        {},
    )
    folder.mkdir(parents=True, exist_ok=True)
    now = GeneratorResult(session.run, session.submissions, time.time(), time.monotonic_ns())
    write_run(folder / "run.json", file, now)
    session.observer.save(folder / "observed.jsonl")


def read_run(folder: Path, mono_to_unix_ns: int) -> RunFile:
    """Read run.json, its times turned into this process's monotonic ns. Raises SettingsError."""
    path = folder / "run.json"
    try:
        body = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise SettingsError(f"no {path}; run `perfdag scale submit -o {folder}` first") from None
    except ValueError as error:
        raise SettingsError(f"cannot read {path}: {error}") from None
    try:
        body["submissions"] = [_submission(row, mono_to_unix_ns) for row in body["submissions"]]
    except (KeyError, TypeError, ValueError):
        raise SettingsError(
            f"{path}: submissions: missing, or not as `perfdag scale submit` writes them"
        ) from None
    return checked(path, RunFile, body)


def _submission(row: list[Any], shift: int) -> Submission:
    index, name, namespace, intended, started, answered, uid, retries, error = row
    at, sent, answered_at = (
        value - shift if value else 0 for value in (intended, started, answered)
    )
    return Submission(index, name, namespace, at, sent, answered_at, uid, retries, error)


PERIOD = 5.0
"""Seconds between two copies of a changed file."""


@contextmanager
def kept_journal(spec: Spec, folder: Path, keep: Callable[[str, bytes], None]) -> Iterator[None]:
    """Write the journal of each session to `folder`, and keep its files by `keep`.

    A thread copies them, because a slow store would delay the watches.
    """

    def write(session: Session) -> None:
        write_journal(folder / session.run, session)

    spec.journal, stop = write, threading.Event()
    copier = threading.Thread(target=_copy, args=(spec, folder, keep, stop), daemon=True)
    copier.start()
    try:
        yield
    finally:
        stop.set()
        copier.join()


def _copy(
    spec: Spec, folder: Path, keep: Callable[[str, bytes], None], stop: threading.Event
) -> None:
    seen: dict[Path, int] = {}
    while not stop.wait(PERIOD):
        try:
            for path in sorted(folder.glob("*/*.json*")):
                changed = path.stat().st_mtime_ns
                if seen.get(path) != changed:
                    keep(f"{path.parent.name}/{path.name}", path.read_bytes())
                    seen[path] = changed
        except (StoreError, OSError) as error:
            spec.log(f"the journal is not kept any more: {error}")
            return
