"""The rules of a gate: `checks` of the suite, and acknowledgements in acks.yaml."""

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from perfdag.regress.history import Acknowledgement
from perfdag.regress.result import Rules
from perfdag.results.runs import load_plan
from perfdag.store.base import NotStoredError, Store, StoreError
from perfdag.suite.document import (
    BadDocument,
    Document,
    Problem,
    parse_document,
    read_document,
)
from perfdag.suite.model import Check, checks_of

ACKS = "acks.yaml"


class Ack(BaseModel):
    """From `run` on, the level of these series is the baseline, and they raise no alert."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    series: str = Field(
        min_length=1, description="series as alerts name it, a glob, or a series id"
    )
    run: str = Field(pattern=r"^\d{8}T\d{6}Z", description="first run of the accepted level")
    reason: str = Field(min_length=1)
    until: Annotated[date | None, BeforeValidator(lambda value: value or None)] = Field(
        None, description="last day that it holds"
    )


class Acks(BaseModel):
    """The content of acks.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    acks: list[Ack] = []


def read_acks(file: str | None, store: Store) -> tuple[list[Acknowledgement], str]:
    """Return the acknowledgements and the name of their file. Raises BadDocument, StoreError.

    The file is `file`, else ./acks.yaml, else acks.yaml of the store.
    """
    if file is not None or Path(ACKS).exists():
        return _accepted(read_document(file or ACKS)), file or ACKS
    accepted, url = stored_acks(store)
    return accepted, url if accepted else ACKS


def stored_acks(store: Store) -> tuple[list[Acknowledgement], str]:
    """Return the acknowledgements of the store and their URL. Raises BadDocument, StoreError."""
    url = store.url(ACKS)
    try:
        return _accepted(parse_document(store.get(ACKS).decode(errors="replace"), url)), url
    except NotStoredError:
        return [], url


def unattended_rules(store: Store, checks: list[Check]) -> Rules:
    """Return the rules for a scheduled run. Raises StoreError.

    Unreadable acknowledgements of the store count as none. The error becomes an alert of the gate.
    """
    try:
        accepted, file = stored_acks(store)
    except BadDocument as error:
        return Rules(checks, [], store.url(ACKS), acks_wrong=str(error))
    return Rules(checks, accepted, file)


def put_acks(store: Store, file: str) -> list[Acknowledgement]:
    """Validate a file of acknowledgements and store it. Raises BadDocument, StoreError."""
    document = read_document(file)
    accepted = _accepted(document)
    store.put(ACKS, document.text.encode())
    return accepted


def _accepted(document: Document) -> list[Acknowledgement]:
    data = document.data if document.data is not None else {}
    content = {"acks": data} if isinstance(data, list) else data
    try:
        model = Acks.model_validate(content)
    except ValidationError as error:
        raise BadDocument(
            [_problem(document, problem, isinstance(data, list)) for problem in error.errors()]
        ) from None
    return [
        Acknowledgement(a.series, a.run, a.reason, a.until.isoformat() if a.until else "")
        for a in model.acks
    ]


def _problem(document: Document, error: Mapping[str, Any], bare: bool) -> Problem:
    path = tuple(error["loc"])[1 if bare else 0 :]
    text = (
        "is required"
        if error["type"] == "missing"
        else str(error["msg"]).removeprefix("Value error, ")
    )
    if error["type"] == "extra_forbidden":
        text = "unknown key; allowed: series, run, reason, until"
    return document.problem(path, text)


def read_checks(store: Store, run_id: str) -> list[Check]:
    """Return the checks of the suite in a run's plan; none without a plan. Raises BadDocument."""
    try:
        plan = load_plan(store, run_id)
    except StoreError:
        return []
    return checks_of(plan.suite_text)
