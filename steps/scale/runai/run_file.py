"""The record of a submission, so that another process can take a sample.

It is run.json, or it is made from the objects on the cluster that have the label of the run.
"""

import re
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from perfdag.kube.client import Kube, KubeError, Resource
from perfdag.kube.errors import ignore_status
from perfdag.steps.scale.cluster.removal import deletable_resources
from perfdag.steps.scale.measure.generator import GeneratorResult, Submission
from perfdag.steps.scale.model.chains import CHAINS, has_no_pods
from perfdag.steps.scale.model.pod_specs import members_of
from perfdag.steps.scale.model.stages import unix_ns
from perfdag.steps.scale.model.templates import INDEX_LABEL, RUN_LABEL, SUBMIT_ANNOTATION
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
    attached: bool = False
    """Whether the run was found on the cluster, which is then read again instead of the file."""


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


async def find(kube: Kube, run: str, namespace: str | None) -> list[Resource]:
    """Return the kinds of which the run created objects, in one namespace or (None) in all.

    Kinds that may not be listed are skipped. Raises KubeError (404) if there are none.
    """
    kinds = []
    for resource in await deletable_resources(kube):
        with ignore_status(403, 404, 405):
            if resource.namespaced and await _created_by_run(kube, resource, run, namespace):
                kinds.append(resource)
    if not kinds:
        where = f"in the namespace {namespace}" if namespace else "on this cluster"
        raise KubeError(
            404,
            "NoRun",
            f"nothing of run {run} is {where}",
            "a run prints its id when it starts; give its --namespace",
        )
    return kinds


def workload_of(run: str, kinds: list[Resource]) -> Resource:
    """Return the kind that is measured. Raises SettingsError if it is ambiguous."""
    known = (
        [resource for resource in kinds if resource.kind in CHAINS]
        or [resource for resource in kinds if not has_no_pods(resource.api_version, resource.kind)]
        or kinds
    )
    if len(known) > 1:
        names = ", ".join(resource.kind for resource in known)
        raise SettingsError(
            f"run {run} created {names}, and only its run.json tells which is measured: take a "
            "sample with -o and its folder"
        )
    return known[0]


async def attach(kube: Kube, run: str, kinds: list[Resource], namespace: str | None) -> RunFile:
    """Return the objects that the run created and that still exist.

    Refused creations are unknown, and an object counts as sent when it was due. Raises KubeError,
    SettingsError.
    """
    workload = workload_of(run, kinds)
    bodies = sorted(await _created_by_run(kube, workload, run, namespace), key=_index)
    if not bodies:
        raise KubeError(404, "NoRun", f"nothing of run {run} is left")
    shift = time.time_ns() - time.monotonic_ns()
    items = [_existing_object(body, shift) for body in bodies]
    namespaces = list(dict.fromkeys(item.namespace for item in items))
    project = namespaces[0].removeprefix("runai-")
    members = members_of({**bodies[0], "apiVersion": workload.api_version, "kind": workload.kind})
    others = [(resource.api_version, resource.kind) for resource in kinds if resource != workload]
    return RunFile(
        run,
        workload.api_version,
        workload.kind,
        namespaces,
        project,
        members or 1,
        members,
        True,
        items,
        {},
        others,
        attached=True,
    )


async def follow(
    kube: Kube, run: str, namespace: str | None, known: RunFile | None
) -> Callable[[], Awaitable[RunFile]]:
    """Return a reader of all submissions seen so far, in this sample and in earlier ones (`known`).

    Deleted objects stay in the result. The function and its reader raise KubeError (404 if nothing
    was ever seen) and SettingsError.
    """
    seen, kinds = known, [] if known else await find(kube, run, namespace)

    async def read() -> RunFile:
        nonlocal seen
        try:
            if seen:  # keep the kinds: of the remaining ones, another would pass for the workload
                resources = [
                    await kube.resource(*kind)
                    for kind in ((seen.api_version, seen.kind), *seen.others)
                ]
                seen = _merge(seen, await attach(kube, run, resources, namespace))
            else:
                seen = await attach(kube, run, kinds, namespace)
        except KubeError as error:
            if error.status != 404 or not seen:
                raise
        return seen

    return read


def _merge(seen: RunFile, now: RunFile) -> RunFile:
    uids = {item.uid for item in seen.submissions}
    items = [*seen.submissions, *(item for item in now.submissions if item.uid not in uids)]
    namespaces = list(dict.fromkeys([*seen.namespaces, *now.namespaces]))
    return replace(
        seen, namespaces=namespaces, submissions=sorted(items, key=lambda item: item.index)
    )


async def _created_by_run(
    kube: Kube, resource: Resource, run: str, namespace: str | None
) -> list[dict[str, Any]]:
    """Return the objects that the run itself created.

    Controllers may copy labels to the objects they own, as KubeVirt does for launcher pods.
    """
    bodies = await kube.list(resource, namespace, labels=f"{RUN_LABEL}={run},{INDEX_LABEL}")
    return [
        body
        for body in bodies
        if not any(
            owner.get("controller") for owner in body["metadata"].get("ownerReferences") or ()
        )
    ]


def _index(body: dict[str, Any]) -> int:
    return int(body["metadata"]["labels"][INDEX_LABEL])


def _existing_object(body: dict[str, Any], shift: int) -> Submission:
    metadata = body["metadata"]
    due = (metadata.get("annotations") or {}).get(SUBMIT_ANNOTATION) or metadata[
        "creationTimestamp"
    ]
    at = unix_ns(due) - shift
    return Submission(
        _index(body), metadata["name"], metadata["namespace"], at, at, at, metadata["uid"]
    )
