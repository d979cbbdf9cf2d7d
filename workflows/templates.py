"""The WorkflowTemplate: plan -> gang (or duel) over batches, beside a sentry -> suspect -> those batches again; onExit finish. By topology,
never by benchmark.

Names of parameters have no hyphen, so that expressions can reach them with a dot. Suite text is never in a parameter, an argument or the
environment except as base64: Argo rewrites `{{...}}` and the kubelet `$(VAR)` in all of them.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from hera.workflows import DAG, ClusterWorkflowTemplate, Container, Parameter, RetryStrategy, Task, WorkflowTemplate
from hera.workflows import models as m

from perfdag.podspec import BATCH, LABEL, PORT, STORE, TWIN, hardened, restricted

NAME = "perfdag"
PLAN_SECONDS, SENTRY_MARGIN, FINISH_SECONDS = 1800, 60, 3600
_FANS = {"batches": "gang", "batchesnet": "gang-net", "duels": "duel"}
_CLAIM = "workflow.parameters.store startsWith 'claim://'"


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
    parallel_batches: int = 1
    retries: int = 2
    deadline: int = 7 * 86400
    keep: int = 7 * 86400
    keep_pods: str = "10m"
    network_policy: bool = False
    allow: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)

    def image(self, name: str) -> str:
        """The image of that name."""
        return self.images.replace("{name}", name)


def template(made: Installation) -> WorkflowTemplate:
    """The WorkflowTemplate (or its cluster-scoped twin) of an installation."""
    kind = ClusterWorkflowTemplate if made.cluster_scope else WorkflowTemplate
    where: dict[str, Any] = {} if made.cluster_scope else {"namespace": made.namespace}
    with kind(
        name=NAME,
        **where,
        labels={"app.kubernetes.io/name": NAME, "app.kubernetes.io/managed-by": NAME, **made.labels},
        annotations={"workflows.argoproj.io/description": "A perfdag suite on this cluster. Give one of suite (base64), configmap or url."},
        entrypoint="run",
        on_exit="finish",
        service_account_name="perfdag-run",
        arguments=_arguments(made),
        active_deadline_seconds=made.deadline,
        synchronization=m.Synchronization(mutexes=[m.Mutex(name="perfdag-measuring")]),
        ttl_strategy=m.TTLStrategy(seconds_after_completion=made.keep),
        pod_gc=m.PodGC(strategy="OnPodCompletion", delete_delay_duration=made.keep_pods),
        pod_metadata=m.Metadata(annotations={"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled"}),
        workflow_metadata=m.WorkflowMetadata(labels={f"{LABEL}/suite-run": "true"}),
        image_pull_secrets=[m.LocalObjectReference(name=name) for name in made.pull_secrets] or None,
    ) as w:
        plan = _plan(made)
        sentry, suspect = _sentry(made), _suspect(made)
        _finish(made)
        ranks = {net: _rank(made, net) for net in (False, True)}
        fans = [_gang(made, ranks[False], False), _gang(made, ranks[True], True), _duel(made, ranks)]
        # a DAG of its own: the sentry beside it is no batch, and must not take a batch's place under the limit
        with DAG(name="batches", fail_fast=False, inputs=[Parameter(name=name) for name in _FANS]) as batches:
            for (fan, name), gang in zip(_FANS.items(), fans, strict=True):
                Task(name=name, template=gang, with_param=f"{{{{inputs.parameters.{fan}}}}}", arguments={"batch": "{{item}}"})
        with DAG(name="run", fail_fast=False):
            Task(name="plan", template=plan)
            Task(name="sentry", template=sentry, depends="plan")
            Task(name="batches", template=batches, depends="plan", arguments=_fans_of("plan"))
            # a batch that failed is no reason to leave the suspicious points of the others unconfirmed
            measured = "batches.Succeeded || batches.Failed || batches.Errored"
            Task(name="suspect", template=suspect, depends=measured, when="{{tasks.plan.outputs.parameters.gated}} == true")
            Task(name="again", template=batches, depends="suspect.Succeeded", arguments=_fans_of("suspect"))
    return w


def _fans_of(task: str) -> dict[str, str]:
    return {name: f"{{{{tasks.{task}.outputs.parameters.{name}}}}}" for name in _FANS}


def _arguments(made: Installation) -> list[Parameter]:
    told = {
        "suite": ("", "the suite file, base64"),
        "configmap": ("perfdag-none", "a ConfigMap that holds the suite as suite.yaml"),
        "url": ("", "key of the suite in the store"),
        "run": ("", "run id; empty: made from the workflow. An id that has a plan is continued"),
        "store": (made.store, "s3://bucket/prefix or claim://NAME; a suite's own store is not used on a cluster"),
        "options": ("", "base64 JSON: settings and only, as --set and --only give them"),
        "trigger": ("manual", "manual or cron"),
    }
    return [Parameter(name=name, value=value, description=text) for name, (value, text) in told.items()]


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
            m.EnvVar(name=name, value_from=m.EnvVarSource(field_ref=m.ObjectFieldSelector(field_path=path)))
            for name, path in fields.items()
        ),
    ]


def _store_env(made: Installation) -> list[m.EnvFromSource]:
    return [m.EnvFromSource(secret_ref=m.SecretEnvSource(name=made.store_secret, optional=True))]


def _with_store(patch: dict[str, Any]) -> str:
    """A podSpecPatch that mounts the claim of a `claim://` store too, decided when the pod is made."""
    from copy import deepcopy

    mounted = deepcopy(patch)
    mounted["volumes"] = [{"name": "store", "persistentVolumeClaim": {"claimName": "@CLAIM@"}}]
    main = next(each for each in mounted["containers"] if each["name"] == "main")
    main["volumeMounts"] = [{"name": "store", "mountPath": STORE}]
    # two closing braces would end the expression
    plain, claimed = (json.dumps(each, separators=(",", ":"), sort_keys=True).replace("}", "} ") for each in (patch, mounted))
    return f"{{{{={_CLAIM} ? replace('{claimed}', '@CLAIM@', workflow.parameters.store[8:]) : '{plain}'}}}}"


def _container(
    made: Installation, name: str, more_env: tuple[str, ...] = (), plain: dict[str, str] | None = None, **kwargs: Any
) -> Container:
    more = [m.EnvVar(name=f"PERFDAG_{each.upper()}", value=text) for each, text in (plain or {}).items() if text]
    more += [m.EnvVar(name=f"PERFDAG_{each.upper()}", value=f"{{{{workflow.parameters.{each}}}}}") for each in more_env]
    return Container(
        name=name,
        command=["perfdag"],
        image_pull_policy=made.pull_policy,
        env=_environment(made) + more,
        env_from=_store_env(made),
        security_context=m.SecurityContext.model_validate(hardened()),
        **kwargs,
    )


def _plan(made: Installation) -> Container:
    return _container(
        made,
        "plan",
        ("suite", "url", "options"),
        {"allowed": " ".join(made.allow), "network_policy": "true" if made.network_policy else ""},
        image=made.image("base"),
        args=["step", "plan", "--out", "/tmp/perfdag-plan"],
        volumes=[m.Volume(name="suite", config_map=m.ConfigMapVolumeSource(name="{{workflow.parameters.configmap}}", optional=True))],
        volume_mounts=[m.VolumeMount(name="suite", mount_path="/perfdag/suite", read_only=True)],
        outputs=[
            Parameter(name="batches", value_from=m.ValueFrom(path="/tmp/perfdag-plan/batches")),
            Parameter(name="batchesnet", value_from=m.ValueFrom(path="/tmp/perfdag-plan/batchesnet")),
            Parameter(name="duels", value_from=m.ValueFrom(path="/tmp/perfdag-plan/duels")),
            Parameter(name="shapeof", global_name="shapeof", value_from=m.ValueFrom(path="/tmp/perfdag-plan/shapeof")),
            Parameter(name="shapes", global_name="shapes", value_from=m.ValueFrom(path="/tmp/perfdag-plan/shapes")),
            Parameter(name="run", global_name="run", value_from=m.ValueFrom(path="/tmp/perfdag-plan/run")),
            Parameter(name="pending", global_name="pending", value_from=m.ValueFrom(path="/tmp/perfdag-plan/pending")),
            Parameter(name="suitename", global_name="suitename", value_from=m.ValueFrom(path="/tmp/perfdag-plan/suitename")),
            Parameter(name="gated", value_from=m.ValueFrom(path="/tmp/perfdag-plan/gated")),
        ],
        retry_strategy=RetryStrategy(limit=str(made.retries), retry_policy="Always", expression="lastRetry.exitCode != '2'"),
        active_deadline_seconds=PLAN_SECONDS,
        labels=_labels("plan"),
        pod_spec_patch=_with_store(restricted({"cpu": "100m", "memory": "128Mi"})),
    )


def _sentry(made: Installation) -> Container:
    return _container(
        made,
        "sentry",
        image=made.image("base"),
        args=["step", "sentry"],
        retry_strategy=RetryStrategy(limit="10", retry_policy="Always"),
        labels=_labels("sentry"),
        pod_spec_patch=_with_store(restricted({"cpu": "10m", "memory": "64Mi"})),
    )


def _suspect(made: Installation) -> Container:
    return _container(
        made,
        "suspect",
        image=made.image("finish"),
        args=["step", "suspect", "--out", "/tmp/perfdag-suspect"],
        outputs=[Parameter(name=name, value_from=m.ValueFrom(path=f"/tmp/perfdag-suspect/{name}")) for name in _FANS],
        retry_strategy=RetryStrategy(limit=str(made.retries), retry_policy="Always", expression="lastRetry.exitCode != '2'"),
        active_deadline_seconds=FINISH_SECONDS,
        labels=_labels("suspect"),
        pod_spec_patch=_with_store(restricted({"cpu": "100m", "memory": "256Mi"})),
    )


def _finish(made: Installation) -> Container:
    return _container(
        made,
        "finish",
        service_account_name="perfdag-finish",
        image=made.image("finish"),
        args=["step", "finish", "--phase", "{{workflow.status}}"],
        retry_strategy=RetryStrategy(
            limit=str(made.retries), retry_policy="Always", expression="asInt(lastRetry.exitCode) not in [0, 1, 2, 3]"
        ),
        active_deadline_seconds=FINISH_SECONDS,
        labels=_labels("finish"),
        pod_spec_patch=_with_store(restricted({"cpu": "100m", "memory": "256Mi"})),
    )


def _labels(role: str) -> dict[str, str]:
    return {f"{LABEL}/role": role}


def _of_shape(key: str) -> str:
    """Expression: a field of the shape of this batch. Only integers travel through the DAG; the shapes stand once in the workflow."""
    return f"jsonpath(workflow.outputs.parameters.shapes, '$['+inputs.parameters.shape+'].{key}')"


def _of_batch(key: str) -> str:
    """Expression: how many pods of which shape this batch has."""
    return f"jsonpath(workflow.outputs.parameters.shapeof, '$['+inputs.parameters.batch+'].{key}')"


def _ranks(name: str, rank: Container, shape: str, sequence: m.Sequence) -> None:
    told = {"rank": "{{item}}", "batch": "{{inputs.parameters.batch}}", "shape": f"{{{{={_of_batch(shape)}}}}}", "attempt": "{{retries}}"}
    Task(name=name, template=rank, with_sequence=sequence, arguments=told)


def _duel(made: Installation, ranks: dict[bool, Container]) -> DAG:
    """Ranks of both variants of one batch: those of A first, those of B counted on, each with or without a network of its own."""
    attempt = DAG(
        name="duel",
        inputs=[Parameter(name="batch")],
        fail_fast=False,
        retry_strategy=RetryStrategy(limit=str(made.retries), retry_policy="Always"),
    )
    with attempt:
        for side, shape in (("a", "s"), ("b", "t")):
            start = m.IntOrString(root="0" if side == "a" else f"{{{{={_of_batch('n')}}}}}")
            for net in (False, True):
                count = m.IntOrString(root=f"{{{{={_of_batch(side + ('net' if net else ''))}}}}}")
                _ranks(f"{side}-net" if net else side, ranks[net], shape, m.Sequence(start=start, count=count))
    return attempt


def _gang(made: Installation, rank: Container, net: bool) -> DAG:
    """Ranks of one batch, all created at once; a retry makes the whole gang anew."""
    attempt = DAG(
        name="gang-net" if net else "gang",
        inputs=[Parameter(name="batch")],
        fail_fast=False,
        retry_strategy=RetryStrategy(limit=str(made.retries), retry_policy="Always"),
    )
    with attempt:
        _ranks("rank", rank, "s", m.Sequence(count=m.IntOrString(root=f"{{{{={_of_batch('n')}}}}}")))
    return attempt


def _rank(made: Installation, net: bool) -> Container:
    # of a pod of variant B; of others it is no rank, and their patches do not ask for it
    twin = f"string(asInt(inputs.parameters.rank) - asInt({_of_batch('n')}))"
    port = f"string(asInt({_of_shape('port')}) + asInt(inputs.parameters.rank))"
    patch = f"toJson({_of_shape('patch')})"
    for placeholder, value in ((f"'{BATCH}'", "inputs.parameters.batch"), (f"'{TWIN}'", twin), (f"toJson('{PORT}')", port)):
        patch = f"replace({patch}, {placeholder}, {value})"
    annotations = {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        # Volcano's gang: plan makes the PodGroup where the shape asks for it; other schedulers do not read this
        "scheduling.k8s.io/group-name": "perfdag-{{workflow.uid}}-b{{inputs.parameters.batch}}",
    }
    if net:
        annotations["{{=" + _of_shape("netkey") + "}}"] = "{{=" + _of_shape("network") + "}}"
    return _container(
        made,
        "rank-net" if net else "rank",
        image=made.image("base"),
        args=[
            "step",
            "{{=inputs.parameters.rank == '0' ? 'lead' : 'peer'}}",
            "--batch",
            "{{inputs.parameters.batch}}",
            "--rank",
            "{{inputs.parameters.rank}}",
            "--attempt",
            "{{inputs.parameters.attempt}}",
            "--attempts",
            str(made.retries),
        ],
        inputs=[Parameter(name="rank"), Parameter(name="batch"), Parameter(name="shape"), Parameter(name="attempt")],
        service_account_name="perfdag-measure",
        volumes=[m.Volume(name="keys", secret=m.SecretVolumeSource(secret_name="perfdag-ssh-{{workflow.uid}}", optional=True))],
        volume_mounts=[m.VolumeMount(name="keys", mount_path="/perfdag/keys", read_only=True)],
        labels={
            **_labels("measure"),
            f"{LABEL}/measuring": "true",
            f"{LABEL}/run": "{{workflow.outputs.parameters.run}}",
            f"{LABEL}/suite": "{{workflow.outputs.parameters.suitename}}",
            f"{LABEL}/batch": "{{inputs.parameters.batch}}",
            f"{LABEL}/rank": "{{inputs.parameters.rank}}",
            f"{LABEL}/attempt": "{{inputs.parameters.attempt}}",
        },
        annotations=annotations,
        pod_spec_patch=f"{{{{={patch}}}}}",
    )


def document(made: Installation) -> dict[str, Any]:
    """The manifest of the WorkflowTemplate, with what Hera's models cannot say.

    `pendingTimeout` is newer than Hera's models. The limit on batches is the DAG template's: one on the workflow counts pods and would
    starve a gang.
    """
    made_of: dict[str, Any] = template(made).to_dict()
    for each in made_of["spec"]["templates"]:
        if each["name"] == "batches":
            each["parallelism"] = made.parallel_batches
        if each["name"] in ("rank", "rank-net"):
            each["pendingTimeout"] = "{{workflow.outputs.parameters.pending}}"
    return made_of
