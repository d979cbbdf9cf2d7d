"""run.json: what a submission was, so that a sample can be taken by another process, while it goes on or afterwards."""

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from perfdag.steps.scale.generator import Submission, Submitted
from perfdag.steps.scale.runai import SettingsError, checked
from perfdag.steps.scale.table import write_json


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
    """(apiVersion, kind) of what is created with each workload."""
    labelled: bool = True
    """Whether the workloads carry the run's label; those of Run:ai's CLI do not, and are known by their names."""
    attached: bool = False
    """Whether it was found on the cluster: then that is asked again, and not the file."""


_MADE = (
    "observed.jsonl",
    "sampled.json",
    "stages.parquet",
    "summary.json",
    "times.csv",
    "perf-audit-results.json",
)
_SUBMISSION = ("run.json", "submitted.json")
_PICTURE = re.compile(r"(general|detailed|timeline|scurves|ecdf|order|api-calls)(-\d+){0,2}\.png")


def forget(folder: Path, but: Iterable[str] = (), *, submission: bool = False) -> None:
    """Remove what was made of an earlier run, pictures too: its rows would be joined to the next one's, or taken for them. Files `but` stay,
    and those of the submission itself where it is not asked for them."""
    made = {*_MADE, *(_SUBMISSION if submission else ())} - {*but}
    for path in [
        each for each in folder.iterdir() if each.name in made or _PICTURE.fullmatch(each.name)
    ]:
        path.unlink()


def read_summary(folder: Path) -> dict[str, Any]:
    """What summary.json tells of the results in the folder; nothing where it is not there or cannot be read."""
    with suppress(OSError, ValueError):
        if isinstance(told := orjson.loads((folder / "summary.json").read_bytes()), dict):
            return told
    return {}


def prefix_of(run: str) -> str:
    """What the names of a submission's workloads begin with."""
    return f"j-{run[-6:]}"


def write_run(path: Path, file: RunFile, done: Submitted) -> None:
    """Write run.json (atomically)."""
    shift = round(done.started_wall * 1e9) - done.started_ns
    rows = [
        [
            each.index,
            each.name,
            each.namespace,
            each.intended_ns + shift,
            each.started_ns + shift if each.started_ns else 0,
            each.answered_ns + shift if each.answered_ns else 0,
            each.uid,
            each.retries,
            each.error,
        ]
        for each in file.submissions
    ]
    body = {key: value for key, value in vars(file).items() if key != "submissions"}
    write_json(path, body | {"submissions": rows})


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
        body["submissions"] = [_submission(each, mono_to_unix_ns) for each in body["submissions"]]
    except (KeyError, TypeError, ValueError):
        raise SettingsError(
            f"{path}: submissions: missing, or not as `perfdag scale submit` writes them"
        ) from None
    return checked(path, RunFile, body)


def _submission(row: list[Any], shift: int) -> Submission:
    index, name, namespace, intended, started, answered, uid, retries, error = row
    at, sent, told = (value - shift if value else 0 for value in (intended, started, answered))
    return Submission(index, name, namespace, at, sent, told, uid, retries, error)
