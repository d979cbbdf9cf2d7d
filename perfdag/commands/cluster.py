"""Runs on a cluster: the installed template, the Workflows of a run, and what the store keeps."""

import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime

import orjson
import yaml

from perfdag.commands.options import EXIT_INPUT, EXIT_REACH, CommandError
from perfdag.kube.client import Kube, KubeError, Object, ignore_status, run_with_client
from perfdag.kube.patch import RUN, STORE_ADDRESS, SUITE
from perfdag.kube.pods import (
    Pod,
    inputs_of,
    nodes_of,
    read_pod,
    refusal,
    template_of,
    troubles,
    with_events,
)
from perfdag.plan.plan import is_run_id
from perfdag.results.runs import LAST, ambiguous
from perfdag.suite.document import nearest
from perfdag.suite.model import LoadedSuite

ARGO = "argoproj.io/v1alpha1"
REQUIRED_TEMPLATES = {"plan-pod", "watchdog-pod", "finish-pod", "recheck", "host"}
"""Templates of an installation that this version reads."""


class NotInstalled(CommandError):
    """The namespace has no templates of perfdag, or those of another version."""

    def __init__(self, message: str) -> None:
        super().__init__(message, EXIT_REACH)


def is_other_version(spec: Object) -> bool:
    """Return whether a WorkflowTemplate's spec lacks templates that this version reads."""
    names = {template["name"] for template in spec.get("templates") or []}
    return not names >= REQUIRED_TEMPLATES


def store_of(template: Object) -> str:
    """Return the address of the store of the installation that a WorkflowTemplate is of."""
    return str((template["metadata"].get("annotations") or {}).get(STORE_ADDRESS, ""))


@dataclass(frozen=True)
class NewRun:
    """What the Workflow of a run is made of; without a suite, the store has the plan."""

    run_id: str
    name: str
    """The name of the suite."""
    priority: int = 0
    suite: LoadedSuite | None = None
    settings: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class InstalledTemplate:
    """The template of a namespace, and the store of its installation."""

    namespace: str
    store: str

    def start(self, run: NewRun) -> str:
        """Create the Workflow of a run and return its name.

        It owns the ConfigMap with the suite, which goes again if the Workflow is refused. Raises
        BadDocument for a suite that is too large, KubeError.
        """
        from perfdag.workflows import runs

        parameters, suite = {"run": run.run_id}, None
        if run.suite:
            name = f"perfdag-{run.run_id.lower()}"
            suite = runs.config_map(self.namespace, name, run.suite, runs.MAX_SUITE_BYTES)
            parameters["suite"] = name
        if run.settings or run.only:
            options = orjson.dumps({"settings": run.settings, "only": run.only}).decode()
            # Argo replaces braces, and the kubelet variables
            parameters["options"] = options.replace("{{", r"{\u007b").replace("$", r"\u0024")
        body = runs.workflow(
            self.namespace,
            run.name,
            parameters,
            run_id=run.run_id,
            priority=run.priority,
        )
        return run_with_client(lambda client: _create(client, self.namespace, body, suite))


async def _create(client: Kube, namespace: str, body: Object, suite: Object | None) -> str:
    """Create the ConfigMap with a suite, and the Workflow that owns it; return its name."""
    if suite is None:
        return str((await client.create(body, namespace))["metadata"]["name"])
    await client.create(suite, namespace)
    kind = await client.resource("v1", "ConfigMap")
    name = suite["metadata"]["name"]
    try:
        metadata = (await client.create(body, namespace))["metadata"]
    except KubeError:
        await client.delete(kind, name, namespace)
        raise
    owner = {"apiVersion": ARGO, "kind": "Workflow"}
    owner |= {key: metadata[key] for key in ("name", "uid")}
    await client.patch(kind, name, {"metadata": {"ownerReferences": [owner]}}, namespace)
    return str(metadata["name"])


def installed_template(namespace: str) -> InstalledTemplate:
    """Return the template of the namespace.

    Raises NotInstalled, KubeError.
    """
    command = f"perfdag install --namespace {namespace} --store ..."
    template = run_with_client(lambda client: _get_template(client, namespace))
    if template is None:
        raise NotInstalled(f"perfdag is not installed in namespace {namespace}: {command}")
    if is_other_version(template["spec"]) or not store_of(template):
        raise NotInstalled(f"perfdag in namespace {namespace} is of another version: {command}")
    return InstalledTemplate(namespace, store_of(template))


async def _get_template(client: Kube, namespace: str) -> Object | None:
    with ignore_status(404):
        kind = await client.resource(ARGO, "WorkflowTemplate")
        return await client.get(kind, "perfdag", namespace)
    return None


DONE = {"Succeeded", "Failed", "Error"}


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
        """Argo's message, such as the lock that the run waits for."""
        return self.status.get("message") or ""

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

        While the run lasts, finished batches are left out.
        """
        current = self._current_batches()

        def is_shown(batch: int | None, phase: str) -> bool:
            return phase == "Pending" or batch is None or not current or batch in current

        pod_nodes = {
            _hash(name): node
            for name, node in nodes_of(self.workflow).items()
            if node.get("type") == "Pod"
        }
        texts = {
            _hash(pod.name): (pod.phase != "Pending", text)
            for pod in self.pods
            if is_shown(pod.batch, pod.phase)
            for text in troubles([pod])
        }
        for key, node in pod_nodes.items():
            phase, message = node.get("phase"), node.get("message")
            if not message or phase not in ("Pending", "Error", "Failed"):
                continue
            if key not in texts and is_shown(_batch(node), phase):
                texts[key] = phase != "Pending", f"{node.get('displayName')}: {refusal(message)}"
        ordered = sorted(texts.values(), key=lambda item: item[0])
        return [*dict.fromkeys(text for _, text in ordered)]  # attempts may fail alike

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
    async for line in client.logs(pod, namespace, tail=tail):
        executor = line.startswith("time=") and "argo=true" in line
        if not executor and not line.startswith("Error: exit status "):
            yield line


async def view_run(client: Kube, workflow: str, namespace: str) -> View:
    """Return the state of the run of a Workflow. Raises KubeError."""
    workflows = await client.resource(ARGO, "Workflow")
    pods = await client.resource("v1", "Pod")
    body = await client.get(workflows, workflow, namespace)
    items = await client.list(pods, namespace, labels=f"workflows.argoproj.io/workflow={workflow}")
    return View(body, await with_events(client, namespace, [read_pod(item) for item in items]))


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


def resumable_run(name: str, namespace: str, store: str) -> NewRun:
    """Return the run to continue, as its Workflow describes it.

    `name` is a run id, the name of a Workflow, or `last`, the newest run of the namespace. `store`
    is that of the installation: the plan step reads the plan there. Raises CommandError, KubeError.
    """
    try:
        found = run_with_client(lambda client: workflows_of_run(client, name, namespace))
    except NoRun:
        if is_run_id(name):  # Argo deleted its Workflow, and the store has the plan
            return NewRun(name, "resumed")
        raise
    view = View(found[0])
    if not view.run_id:
        raise CommandError(f"workflow {name} has no plan, so there is nothing to resume")
    if view.store not in ("", store):
        raise CommandError(
            f"run {view.run_id} is stored in {view.store}, and the installation has the store "
            f"{store}; continue it with perfdag install --namespace {namespace} "
            f"--store {view.store}"
        )
    suite = (view.workflow["metadata"].get("labels") or {}).get(SUITE) or "resumed"
    return NewRun(view.run_id, suite, int(view.workflow["spec"].get("priority") or 0))


def kept(run_id: str | None, root: str, namespace: str) -> str:
    """Return where the samples are of a run whose Workflow was deleted, and how to go on."""
    if not run_id:
        return "it had no plan, so nothing is stored"
    command = f"perfdag submit --resume {run_id} --namespace {namespace}"
    return f"what it measured is in {root or 'its store'}; go on: {command}"
