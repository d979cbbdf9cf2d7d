"""The options of an installation, which `install` and `render` share."""

import argparse
from typing import TYPE_CHECKING

from perfdag.commands.options import duration, namespace, object_name

if TYPE_CHECKING:
    from perfdag.app.cluster.installation import Installation

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
        default="localhost/perfdag-{name}:1",
        metavar="PATTERN",
        help="names of the images; {name} is base, iperf, fio ...",
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
    from perfdag.app.cluster.installation import Installation

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
