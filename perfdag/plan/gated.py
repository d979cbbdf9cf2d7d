"""Whether the last step of a run is its gate."""

from perfdag.plan.plan import Plan
from perfdag.suite.checks import checks_of


def gated(plan: Plan) -> bool:
    """Return whether the last step of a run is its gate. Raises BadDocument.

    It is where the run was scheduled, or its suite has `checks`. The two variants of a duet are
    compared with each other and never with the past. A part of a suite lacks what checks need.
    """
    if plan.trigger == "ab" or "only" in plan.options:
        return False
    return plan.trigger == "cron" or bool(checks_of(plan.suite_text))
