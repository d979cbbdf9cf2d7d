"""The progress of a run on a cluster, for people and for programs."""

from dataclasses import dataclass
from typing import Any

from perfdag.app.cluster.find import NoRun, find_workflow
from perfdag.app.cluster.resume import kept_samples
from perfdag.app.cluster.template import installed_template
from perfdag.app.cluster.view import View, view_run
from perfdag.app.cluster.waits import Observation, observe
from perfdag.app.cluster.watch import clock, describe
from perfdag.kube.client import Kube, run_with_client
from perfdag.plan.plan import is_run_id
from perfdag.steps.runner.progress import seconds_left


@dataclass(frozen=True)
class RunStatus:
    """The state of a run, the last line of the lead that measures, and what the run waits for."""

    view: View
    seen: Observation

    def text(self) -> str:
        """Return the status as text."""
        view = self.view
        head = f"run {view.run_id or '(no plan yet)'}, workflow {view.name}"
        line = describe(view, self.seen.line, self.seen.waits)
        return f"{head}\n{clock(int(view.seconds()))} | {line}"

    def data(self) -> dict[str, Any]:
        """Return the status as plain data."""
        view = self.view
        done, total = view.progress or (None, None)
        pods = [
            {
                "name": pod.name,
                "batch": pod.batch,
                "phase": pod.phase,
                "node": pod.node,
                "trouble": pod.trouble,
            }
            for pod in view.pods
        ]
        return {
            "run_id": view.run_id,
            "workflow": view.name,
            "phase": view.phase,
            "message": view.message,
            "done": done,
            "samples": total,
            "current": self.seen.line,
            "seconds_left": seconds_left(self.seen.line),
            "exit_code": view.exit_code(),
            "waits": list(self.seen.waits),
            "troubles": view.troubles(),
            "pods": pods,
        }


def run_status(name: str, namespace: str) -> RunStatus:
    """Return the status of a run. Raises NoRun, KubeError.

    The error of a run whose Workflow was deleted says what its store keeps.
    """

    async def look(client: Kube) -> RunStatus:
        workflow = await find_workflow(client, name, namespace)
        view = await view_run(client, workflow["metadata"]["name"], namespace)
        return RunStatus(view, await observe(client, view, namespace))

    try:
        return run_with_client(look)
    except NoRun as error:
        if not is_run_id(name):
            raise
        root = installed_template(namespace).store
        raise NoRun(f"{error}; {kept_samples(name, root, namespace)}") from None
