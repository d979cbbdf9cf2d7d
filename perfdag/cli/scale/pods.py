"""The scheduling scenarios of `perfdag scale`."""

import argparse

from perfdag.cli.options import log, print_now
from perfdag.cli.scale.command_options import (
    add_command,
    add_context,
    add_folder,
    add_lock,
    add_namespaces,
    add_parallel,
)
from perfdag.steps.scale.model.nodes import RACK_LABEL

SCENARIOS = {
    "gated": (
        "the scheduler alone",
        "Create pods with a scheduling gate, release them together, and report the pods scheduled "
        "per second.",
    ),
    "fill": (
        "fill every GPU",
        "Fill every free GPU, then create one pod too many, which must be refused.",
    ),
    "fragmentation": (
        "measure GPU packing",
        "Fill half of all GPUs with one-GPU pods, then count the whole nodes that are still free.",
    ),
    "preemption": (
        "measure preemption",
        "Fill all GPUs at low priority, then measure the wait and the evictions of high-priority "
        "pods.",
    ),
    "gang": (
        "all-or-nothing placement",
        "Create more gangs than fit; those that fit must be placed whole. Needs Volcano or KAI.",
    ),
    "reclaim": (
        "reclaim between queues",
        "Fill all GPUs from one queue, then let another reclaim its half, in gangs of --workers "
        "pods. Needs Volcano or KAI.",
    ),
    "failed-reclaim": (
        "time until a reclaim is refused",
        "Fill all GPUs from one queue, then let a gang of another ask for more than its half. "
        "It must be refused. Needs KAI.",
    ),
    "consolidation": (
        "move running pods to free whole nodes",
        "Free half of the GPUs of every node, then request whole nodes. Needs KAI.",
    ),
    "topology": (
        "gangs in one rack each",
        "Create gangs that must be placed in one rack each. Needs KAI.",
    ),
}
COUNTS = {
    "gated": "pods",
    "preemption": "pods at high priority",
    "gang": "gangs; at least one more than fits is created",
    "consolidation": "pods of a whole node, at most as many as fit after moves",
    "topology": "gangs, at most as many as fit",
}
WORKERS = {"gang": 2, "reclaim": 1, "topology": 2}
"""Pods of a gang by default."""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register a command for each scenario of the benchmark `scale`."""
    for name, (summary, description) in SCENARIOS.items():
        gate = "Exit with 3 if a gate fails or has no data."
        parser = add_command(commands, name, summary, f"{description} {gate}")
        add_folder(parser)
        add_context(parser)
        parser.set_defaults(count=100, workers=1, gpus=1, scenario=name, command_run=run)
        parser.set_defaults(scheduler="", queue="", rack_label="")
        if name in COUNTS:
            parser.add_argument("--count", type=int, help=f"{COUNTS[name]} (default: 100)")
        if workers := WORKERS.get(name):
            help_ = f"pods of a gang (default: {workers})"
            parser.add_argument("--workers", type=int, default=workers, help=help_)
        if name == "topology":
            parser.add_argument(
                "--rack-label",
                default=RACK_LABEL,
                metavar="LABEL",
                help=f"node label whose values are racks (default: {RACK_LABEL})",
            )
        if name not in ("fragmentation", "consolidation"):
            parser.add_argument("-g", "--gpus", type=int, help="GPUs a pod (default: 1)")
        if name in ("fill", "fragmentation", "preemption"):
            parser.add_argument("--scheduler", help="schedulerName of the pods")
            parser.add_argument("--queue", help="queue of the pods, with KAI or Volcano")
        add_parallel(parser)
        add_namespaces(parser, "perfdag-scale")
        parser.add_argument(
            "--timeout", type=float, default=900.0, help="seconds for each wait (default: 900)"
        )
        parser.add_argument(
            "--gate",
            action="append",
            default=[],
            metavar="'METRIC < VALUE'",
            help="limit of a metric, also as RATIO * METRIC; repeat the option to add more",
        )
        add_lock(parser)


def run(args: argparse.Namespace) -> int:
    """Run a pod scenario."""
    from perfdag.app.scale.commands import open_session
    from perfdag.app.scale.scenarios import pod_scenario

    return pod_scenario(
        open_session(args.context, args.output_dir, args.settings, print_now, log),
        args.scenario,
        count=args.count,
        workers=args.workers,
        gpus=args.gpus,
        namespaces=args.namespace,
        parallel=args.parallel,
        timeout=args.timeout,
        gate_texts=args.gate,
        lock_timeout=args.lock_timeout,
        scheduler=args.scheduler,
        queue=args.queue,
        rack_label=args.rack_label,
    )
