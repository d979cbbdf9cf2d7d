"""The record of a submission (run.json), so that another process can take a sample."""

import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from perfdag.steps.scale.measure.generator import GeneratorResult, Submission
from perfdag.steps.scale.runai.settings import SettingsError, checked
from perfdag.steps.scale.runai.table import write_json
from perfdag.steps.scale.scenarios.session import Session


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
