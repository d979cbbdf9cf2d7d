"""How a measuring pod gets its credentials: files that its step reads into memory and deletes.

Measured commands have the uid and the container of the step. A mounted Secret, a variable of the
container or a mounted token would be theirs as well, since the container's first process belongs to
Argo and shows its environment. So an init container copies what the pod's role needs to a volume
in memory. It runs an image of the installation, whatever image a suite measures with.
"""

from hera.workflows import UserContainer
from hera.workflows import models as m

from perfdag.kube.pod_patch import CREDENTIALS
from perfdag.kube.pod_security import hardened
from perfdag.workflows.containers import Installation, variable

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
