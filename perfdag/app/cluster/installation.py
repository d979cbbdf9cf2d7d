"""Install perfdag on a cluster: apply its objects, and delete those of earlier options."""

import logging

from perfdag.app.cluster import prune
from perfdag.app.cluster.store_secret import remove_old_keys, secret_notes, store_secret
from perfdag.benchmark import registry
from perfdag.benchmark.contract import Rights
from perfdag.commands import doctor_cluster
from perfdag.commands.options import CommandError, print_now
from perfdag.kube.client import Kube, KubeError, Object, run_with_client
from perfdag.kube.patch import LEVEL, enforced_level, label_command
from perfdag.store.open import check_cluster_address
from perfdag.workflows.installation import Installation
from perfdag.workflows.templates import objects

logger = logging.getLogger(__name__)


__all__ = ["Installation", "install", "installation_objects"]


def installation_objects(installation: Installation) -> list[Object]:
    """Return all objects of an installation, with the rights of the benchmarks that it allows.

    Raises CommandError for a benchmark that declares no rights, and for a namespace that its
    objects may not share.
    """
    granted = {
        name: (_rights(name, namespaces, installation.namespace), namespaces)
        for name, namespaces in installation.allow.items()
    }
    return objects(installation, granted)


def _rights(name: str, namespaces: tuple[str, ...], own: str) -> Rights:
    rights = registry.get(name).api if registry.usable(name) else Rights()
    if not rights.named:
        declaring = ", ".join(name for name in registry.working() if registry.get(name).api.named)
        raise CommandError(
            f"--allow {name}: no benchmark of that name declares Kubernetes rights; "
            f"these do: {declaring}"
        )
    for namespace in namespaces:
        if rights.creates and (namespace in (own, "default") or namespace.startswith("kube-")):
            raise CommandError(
                f"--allow {name}={namespace}: {name} creates pods there, which may use the "
                "accounts and Secrets of the namespace; name another namespace"
            )
    return rights


def install(
    installation: Installation,
    *,
    create_namespace: bool,
    pod_security: str,
    keep_secret: bool,
    dry_run: bool,
) -> None:
    """Apply an installation to the cluster of the current context.

    A namespace that is created enforces `pod_security`; for another one the command is logged.
    With `keep_secret` the Secret of the store stays as it is. With `dry_run` the API server checks
    the objects and nothing changes. Raises CommandError, KubeError.
    """
    namespace, store = installation.namespace, check_cluster_address(installation.store)
    bodies = installation_objects(installation)
    if create_namespace:
        namespace_object = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": namespace, "labels": {LEVEL: pod_security}},
        }
        bodies.insert(0, namespace_object)
    notes: list[str] = []
    if store.startswith("s3://") and not keep_secret:
        secret = store_secret(installation.store_secret, namespace)
        bodies += [secret] if secret else []
        notes = secret_notes(installation.store_secret, secret)

    async def work(client: Kube) -> None:
        await _apply_all(client, bodies, dry_run)
        await _prune(client, installation, bodies, dry_run)
        for note in notes:
            logger.warning(f"perfdag install: {note}")
        if await enforced_level(client, namespace) not in (pod_security, None):
            logger.warning(f"perfdag install: {label_command(namespace, pod_security)}")
        for finding in await doctor_cluster.check_claim(
            client, namespace, store, installation.parallel_batches
        ):
            logger.warning(f"perfdag install: {finding.what}: {finding.do}")

    run_with_client(work)


async def _apply_all(client: Kube, bodies: list[Object], dry_run: bool) -> None:
    created = {body["metadata"]["name"] for body in bodies if body["kind"] == "Namespace"}
    for body in bodies:
        if dry_run:
            await _check(client, body, created)
        elif body["kind"] == "Namespace":
            await _create_namespace(client, body)
        else:
            await client.apply(body)
            if body["kind"] == "Secret":
                await remove_old_keys(client, body)
        print_now(
            f"{'checked' if dry_run else 'applied'}  {body['kind']} {body['metadata']['name']}"
        )


async def _create_namespace(client: Kube, body: Object) -> None:
    """Create a namespace; an existing one keeps its labels. Raises KubeError."""
    try:
        await client.create(body)
    except KubeError as error:
        if error.reason != "AlreadyExists":
            raise


async def _check(client: Kube, body: Object, created: set[str]) -> None:
    """Let the API server check an object without changing anything. Raises KubeError.

    Objects of the namespaces to be created are not checked where these do not exist yet.
    """
    try:
        await client.apply(body, dry_run=True)
    except KubeError as error:
        absent = error.status == 404 and error.reason != "NoKind"
        if not absent or body["metadata"].get("namespace") not in created:
            raise


async def _prune(
    client: Kube, installation: Installation, bodies: list[Object], dry_run: bool
) -> None:
    """Delete the objects of earlier options, and name schedules that lose their template."""
    namespace, cluster_scope = installation.namespace, installation.cluster_scope
    obsolete = await prune.obsolete_objects(client, namespace, bodies)
    for body in obsolete.objects:
        if not dry_run:
            await prune.delete(client, body, namespace)
        verb = "would delete" if dry_run else "deleted"
        print_now(f"{verb}  {body['kind']} {body['metadata']['name']}")
    for schedule in await prune.schedules_of_other_scope(client, namespace, cluster_scope):
        option = f"{'with' if cluster_scope else 'without'} --cluster-scope"
        logger.info(
            f"perfdag install: schedule {schedule} uses templates of the other scope: "
            f"render it again {option}"
        )
    if obsolete.unlisted:
        kinds = ", ".join(obsolete.unlisted)
        logger.warning(f"perfdag install: may not list {kinds}: obsolete ones may still exist")
