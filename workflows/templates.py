"""The WorkflowTemplate of a run, and that of the check of a suite's age.

The step `plan` fans out over batches (`measure`), each with a pod for every `host`, beside a
`watchdog`. Then `recheck` plans batches that measure suspicious points again. `finish` is the exit
handler. The templates follow this topology, never a benchmark.

Names of parameters have no hyphen, so that expressions can reach them with a dot.
"""

from collections.abc import Mapping
from typing import Any, cast

from hera.workflows import (
    DAG,
    Artifact,
    Container,
    NoneArchiveStrategy,
    Parameter,
    RetryStrategy,
    Task,
    WorkflowTemplate,
    models as m,
)

from perfdag.kube.client import Object
from perfdag.kube.patch import (
    ATTEMPT_NUMBER,
    BATCH_NUMBER,
    DESCRIPTION,
    HELPER,
    LABEL,
    MEASURING,
    MESSAGE,
    PORT,
    REPORT,
    ROLE,
    RUN,
    SSH,
    STEP,
    STEP_BEGAN,
    STEP_REFUSED,
    STOPPED,
    STORE,
    STORE_ADDRESS,
    SUITE,
    SUMMARY,
    WATCHDOG,
    hardened,
    image_of,
    node_loss_tolerations,
    pod_security,
    store_variables,
    store_volume,
)
from perfdag.results.samples import FINAL, NOTES
from perfdag.suite.document import dump
from perfdag.workflows.installation import Grant, Installation, supporting_objects

NAME = "perfdag"
AGE = "perfdag-age"
PLAN_SECONDS = 1800
FINISH_SECONDS = 3600
AGE_SECONDS = 900
RETRIES = 2
STEP_RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}}
PLAN_MEMORY = "2Gi"
"""Limit of the plan step. A plan of 100,000 points and 1,000,000 samples, whose params are as long
as is allowed, needs 0.9 GB when it is read again, and the two of `ab` need 1.4 GB."""
_RUN = "{{workflow.outputs.parameters.run}}"
"""The run id as an output of the plan step, for the steps after it."""
PROGRESS = {"name": "ARGO_PROGRESS_PATCH_TICK_DURATION", "value": "1s"}
"""Passes on at once what a lead reports of its progress; Argo's default is once a minute."""
_GLOBAL = ("kindof", "kinds", "run", "pending", "stall", "suitename")
"""Outputs of the plan step that the pods of all steps read."""
_KIND = ("image", "benchmark", "entry", "netkey", "network")
"""Fields of the kind of a batch that are inputs of its pods."""
ABOUT = f"""\
Measures a suite on this cluster: the one of a ConfigMap, or an artifact of the Workflow.

- plan gives Argo `batches`, an item for each batch of samples that share their pods, and `kinds`:
  what the batches of one entry and shape have in common (image, number of pods, ports,
  podSpecPatch). `kindof` has the kind of a batch.
- measure is an attempt at a batch: all its pods `host` at once, of which rank 0 leads and stores
  the samples. Argo makes two more attempts, but none where the API server refused a pod (an Error
  at once), and none at a batch that is "final" in the annotation {NOTES}.
- watchdog lasts as long as the run. It fails pods that cannot start or are on a lost node, and
  writes into that annotation why samples are missing. It fails itself where a batch was not
  measured, so that `argo retry` creates another one; the annotation {WATCHDOG} tells Argo not to
  repeat it at once. If the run does not go on for `stall` seconds, it fails what is under way, and
  that annotation lets Argo skip the other batches.
- recheck plans batches that measure suspicious points again, if the suite runs on a schedule or
  has checks.
- finish collects the samples, judges them and writes the report. It is the exit handler.

Each step is a pod in a DAG of its own, because Argo ignores the pendingTimeout of a template with
a retryStrategy. plan, recheck and finish write into the annotation {STEP} that they began and that
they ended. Argo repeats only one whose pod was lost before its whole time to work or to wait was
over, since another end would come again. The volume `store` is the claim of a store that is a
claim, and empty for a store in S3. perfdag-create is the account of a task that creates a run from
a Workflow of your own.
"""
# in all namespaces, and only preferred: a cluster may have one node
ASIDE = m.Affinity.model_validate(
    {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 100,
                    "podAffinityTerm": {
                        "labelSelector": {
                            "matchExpressions": [{"key": MEASURING, "operator": "Exists"}]
                        },
                        "namespaceSelector": {},
                        "topologyKey": "kubernetes.io/hostname",
                    },
                }
            ]
        }
    }
)
"""Keeps a pod that does not measure away from pods that do."""


def objects(installation: Installation, granted: Mapping[str, Grant] | None = None) -> list[Object]:
    """Return the objects of an installation, in an order that can be applied."""
    return [
        *supporting_objects(installation, granted),
        age_template(installation),
        run_template(installation),
    ]


def run_template(installation: Installation) -> Object:
    """Return the WorkflowTemplate of a run."""
    suite = Artifact(name="suite", optional=True)
    passed_suite = Artifact(name="suite", from_="{{inputs.artifacts.suite}}", optional=True)
    # all that measures takes this lock: one run at a time
    lock = m.Mutex(name="perfdag-measuring", namespace=installation.lock_namespace)
    with _template(
        installation,
        NAME,
        ABOUT,
        entrypoint="run",
        on_exit="finish",
        service_account_name="perfdag-run",
        arguments=[
            Parameter(name="suite", value="", description="ConfigMap with the key suite.yaml"),
            Parameter(name="run", value="", description="id of a run to resume"),
            Parameter(
                name="options",
                value="",
                description='JSON: {"settings": ["repetitions=5"], "only": ["iperf*"]}',
            ),
        ],
        active_deadline_seconds=installation.deadline,
        synchronization=m.Synchronization(mutexes=[lock]),
        workflow_metadata=m.WorkflowMetadata(labels={f"{LABEL}/suite-run": "true"}),
    ) as template:
        plan = _retried("plan", _plan(installation), _lost(installation, "plan", PLAN_SECONDS))
        plan.inputs = [suite]
        plan.tasks[0].arguments = [passed_suite]
        watchdog_ended = f"{_annotation(WATCHDOG)} startsWith workflow.uid"
        watchdog = _retried("watchdog", _watchdog(installation), f"{{{{=!({watchdog_ended})}}}}")
        recheck_lost = _lost(installation, "recheck", FINISH_SECONDS)
        recheck = _retried("recheck", _recheck(installation), recheck_lost)
        finish_lost = _lost(installation, "finish", FINISH_SECONDS)
        _retried("finish", _finish(installation), finish_lost, when=_run_began())
        batches = _batches(_measure(installation, host(installation)))
        with DAG(name="run", fail_fast=False, inputs=[suite]):
            Task(name="plan", template=plan, arguments=[passed_suite])
            Task(name="watchdog", template=watchdog, depends="plan")
            Task(name="batches", template=batches, depends="plan", arguments=_batches_of("plan"))
            # measure the suspicious points of other batches again even if one failed
            Task(
                name="recheck",
                template=recheck,
                depends="batches.Succeeded || batches.Failed || batches.Errored",
                when="{{tasks.plan.outputs.parameters.gated}} == true",
            )
            Task(
                name="recheck-batches",
                template=batches,
                depends="recheck.Succeeded",
                arguments=_batches_of("recheck"),
            )
    return _document(installation, template)


def _run_began() -> str:
    """Return the condition of the last step: the plan step began, and refused nothing."""
    state = _annotation(STEP)  # empty where not even the plan step could start
    refused = f"workflow.uid + ' plan {STEP_REFUSED}'"
    return f"{{{{={state} startsWith workflow.uid && {state} != {refused}}}}} == true"


def _batches(measure: DAG) -> DAG:
    """Return the fan-out over batches.

    It is a DAG of its own, since the limit on parallel batches must not count the watchdog.
    """
    kind = "jsonpath(workflow.outputs.parameters.kindof, '$[' + item.n + ']')"
    batch = {"batch": "{{item.n}}", "kind": f"{{{{=item.n == '' ? '' : {kind}}}}}"}
    note = _annotation(WATCHDOG)
    goes_on = f"!({note} startsWith workflow.uid && {note} contains '{STOPPED}')"
    with DAG(name="batches", fail_fast=False, inputs=[Parameter(name="batches")]) as batches:
        Task(
            name="measure",
            template=measure,
            with_param="{{inputs.parameters.batches}}",
            # without a number, the cluster refuses the batch
            when=f"'{{{{item.n}}}}' != '' && {{{{={goes_on}}}}}",
            arguments=batch,
        )
    return batches


def age_template(installation: Installation) -> Object:
    """Return the template that checks the age of the newest run of a suite. It takes no lock."""
    with _template(
        installation,
        AGE,
        "Fails if the newest run of a suite is too old.",
        entrypoint="age-pod",
        service_account_name="perfdag-measure",
        arguments=[
            Parameter(name="suitename", description="name of the suite"),
            Parameter(name="maxage", description="the newest run may be so old, for example 26h"),
        ],
    ) as template:
        _step(
            installation,
            "age",
            [f"--suite={_parameter('suitename')}", f"--max-age={_parameter('maxage')}"],
            {},
            image="finish",
            active_deadline_seconds=AGE_SECONDS,
        )
    return _document(installation, template)


def _document(installation: Installation, template: Any) -> Object:
    """Return the manifest of a template, with what Hera's models cannot express.

    `pendingTimeout` is newer than Hera's models. The limit on batches belongs to the DAG template:
    a limit on the Workflow counts pods and would starve a gang.
    """
    manifest: Object = template.to_dict()
    templates = manifest["spec"].pop("templates")
    for argo_template in templates:
        if argo_template["name"] == "batches":
            argo_template["parallelism"] = installation.parallel_batches
        if argo_template["name"] == "host":
            argo_template["pendingTimeout"] = "{{workflow.outputs.parameters.pending}}"
        elif "container" in argo_template:  # the workflow holds the lock of all that measure
            argo_template["pendingTimeout"] = f"{installation.pending_limit}s"
    manifest["spec"]["templates"] = templates  # last, as a reader expects
    return cast(Object, _name_first(manifest))


def _name_first(value: Any) -> Any:
    """Return an object with its name first, and those in it."""
    if isinstance(value, list):
        return [_name_first(item) for item in value]
    if not isinstance(value, dict):
        return value
    name = {"name": value["name"]} if "name" in value else {}
    return name | {key: _name_first(item) for key, item in value.items()}


def _template(
    installation: Installation, name: str, description: str, **fields: Any
) -> WorkflowTemplate:
    """Return an empty template, to add its steps to, with what all its pods have in common.

    A Workflow of it stays for a while, its pods for a shorter one, and no pod gets a sidecar.
    """
    annotations = {
        DESCRIPTION: description,
        STORE_ADDRESS: installation.store,
    }
    secrets = [m.LocalObjectReference(name=secret) for secret in installation.pull_secrets]
    no_sidecar = {"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled"}
    return WorkflowTemplate(
        name=name,
        namespace=installation.namespace,
        labels=installation.labels,
        annotations=annotations,
        image_pull_secrets=secrets or None,
        ttl_strategy=m.TTLStrategy(seconds_after_completion=installation.keep),
        pod_gc=m.PodGC(
            strategy="OnPodCompletion", delete_delay_duration=f"{installation.keep_pods}s"
        ),
        pod_metadata=m.Metadata(annotations=no_sidecar),
        security_context=m.PodSecurityContext.model_validate(pod_security()),
        tolerations=_tolerations(),
        affinity=ASIDE,
        pod_spec_patch=dump([_pod_patch(installation)]),
        **fields,
    )


def _pod_patch(installation: Installation) -> Object:
    """Return what is patched into every pod, Argo's own containers included.

    Pod Security `restricted` asks for a securityContext in each container, Argo's own `init` and
    `wait` too, and only a podSpecPatch reaches these.
    """
    of_argo: Object = {"securityContext": hardened(), "resources": HELPER}
    main = {"name": "main", "securityContext": hardened(), "env": _variables(installation)}
    return {
        "terminationGracePeriodSeconds": 0,  # a pod on a node that is gone is gone at once
        "initContainers": [{"name": "init", **of_argo}],
        "containers": [{"name": "wait", **of_argo, "env": [PROGRESS]}, main],
    }


def _variables(installation: Installation) -> list[Object]:
    """Return the environment variables that every container of perfdag has."""
    values = {
        "HOME": "/tmp",
        "PERFDAG_STORE": installation.store,
        "PERFDAG_IMAGES": installation.images,
        "PERFDAG_WORKFLOW": "{{workflow.name}}",
        "PERFDAG_WORKFLOW_UID": "{{workflow.uid}}",
        "PERFDAG_WORKFLOW_CREATED": "{{workflow.creationTimestamp.RFC3339}}",
    }
    variables: list[Object] = [{"name": name, "value": value} for name, value in values.items()]
    return [
        *variables,
        _of_pod("NAMESPACE", "metadata.namespace"),
        _of_pod("NODE", "spec.nodeName"),
        _of_pod("IPS", "status.podIPs"),
    ]


def _of_pod(name: str, path: str) -> Object:
    """Return a variable whose value is a field of the pod."""
    return {"name": f"PERFDAG_{name}", "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _tolerations(**options: int) -> list[m.Toleration]:
    return [
        m.Toleration.model_validate(toleration) for toleration in node_loss_tolerations(**options)
    ]


def _parameter(name: str) -> str:
    """Return the reference to a parameter of the Workflow."""
    return f"{{{{workflow.parameters.{name}}}}}"


def _batches_of(task: str) -> dict[str, str]:
    return {"batches": f"{{{{tasks.{task}.outputs.parameters.batches}}}}"}


def _annotation(name: str) -> str:
    """Return an expression: the value of an annotation of the Workflow, or an empty text.

    Whoever submits a Workflow sets its annotations, so they are never part of an expression's text.
    """
    return f"(workflow.annotations['{name}'] ?? '')"


def _lost(installation: Installation, name: str, limit: int) -> str:
    """Return an expression: whether the pod of a step was lost (an eviction, a node that is gone).

    A step that ended by itself would end the same way again. So would one that waited or worked for
    its whole time (`limit`, seconds). Argo calls an eviction Failed, as it does an exit code, and
    gives neither to a DAG. So the step records its state on the Workflow.
    """
    state = _annotation(STEP)
    began = f"{state} == workflow.uid + ' {name} {STEP_BEGAN}'"
    recorded = f"{state} startsWith workflow.uid + ' {name} '"
    # A pod that began was lost if it did not work for its whole time, and one that recorded an end
    # was not lost. One that recorded nothing was lost if it did not wait for its whole time.
    least = f"{began} ? {limit} : {recorded} ? 0 : {installation.pending_limit}"
    return f"lastRetry.status == 'Error' || asFloat(lastRetry.duration) < {{{{={least}}}}}"


def _retried(
    name: str, pod: Container, expression: str | None = None, when: str | None = None
) -> DAG:
    """Return a step: its pod, created again if it failed and the expression, if any, holds.

    Without the condition `when` there is no pod. The retryStrategy is that of a DAG: Argo ignores
    the pendingTimeout of a template that has one.
    """
    outputs = []
    for output in pod.outputs if isinstance(pod.outputs, list) else []:
        # a global output is already in the Workflow, and each level would add a copy of it
        if isinstance(output, Parameter) and not output.global_name:
            source = m.ValueFrom(parameter=f"{{{{tasks.{name}.outputs.parameters.{output.name}}}}}")
            outputs.append(Parameter(name=output.name, value_from=source))
    retries = RetryStrategy(limit=str(RETRIES), retry_policy="Always", expression=expression)
    with DAG(name=name, fail_fast=False, outputs=outputs, retry_strategy=retries) as dag:
        Task(name=name, template=pod, when=when)
    return dag


def _step(
    installation: Installation,
    name: str,
    args: list[str],
    env: Mapping[str, str],
    *,
    image: str = "base",
    store: bool = True,
    resources: Object = STEP_RESOURCES,
    mounts: tuple[m.VolumeMount, ...] = (),
    volumes: tuple[m.Volume, ...] = (),
    **fields: Any,
) -> Container:
    """Return the pod of a step that does not measure, with the store and its credentials."""
    credentials = None
    if store:
        secret = m.SecretEnvSource(name=installation.store_secret, optional=True)
        credentials = [m.EnvFromSource(secret_ref=secret)]
        volumes = (m.Volume.model_validate(store_volume(installation.store)), *volumes)
        mounts = (m.VolumeMount(name="store", mount_path=STORE), *mounts)
    return Container(
        name=f"{name}-pod",
        labels={ROLE: name},
        image=image_of(image, installation.images),
        image_pull_policy=installation.pull_policy,
        command=["perfdag", "step", name],
        args=args,
        env=[m.EnvVar(name=key, value=value) for key, value in env.items()],
        env_from=credentials,
        resources=m.ResourceRequirements.model_validate(resources),
        volumes=[*volumes],
        volume_mounts=[*mounts],
        **fields,
    )


def _plan(installation: Installation) -> Container:
    settings = {
        "PERFDAG_RUN": _parameter("run"),
        "PERFDAG_ALLOWED": " ".join(installation.allow),
        "PERFDAG_NETWORK_POLICY": "true" if installation.network_policy else "",
        "PERFDAG_PULL_POLICY": installation.pull_policy,
        "PERFDAG_ENV_FROM": installation.store_secret,
        "PERFDAG_OPTIONS": _parameter("options"),
        "PERFDAG_CONFIGMAP": _parameter("suite"),
        "PERFDAG_CRON": "{{=workflow.scheduledTime ?? ''}}",
    }
    variables = {name: value for name, value in settings.items() if value}
    outputs = [
        Parameter(
            name=name,
            global_name=name if name in _GLOBAL else None,
            value_from=m.ValueFrom(path=f"/tmp/perfdag-plan/{name}"),
        )
        for name in ("batches", *_GLOBAL, "gated")
    ]
    # optional, so that the step can say what is absent
    config_map = m.ConfigMapVolumeSource(
        name="{{=workflow.parameters.suite == '' ? 'perfdag-none' : workflow.parameters.suite}}",
        optional=True,
    )
    return _step(
        installation,
        "plan",
        ["--out", "/tmp/perfdag-plan"],
        variables,
        inputs=[Artifact(name="suite", path="/tmp/perfdag-suite.yaml", optional=True)],
        outputs=outputs,
        resources={
            "requests": {"cpu": "100m", "memory": "128Mi"},
            "limits": {"memory": PLAN_MEMORY},
        },
        volumes=(m.Volume(name="suite", config_map=config_map),),
        mounts=(m.VolumeMount(name="suite", mount_path="/perfdag/suite", read_only=True),),
        active_deadline_seconds=PLAN_SECONDS,
    )


def _watchdog(installation: Installation) -> Container:
    return _step(
        installation,
        "watchdog",
        [
            *("--pending", "{{workflow.outputs.parameters.pending}}"),
            *("--stall", "{{workflow.outputs.parameters.stall}}"),
        ],
        {"PERFDAG_RUN": _RUN},
        store=False,  # it may run on a node that the claim of a store is not on
        resources={"requests": {"cpu": "10m", "memory": "64Mi"}},
        # Argo creates it again elsewhere, and finish waits for it: it leaves a lost node at once
        tolerations=_tolerations(seconds=0),
        service_account_name="perfdag-watchdog",
        active_deadline_seconds=installation.deadline,
    )


def _recheck(installation: Installation) -> Container:
    file = m.ValueFrom(path="/tmp/perfdag-recheck/batches")
    return _step(
        installation,
        "recheck",
        ["--out", "/tmp/perfdag-recheck"],
        {"PERFDAG_RUN": _RUN},
        image="finish",
        outputs=[Parameter(name="batches", value_from=file)],
        active_deadline_seconds=FINISH_SECONDS,
    )


def _finish(installation: Installation) -> Container:
    report = Artifact(name="report", path=REPORT, archive=NoneArchiveStrategy(), optional=True)
    message = m.ValueFrom(path=MESSAGE, default="")
    summary = Parameter(name="summary", global_name="summary", value_from=message)
    return _step(
        installation,
        "finish",
        ["--phase", "{{workflow.status}}"],
        {"PERFDAG_RUN": _parameter("run")},
        image="finish",
        outputs=[report, summary],
        service_account_name="perfdag-finish",
        active_deadline_seconds=FINISH_SECONDS,
    )


def _of_kind(key: str, key_end: str = "") -> str:
    """Return an expression for a field of the kind of this batch.

    `key_end` is an expression for the end of the key. Only integers travel through the DAG; the
    kinds stand once in the Workflow.
    """
    path = f"'$[' + inputs.parameters.kind + '].{key}'{key_end}"
    return f"jsonpath(workflow.outputs.parameters.kinds, {path})"


def _turns(installation: Installation) -> m.Synchronization | None:
    """Return the mutex of batches of several pods: two half-placed gangs would deadlock."""
    if installation.parallel_batches == 1:
        return None
    turn = _of_kind("turn")
    turn_or_batch = f"{turn} == '' ? inputs.parameters.batch : {turn}"
    name = f"perfdag-{{{{workflow.uid}}}}-{{{{={turn_or_batch}}}}}"
    return m.Synchronization(mutexes=[m.Mutex(name=name)])


def _measure(installation: Installation, pod: Container) -> DAG:
    """Return the pods of a batch, all created at once; a retry creates them all again.

    Argo gives the retryStrategy of a DAG no exit code and no message. So the watchdog records which
    batches no retry can repair. A pod that the API server refuses is an Error at once, before the
    watchdog looks; one that was deleted is an Error too, but has lived longer.
    """
    refused = "lastRetry.status == 'Error' && asFloat(lastRetry.duration) < 2"
    # the uid comes first since `argo resubmit` copies the annotations of another Workflow
    notes = _annotation(NOTES)
    of_this_run = f"{notes} startsWith workflow.uid + ' '"
    final = f"{notes} contains '\"' + inputs.parameters.batch + '{FINAL}\":'"
    retries = RetryStrategy(
        limit=str(RETRIES),
        retry_policy="Always",
        expression=f"!({refused}) && {{{{=!({of_this_run} && {final})}}}}",
    )
    pods = m.Sequence(count=m.IntOrString(root=f"{{{{={_of_kind('pods')}}}}}"))
    of_kind = {name: f"{{{{={_of_kind(name)}}}}}" for name in _KIND}
    port = _of_kind("ports[", " + item + ']'")
    patch = _of_kind("", " + (item == '0' ? 'lead' : 'peer')")
    with DAG(
        name="measure",
        inputs=[Parameter(name="batch"), Parameter(name="kind")],
        fail_fast=False,
        retry_strategy=retries,
        synchronization=_turns(installation),
    ) as attempt:
        Task(
            name="host",
            template=pod,
            with_sequence=pods,
            arguments={
                "rank": "{{item}}",
                "batch": "{{inputs.parameters.batch}}",
                "attempt": "{{retries}}",
                **of_kind,
                "port": f"{{{{={port}}}}}",
                "pod": f"{{{{=toJson({patch})}}}}",
            },
        )
    return attempt


def host(installation: Installation) -> Container:
    """Return the template of a pod of a batch: rank 0 leads, the others serve.

    What the shape of the batch adds to the pod is its input `pod`.
    """
    role = "{{=inputs.parameters.rank == '0' ? 'lead' : 'peer'}}"
    inputs = ("rank", "batch", "attempt", *_KIND, "port", "pod")
    args = []
    for name in ("batch", "rank", "attempt", "port"):
        args += [f"--{name}", f"{{{{inputs.parameters.{name}}}}}"]
    args += ["--pending", "{{workflow.outputs.parameters.pending}}"]
    labels = {
        ROLE: "measure",
        MEASURING: "true",
        RUN: _RUN,
        SUITE: "{{workflow.outputs.parameters.suitename}}",
    }
    labels |= {
        f"{LABEL}/{name}": f"{{{{inputs.parameters.{name}}}}}"
        for name in ("benchmark", "entry", "batch", "rank", "attempt")
    }
    annotations = {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        # Volcano's gang; the plan step creates its PodGroup, and other schedulers ignore it
        "scheduling.k8s.io/group-name": "perfdag-{{workflow.uid}}-b{{inputs.parameters.batch}}",
        # the key depends on the shape, since Multus' own keys may not be empty
        "{{inputs.parameters.netkey}}": "{{inputs.parameters.network}}",
    }
    sources = store_variables(installation.store_secret)
    # missing where the Workflow is tried again after a run that succeeded: the pod says so
    keys = m.SecretVolumeSource(secret_name="perfdag-ssh-{{workflow.uid}}", optional=True)
    # only a lead has figures
    summary = m.ValueFrom(path=SUMMARY, default="")
    return Container(
        name="host",
        inputs=[Parameter(name=name) for name in inputs],
        outputs=[Parameter(name="summary", value_from=summary)],
        labels=labels,
        annotations=annotations,
        service_account_name="perfdag-measure",
        affinity=m.Affinity(),  # none of the Workflow's
        pod_spec_patch=_batch_patch(),
        image="{{inputs.parameters.image}}",
        image_pull_policy=installation.pull_policy,
        command=["perfdag", "step", role],
        args=args,
        env=[m.EnvVar(name="PERFDAG_RUN", value=_RUN)],
        env_from=[m.EnvFromSource.model_validate(source) for source in sources],
        volumes=[m.Volume(name="ssh", secret=keys)],
        volume_mounts=[m.VolumeMount(name="ssh", mount_path=SSH, read_only=True)],
    )


def _batch_patch() -> str:
    """Return an expression: the input `pod` with the numbers of the batch in its placeholders."""
    patch = "inputs.parameters.pod"
    placeholders = {BATCH_NUMBER: "batch", ATTEMPT_NUMBER: "attempt", f'"{PORT}"': "port"}
    for placeholder, name in placeholders.items():
        patch = f"replace({patch}, '{placeholder}', inputs.parameters.{name})"
    return f"{{{{={patch}}}}}"
