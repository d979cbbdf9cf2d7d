"""What `perfdag doctor --cluster` checks."""

import asyncio
import re
import time
from collections.abc import Collection
from typing import Literal

from perfdag.benchmark import registry
from perfdag.commands.cluster import ARGO, is_other_version, store_of
from perfdag.commands.terminal import Finding
from perfdag.kube.client import Kube, KubeError, Object, run_with_client
from perfdag.kube.config import ignore_status
from perfdag.kube.patch import (
    LEVELS,
    STORE,
    account_of,
    enforced_level,
    hardened,
    helper,
    label_command,
    level_needs,
    pod_security,
    priority_class,
    store_volume,
)
from perfdag.kube.pods import is_ready, read_pod, takes, with_events, without_simulated
from perfdag.plan.plan import Plan, place_hosts
from perfdag.shape import Shape
from perfdag.steps.devices import without_gpu
from perfdag.steps.pods.objects import Requirement, has_class, read_inventory, requirements_of
from perfdag.store.base import AddressError, check_cluster_address
from perfdag.units import plural

MIN_KUBERNETES, MIN_ARGO = (1, 29), (4, 1)
ARGO_KINDS = ("Workflow", "WorkflowTemplate", "CronWorkflow", "WorkflowTaskResult")
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
CLUSTER_ADMIN = (
    "a cluster admin runs perfdag install without --namespaced, with all its other options"
)


def check_cluster(plan: Plan | None, root: str | None, namespace: str) -> list[Finding]:
    """Return the findings for the cluster that KUBECONFIG names, and for what a plan requires."""
    try:
        return run_with_client(lambda client: _check(client, plan, root, namespace), retries=1)
    except KubeError as error:
        advice = "set KUBECONFIG to a cluster that can be reached"
        return [Finding("missing", f"the cluster: {error}", advice)]


async def _check(
    client: Kube, plan: Plan | None, root: str | None, namespace: str
) -> list[Finding]:
    findings = [
        await _check_version(client),
        *await check_argo(client),
        *await check_installation(client, namespace, root, plan),
        *check_nodes(await _list_readable(client, "v1", "Node")),
    ]
    if plan:
        findings += await check_requirements(client, plan, namespace, _install_again(namespace))
    return findings


def _install_again(namespace: str) -> str:
    """Return the command that changes an installation; options that it omits return to defaults."""
    return f"perfdag install --namespace {namespace} --store ... (with all its other options)"


async def _list_readable(
    client: Kube, api: str, kind: str, namespace: str | None = None
) -> list[Object] | None:
    """Return the objects of a kind; None if the cluster lacks the kind or hides it."""
    with ignore_status(403, 404):
        return await client.list(await client.resource(api, kind), namespace)
    return None


async def _there(
    client: Kube, api: str, kind: str, name: str, namespace: str
) -> Object | Literal[False] | None:
    """Return an object; False if there is none, None if it may not be read. Raises KubeError."""
    try:
        return await client.get(await client.resource(api, kind), name, namespace)
    except KubeError as error:
        if error.status not in (403, 404):
            raise
        return False if error.status == 404 else None


async def _check_version(client: Kube) -> Finding:
    version = await client.request("GET", "/version")
    name = f"Kubernetes {version['gitVersion']}"
    minor = int("".join(filter(str.isdigit, version["minor"])))
    if (int(version["major"]), minor) < MIN_KUBERNETES:
        return Finding("missing", f"{name} is older than 1.29", "use a newer cluster")
    return Finding("ok", f"{name} at {client.cluster.server}")


async def check_argo(client: Kube) -> list[Finding]:
    """Return whether Argo Workflows is installed, works and is new enough. Raises KubeError."""
    findings = []
    for kind in ARGO_KINDS:
        try:
            await client.resource(ARGO, kind)
        except KubeError:
            advice = "install Argo Workflows 4.1 or newer (its CRDs and controller)"
            findings.append(Finding("missing", f"Argo Workflows: no kind {kind}", advice))
    if findings:
        return findings
    for deployment in await _list_readable(client, "apps/v1", "Deployment") or []:
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            image = container["image"]
            version = re.search(r"workflow-controller:v?(\d+)\.(\d+)", image)
            if version and (int(version[1]), int(version[2])) >= MIN_ARGO:
                return [Finding("ok", f"Argo's controller is {image}")]
            if version:
                text = f"Argo's controller is {image}: runs would wait forever for pods that "
                advice = "use 4.1 or newer, which has pendingTimeout"
                return [Finding("missing", f"{text}never start", advice)]
    text = "Argo's version is unknown: no Deployment of its controller can be read"
    return [Finding("warn", text, "make sure that it is 4.1 or newer")]


async def check_installation(
    client: Kube, namespace: str, root: str | None, plan: Plan | None = None
) -> list[Finding]:
    """Return the findings for the templates of a namespace, its Pod Security and the store.

    Raises KubeError.
    """
    templates = [
        *(await _list_readable(client, ARGO, "WorkflowTemplate", namespace) or []),
        *(await _list_readable(client, ARGO, "ClusterWorkflowTemplate") or []),
    ]
    template = next((item for item in templates if item["metadata"]["name"] == "perfdag"), None)
    install = _install_again(namespace)
    if template is None:
        advice = f"perfdag install --namespace {namespace} --store ..."
        return [Finding("missing", f"perfdag is not installed in namespace {namespace}", advice)]
    if is_other_version(template["spec"]):
        text = f"perfdag in namespace {namespace} was installed by another version"
        return [Finding("missing", text, install)]
    findings = [Finding("ok", f"perfdag is installed in namespace {namespace}")]
    findings += await check_pod_security(client, namespace, plan)
    root = root or store_of(template)
    benchmarks = {point.benchmark for point in plan.points} if plan else set(registry.working())
    store = await check_store(client, namespace, root, template["spec"], install, benchmarks)
    return [*findings, *store]


def check_nodes(nodes: list[Object] | None) -> list[Finding]:
    """Return how many nodes are ready, and those that are measured by mistake or not at all."""
    if nodes is None:
        text = "nodes cannot be read; rows will lack node types"
        return [Finding("warn", text, CLUSTER_ADMIN)]
    measuring = without_simulated(nodes)
    ready = [node for node in measuring if is_ready(node)]
    simulated = len(nodes) - len(measuring)
    text = f"{len(ready)} of {plural(len(measuring), 'node')} ready"
    text += f", besides {plural(simulated, 'simulated one')}" if simulated else ""
    findings = [Finding("ok" if ready else "missing", text)]
    cordoned = [node["metadata"]["name"] for node in ready if node["spec"].get("unschedulable")]
    if cordoned:
        findings.append(Finding("warn", f"cordoned: {', '.join(cordoned[:5])}"))
    control = [
        node["metadata"]["name"]
        for node in ready
        if CONTROL_PLANE in (node["metadata"].get("labels") or {}) and takes(node, Shape())
    ]
    if control:
        text = f"control-plane nodes without a taint would be measured: {', '.join(control[:5])}"
        advice = f"kubectl taint node {' '.join(control)} {CONTROL_PLANE}:NoSchedule"
        findings.append(Finding("warn", text, advice))
    return findings


async def check_requirements(
    client: Kube, plan: Plan, namespace: str, install: str
) -> list[Finding]:
    """Return what a plan requires; `install` is the command that changes the installation.

    Raises KubeError.
    """
    shapes = place_hosts(plan).shapes
    findings = [*await check_shapes(client, shapes, namespace), *gpu_findings(plan, shapes)]
    name = priority_class(plan.options.priority)
    if not await has_class(client, name):
        text = f"PriorityClass {name} does not exist or may not be read; "
        text += "measuring pods then have no priority class"
        findings.append(Finding("warn", text, CLUSTER_ADMIN))
    for name in benchmarks_with_rights(plan):
        account = account_of(name)
        if await _there(client, "v1", "ServiceAccount", account, namespace) is False:
            text = f"there is no service account {account} in {namespace}"
            findings.append(Finding("missing", text, f"{install} --allow {name}=NAMESPACE"))
    return findings


async def check_shapes(client: Kube, shapes: list[Shape], namespace: str) -> list[Finding]:
    """Return what the shapes require of the cluster, as the plan step will find it.

    Raises KubeError.
    """
    inventory = await read_inventory(client)
    requirements = {
        requirement
        for shape in shapes
        for requirement in await requirements_of(client, shape, inventory, namespace)
    }
    ordered = sorted(requirements, key=lambda requirement: (requirement.kind, requirement.what))
    return [_finding(requirement) for requirement in ordered]


def _finding(requirement: Requirement) -> Finding:
    what = requirement.what
    if requirement.there:
        return Finding("ok", what)
    if requirement.there is None:
        reason = "it may not be read, or nodes are added on demand"
        return Finding("warn", f"whether the cluster has {what} is not known: {reason}")
    device = "install its device plugin on a node that has the device"
    if what.startswith("nvidia.com/"):
        device = "install the NVIDIA driver on a node with the device and nvidia-device-plugin "
        device += "(or the GPU operator, which installs both)"
    elif what.startswith("hugepages-"):
        device = "reserve them on a node"
    advice = {
        "class": "use an existing one, or create it",
        "resource": device,
        "spread": "use fewer hosts, or placement: any",
        "zones": "use fewer hosts, or label nodes with topology.kubernetes.io/zone",
        "role": "label a node, or change the selector",
        "amount": "request less, or add a node that has as much",
        "network": "install Multus and the NetworkAttachmentDefinition",
        "attachment": "create it, or name an existing one: "
        "kubectl get network-attachment-definitions --all-namespaces",
        "volcano": "install Volcano, or use scheduler: default",
    }
    return Finding("missing", requirement.why, advice[requirement.kind])


def gpu_findings(plan: Plan, shapes: list[Shape]) -> list[Finding]:
    """Return the entries that use CUDA in pods that request no GPU: their containers see none."""
    advice = "resources: {nvidia.com/gpu: 1}"
    return [
        Finding("missing", f"entry {entry}: {why}, but its pods request no GPU", advice)
        for entry, why in without_gpu(plan, shapes).items()
    ]


def benchmarks_with_rights(plan: Plan) -> list[str]:
    """Return the benchmarks of which a point uses rights that `install --allow` grants."""
    using = set()
    for point in plan.points:
        benchmark = registry.get(point.benchmark)
        if benchmark.api.named and benchmark.Params.model_validate(point.params).uses_api:
            using.add(point.benchmark)
    return sorted(using)


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
    text = "entry {} needs Pod Security level {} ({}), and namespace {} enforces {}"
    refused = [
        Finding("missing", text.format(entry, least, ", ".join(keys), namespace, level), command)
        for entry, (least, keys) in needs.items()
        if LEVELS.index(least) > LEVELS.index(level)
    ]
    return refused or [Finding("ok", f"namespace {namespace} enforces Pod Security level {level}")]


def plan_needs(plan: Plan) -> dict[str, tuple[str, list[str]]]:
    """Return the least level of each entry that `restricted` refuses, and what needs it."""
    found: dict[str, dict[str, str]] = {}
    for point in plan.points:
        if needs := level_needs(plan.shapes[point.shape]):
            found.setdefault(point.entry, {}).update(needs)
    return {
        entry: (max(needs.values(), key=LEVELS.index), list(needs))
        for entry, needs in found.items()
    }


POD_TIMEOUT = 60.0
"""Seconds that the pod may take to start and to end."""


async def check_store(
    client: Kube,
    namespace: str,
    root: str,
    template: Object,
    install: str,
    benchmarks: Collection[str] = (),
) -> list[Finding]:
    """Start a pod that writes and removes an object in the store; return how it ended.

    `template` is the spec of the installed WorkflowTemplate, `install` the command that repairs
    the installation. The image must have `benchmarks`. Raises KubeError.
    """
    try:
        check_cluster_address(root)
    except AddressError as error:
        what, _, do = str(error).rpartition(": ")
        return [Finding("missing", what, do)]
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "perfdag-doctor-"},
        "spec": _pod_spec(root, template),
    }
    pod = await client.create(body, namespace)
    name = pod["metadata"]["name"]
    try:
        return await _wait(client, name, namespace, root, install, benchmarks)
    finally:
        await client.delete(await client.resource("v1", "Pod"), name, namespace, grace=0)


def _pod_spec(root: str, template: Object) -> Object:
    """Return the spec of a pod with the image, variables and rights of a step."""
    step = next(item for item in template["templates"] if item["name"] == "watchdog-pod")
    container = step["container"]
    main = {
        "name": "main",
        "image": container["image"],
        "imagePullPolicy": container.get("imagePullPolicy"),
        "command": ["perfdag", "step", "reach"],
        "volumeMounts": [{"name": "store", "mountPath": STORE}],
        "env": [{"name": "PERFDAG_STORE", "value": root}, {"name": "HOME", "value": "/tmp"}],
        "envFrom": container.get("envFrom"),
        "securityContext": hardened(),
        "resources": helper(),
    }
    spec: Object = {
        "restartPolicy": "Never",
        "serviceAccountName": "perfdag-run",
        "imagePullSecrets": template.get("imagePullSecrets") or [],
        "securityContext": pod_security(),
        "containers": [main],
        "automountServiceAccountToken": False,
        "volumes": [store_volume(root)],
    }
    return spec


async def _wait(
    client: Kube, name: str, namespace: str, root: str, install: str, benchmarks: Collection[str]
) -> list[Finding]:
    resource = await client.resource("v1", "Pod")
    deadline = time.monotonic() + POD_TIMEOUT
    while True:
        [pod] = await with_events(
            client, namespace, [read_pod(await client.get(resource, name, namespace))]
        )
        if pod.phase == "Succeeded":
            lines = [line async for line in client.logs(name, namespace)]
            store = Finding("ok", f"a pod can write and read store {root}")
            return [store, *image_findings("\n".join(lines), benchmarks)]
        if pod.phase == "Failed":
            log = " ".join([line async for line in client.logs(name, namespace)])[-300:]
            what, advice = f"store {root} from a pod: {log}", "repair the store or its Secret"
            return [Finding("missing", what, f"{advice} ({install})")]
        if pod.unrecoverable or time.monotonic() > deadline:
            text = f"a pod in {namespace} did not start within {POD_TIMEOUT:g} s"
            trouble = pod.trouble or pod.phase
            advice = "correct what this message names"
            return [Finding("missing", f"{text}: {trouble}", advice)]
        await asyncio.sleep(0.5)


def image_findings(log: str, benchmarks: Collection[str]) -> list[Finding]:
    """Return the findings of the benchmarks that the image of the steps has, from a pod's log.

    An image of an older perfdag prints no line of them: nothing is known.
    """
    line = next((line for line in log.splitlines() if line.startswith("benchmarks: ")), None)
    if line is None:
        return []
    absent = sorted(set(benchmarks) - set(line.split()[1:]))
    advice = "build them with its package: images/build --with WHEEL_OR_PATH"
    lacking = [
        Finding("missing", f"the images have no benchmark {name}", advice) for name in absent
    ]
    return lacking or [Finding("ok", "the images have the benchmarks of the suite")]
