"""A run on a cluster as seen from here: its Workflow, its pods and their trouble."""

import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from perfdag.exit_codes import EXIT_INPUT, EXIT_REACH
from perfdag.kube.objects import Object

if TYPE_CHECKING:
    from perfdag.kube.client import Kube
    from perfdag.kube.pods import Pod

DONE = {"Succeeded", "Failed", "Error"}
OTHER_VERSION = "its templates are of another version of perfdag: perfdag install again"
_TEMPLATES = {
    "plan-pod",
    "watchdog-pod",
    "finish-pod",
    "batches",
}  # what is read here of a Workflow and of an installation
RUN_LABEL, SUITE_LABEL = "perfdag/run", "perfdag/suite"


class NoRun(Exception):
    """There is no such run on the cluster."""


@dataclass
class View:
    """What is known of a run now."""

    workflow: Object
    pods: "list[Pod]" = field(default_factory=list)

    @property
    def name(self) -> str:
        """The Workflow's name."""
        return str(self.workflow["metadata"]["name"])

    @property
    def phase(self) -> str:
        """Phase of the Workflow; Pending before Argo saw it."""
        return (self.workflow.get("status") or {}).get("phase") or "Pending"

    @property
    def message(self) -> str:
        """Argo's message, such as the lock it waits for; of a run whose end is not known here why that is so."""
        status = self.workflow.get("status") or {}
        stored = status.get("storedWorkflowTemplateSpec") or {}
        ours = (self.workflow["spec"].get("workflowTemplateRef") or {}).get(
            "name"
        ) == "perfdag"  # a DAG of the user's own has other templates
        other = (
            self.phase in DONE and ours and stored.get("templates") and of_another_version(stored)
        )
        return "; ".join(
            each for each in (status.get("message"), OTHER_VERSION if other else None) if each
        )

    @property
    def run_id(self) -> str | None:
        """The run id, once plan has said it."""
        label = (self.workflow["metadata"].get("labels") or {}).get(RUN_LABEL)
        outputs = ((self.workflow.get("status") or {}).get("outputs") or {}).get("parameters") or []
        return label or next((each.get("value") for each in outputs if each["name"] == "run"), None)

    @property
    def batches(self) -> list[int]:
        """Batches that have pods running or on their way."""
        return sorted(
            {
                pod.batch
                for pod in self.pods
                if pod.batch is not None and pod.phase in ("Running", "Pending")
            }
        )

    @property
    def progress(self) -> tuple[int, int] | None:
        """Argo's N/M: samples done and planned of the batches that started, and pods of other steps."""
        done, slash, total = ((self.workflow.get("status") or {}).get("progress") or "").partition(
            "/"
        )
        return (int(done), int(total)) if slash and done.isdigit() and total.isdigit() else None

    def seconds_left(self) -> float | None:
        """Return the estimated seconds to the end of what has started; None where nothing tells it."""
        done, total = self.progress or (0, 0)
        if self.phase in DONE or not 0 < done < total:
            return None
        return self.seconds() / done * (total - done)

    def seconds(self) -> float:
        """Seconds since it was created, by this machine's clock."""
        from datetime import datetime

        return max(
            0.0,
            time.time()
            - datetime.fromisoformat(
                self.workflow["metadata"]["creationTimestamp"].replace("Z", "+00:00")
            ).timestamp(),
        )

    def parameter(self, name: str) -> str:
        """A parameter of the Workflow, the template's default included."""
        stored = (self.workflow.get("status") or {}).get("storedWorkflowTemplateSpec") or {}
        for spec in (self.workflow["spec"], stored):
            for each in (spec.get("arguments") or {}).get("parameters") or []:
                if each["name"] == name and each.get("value") is not None:
                    return str(each["value"])
        return ""

    def exit_code(self) -> int | None:
        """What the plan ended with where the suite was refused or something was out of reach, else what finish did; None where neither did."""
        planned = self.code_of("plan")
        return planned if planned in (EXIT_INPUT, EXIT_REACH) else self.code_of("finish")

    def code_of(self, step: str) -> int | None:
        """The exit code of a step's last attempt; None where it has none yet, or was lost."""
        return _code(self.last(step) or {})

    def last(self, step: str) -> Object | None:
        """The node of a step's pod; of one that was tried again that of the last attempt. None before there is one."""
        from perfdag.kube.argo import nodes_of, template_of

        pods = [
            each
            for each in nodes_of(self.workflow).values()
            if each.get("type") == "Pod" and template_of(each) == f"{step}-pod"
        ]
        return max(pods, key=_attempt, default=None)

    def troubles(self) -> list[str]:
        """What keeps pods from running, and pods that Argo could not make, those that wait first; while the run lasts not those of batches
        that are over, and never a watchdog that fails so that `argo retry` makes another.
        """
        from perfdag.kube.argo import nodes_of, template_of
        from perfdag.kube.labels import WATCHDOG_DONE
        from perfdag.kube.pods import troubles

        now, about = self._under_way(), self.workflow["metadata"]
        stood = (
            about.get("uid") and (about.get("annotations") or {}).get(WATCHDOG_DONE) == about["uid"]
        )  # one that crashed did not say so

        def told(batch: int | None, phase: str) -> bool:
            return phase == "Pending" or batch is None or not now or batch in now

        nodes = {
            _number(name): node
            for name, node in nodes_of(self.workflow).items()
            if node.get("type") == "Pod"
        }
        on_purpose = {
            number
            for number, node in nodes.items()
            if stood and template_of(node) == "watchdog-pod" and _code(node) == 1
        }
        pods = [
            pod
            for pod in self.pods
            if told(pod.batch, pod.phase) and _number(pod.name) not in on_purpose
        ]
        found = {
            _number(pod.name): (pod.phase != "Pending", text)
            for pod in pods
            for text in troubles([pod])
        }
        for number, node in nodes.items():
            phase, message = node.get("phase"), node.get("message")
            if (
                phase not in ("Pending", "Error", "Failed")
                or not message
                or number in on_purpose | found.keys()
            ):
                continue
            if told(_batch(node), phase):
                found[number] = phase != "Pending", f"{node.get('displayName')}: {message}"
        return [text for _, text in sorted(found.values(), key=lambda each: each[0])]

    def _under_way(self) -> set[int | None]:
        """The batches that are, while the run is; none where that is not known. Between two attempts no pod is there: the last ones tell."""
        measuring = [pod for pod in self.pods if pod.batch is not None]
        newest = max((pod.created for pod in measuring), default=0.0)
        return (
            set()
            if self.phase in DONE
            else {*self.batches} or {pod.batch for pod in measuring if pod.created == newest}
        )


def _number(name: str) -> str:
    """What the names of a pod and of its node have in common, and no others of a Workflow: Argo's hash of where in it they are."""
    return name.rpartition("-")[2]


def _code(node: Object) -> int | None:
    """The exit code of a pod's node."""
    said = (node.get("outputs") or {}).get("exitCode")
    return None if said is None else int(said)


def _batch(node: Object) -> int | None:
    """The batch of a measuring pod's node."""
    from perfdag.kube.argo import inputs_of

    number = str(inputs_of(node).get("batch", ""))
    return int(number) if number.isdigit() else None


def _attempt(node: Object) -> tuple[str, int]:
    """Sorts the attempts of a step: nodes come in no order, and their times are of whole seconds."""
    numbers = re.findall(
        r"\((\d+)\)", str(node.get("name") or "")
    )  # of the DAG around the pod: WORKFLOW.onExit(1).finish
    return str(node.get("startedAt") or ""), int(numbers[-1]) if numbers else 0


class NotInstalled(Exception):
    """The namespace has no templates of perfdag, or those of another version."""


def of_another_version(spec: Object) -> bool:
    """Whether a WorkflowTemplate's spec lacks templates that this version makes and reads."""
    return not _TEMPLATES.issubset(each["name"] for each in spec.get("templates") or [])


@dataclass(frozen=True)
class Installed:
    """The templates that a namespace can use, and the parameters given at their installation."""

    namespace: str
    everywhere: bool
    given: dict[str, str]

    def start(self, suite: str, told: dict[str, str], priority: int) -> str:
        """Create the Workflow of a run (`told`: its parameters, the run's id among them); returns its name. Raises KubeError."""
        from perfdag.kube import client as kube
        from perfdag.workflows import runs

        body = runs.workflow(self.namespace, suite, told, told["run"], priority, self.everywhere)
        return str(kube.run(lambda client: client.create(body, self.namespace))["metadata"]["name"])


def installed(namespace: str) -> Installed:
    """What `perfdag install` put there, or cluster-wide. Raises NotInstalled, KubeError."""
    from perfdag.kube import client as kube

    async def template(client: "Kube") -> Object:
        for kind in ("WorkflowTemplate", "ClusterWorkflowTemplate"):
            try:
                return await client.get(
                    await client.resource("argoproj.io/v1alpha1", kind), "perfdag", namespace
                )
            except kube.KubeError as error:
                if error.status != 404:
                    raise
        raise NotInstalled(
            f"perfdag is not installed in namespace {namespace}: perfdag install --namespace {namespace} --store ..."
        )

    found = kube.run(template)
    if of_another_version(found["spec"]):
        raise NotInstalled(
            f"perfdag in namespace {namespace} is of another version: perfdag install --namespace {namespace} --store ..."
        )
    given = {
        each["name"]: each.get("value", "") for each in found["spec"]["arguments"]["parameters"]
    }
    return Installed(namespace, found["kind"] == "ClusterWorkflowTemplate", given)


def argos(line: str) -> bool:
    """Whether a line of a log is the executor's own."""
    return line.startswith("time=") and "argo=true" in line


async def of_run(kube: "Kube", wanted: str, namespace: str) -> list[Object]:
    """The Workflows of a run, the newest last: by run id, by the name of one of them, or `last`. A run that was resumed has several.

    Raises NoRun, KubeError.
    """
    from perfdag.suite.yaml_document import nearest

    kind = await kube.resource("argoproj.io/v1alpha1", "Workflow")
    listed = await kube.list(kind, namespace)
    ours = [
        each
        for each in listed
        if any(name.startswith("perfdag/") for name in each["metadata"].get("labels") or {})
    ]
    ours.sort(key=lambda each: each["metadata"]["creationTimestamp"])
    named = [
        each for each in ours if wanted in ("last", each["metadata"]["name"], View(each).run_id)
    ]
    if not named:
        known = [View(each).run_id or each["metadata"]["name"] for each in ours]
        raise NoRun(
            f"no run {wanted} in namespace {namespace}{nearest(wanted, known)}; there are: {', '.join(known[-5:]) or 'none'}"
        )
    run_id = View(named[-1]).run_id
    return [each for each in ours if run_id and View(each).run_id == run_id] or named[-1:]


async def find(kube: "Kube", wanted: str, namespace: str) -> Object:
    """The newest Workflow of a run, or the one of that name; `wanted` as for `of_run`. Raises NoRun, KubeError."""
    found = await of_run(kube, wanted, namespace)
    return next((each for each in found if each["metadata"]["name"] == wanted), found[-1])


async def view(kube: "Kube", name: str, namespace: str) -> View:
    """What is known of a Workflow. Raises KubeError."""
    from perfdag.kube.pods import read, told

    workflows = await kube.resource("argoproj.io/v1alpha1", "Workflow")
    pods = await kube.resource("v1", "Pod")
    workflow = await kube.get(workflows, name, namespace)
    listed = await kube.list(pods, namespace, labels=f"workflows.argoproj.io/workflow={name}")
    return View(workflow, await told(kube, namespace, [read(each) for each in listed]))


async def last_line(kube: "Kube", seen: View, namespace: str) -> str | None:
    """Return the last line of a lead that measures now; None where there is none to read."""
    from perfdag.kube.client import KubeError

    lead = next((pod for pod in seen.pods if pod.rank == 0 and pod.phase == "Running"), None)
    if lead is None:
        return None
    try:
        log = kube.logs(lead.name, namespace, container="main", tail=5)
        lines = [line async for line in log if line and not argos(line)]
    except KubeError:  # the pod went, or its log may not be read
        return None
    return lines[-1] if lines else None
