"""Alerts of a run, as the store records them, and the messages that readers make of them."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import orjson

from perfdag.store.base import Store

Kind = Literal["worse", "recovered", "threshold", "verdict", "absent", "stale", "acks"]
REPORT, STORE = "{report}", "{store}"
"""Placeholders of addresses in what to do."""


@dataclass
class Alert:
    """One cause: `text` says what was seen, `keys` are its series, `run` is its start.

    `do` is what to do, with the placeholders REPORT and STORE, and `accept` the acknowledgement
    that accepts it. `gates`: it fails the gate. `fresh`: the run before did not have it. `sent`:
    the webhook accepted it.
    """

    kind: Kind
    title: str
    text: str
    keys: list[str]
    run: str
    do: str = ""
    accept: str = ""
    gates: bool = True
    fresh: bool = True
    sent: bool = False


def message(alert: Alert, report: str, store: str, acks: str) -> str:
    """Return the message of an alert, at most 12 lines.

    `report` is the address of the run's report, `store` that of the store, `acks` the file of
    acknowledgements. They depend on who reads the message.
    """
    lines = [alert.text]
    if alert.do:
        do = alert.do.replace(REPORT, report).replace(STORE, shlex.quote(store))
        lines.append(f"do      {do}")
    if alert.accept:
        lines.append(f"accept  in {acks}: {alert.accept}")
    return "\n".join(lines)


@dataclass
class Record:
    """The alerts of one run, as stored under alerts/. `failed`: its gate failed."""

    run: str
    alerts: list[Alert]
    failed: bool

    def dump(self) -> bytes:
        """Return the record as JSON."""
        alerts = [alert.__dict__ for alert in self.alerts]
        data = {"schema": 1, "run": self.run, "failed": self.failed, "alerts": alerts}
        return orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)


def record_key(suite: str, run_id: str) -> str:
    """Return the key of the record of a run."""
    return f"alerts/{suite}/{run_id}.json"


def mark_known(alerts: Sequence[Alert], previous: Record | None, own: Record | None) -> None:
    """Mark the alerts that the run before, or an earlier check of this run, had already."""
    for alert in alerts:
        records = [record for record in (previous, own) if record]
        old = [each for record in records for each in record.alerts if each.kind == alert.kind]
        # One more series of a cause makes a known alert fresh.
        alert.fresh = not set(alert.keys) <= {key for each in old for key in each.keys}
        alert.sent = set(alert.keys) <= {key for each in old if each.sent for key in each.keys}


def read_records(store: Store, suite: str) -> dict[str, Record]:
    """Return the newest records by run id, oldest first. Raises StoreError.

    At most 120. A damaged record counts as none.
    """
    keys = [key for key in store.list(f"alerts/{suite}") if key.endswith(".json")][-120:]
    records = {}
    for _, data in store.get_many(keys):
        try:
            raw = orjson.loads(data)
            alerts = [Alert(**alert) for alert in raw["alerts"]]
            records[raw["run"]] = Record(raw["run"], alerts, raw["failed"])
        except (ValueError, KeyError, TypeError):
            continue
    return records


def acknowledgement(name: str, run_id: str) -> str:
    """Return an acknowledgement as acks.yaml has it, for a person to complete."""
    return f"{{series: '{name}', run: {run_id}, reason: ...}}"
