"""Check the Pod Security level of a namespace, which decides what pods a suite may have there."""

from perfdag.app.doctor.finding import Finding
from perfdag.kube.client import Kube
from perfdag.kube.patch import LEVELS, enforced_level, label_command, level_needs
from perfdag.plan.plan import Plan
from perfdag.shape import Shape


async def check_pod_security(client: Kube, namespace: str, plan: Plan | None) -> list[Finding]:
    """Return the level of a namespace, and what a plan needs beyond it. Raises KubeError."""
    needs = plan_needs(plan) if plan else {}
    wanted = max((level for level, _ in needs.values()), key=LEVELS.index, default=LEVELS[0])
    command = label_command(namespace, wanted)
    level = await enforced_level(client, namespace)
    if level is None:
        text = f"the Pod Security level of {namespace} may not be read; the suite needs {wanted}"
        return [Finding("warn", text, f"ask an admin for it: {command}")] if needs else []
    if level not in LEVELS:
        text = f"namespace {namespace} has no Pod Security level"
        why = "unless the cluster has a default, who may submit there may run privileged pods"
        return [Finding("warn", f"{text}: {why}", command)]
    refused = [
        Finding(
            "missing",
            f"entry {entry} needs Pod Security level {least} ({', '.join(keys)}), and namespace "
            f"{namespace} enforces {level}",
            command,
        )
        for entry, (least, keys) in needs.items()
        if LEVELS.index(least) > LEVELS.index(level)
    ]
    return refused or [Finding("ok", f"namespace {namespace} enforces Pod Security level {level}")]


def plan_needs(plan: Plan) -> dict[str, tuple[str, list[str]]]:
    """Return the least level of each entry that `restricted` refuses, and what needs it."""
    found: dict[str, dict[str, str]] = {}
    for point in plan.points:
        if needs := level_needs(Shape.model_validate(plan.shapes[point.shape])):
            found.setdefault(point.entry, {}).update(needs)
    return {
        entry: (max(needs.values(), key=LEVELS.index), list(needs))
        for entry, needs in found.items()
    }
