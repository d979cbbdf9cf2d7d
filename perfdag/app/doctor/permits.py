"""Say what the suites of an installation may ask for, and what a suite asks for beyond that."""

from perfdag.app.cluster.template import SuiteRules
from perfdag.app.doctor.finding import Finding
from perfdag.plan.plan import Plan
from perfdag.suite.yaml_document import BadDocument


def permit_findings(rules: SuiteRules, plan: Plan | None) -> list[Finding]:
    """Return what is permitted, and what a plan needs beyond it."""
    permitted = ", ".join(rules.permits) or "nothing"
    text = f"suites may use {permitted} beyond PodSecurity restricted and images {rules.images}"
    findings = [Finding("ok", text)]
    try:
        if plan:
            rules.check(plan)
    except BadDocument as error:
        for problem in error.problems:
            what, _, advice = problem.text.partition("; ")
            findings.append(Finding("missing", f"{problem.path}: {what}", advice))
    return findings
