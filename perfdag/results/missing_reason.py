"""Why a sample is missing: the one record, its three channels, and which reason wins.

A pod that cannot start, a node that dies and a budget that ends are noticed in different places.
Each place writes a `MissingReason` through this module:

- a note in the store, if the process that notices has access to the store;
- an annotation of the Workflow, if it has not: the watchdog of a run whose store is a claim;
- the termination message of a container, which names the point it measures, because a killed
  process cannot write any more.

The last step copies annotations into notes. The next attempt's lead copies termination messages
into the crash records of the batch. Collect calls `reason_for` for every sample that is not stored.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import orjson

from perfdag.redaction import redact_json
from perfdag.results.samples import run_folder
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

_SAMPLE = re.compile(r"\b([0-9a-f]{16})-w?[0-9]+\b")


@dataclass(frozen=True)
class Flight:
    """A sample that was being measured when its pod ended.

    `sample` is its name in the store. Attempts at the batch count from 1; the time is UTC in ISO
    8601.
    """

    sample: str
    attempt: int
    node: str
    ended_at: str
    why: str

    def reason(self) -> "MissingReason":
        """Return why the sample is missing."""
        place = f"attempt {self.attempt} on {self.node} at {self.ended_at}"
        text = f"in flight when its pod ended ({place}): {self.why}"
        return MissingReason("sample", "failed", text, flight=self)


@dataclass(frozen=True)
class MissingReason:
    """Why samples are missing. `status` is that of their rows."""

    kind: Kind
    status: str
    text: str
    batch: int | None = None
    """The batch in the run's plan. None: the reason holds for all samples of the run."""
    flight: Flight | None = None
    """The one sample that the reason is about, or None."""

    @property
    def name(self) -> str:
        """The name of its note. A newer reason of the same kind and batch replaces it."""
        if self.flight:
            return f"{self.kind}-{self.flight.sample}"
        return self.kind if self.batch is None else f"{self.kind}-{self.batch}"


def budget_spent(seconds: float, batch: int | None = None) -> MissingReason:
    """Return the reason of samples that the budget of a run, in seconds, left unmeasured."""
    return MissingReason("budget", "skipped", f"the budget of {seconds:g} s was spent", batch)


UNKNOWN = MissingReason("workflow", "missing", "planned, but no result was stored")
"""The reason of samples about which nothing is known."""


def reason_for(
    reasons: Iterable[MissingReason], batch: int | None, sample: str = ""
) -> MissingReason:
    """Return why a sample of `batch` is missing: the first reason by PRECEDENCE that applies.

    `sample` is its name in the store.
    """
    rank = list(PRECEDENCE)
    matching = [
        reason
        for reason in reasons
        if reason.batch in (None, batch)
        and (reason.flight is None or reason.flight.sample == sample)
    ]
    return min(matching, key=lambda reason: (rank.index(reason.kind), reason.name), default=UNKNOWN)


# -- notes in the store ---------------------------------------------------------------------------


def write(store: Store, run_id: str, reason: MissingReason) -> None:
    """Write a reason into the store. Raises StoreError."""
    batches = None if reason.batch is None else [reason.batch]
    note: dict[str, Any] = {"status": reason.status, "reason": reason.text, "batches": batches}
    if reason.flight:
        note["flight"] = asdict(reason.flight)
    data = redact_json(orjson.dumps(note, option=orjson.OPT_SORT_KEYS))
    store.put(f"{_folder(run_id)}/{reason.name}.json", data)


def forget_batch(store: Store, run_id: str, batch: int) -> None:
    """Remove the reason of a batch whose gang runs now. Raises StoreError."""
    store.delete(f"{_folder(run_id)}/batch-{batch}.json")


def forget_all(store: Store, run_id: str) -> None:
    """Remove the reasons of a run that is resumed. Raises StoreError."""
    store.delete(_folder(run_id))


def stored_reasons(store: Store, run_id: str) -> list[MissingReason]:
    """Return the reasons of a run that are in the store. Raises StoreError."""
    reasons = []
    for key, data in store.get_many(store.list(_folder(run_id))):
        note = orjson.loads(data)
        name = key.rpartition("/")[2]
        kind = next(kind for kind in PRECEDENCE if name.startswith(kind))
        flight = Flight(**note["flight"]) if "flight" in note else None
        batch = (note["batches"] or [None])[0]
        reasons.append(MissingReason(kind, note["status"], note["reason"], batch, flight))
    return reasons


def _folder(run_id: str) -> str:
    return f"{run_folder(run_id)}/notes"


# -- an annotation of the Workflow ----------------------------------------------------------------


def as_annotation(
    owner: str, texts: Mapping[int, str], flights: Mapping[str, tuple[int, Flight]] = {}
) -> dict[str, str]:
    """Return the annotation with the reasons of batches, or an empty mapping if there are none.

    `flights` has, by sample, its batch and how it was lost. They follow the batches.

    `owner` identifies the Workflow and its attempt, and is the start of the annotation. Reasons are
    truncated, and dropped where they exceed the limits of an object.
    """
    annotations: dict[str, Any] = {}
    items: list[tuple[str, Any]] = [
        (str(batch), text[:NOTE_LENGTH]) for batch, text in sorted(texts.items())
    ]
    items += [
        (sample, {"batch": batch, **asdict(replace(flight, why=flight.why[:NOTE_LENGTH]))})
        for sample, (batch, flight) in sorted(flights.items())
    ]
    for name, item in items:
        annotations[name] = item
        if len(orjson.dumps(annotations)) > NOTES_BYTES:
            del annotations[name]
            break
    return {NOTES: f"{owner}{orjson.dumps(annotations).decode()}"} if annotations else {}


def from_annotations(owner: str, annotations: Mapping[str, str]) -> dict[int, str]:
    """Return the reasons by batch number, or none if the annotation has another owner."""
    items = _annotated(owner, annotations).items()
    return {int(name): item for name, item in items if isinstance(item, str)}


def flights_from_annotations(
    owner: str, annotations: Mapping[str, str]
) -> dict[str, tuple[int, Flight]]:
    """Return batch and flight of each sample, or none if the annotation has another owner."""
    items = _annotated(owner, annotations).items()
    return {
        name: (item.pop("batch"), Flight(**item))
        for name, item in items
        if not isinstance(item, str)
    }


def _annotated(owner: str, annotations: Mapping[str, str]) -> dict[str, Any]:
    value = annotations.get(NOTES, "")
    return dict(orjson.loads(value.removeprefix(owner))) if value.startswith(owner) else {}


# -- the termination message of a container -------------------------------------------------------


def as_termination_message(samples: Mapping[str, str]) -> str:
    """Return the message of a container that measures these samples.

    The mapping is from the name in the store to the name for people.
    """
    if not samples:
        return ""
    first, *others = samples.values()
    beside = f" and {len(others)} beside it" if others else ""
    # The kubelet keeps the end of a long message, so the names in the store come last.
    return f"measuring {first[:300]}{beside} [{' '.join(samples)}]"


def from_termination_messages(messages: Iterable[str]) -> list[str]:
    """Return the ids of the points that containers measured when they ended, sorted."""
    return sorted({match[1] for message in messages for match in _SAMPLE.finditer(message)})


def samples_in_flight(message: str) -> list[str]:
    """Return the names of the samples that a container measured when it ended."""
    return [match[0] for match in _SAMPLE.finditer(message)]


def write_crash(
    store: Store, run_id: str, batch: str, attempt: str, points: Sequence[str], how: str
) -> None:
    """Store the termination messages of an attempt, which are deleted with its pods.

    `batch` names the batch and its Workflow. Raises StoreError.
    """
    record = redact_json(orjson.dumps({"points": points, "how": how}))
    store.put(f"{_crash_folder(run_id, batch)}/{attempt}.json", record)


def stored_crashes(store: Store, run_id: str, batch: str) -> dict[str, list[str]]:
    """Return, by point id, how each gang of a batch ended that measured it. Raises StoreError."""
    crashes: dict[str, list[str]] = {}
    for _, data in store.get_many(store.list(_crash_folder(run_id, batch))):
        record = orjson.loads(data)
        for point in record["points"]:
            crashes.setdefault(point, []).append(record["how"])
    return crashes


def _crash_folder(run_id: str, batch: str) -> str:
    return f"{run_folder(run_id)}/killed/{batch}"
