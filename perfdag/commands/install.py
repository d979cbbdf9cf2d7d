"""`perfdag install`: apply the objects of an installation, and delete those of earlier options."""

import argparse
import base64
import logging
import os

from perfdag import IMAGES
from perfdag.benchmark import registry
from perfdag.benchmark.contract import Rights
from perfdag.commands.cluster import ARGO
from perfdag.commands.options import CommandError, duration, namespace, object_name, print_now
from perfdag.kube.client import Kube, KubeError, Object, run_with_client
from perfdag.kube.config import ignore_status
from perfdag.kube.patch import LEVEL, LEVELS, enforced_level, label_command
from perfdag.signals import EXIT_OK
from perfdag.store.base import check_cluster_address
from perfdag.workflows.installation import Installation
from perfdag.workflows.templates import objects

logger = logging.getLogger(__name__)


EPILOG = """examples:
  perfdag install --namespace bench --store s3://bench/results \\
      --create-namespace
  perfdag install --namespace bench --store claim://results \\
      --images 'registry.example/{name}:1.0'
  perfdag install --namespace bench --store s3://bench/results \\
      --namespaced --dry-run
"""


def add_install(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "install",
        description="Apply the WorkflowTemplate, service accounts and Roles to the cluster of the "
        "current context (KUBECONFIG). It is safe to run again.\n\nName all options each time: an "
        "option that is left out returns to its default (images, pull secrets, lock, --allow ...), "
        "and the objects of its old value are deleted. Priority classes and a "
        "ClusterWorkflowTemplate stay, because other namespaces may use them.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_installation(parser)
    parser.add_argument(
        "--create-namespace", action="store_true", help="create the namespace if it does not exist"
    )
    parser.add_argument(
        "--pod-security",
        default=LEVELS[0],
        choices=LEVELS,
        metavar="LEVEL",
        help="Pod Security level that a created namespace enforces: restricted (default), baseline "
        "or privileged. Who may submit there may run any pod that it admits (docs/cluster.md)",
    )
    parser.add_argument(
        "--keep-secret",
        action="store_true",
        help="do not create the store's Secret from this shell's AWS_* variables",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="let the API server check the objects; change nothing",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Install perfdag."""
    install(
        installation_of(args),
        create_namespace=args.create_namespace,
        pod_security=args.pod_security,
        keep_secret=args.keep_secret,
        dry_run=args.dry_run,
    )
    print(f"next: perfdag submit suites/quick.yaml --namespace {args.namespace} --watch")
    return EXIT_OK


WEEK = 7 * 86400


def add_installation(parser: argparse.ArgumentParser) -> None:
    """Add the options of an installation."""
    parser.add_argument(
        "--namespace",
        "-n",
        type=namespace,
        default="perfdag",
        help="namespace of the runs (default: perfdag)",
    )
    parser.add_argument(
        "--store", default="", metavar="ROOT", help="s3://bucket/prefix or claim://NAME"
    )
    parser.add_argument(
        "--store-secret",
        type=object_name,
        default="perfdag-store",
        metavar="NAME",
        help="Secret with AWS_* keys (default: perfdag-store)",
    )
    _add_images(parser.add_argument_group("images"))
    _add_rights(parser.add_argument_group("rights"))
    _add_limits(parser.add_argument_group("limits"))


def _add_rights(group: argparse._ArgumentGroup) -> None:
    _add_scope(group)
    group.add_argument(
        "--allow",
        action="append",
        type=_allow,
        default=[],
        metavar="BENCHMARK=NAMESPACES",
        help="grant a benchmark the Kubernetes rights that it declares, in these namespaces; "
        "missing ones are created (docs/reference/rights.md)",
    )


def _add_images(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--images",
        default=IMAGES,
        metavar="PATTERN",
        help=f"names of the images; {{name}} is base, iperf, fio ... (default: {IMAGES})",
    )
    group.add_argument(
        "--pull-policy",
        default="IfNotPresent",
        choices=["Always", "IfNotPresent", "Never"],
        help="image pull policy (default: IfNotPresent)",
    )
    group.add_argument(
        "--pull-secret",
        action="append",
        type=object_name,
        default=[],
        metavar="NAME",
        help="image pull secret; repeat the option to add more",
    )


def _add_scope(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--cluster-scope",
        action="store_true",
        help="a ClusterWorkflowTemplate instead of a namespaced one",
    )
    group.add_argument(
        "--namespaced",
        action="store_true",
        help="nothing cluster-wide: no rights to read nodes, no priority classes; "
        "rows then lack node types",
    )
    group.add_argument(
        "--no-network-policy",
        action="store_false",
        dest="network_policy",
        help="no NetworkPolicy for measuring pods: any pod then reaches their servers. "
        "A policy can change what is measured; rows say whether there is one",
    )


def _add_limits(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--lock-namespace",
        type=namespace,
        default="perfdag",
        metavar="NAME",
        help="installations with the same name measure one after the other, whatever their "
        "namespace (default: perfdag)",
    )
    group.add_argument(
        "--parallel-batches",
        type=_count,
        default=1,
        metavar="N",
        help="batches that are measured at once (default 1, because they disturb each other); "
        "gangs of several hosts take turns unless Volcano schedules them",
    )
    group.add_argument(
        "--pending-limit",
        type=duration,
        default=600,
        metavar="TIME",
        help="how long a pod that does not measure (plan, finish ...) may be pending, because it "
        "holds the lock (default 10m); measuring pods have the suite's pending_limit",
    )
    group.add_argument(
        "--deadline",
        type=duration,
        default=WEEK,
        metavar="TIME",
        help="end a run after this time, because it holds the lock (default 168h)",
    )
    group.add_argument(
        "--keep",
        type=duration,
        default=WEEK,
        metavar="TIME",
        help="keep a Workflow and what it owns for this time after its end (default 168h); results "
        "stay in the store. Of a schedule, Argo keeps the last 3 successful and 5 failed Workflows",
    )
    group.add_argument(
        "--keep-pods",
        type=_keep_pods,
        default=600,
        metavar="TIME",
        help="keep a pod, its log and its own claim for this time after its end (default 10m, at "
        "least 1m: the next attempt reads which sample killed the pod)",
    )


def _allow(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a benchmark and its namespaces. Raises argparse.ArgumentTypeError."""
    name, _, rest = text.partition("=")
    if not rest:
        raise argparse.ArgumentTypeError(
            f"{text}: name the namespaces of its objects: {name}=NAMESPACE,NAMESPACE"
        )
    return name, tuple(map(namespace, rest.split(",")))


def _count(text: str) -> int:
    """Return a number of batches, at least 1. Raises argparse.ArgumentTypeError."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of batches; write 1, 2 ...")
    return int(text)


def _keep_pods(text: str) -> int:
    """Return the seconds that a pod is kept. Raises argparse.ArgumentTypeError."""
    from perfdag.kube.patch import KEEP_PODS

    if (value := duration(text)) < KEEP_PODS:
        raise argparse.ArgumentTypeError(
            f"{text} is too short: the watchdog reads how the pod ended; write {KEEP_PODS}s or more"
        )
    return value


def installation_of(args: argparse.Namespace) -> "Installation":
    """Return the installation that the options describe."""
    return Installation(
        namespace=args.namespace,
        images=args.images,
        store=args.store,
        store_secret=args.store_secret,
        pull_policy=args.pull_policy,
        pull_secrets=tuple(args.pull_secret),
        cluster_scope=args.cluster_scope,
        namespaced=args.namespaced,
        network_policy=args.network_policy,
        lock_namespace=args.lock_namespace,
        parallel_batches=args.parallel_batches,
        pending_limit=args.pending_limit,
        deadline=args.deadline,
        keep=args.keep,
        keep_pods=args.keep_pods,
        allow={
            name: tuple(
                dict.fromkeys(
                    item for other, items in args.allow if other == name for item in items
                )
            )
            for name, _ in args.allow
        },
    )


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
    for place in namespaces:
        if rights.creates and (place in (own, "default") or place.startswith("kube-")):
            raise CommandError(
                f"--allow {name}={place}: {name} creates pods there, which may use the "
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
        await delete_obsolete(client, installation, bodies, dry_run)
        for note in notes:
            logger.warning(f"perfdag install: {note}")
        if await enforced_level(client, namespace) not in (pod_security, None):
            logger.warning(f"perfdag install: {label_command(namespace, pod_security)}")

    run_with_client(work)


async def _apply_all(client: Kube, bodies: list[Object], dry_run: bool) -> None:
    created = {body["metadata"]["name"] for body in bodies if body["kind"] == "Namespace"}
    for body in bodies:
        if dry_run:
            await _check(client, body, created)
        elif body["kind"] == "Namespace":
            with ignore_status(409):  # an existing one keeps its labels
                await client.create(body)
        else:
            await client.apply(body)
            if body["kind"] == "Secret":
                await remove_old_keys(client, body)
        print_now(
            f"{'checked' if dry_run else 'applied'}  {body['kind']} {body['metadata']['name']}"
        )


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


STORE_KEYS = {
    "AWS_ACCESS_KEY_ID": ("AWS_ACCESS_KEY_ID",),
    "AWS_SECRET_ACCESS_KEY": ("AWS_SECRET_ACCESS_KEY",),
    "AWS_SESSION_TOKEN": ("AWS_SESSION_TOKEN",),
    "AWS_REGION": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "AWS_ENDPOINT_URL": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
}
"""Keys of the Secret, and the variables that each is read from: the first one that is set wins, as
in `perfdag.store.s3`."""


def store_secret(name: str, namespace: str) -> Object | None:
    """Return the Secret with the S3 keys of this shell; None if the shell has none."""
    values = {
        key: next((os.environ[name] for name in names if os.environ.get(name)), None)
        for key, names in STORE_KEYS.items()
    }
    if not (values["AWS_ACCESS_KEY_ID"] and values["AWS_SECRET_ACCESS_KEY"]):
        return None
    data = {
        key: base64.b64encode(value.encode()).decode() for key, value in values.items() if value
    }
    metadata = {"name": name, "namespace": namespace}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": "Opaque",
        "data": data,
    }


def secret_notes(name: str, secret: Object | None) -> list[str]:
    """Return why the Secret was not created, or that its keys expire, if either is so."""
    if secret is None:
        return [
            f"Secret {name} was not created: this shell has no AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY (those of ~/.aws are not copied); "
            "pods use the Secret that exists, or a role"
        ]
    if "AWS_SESSION_TOKEN" in secret["data"]:
        return [
            f"the keys in Secret {name} are temporary (AWS_SESSION_TOKEN), and runs fail when they "
            "expire; for a schedule use permanent keys, or a role and --keep-secret"
        ]
    return []


async def remove_old_keys(client: Kube, secret: Object) -> None:
    """Remove the store's keys that the Secret no longer has.

    Server-side apply leaves keys that another field manager set. Raises KubeError.
    """
    known = {name for names in STORE_KEYS.values() for name in names}
    patch = {"data": dict.fromkeys(sorted(known - secret["data"].keys()))}
    metadata = secret["metadata"]
    resource = await client.resource("v1", "Secret")
    await client.patch(resource, metadata["name"], patch, metadata["namespace"])


_RBAC = "rbac.authorization.k8s.io/v1"
INSTALLED_KINDS = (
    (_RBAC, "RoleBinding"),
    (_RBAC, "Role"),
    (_RBAC, "ClusterRoleBinding"),
    (_RBAC, "ClusterRole"),
    ("v1", "ServiceAccount"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    (ARGO, "WorkflowTemplate"),
)
"""Kinds of an installation's own objects. Others are those of its runs, or of all installations."""


async def delete_obsolete(
    client: Kube, installation: Installation, bodies: list[Object], dry_run: bool
) -> None:
    """Delete the objects of this installation, in any namespace, that are not among `bodies`.

    Who may not list all namespaces deletes those of its own. Raises KubeError.
    """

    def identity(body: Object) -> tuple[str, str, str]:
        return body["kind"], body["metadata"].get("namespace", ""), body["metadata"]["name"]

    current = {identity(body) for body in bodies}
    labels = ",".join(f"{name}={value}" for name, value in installation.labels.items())
    unlisted = []
    for api, kind in INSTALLED_KINDS:
        resource = await client.resource(api, kind)
        items = None
        for place in (None, installation.namespace):
            if items is None:
                with ignore_status(403):
                    items = await client.list(resource, place, labels=labels)
        unlisted += [kind] if items is None else []
        for item in items or []:
            _, place, name = identity(item)
            if identity(item) not in current:
                if not dry_run:
                    await client.delete(resource, name, place)
                print_now(f"{'would delete' if dry_run else 'deleted'}  {kind} {name}")
    if unlisted:
        kinds = ", ".join(unlisted)
        logger.warning(f"perfdag install: may not list {kinds}: obsolete ones may still exist")
