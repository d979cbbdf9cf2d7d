"""`perfdag doctor`: check what a suite needs, on this machine or on a cluster."""

import argparse
import asyncio
import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from pydantic import ValidationError

from perfdag.benchmark import registry
from perfdag.benchmark.contract import Gang, NotInstalled, Params, SampleError, need_tools
from perfdag.commands.options import (
    EXIT_FAILED,
    EXIT_OK,
    JSON,
    SUITE_HELP,
    option,
    print_json,
    verb,
)
from perfdag.hosts import base, disturbance, facts, local
from perfdag.identity import grouped
from perfdag.kube.client import (
    Kube,
    KubeError,
    Object,
    load_config,
    run_with_client,
)
from perfdag.kube.patch import (
    HELPER,
    STORE,
    account_of,
    hardened,
    pod_security,
    priority_class,
    store_volume,
)
from perfdag.kube.pods import ARGO, is_ready, read_pod, takes, with_events, without_simulated
from perfdag.plan import Plan, make_plan, place_hosts, without_gpu
from perfdag.runs import RunError
from perfdag.runs.cluster import check_pod_security, installed_template, store_of
from perfdag.shape import Shape
from perfdag.steps.loop import lacking_gpus, needs_cluster
from perfdag.steps.pods.cluster import Requirement, has_class, requirements
from perfdag.store.base import AddressError, StoreError, check_cluster_address
from perfdag.store.s3 import open_store
from perfdag.suite.load import load_suite
from perfdag.terminal import Finding, styled
from perfdag.units import go_seconds, plural


@verb(
    "doctor",
    "Check the tools, the store and the noise of this machine for a suite, or the "
    "cluster. Exit with 1 if something is missing.",
    """
    examples:
      perfdag doctor
      perfdag doctor suites/quick.yaml
      perfdag doctor suites/daily.yaml --cluster --namespace bench
    """,
    option("suite", nargs="?", metavar="SUITE", help=f"{SUITE_HELP} (default: all benchmarks)"),
    option(
        "--cluster",
        action="store_true",
        help="check the cluster that KUBECONFIG names instead of this machine",
    ),
    option(
        "--namespace",
        "-n",
        default="perfdag",
        help="with --cluster: namespace of the installation",
    ),
    option("--store", metavar="ROOT", help="folder or s3://bucket/prefix (default: the suite's)"),
    JSON,
)
def run_doctor(args: argparse.Namespace) -> int:
    """Print the findings for a suite, or for every benchmark. Raises BadDocument."""
    loaded = load_suite(args.suite) if args.suite else None
    plan = make_plan(loaded) if loaded else None
    root = args.store or (loaded.suite.store if loaded else None)
    if args.cluster:
        findings = check_cluster(plan, root, args.namespace)
    else:
        repair = "repair the package, or uninstall it"
        broken = registry.faults() if plan is None else ()
        findings = [*_needs(plan), _store(root), *_noise()]
        findings += [Finding("missing", text, repair) for text in broken]
    findings.sort(key=lambda finding: ("missing", "warn", "ok").index(finding.state))
    text = styled((finding.text(), finding.state) for finding in findings)
    print_json([vars(finding) for finding in findings]) if args.json else print(text)
    missing = any(finding.state == "missing" for finding in findings)
    return EXIT_FAILED if missing else EXIT_OK


class _CachingHost(local.LocalHost):
    """This machine; a command that many points run is run once."""

    def __init__(self) -> None:
        super().__init__()
        self._results: dict[str, base.CommandResult] = {}

    def run(self, argv: Sequence[str], **options: Any) -> base.CommandResult:
        key = repr((list(argv), options))
        if key not in self._results:
            self._results[key] = super().run(argv, **options)
        return self._results[key]


def _needs(plan: Plan | None) -> Iterator[Finding]:
    """Ask each benchmark what it lacks here, and yield each need with the benchmarks that have it.

    Asked are the points of a plan, or every benchmark with its default params. A benchmark is ok
    only if nothing would be skipped.
    """
    subjects = [(name, Object(), Shape(), False) for name in registry.working()]
    if plan:
        subjects = [
            (point.benchmark, point.params, plan.shapes[point.shape], point.optional)
            for point in plan.points
        ]
    host = _CachingHost()
    points: Counter[str] = Counter()
    lacking: dict[Finding, Counter[str]] = {}
    users_of: dict[str, set[str]] = {}
    for name, values, shape, optional in subjects:
        gang = Gang([host] * shape.hosts.count, shape, 60.0, "")
        params = None
        with contextlib.suppress(ValidationError):  # one has no default
            params = registry.get(name).Params.model_validate(values)
        points[name] += 1
        for finding in _lacks(name, params, gang):
            need = replace(finding, state="warn") if optional else finding
            lacking.setdefault(need, Counter())[name] += 1
        if gang.output.tool:
            users_of.setdefault(gang.output.tool, set()).add(name)
    for need, names in lacking.items():
        total = sum(points[name] for name in names)
        part = "" if names.total() == total else f" ({names.total()} of {total} points)"
        yield replace(need, what=f"{', '.join(sorted(names))}: {need.what}{part}")
    for name in sorted(points.keys() - set(chain.from_iterable(lacking.values()))):
        text = f"its {points[name]} points need" if points[name] > 1 else "it needs"
        yield Finding("ok", f"{name}: what {text} is here")
    for tool, users in users_of.items():
        yield Finding("ok", f"{tool}, for {', '.join(sorted(users))}")


def _lacks(name: str, params: Params | None, gang: Gang) -> Iterator[Finding]:
    """Yield why this machine would skip a point: its shape, its tools, or what it requires."""
    benchmark = registry.get(name)
    if reason := needs_cluster(gang.shape):
        yield Finding("missing", reason, "measure it with perfdag submit")
        return
    if reason := lacking_gpus(gang.shape, gang.hosts[0]):
        yield Finding("missing", reason)
    try:
        if params is None:
            need_tools(gang.hosts, benchmark.tools)
            yield Finding(
                "warn",
                "has params without a default; only a suite says what it needs",
                "perfdag doctor SUITE",
            )
            return
        if benchmark.api.named and params.uses_api:
            load_config()
        benchmark.require(gang, params)
    except NotInstalled as error:
        for remedy, tools in grouped(error.tools, lambda tool: tool.remedy).items():
            programs = [*dict.fromkeys(tool.program for tool in tools)]
            verb_form = "are" if len(programs) > 1 else "is"
            yield Finding("missing", f"{', '.join(programs)} {verb_form} not installed", remedy)
    except (SampleError, KubeError) as error:
        yield Finding("missing", str(error))


def _store(root: str | None) -> Finding:
    try:
        store = open_store(root, patience=3.0)
        store.put("runs/doctor", b"")
        store.delete("runs/doctor")
    except StoreError as error:
        return Finding("missing", str(error), "repair it, or choose another store with --store")
    return Finding("ok", f"store {store.root} can be written")


def _noise() -> list[Finding]:
    """Return the sources of noise on this machine."""
    findings = []
    if (governor := facts.gather().get("cpu_governor")) not in (None, "performance"):
        findings.append(
            Finding(
                "warn",
                f"CPU governor is {governor}: the clock frequency changes with the load",
                "cpupower frequency-set -g performance",
            )
        )
    if (load := disturbance.runnable()) > disturbance.LOAD_LIMIT * (os.cpu_count() or 1):
        findings.append(
            Finding(
                "warn",
                f"{load} tasks are runnable now: other work disturbs the measurement",
                "stop it, or expect disturbed samples",
            )
        )
    return findings or [Finding("ok", "no source of noise seen")]


MIN_KUBERNETES = (1, 29)
MIN_ARGO = (4, 1)
ARGO_KINDS = ("Workflow", "WorkflowTemplate", "CronWorkflow", "WorkflowTaskResult")
REQUEUE_TIME = "DEFAULT_REQUEUE_TIME"
MOST_REQUEUE_SECONDS = 2.0
"""The variable of Argo's controller, and what suits Workflows with a handful of short steps."""
OFFLOAD = "ALWAYS_OFFLOAD_NODE_STATUS"
"""The variable of Argo's controller that keeps the nodes of a Workflow out of the object."""
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
CLUSTER_ADMIN = (
    "a cluster admin runs perfdag install without --namespaced, with all its other options"
)
REMEDIES = {
    "class": "use an existing one, or create it",
    "spread": "use fewer hosts, or placement: any",
    "zones": "use fewer hosts, or label nodes with topology.kubernetes.io/zone",
    "role": "label a node, or change the selector",
    "amount": "request less, or add a node that has as much",
    "network": "install Multus and the NetworkAttachmentDefinition",
    "attachment": "create it, or name an existing one: "
    "kubectl get network-attachment-definitions --all-namespaces",
    "volcano": "install Volcano, or use scheduler: default",
    "nvidia.com/": "install the NVIDIA driver on a node with the device and nvidia-device-plugin "
    "(or the GPU operator, which installs both)",
    "hugepages-": "reserve them on a node",
    "resource": "install its device plugin on a node that has the device",
}
"""What to do about a requirement of a shape that is not met, by its kind, or by the resource."""
POD_TIMEOUT = 60.0
"""Seconds that the pod may take to start and to end."""


def check_cluster(plan: Plan | None, root: str | None, namespace: str) -> list[Finding]:
    """Return the findings for the cluster that KUBECONFIG names, and for what a plan requires."""

    async def work(client: Kube) -> list[Finding]:
        shapes = plan.shapes if plan else [Shape()]
        findings = [await _check_version(client)]
        findings += [item async for item in check_argo(client)]
        findings += await check_installation(client, namespace, root, plan)
        findings += check_nodes(await client.list_readable("v1/Node"), shapes)
        if plan:
            findings += [item async for item in check_requirements(client, plan, namespace)]
        return findings

    try:
        return run_with_client(work, retries=1)
    except KubeError as error:
        advice = "set KUBECONFIG to a cluster that can be reached"
        return [Finding("missing", f"the cluster: {error}", advice)]


def _missing(error: Exception) -> Finding:
    """Return an error whose message ends with what to do as a finding."""
    problem, _, advice = str(error).rpartition(": ")
    return Finding("missing", problem, advice)


def _install_again(namespace: str) -> str:
    """Return the command that changes an installation; options that it omits return to defaults."""
    return f"perfdag install --namespace {namespace} --store ... (with all its other options)"


async def _check_version(client: Kube) -> Finding:
    version = await client.request("GET", "/version")
    name = f"Kubernetes {version['gitVersion']}"
    numbers = tuple(int(re.sub(r"\D", "", version[part])) for part in ("major", "minor"))
    if numbers < MIN_KUBERNETES:
        return Finding("missing", f"{name} is older than 1.29", "use a newer cluster")
    return Finding("ok", f"{name} at {client.cluster.server}")


async def check_argo(client: Kube) -> AsyncIterator[Finding]:
    """Yield whether Argo Workflows is installed, new enough and quick. Raises KubeError."""
    advice = "install Argo Workflows 4.1 or newer (its CRDs and controller)"
    for kind in ARGO_KINDS:
        try:
            await client.path(f"{ARGO}/{kind}")
        except KubeError:
            yield Finding("missing", f"Argo Workflows: no kind {kind}", advice)
            return
    for deployment in await client.list_readable("apps/v1/Deployment") or []:
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            if version := re.search(r"workflow-controller:v?(\d+)\.(\d+)", container["image"]):
                text = f"Argo's controller is {container['image']}"
                if (int(version[1]), int(version[2])) < MIN_ARGO:
                    text += ": runs would wait forever for pods that never start"
                    yield Finding("missing", text, "use 4.1 or newer, which has pendingTimeout")
                    return
                yield Finding("ok", text)
                for finding in _controller_settings(deployment["metadata"], container):
                    yield finding
                return
    yield Finding(
        "warn",
        "Argo's version is unknown: no Deployment of its controller can be read",
        "make sure that it is 4.1 or newer",
    )


def _controller_settings(deployment: Object, container: Object) -> Iterator[Finding]:
    """Yield the settings of Argo's controller by which runs are slow, or never end."""
    command = f"kubectl set env -n {deployment['namespace']} deployment/{deployment['name']}"
    values = {item["name"]: item.get("value", "") for item in container.get("env") or []}
    if values.get(OFFLOAD) == "true":
        text = f"Argo's controller keeps the nodes of Workflows in its database ({OFFLOAD})"
        yield Finding(
            "missing", f"{text}, where no run reads that it is over", f"{command} {OFFLOAD}-"
        )
    interval = values.get(REQUEUE_TIME, "10s")
    with contextlib.suppress(ValueError):  # a ConfigMap has it
        if go_seconds(interval) > MOST_REQUEUE_SECONDS:
            yield Finding(
                "warn",
                f"Argo's controller looks at a Workflow once in {interval} ({REQUEUE_TIME}), "
                "so each step and batch of a run begins up to that much later",
                f"2s suits a cluster that runs benchmarks: {command} {REQUEUE_TIME}=2s",
            )


async def check_installation(
    client: Kube, namespace: str, root: str | None, plan: Plan | None = None
) -> list[Finding]:
    """Return the findings for the templates of a namespace, its Pod Security and the store.

    Raises KubeError.
    """
    try:
        template = await installed_template(client, namespace)
    except RunError as error:
        return [_missing(error)]
    benchmarks = {point.benchmark for point in plan.points} if plan else set(registry.working())
    store = root or store_of(template)
    return [
        Finding("ok", f"perfdag is installed in namespace {namespace}"),
        *await check_pod_security(client, namespace, plan),
        *await check_store(client, namespace, store, template, benchmarks),
    ]


def check_nodes(
    nodes: list[Object] | None, shapes: Sequence[Shape] = (Shape(),)
) -> Iterator[Finding]:
    """Yield how many nodes are ready, and those that are measured by mistake or not at all.

    `shapes` are those of the pods that measure.
    """
    if nodes is None:
        yield Finding("warn", "nodes cannot be read; rows will lack node types", CLUSTER_ADMIN)
        return
    measuring = without_simulated(nodes)
    ready = {node["metadata"]["name"]: node for node in measuring if is_ready(node)}
    simulated = len(nodes) - len(measuring)
    text = f"{len(ready)} of {plural(len(measuring), 'node')} ready"
    text += f", besides {plural(simulated, 'simulated one')}" if simulated else ""
    yield Finding("ok" if ready else "missing", text)
    if cordoned := [name for name, node in ready.items() if node["spec"].get("unschedulable")]:
        yield Finding("warn", f"cordoned: {', '.join(cordoned[:5])}")
    control = [
        name
        for name, node in ready.items()
        if CONTROL_PLANE in (node["metadata"].get("labels") or {})
        and any(takes(node, shape) for shape in shapes)
    ]
    if control:
        text = f"control-plane nodes without a taint would be measured: {', '.join(control[:5])}"
        advice = f"kubectl taint node {' '.join(control)} {CONTROL_PLANE}:NoSchedule"
        yield Finding("warn", text, f"avoid_nodes: [{CONTROL_PLANE}] in the suite, or {advice}")


async def check_requirements(client: Kube, plan: Plan, namespace: str) -> AsyncIterator[Finding]:
    """Yield what the shapes and benchmarks of a plan require of the cluster. Raises KubeError."""
    shapes = place_hosts(plan).shapes
    required = set[Requirement]().union(*await requirements(client, shapes, namespace))
    for requirement in sorted(
        required, key=lambda requirement: (requirement.kind, requirement.text)
    ):
        yield _finding_of(requirement)
    for entry in without_gpu(plan, shapes):
        yield Finding(
            "missing",
            f"entry {entry}: device is cuda, but its pods request no GPU",
            "resources: {nvidia.com/gpu: 1}",
        )
    priority = priority_class(plan.options.priority)
    if not await has_class(client, priority):
        text = f"PriorityClass {priority} does not exist or may not be read; "
        yield Finding("warn", f"{text}measuring pods then have no priority class", CLUSTER_ADMIN)
    using = {
        point.benchmark
        for point in plan.points
        if (benchmark := registry.get(point.benchmark)).api.named
        and benchmark.Params.model_validate(point.params).uses_api
    }
    accounts = await client.list_readable("v1/ServiceAccount", namespace)
    existing = {account["metadata"]["name"] for account in accounts or []}
    for name in sorted(using):
        if accounts is not None and account_of(name) not in existing:
            yield Finding(
                "missing",
                f"there is no service account {account_of(name)} in {namespace}",
                f"{_install_again(namespace)} --allow {name}=NAMESPACE",
            )


def _finding_of(requirement: Requirement) -> Finding:
    """Return whether a cluster meets a requirement, and what to do where it does not."""
    text = requirement.text
    if requirement.met is None:
        reason = "it may not be read, or nodes are added on demand"
        return Finding("warn", f"whether the cluster has {text} is not known: {reason}")
    if requirement.met:
        return Finding("ok", text)
    keys = (key for key in REMEDIES if key == requirement.kind or text.startswith(key))
    return Finding("missing", requirement.problem, REMEDIES[next(keys)])


async def check_store(
    client: Kube, namespace: str, root: str, template: Object, benchmarks: Collection[str]
) -> list[Finding]:
    """Start a pod that writes and removes an object in the store; return how it ended.

    It has the image, variables and rights of a step of the installed WorkflowTemplate. The image
    must have `benchmarks`. Raises KubeError.
    """
    try:
        check_cluster_address(root)
    except AddressError as error:
        return [_missing(error)]
    spec = template["spec"]
    step = next(item for item in spec["templates"] if item["name"] == "plan-pod")["container"]
    main = {
        "name": "main",
        "image": step["image"],
        "imagePullPolicy": step.get("imagePullPolicy"),
        "command": ["perfdag", "step", "reach"],
        "volumeMounts": [{"name": "store", "mountPath": STORE}],
        "env": [{"name": "PERFDAG_STORE", "value": root}, {"name": "HOME", "value": "/tmp"}],
        "envFrom": step.get("envFrom"),
        "securityContext": hardened(),
        "resources": HELPER,
    }
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "perfdag-doctor-"},
        "spec": {
            "restartPolicy": "Never",
            "serviceAccountName": "perfdag-run",
            "imagePullSecrets": spec.get("imagePullSecrets") or [],
            "securityContext": pod_security(),
            "containers": [main],
            "automountServiceAccountToken": False,
            "volumes": [store_volume(root)],
        },
    }
    name = (await client.create(body, namespace))["metadata"]["name"]
    deadline = time.monotonic() + POD_TIMEOUT
    try:
        while True:
            pods = [read_pod(await client.get("v1/Pod", name, namespace))]
            [pod] = await with_events(client, namespace, pods)
            if pod.phase in ("Succeeded", "Failed"):
                log = [line async for line in client.logs(name, namespace)]
                break
            if pod.unrecoverable or time.monotonic() > deadline:
                text = f"a pod in {namespace} did not start within {POD_TIMEOUT:g} s"
                cause = pod.trouble or pod.phase
                return [Finding("missing", f"{text}: {cause}", "correct what this message names")]
            await asyncio.sleep(0.5)
    finally:
        await client.delete("v1/Pod", name, namespace, grace=0)
    if pod.phase == "Failed":
        advice = f"repair the store or its Secret ({_install_again(namespace)})"
        return [Finding("missing", f"store {root} from a pod: {' '.join(log)[-300:]}", advice)]
    return [
        Finding("ok", f"a pod can write and read store {root}"),
        *of_images("\n".join(log), benchmarks),
    ]


def of_images(log: str, benchmarks: Collection[str]) -> list[Finding]:
    """Return which benchmarks the images lack, by the line of `perfdag step reach` in a log."""
    advice = "build them with its package: images/build --with WHEEL_OR_PATH"
    lacking = [
        Finding("missing", f"the images have no benchmark {name}", advice)
        for name in sorted(set(benchmarks) - set(log.split()))
    ]
    return lacking or [Finding("ok", "the images have the benchmarks of the suite")]
