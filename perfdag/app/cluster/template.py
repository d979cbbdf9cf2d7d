"""The templates that a namespace can use, and the Workflow of a run made of them."""

from dataclasses import dataclass

from perfdag.app.errors import CommandError
from perfdag.exit_codes import EXIT_REACH
from perfdag.kube.client import Kube, KubeError, Object, run_with_client
from perfdag.kube.permits import check_permits
from perfdag.plan.plan import Plan

ARGO = "argoproj.io/v1alpha1"
REQUIRED_TEMPLATES = {"plan-pod", "watchdog-pod", "finish-pod", "batches"}
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
class SuiteRules:
    """What an installation lets suites do, as its plan step knows it."""

    images: str
    permits: tuple[str, ...]
    allowed: tuple[str, ...]

    def check(self, plan: Plan) -> None:
        """Raise BadDocument if a plan asks for more."""
        check_permits(plan, self.permits, self.images, self.allowed)


def suite_rules(spec: Object) -> SuiteRules:
    """Return the rules of a WorkflowTemplate's spec."""
    [step] = [template for template in spec["templates"] if template["name"] == "plan-pod"]
    variables = {item["name"]: item.get("value", "") for item in step["container"]["env"]}
    return SuiteRules(
        variables["PERFDAG_IMAGES"],
        tuple(filter(None, variables.get("PERFDAG_PERMITS", "").split(","))),
        tuple(variables.get("PERFDAG_ALLOWED", "").split()),
    )


@dataclass(frozen=True)
class InstalledTemplate:
    """The template of a namespace or of the whole cluster, its parameters and rules."""

    namespace: str
    cluster_scope: bool
    parameters: dict[str, str]
    rules: SuiteRules

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
    parameters, rules = template_parameters(template), suite_rules(template["spec"])
    return InstalledTemplate(namespace, cluster_scope, parameters, rules)


async def _get_template(client: Kube, namespace: str) -> Object | None:
    for kind in ("WorkflowTemplate", "ClusterWorkflowTemplate"):
        try:
            return await client.get(await client.resource(ARGO, kind), "perfdag", namespace)
        except KubeError as error:
            if error.status != 404:
                raise
    return None
