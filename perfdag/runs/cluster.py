"""Runs on a cluster: which one a text names, and how it starts, goes on, ends and is removed."""

import asyncio
import contextlib
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import orjson
import yaml

from perfdag.kube.client import Kube, KubeError, Object, ignore_status, run_with_client
from perfdag.kube.patch import (
    LEVELS,
    RUN,
    STORE_ADDRESS,
    SUITE,
    enforced_level,
    label_command,
    level_needs,
)
from perfdag.kube.pods import (
    ARGO,
    WORKFLOW,
    WORKFLOWS,
    Pod,
    nodes_of,
    parameters_of,
    read_pod,
    refusal,
    template_of,
    with_events,
)
from perfdag.plan import Plan, is_run_id, make_plan, place_hosts
from perfdag.redaction import logger, print_now
from perfdag.results.run_store import LAST, ambiguous
from perfdag.revision import stated_revision
from perfdag.runs import RunError
from perfdag.signals import EXIT_FAILED, EXIT_INPUT, EXIT_REACH
from perfdag.store.base import pods_can_use, store_option
from perfdag.store.s3 import WAITING
from perfdag.suite.document import nearest
from perfdag.suite.model import LoadedSuite
from perfdag.terminal import Finding
from perfdag.units import go_seconds, short_seconds

DONE = {"Succeeded", "Failed", "Error"}


@dataclass
class ClusterRun:
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
    def measured(self) -> dict[int, str]:
        """What each batch measures, by number, as the nodes of Argo say it."""
        items = []
        for node in nodes_of(self.workflow).values():
            if template_of(node) == "batches":
                items += orjson.loads(parameters_of(node).get("batches") or "[]")
        return {int(item["n"]): item["benchmark"] for item in items if item["n"]}

    @property
    def turn(self) -> str:
        """Which Workflow measures while this one waits for the lock; empty where none does."""
        mutex = (self.status.get("synchronization") or {}).get("mutex") or {}
        # Argo does not take a run off the list when it gets the lock.
        waiting = [] if mutex.get("holding") else mutex.get("waiting") or []
        holders = [lock["holder"] for lock in waiting if lock.get("holder")]
        return f"{holders[0]} measures now" if holders else ""

    @property
    def stall(self) -> str:
        """How long the run may stand still; empty where it has no plan yet, or is over."""
        limit = parameters_of(self.status, "outputs").get("stall")
        if not limit or self.phase in DONE:
            return ""
        return f"ends early if it stands still for {short_seconds(go_seconds(limit))}"

    @property
    def progress(self) -> str:
        """Argo's N/M: samples done and planned of the started batches, and pods of other steps."""
        progress = self.status.get("progress")
        return f"{progress} of the started batches" if progress else ""

    @property
    def store(self) -> str:
        """The address of the run's store, as its pods get it; empty before Argo saw the run."""
        stored = self.status.get("storedWorkflowTemplateSpec") or {}
        patch = yaml.safe_load(stored.get("podSpecPatch") or "{}")
        lists = (container.get("env", []) for container in patch.get("containers", []))
        variables = {item["name"]: item.get("value") for item in chain.from_iterable(lists)}
        return variables.get("PERFDAG_STORE") or ""

    def exit_code(self) -> int | None:
        """Return the exit code of the run; None before its end, or if it is lost.

        It is that of the plan step if that refused the suite or could not reach something, else
        that of the finish step.
        """
        plan = self._exit_code_of("plan")
        return plan if plan in (EXIT_INPUT, EXIT_REACH) else self._exit_code_of("finish")

    def _exit_code_of(self, step: str) -> int | None:
        outputs = (self.last_node(step) or {}).get("outputs") or {}
        return int(outputs["exitCode"]) if "exitCode" in outputs else None

    def last_node(self, step: str) -> Object | None:
        """Return the node of a step's last attempt; None before the first one.

        The start is in whole seconds. The DAG around the pod has the attempt's number in its name:
        WORKFLOW.onExit(1).finish.
        """

        def order(node: Object) -> tuple[str, int]:
            attempt = re.search(r".*\((\d+)\)", node.get("name") or "")
            return node.get("startedAt") or "", int(attempt[1]) if attempt else 0

        nodes = (node for node in nodes_of(self.workflow).values() if node.get("type") == "Pod")
        attempts = [node for node in nodes if template_of(node) == f"{step}-pod"]
        return max(attempts, key=order, default=None)

    def troubles(self) -> list[str]:
        """Return what keeps pods from running and what failed, pending pods first.

        While the run lasts, finished batches are left out. Between two attempts a batch has no pod:
        then the batches of the newest pods are under way.
        """
        measuring = [pod for pod in self.pods if pod.batch is not None]
        newest = max((pod.created for pod in measuring), default=0.0)
        current: Sequence[int | None] = self.batches or [
            pod.batch for pod in measuring if pod.created == newest
        ]

        def is_shown(batch: int | None, phase: str) -> bool:
            over = current and batch is not None and batch not in current
            return phase == "Pending" or self.phase in DONE or not over

        texts: dict[str, tuple[bool, str]] = {}
        for pod in self.pods:
            if pod.trouble and pod.phase != "Succeeded" and is_shown(pod.batch, pod.phase):
                texts[_hash(pod.name)] = (pod.phase != "Pending", f"{pod.name}: {pod.trouble}")
        for name, node in nodes_of(self.workflow).items():
            phase = node.get("phase")
            if node.get("type") != "Pod" or phase not in ("Pending", "Error", "Failed"):
                continue
            batch = str(parameters_of(node).get("batch", ""))
            if node.get("message") and is_shown(int(batch) if batch.isdigit() else None, phase):
                text = f"{node.get('displayName')}: {refusal(node['message'])}"
                texts.setdefault(_hash(name), (phase != "Pending", text))
        ordered = sorted(texts.values(), key=lambda item: item[0])
        return [*dict.fromkeys(text for _, text in ordered)]  # attempts may fail alike


def _hash(name: str) -> str:
    """Return Argo's hash at the end of a name, which a pod and its node share."""
    return name.rpartition("-")[2]


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


async def read_cluster_run(client: Kube, workflow: str, namespace: str) -> ClusterRun:
    """Return the state of the run of a Workflow. Raises KubeError."""
    body = await client.get(WORKFLOWS, workflow, namespace)
    items = await client.list("v1/Pod", namespace, labels=f"{WORKFLOW}={workflow}")
    return ClusterRun(body, await with_events(client, namespace, map(read_pod, items)))


class NoRun(RunError):
    """The cluster has no such run."""


async def workflows_of_run(client: Kube, name: str, namespace: str) -> list[Object]:
    """Return the Workflows of a run, the newest last. A resumed run has several.

    `name` is a run id, the name of a Workflow, the beginning of one, `last` or `last~N`. Raises
    NoRun, RunError, KubeError.
    """
    if not name or not namespace:
        raise RunError("the name of the run or of the namespace is empty")
    listed = await client.list(WORKFLOWS, namespace)
    listed.sort(key=lambda workflow: workflow["metadata"]["creationTimestamp"])
    workflows: dict[str, list[Object]] = {}
    for workflow in listed:
        labels = workflow["metadata"].get("labels") or {}
        if any(label.startswith("perfdag/") for label in labels):
            run = ClusterRun(workflow)
            workflows.setdefault(run.run_id or run.name, []).append(workflow)
    ids = [*workflows]
    if (last := LAST.fullmatch(name)) and (back := int(last[1] or 0)) < len(ids):
        name = ids[-1 - back]
    names = {
        run_id: [run_id, *(workflow["metadata"]["name"] for workflow in of_run)]
        for run_id, of_run in workflows.items()
    }
    matching = [run_id for run_id in ids if name in names[run_id]] or [
        run_id for run_id in ids if any(text.startswith(name) for text in names[run_id])
    ]
    if len(matching) > 1:
        raise RunError(ambiguous(name, sorted(matching)))
    if not matching:
        how = f"; {resume_advice(name, '', namespace)}" if is_run_id(name) else ""
        raise NoRun(
            f"no run {name} in namespace {namespace}{nearest(name, ids)}; "
            f"there are: {', '.join(ids[-5:]) or 'none'}{how}"
        )
    return workflows[matching[0]]


async def find_run(client: Kube, name: str, namespace: str) -> ClusterRun:
    """Return the run of the Workflow of that name, else the newest of a run.

    Raises NoRun, KubeError.
    """
    workflows = await workflows_of_run(client, name, namespace)
    names = [str(workflow["metadata"]["name"]) for workflow in workflows]
    return await read_cluster_run(client, name if name in names else names[-1], namespace)


def resume_advice(run_id: str | None, root: str, namespace: str) -> str:
    """Return where the samples are of a run whose Workflow was deleted, and how to go on."""
    if not run_id:
        return "it had no plan, so nothing is stored"
    command = f"perfdag submit --resume {run_id} --namespace {namespace}"
    return f"what it measured is in {root or 'its store'}; go on: {command}"


def delete_workflows(name: str, namespace: str) -> None:
    """Delete the Workflows of a run, and wait until their pods are gone.

    Kubernetes then deletes what the pods own. Raises RunError, KubeError.
    """
    workflows = run_with_client(lambda client: workflows_of_run(client, name, namespace))
    run = ClusterRun(workflows[-1])
    remaining = run_with_client(lambda client: _delete(client, workflows, namespace))
    for workflow in workflows:
        run_id = run.run_id or "(no plan)"
        print_now(f"deleted workflow {workflow['metadata']['name']} of run {run_id}")
    if run.run_id:
        command = f"perfdag rm {run.run_id} {store_option(run.store)}"
        print_now(f"its results stay: {command} removes them")
    if remaining:
        raise RunError(f"pods that do not end: {', '.join(remaining)}", EXIT_REACH)


DELETE_TIMEOUT = 120.0
"""Seconds to wait for deleted pods, or their grace period if that is longer."""


async def _delete(client: Kube, workflows: list[Object], namespace: str) -> list[str]:
    """Delete the Workflows and wait; return the names of the pods that remain. Raises KubeError."""
    start = time.monotonic()
    for name in (names := [workflow["metadata"]["name"] for workflow in workflows]):
        await client.delete(WORKFLOWS, name, namespace)
    labels = f"{WORKFLOW} in ({','.join(names)})"
    while remaining := await client.list("v1/Pod", namespace, labels=labels):
        grace = max(pod["spec"].get("terminationGracePeriodSeconds") or 0 for pod in remaining)
        if time.monotonic() > start + max(DELETE_TIMEOUT, grace):
            break
        await asyncio.sleep(0.5)
    return [pod["metadata"]["name"] for pod in remaining]


LOG_SECONDS = 5.0
"""Limit of reading a log: the API server waits long for a kubelet that does not answer."""
MAX_NODES = 5
"""Most nodes that are read at a time."""


POLL_INTERVAL = 2.0
"""Seconds between two looks at a run."""
MAX_TROUBLES = 5


async def follow_run(workflow: str, namespace: str) -> int:
    """Follow the run of a Workflow and return its exit code.

    It prints a line for each change, then the run's table. A lost connection is tried
    again. Raises KubeError if the API server refuses.
    """
    start = time.monotonic()
    connected = True
    run: ClusterRun | None = None
    state = ""
    troubles: list[str] = []
    async with Kube(retries=2) as client:
        while True:
            try:
                run = await read_cluster_run(client, workflow, namespace)
            except KubeError as error:
                if error.status == 404:
                    text = f"workflow {workflow} was deleted"
                    if run:
                        text = f"{text}; {resume_advice(run.run_id, run.store, namespace)}"
                    logger.info(text)
                    return EXIT_FAILED
                if error.status in (401, 403):
                    raise
                if connected:
                    logger.info(f"connection lost, trying again: {error}")
                connected = False
                await asyncio.sleep(POLL_INTERVAL)
                continue
            connected = True
            line = progress_line(run, await observe(client, run, namespace))
            if line != state:
                print_now(f"{clock(time.monotonic() - start)} | {line}")
                state = line
            # Argo deletes a pod that was pending too long, and then says no more than this
            ends = (": timeout", ": pod deleted")
            troubles = [text for text in run.troubles() if not text.endswith(ends)] or troubles
            if run.phase in DONE:
                return await _end(client, run, namespace, troubles)
            await asyncio.sleep(POLL_INTERVAL)


def clock(seconds: float) -> str:
    """Return minutes and seconds as 1:05."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def progress_line(run: ClusterRun, lines: Iterable[str] = ()) -> str:
    """Return the phase, progress, batches, pods by phase, `lines` and troubles in one line."""
    phases = sorted(Counter(pod.phase for pod in run.pods if pod.batch is not None).items())
    texts = run.measured
    batches = [
        f"{batch} ({texts[batch]})" if batch in texts else f"{batch}" for batch in run.batches
    ]
    parts = [
        f"{run.phase} ({run.message})" if run.message else run.phase,
        run.turn,
        run.progress,
        f"batch {', '.join(batches)}" if batches else "",
        f"pods {', '.join(f'{count} {phase}' for phase, count in phases)}" if phases else "",
    ]
    return " | ".join([*filter(None, parts), *lines, *run.troubles()[:MAX_TROUBLES]])


async def _end(client: Kube, run: ClusterRun, namespace: str, troubles: list[str]) -> int:
    """Write the log of the finish step, if there was one; return the exit code of the run."""
    node = run.last_node("finish")
    for pod in run.pods:
        if node and pod.name.endswith(f"finish-pod-{_hash(node['id'])}"):
            await write_log(client, pod, namespace)
    if (code := run.exit_code()) is not None:
        return code
    reason = run.message or "; ".join(troubles[:3])
    logger.info(f"workflow {run.name} {run.phase}: {reason}")
    plan = run.last_node("plan") or {}
    return EXIT_REACH if plan.get("phase") in ("Failed", "Error") else EXIT_FAILED


async def write_log(
    client: Kube, pod: Pod, namespace: str, label: str = "", tail: int | None = None
) -> None:
    """Print the log of a pod, each line after the label, or why it cannot be read."""
    try:
        async for line in program_lines(client, pod.name, namespace, tail):
            print_now(f"{label}{line}")
    except KubeError as error:
        logger.info(f"{label or f'{pod.name}: '}no log: {error}")


async def observe(client: Kube, run: ClusterRun, namespace: str) -> list[str]:
    """Return the last line of a lead that measures, and a line for each thing that the run awaits.

    They are read from the logs of the running pods that use the store, and the nodes of pods in
    trouble. What the user may not read is left out.
    """
    if run.phase in DONE:
        return []
    running = [pod for pod in run.pods if pod.phase == "Running" and not pod.trouble]
    pods = [pod for pod in running if pod.rank == 0][:1]
    pods += [pod for pod in running if pod.batch is None]
    logs = await asyncio.gather(*(_last_line(client, pod, namespace) for pod in pods))
    lines = [
        # without its seconds, which change at each look
        WAITING if line.startswith(WAITING) else line if pod.rank == 0 else ""
        for pod, line in zip(pods, logs, strict=True)
    ]
    return [*dict.fromkeys(filter(None, lines)), *await _lost_nodes(client, run)]


async def _last_line(client: Kube, pod: Pod, namespace: str) -> str:
    """Return the last line of a pod's log; an empty text if it is gone, or may not be read."""
    line = ""
    with contextlib.suppress(KubeError, TimeoutError):
        async with asyncio.timeout(LOG_SECONDS):
            async for newest in program_lines(client, pod.name, namespace, tail=5):
                line = newest or line
    return line


async def _lost_nodes(client: Kube, run: ClusterRun) -> list[str]:
    """Return a line for each node of an unfinished pod in trouble that is not ready."""
    names = {
        pod.node
        for pod in run.pods
        if pod.node and (pod.phase == "Pending" or (pod.phase == "Running" and pod.trouble))
    }
    lines = []
    with contextlib.suppress(KubeError):  # the user may not read nodes, or the node is gone
        for name in sorted(names)[:MAX_NODES]:
            node = await client.get("v1/Node", name)
            for condition in node["status"].get("conditions") or []:
                if condition["type"] == "Ready" and condition["status"] != "True":
                    lines.append(f"{name} NotReady since {condition['lastTransitionTime']}")
    return lines


def installed_store(namespace: str) -> str:
    """Return the store of the installation of a namespace. Raises RunError, KubeError."""
    return store_of(run_with_client(lambda client: installed_template(client, namespace)))


def cluster_plan(loaded: LoadedSuite, only: Sequence[str] = ()) -> Plan:
    """Return the plan of a suite as a cluster runs it. Raises BadDocument where none can."""
    from perfdag.steps.pods.plan import kinds_of  # what follows a run needs no steps

    plan = place_hosts(make_plan(loaded, only=only))
    kinds_of(plan)
    return plan


def submit_suite(
    loaded: LoadedSuite, namespace: str, settings: Sequence[str] = (), only: Sequence[str] = ()
) -> tuple[str, str]:
    """Start the run of a suite; return its id and the name of its Workflow.

    `settings` are those that the suite was loaded with, because the plan step loads it again.
    Raises BadDocument, RunError, KubeError. Then nothing is created.
    """
    plan = cluster_plan(loaded, only)
    store = installed_store(namespace)
    of_suite = loaded.suite.store
    if of_suite and pods_can_use(of_suite) and of_suite != store:
        raise RunError(
            f"the suite has the store {of_suite}, and the installation of namespace "
            f"{namespace} the store {store}: submit it to the namespace of "
            f"another installation (perfdag install --namespace ... --store {of_suite})"
        )
    for finding in run_with_client(lambda api: check_pod_security(api, namespace, plan)):
        if finding.state == "missing":
            raise RunError(f"{finding.what}: {finding.do}")
    options = {"settings": settings, "only": only, "revision": stated_revision()}
    priority = plan.options.priority
    return plan.run_id, start_run(namespace, plan.run_id, plan.suite, priority, loaded, options)


def start_run(
    namespace: str,
    run_id: str,
    name: str,
    priority: int = 0,
    suite: LoadedSuite | None = None,
    options: Object | None = None,
) -> str:
    """Create the Workflow of a run of the suite `name`, and return its name.

    Without `suite` the store has the plan. Else the Workflow owns the ConfigMap with the suite,
    which goes again if the Workflow is refused. Raises BadDocument for a suite that is too large,
    KubeError.
    """
    from perfdag.workflows import runs as manifests  # it imports Hera, which only submitting needs

    parameters = {"run": run_id}
    config_map = None
    if suite:
        parameters["suite"] = f"perfdag-{run_id.lower()}"
        limit = manifests.MAX_SUITE_BYTES
        config_map = manifests.config_map(namespace, parameters["suite"], suite, limit)
    for key, text in manifests.options_parameter(options or {}).items():
        parameters[key] = text.replace("{{", r"{\u007b")  # Argo would replace it
    body = manifests.workflow_of_template(
        namespace, name, parameters, run_id=run_id, priority=priority
    )

    async def create(client: Kube) -> str:
        if config_map:
            await client.create(config_map, namespace)
        try:
            metadata = (await client.create(body, namespace))["metadata"]
        except KubeError:
            if config_map:
                await client.delete("v1/ConfigMap", parameters["suite"], namespace)
            raise
        if config_map:
            owner = {"apiVersion": ARGO, "kind": "Workflow"}
            owner |= {key: metadata[key] for key in ("name", "uid")}
            patch = {"metadata": {"ownerReferences": [owner]}}
            await client.patch("v1/ConfigMap", parameters["suite"], patch, namespace)
        return str(metadata["name"])

    return run_with_client(create)


def resumable_run(name: str, namespace: str, store: str) -> tuple[str, str, int]:
    """Return id, suite and priority of the run to continue, as its Workflow describes it.

    `name` is a run id, the name of a Workflow, or `last`, the newest run of the namespace. `store`
    is that of the installation: the plan step reads the plan there. Raises RunError, KubeError.
    """
    try:
        workflows = run_with_client(lambda client: workflows_of_run(client, name, namespace))
    except NoRun:
        if is_run_id(name):  # Argo deleted its Workflow, and the store has the plan
            return name, "resumed", 0
        raise
    run = ClusterRun(workflows[0])
    if not run.run_id:
        raise RunError(f"workflow {name} has no plan, so there is nothing to resume")
    if run.store not in ("", store):
        raise RunError(
            f"run {run.run_id} is stored in {run.store}, and the installation has the store "
            f"{store}; continue it with perfdag install --namespace {namespace} "
            f"--store {run.store}"
        )
    suite = (run.workflow["metadata"].get("labels") or {}).get(SUITE) or "resumed"
    return run.run_id, suite, int(run.workflow["spec"].get("priority") or 0)


REQUIRED_TEMPLATES = {"plan-pod", "watchdog-pod", "finish-pod", "recheck", "host"}
"""Templates of an installation that this version reads."""


async def installed_template(client: Kube, namespace: str) -> Object:
    """Return the WorkflowTemplate of an installation.

    Raises RunError if there is none or one of another version, KubeError.
    """
    state = "not installed"
    with ignore_status(404):
        template = await client.get(f"{ARGO}/WorkflowTemplate", "perfdag", namespace)
        names = {item["name"] for item in (template.get("spec") or {}).get("templates") or []}
        if store_of(template) and names >= REQUIRED_TEMPLATES:
            return template
        state = "of another version"
    command = f"perfdag install --namespace {namespace} --store ..."
    raise RunError(f"perfdag in namespace {namespace} is {state}: {command}", EXIT_REACH)


def store_of(template: Object) -> str:
    """Return the address of the store of an installation, or an empty text."""
    return str((template.get("metadata", {}).get("annotations") or {}).get(STORE_ADDRESS, ""))


async def check_pod_security(client: Kube, namespace: str, plan: Plan | None) -> list[Finding]:
    """Return the level of a namespace, and what a plan needs beyond it. Raises KubeError."""
    needs: dict[str, dict[str, str]] = {}
    shapes = [(point.entry, plan.shapes[point.shape]) for point in plan.points] if plan else []
    for entry, shape in shapes:
        needs.setdefault(entry, {}).update(level_needs(shape))
    least = {
        entry: max(levels.values(), key=LEVELS.index, default=LEVELS[0])
        for entry, levels in needs.items()
    }
    needed = max(least.values(), key=LEVELS.index, default=LEVELS[0])
    command = label_command(namespace, needed)
    level = await enforced_level(client, namespace)
    if level is None:
        text = f"the Pod Security level of {namespace} may not be read; the suite needs {needed}"
        unknown = Finding("warn", text, f"ask an admin for it: {command}")
        return [] if needed == LEVELS[0] else [unknown]
    if level not in LEVELS:
        text = (
            f"namespace {namespace} has no Pod Security level: unless the cluster has a default, "
            "who may submit there may run privileged pods"
        )
        return [Finding("warn", text, command)]
    refused = [
        Finding(
            "missing",
            f"entry {entry} needs Pod Security level {level_of_entry} "
            f"({', '.join(needs[entry])}), and namespace {namespace} enforces {level}",
            command,
        )
        for entry, level_of_entry in least.items()
        if LEVELS.index(level_of_entry) > LEVELS.index(level)
    ]
    return refused or [Finding("ok", f"namespace {namespace} enforces Pod Security level {level}")]
