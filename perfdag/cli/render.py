"""`perfdag render`: the manifests on stdout, for kubectl or GitOps."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdag.suite.model import Loaded
    from perfdag.workflows.templates import Installation

EPILOG = """examples:
  perfdag render --base --namespace bench --store s3://bench/results
  perfdag render suites/quick.yaml --namespace bench | kubectl create -f -
  perfdag render suites/quick.yaml --schedule '0 2 * * *' --schedule '0 14 * * 1-5' | kubectl apply -f -
  perfdag render suites/quick.yaml --schedule '41 4 * * *' --store s3://bench/nightly
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "render",
        help="the manifests, for kubectl or GitOps",
        description="Print manifests: with --base what `perfdag install` puts on a cluster, with SUITE a Workflow, for "
        "`kubectl create` (its name is made then), or with --schedule a CronWorkflow, and a second one that fails when the suite's "
        "newest run is too old, for `kubectl apply`.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suite", nargs="?", metavar="SUITE", help="suite file")
    parser.add_argument(
        "--base", action="store_true", help="templates, service accounts and rights"
    )
    parser.add_argument(
        "--schedule",
        action="append",
        default=[],
        metavar="CRON",
        help="five fields, UTC; may be given several times",
    )
    parser.add_argument(
        "--max-age",
        type=duration,
        metavar="DURATION",
        help="with --schedule: the age of the newest run above which the second CronWorkflow fails (default: 26h and twice the expected "
        "length of a run, if the schedule runs daily)",
    )
    add_installation(parser)
    parser.set_defaults(run=run)


def add_installation(parser: argparse.ArgumentParser) -> None:
    """Options of an installation, shared with `install`."""
    parser.add_argument(
        "--namespace", "-n", default="perfdag", help="namespace of the runs (default: perfdag)"
    )
    parser.add_argument(
        "--store", default="", metavar="ROOT", help="s3://bucket/prefix or claim://NAME"
    )
    parser.add_argument(
        "--store-secret",
        default="perfdag-store",
        metavar="NAME",
        help="Secret with AWS_* keys (default: perfdag-store)",
    )
    parser.add_argument(
        "--images",
        default="localhost/perfdag-{name}:1",
        metavar="PATTERN",
        help="how images are called; {name} is base, iperf, fio ...",
    )
    parser.add_argument(
        "--pull-policy",
        default="IfNotPresent",
        choices=["Always", "IfNotPresent", "Never"],
        help="image pull policy",
    )
    parser.add_argument(
        "--pull-secret",
        action="append",
        default=[],
        metavar="NAME",
        help="image pull secret; may be given several times",
    )
    parser.add_argument(
        "--cluster-scope",
        action="store_true",
        help="a ClusterWorkflowTemplate instead of a namespaced one",
    )
    parser.add_argument(
        "--namespaced",
        action="store_true",
        help="nothing cluster-wide: no node reads, no priority classes; rows then lack node types",
    )
    parser.add_argument(
        "--network-policy",
        action="store_true",
        help="a NetworkPolicy around measuring pods; it can change what is measured",
    )
    parser.add_argument(
        "--lock-namespace",
        default="perfdag",
        metavar="NAME",
        help="installations of one such name measure in turn, in whatever namespaces (default: perfdag, all of the cluster)",
    )
    parser.add_argument(
        "--pending-limit",
        type=duration,
        default=600,
        metavar="TIME",
        help="a pod that measures nothing (plan, finish ...) is given up when it has waited so long to start, for it holds the lock "
        "(default 10m; of those that measure the suite's pending_limit)",
    )
    parser.add_argument(
        "--deadline",
        type=duration,
        default=7 * 86400,
        metavar="TIME",
        help="a whole run is ended after it (default 168h); it holds the lock",
    )
    parser.add_argument(
        "--keep",
        type=duration,
        default=7 * 86400,
        metavar="TIME",
        help="a run's Workflow stays so long after its end, then it goes with what it owns (default 168h); results stay. Of a schedule Argo "
        "keeps the last 3 that succeeded and 5 that failed, no more",
    )
    parser.add_argument(
        "--keep-pods",
        type=_keep_pods,
        default=600,
        metavar="TIME",
        help="a pod stays so long after its end, with its log and the claim that is its own (default 10m, at least 1m: the next attempt at a "
        "batch reads of the pods of the last which sample killed them)",
    )
    parser.add_argument(
        "--parallel-batches",
        type=_count,
        default=1,
        metavar="N",
        help="batches measured at once (default 1: they disturb each other); gangs of several hosts take turns, unless Volcano places them",
    )
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="BENCHMARK",
        help="grant a benchmark the Kubernetes rights it declares",
    )


def _count(text: str) -> int:
    """A whole number, at least 1. Raises argparse.ArgumentTypeError."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of batches; write 1, 2 ...")
    return int(text)


def duration(text: str) -> int:
    """Return the whole seconds of a duration, at least 1. Raises argparse.ArgumentTypeError."""
    from perfdag.units import seconds

    try:
        found = int(seconds(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if found < 1:
        raise argparse.ArgumentTypeError(f"{text} is no time; write 10m, 2h")
    return found


def _keep_pods(text: str) -> int:
    """Seconds that a pod is kept. Raises argparse.ArgumentTypeError."""
    from perfdag.kube.podspec import KEEP_PODS

    if (found := duration(text)) < KEEP_PODS:
        raise argparse.ArgumentTypeError(
            f"{text} is too short: which sample killed a pod is read of it; write {KEEP_PODS}s or more"
        )
    return found


def installation(args: argparse.Namespace) -> "Installation":
    """The installation that the options describe."""
    from perfdag.workflows.templates import Installation

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
        allow=tuple(args.allow),
    )


def base(made: "Installation") -> list[dict[str, Any]]:
    """All objects of an installation, with the rights of the benchmarks it allows. Raises ValueError for one that declares none."""
    from perfdag.workflows.base import objects

    return objects(made, {name: _rights(name) for name in made.allow})


def _rights(name: str) -> list[dict[str, Any]]:
    from perfdag.benchmark import registry

    rules = list(registry.get(name).api) if name in registry.names() else []
    if not rules:
        declare = ", ".join(each for each in registry.names() if registry.get(each).api)
        raise ValueError(
            f"--allow {name}: no benchmark of that name declares Kubernetes rights; {declare} do"
        )
    return rules


def run(args: argparse.Namespace) -> int:
    """Print the manifests; 2 for bad input."""
    from perfdag.exit_codes import EXIT_INPUT
    from perfdag.workflows.emit import dump

    if not args.base and not args.suite:
        print("perfdag render: name a suite file, or --base", file=sys.stderr)
        return EXIT_INPUT
    made: list[dict[str, Any]] = []
    try:
        if args.base:
            made += base(installation(args))
        if args.suite:
            made += _suite(args)
    except (KeyError, ValueError) as error:
        print(f"perfdag render: {error.args[0]}", file=sys.stderr)
        return EXIT_INPUT
    print(dump(made), end="")
    return 0


def _suite(args: argparse.Namespace) -> list[dict[str, Any]]:
    from perfdag.cli.submit import parameter, warn
    from perfdag.plan.plan import make_plan
    from perfdag.steps.runner.limits import check_size
    from perfdag.store.open import on_cluster
    from perfdag.suite import load
    from perfdag.workflows import age, lint, runs

    if args.store and not on_cluster(args.store):
        raise ValueError(
            f"--store {args.store}: pods share no folder with this machine; s3://bucket/prefix or claim://NAME is needed"
        )
    loaded = load.load(args.suite)
    plan = make_plan(loaded)
    check_size(plan)  # a suite that the plan step would refuse is refused here
    warn(plan)
    name, priority = loaded.suite.name, loaded.suite.priority
    of_suite = loaded.suite.store or ""
    store = args.store or (of_suite if on_cluster(of_suite) else "")
    if not args.schedule:
        told = {"suite": parameter(args.suite, loaded)} | ({"store": store} if store else {})
        return [runs.workflow(args.namespace, name, told, "", priority, args.cluster_scope)]
    carried = runs.config_map(args.namespace, name, inline(loaded))
    if wrong := lint.problems(carried):
        advice = "split the suite, or put the file into the store and give the CronWorkflow its key, as the parameter url"
        raise ValueError(f"{args.suite}: {wrong[0]}; {advice}")
    max_age = args.max_age or default_max_age(args.schedule, plan.seconds())
    too_old = age.cron(args.namespace, name, max_age, store, args.cluster_scope)
    nightly = runs.cron(
        args.namespace,
        name,
        args.schedule,
        store=store,
        priority=priority,
        cluster_scope=args.cluster_scope,
    )
    return [carried, too_old, nightly]


def default_max_age(schedules: list[str], length: float) -> int:
    """Return the seconds after which the newest run of a daily schedule is too old; `length` is that of a run.

    Rows are stored when a run ends, and a run may wait two hours for the lock. Raises ValueError for other schedules.
    """
    if not any(
        schedule in ("@daily", "@midnight") or schedule.split()[2:] == ["*"] * 3
        for schedule in schedules
    ):
        raise ValueError(
            f"schedule {', '.join(schedules)}: does not run daily; say with --max-age how old the newest run may be"
        )
    return round(26 * 3600 + 2 * length)


def inline(loaded: "Loaded") -> str:
    """The suite as one text: as written, or with its includes' entries in place and their defaults laid under them."""
    import yaml

    from perfdag.benchmark import registry
    from perfdag.shape import merge
    from perfdag.suite.model import ENTRY_KEYS

    if not loaded.suite.include:
        return loaded.document.text
    entries = []
    for source in loaded.sources:
        fields = registry.get(source.entry.benchmark).Params.model_fields
        below = {
            name: value
            for name, value in (source.raw_defaults.get("params") or {}).items()
            if name in fields
        }
        own = {
            name: value
            for name, value in source.raw.items()
            if value is not None or name not in ENTRY_KEYS
        }
        entry = merge(source.raw_defaults, {"name": source.name, **own})
        # a value of params replaces the default's whole, as in enumeration
        entries.append({**entry, "params": {**below, **source.entry.params}})
    whole = {
        key: value
        for key, value in loaded.document.data.items()
        if key not in ("include", "entries", "defaults")
    }
    return yaml.safe_dump({**whole, "entries": entries}, sort_keys=False, width=10**9)
