"""Check a cluster: its API server, Argo, the installation, its rights and store, and its nodes."""

from perfdag.app.cluster.template import (
    ARGO,
    is_other_version,
    store_of,
)
from perfdag.app.doctor.argo import check_argo, list_readable
from perfdag.app.doctor.finding import Finding
from perfdag.app.doctor.network_policy import check_network_policy
from perfdag.app.doctor.pod_security import check_pod_security
from perfdag.app.doctor.requirements import check_requirements
from perfdag.app.doctor.rights import check_account, check_user, required_rights
from perfdag.app.doctor.store_claim import check_claim
from perfdag.app.doctor.store_pod import check_store
from perfdag.benchmark import registry
from perfdag.kube.client import Kube, KubeError, Object, run_with_client
from perfdag.kube.pods import is_ready, without_simulated
from perfdag.plan.plan import Plan
from perfdag.units import plural

MIN_VERSION = (1, 29)


def check_cluster(plan: Plan | None, root: str | None, namespace: str) -> list[Finding]:
    """Return the findings for the cluster that KUBECONFIG names, and for what a plan requires."""
    try:
        return run_with_client(lambda client: _check(client, plan, root, namespace), retries=1)
    except KubeError as error:
        return [
            Finding(
                "missing",
                f"the cluster: {error}",
                "set KUBECONFIG to a cluster that can be reached",
            )
        ]


async def _check(
    client: Kube, plan: Plan | None, root: str | None, namespace: str
) -> list[Finding]:
    findings = [
        await _check_version(client),
        *await check_argo(client),
        *await check_installation(client, namespace, root, plan),
        *_check_nodes(await list_readable(client, "v1", "Node")),
    ]
    if plan:
        findings += await check_requirements(client, plan, namespace, _install_again(namespace))
    return findings


async def _check_version(client: Kube) -> Finding:
    version = await client.request("GET", "/version")
    name = f"Kubernetes {version['gitVersion']}"
    minor = int("".join(filter(str.isdigit, version["minor"])))
    if (int(version["major"]), minor) < MIN_VERSION:
        return Finding("missing", f"{name} is older than 1.29", "use a newer cluster")
    return Finding("ok", f"{name} at {client.cluster.server}")


def _install_again(namespace: str) -> str:
    """Return the command that changes an installation; options that it omits return to defaults."""
    return f"perfdag install --namespace {namespace} --store ... (with all its other options)"


async def check_installation(
    client: Kube, namespace: str, root: str | None, plan: Plan | None = None
) -> list[Finding]:
    """Return the findings for the templates of a namespace, their rights, Pod Security and store.

    Raises KubeError.
    """
    templates = [
        *(await list_readable(client, ARGO, "WorkflowTemplate", namespace) or []),
        *(await list_readable(client, ARGO, "ClusterWorkflowTemplate") or []),
    ]
    template = next((item for item in templates if item["metadata"]["name"] == "perfdag"), None)
    if template is None:
        return [
            Finding(
                "missing",
                f"perfdag is not installed in namespace {namespace}",
                f"perfdag install --namespace {namespace} --store ...",
            )
        ]
    install = _install_again(namespace)
    if is_other_version(template["spec"]):
        return [
            Finding(
                "missing",
                f"perfdag in namespace {namespace} was installed by another version",
                install,
            )
        ]
    findings = [Finding("ok", f"perfdag is installed in namespace {namespace}")]
    findings += await check_pod_security(client, namespace, plan)
    findings.append(await check_user(client, namespace))
    for name, rights in required_rights().items():
        findings.append(await check_account(client, namespace, name, rights, install))
    findings.append(await check_network_policy(client, namespace, install))
    root = root or store_of(template)
    claim = await check_claim(client, namespace, root, _parallel_batches(template))
    if any(finding.what.startswith("there is no claim") for finding in claim):
        return [*findings, *claim]  # a pod that mounts the claim would never start
    benchmarks = {point.benchmark for point in plan.points} if plan else set(registry.working())
    store = await check_store(client, namespace, root, template["spec"], install, benchmarks)
    return [*findings, *claim, *store]


def _parallel_batches(template: Object) -> int:
    steps = {step["name"]: step for step in template["spec"]["templates"]}
    return int(steps["batches"].get("parallelism") or 1)


def _check_nodes(nodes: list[Object] | None) -> list[Finding]:
    if nodes is None:
        return [
            Finding(
                "warn",
                "nodes cannot be read; rows will lack node types",
                "a cluster admin runs perfdag install without --namespaced, "
                "with all its other options",
            )
        ]
    measuring = without_simulated(nodes)
    ready = [node for node in measuring if is_ready(node)]
    simulated = len(nodes) - len(measuring)
    text = f"{len(ready)} of {plural(len(measuring), 'node')} ready"
    if simulated:
        text += f", besides {plural(simulated, 'simulated one')}"
    findings = [Finding("ok" if ready else "missing", text)]
    cordoned = [node["metadata"]["name"] for node in ready if node["spec"].get("unschedulable")]
    if cordoned:
        findings.append(Finding("warn", f"cordoned: {', '.join(cordoned[:5])}"))
    return findings
