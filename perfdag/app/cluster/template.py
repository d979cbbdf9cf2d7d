"""The templates that a namespace can use, and the Workflow of a run made of them."""

from dataclasses import dataclass

from perfdag.commands.options import CommandError
from perfdag.kube.client import Kube, KubeError, Object, run_with_client
from perfdag.signals import EXIT_REACH

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


def template_parameters(template: Object) -> dict[str, str]:
    """Return the parameters of a WorkflowTemplate with the values of its installation."""
    parameters = template["spec"]["arguments"]["parameters"]
    return {parameter["name"]: parameter.get("value", "") for parameter in parameters}


@dataclass(frozen=True)
class InstalledTemplate:
    """The template of a namespace or of the whole cluster and its parameters."""

    namespace: str
    cluster_scope: bool
    parameters: dict[str, str]

    def start(self, suite: str, parameters: dict[str, str], priority: int) -> str:
        """Create the Workflow of the run `parameters["run"]` and return its name.

        Raises KubeError.
        """
        from perfdag.workflows import runs

        body = runs.workflow(
            self.namespace, suite, parameters, parameters["run"], priority, self.cluster_scope
        )
        workflow = run_with_client(lambda client: client.create(body, self.namespace))
        return str(workflow["metadata"]["name"])


def installed_template(namespace: str) -> InstalledTemplate:
    """Return the template of the namespace, else that of the cluster.

    Raises NotInstalled, KubeError.
    """
    command = f"perfdag install --namespace {namespace} --store ..."
    template = run_with_client(lambda client: _get_template(client, namespace))
    if template is None:
        raise NotInstalled(f"perfdag is not installed in namespace {namespace}: {command}")
    if is_other_version(template["spec"]):
        raise NotInstalled(f"perfdag in namespace {namespace} is of another version: {command}")
    cluster_scope = template["kind"] == "ClusterWorkflowTemplate"
    return InstalledTemplate(namespace, cluster_scope, template_parameters(template))


async def _get_template(client: Kube, namespace: str) -> Object | None:
    for kind in ("WorkflowTemplate", "ClusterWorkflowTemplate"):
        try:
            return await client.get(await client.resource(ARGO, kind), "perfdag", namespace)
        except KubeError as error:
            if error.status != 404:
                raise
    return None
