"""Check what a suite needs, on this machine or on a cluster."""

from perfdag.app.doctor.cluster import check_cluster
from perfdag.app.doctor.finding import Finding
from perfdag.app.doctor.local import check_machine
from perfdag.plan.plan import make_plan
from perfdag.suite.load import load_suite


def check(suite: str | None, root: str | None, namespace: str | None) -> list[Finding]:
    """Return the findings for a suite file, or for everything if `suite` is None.

    Check the cluster if `namespace` is set, else this machine. Raises BadDocument.
    """
    loaded = load_suite(suite) if suite else None
    plan = make_plan(loaded) if loaded else None
    root = root or (loaded.suite.store if loaded else None)
    return check_cluster(plan, root, namespace) if namespace else check_machine(plan, root)
