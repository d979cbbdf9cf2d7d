"""Select runs by id, prefix, `last`, `last~2`, `baseline:NAME`, or conditions.

Conditions are words such as `suite=net month=2026-10`.
"""

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime

import orjson
from pydantic import BaseModel, TypeAdapter, ValidationError

from perfdag.analysis.medians import read_run_medians
from perfdag.results.runs import PARTIAL, RunStore, SelectionError as SelectionError, day_of
from perfdag.store.base import NotStoredError, Store
from perfdag.suite.document import nearest
from perfdag.units import plural

KEYS = ("suite", "month", "run", "since", "until", "newest")
BASELINES = "baselines.json"


@dataclass(frozen=True)
class Selection:
    """Runs of one suite, oldest first, and the words that selected them."""

    words: str
    suite: str
    runs: tuple[str, ...]


def select(runs: RunStore, selector: str, suite: str | None = None) -> Selection:
    """Return the runs of one suite that match the words. Raises SelectionError, StoreError.

    `suite` narrows `last` and conditions. Runs of `ab` have no history and never match. A
    recheck matches only by its id.
    """
    if selector.startswith("baseline:"):
        return baseline(runs.store, selector.removeprefix("baseline:"), suite)
    stored = {run: of for run, of in runs.known.items() if of and suite in (None, of)}
    if not stored:
        results = f"results of suite {suite}{nearest(suite, runs.suites())}" if suite else "results"
        raise SelectionError(
            f"store {runs.store.root} has no {results}: run a suite, or `perfdag collect RUN`"
        )
    if "=" in selector:
        return _conditions(runs.store, selector, stored)
    if selector in runs.known and runs.known[selector] is None:
        raise SelectionError(
            f"run {selector} has samples but no results yet: `perfdag collect {selector}`"
        )
    try:
        run = runs.find(selector, stored)
    except NotStoredError as error:
        raise SelectionError(str(error)) from None
    if runs.trigger(run) == "ab":
        raise SelectionError(
            f"run {run} is one variant of `perfdag ab`, which has no past: "
            f"`perfdag ab --resume {run}` shows the outcome"
        )
    return Selection(selector, stored[run], (run,))


def select_one(runs: RunStore, selector: str, suite: str | None = None) -> tuple[str, str]:
    """Return (run id, suite) of the only run that matches. Raises SelectionError."""
    selection = select(runs, selector, suite)
    if len(selection.runs) != 1:
        raise SelectionError(f"{selector}: {len(selection.runs)} runs; name one of them")
    return selection.runs[0], selection.suite


def _conditions(store: Store, selector: str, stored: Mapping[str, str]) -> Selection:
    conditions = dict(_pair(condition) for condition in re.split(r"[\s,]+", selector.strip()))
    matching = []
    for run, suite in stored.items():
        day = day_of(run)
        if (
            suite == conditions.get("suite", suite)
            and day.startswith(conditions.get("month", ""))
            and fnmatch.fnmatchcase(run, conditions.get("run", "*"))
            and conditions.get("since", "") <= day
            and day <= conditions.get("until", "9999")
        ):
            matching.append((run, suite))
    suites = sorted({suite for _, suite in matching})
    if not matching:
        known = sorted(set(stored.values()))
        hint = (
            nearest(conditions["suite"], known)
            if conditions.get("suite", known[0]) not in known
            else ""
        )
        raise SelectionError(
            f"{selector}: no run fits{hint}; suites: {', '.join(known)}; {_extent([*stored])}"
        )
    if len(suites) > 1:
        raise SelectionError(
            f"{selector}: runs of several suites ({', '.join(suites)}); add suite=NAME"
        )
    runs = _whole(store, suites[0], [run for run, _ in matching])
    if not runs:
        raise SelectionError(f"{selector}: only runs of `perfdag ab` and rechecks of others fit")
    if "newest" in conditions:
        runs = runs[-int(conditions["newest"]) :]
    return Selection(selector, suites[0], tuple(runs))


def _whole(store: Store, suite: str, runs: list[str]) -> list[str]:
    """Remove variants and rechecks. A damaged run stays, so that it is reported later."""
    history = read_run_medians(store, suite)
    known = {run.run_id: run.trigger for run in history.runs}
    damaged = {key.rpartition("/")[2].removesuffix(".parquet") for key in history.damaged}
    return [run for run in runs if (run in known and known[run] not in PARTIAL) or run in damaged]


def _extent(runs: list[str]) -> str:
    return f"{plural(len(runs), 'run')} from {day_of(runs[0])} to {day_of(runs[-1])}"


def _pair(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals or key not in KEYS:
        known = ", ".join(f"{name}=..." for name in KEYS)
        raise SelectionError(f"{word}: a condition is one of {known}{nearest(key, KEYS)}")
    if key in ("since", "until"):
        try:
            date.fromisoformat(value)
        except ValueError:
            raise SelectionError(f"{word}: write a day as 2026-10-31") from None
    if key == "month" and not re.fullmatch(r"\d{4}(-\d\d)?", value):
        raise SelectionError(f"{word}: write a month as 2026-10, or a year as 2026")
    if key == "newest" and not (value.isdigit() and int(value)):
        raise SelectionError(f"{word}: newest is how many runs, one or more")
    return key, value


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
        hint = (
            f"; there are {', '.join(sorted(known))}"
            if known
            else "; `perfdag baseline set NAME RUN` makes one"
        )
        raise SelectionError(f"no baseline {name}{nearest(name, known)}{hint}")
    suites = known[name]
    if suite is None and len(suites) > 1:
        raise SelectionError(
            f"baseline {name} has runs of {', '.join(sorted(suites))}; add --suite NAME"
        )
    chosen = suite or next(iter(suites))
    if chosen not in suites:
        raise SelectionError(
            f"baseline {name} has no runs of suite {chosen}; it has {', '.join(sorted(suites))}"
        )
    return Selection(f"baseline:{name}", chosen, tuple(suites[chosen].runs))


def set_baseline(store: Store, name: str, selection: Selection, note: str = "") -> None:
    """Store a selection as a named baseline. Raises SelectionError, StoreError.

    Other suites under that name stay.
    """
    known = baselines(store)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    new = Baseline(runs=list(selection.runs), note=note, set_at=now)
    known.setdefault(name, {})[selection.suite] = new
    options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS
    store.put(BASELINES, orjson.dumps(known, default=Baseline.model_dump, option=options))
