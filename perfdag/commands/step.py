"""`perfdag step`: the steps of a run on a cluster, which the containers of its pods call.

Each step imports what it needs when it runs: a wide gang starts many peers on few nodes, and a
launcher of MPI starts many remote shells.
"""

import argparse
import math
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from perfdag.commands.options import (
    EXIT_FAILED,
    EXIT_OK,
    CommandError,
    duration,
    end_once,
    option,
    verb,
)
from perfdag.redaction import print_now

if TYPE_CHECKING:
    from perfdag.steps.pods.context import PodContext

SSH_PORT = "2222"
"""Port of a peer that the environment of a remote shell does not list."""
STORE_PATIENCE = 5.0
"""Seconds for which the check of the store repeats a write."""
RECORDED = ("plan", "recheck", "finish")
"""Steps whose state is recorded on the Workflow."""
OUT = option("--out", type=Path, required=True, help="folder of the output parameters")
PENDING = option(
    "--pending",
    type=duration,
    metavar="TIME",
    default=0.0,
    help="how long Argo lets pods of a batch be Pending",
)
RANK = (
    option("--batch", type=int, required=True),
    option("--rank", type=int, required=True),
    option("--attempt", default=0, help="number of the attempt, from 0"),
    option("--port", default=0, help="port of a peer's sshd"),
    PENDING,
)


@verb(
    "step",
    "The steps of a run on a cluster. The WorkflowTemplates call them, and the "
    "environment of a container tells which run and batch they belong to.",
    """
    examples:
      perfdag step rsh 10.0.0.7 hostname
    """,
)
def run_step(args: argparse.Namespace) -> int:
    """Run a step of the run that the environment names; return its exit code."""
    if args.action == "rsh":  # which is no step, and starts often
        args.work(args)
    from perfdag.benchmark.contract import Infrastructure
    from perfdag.steps.pods import context

    pod = context.from_environment()
    work = partial(args.work, pod, args)
    try:
        return context.run_step(pod, args.action, work) if args.action in RECORDED else work()
    except Infrastructure as error:
        raise CommandError(str(error), EXIT_FAILED) from None


@verb("step plan", "Make the plan, the run's key pair and claims.", "", OUT)
def plan_run(pod: "PodContext", args: argparse.Namespace) -> int:
    """Plan the run and write the output parameters of the step."""
    from perfdag.steps.pods.plan import step
    from perfdag.units import plural

    plan = step(pod, args.out, os.environ)
    counts = f"{plural(len(plan.points), 'point')}, {plural(len(plan.order), 'sample')}"
    print_now(f"run {plan.run_id}: {counts}, {plural(len(plan.batches), 'batch')}")
    return EXIT_OK


@verb("step recheck", "Plan rechecks of suspicious points.", "", OUT)
def plan_rechecks(pod: "PodContext", args: argparse.Namespace) -> int:
    """Plan the rechecks of suspicious points and write the output parameters of the step."""
    from perfdag.steps.pods.plan import recheck

    names = ", ".join(recheck(pod, args.out))
    print_now(f"measured again now: {names}" if names else "nothing to measure again")
    return EXIT_OK


@verb(
    "step watchdog",
    "Record why pods cannot start.",
    "",
    PENDING,
    option(
        "--stall",
        type=duration,
        metavar="TIME",
        default=math.inf,
        help="stop a run that does not go on for this time",
    ),
)
def watch_run(pod: "PodContext", args: argparse.Namespace) -> int:
    """Watch the run until its last batch ends. Return 1 if a batch was not measured.

    Then `argo retry` creates another watchdog for it.
    """
    from perfdag.kube.client import run_with_client
    from perfdag.steps.pods.context import PENDING_GRACE, explain_end
    from perfdag.steps.pods.watchdog import watch_pods
    from perfdag.units import plural

    limit = args.pending - PENDING_GRACE
    unmeasured = run_with_client(lambda kube: watch_pods(kube, pod, limit, args.stall))
    if not unmeasured:
        return EXIT_OK
    explain_end(f"{plural(len(unmeasured), 'batch')} not measured")
    return EXIT_FAILED


@verb("step lead", "Measure a batch.", "", *RANK)
def lead_gang(pod: "PodContext", args: argparse.Namespace) -> int:
    """Measure a batch with the pods of its gang."""
    from perfdag.results.run_store import stored_plan
    from perfdag.steps.pods import context, lead

    end_once(context.exit_retryable)
    context.take_store_variables()
    store = pod.open()
    return lead.lead(pod, store, stored_plan(store, pod.run_id), args.batch, args.attempt)


@verb("step peer", "Serve the lead.", "", *RANK)
def serve_lead(pod: "PodContext", args: argparse.Namespace) -> int:
    """Serve the lead of a gang."""
    from perfdag.kube.patch import SSH
    from perfdag.steps.pods import context, peer

    return peer.serve(
        Path(SSH),
        peer.HOME / "peer",
        pod.addresses,
        args.port,
        args.pending - context.PENDING_GRACE,
    )


@verb("step reach", "Check the store, and list the benchmarks.", "")
def reach_store(pod: "PodContext", args: argparse.Namespace) -> int:
    """Write, read and remove an object in the store, then print the benchmarks of this image."""
    from perfdag.benchmark import registry
    from perfdag.store.s3 import open_store

    store = open_store(pod.root, STORE_PATIENCE)
    key = f"runs/doctor-{os.getpid()}"
    store.put(key, b"here")
    store.get(key)
    store.delete(key)
    print_now(f"benchmarks: {' '.join(registry.working())}")
    return EXIT_OK


@verb(
    "step age",
    "Check the age of the newest run.",
    "",
    option("--suite", required=True),
    option("--max-age", required=True, type=duration, metavar="DURATION"),
)
def check_newest_run(pod: "PodContext", args: argparse.Namespace) -> int:
    """Check the age of the newest run of a suite."""
    from perfdag.runs.finish import check_age
    from perfdag.store.s3 import open_store

    return check_age(open_store(pod.root), "last", args.suite, args.max_age)


@verb(
    "step finish",
    "Collect, report, check.",
    "",
    option("--phase", default="Succeeded", help="phase of the Workflow"),
)
def end_run(pod: "PodContext", args: argparse.Namespace) -> int:
    """Collect, report and check the run in the last step of its Workflow."""
    from perfdag.runs.finish import finish_step

    return finish_step(pod, args.phase)


@verb(
    "step rsh",
    "Run a command on a peer of this gang (an MPI launcher's remote shell).",
    "",
    option(
        "remote_command",
        nargs=argparse.REMAINDER,
        metavar="HOST COMMAND",
        help="address of a peer, the command and its arguments",
    ),
)
def remote_shell(args: argparse.Namespace) -> NoReturn:
    """Replace this process by a command on a host: options, the host, the command.

    Launchers pass options of ssh (-x, -q, -l USER). They are dropped: the lead's ssh configuration
    has its own. The command is joined, not quoted, as rsh does it. Raises CommandError.
    """
    config = os.environ.get("PERFDAG_SSH_CONFIG")
    if not config:
        raise CommandError(
            "`rsh` runs only in the lead's pod of a gang (PERFDAG_SSH_CONFIG is not set)"
        )
    arguments = args.remote_command
    while arguments and arguments[0].startswith("-"):
        arguments = arguments[2:] if arguments[0] == "-l" else arguments[1:]
    if len(arguments) < 2:
        raise CommandError("`rsh` needs a host and a command")
    host, *command = arguments
    if host in (*os.environ.get("PERFDAG_IPS", "").split(","), "localhost", "127.0.0.1"):
        os.execvp("sh", ["sh", "-c", " ".join(command)])
    # Hosts that share an address (a host network) are one host to MPI: the first port serves.
    peers = [item.split("=") for item in os.environ.get("PERFDAG_SSH_PORTS", "").split()]
    at, port = next((ssh for address, *ssh in peers if address == host), (host, SSH_PORT))
    os.execvp("ssh", ["ssh", "-F", config, "-p", port, at, *command])
