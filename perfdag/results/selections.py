"""Which runs of one suite a text selects.

A text is an id, the beginning of one, `last`, `last~2`, `baseline:NAME`, or conditions such as
`suite=net month=2026-10`. A baseline is runs under a name, to compare with: baselines.json of a
store.
"""

import fnmatch
import re
from collections.abc import Mapping
from datetime import date

import orjson
from pydantic import BaseModel, TypeAdapter, ValidationError

from perfdag.plan import Plan
from perfdag.redaction import logger
from perfdag.results.run_store import PARTIAL, RunStore, Selection, SelectionError, day_of
from perfdag.store.base import NotStoredError, Store, store_option
from perfdag.store.s3 import open_store
from perfdag.suite.document import choices, nearest
from perfdag.units import plural

KEYS = ("suite", "month", "run", "since", "until", "newest")


def select(runs: RunStore, selector: str, suite: str | None = None) -> Selection:
    """Return the runs of one suite that match the words. Raises SelectionError, StoreError.

    `suite` narrows `last` and conditions. Runs of `ab` have no history and never match. A
    recheck matches only by its id.
    """
    if selector.startswith("baseline:"):
        return baseline(runs.store, selector.removeprefix("baseline:"), suite)
    where = store_option(runs.store.root)
    stored = {run: of for run, of in runs.suites_by_run.items() if of and suite in (None, of)}
    if not stored:
        if (suites := runs.suites()) and suite:
            names = choices(suite, suites, "there are")
            raise SelectionError(f"store {runs.store.root} has no results of suite {suite}{names}")
        raise SelectionError(
            f"store {runs.store.root} has no results: run a suite, or `perfdag collect RUN {where}`"
        )
    if "=" in selector:
        return _conditions(runs, selector, stored)
    if selector in runs.suites_by_run and runs.suites_by_run[selector] is None:
        raise SelectionError(
            f"run {selector} has samples but no results yet: `perfdag collect {selector} {where}`"
        )
    try:
        run = runs.find(selector, stored)
    except NotStoredError as error:
        raise SelectionError(str(error)) from None
    if runs.trigger(run) == "ab":
        raise SelectionError(
            f"run {run} is one variant of `perfdag ab`, which has no past: "
            f"`perfdag ab --resume {run} {where}` shows the outcome"
        )
    return Selection(selector, stored[run], (run,))


def select_one(runs: RunStore, selector: str, suite: str | None = None) -> tuple[str, str]:
    """Return (run id, suite) of the only run that matches. Raises SelectionError."""
    selection = select(runs, selector, suite)
    if len(selection.runs) != 1:
        raise SelectionError(f"{selector}: {len(selection.runs)} runs; name one of them")
    return selection.runs[0], selection.suite


def _conditions(runs: RunStore, selector: str, stored: Mapping[str, str]) -> Selection:
    conditions = dict(_condition(condition) for condition in re.split(r"[\s,]+", selector.strip()))
    matching = {
        run: suite
        for run, suite in stored.items()
        if suite == conditions.get("suite", suite)
        and day_of(run).startswith(conditions.get("month", ""))
        and fnmatch.fnmatchcase(run, conditions.get("run", "*"))
        and conditions.get("since", "") <= day_of(run) <= conditions.get("until", "9999")
    }
    if not matching:
        suites = sorted(set(stored.values()))
        days = [day_of(run) for run in stored]
        suite = conditions.get("suite", suites[0])
        hint = "" if suite in suites else nearest(suite, suites)
        raise SelectionError(
            f"{selector}: no run fits{hint}; suites: {', '.join(suites)}; "
            f"{plural(len(days), 'run')} from {days[0]} to {days[-1]}"
        )
    suites = sorted(set(matching.values()))
    if len(suites) > 1:
        raise SelectionError(
            f"{selector}: runs of several suites ({', '.join(suites)}); add suite=NAME"
        )
    of_suite = tuple(run for run in matching if runs.trigger(run) not in PARTIAL)
    if not of_suite:
        raise SelectionError(f"{selector}: only runs of `perfdag ab` and rechecks of others fit")
    newest = int(conditions.get("newest", len(of_suite)))
    return Selection(selector, suites[0], of_suite[-newest:])


def _condition(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or key not in KEYS:
        forms = ", ".join(f"{name}=..." for name in KEYS)
        raise SelectionError(f"{text}: a condition is one of {forms}{nearest(key, KEYS)}")
    if key in ("since", "until"):
        try:
            date.fromisoformat(value)
        except ValueError:
            raise SelectionError(f"{text}: write a day as 2026-10-31") from None
    if key == "month" and not re.fullmatch(r"\d{4}(-\d\d)?", value):
        raise SelectionError(f"{text}: write a month as 2026-10, or a year as 2026")
    if key == "newest" and not (value.isdigit() and int(value)):
        raise SelectionError(f"{text}: newest is how many runs, one or more")
    return key, value


def read_run(root: str | None, selector: str) -> tuple[RunStore, Plan]:
    """Return the runs of a store, and the plan of the one that `selector` names.

    The plan has no points where the run's rows alone are left. Raises StoreError.
    """
    runs = RunStore(open_store(root))
    if selector.startswith("baseline:"):
        selector = select_one(runs, selector)[0]
    run_id = runs.find(selector)
    explain_last(runs, selector, run_id)
    return runs, runs.plan_or_rows(run_id)


def explain_last(runs: RunStore, selector: str, run_id: str) -> None:
    """Report the newer run of a suite that `last` does not mean. Raises StoreError."""
    if selector == "last" and (note := runs.newer_note(run_id)):
        logger.info(f"note: {note}")


BASELINES = "baselines.json"


class Baseline(BaseModel):
    """Runs of one suite under a name."""

    runs: list[str]
    note: str = ""


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
    stored = baselines(store)
    if name not in stored:
        hint = f"`perfdag baseline set NAME RUN {store_option(store.root)}` makes one"
        if stored:
            hint = f"there are {', '.join(sorted(stored))}"
        raise SelectionError(f"no baseline {name}{nearest(name, stored)}; {hint}")
    suites = stored[name]
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
    stored = baselines(store)
    stored.setdefault(name, {})[selection.suite] = Baseline(runs=list(selection.runs), note=note)
    options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS
    store.put(BASELINES, orjson.dumps(stored, default=Baseline.model_dump, option=options))
