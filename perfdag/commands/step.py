"""`perfdag step`: the steps of a run on a cluster, which the containers of its pods call.

Each step imports what it needs when it runs: a wide gang starts many peers on few nodes.
"""

import argparse
import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from perfdag.commands.options import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_REACH,
    CommandError,
    Option,
    Verbs,
    add_verb,
    duration,
    option,
    print_now,
)
from perfdag.store.base import NotStoredError, Store
from perfdag.store.open import open_store

if TYPE_CHECKING:
    from perfdag.kube.client import Kube
    from perfdag.plan.plan import Plan
    from perfdag.steps.pods.context import PodContext

logger = logging.getLogger(__name__)

SSH_PORT = "2222"
"""Port of a peer that the environment of a remote shell does not list."""
STORE_PATIENCE = 5.0
"""Seconds for which the check of the store repeats a write."""
EPILOG = """examples:
  perfdag step rsh 10.0.0.7 hostname
"""


def add_step(sub: Verbs) -> None:
    """Register the verb."""
    parser = add_verb(
        sub,
        "step",
        remote_shell,
        "The steps of a run on a cluster. The WorkflowTemplates call them, and the "
        "environment of a container tells which run and batch they belong to.",
        EPILOG,
    )
    steps = parser.add_subparsers(dest="step", metavar="STEP", required=True)
    for name, work, text, options in STEPS:
        add_verb(steps, name, work, text, "", *options, help=text)


def plan(args: argparse.Namespace) -> int:
    """Plan the run and write the output parameters of the step."""
    from perfdag.steps.pods.context import from_environment, run_step
    from perfdag.steps.pods.credentials import PeerError
    from perfdag.steps.pods.plan import step
    from perfdag.units import plural

    context = from_environment()

    def work() -> int:
        try:
            result = step(context, args.out, os.environ)
        except PeerError as error:
            raise CommandError(str(error), EXIT_FAILED) from None
        counts = f"{plural(len(result.points), 'point')}, {plural(len(result.order), 'sample')}"
        print_now(f"run {result.run_id}: {counts}, {plural(len(result.batches), 'batch')}")
        return EXIT_OK

    return run_step(context, "plan", work)


def recheck(args: argparse.Namespace) -> int:
    """Plan the rechecks of suspicious points and write the output parameters of the step."""
    from perfdag.steps.pods.context import from_environment, run_step
    from perfdag.steps.pods.plan import recheck as plan_rechecks

    context = from_environment()

    def work() -> int:
        names = plan_rechecks(context, args.out)
        print_now(
            f"measured again now: {', '.join(names)}" if names else "nothing to measure again"
        )
        return EXIT_OK

    return run_step(context, "recheck", work)


def watchdog(args: argparse.Namespace) -> int:
    """Watch the run until its last batch ends."""
    import asyncio

    from perfdag.steps.pods.context import from_environment
    from perfdag.steps.pods.watchdog import watch_run

    asyncio.run(watch_run(from_environment(), args.pending))
    return EXIT_OK


def lead(args: argparse.Namespace) -> int:
    """Measure a batch with the pods of its gang."""
    from perfdag.results.runs import RunStore
    from perfdag.signals import end_once
    from perfdag.steps.pods import lead
    from perfdag.steps.pods.context import exit_retryable, from_environment
    from perfdag.steps.pods.credentials import take_credentials

    end_once(exit_retryable)
    take_credentials()
    context = from_environment()
    store = context.open()
    plan = RunStore(store).plan(context.run_id)
    return lead.lead(context, store, plan, args.batch, args.attempt)


def peer(args: argparse.Namespace) -> int:
    """Serve the lead of a gang."""
    from perfdag.kube.config import SERVICE_ACCOUNT
    from perfdag.steps.pods.context import from_environment, pending_limit
    from perfdag.steps.pods.credentials import HOME, PeerError, take_credentials
    from perfdag.steps.pods.peer import LeadWatch, serve

    take_credentials()
    context = from_environment()
    try:
        return serve(
            SERVICE_ACCOUNT,
            HOME / "peer",
            context.addresses,
            args.port,
            pending_limit(args.pending),
            lead_exit_code=LeadWatch(context, args.batch, args.attempt).exit_code,
        )
    except PeerError as error:
        raise CommandError(str(error), EXIT_FAILED) from None


def reach_store(args: argparse.Namespace) -> int:
    """Write, read and remove an object in the store, then print the benchmarks of this image."""
    from perfdag.benchmark import registry
    from perfdag.kube.patch import STORE

    root = os.environ.get("PERFDAG_STORE", "")
    store = open_store(STORE if root.startswith("claim://") else root, STORE_PATIENCE)
    key = f"runs/doctor-{os.getpid()}"
    store.put(key, b"here")
    store.get(key)
    store.delete(key)
    print_now(f"benchmarks: {' '.join(registry.working())}")
    return EXIT_OK


def age(args: argparse.Namespace) -> int:
    """Check the age of the newest run of a suite."""
    from perfdag.commands.history import check_age
    from perfdag.steps.pods.context import from_environment

    return check_age(open_store(from_environment().root), "last", args.suite, args.max_age)


def finish(args: argparse.Namespace) -> int:
    """Collect, report and check the run in the last step of its Workflow."""
    from perfdag.steps.pods.context import from_environment, run_step

    context = from_environment()
    return run_step(context, "finish", lambda: _finish(context, args.phase))


def _finish(context: "PodContext", phase: str) -> int:
    from perfdag.charts.pages.site import write_after_run
    from perfdag.commands.ab import finish_variants, outcome_text
    from perfdag.commands.results import finish_run
    from perfdag.results.collect import collect
    from perfdag.results.runs import RunStore
    from perfdag.steps.pods.context import end_clock
    from perfdag.steps.pods.finish import record_end

    store = context.open()
    try:
        plan = RunStore(store).plan(context.run_id)
    except NotStoredError:
        # If the plan step refused the suite, its own exit code is the run's.
        message = f"run {context.run_id}: it has no plan, so there is nothing to collect"
        raise CommandError(message, EXIT_REACH) from None
    end_clock(store, plan.run_id)
    could_run = record_end(context, store, plan, phase)
    if plan.trigger == "ab":
        result = finish_variants(store, plan)
        print_now(outcome_text(result, store))
        _release(context, store, plan, phase)
        return result.exit_code if could_run else EXIT_REACH
    for run_id in plan.options.rechecks:
        end_clock(store, run_id)
        collect(store, RunStore(store).plan(run_id))
    run = finish_run(store, plan, publishes=True)
    print_now(str(run))
    _release(context, store, plan, phase)
    write_after_run(store, plan.suite)
    return run.exit_code if could_run else EXIT_REACH


def _release(context: "PodContext", store: Store, plan: "Plan", phase: str) -> None:
    """Label the Workflow and delete what the run no longer needs."""
    from perfdag.steps.pods.objects import release

    label_workflow(context, plan, store)
    if phase == "Succeeded":
        release(context, plan)


def label_workflow(context: "PodContext", plan: "Plan", store: Store) -> None:
    """Put the report's address, the run id and the suite on the run's Workflow.

    `perfdag submit` sets the labels at once; a Workflow that was created otherwise gets them here.
    The report becomes an artifact where Argo has a repository for it. An error of the API server
    is reported.
    """
    from perfdag.kube.client import KubeError, run_with_client
    from perfdag.kube.patch import REPORT, RUN, SUITE
    from perfdag.results.runs import report_key

    report = report_key(plan.run_id)
    annotations = {"perfdag/run": plan.run_id, "perfdag/report": store.url(report)}
    labels = {RUN: plan.run_id, SUITE: plan.suite}
    patch = {"metadata": {"annotations": annotations, "labels": labels}}

    async def patch_workflow(kube: "Kube") -> None:
        kind = await kube.resource("argoproj.io/v1alpha1", "Workflow")
        body = await kube.patch(kind, context.workflow, patch, context.namespace)
        reference = (body.get("status") or {}).get("artifactRepositoryRef") or {}
        if reference.get("artifactRepository"):  # without one, Argo fails a step that has a file
            with contextlib.suppress(NotStoredError):
                Path(REPORT).write_bytes(store.get(report))

    try:
        run_with_client(patch_workflow)
    except KubeError as error:
        logger.info(f"the Workflow has no annotation with its report: {error}")


def remote_shell(args: argparse.Namespace) -> int:
    """Replace this process by the command on a peer."""
    run_on_peer(args.remote_command, os.environ)


def run_on_peer(argv: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by a command on a host: `argv` has options, the host and the command.

    Launchers pass options of ssh (-x, -q, -l USER). They are dropped: the lead's ssh configuration
    has its own. The command is joined, not quoted, as rsh does it. Raises CommandError.
    """
    config = environment.get("PERFDAG_SSH_CONFIG")
    if not config:
        raise CommandError(
            "`rsh` runs only in the lead's pod of a gang (PERFDAG_SSH_CONFIG is not set)"
        )
    rest = list(argv)
    while rest and rest[0].startswith("-"):
        rest = rest[2:] if rest[0] == "-l" else rest[1:]
    if len(rest) < 2:
        raise CommandError("`rsh` needs a host and a command")
    host, *command = rest
    if host in (*environment.get("PERFDAG_IPS", "").split(","), "localhost", "127.0.0.1"):
        os.execvp("sh", ["sh", "-c", " ".join(command)])
    # Hosts that share an address (a host network) are one host to MPI: the first port serves.
    peers = [item.split("=") for item in environment.get("PERFDAG_SSH_PORTS", "").split()]
    at, port = next((ssh for address, *ssh in peers if address == host), (host, SSH_PORT))
    os.execvp("ssh", ["ssh", "-F", config, "-p", port, at, *command])


OUT = option("--out", type=Path, required=True, help="folder of the output parameters")
PENDING = option(
    "--pending", metavar="TIME", default="", help="how long Argo lets pods of a batch be Pending"
)
RANK = (
    option("--batch", type=int, required=True),
    option("--rank", type=int, required=True),
    option("--attempt", default=0, help="number of the attempt, from 0"),
    option("--port", default=0, help="port of a peer's sshd"),
    PENDING,
)
STEPS: tuple[tuple[str, Callable[[argparse.Namespace], int], str, Sequence[Option]], ...] = (
    ("plan", plan, "make the plan, the run's key pair and claims", (OUT,)),
    ("recheck", recheck, "plan rechecks of suspicious points", (OUT,)),
    ("watchdog", watchdog, "record why pods cannot start", (PENDING,)),
    ("lead", lead, "measure a batch", RANK),
    ("peer", peer, "serve the lead", RANK),
    ("reach", reach_store, "check the store, and list the benchmarks", ()),
    (
        "finish",
        finish,
        "collect, report, check",
        (option("--phase", default="Succeeded", help="phase of the Workflow"),),
    ),
    (
        "age",
        age,
        "check the age of the newest run",
        (
            option("--suite", required=True),
            option("--max-age", required=True, type=duration, metavar="DURATION"),
        ),
    ),
    (
        "rsh",
        remote_shell,
        "run a command on a peer of this gang (an MPI launcher's remote shell)",
        (
            option(
                "remote_command",
                nargs=argparse.REMAINDER,
                metavar="HOST COMMAND",
                help="address of a peer, the command and its arguments",
            ),
        ),
    ),
)
