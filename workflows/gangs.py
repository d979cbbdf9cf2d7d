"""The pods of a batch as Argo creates them."""

from hera.workflows import DAG, Container, Parameter, RetryStrategy, Task, UserContainer
from hera.workflows import models as m

from perfdag.kube.config import SERVICE_ACCOUNT
from perfdag.kube.patch import (
    ATTEMPT_NUMBER,
    BATCH_NUMBER,
    BENCHMARK,
    CLAIMED,
    CREDENTIALS,
    ENTRY,
    LABEL,
    MEASURING,
    NODES,
    PORT,
    RUN,
    SUITE,
    SUMMARY,
    UNRECOVERABLE,
    hardened,
)
from perfdag.workflows.containers import Installation, container, labels, variable
from perfdag.workflows.retries import annotation

_SOURCES, _TARGET = "/perfdag/secrets", "/perfdag/credentials"
TOKEN_SECONDS = 365 * 86400
"""Life of the token of a measuring pod. It ends with the pod, or at the API server's maximum."""
# The role is $0. Only leads use the store and the private client key; only peers run a server. A
# peer makes a host key, which the key of the run certifies for the addresses of this pod.
_COPY = f"""umask 077
copy() {{ for file; do [ ! -f "$file" ] || cp -L "$file" {_TARGET}/ || exit 1; done; }}
cd {_SOURCES}
copy account/*
[ "$0" = peer ] || copy store/* measure/* ssh/id ssh/ca.pub
[ "$0" = peer ] && [ -f ssh/ca ] || exit 0
copy ssh/ca ssh/id.pub
cd {_TARGET} && ssh-keygen -q -t ed25519 -N '' -C perfdag -f host \
&& ssh-keygen -q -s ca -h -I perfdag -n "$PERFDAG_IPS" host.pub && rm ca host.pub
"""


def credentials(installation: Installation, role: str) -> UserContainer:
    """Return the init container that copies what a pod of this role needs: lead or peer.

    The patch of a shape gives it the uid of the measuring container.
    """
    mounts = {
        "account": f"{_SOURCES}/account",
        "store-keys": f"{_SOURCES}/store",
        "measure-keys": f"{_SOURCES}/measure",
        "ssh": f"{_SOURCES}/ssh",
        "credentials": _TARGET,
    }
    return UserContainer(
        name=CREDENTIALS,
        image=installation.image("base"),
        image_pull_policy=installation.pull_policy,
        command=["sh", "-c", _COPY],
        args=[role],
        env=[variable("PERFDAG_IPS")],
        security_context=m.SecurityContext.model_validate(hardened()),
        volume_mounts=[m.VolumeMount(name=name, mount_path=path) for name, path in mounts.items()],
    )


def credential_volumes(installation: Installation) -> list[m.Volume]:
    """Return what only the init container mounts, and the volume of the copies.

    Nobody renews a copied token. The one that Kubernetes mounts by itself is valid for an hour on
    clusters that do not extend it, so the token is requested for TOKEN_SECONDS.
    """
    secrets = {
        "store-keys": installation.store_secret,
        # a credential with fewer rights, which replaces that of the other steps
        "measure-keys": f"{installation.store_secret}-measure",
        "ssh": "perfdag-ssh-{{workflow.uid}}",
    }
    memory = m.EmptyDirVolumeSource(medium="Memory", size_limit="1Mi")
    namespace = m.DownwardAPIVolumeFile(
        path="namespace", field_ref=m.ObjectFieldSelector(field_path="metadata.namespace")
    )
    account = [
        m.VolumeProjection(
            service_account_token=m.ServiceAccountTokenProjection(
                path="token", expiration_seconds=TOKEN_SECONDS
            )
        ),
        m.VolumeProjection(
            config_map=m.ConfigMapProjection(
                name="kube-root-ca.crt", items=[m.KeyToPath(key="ca.crt", path="ca.crt")]
            )
        ),
        m.VolumeProjection(downward_api=m.DownwardAPIProjection(items=[namespace])),
    ]
    return [
        m.Volume(name="account", projected=m.ProjectedVolumeSource(sources=account)),
        *(
            m.Volume(name=name, secret=m.SecretVolumeSource(secret_name=secret, optional=True))
            for name, secret in secrets.items()
        ),
        m.Volume(name="credentials", empty_dir=memory),
    ]


# two closing braces would end the expression
_CLAIMED = '{"name":"store","persistentVolumeClaim":{"claimName":"@CLAIM@"} }'
_EMPTY = '{"name":"store","emptyDir":{} }'


def _of_shape(key: str) -> str:
    """Return an expression for a field of the shape of this batch.

    Only integers travel through the DAG; the shapes stand once in the Workflow.
    """
    return f"jsonpath(workflow.outputs.parameters.shapes, '$['+inputs.parameters.shape+'].{key}')"


_KIND_INPUTS = ("shape", "image", "benchmark", "entry")
"""Fields of a kind that are inputs of its pods."""
_KIND = "jsonpath(workflow.outputs.parameters.kindof, '$['+inputs.parameters.batch+']')"


def _of_kind(key: str) -> str:
    """Return an expression for a field of the kind of this batch."""
    return f"jsonpath(workflow.outputs.parameters.kinds, '$['+{_KIND}+'].{key}')"


def _turns(installation: Installation) -> m.Synchronization | None:
    """Return the mutex of batches of several pods: two half-placed gangs would deadlock."""
    if installation.parallel_batches == 1:
        return None
    turn = _of_kind("turn")
    turn = f"{turn} == '' ? inputs.parameters.batch : {turn}"
    return m.Synchronization(
        mutexes=[m.Mutex(name=f"perfdag-{{{{workflow.uid}}}}-{{{{={turn}}}}}")]
    )


def measure(installation: Installation, host: Container) -> DAG:
    """Return the pods of a batch, all created at once; a retry creates them all again.

    Argo gives the retryStrategy of a DAG no exit code and no message. So the watchdog records which
    batches no retry can repair.
    """
    # the uid comes first since `argo resubmit` copies the annotations of another Workflow
    batches = annotation(UNRECOVERABLE)
    ours = f"{batches} startsWith workflow.uid + ' '"
    recorded = f"{batches} contains ',' + inputs.parameters.batch + ','"
    expression = f"{{{{=!({ours} && {recorded})}}}}"
    retries = RetryStrategy(
        limit=str(installation.retries), retry_policy="Always", expression=expression
    )
    with DAG(
        name="measure",
        inputs=[Parameter(name="batch")],
        fail_fast=False,
        retry_strategy=retries,
        synchronization=_turns(installation),
    ) as attempt:
        Task(
            name="host",
            template=host,
            with_sequence=m.Sequence(count=m.IntOrString(root=f"{{{{={_of_kind('pods')}}}}}")),
            arguments={
                "rank": "{{item}}",
                "batch": "{{inputs.parameters.batch}}",
                "attempt": "{{retries}}",
                **{name: f"{{{{={_of_kind(name)}}}}}" for name in _KIND_INPUTS},
            },
        )
    return attempt


def measuring_pod(installation: Installation) -> Container:
    """Return the template of a pod of a batch: rank 0 leads, the others serve.

    The patch of the batch's shape applies to it.
    """
    role = "{{=inputs.parameters.rank == '0' ? 'lead' : 'peer'}}"
    options = {
        "batch": "{{inputs.parameters.batch}}",
        "rank": "{{inputs.parameters.rank}}",
        "attempt": "{{inputs.parameters.attempt}}",
        "attempts": str(installation.retries),
        "port": f"{{{{={_port()}}}}}",
        "pending": "{{workflow.outputs.parameters.pending}}",
    }
    arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
    return container(
        installation,
        "host",
        store_env=False,
        image="{{inputs.parameters.image}}",
        args=["step", role, *arguments],
        inputs=[Parameter(name=name) for name in ("rank", "batch", "attempt", *_KIND_INPUTS)],
        # only a lead has figures
        outputs=[Parameter(name="summary", value_from=m.ValueFrom(path=SUMMARY, default=""))],
        service_account_name="perfdag-measure",
        init_containers=[credentials(installation, role)],
        volumes=credential_volumes(installation),
        # A mount at the path of the token keeps Kubernetes from mounting the token there.
        volume_mounts=[m.VolumeMount(name="credentials", mount_path=str(SERVICE_ACCOUNT))],
        labels={
            **labels("measure"),
            MEASURING: "true",
            RUN: "{{workflow.outputs.parameters.run}}",
            SUITE: "{{workflow.outputs.parameters.suitename}}",
            BENCHMARK: "{{inputs.parameters.benchmark}}",
            ENTRY: "{{inputs.parameters.entry}}",
            f"{LABEL}/batch": "{{inputs.parameters.batch}}",
            f"{LABEL}/rank": "{{inputs.parameters.rank}}",
            f"{LABEL}/attempt": "{{inputs.parameters.attempt}}",
        },
        annotations={
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            # Volcano's gang; the plan step creates its PodGroup, and other schedulers ignore it
            "scheduling.k8s.io/group-name": "perfdag-{{workflow.uid}}-b{{inputs.parameters.batch}}",
            # the key depends on the shape, since Multus' own keys may not be empty
            "{{=" + _of_shape("netkey") + "}}": "{{=" + _of_shape("network") + "}}",
        },
        pod_spec_patch=f"{{{{={_patch(installation)}}}}}",
    )


def _port() -> str:
    """Return an expression for the port of the pod's sshd."""
    return (
        f"string(asInt({_of_shape('port')}) "
        f"+ asInt({_of_shape('step')}) * asInt(inputs.parameters.rank))"
    )


def _patch(installation: Installation) -> str:
    """Return an expression for the patch of the shape, with values for its placeholders."""
    nodes = f"string(inputs.parameters.rank == '0' ? {_of_shape('client')} : {_of_shape('server')})"
    # only the lead stores samples, and a claim may allow one node at a time
    claim = (
        f"inputs.parameters.rank == '0' && {installation.is_claim} "
        f"? replace('{_CLAIMED}', '@CLAIM@', workflow.parameters.store[8:]) : '{_EMPTY}'"
    )
    patch = f"toJson({_of_shape('patch')})"
    for placeholder, value in (
        (f"'{BATCH_NUMBER}'", "inputs.parameters.batch"),
        (f"'{ATTEMPT_NUMBER}'", "inputs.parameters.attempt"),
        (f"toJson('{PORT}')", _port()),
        (f"toJson('{NODES}')", nodes),
        (f"toJson('{CLAIMED}')", f"({claim})"),
    ):
        patch = f"replace({patch}, {placeholder}, {value})"
    return patch
