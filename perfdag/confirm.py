"""The gate of a night: the run of the suite together with the runs that confirm it.

One run adds one value to a series, and one value is no level. Two more runs of the suspect points make
three, so that the detector can alert on a real step in the night it happens.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from perfdag.cases import Gate, Rules
from perfdag.gate import check
from perfdag.runs import load_plan
from perfdag.store import Store, StoreError

CHANGE_KINDS = ("regression", "environment")


def night(store: Store, suite: str, run_id: str, rules: Rules, now: datetime | None = None) -> Gate:
    """The gate of a run with what its confirming runs add; a confirming run stands for the one that it confirms.

    Thresholds and presence are those of the night's own run: a confirming run has only the suspicious points.
    Raises StoreError, SelectionError.
    """
    gate = check(store, suite, _confirms(store, run_id), rules, now)
    stored = {key.rpartition("/")[2] for key in store.list(f"results/suite={suite}")}
    runs = [each for each in _options(store, gate.run).get("confirmed", []) if f"{each}.parquet" in stored]
    if not runs:
        return gate
    found = check(store, suite, max(runs), rules, now, report=gate.report)
    gate.cases = [each for each in gate.cases if each.group != "change"] + [each for each in found.cases if each.group == "change"]
    gate.alerts = [each for each in gate.alerts if each.kind not in CHANGE_KINDS] + [
        each for each in found.alerts if each.kind in CHANGE_KINDS
    ]
    gate.findings, gate.confirmed, gate.runs = found.findings, runs, found.runs
    return gate


def _confirms(store: Store, run_id: str) -> str:
    return str(_options(store, run_id).get("confirms", run_id))


def _options(store: Store, run_id: str) -> dict[str, Any]:
    """Options of a run's plan; none where the plan was removed and only results are left."""
    try:
        return load_plan(store, run_id).options
    except StoreError:
        return {}
