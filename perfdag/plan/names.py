"""The check of a plan.json: names that become keys of the store, and options that steps read."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Strict, StringConstraints, ValidationError

from perfdag.suite.model import SuiteName

RUN_ID = r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}[ab]?"
RunId = Annotated[str, StringConstraints(pattern=f"^{RUN_ID}$")]
PointId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]


class _Point(BaseModel):
    id: PointId


class _Options(BaseModel):
    confirms: RunId | None = None
    confirmed: list[RunId] = []
    other: RunId | None = None
    priority: Annotated[int, Strict()] = 0
    pending_limit: float = 600


class Names(BaseModel):
    """The run, its options, the suite and the points of a plan.json."""

    run_id: RunId
    suite: SuiteName
    points: list[_Point]
    options: _Options = _Options()


def is_run_id(text: str) -> bool:
    """Return whether a text has the form of a run id."""
    return re.fullmatch(RUN_ID, text) is not None


def check_names(raw: Mapping[str, Any]) -> None:
    """Check a plan.json. Raises ValueError, which says where the first error is."""
    try:
        Names.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{place} {str(first['input'])[:80]!r}: {first['msg']}") from None
