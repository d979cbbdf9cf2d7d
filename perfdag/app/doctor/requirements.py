"""Check what a suite requires of a cluster and of the installation there."""

from perfdag.app.doctor.finding import Finding
from perfdag.app.doctor.rights import check_account, required_rights
from perfdag.benchmark import registry
from perfdag.kube.client import Kube
from perfdag.kube.patch import account_of, priority_class
from perfdag.plan.plan import Plan, cluster_shapes
from perfdag.shape import Shape
from perfdag.steps.devices import without_gpu
from perfdag.steps.runner.feasibility import Requirement, has_class, read_inventory, requirements_of


async def check_requirements(
    client: Kube, plan: Plan, namespace: str, install: str
) -> list[Finding]:
    """Return what a plan requires; `install` is the command that changes the installation.

    Raises KubeError.
    """
    shapes = [Shape.model_validate(shape) for shape in cluster_shapes(plan)]
    findings = [*await check_shapes(client, shapes, namespace), *gpu_findings(plan, shapes)]
    findings.append(await _check_priority(client, priority_class(plan.options.get("priority", 0))))
    rights = required_rights()["perfdag-measure"]
    for name in benchmarks_with_rights(plan):
        command = f"{install} --allow {name}=NAMESPACE"
        account = account_of(name)
        findings.append(await check_account(client, namespace, account, rights, command))
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
    name = what.partition(" ")[0]
    advice = {
        "class": "use an existing one, or create it",
        "resource": "reserve them on a node" if name.startswith("hugepages-") else _plugin(name),
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


def _plugin(resource: str) -> str:
    """Return what adds a device to the resources of a node."""
    if resource.startswith("nvidia.com/"):
        return (
            "install the NVIDIA driver on a node with the device and nvidia-device-plugin "
            "(or the GPU operator, which installs both)"
        )
    return "install its device plugin on a node that has the device"


def gpu_findings(plan: Plan, shapes: list[Shape]) -> list[Finding]:
    """Return the entries that use CUDA in pods that request no GPU: their containers see none."""
    return [
        Finding(
            "missing",
            f"entry {entry}: {why}, but its pods request no GPU",
            "resources: {nvidia.com/gpu: 1}",
        )
        for entry, why in without_gpu(plan, shapes).items()
    ]


def benchmarks_with_rights(plan: Plan) -> list[str]:
    """Return the benchmarks of which a point uses rights that `install --allow` grants."""
    names = set()
    for point in plan.points:
        benchmark = registry.get(point.benchmark)
        if not benchmark.api.named or point.benchmark in names:
            continue
        if benchmark.uses_api(benchmark.Params.model_validate(point.params)):
            names.add(point.benchmark)
    return sorted(names)


async def _check_priority(client: Kube, name: str) -> Finding:
    if await has_class(client, name):
        return Finding("ok", f"PriorityClass {name}")
    return Finding(
        "warn",
        f"PriorityClass {name} does not exist or may not be read; "
        "measuring pods then have no priority class",
        "a cluster admin runs perfdag install without --namespaced, with all its other options",
    )
