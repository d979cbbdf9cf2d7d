"""The state of a run on a cluster: its Workflow, its pods, and what keeps pods from running."""

import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime

import yaml

from perfdag.app.cluster.template import ARGO, is_other_version
from perfdag.kube.client import Kube, Object
from perfdag.kube.patch import RUN, WATCHDOG_DONE
from perfdag.kube.pods import Pod, inputs_of, nodes_of, read_pod, template_of, troubles, with_events
from perfdag.signals import EXIT_INPUT, EXIT_REACH

DONE = {"Succeeded", "Failed", "Error"}
OTHER_VERSION = "its templates are of another version of perfdag: perfdag install again"


@dataclass
class View:
    """The state of a run at one moment."""

    workflow: Object
    pods: list[Pod] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of the Workflow."""
        return str(self.workflow["metadata"]["name"])

    @property
    def status(self) -> Object:
        """The status of the Workflow; empty before Argo saw it."""
        return self.workflow.get("status") or {}

    @property
    def phase(self) -> str:
        """The phase of the Workflow; Pending before Argo saw it."""
        return self.status.get("phase") or "Pending"

    @property
    def message(self) -> str:
        """Argo's message, such as the lock that the run waits for.

        If templates of another version hide the end of the run, it says so.
        """
        stored = self.status.get("storedWorkflowTemplateSpec") or {}
        # A user's own DAG has other templates.
        template = (self.workflow["spec"].get("workflowTemplateRef") or {}).get("name")
        known = self.phase in DONE and template == "perfdag" and stored.get("templates")
        other = OTHER_VERSION if known and is_other_version(stored) else None
        return "; ".join(filter(None, (self.status.get("message"), other)))

    @property
    def run_id(self) -> str | None:
        """The run id; None before the plan step has reported it."""
        label = (self.workflow["metadata"].get("labels") or {}).get(RUN)
        outputs = (self.status.get("outputs") or {}).get("parameters") or []
        values = (output.get("value") for output in outputs if output["name"] == "run")
        return label or next(values, None)

    @property
    def batches(self) -> list[int]:
        """The batches with pods that are running or pending."""
        active = (pod for pod in self.pods if pod.phase in ("Running", "Pending"))
        return sorted({pod.batch for pod in active if pod.batch is not None})

    @property
    def progress(self) -> tuple[int, int] | None:
        """Argo's N/M: samples done and planned of the started batches, and pods of other steps."""
        done, slash, total = (self.status.get("progress") or "").partition("/")
        return (int(done), int(total)) if slash and done.isdigit() and total.isdigit() else None

    def seconds(self) -> float:
        """Return the seconds since the Workflow was created, by this machine's clock."""
        created = datetime.fromisoformat(self.workflow["metadata"]["creationTimestamp"])
        return max(0.0, time.time() - created.timestamp())

    @property
    def store(self) -> str:
        """The address of the run's store, as its pods get it; empty before Argo saw the run."""
        stored = self.status.get("storedWorkflowTemplateSpec") or {}
        patch = yaml.safe_load(stored.get("podSpecPatch") or "{}")
        env = (each for part in patch.get("containers", []) for each in part.get("env", []))
        return next((each["value"] for each in env if each["name"] == "PERFDAG_STORE"), "")

    def exit_code(self) -> int | None:
        """Return the exit code of the run; None before its end.

        It is that of the plan step if that refused the suite or could not reach something, else
        that of the finish step.
        """
        plan = self.code_of("plan")
        return plan if plan in (EXIT_INPUT, EXIT_REACH) else self.code_of("finish")

    def code_of(self, step: str) -> int | None:
        """Return the exit code of a step's last attempt; None before its end, or if it is lost."""
        return _exit_code(self.last_node(step) or {})

    def last_node(self, step: str) -> Object | None:
        """Return the node of a step's last attempt; None before the first one."""
        nodes = (node for node in nodes_of(self.workflow).values() if node.get("type") == "Pod")
        attempts = [node for node in nodes if template_of(node) == f"{step}-pod"]
        return max(attempts, key=_attempt, default=None)

    def troubles(self) -> list[str]:
        """Return what keeps pods from running and what failed, pending pods first.

        While the run lasts, finished batches are left out. A watchdog that fails on purpose, so
        that `argo retry` creates another one, is always left out.
        """
        current = self._current_batches()

        def is_shown(batch: int | None, phase: str) -> bool:
            return phase == "Pending" or batch is None or not current or batch in current

        pod_nodes = {
            _hash(name): node
            for name, node in nodes_of(self.workflow).items()
            if node.get("type") == "Pod"
        }
        on_purpose = self._failed_on_purpose(pod_nodes)
        texts = {
            _hash(pod.name): (pod.phase != "Pending", text)
            for pod in self.pods
            if is_shown(pod.batch, pod.phase) and _hash(pod.name) not in on_purpose
            for text in troubles([pod])
        }
        for key, node in pod_nodes.items():
            phase, message = node.get("phase"), node.get("message")
            if not message or phase not in ("Pending", "Error", "Failed"):
                continue
            if key not in on_purpose and key not in texts and is_shown(_batch(node), phase):
                texts[key] = phase != "Pending", f"{node.get('displayName')}: {message}"
        return [text for _, text in sorted(texts.values(), key=lambda item: item[0])]

    def _failed_on_purpose(self, pod_nodes: dict[str, Object]) -> set[str]:
        """Return the keys of watchdogs that saw the last batch end; a crashed one did not."""
        metadata = self.workflow["metadata"]
        uid = metadata.get("uid")
        if not uid or (metadata.get("annotations") or {}).get(WATCHDOG_DONE) != uid:
            return set()
        return {
            key
            for key, node in pod_nodes.items()
            if template_of(node) == "watchdog-pod" and _exit_code(node) == 1
        }

    def _current_batches(self) -> set[int | None]:
        """Return the batches under way; empty if the run has ended or none is known.

        Between two attempts a batch has no pod. Then the newest pods tell.
        """
        if self.phase in DONE:
            return set()
        measuring = [pod for pod in self.pods if pod.batch is not None]
        newest = max((pod.created for pod in measuring), default=0.0)
        return {*self.batches} or {pod.batch for pod in measuring if pod.created == newest}


def _hash(name: str) -> str:
    """Return Argo's hash at the end of a name, which a pod and its node share."""
    return name.rpartition("-")[2]


def _exit_code(node: Object) -> int | None:
    code = (node.get("outputs") or {}).get("exitCode")
    return None if code is None else int(code)


def _batch(node: Object) -> int | None:
    """Return the batch that the pod of a node measures."""
    number = str(inputs_of(node).get("batch", ""))
    return int(number) if number.isdigit() else None


def _attempt(node: Object) -> tuple[str, int]:
    """Return the sort key of an attempt: start, in whole seconds, then the attempt's number.

    The DAG around the pod names the number: WORKFLOW.onExit(1).finish.
    """
    numbers = re.findall(r"\((\d+)\)", str(node.get("name") or ""))
    return str(node.get("startedAt") or ""), int(numbers[-1]) if numbers else 0


async def program_lines(
    client: Kube, pod: str, namespace: str, tail: int | None = None
) -> AsyncIterator[str]:
    """Yield the lines that perfdag wrote in a pod, without those of Argo's executor.

    `tail` limits the lines of both. Raises KubeError.
    """
    async for line in client.logs(pod, namespace, container="main", tail=tail):
        if not (line.startswith("time=") and "argo=true" in line):
            yield line


async def view_run(client: Kube, workflow: str, namespace: str) -> View:
    """Return the state of the run of a Workflow. Raises KubeError."""
    workflows = await client.resource(ARGO, "Workflow")
    pods = await client.resource("v1", "Pod")
    body = await client.get(workflows, workflow, namespace)
    items = await client.list(pods, namespace, labels=f"workflows.argoproj.io/workflow={workflow}")
    return View(body, await with_events(client, namespace, [read_pod(item) for item in items]))
