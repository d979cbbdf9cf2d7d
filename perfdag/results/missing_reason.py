"""Why a sample is missing: the one record, and which reason wins.

A pod that cannot start, a node that dies and a budget that ends are noticed in different places.
Each place writes a `MissingReason` as a note in the store. The watchdog of a run whose store is a
claim has no access to it: it writes an annotation of the Workflow, which the last step copies.
Collect calls `reason_for` for every sample that is not stored.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson

from perfdag.redaction import redact_json
from perfdag.results.runs import run_folder
from perfdag.store.base import Store

Kind = Literal["budget", "sample", "batch", "plan", "workflow"]
PRECEDENCE: Mapping[Kind, str] = {
    "budget": "its gang measured until the budget was spent, so a note of its batch is older",
    "sample": "when and where the sample was measured when its pod ended",
    "batch": "why the pods of its batch did not start or ended early",
    "plan": "why the cluster refused the run as a whole",
    "workflow": "what ended the Workflow early",
}
"""The kinds of reason in order of precedence, and what each says about a sample."""

NOTES = "perfdag/notes"
"""Annotation of a Workflow whose store is a claim: its owner, then the reasons by batch."""
NOTE_LENGTH, NOTES_BYTES = 400, 60_000
"""Limits of the annotation, as objects are limited: characters of a reason, bytes of all."""


@dataclass(frozen=True)
class MissingReason:
    """Why samples are missing. `status` is that of their rows."""

    kind: Kind
    status: str
    text: str
    batch: int | None = None
    """The batch in the run's plan. None: the reason holds for all samples of the run."""
    samples: tuple[str, ...] = ()
    """The samples that the reason `sample` is about, by their names in the store."""
    attempt: int | None = None
    """The attempt at the batch, from 1, that measured these samples."""
    node: str | None = None
    """The node of its lead."""

    @property
    def name(self) -> str:
        """The name of its note. A newer one of that name replaces it."""
        parts = (self.kind, self.batch, self.attempt)
        return "-".join(str(part) for part in parts if part is not None)


def budget_spent(seconds: float, batch: int | None = None) -> MissingReason:
    """Return the reason of samples that the budget of a run, in seconds, left unmeasured."""
    return MissingReason("budget", "skipped", f"the budget of {seconds:g} s was spent", batch)


UNKNOWN = MissingReason("workflow", "missing", "planned, but no result was stored")
"""The reason of samples about which nothing is known."""


def reason_for(
    reasons: Iterable[MissingReason], batch: int | None, sample: str = ""
) -> MissingReason:
    """Return why a sample of `batch` is missing: the first reason by PRECEDENCE that applies.

    `sample` is its name in the store. The last attempt at it counts, with what ended its pod.
    """
    rank = list(PRECEDENCE)
    matching = sorted(
        (
            reason
            for reason in reasons
            if reason.batch in (None, batch)
            and (reason.kind != "sample" or sample in reason.samples)
        ),
        key=lambda reason: (rank.index(reason.kind), -(reason.attempt or 0)),
    )
    if not matching:
        return UNKNOWN
    first, why = matching[0], [reason.text for reason in matching if reason.kind != "sample"]
    return replace(first, text=f"{first.text}: {why[0]}") if first.samples and why else first


# -- notes in the store ---------------------------------------------------------------------------


def write(store: Store, run_id: str, reason: MissingReason) -> None:
    """Write a reason into the store. Raises StoreError."""
    batches = None if reason.batch is None else [reason.batch]
    note: dict[str, Any] = {"status": reason.status, "reason": reason.text, "batches": batches}
    if reason.kind == "sample":
        note |= {"samples": reason.samples, "attempt": reason.attempt, "node": reason.node}
    data = redact_json(orjson.dumps(note, option=orjson.OPT_SORT_KEYS))
    store.put(f"{_folder(run_id)}/{reason.name}.json", data)


def forget(store: Store, run_id: str, name: str = "") -> None:
    """Remove the reason with a name, or all of a run that is resumed. Raises StoreError."""
    store.delete(f"{_folder(run_id)}/{name}.json" if name else _folder(run_id))


def stored_reasons(store: Store, run_id: str) -> list[MissingReason]:
    """Return the reasons of a run that are in the store. Raises StoreError."""
    reasons = []
    for key, data in store.get_many(store.list(_folder(run_id))):
        note = orjson.loads(data)
        name = key.rpartition("/")[2]
        kind = next(kind for kind in PRECEDENCE if name.startswith(kind))
        batch, samples = (note["batches"] or [None])[0], tuple(note.get("samples", ()))
        of_samples = (samples, note.get("attempt"), note.get("node"))
        reasons.append(MissingReason(kind, note["status"], note["reason"], batch, *of_samples))
    return reasons


def _folder(run_id: str) -> str:
    return f"{run_folder(run_id)}/notes"


# -- an annotation of the Workflow ----------------------------------------------------------------


def as_annotation(owner: str, texts: Mapping[int, str]) -> dict[str, str]:
    """Return the annotation with the reasons of batches, or an empty mapping if there are none.

    `owner` identifies the Workflow and its attempt, and is the start of the annotation. Reasons are
    truncated, and dropped where they exceed the limits of an object.
    """
    annotations: dict[str, str] = {}
    for batch, text in sorted(texts.items()):
        annotations[str(batch)] = text[:NOTE_LENGTH]
        if len(orjson.dumps(annotations)) > NOTES_BYTES:
            del annotations[str(batch)]
            break
    return {NOTES: f"{owner}{orjson.dumps(annotations).decode()}"} if annotations else {}


def from_annotations(owner: str, annotations: Mapping[str, str]) -> dict[int, str]:
    """Return the reasons by batch number, or none if the annotation has another owner."""
    value = annotations.get(NOTES, "")
    items = orjson.loads(value.removeprefix(owner)) if value.startswith(owner) else {}
    return {int(batch): text for batch, text in items.items()}
