"""`perfdag submit` and `perfdag render`: run a suite on a cluster, or print what would do so."""

import argparse
import asyncio
import logging
from collections.abc import Sequence

import orjson

from perfdag.benchmark import registry
from perfdag.commands.doctor import check_pod_security, installed_template, store_of
from perfdag.commands.install import INSTALLATION, add_groups, installation_objects, installation_of
from perfdag.commands.options import (
    CLUSTER_RUN,
    EXIT_OK,
    NAMESPACE,
    ONLY,
    SET,
    WATCH,
    CommandError,
    Verbs,
    add_verb,
    check_resume,
    option,
    print_now,
)
from perfdag.commands.status import ARGO, NoRun, View, follow_run, workflows_of_run
from perfdag.kube.client import Kube, KubeError, Object, run_with_client
from perfdag.kube.patch import SUITE
from perfdag.plan.plan import Plan, is_run_id, make_plan, place_hosts, without_gpu
from perfdag.steps.pods.plan import kinds_of
from perfdag.store.base import check_cluster_address, on_cluster
from perfdag.suite.document import dump
from perfdag.suite.load import load_suite
from perfdag.suite.model import LoadedSuite
from perfdag.workflows import runs

logger = logging.getLogger(__name__)


SUBMIT_EPILOG = """examples:
  perfdag submit suites/quick.yaml --namespace bench --watch
  perfdag submit suites/quick.yaml --namespace bench \\
      --only 'iperf*' --set repetitions=5
  perfdag submit --resume 20260101T020000Z-0a1b2c3d --namespace bench --watch
"""
RENDER_EPILOG = """examples:
  perfdag render --base --namespace bench --store s3://bench/results
  perfdag render suites/quick.yaml --namespace bench | kubectl create -f -
  perfdag render suites/quick.yaml --schedule '0 2 * * *' | kubectl apply -f -
"""


def add_submit(sub: Verbs) -> None:
    """Register the verb."""
    add_verb(
        sub,
        "submit",
        submit,
        "Check a suite, then run it on the cluster of the current context, where "
        "`perfdag install` installed the templates. A bad suite creates nothing.",
        SUBMIT_EPILOG,
        option("suite", nargs="?", metavar="SUITE", help="suite file; not needed with --resume"),
        SET,
        ONLY,
        NAMESPACE,
        WATCH,
        option(
            "--resume",
            metavar="RUN",
            help=f"continue this run ({CLUSTER_RUN.settings['help']}): measure only what is not "
            "stored yet",
        ),
    )


def add_render(sub: Verbs) -> None:
    """Register the verb."""
    parser = add_verb(
        sub,
        "render",
        render,
        "Print manifests. With --base: what `perfdag install` applies.\n\n"
        "With SUITE: a Workflow for `kubectl create`, which gives it a name.\n\n"
        "With SUITE and --schedule: a CronWorkflow for `kubectl apply`, and a second one that "
        "fails when the newest run of the suite is too old.",
        RENDER_EPILOG,
        option("suite", nargs="?", metavar="SUITE", help="suite file"),
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
    add_groups(parser)


def load(
    file: str, settings: Sequence[str] = (), only: Sequence[str] = ()
) -> tuple[LoadedSuite, Plan]:
    """Load and plan a suite, so that a bad one creates nothing. Raises BadDocument.

    Entries that use CUDA without a GPU resource are reported: only some nodes give them a GPU.
    """
    loaded = load_suite(file, settings)
    plan = place_hosts(make_plan(loaded, only=only))
    kinds_of(plan)
    for entry in without_gpu(plan):
        advice = "add resources: {nvidia.com/gpu: 1}"
        logger.warning(f"entry {entry}: device is cuda, but its pods request no GPU; {advice}")
    return loaded, plan


def submit(args: argparse.Namespace) -> int:
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
        run_id, workflow = submit_suite(args)
    print_now(f"run {run_id}, workflow {workflow} in namespace {args.namespace}")
    if args.watch:
        return asyncio.run(follow_run(workflow, args.namespace))
    print(f"follow it: perfdag status {workflow} --namespace {args.namespace}")
    return EXIT_OK


def submit_suite(args: argparse.Namespace) -> tuple[str, str]:
    """Start the run of a suite; return its id and the name of its Workflow.

    Raises BadDocument, CommandError, KubeError.
    """
    namespace = args.namespace
    loaded, plan = load(args.suite, args.settings, args.only)
    report_other_packages(plan)
    store, own = installed_store(namespace), loaded.suite.store
    if own and on_cluster(own) and own != store:
        raise CommandError(
            f"the suite has the store {own}, and the installation of namespace "
            f"{namespace} the store {store}: submit it to the namespace of "
            f"another installation (perfdag install --namespace ... --store {own})"
        )
    for finding in run_with_client(lambda api: check_pod_security(api, namespace, plan)):
        if finding.state == "missing":
            raise CommandError(f"{finding.what}: {finding.do}")
    options = {name: value for name in ("settings", "only") if (value := getattr(args, name))}
    priority = plan.options.priority
    return plan.run_id, start_run(namespace, plan.run_id, plan.suite, priority, loaded, options)


def report_other_packages(plan: Plan) -> None:
    """Report benchmarks of other packages, which perfdag's own images do not have."""
    for name in sorted({point.benchmark for point in plan.points}):
        package = registry.package(name)
        if package.partition(" ")[0] != "perfdag":
            logger.info(
                f"benchmark {name} is of package {package}: the images need it "
                "(images/build --with WHEEL_OR_PATH); perfdag doctor --cluster asks them"
            )


def installed_store(namespace: str) -> str:
    """Return the store of the installation of a namespace. Raises CommandError, KubeError."""
    return store_of(run_with_client(lambda client: installed_template(client, namespace)))


def start_run(
    namespace: str,
    run_id: str,
    name: str,
    priority: int = 0,
    suite: LoadedSuite | None = None,
    options: Object | None = None,
) -> str:
    """Create the Workflow of a run of the suite `name`, and return its name.

    Without `suite` the store has the plan. Else the Workflow owns the ConfigMap with the suite,
    which goes again if the Workflow is refused. Raises BadDocument for a suite that is too large,
    KubeError.
    """
    parameters, held = {"run": run_id}, None
    if suite:
        parameters["suite"] = f"perfdag-{run_id.lower()}"
        held = runs.config_map(namespace, parameters["suite"], suite, runs.MAX_SUITE_BYTES)
    if options:
        # Argo replaces braces, and the kubelet variables
        text = orjson.dumps(options).decode().replace("{{", r"{\u007b")
        parameters["options"] = text.replace("$", r"\u0024")
    body = runs.workflow(namespace, name, parameters, run_id=run_id, priority=priority)

    async def create(client: Kube) -> str:
        if held:
            await client.create(held, namespace)
        kind = await client.resource("v1", "ConfigMap")
        try:
            metadata = (await client.create(body, namespace))["metadata"]
        except KubeError:
            if held:
                await client.delete(kind, held["metadata"]["name"], namespace)
            raise
        if held:
            owner = {"apiVersion": ARGO, "kind": "Workflow"}
            owner |= {key: metadata[key] for key in ("name", "uid")}
            patch = {"metadata": {"ownerReferences": [owner]}}
            await client.patch(kind, held["metadata"]["name"], patch, namespace)
        return str(metadata["name"])

    return run_with_client(create)


def resumable_run(name: str, namespace: str, store: str) -> tuple[str, str, int]:
    """Return id, suite and priority of the run to continue, as its Workflow describes it.

    `name` is a run id, the name of a Workflow, or `last`, the newest run of the namespace. `store`
    is that of the installation: the plan step reads the plan there. Raises CommandError, KubeError.
    """
    try:
        found = run_with_client(lambda client: workflows_of_run(client, name, namespace))
    except NoRun:
        if is_run_id(name):  # Argo deleted its Workflow, and the store has the plan
            return name, "resumed", 0
        raise
    view = View(found[0])
    if not view.run_id:
        raise CommandError(f"workflow {name} has no plan, so there is nothing to resume")
    if view.store not in ("", store):
        raise CommandError(
            f"run {view.run_id} is stored in {view.store}, and the installation has the store "
            f"{store}; continue it with perfdag install --namespace {namespace} "
            f"--store {view.store}"
        )
    suite = (view.workflow["metadata"].get("labels") or {}).get(SUITE) or "resumed"
    return view.run_id, suite, int(view.workflow["spec"].get("priority") or 0)


def render(args: argparse.Namespace) -> int:
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
        loaded, plan = load(args.suite)
        where = installation.namespace
        if args.schedule:
            try:
                manifests += runs.schedule(
                    loaded, *args.schedule, namespace=where, max_age=args.max_age
                )
            except ValueError as error:
                raise CommandError(str(error)) from None
        else:
            manifests.append(runs.workflow(where, loaded, {}, priority=plan.options.priority))
    print(dump(manifests), end="")
    return EXIT_OK
