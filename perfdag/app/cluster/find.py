"""Find the Workflows of a run."""

from perfdag.app.cluster.template import ARGO
from perfdag.app.cluster.view import View
from perfdag.commands.options import CommandError
from perfdag.kube.client import Kube, Object
from perfdag.results.runs import LAST, ambiguous
from perfdag.suite.document import nearest


class NoRun(CommandError):
    """The cluster has no such run."""


async def workflows_of_run(client: Kube, name: str, namespace: str) -> list[Object]:
    """Return the Workflows of a run, the newest last. A resumed run has several.

    `name` is a run id, the name of a Workflow, the beginning of one, `last` or `last~N`. Raises
    NoRun, CommandError, KubeError.
    """
    if not name or not namespace:
        raise CommandError("the name of the run or of the namespace is empty")
    workflows = [
        workflow
        for workflow in await client.list(await client.resource(ARGO, "Workflow"), namespace)
        if any(label.startswith("perfdag/") for label in workflow["metadata"].get("labels") or {})
    ]
    workflows.sort(key=lambda workflow: workflow["metadata"]["creationTimestamp"])
    views = [View(workflow) for workflow in workflows]
    known = list(dict.fromkeys(view.run_id or view.name for view in views))
    if (last := LAST.fullmatch(name)) and (back := int(last[1] or 0)) < len(known):
        name = known[-1 - back]
    matching = [view for view in views if name in (view.name, view.run_id)] or [
        view for view in views if view.name.startswith(name) or (view.run_id or "").startswith(name)
    ]
    if len(names := {view.run_id or view.name for view in matching}) > 1:
        raise CommandError(ambiguous(name, sorted(names)))
    if not matching:
        raise NoRun(
            f"no run {name} in namespace {namespace}{nearest(name, known)}; "
            f"there are: {', '.join(known[-5:]) or 'none'}"
        )
    run_id = matching[-1].run_id
    same_run = [view.workflow for view in views if run_id and view.run_id == run_id]
    return same_run or [matching[-1].workflow]


async def find_workflow(client: Kube, name: str, namespace: str) -> Object:
    """Return the Workflow of that name, else the newest of a run. Raises NoRun, KubeError."""
    workflows = await workflows_of_run(client, name, namespace)
    exact = (workflow for workflow in workflows if workflow["metadata"]["name"] == name)
    return next(exact, workflows[-1])
