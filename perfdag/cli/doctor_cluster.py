"""The cluster part of `perfdag doctor`: API, Argo, rights, the store as a pod reaches it, nodes, storage classes, and what a suite's shapes ask for."""

import asyncio
import time
from typing import TYPE_CHECKING, Any

from perfdag.cli.doctor import Finding

if TYPE_CHECKING:
    from perfdag.kube import Kube
    from perfdag.plan import Plan
    from perfdag.shape import Shape

ARGO = "argoproj.io/v1alpha1"
POD_SECONDS = 60.0
_RIGHTS = {
    "perfdag-run": [
        ("", "pods", "patch"),
        ("", "secrets", "create"),
        ("argoproj.io", "workflows", "get"),
        ("argoproj.io", "workflowtaskresults", "create"),
    ],
    "perfdag-finish": [("argoproj.io", "workflows", "patch"), ("argoproj.io", "workflowtaskresults", "create")],
    "perfdag-measure": [("", "pods", "watch"), ("argoproj.io", "workflowtaskresults", "create")],
}

Object = dict[str, Any]


def findings(plan: "Plan | None", root: str | None, namespace: str | None) -> list[Finding]:
    """Findings for the cluster that KUBECONFIG names; one `missing` where it is out of reach."""
    from perfdag import kube

    try:
        return kube.run(lambda client: _look(client, plan, root, namespace or "perfdag"), retries=1)
    except kube.KubeError as error:
        return [Finding("missing", f"the cluster: {error}", "set KUBECONFIG to a cluster that answers")]


async def _look(client: "Kube", plan: "Plan | None", root: str | None, namespace: str) -> list[Finding]:
    version = await client.request("GET", "/version")
    found = [Finding("ok", f"Kubernetes {version['gitVersion']} at {client.cluster.server}")]
    if (int("".join(c for c in version["minor"] if c.isdigit())), version["major"]) < (29, "1"):
        found.append(Finding("missing", f"Kubernetes {version['gitVersion']} is older than 1.29", "use a newer cluster"))
    found += await _argo(client)
    found += await _installed(client, namespace, root)
    nodes = await _optional(client, "v1", "Node")
    found += _nodes(nodes)
    from perfdag.shape import Shape

    shapes = [Shape.model_validate(each) for each in plan.shapes] if plan else []
    found += await _asked(client, shapes, _real(nodes or []))
    return found


async def _optional(client: "Kube", api: str, kind: str, namespace: str | None = None) -> list[Object] | None:
    """Objects of a kind, None where the cluster lacks it or we may not read it."""
    from perfdag.kube import KubeError

    try:
        return await client.list(await client.resource(api, kind), namespace)
    except KubeError as error:
        if error.status in (403, 404):
            return None
        raise


async def _argo(client: "Kube") -> list[Finding]:
    from perfdag.kube import KubeError

    found = []
    for kind in ("Workflow", "WorkflowTemplate", "CronWorkflow", "WorkflowTaskResult"):
        try:
            await client.resource(ARGO, kind)
        except KubeError:
            found.append(Finding("missing", f"Argo Workflows: no kind {kind}", "install Argo Workflows 4.x (its CRDs and controller)"))
    if found:
        return found
    runs = await _optional(client, ARGO, "Workflow") or []
    seen = [each for each in runs if (each.get("status") or {}).get("phase")]
    said = "and its controller answered before" if seen else "no workflow has run yet, so that the controller works is not shown"
    return [Finding("ok" if seen else "warn", f"Argo Workflows: CRDs are there, {said}")]


async def _installed(client: "Kube", namespace: str, root: str | None) -> list[Finding]:
    install = f"perfdag install --namespace {namespace} --store ..."
    templates = [
        *(await _optional(client, ARGO, "WorkflowTemplate", namespace) or []),
        *(await _optional(client, ARGO, "ClusterWorkflowTemplate") or []),
    ]
    ours = [each for each in templates if each["metadata"]["name"] == "perfdag"]
    if not ours:
        return [Finding("missing", f"perfdag is not installed in namespace {namespace}", install)]
    found = [Finding("ok", f"perfdag is installed in namespace {namespace}")]
    for account, rights in _RIGHTS.items():
        refused = [
            f"{verb} {resource}" for group, resource, verb in rights if not await _may(client, namespace, account, group, resource, verb)
        ]
        if refused:
            found.append(Finding("missing", f"service account {account} may not {', '.join(refused)}", install))
        else:
            found.append(Finding("ok", f"service account {account} has its rights"))
    given = {each["name"]: each.get("value", "") for each in ours[0]["spec"]["arguments"]["parameters"]}
    container = next(each["container"] for each in ours[0]["spec"]["templates"] if each["name"] == "sentry")
    found.append(await _store(client, namespace, root or given.get("store", ""), container))
    return found


async def _may(client: "Kube", namespace: str, account: str, group: str, resource: str, verb: str) -> bool:
    from perfdag.kube import KubeError

    asked = {"namespace": namespace, "verb": verb, "group": group, "resource": resource}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
    spec = {"user": f"system:serviceaccount:{namespace}:{account}", "groups": ["system:serviceaccounts"], "resourceAttributes": asked}
    try:
        answer = await client.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", json={**body, "spec": spec})
    except KubeError as error:
        if error.status == 403:
            return True  # we may not ask for others; the run will tell
        raise
    return bool(answer["status"]["allowed"])


async def _store(client: "Kube", namespace: str, root: str, container: Object) -> Finding:
    """Start a pod as a step's would be, let it write and remove an object in the store, read what it says, delete it."""
    from perfdag.podspec import STORE, claim_patch, hardened, pod_security

    if not root:
        return Finding("missing", "no store is named", "give --store s3://bucket/prefix or claim://NAME")
    main = {
        "name": "main",
        "image": container["image"],
        "imagePullPolicy": container.get("imagePullPolicy"),
        "command": ["perfdag", "step", "reach"],
        "env": [{"name": "PERFDAG_STORE", "value": root}, {"name": "HOME", "value": "/tmp"}],
        "envFrom": container.get("envFrom"),
        "securityContext": hardened(),
    }
    spec: Object = {
        "restartPolicy": "Never",
        "securityContext": pod_security(),
        "containers": [main],
        "automountServiceAccountToken": False,
    }
    if root.startswith("claim://"):
        spec["volumes"] = claim_patch(root.removeprefix("claim://"))["volumes"]
        main["volumeMounts"] = [{"name": "store", "mountPath": STORE}]
    made = await client.create(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "perfdag-doctor-"}, "spec": spec}, namespace
    )
    try:
        return await _reached(client, made["metadata"]["name"], namespace, root)
    finally:
        await client.delete(await client.resource("v1", "Pod"), made["metadata"]["name"], namespace, grace=0)


async def _reached(client: "Kube", name: str, namespace: str, root: str) -> Finding:
    from perfdag.steps.pods import read

    kind = await client.resource("v1", "Pod")
    deadline = time.monotonic() + POD_SECONDS
    while True:
        pod = read(await client.get(kind, name, namespace))
        if pod.phase in ("Succeeded", "Failed"):
            said = " ".join([line async for line in client.logs(name, namespace)])[-300:]
            if pod.phase == "Succeeded":
                return Finding("ok", f"store {root} is written and read from a pod")
            return Finding("missing", f"store {root} from a pod: {said}", "mend the store or its Secret (perfdag install --store ...)")
        if pod.hopeless or time.monotonic() > deadline:
            return Finding(
                "missing", f"a pod in {namespace} did not start within {POD_SECONDS:g} s: {pod.trouble or pod.phase}", "mend what it says"
            )
        await asyncio.sleep(0.5)


def _nodes(nodes: list[Object] | None) -> list[Finding]:
    if nodes is None:
        return [
            Finding("warn", "nodes cannot be read; rows will lack node types", "perfdag install without --namespaced, as a cluster admin")
        ]
    real = _real(nodes)
    ready = [each for each in real if any(c["type"] == "Ready" and c["status"] == "True" for c in each["status"].get("conditions", []))]
    closed = [each["metadata"]["name"] for each in ready if each["spec"].get("unschedulable")]
    beside = f", {len(nodes) - len(real)} simulated beside them" if len(nodes) > len(real) else ""
    found = [Finding("ok" if ready else "missing", f"{len(ready)} of {len(real)} nodes are ready{beside}")]
    return found + ([Finding("warn", f"cordoned: {', '.join(closed[:5])}")] if closed else [])


def _real(nodes: list[Object]) -> list[Object]:
    """Nodes that run pods: those simulated by KWOK have any resource and run nothing."""
    return [each for each in nodes if "kwok.x-k8s.io/node" not in each["metadata"].get("annotations", {})]


def _plugin(resource: str) -> str:
    """What brings a device as a resource of nodes."""
    if resource.startswith("nvidia.com/"):
        return "install the NVIDIA driver on a node with the device and nvidia-device-plugin (or the GPU operator, which brings both)"
    return "install its device plugin on a node that has the device"


async def _asked(client: "Kube", shapes: "list[Shape]", nodes: list[Object]) -> list[Finding]:
    """What the suite's shapes ask of the cluster."""
    found: list[Finding] = []
    classes = [each["metadata"]["name"] for each in await _optional(client, "storage.k8s.io/v1", "StorageClass") or []]
    wanted = {
        shape.volume.storage_class or "" for shape in shapes if shape.volume and shape.volume.kind == "claim" and not shape.volume.claim
    }
    for name in sorted(wanted):
        there = name in classes if name else bool(classes)
        found.append(
            Finding(
                "ok" if there else "missing",
                f"storage class {name or '(default)'}",
                "" if there else f"there are: {', '.join(classes) or 'none'}",
            )
        )
    networks = sorted({shape.network.name for shape in shapes if shape.network.name})
    for network in networks:
        space, _, name = network.rpartition("/")
        listed = await _optional(client, "k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition", space or None)
        there = any(each["metadata"]["name"] == name for each in listed or [])
        found.append(
            Finding(
                "ok" if there else "missing",
                f"Multus network {network}",
                "" if there else "install Multus and the NetworkAttachmentDefinition",
            )
        )
    if any(shape.scheduler == "volcano" for shape in shapes):
        there = await _optional(client, "scheduling.volcano.sh/v1beta1", "PodGroup") is not None
        found.append(Finding("ok" if there else "missing", "Volcano", "" if there else "install Volcano, or use scheduler: default"))
    for name in sorted({name for shape in shapes for name in shape.resources if "/" in name}):
        holders = [each for each in nodes if int(each["status"].get("allocatable", {}).get(name, "0")) > 0]
        found.append(Finding("ok" if holders else "missing", f"{name} on {len(holders)} nodes", "" if holders else _plugin(name)))
    most = max((shape.hosts.count for shape in shapes if shape.hosts.placement == "spread"), default=0)
    if most > len(nodes) > 0:
        found.append(
            Finding("missing", f"a shape spreads over {most} nodes, the cluster has {len(nodes)}", "fewer hosts, or placement: any")
        )
    return found
