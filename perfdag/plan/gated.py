"""Whether the last step of a run is its gate."""

from perfdag.plan.plan import Plan
from perfdag.suite.checks import checks_of


def gated(plan: Plan) -> bool:
    """Return whether the last step of a run is its gate. Raises BadDocument.

    It is where the run was scheduled, or its suite has `checks` and was measured whole. The two
    variants of a duet are compared with each other and never with the past.
    """
    if plan.trigger in ("ab", "cron", "part"):
        return plan.trigger == "cron"
    return bool(checks_of(plan.suite_text))
