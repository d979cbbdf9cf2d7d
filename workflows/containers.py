"""The options of an installation, and the containers that run its steps."""

import json
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from hera.workflows import (
    ClusterWorkflowTemplate,
    Container,
    CronWorkflow,
    Parameter,
    WorkflowTemplate,
)
from hera.workflows import models as m

from perfdag.kube.patch import LABEL, ROLE, STORE, hardened


def is_claim(store: str) -> str:
    """Return an expression: whether the parameter `store` is the claim of the installation."""
    name = store.removeprefix("claim://") if store.startswith("claim://") else "-"  # no claim is -
    return f"workflow.parameters.store matches '^claim://({name})$'"


# in all namespaces, and only preferred: a cluster may have one node
_MEASURING = m.PodAffinityTerm(
    label_selector=m.LabelSelector(
        match_expressions=[m.LabelSelectorRequirement(key=f"{LABEL}/measuring", operator="Exists")]
    ),
    namespace_selector=m.LabelSelector(),
    topology_key="kubernetes.io/hostname",
)
ASIDE = m.Affinity(
    pod_anti_affinity=m.PodAntiAffinity(
        preferred_during_scheduling_ignored_during_execution=[
            m.WeightedPodAffinityTerm(weight=100, pod_affinity_term=_MEASURING)
        ]
    )
)
"""Keeps a pod that does not measure away from pods that do."""


_FIELDS = {
    "PERFDAG_NAMESPACE": "metadata.namespace",
    "PERFDAG_POD": "metadata.name",
    "PERFDAG_NODE": "spec.nodeName",
    "PERFDAG_IPS": "status.podIPs",
}


@dataclass(frozen=True)
class Installation:
    """The options of `perfdag install`. Times are in seconds."""

    namespace: str = "default"
    images: str = "localhost/perfdag-{name}:1"
    store: str = ""
    store_secret: str = "perfdag-store"
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    cluster_scope: bool = False
    namespaced: bool = False
    lock_namespace: str = "perfdag"
    """Installations with the same one measure in turn. The namespace need not exist."""
    parallel_batches: int = 1
    retries: int = 2
    deadline: int = 7 * 86400
    pending_limit: int = 600
    """How long a pod that does not measure may wait to start."""
    keep: int = 7 * 86400
    """How long a Workflow stays after its end."""
    keep_pods: int = 600
    """How long a pod stays after its end, with its log and the claim that is its own."""
    network_policy: bool = True
    allow: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Benchmarks with rights of their own, and the namespaces where these hold."""
    labels: dict[str, str] = field(default_factory=dict)

    def image(self, name: str) -> str:
        """Return the image with that name."""
        return self.images.replace("{name}", name)

    @property
    def is_claim(self) -> str:
        """An expression: whether the store of a Workflow is the claim of the installation."""
        return is_claim(self.store)


def _environment(installation: Installation) -> list[m.EnvVar]:
    plain = {
        "PERFDAG_STORE": "{{workflow.parameters.store}}",
        "PERFDAG_WORKFLOW": "{{workflow.name}}",
        "PERFDAG_WORKFLOW_UID": "{{workflow.uid}}",
        "PERFDAG_WORKFLOW_CREATED": "{{workflow.creationTimestamp.RFC3339}}",
        "PERFDAG_IMAGES": installation.images,
        "HOME": "/tmp",
    }
    return [
        *(m.EnvVar(name=name, value=value) for name, value in plain.items()),
        *map(variable, _FIELDS),
    ]


def variable(name: str) -> m.EnvVar:
    """Return a variable of the environment whose value is a field of the pod."""
    field_ref = m.ObjectFieldSelector(field_path=_FIELDS[name])
    return m.EnvVar(name=name, value_from=m.EnvVarSource(field_ref=field_ref))


def _store_env(installation: Installation) -> list[m.EnvFromSource]:
    return [
        m.EnvFromSource(secret_ref=m.SecretEnvSource(name=installation.store_secret, optional=True))
    ]


def with_store(installation: Installation, patch: dict[str, Any]) -> str:
    """Return a podSpecPatch that also mounts a `claim://` store, as an expression for Argo."""
    mounted = deepcopy(patch)
    mounted["volumes"] = [{"name": "store", "persistentVolumeClaim": {"claimName": "@CLAIM@"}}]
    main = next(part for part in mounted["containers"] if part["name"] == "main")
    main["volumeMounts"] = [{"name": "store", "mountPath": STORE}]
    # two closing braces would end the expression
    plain, claimed = (
        json.dumps(spec, separators=(",", ":"), sort_keys=True).replace("}", "} ")
        for spec in (patch, mounted)
    )
    replaced = f"replace('{claimed}', '@CLAIM@', workflow.parameters.store[8:])"
    return f"{{{{={installation.is_claim} ? {replaced} : '{plain}'}}}}"


def container(
    installation: Installation,
    template: str,
    parameters: tuple[str, ...] = ("run",),
    plain: dict[str, str] | None = None,
    store_env: bool = True,
    **kwargs: Any,
) -> Container:
    """Return the template of a container that runs a step.

    `parameters` names those of the Workflow that the step reads beside the store, `plain` has
    further variables and their values.
    `store_env` puts the store's credentials in the environment.
    """
    more = [
        m.EnvVar(name=f"PERFDAG_{variable.upper()}", value=text)
        for variable, text in (plain or {}).items()
        if text
    ]
    more += [
        m.EnvVar(name=f"PERFDAG_{name.upper()}", value=f"{{{{workflow.parameters.{name}}}}}")
        for name in parameters
    ]
    return Container(
        name=template,
        command=["perfdag"],
        image_pull_policy=installation.pull_policy,
        env=_environment(installation) + more,
        env_from=_store_env(installation) if store_env else None,
        security_context=m.SecurityContext.model_validate(hardened()),
        **kwargs,
    )


def labels(role: str, run: str = "") -> dict[str, str]:
    """Return the labels of a pod: its role, and its run, a text for Argo."""
    return {ROLE: role} | ({f"{LABEL}/run": run} if run else {})


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
