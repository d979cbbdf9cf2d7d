"""`perfdag install`, `submit`, `status`, `logs` and `render`: perfdag and its runs on a cluster."""

import argparse
import asyncio
import base64
import os
import time
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime
from itertools import chain

from perfdag import IMAGES
from perfdag.benchmark import registry
from perfdag.benchmark.contract import Rights
from perfdag.commands.options import (
    CLUSTER_RUN,
    EXIT_OK,
    NAMESPACE,
    ONLY,
    SET,
    SUITE_HELP,
    WATCH,
    CommandError,
    check_resume,
    duration,
    logger,
    namespace,
    object_name,
    option,
    verb,
)
from perfdag.kube.client import Kube, KubeError, Object, ignore_status, run_with_client
from perfdag.kube.patch import KEEP_PODS, LEVEL, LEVELS, enforced_level, label_command
from perfdag.kube.pods import ARGO
from perfdag.redaction import print_now
from perfdag.runs.cluster import (
    ClusterRun,
    clock,
    cluster_plan,
    find_run,
    follow_run,
    installed_store,
    observe,
    progress_line,
    resumable_run,
    start_run,
    submit_suite,
    write_log,
)
from perfdag.shape import IMAGE
from perfdag.store.base import check_cluster_address
from perfdag.suite.document import dump
from perfdag.suite.load import load_suite
from perfdag.workflows import runs, templates
from perfdag.workflows.installation import SITE, SITE_PORT, Installation


def _allow(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a benchmark and its namespaces. Raises argparse.ArgumentTypeError."""
    name, _, rest = text.partition("=")
    if not rest:
        raise argparse.ArgumentTypeError(
            f"{text}: name the namespaces of its objects: {name}=NAMESPACE,NAMESPACE"
        )
    return name, tuple(map(namespace, rest.split(",")))


def _at_least(least: int, read: Callable[[str], int], unit: str = "") -> Callable[[str], int]:
    """Return a function that reads a number of at least that; it raises ArgumentTypeError."""

    def number(text: str) -> int:
        if (value := read(text)) < least:
            raise argparse.ArgumentTypeError(f"{text} is too little; write {least}{unit} or more")
        return value

    return number


def image_names(text: str) -> str:
    """Return the pattern of the images' names. Raises argparse.ArgumentTypeError."""
    if "{name}" not in text:
        advice = "write {name} where they differ, as in registry.example/perfdag-{name}:1.0"
        raise argparse.ArgumentTypeError(f"{text!r} is one image for all benchmarks; {advice}")
    try:
        IMAGE.check(text.replace("{name}", "base"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


INSTALLATION = (
    NAMESPACE,
    option("--store", default="", metavar="ROOT", help="s3://bucket/prefix or claim://NAME"),
    option(
        "--store-secret",
        type=object_name,
        default="perfdag-store",
        metavar="NAME",
        help="Secret with AWS_* keys",
    ),
    option(
        "--site",
        action="store_true",
        help="serve the site of the store by a Deployment and a Service, perfdag-site",
    ),
    option(
        "--site-host",
        action="append",
        type=object_name,
        default=[],
        dest="site_hosts",
        metavar="NAME",
        help="serve the site by this name too, such as that of an ingress; "
        "repeat the option to add more",
    ),
    "images",
    option(
        "--images",
        type=image_names,
        default=IMAGES,
        metavar="PATTERN",
        help="names of the images; {name} is base, iperf, fio ...",
    ),
    option(
        "--pull-policy",
        default="IfNotPresent",
        choices=["Always", "IfNotPresent", "Never"],
        help="image pull policy",
    ),
    option(
        "--pull-secret",
        action="append",
        type=object_name,
        default=[],
        dest="pull_secrets",
        metavar="NAME",
        help="image pull secret; repeat the option to add more",
    ),
    "rights",
    option(
        "--namespaced",
        action="store_true",
        help="nothing cluster-wide: no rights to read nodes, no priority classes; "
        "rows then lack node types",
    ),
    option(
        "--no-network-policy",
        action="store_false",
        dest="network_policy",
        help="no NetworkPolicy for measuring pods: any pod then reaches their servers. "
        "A policy can change what is measured; rows say whether there is one",
    ),
    option(
        "--allow",
        action="append",
        type=_allow,
        default=[],
        metavar="BENCHMARK=NAMESPACES",
        help="grant a benchmark the Kubernetes rights that it declares, in these namespaces; "
        "missing ones are created (docs/reference/rights.md)",
    ),
    "limits",
    option(
        "--lock-namespace",
        type=namespace,
        default="perfdag",
        metavar="NAME",
        help="installations with the same name measure one after the other, whatever their "
        "namespace",
    ),
    option(
        "--parallel-batches",
        type=_at_least(1, int),
        default=1,
        metavar="N",
        help="batches that are measured at once, though they disturb each other; "
        "gangs of several hosts take turns unless Volcano schedules them",
    ),
    option(
        "--pending-limit",
        type=duration,
        default="10m",
        metavar="TIME",
        help="how long a pod that does not measure (plan, finish ...) may be pending, because "
        "it holds the lock; measuring pods have the suite's pending_limit",
    ),
    option(
        "--deadline",
        type=duration,
        default="168h",
        metavar="TIME",
        help="end a run after this time, because it holds the lock",
    ),
    option(
        "--keep",
        type=duration,
        default="168h",
        metavar="TIME",
        help="keep a Workflow and what it owns for this time after its end; results stay in "
        "the store. Of a schedule, Argo keeps the last 3 successful and 5 failed Workflows",
    ),
    option(
        "--keep-pods",
        type=_at_least(KEEP_PODS, duration, "s"),
        default="10m",
        metavar="TIME",
        help="keep a pod, its log and its own claim for this time after its end, at least 1m: "
        "the next attempt reads which sample killed the pod",
    ),
)
"""Options of `install` and of `render`. Their names are those of Installation."""


def installation_of(args: argparse.Namespace) -> Installation:
    """Return the installation that the options describe."""
    values = {field.name: getattr(args, field.name) for field in fields(Installation)}
    allow: dict[str, tuple[str, ...]] = {}
    for name, namespaces in args.allow:
        allow[name] = tuple(dict.fromkeys((*allow.get(name, ()), *namespaces)))
    values |= {name: tuple(values[name]) for name in ("pull_secrets", "site_hosts")}
    return Installation(**values | {"allow": allow, "site": args.site or bool(args.site_hosts)})


def installation_objects(installation: Installation) -> list[Object]:
    """Return all objects of an installation, with the rights of the benchmarks that it allows.

    Raises CommandError for a benchmark that declares no rights, and for a namespace that its
    objects may not share.
    """
    granted = {
        name: (_rights(name, namespaces, installation.namespace), namespaces)
        for name, namespaces in installation.allow.items()
    }
    return templates.objects(installation, granted)


def _rights(name: str, namespaces: tuple[str, ...], installed_in: str) -> Rights:
    rights = Rights() if registry.fault(name) else registry.get(name).api
    if not rights.named:
        declaring = ", ".join(name for name in registry.working() if registry.get(name).api.named)
        raise CommandError(
            f"--allow {name}: no benchmark of that name declares Kubernetes rights; "
            f"these do: {declaring}"
        )
    for place in namespaces:
        if rights.creates and (place in (installed_in, "default") or place.startswith("kube-")):
            raise CommandError(
                f"--allow {name}={place}: {name} creates pods there, which may use the "
                "accounts and Secrets of the namespace; name another namespace"
            )
    return rights


@verb(
    "install",
    "Apply the WorkflowTemplate, service accounts and Roles to the cluster of the "
    "current context (KUBECONFIG). It is safe to run again.\n\nName all options each time: an "
    "option that is left out returns to its default (images, pull secrets, lock, --allow ...), "
    "and the objects of its old value are deleted. Priority classes stay, "
    "because other namespaces may use them.",
    """
    examples:
      perfdag install --namespace bench --store s3://bench/results \\
          --create-namespace
      perfdag install --namespace bench --store claim://results \\
          --images 'registry.example/{name}:1.0'
      perfdag install --namespace bench --store s3://bench/results \\
          --namespaced --dry-run
    """,
    option(
        "--create-namespace",
        action="store_true",
        help="create the namespace if it does not exist",
    ),
    option(
        "--pod-security",
        default=LEVELS[0],
        choices=LEVELS,
        metavar="LEVEL",
        help="Pod Security level that a created namespace enforces: restricted, baseline or "
        "privileged. Who may submit there may run any pod that it admits (docs/cluster.md)",
    ),
    option(
        "--keep-secret",
        action="store_true",
        help="do not create the store's Secret from this shell's AWS_* variables",
    ),
    option(
        "--dry-run",
        action="store_true",
        help="let the API server check the objects; change nothing",
    ),
    *INSTALLATION,
)
def install(args: argparse.Namespace) -> None:
    """Apply an installation to the cluster of the current context.

    With --dry-run the API server checks the objects and nothing changes. Raises CommandError,
    KubeError.
    """
    installation = installation_of(args)
    space = installation.namespace
    store = check_cluster_address(installation.store)
    bodies = installation_objects(installation)
    if args.create_namespace:
        metadata = {"name": space, "labels": {LEVEL: args.pod_security}}
        bodies.insert(0, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    note = ""
    if store.startswith("s3://") and not args.keep_secret:
        secret, note = store_secret(installation.store_secret, space)
        bodies += [secret] if secret else []

    async def work(client: Kube) -> None:
        await _apply_all(client, bodies, args.dry_run)
        await delete_obsolete(client, installation, bodies, args.dry_run)
        if note:
            logger.warning(f"perfdag install: {note}")
        if await enforced_level(client, space) not in (args.pod_security, None):
            logger.warning(f"perfdag install: {label_command(space, args.pod_security)}")

    run_with_client(work)
    print(f"next: perfdag submit suites/quick.yaml --namespace {space} --watch")
    if installation.site:
        print(f"site: kubectl port-forward -n {space} service/{SITE} {SITE_PORT}:80")


async def _apply_all(client: Kube, bodies: list[Object], dry_run: bool) -> None:
    """Apply the objects, or let the API server check them. Raises CommandError, KubeError."""
    created = {body["metadata"]["name"] for body in bodies if body["kind"] == "Namespace"}
    for body in bodies:
        if body["kind"] == "Namespace" and not dry_run:
            with ignore_status(409):  # an existing one keeps its labels
                await client.create(body)
        else:
            try:
                await client.apply(body, dry_run=dry_run)
            except KubeError as error:
                place = body["metadata"].get("namespace")
                absent = error.status == 404 and error.reason != "NoKind"
                if absent and place not in created:
                    raise CommandError(
                        f"namespace {place} does not exist: add --create-namespace, or create it"
                    ) from None
                # what is in a namespace that does not exist yet cannot be checked
                if not (absent and dry_run):
                    raise
        if body["kind"] == "Secret" and not dry_run:
            await remove_old_keys(client, body)
        done = "checked" if dry_run else "applied"
        print_now(f"{done}  {body['kind']} {body['metadata']['name']}")


STORE_KEYS = {
    "AWS_ACCESS_KEY_ID": ("AWS_ACCESS_KEY_ID",),
    "AWS_SECRET_ACCESS_KEY": ("AWS_SECRET_ACCESS_KEY",),
    "AWS_SESSION_TOKEN": ("AWS_SESSION_TOKEN",),
    "AWS_REGION": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "AWS_ENDPOINT_URL": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
}
"""Keys of the Secret, and the variables that each is read from: the first one that is set wins, as
in `perfdag.store.s3`."""


def store_secret(name: str, namespace: str) -> tuple[Object | None, str]:
    """Return the Secret with the S3 keys of this shell, and what to know about it.

    It is None if the shell has no keys.
    """
    keys = {
        key: next(filter(None, map(os.environ.get, variables)), "")
        for key, variables in STORE_KEYS.items()
    }
    if not (keys["AWS_ACCESS_KEY_ID"] and keys["AWS_SECRET_ACCESS_KEY"]):
        return None, (
            f"Secret {name} was not created: this shell has no AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY (those of ~/.aws are not copied); "
            "pods use the Secret that exists, or a role"
        )
    note = ""
    if keys["AWS_SESSION_TOKEN"]:
        note = (
            f"the keys in Secret {name} are temporary (AWS_SESSION_TOKEN), and runs fail when they "
            "expire; for a schedule use permanent keys, or a role and --keep-secret"
        )
    data = {key: base64.b64encode(value.encode()).decode() for key, value in keys.items() if value}
    metadata = {"name": name, "namespace": namespace}
    secret = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata}
    return secret | {"data": data}, note


async def remove_old_keys(client: Kube, secret: Object) -> None:
    """Remove the store's keys that the Secret no longer has.

    Server-side apply leaves keys that another field manager set. Raises KubeError.
    """
    names = set(chain.from_iterable(STORE_KEYS.values()))
    patch = {"data": dict.fromkeys(sorted(names - secret["data"].keys()))}
    metadata = secret["metadata"]
    await client.patch("v1/Secret", metadata["name"], patch, metadata["namespace"])


INSTALLED_KINDS = (
    "rbac.authorization.k8s.io/v1/RoleBinding",
    "rbac.authorization.k8s.io/v1/Role",
    "rbac.authorization.k8s.io/v1/ClusterRoleBinding",
    "rbac.authorization.k8s.io/v1/ClusterRole",
    "v1/ServiceAccount",
    "apps/v1/Deployment",
    "v1/Service",
    "networking.k8s.io/v1/NetworkPolicy",
    f"{ARGO}/WorkflowTemplate",
)
"""Kinds of an installation's own objects. Others are those of its runs, or of all installations."""


async def delete_obsolete(
    client: Kube, installation: Installation, bodies: list[Object], dry_run: bool
) -> None:
    """Delete the objects of this installation, in any namespace, that are not among `bodies`.

    Who may not list all namespaces deletes those of its own. Raises KubeError.
    """

    def identity(body: Object) -> tuple[str, str, str]:
        metadata = body["metadata"]
        return body["kind"], metadata.get("namespace", ""), metadata["name"]

    current = {identity(body) for body in bodies}
    labels = ",".join(f"{name}={value}" for name, value in installation.labels.items())
    unlisted = []
    for full_kind in INSTALLED_KINDS:
        kind = full_kind.rpartition("/")[2]
        # In all namespaces, as --allow creates Roles in others; else in its own.
        items = await client.list_readable(full_kind, labels=labels)
        if items is None:
            items = await client.list_readable(full_kind, installation.namespace, labels=labels)
        if items is None:
            unlisted.append(kind)
        for item in items or []:
            if (obsolete := identity({**item, "kind": kind})) not in current:
                _, place, name = obsolete
                if not dry_run:
                    await client.delete(full_kind, name, place)
                print_now(f"{'would delete' if dry_run else 'deleted'}  {kind} {name}")
    if unlisted:
        logger.warning(
            f"perfdag install: may not list {', '.join(unlisted)}: obsolete ones may still exist"
        )


@verb(
    "submit",
    "Check a suite, then run it on the cluster of the current context, where "
    "`perfdag install` installed the templates. A bad suite creates nothing.",
    """
    examples:
      perfdag submit suites/quick.yaml --namespace bench --watch
      perfdag submit suites/quick.yaml --namespace bench \\
          --only 'iperf*' --set repetitions=5
      perfdag submit --resume 20260101T020000Z-0a1b2c3d --namespace bench --watch
    """,
    option("suite", nargs="?", metavar="SUITE", help=f"{SUITE_HELP}; not needed with --resume"),
    SET,
    ONLY,
    NAMESPACE,
    WATCH,
    option(
        "--resume",
        metavar="RUN",
        help="continue this run, named as for `perfdag status`: measure only what is not "
        "stored yet",
    ),
)
def submit_or_resume(args: argparse.Namespace) -> int:
    """Submit or resume a run, and follow it with --watch.

    Raises BadDocument, CommandError, StoreError, KubeError.
    """
    check_resume(args)
    if args.resume:
        store = installed_store(args.namespace)
        check_cluster_address(store)
        run_id, suite, priority = resumable_run(args.resume, args.namespace, store)
        workflow = start_run(args.namespace, run_id, suite, priority)
    else:
        loaded = load_suite(args.suite, args.settings)
        run_id, workflow = submit_suite(loaded, args.namespace, args.settings, args.only)
    print_now(f"run {run_id}, workflow {workflow} in namespace {args.namespace}")
    if args.watch:
        return asyncio.run(follow_run(workflow, args.namespace))
    print(f"follow it: perfdag status {workflow} --namespace {args.namespace}")
    return EXIT_OK


@verb(
    "render",
    "Print manifests. With --base: what `perfdag install` applies.\n\n"
    "With SUITE: a Workflow for `kubectl create`, which gives it a name.\n\n"
    "With SUITE and --schedule: a CronWorkflow for `kubectl apply`, and a second one that "
    "fails when the newest run of the suite is too old.",
    """
    examples:
      perfdag render --base --namespace bench --store s3://bench/results
      perfdag render suites/quick.yaml --namespace bench | kubectl create -f -
      perfdag render suites/quick.yaml --schedule '0 2 * * *' | kubectl apply -f -
    """,
    option("suite", nargs="?", metavar="SUITE", help=SUITE_HELP),
    option("--base", action="store_true", help="print templates, service accounts and rights"),
    option(
        "--schedule",
        action="append",
        default=[],
        metavar="CRON",
        help="five fields, in UTC; repeat the option to add more",
    ),
    option(
        "--max-age",
        metavar="DURATION",
        help="with --schedule: the age of the newest run above which the second CronWorkflow "
        "fails (default for a daily schedule: 26h plus twice the expected length of a run)",
    ),
    *INSTALLATION,
)
def render_manifests(args: argparse.Namespace) -> None:
    """Print the objects of the installation (--base) and the manifests of a suite file, if named.

    These are a Workflow that carries the suite, or with --schedule CronWorkflows. Raises
    CommandError, BadDocument, AddressError for a store that no cluster can have.
    """
    if not args.base and not args.suite:
        raise CommandError("name a suite file, or --base")
    installation = installation_of(args)
    if installation.store:
        check_cluster_address(installation.store)
    manifests: list[Object] = installation_objects(installation) if args.base else []
    if args.suite:
        loaded = load_suite(args.suite)
        cluster_plan(loaded)
        if args.schedule:
            try:
                manifests += runs.schedule(
                    loaded,
                    *args.schedule,
                    namespace=installation.namespace,
                    max_age=args.max_age,
                )
            except ValueError as error:
                raise CommandError(str(error)) from None
        else:
            manifests.append(runs.workflow(loaded, namespace=installation.namespace))
    print(dump(manifests), end="")


@verb(
    "status",
    "Show the progress of a run, its current batch, its pods, and what keeps them from running.",
    """
    examples:
      perfdag status last --namespace bench
      perfdag status 20260101T020000Z-0a1b2c3d --namespace bench --watch
    """,
    CLUSTER_RUN,
    NAMESPACE,
    WATCH,
)
def show_status(args: argparse.Namespace) -> int:
    """Print the status, or follow the run and return its exit code. Raises NoRun, KubeError."""

    async def look(client: Kube) -> tuple[ClusterRun, str]:
        run = await find_run(client, args.name, args.namespace)
        return run, progress_line(run, await observe(client, run, args.namespace))

    run, line = run_with_client(look)
    if args.watch:
        return asyncio.run(follow_run(run.name, args.namespace))
    print(f"run {run.run_id or '(no plan yet)'}, workflow {run.name}")
    began = datetime.fromisoformat(run.workflow["metadata"]["creationTimestamp"])
    print(f"{clock(max(0.0, time.time() - began.timestamp()))} | {line}")
    if run.stall:
        print(run.stall)
    return EXIT_OK


@verb(
    "logs",
    "Print the logs of a run's pods, each line after the name of its pod. Pods are "
    "kept for a while after they end; the samples are in the store.",
    """
    examples:
      perfdag logs last --namespace bench
      perfdag logs last --namespace bench --batch 3 --tail 20
    """,
    CLUSTER_RUN,
    NAMESPACE,
    option("--batch", type=int, help="only the pods of this batch"),
    option("--tail", type=int, help="only the last lines of each pod"),
)
def logs(args: argparse.Namespace) -> None:
    """Print the logs of a run's pods. Why one is absent is logged. Raises NoRun, KubeError."""

    async def write(client: Kube) -> None:
        run = await find_run(client, args.name, args.namespace)
        pods_by_batch = sorted(
            run.pods,
            key=lambda pod: (-1 if pod.batch is None else pod.batch, pod.rank or 0, pod.name),
        )
        for pod in pods_by_batch:
            if args.batch not in (None, pod.batch):
                continue
            label = f"batch {pod.batch} rank {pod.rank} attempt {pod.attempt}: "
            label = f"{pod.name}: " if pod.batch is None else label
            if pod.trouble:
                print_now(f"{label}{pod.trouble}")
            await write_log(client, pod, args.namespace, label, args.tail)

    run_with_client(write)
