"""What an installation may choose, and the containers that run its steps: environment, store, security."""

import json
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from hera.workflows import Container
from hera.workflows import models as m

from perfdag.kube.labels import LABEL
from perfdag.kube.podspec import STORE
from perfdag.kube.security import hardened

_CLAIM = "workflow.parameters.store startsWith 'claim://'"
# of whatever namespace: preferred only, for a cluster may have one node. It holds both ways: pods that measure keep away from these too
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
"""Of a pod that measures nothing: away from those that do."""


@dataclass(frozen=True)
class Installation:
    """What `perfdag install` may choose. Sizes of time are in seconds."""

    namespace: str = "default"
    images: str = "localhost/perfdag-{name}:1"
    store: str = ""
    store_secret: str = "perfdag-store"
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    cluster_scope: bool = False
    namespaced: bool = False
    lock_namespace: str = "perfdag"
    """Installations that name the same one measure in turn, whatever namespaces they are in; it need not exist."""
    parallel_batches: int = 1
    retries: int = 2
    deadline: int = 7 * 86400
    pending_limit: int = 600
    """How long a pod that measures nothing may wait to start; those that measure wait for the suite's."""
    keep: int = 7 * 86400
    """How long a Workflow stays after its end."""
    keep_pods: int = 600
    """How long a pod stays after its end, with its log and the claim that is its own."""
    network_policy: bool = False
    allow: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)

    def image(self, name: str) -> str:
        """The image of that name."""
        return self.images.replace("{name}", name)


def _environment(made: Installation) -> list[m.EnvVar]:
    plain = {
        "PERFDAG_STORE": "{{workflow.parameters.store}}",
        "PERFDAG_RUN": "{{workflow.parameters.run}}",
        "PERFDAG_WORKFLOW": "{{workflow.name}}",
        "PERFDAG_WORKFLOW_UID": "{{workflow.uid}}",
        "PERFDAG_WORKFLOW_CREATED": "{{workflow.creationTimestamp.RFC3339}}",
        "PERFDAG_TRIGGER": "{{workflow.parameters.trigger}}",
        "PERFDAG_IMAGES": made.images,
        "HOME": "/tmp",
    }
    fields = {
        "PERFDAG_NAMESPACE": "metadata.namespace",
        "PERFDAG_POD": "metadata.name",
        "PERFDAG_NODE": "spec.nodeName",
        "PERFDAG_IP": "status.podIP",
    }
    return [
        *(m.EnvVar(name=name, value=value) for name, value in plain.items()),
        *(
            m.EnvVar(
                name=name,
                value_from=m.EnvVarSource(field_ref=m.ObjectFieldSelector(field_path=path)),
            )
            for name, path in fields.items()
        ),
    ]


def _store_env(made: Installation) -> list[m.EnvFromSource]:
    return [m.EnvFromSource(secret_ref=m.SecretEnvSource(name=made.store_secret, optional=True))]


def with_store(patch: dict[str, Any]) -> str:
    """A podSpecPatch that mounts the claim of a `claim://` store too, decided when the pod is made."""
    mounted = deepcopy(patch)
    mounted["volumes"] = [{"name": "store", "persistentVolumeClaim": {"claimName": "@CLAIM@"}}]
    main = next(each for each in mounted["containers"] if each["name"] == "main")
    main["volumeMounts"] = [{"name": "store", "mountPath": STORE}]
    # two closing braces would end the expression
    plain, claimed = (
        json.dumps(each, separators=(",", ":"), sort_keys=True).replace("}", "} ")
        for each in (patch, mounted)
    )
    return f"{{{{={_CLAIM} ? replace('{claimed}', '@CLAIM@', workflow.parameters.store[8:]) : '{plain}'}}}}"


def container(
    made: Installation,
    name: str,
    more_env: tuple[str, ...] = (),
    plain: dict[str, str] | None = None,
    **kwargs: Any,
) -> Container:
    """A container template that runs a step: `more_env` names parameters of the workflow that it is told, `plain` what else."""
    more = [
        m.EnvVar(name=f"PERFDAG_{each.upper()}", value=text)
        for each, text in (plain or {}).items()
        if text
    ]
    more += [
        m.EnvVar(name=f"PERFDAG_{each.upper()}", value=f"{{{{workflow.parameters.{each}}}}}")
        for each in more_env
    ]
    return Container(
        name=name,
        command=["perfdag"],
        image_pull_policy=made.pull_policy,
        env=_environment(made) + more,
        env_from=_store_env(made),
        security_context=m.SecurityContext.model_validate(hardened()),
        **kwargs,
    )


def labels(role: str, of_run: str = "") -> dict[str, str]:
    """Labels of a pod by what it is for, and by its run: `of_run` is a parameter that holds the run id."""
    return {f"{LABEL}/role": role} | ({f"{LABEL}/run": f"{{{{{of_run}}}}}"} if of_run else {})
