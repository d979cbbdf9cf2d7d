"""The templates that a namespace can use, and the Workflow of a run made of them."""

from dataclasses import dataclass

import orjson

from perfdag.commands.options import CommandError
from perfdag.kube.client import Kube, KubeError, Object, run_with_client
from perfdag.kube.patch import STORE_ADDRESS
from perfdag.signals import EXIT_REACH
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
    """The template of a namespace or of the whole cluster, and the store of its installation."""

    namespace: str
    cluster_scope: bool
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
            cluster_scope=self.cluster_scope,
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
    """Return the template of the namespace, else that of the cluster.

    Raises NotInstalled, KubeError.
    """
    command = f"perfdag install --namespace {namespace} --store ..."
    template = run_with_client(lambda client: _get_template(client, namespace))
    if template is None:
        raise NotInstalled(f"perfdag is not installed in namespace {namespace}: {command}")
    if is_other_version(template["spec"]) or not store_of(template):
        raise NotInstalled(f"perfdag in namespace {namespace} is of another version: {command}")
    cluster_scope = template["kind"] == "ClusterWorkflowTemplate"
    return InstalledTemplate(namespace, cluster_scope, store_of(template))


async def _get_template(client: Kube, namespace: str) -> Object | None:
    for kind in ("WorkflowTemplate", "ClusterWorkflowTemplate"):
        try:
            return await client.get(await client.resource(ARGO, kind), "perfdag", namespace)
        except KubeError as error:
            if error.status != 404:
                raise
    return None
