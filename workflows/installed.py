"""The fields that both templates, and both CronWorkflows, of an installation have in common."""

from typing import Any

from hera.workflows import ClusterWorkflowTemplate, CronWorkflow, Parameter, WorkflowTemplate
from hera.workflows import models as m

from perfdag.kube.labels import LABEL
from perfdag.workflows.containers import Installation


def installed_template(
    installation: Installation, name: str, description: str, **fields: Any
) -> WorkflowTemplate:
    """Return an empty template in the scope of the installation, to add its steps to."""
    kind = ClusterWorkflowTemplate if installation.cluster_scope else WorkflowTemplate
    if not installation.cluster_scope:
        fields["namespace"] = installation.namespace
    return kind(
        name=name,
        labels={
            "app.kubernetes.io/name": "perfdag",
            "app.kubernetes.io/managed-by": "perfdag",
            **installation.labels,
        },
        annotations={"workflows.argoproj.io/description": description},
        image_pull_secrets=[m.LocalObjectReference(name=name) for name in installation.pull_secrets]
        or None,
        **fields,
    )


def pod_fields(installation: Installation) -> dict[str, Any]:
    """Return how long a Workflow and its pods are kept, and that no sidecar is put into them."""
    return {
        "ttl_strategy": m.TTLStrategy(seconds_after_completion=installation.keep),
        "pod_gc": m.PodGC(
            strategy="OnPodCompletion", delete_delay_duration=f"{installation.keep_pods}s"
        ),
        "pod_metadata": m.Metadata(
            annotations={"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled"}
        ),
    }


def cron_workflow(
    name: str,
    namespace: str,
    suite: str,
    template: str,
    parameters: dict[str, str],
    cluster_scope: bool,
    **fields: Any,
) -> CronWorkflow:
    """Return a CronWorkflow of an installed template, in UTC and never two of a suite at once.

    It skips a start that is an hour late.
    """
    return CronWorkflow(
        name=name,
        namespace=namespace,
        labels={f"{LABEL}/suite": suite},
        timezone="Etc/UTC",
        concurrency_policy="Forbid",
        starting_deadline_seconds=3600,
        arguments=[Parameter(name=name, value=value) for name, value in parameters.items()],
        workflow_template_ref=m.WorkflowTemplateRef(
            name=template, cluster_scope=cluster_scope or None
        ),
        **fields,
    )
