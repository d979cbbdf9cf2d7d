"""`perfdag step ...`: what containers run; not for people."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfdag.plan.plan import Plan
    from perfdag.steps.runner.pod_context import PodContext
    from perfdag.store.base import Store

EPILOG = """examples:
  perfdag step rsh 10.0.0.7 hostname
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "step",
        help="what containers run; not for people",
        description="The steps of a run on a cluster. The WorkflowTemplates call them; what they need is in their environment.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    steps = parser.add_subparsers(dest="step", metavar="STEP", required=True)
    plan = steps.add_parser("plan", help="make the plan, the run's key pair and claims")
    plan.add_argument("--out", type=Path, required=True, help="folder for the output parameters")
    plan.set_defaults(run=_marked("plan", _plan))
    steps.add_parser("watchdog", help="note why pods cannot start").set_defaults(run=_watchdog)
    for name, text, run in (
        ("lead", "measure a batch", _lead),
        ("peer", "serve the lead", _peer),
        ("second", "serve the lead, and lead the gang of variant B", _second),
    ):
        rank = steps.add_parser(name, help=text)
        rank.add_argument("--batch", type=int, required=True)
        rank.add_argument("--rank", type=int, required=True)
        rank.add_argument("--attempt", type=int, default=0, help="0 is the first")
        rank.add_argument("--attempts", type=int, default=0, help="the last attempt's number")
        rank.add_argument("--port", type=int, default=0, help="of a peer's sshd")
        rank.add_argument(
            "--pending",
            metavar="TIME",
            default="",
            help="how long Argo lets pods of the gang be Pending",
        )
        rank.set_defaults(run=run)
    steps.add_parser("reach", help="write and remove an object in the store").set_defaults(
        run=_reach
    )
    suspect = steps.add_parser("suspect", help="plan what is measured again")
    suspect.add_argument("--out", type=Path, required=True, help="folder for the output parameters")
    suspect.set_defaults(run=_marked("suspect", _suspect))
    finish = steps.add_parser("finish", help="collect, report, check")
    finish.add_argument("--phase", default="Succeeded", help="the workflow's phase")
    finish.set_defaults(run=_marked("finish", _finish))
    rsh = steps.add_parser(
        "rsh", help="run a command on a peer of this gang (an MPI launcher's remote shell)"
    )
    rsh.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="HOST COMMAND",
        help="address of a peer, the command and its arguments",
    )
    rsh.set_defaults(run=_rsh)


def _marked(
    name: str, work: Callable[[argparse.Namespace], int]
) -> Callable[[argparse.Namespace], int]:
    """A step that says on the Workflow that it is under way: where its pod is lost it is done anew."""

    def run(args: argparse.Namespace) -> int:
        from perfdag.steps.runner import step_state
        from perfdag.steps.runner.pod_context import from_environment

        return step_state.step(from_environment(), name, lambda: work(args))

    return run


def _plan(args: argparse.Namespace) -> int:
    from perfdag.steps.runner.peer import PeerError
    from perfdag.steps.runner.plan import step
    from perfdag.steps.runner.pod_context import from_environment

    try:
        plan = step(from_environment(), args.out, os.environ)
    except PeerError as error:
        print(f"perfdag step plan: {error}", file=sys.stderr)
        return 1
    print(
        f"run {plan.run_id}: {len(plan.points)} points, {len(plan.order)} samples, {len(plan.batches)} batches"
    )
    return 0


def _watchdog(args: argparse.Namespace) -> int:
    import asyncio

    from perfdag.steps.runner.pod_context import from_environment
    from perfdag.steps.runner.watchdog import watch_run

    if asyncio.run(watch_run(from_environment(), os.environ["PERFDAG_PENDING"])):
        return 0
    print("batches failed; argo retry makes another watchdog for them")
    return 1


def _lead(args: argparse.Namespace) -> int:
    from perfdag.results.runs import load_plan
    from perfdag.signals import end_once
    from perfdag.steps.runner import duet, gang
    from perfdag.steps.runner.peer import stop
    from perfdag.steps.runner.pod_context import from_environment

    end_once(stop)
    place = from_environment()
    store = place.open()
    plan = load_plan(store, place.run_id)
    lead = duet.lead if plan.trigger == "ab" else gang.lead
    return lead(place, store, plan, args.batch, args.attempt, args.attempt >= args.attempts)


def _peer(args: argparse.Namespace) -> int:
    from perfdag.steps.runner.peer import Keys, PeerError, lead_ended, serve
    from perfdag.steps.runner.pod_context import KEYS, from_environment, pending_limit, scratch_home

    place = from_environment()
    try:
        return serve(
            Keys(KEYS),
            scratch_home() / "peer",
            args.port,
            pending_limit(args.pending),
            ended=lambda: lead_ended(place, args.batch, args.attempt),
        )
    except PeerError as error:
        print(f"perfdag step peer: {error}", file=sys.stderr)
        return 1


def _second(args: argparse.Namespace) -> int:
    from perfdag.results.runs import load_plan
    from perfdag.steps.runner import duet
    from perfdag.steps.runner.pod_context import from_environment, scratch_home

    place = from_environment()
    store = place.open()
    plan = duet.recalled(store, load_plan(store, place.run_id)).b
    duet.follow(place, plan, args.batch, args.attempt, scratch_home() / "peer")
    return _peer(args)


def _suspect(args: argparse.Namespace) -> int:
    from perfdag.steps.runner.confirm import step
    from perfdag.steps.runner.pod_context import from_environment

    names = step(from_environment(), args.out)
    print(f"measured again now: {', '.join(names)}" if names else "nothing to measure again")
    return 0


def _finish(args: argparse.Namespace) -> int:
    from perfdag.app.ab import cluster
    from perfdag.app.finish import finish_run
    from perfdag.app.result_text import result_text
    from perfdag.cli.check import after_run
    from perfdag.cli.options import log
    from perfdag.exit_codes import EXIT_REACH
    from perfdag.kube.client import KubeError
    from perfdag.plan.gated import gated
    from perfdag.results.collect import collect
    from perfdag.results.runs import load_plan
    from perfdag.steps.runner import budget, cleanup, end_reason
    from perfdag.steps.runner.pod_context import from_environment
    from perfdag.store.base import NotStoredError

    place = from_environment()
    store = place.open()
    try:
        plan = load_plan(store, place.run_id)
    except NotStoredError:
        # a suite that the plan step refused is told by that step's own code
        print(
            f"run {place.run_id}: no plan was made, so there is nothing to collect", file=sys.stderr
        )
        return EXIT_REACH
    budget.end(store, plan.run_id)
    if place.claimed:
        try:
            end_reason.copy_annotation(place, store, plan)
        except KubeError as error:  # the reasons are lost then, and nothing that was measured
            print(
                f"cannot read why batches were given up, so the rows do not say it: {error}",
                file=sys.stderr,
            )
    end_reason.record(place, store, plan, args.phase)
    if plan.trigger == "ab":
        code = cluster.finish(store, plan)
        _tell(place, plan, store)
        cleanup.delete(place, plan, args.phase)
        return code
    for run_id in plan.options.get("confirmed", []):
        budget.end(store, run_id)
        collect(store, load_plan(store, run_id))
    result = finish_run(store, plan, log, history=True, gates=not gated(plan))
    print(result_text(result))
    _tell(place, plan, store)
    cleanup.delete(place, plan, args.phase)
    return after_run(store, plan, result.exit_code)


def _tell(place: "PodContext", plan: "Plan", store: "Store") -> None:
    """Put the report's address on the run's Workflow, and the labels that `perfdag submit` gives: another way to submit knows no run id.

    What the API server refuses is said and changes nothing else.
    """
    from perfdag.app.cluster.view import RUN_LABEL, SUITE_LABEL
    from perfdag.kube import client as kube
    from perfdag.kube.client import Kube, KubeError

    notes = {
        "perfdag/run": plan.run_id,
        "perfdag/report": store.url(f"runs/{plan.run_id}/report.html"),
    }
    metadata = {"annotations": notes, "labels": {RUN_LABEL: plan.run_id, SUITE_LABEL: plan.suite}}

    async def work(client: Kube) -> None:
        kind = await client.resource("argoproj.io/v1alpha1", "Workflow")
        await client.patch(kind, place.workflow, {"metadata": metadata}, place.namespace)

    try:
        kube.run(work)
    except KubeError as error:
        print(f"the workflow has no annotation of its report: {error}", file=sys.stderr)


def _reach(args: argparse.Namespace) -> int:
    from perfdag.kube.podspec import STORE
    from perfdag.store.open import open_store

    root = os.environ.get("PERFDAG_STORE", "")
    store = open_store(STORE if root.startswith("claim://") else root, 5.0)
    key = f"runs/.doctor-{os.getpid()}"
    store.put(key, b"here")
    store.get(key)
    store.delete(key)
    return 0


def _rsh(args: argparse.Namespace) -> int:
    from perfdag.exit_codes import EXIT_INPUT

    config, ports = os.environ.get("PERFDAG_SSH_CONFIG"), os.environ.get("PERFDAG_SSH_PORTS", "")
    if not config:
        print(
            "perfdag step rsh: only in the lead's pod of a gang (PERFDAG_SSH_CONFIG is not set)",
            file=sys.stderr,
        )
        return EXIT_INPUT
    words = list(args.words)
    while words and words[0].startswith(
        "-"
    ):  # launchers give ssh's own options (-x, -q, -l USER); ours are in the config
        words = words[2:] if words[0] == "-l" else words[1:]
    if len(words) < 2:
        print("perfdag step rsh: give a host and a command", file=sys.stderr)
        return EXIT_INPUT
    host, command = words[0], words[1:]
    # the words are meant for the remote shell, as rsh does: they are joined, not quoted again
    if host in (os.environ.get("PERFDAG_IP"), "localhost", "127.0.0.1"):
        os.execvp("sh", ["sh", "-c", " ".join(command)])
    # the first of an address: hosts of one address (a host network) are one to MPI
    port = next(
        (
            port
            for address, _, port in (each.rpartition("=") for each in ports.split())
            if address == host
        ),
        "2222",
    )
    os.execvp("ssh", ["ssh", "-F", config, "-p", port, host, *command])
