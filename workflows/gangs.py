"""The pods of a batch as Argo makes them: a gang of one shape, or those of two variants side by side."""

from hera.workflows import DAG, Container, Parameter, RetryStrategy, Task
from hera.workflows import models as m

from perfdag.kube.labels import LABEL, UNRECOVERABLE
from perfdag.kube.podspec import ATTEMPT, BATCH, CLAIMED, PORT, TWIN
from perfdag.workflows.containers import Installation, container, labels

# two closing braces would end the expression
_CLAIMED = '{"name":"store","persistentVolumeClaim":{"claimName":"@CLAIM@"} }'
_EMPTY = '{"name":"store","emptyDir":{} }'


def _of_shape(key: str) -> str:
    """Expression: a field of the shape of this batch. Only integers travel through the DAG; the shapes stand once in the workflow."""
    return f"jsonpath(workflow.outputs.parameters.shapes, '$['+inputs.parameters.shape+'].{key}')"


def _of_batch(key: str) -> str:
    """Expression: how many pods of which shape this batch has."""
    return f"jsonpath(workflow.outputs.parameters.shapeof, '$['+inputs.parameters.batch+'].{key}')"


def _ranks(name: str, rank: Container, shape: str, sequence: m.Sequence) -> None:
    told = {
        "rank": "{{item}}",
        "batch": "{{inputs.parameters.batch}}",
        "shape": f"{{{{={_of_batch(shape)}}}}}",
        "attempt": "{{retries}}",
    }
    Task(name=name, template=rank, with_sequence=sequence, arguments=told)


def _attempts(made: Installation, name: str) -> DAG:
    """One attempt at a batch; what makes its pods is added by the caller. A retry makes all of them anew.

    Of a DAG that failed Argo tells its retryStrategy no exit code and no message: the watchdog says which batches another attempt cannot mend.
    """
    said = f"'{{{{workflow.annotations.{UNRECOVERABLE}}}}}'"  # `argo resubmit` copies those of another Workflow
    expression = f"!({said} startsWith '{{{{workflow.uid}}}} ' && {said} contains ',{{{{inputs.parameters.batch}}}},')"
    retries = RetryStrategy(limit=str(made.retries), retry_policy="Always", expression=expression)
    return DAG(
        name=name,
        inputs=[Parameter(name="batch")],
        fail_fast=False,
        retry_strategy=retries,
        synchronization=_turns(made),
    )


def _turns(made: Installation) -> m.Synchronization | None:
    """Where batches may overlap: those of one name wait for one another, so that no two gangs hold each the half of what both need."""
    if made.parallel_batches == 1:
        return None
    return m.Synchronization(
        mutexes=[m.Mutex(name=f"perfdag-{{{{workflow.uid}}}}-{{{{={_of_batch('turn')}}}}}")]
    )


def duet(made: Installation, rank: Container) -> DAG:
    """Ranks of both variants of one batch: those of A first, those of B counted on."""
    attempt, count = _attempts(made, "duet"), m.IntOrString(root=f"{{{{={_of_batch('n')}}}}}")
    with attempt:
        _ranks("a", rank, "s", m.Sequence(count=count))
        _ranks("b", rank, "t", m.Sequence(start=count, count=count))
    return attempt


def gang(made: Installation, rank: Container) -> DAG:
    """Ranks of one batch, all created at once; a retry makes the whole gang anew."""
    attempt = _attempts(made, "gang")
    with attempt:
        _ranks(
            "rank", rank, "s", m.Sequence(count=m.IntOrString(root=f"{{{{={_of_batch('n')}}}}}"))
        )
    return attempt


def rank(made: Installation) -> Container:
    """A pod of a batch: rank 0 leads, the others serve; its shape's patch is laid over it."""
    # of a pod of variant B; of others it is no rank, and their patches do not ask for it
    twin = f"string(asInt(inputs.parameters.rank) - asInt({_of_batch('n')}))"
    port = f"string(asInt({_of_shape('port')}) + asInt({_of_shape('step')}) * asInt(inputs.parameters.rank))"
    # a claim that one node at a time may mount is the lead's: peers have nothing to store
    claim = f"""inputs.parameters.rank == '0' ? replace('{_CLAIMED}', '@CLAIM@', workflow.parameters.store[8:]) : '{_EMPTY}'"""
    patch = f"toJson({_of_shape('patch')})"
    for placeholder, value in (
        (f"'{BATCH}'", "inputs.parameters.batch"),
        (f"'{ATTEMPT}'", "inputs.parameters.attempt"),
        (f"'{TWIN}'", twin),
        (f"toJson('{PORT}')", port),
        (f"toJson('{CLAIMED}')", f"({claim})"),
    ):
        patch = f"replace({patch}, {placeholder}, {value})"
    annotations = {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        # Volcano's gang: plan makes the PodGroup where the shape asks for it; other schedulers do not read this
        "scheduling.k8s.io/group-name": "perfdag-{{workflow.uid}}-b{{inputs.parameters.batch}}",
        # Multus' own keys may not be empty; with a template for it alone its batches would be a fan of their own, after all others
        "{{=" + _of_shape("netkey") + "}}": "{{=" + _of_shape("network") + "}}",
    }
    return container(
        made,
        "rank",
        image=made.image("base"),
        args=[
            "step",
            # the first pod of variant B leads its own gang when it is told to
            f"{{{{=inputs.parameters.rank == '0' ? 'lead' : inputs.parameters.rank == {_of_batch('n')} ? 'lead-b' : 'peer'}}}}",
            "--batch",
            "{{inputs.parameters.batch}}",
            "--rank",
            "{{inputs.parameters.rank}}",
            "--attempt",
            "{{inputs.parameters.attempt}}",
            "--attempts",
            str(made.retries),
            "--port",
            f"{{{{={port}}}}}",
            "--pending",
            "{{workflow.outputs.parameters.pending}}",
        ],
        inputs=[
            Parameter(name="rank"),
            Parameter(name="batch"),
            Parameter(name="shape"),
            Parameter(name="attempt"),
        ],
        service_account_name="perfdag-measure",
        volumes=[
            m.Volume(
                name="keys",
                secret=m.SecretVolumeSource(
                    secret_name="perfdag-ssh-{{workflow.uid}}", optional=True
                ),
            )
        ],
        volume_mounts=[m.VolumeMount(name="keys", mount_path="/perfdag/keys", read_only=True)],
        labels={
            **labels("measure"),
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
