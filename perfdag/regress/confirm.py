"""The gate of a night: the run of the suite together with the runs that confirm it.

One run adds one value to a series, and one value is no level. Two more runs of the suspect points
make three, so that the detector can alert on a real step in the night it happens.
"""

from typing import Any

from perfdag.regress.alert_records import CHANGE_KINDS
from perfdag.regress.gate import check
from perfdag.regress.result import GateResult, Rules
from perfdag.results.result_files import stored_runs
from perfdag.results.runs import load_plan
from perfdag.store.base import Store, StoreError


def check_night(store: Store, suite: str, run_id: str, rules: Rules) -> GateResult:
    """Check a run together with the runs that confirm it. Raises StoreError, SelectionError.

    A confirming run stands for the run it confirms. Thresholds and presence come from that run
    alone, because a confirming run measures only suspect points.
    """
    gate = check(store, suite, _confirms(store, run_id), rules)
    stored = {run for run, _ in stored_runs(store, suite)}
    runs = [run for run in _options(store, gate.run).get("confirmed", []) if run in stored]
    if not runs:
        return gate
    confirmed = check(store, suite, max(runs), rules)
    gate.cases = [result for result in gate.cases if result.group != "change"] + [
        result for result in confirmed.cases if result.group == "change"
    ]
    gate.alerts = [alert for alert in gate.alerts if alert.kind not in CHANGE_KINDS] + [
        alert for alert in confirmed.alerts if alert.kind in CHANGE_KINDS
    ]
    gate.changes, gate.confirming_runs, gate.runs = confirmed.changes, runs, confirmed.runs
    return gate


def _confirms(store: Store, run_id: str) -> str:
    return str(_options(store, run_id).get("confirms", run_id))


def _options(store: Store, run_id: str) -> dict[str, Any]:
    """Return the options of a run's plan, or none where the plan was removed."""
    try:
        return load_plan(store, run_id).options
    except StoreError:
        return {}
