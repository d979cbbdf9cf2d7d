"""Stages and API calls of runs at scale, from rows of results or of stages.parquet, in seconds."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute


@dataclass
class Stage:
    """One stage of a run, with lists of one item per object that reached it.

    `order` is the place in the order of submission, `at` the time since the first submission, and
    `seconds` the time since the stage before. `missing` objects never reached it.
    """

    name: str
    since: str
    order: list[int] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    missing: int = 0


def stages_of(rows: Iterable[Mapping[str, Any]]) -> list[Stage]:
    """Return the stages of rows of stages.parquet.

    It needs the columns stage, since, status, index, seconds, submitted and reached.
    """
    rows = list(rows)
    first = min((row["submitted"] for row in rows if row["submitted"]), default=0.0)
    stages: dict[tuple[str, str], Stage] = {}
    for row in rows:
        stage = stages.setdefault((row["stage"], row["since"]), Stage(row["stage"], row["since"]))
        at = row["reached"]
        if row["status"] == "ok" and at:
            stage.order.append(row["index"])
            stage.at.append(at - first)
            stage.seconds.append(row["seconds"])
        elif row["status"] in ("censored", "failed"):
            stage.missing += 1
    return list(stages.values())


def of_runs(
    rows: Iterable[Mapping[str, Any]], head: int | None = None, tail: int | None = None
) -> dict[str, list[Stage]]:
    """Return the stages of each run of stages.parquet, by a name for files.

    The name is empty for a single run, otherwise the number of objects, with a number for equal
    sizes. Of each run, the first `head` objects in order of submission count, and of these the last
    `tail`.
    """
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        runs.setdefault(row["run"], []).append(row)
    groups: dict[str, list[Stage]] = {}
    for rows_of_run in runs.values():
        order = sorted({row["index"] for row in rows_of_run})
        objects = order[:head] if head else order
        indices = set(objects[-tail:] if tail else objects)
        name, same = (str(len(order)) if len(runs) > 1 else ""), 2
        while name in groups:
            name, same = f"{len(order)}-{same}", same + 1
        groups[name] = stages_of(row for row in rows_of_run if row["index"] in indices)
    return groups


@dataclass
class Group:
    """The newest sample of one entry and size, and how many samples there are."""

    entry: str
    count: int
    samples: int
    stages: list[Stage]


_SAMPLE = ("run_id", "variant", "point", "repetition", "phase")
"""What tells one sample from another; its sample_id does not, which is of each object."""


def of_results(rows: pa.Table) -> list[Group]:
    """Return the stages of the objects of a benchmark, by entry and size.

    They are the metrics object_latency, object_time and object_missing, with a subject per object.
    Repetitions are not mixed: the last sample is drawn.
    """
    object_rows = rows.filter(
        pa.compute.is_in(
            rows["metric"], pa.array(["object_latency", "object_time", "object_missing"])
        )
    )
    groups_of_samples: dict[
        tuple[str, int], dict[tuple[Any, ...], list[tuple[dict[str, Any], dict[str, Any]]]]
    ] = {}
    for row in object_rows.select(
        ["entry", "metric", "subject", "coords", "value", *_SAMPLE]
    ).to_pylist():
        coords = orjson.loads(row["coords"] or "{}")
        if row["value"] is not None:
            samples = groups_of_samples.setdefault((row["entry"], int(coords.get("count", 0))), {})
            samples.setdefault(tuple(row[name] for name in _SAMPLE), []).append((row, coords))
    groups = []
    for (entry, count), samples in groups_of_samples.items():
        newest = list(samples.values())[-1]
        subjects = {row["subject"] for row, _ in newest}
        groups.append(
            Group(
                entry,
                count or len(subjects),
                len(samples),
                _stages(newest, sorted(subjects, key=_natural)),
            )
        )
    return groups


def _natural(name: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", name)]


def _stages(
    rows: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]], subjects: Sequence[str]
) -> list[Stage]:
    place = {subject: order for order, subject in enumerate(subjects)}
    stages: dict[str, Stage] = {}
    for row, coords in rows:
        stage = stages.setdefault(coords["stage"], Stage(coords["stage"], coords.get("since", "")))
        if row["metric"] == "object_missing":
            stage.missing += 1
        elif row["metric"] == "object_time":
            stage.at.append(row["value"])
        else:
            stage.order.append(place[row["subject"]])
            stage.seconds.append(row["value"])
    return list(stages.values())


def calls_of(rows: pa.Table) -> dict[tuple[str, str], dict[int, dict[str, float]]]:
    """Return API requests: (entry, vms or objects) -> number of them -> request -> count.

    They are the metric api_calls. The last sample counts.
    """
    calls_by_entry: dict[tuple[str, str], dict[int, dict[str, float]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for row in (
        rows.filter(pa.compute.equal(rows["metric"], "api_calls"))
        .select(["entry", "coords", "value"])
        .to_pylist()
    ):
        if row["value"] is not None:
            coords = orjson.loads(row["coords"] or "{}")
            phase = f"{coords['phase']}: " if "phase" in coords else ""
            of = "vms" if "vms" in coords else "objects"
            calls_by_entry[row["entry"], of][int(coords[of])][phase + coords["call"]] = row["value"]
    return {key: dict(calls) for key, calls in calls_by_entry.items()}
