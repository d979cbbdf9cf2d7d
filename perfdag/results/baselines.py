"""Runs under a name, to compare with: baselines.json of a store."""

from datetime import UTC, datetime

import orjson
from pydantic import BaseModel, TypeAdapter, ValidationError

from perfdag.results.runs import Selection, SelectionError
from perfdag.store.base import NotStoredError, Store, store_option
from perfdag.suite.document import nearest

BASELINES = "baselines.json"


class Baseline(BaseModel):
    """Runs of one suite under a name, and when it was given (ISO 8601)."""

    runs: list[str]
    note: str = ""
    set_at: str = ""


def baselines(store: Store) -> dict[str, dict[str, Baseline]]:
    """Return baselines: name -> suite -> Baseline. Raises SelectionError."""
    try:
        return TypeAdapter(dict[str, dict[str, Baseline]]).validate_json(store.get(BASELINES))
    except NotStoredError:
        return {}
    except ValidationError:
        raise SelectionError(
            f"{store.url(BASELINES)} is damaged: it holds no names with runs; restore or delete it"
        ) from None


def baseline(store: Store, name: str, suite: str | None = None) -> Selection:
    """Return the runs of a named baseline. Raises SelectionError."""
    known = baselines(store)
    if name not in known:
        some = ", ".join(sorted(known))
        command = f"perfdag baseline set NAME RUN {store_option(store.root)}"
        some = f"there are {some}" if known else f"`{command}` makes one"
        raise SelectionError(f"no baseline {name}{nearest(name, known)}; {some}")
    suites = known[name]
    chosen = suite or (next(iter(suites)) if len(suites) == 1 else "")
    if chosen not in suites:
        wrong = f", not of {suite}" if suite else ""
        raise SelectionError(
            f"baseline {name} has runs of {', '.join(sorted(suites))}{wrong}; add --suite NAME"
        )
    return Selection(f"baseline:{name}", chosen, tuple(suites[chosen].runs))


def put_baseline(store: Store, name: str, selection: Selection, note: str = "") -> None:
    """Store a selection as a named baseline. Raises SelectionError, StoreError.

    Other suites under that name stay.
    """
    known = baselines(store)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    new = Baseline(runs=list(selection.runs), note=note, set_at=now)
    known.setdefault(name, {})[selection.suite] = new
    options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS
    store.put(BASELINES, orjson.dumps(known, default=Baseline.model_dump, option=options))
