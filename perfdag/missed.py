"""Whether a suite is measured as often as its schedule says: the age of its newest run, and what was told of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import orjson

from perfdag.alerts import Alert
from perfdag.rollup import read_run_medians
from perfdag.store import NotStoredError, Store
from perfdag.trends import RunInfo


def newest(runs: Sequence[RunInfo], cluster: str) -> RunInfo | None:
    """Return the newest run of a cluster by which its suite's age is counted.

    A run that confirms another is none; where a suite runs on a schedule, no run by hand stands for a night that never came.
    """
    there = [run for run in runs if run.cluster == cluster and run.trigger not in ("ab", "confirm")]
    scheduled = [run for run in there if run.trigger == "cron"]
    return max(scheduled or there, key=lambda run: run.when, default=None)


def stale(suite: str, run: RunInfo, hours: float, now: datetime) -> Alert | None:
    """Return the alert that a suite's newest run began more than `hours` ago, None where it did not."""
    age = (now - run.when).total_seconds() / 3600
    if age <= hours:
        return None
    of = "scheduled run" if run.trigger == "cron" else "run"
    title = f"STALE {suite}: the newest {of} is {age:.0f} h old"
    text = f"{title}\nwhat    it began {run.when:%Y-%m-%d %H:%M} UTC; at most {hours:g} h are allowed\ndo      look at the schedule"
    return Alert("stale", title, text, [run.when.isoformat()], run.run_id)


@dataclass
class Watch:
    """What is known of a suite's schedule on a cluster: since when (ISO 8601) somebody looks, and the key of what was told last."""

    since: str
    told: str = ""


def _key(suite: str, cluster: str) -> str:
    return f"alerts/due/suite={suite}/cluster={cluster or 'none'}.json"


def watch(store: Store, suite: str, cluster: str, now: datetime) -> Watch:
    """Return what is known, from now on where nothing is. Raises StoreError."""
    try:
        raw = orjson.loads(store.get(_key(suite, cluster)))
        datetime.fromisoformat(raw["since"])
        return Watch(raw["since"], raw["told"])
    except NotStoredError:
        pass
    except (ValueError, KeyError, TypeError):
        store.delete(_key(suite, cluster))
    made = Watch(now.isoformat())
    keep(store, suite, cluster, made)
    return made


def keep(store: Store, suite: str, cluster: str, known: Watch) -> None:
    """Store what is known. Raises StoreError."""
    store.put(_key(suite, cluster), orjson.dumps(known))


def overdue(
    store: Store, suite: str, hours: float, cluster: str, now: datetime | None = None
) -> tuple[str, Alert | None]:
    """Return how the newest scheduled run of a suite on a cluster stands, and the alert where it is older than `hours`.

    Where there was none yet, the time is counted from the first time that somebody asked. The alert is marked sent where it was told
    before. Raises StoreError.
    """
    now = now or datetime.now(UTC)
    known = watch(store, suite, cluster, now)
    scheduled = [run for run in read_run_medians(store, suite).runs if run.trigger == "cron"]
    last = newest(scheduled, cluster)
    if last is not None:
        said, alert = (
            f"the newest scheduled run, {last.run_id}, is younger than {hours:g} h",
            stale(suite, last, hours, now),
        )
    else:
        since = datetime.fromisoformat(known.since)
        said, alert = (
            f"no scheduled run yet; looked for since {since:%Y-%m-%d %H:%M} UTC, {hours:g} h are allowed",
            None,
        )
        if (now - since).total_seconds() / 3600 > hours:
            title = f"STALE {suite}: no scheduled run has any results"
            what = f"what    looked for since {since:%Y-%m-%d %H:%M} UTC; at most {hours:g} h are allowed"
            alert = Alert(
                "stale",
                title,
                f"{title}\n{what}\ndo      look at the schedule and its Workflows",
                [known.since],
                "",
            )
    if alert is not None:
        alert.fresh = known.told not in alert.keys
        alert.sent = not alert.fresh
    return f"{suite}: {said}", alert


def told(store: Store, suite: str, cluster: str, alert: Alert) -> None:
    """Remember that a missed night was told. Raises StoreError."""
    known = watch(store, suite, cluster, datetime.now(UTC))
    keep(store, suite, cluster, Watch(known.since, alert.keys[0]))
