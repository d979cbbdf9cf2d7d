"""Arguments of `perfdag scale`."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from perfdag.app.scale import commands, plots, scenarios

EPILOG = """examples:
  perfdag scale nodes --count 1000 --gpus 8
  perfdag scale simulate kubevirt --delay vmi-running=800-3300
  perfdag scale vmi burst --count 100 -o out0
  perfdag scale gated --count 1000 -g 0 -o out3
  perfdag scale submit -t training -n 2000 -p 5 --delay 1 -o out1
  perfdag scale sample -t training -o out1
  perfdag scale plot --skip-errors -o out1
  perfdag scale submit -t distributed -n 1000 --num-workers 7 --pvc -p 1 --delay 5 -o out2
  perfdag scale plot --skip-errors --plot detailed -o out2
  perfdag scale delete --run r1121120501-a1b2c3
"""
_PLOTS = ("general", "detailed", "timeline", "scurves", "ecdf", "order", "api-calls")
_TYPES = ("training", "distributed", "interactive")


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb and its sub-verbs."""
    parser = _parser(
        sub,
        "scale",
        "workloads and VMIs at scale",
        "Create objects on a schedule and measure every stage of their life.",
    )
    parser.epilog = EPILOG
    verbs = parser.add_subparsers(dest="scale", metavar="COMMAND", required=True)
    _add_submit(verbs)
    _add_sample(verbs)
    _add_plot(verbs)
    _add_delete(verbs)
    _add_nodes(verbs)
    _add_simulate(verbs)
    _add_vmi(verbs)
    for name, (summary, about) in _SCENARIOS.items():
        _add_scenario(verbs, name, summary, about)


def _parser(
    sub: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, summary: str, about: str
) -> argparse.ArgumentParser:
    return sub.add_parser(
        name, help=summary, description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def _folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output-dir", type=Path, metavar="DIR", help="folder of the files (default: logs)"
    )
    parser.add_argument(
        "--settings",
        type=Path,
        metavar="FILE",
        help="YAML of settings: submitter, project, backend_times ...",
    )


def _cluster(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--context", help="context of the kubeconfig")


def _lock(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lock-timeout",
        type=float,
        default=3600.0,
        help="seconds to wait for another performance run (default: 3600)",
    )


def _variables(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--var",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set a placeholder of the template; repeat for more",
    )


def _arrivals(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--arrival",
        choices=("closed", "constant", "poisson", "burst", "ramp"),
        help="how objects arrive",
    )
    parser.add_argument(
        "--rate", type=float, default=0.0, metavar="PER_S", help="objects a second of an open loop"
    )
    parser.add_argument(
        "--burst", type=int, metavar="N", help="objects at once, with --arrival burst"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of Poisson arrivals")


def _add_submit(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = _parser(
        verbs,
        "submit",
        "create workloads",
        "Create workloads on a schedule; writes submitted.json and run.json.",
    )
    _folder(parser)
    _cluster(parser)
    parser.add_argument(
        "-t",
        "--workload-type",
        choices=_TYPES,
        default="training",
        help="workload type (default: training)",
    )
    parser.add_argument(
        "--template",
        metavar="NAME|FILE",
        help="instead of -t: vm, vmi, vmirs, pod, job, pytorchjob or a YAML file",
    )
    parser.add_argument(
        "-n", "--num-workloads", type=int, required=True, help="workloads to submit"
    )
    parser.add_argument(
        "-p", "--num-processes", type=int, default=8, help="submissions in parallel (default: 8)"
    )
    parser.add_argument(
        "--num-workers", type=int, default=1, help="workers of a distributed workload (default: 1)"
    )
    parser.add_argument("-g", "--num-gpus", default="1", help="GPUs a pod (default: 1)")
    parser.add_argument(
        "--delay",
        type=float,
        default=0.0,
        help="seconds between batches of -p, on an absolute schedule (default: 0)",
    )
    parser.add_argument("--project", help="project to submit to (default: project-0)")
    parser.add_argument("--pvc", action="store_true", help="add a claim to each workload")
    parser.add_argument(
        "--namespace", nargs="+", help="namespaces, used in turn (default: runai-<project>)"
    )
    parser.add_argument("--create-namespace", action="store_true", help="create missing namespaces")
    parser.add_argument(
        "--submitter",
        metavar="NAME",
        help="how to submit: api (default), kubectl, runai-cli or a plug-in",
    )
    _variables(parser)
    _arrivals(parser)
    _lock(parser)
    parser.set_defaults(run=_with_exit_codes(commands.submit))


def _add_sample(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    about = "Observe the workloads and write sampled.json and stages.parquet. Can be repeated, also during the submission."
    parser = _parser(verbs, "sample", "observe workloads", about)
    _folder(parser)
    _cluster(parser)
    parser.add_argument(
        "-t", "--workload-type", choices=_TYPES, help="fail if the submission differs"
    )
    parser.add_argument("-p", "--project", help="fail if the submission differs")
    parser.add_argument(
        "--watch",
        type=float,
        metavar="SECONDS",
        help="watch until all are ready, at most SECONDS; needed for times below 1 s",
    )
    parser.add_argument(
        "--run",
        dest="run_id",
        metavar="ID",
        help="find a run without a folder by its label on the cluster",
    )
    parser.add_argument(
        "--namespace", help="with --run: only in this namespace (default: everywhere)"
    )
    parser.set_defaults(run=_with_exit_codes(commands.sample))


def _add_plot(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = _parser(
        verbs,
        "plot",
        "draw a chart",
        "Write times.csv and general.png or detailed.png from submitted.json and sampled.json.",
    )
    _folder(parser)
    parser.add_argument(
        "--plot",
        choices=_PLOTS,
        default="general",
        help="plot type (default: general); timeline, scurves, ecdf and order are of stages.parquet, a picture a run; api-calls of VM scenarios",
    )
    parser.add_argument(
        "--skip-errors",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="general, detailed: leave out workloads with erroneous times (default)",
    )
    parser.add_argument(
        "--head", type=int, metavar="N", help="only the first N workloads, in order of submission"
    )
    parser.add_argument("--tail", type=int, metavar="N", help="only the last N of those")
    parser.set_defaults(run=_with_exit_codes(plots.plot))


def _add_delete(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    about = (
        "Delete all objects of a run, selected by folder or by id, and wait until they are gone."
    )
    parser = _parser(verbs, "delete", "delete a run", about)
    _folder(parser)
    _cluster(parser)
    parser.add_argument(
        "--run",
        dest="run_id",
        metavar="ID",
        help="delete all objects with this run's label, of any kind (the id is logged at the start)",
    )
    parser.add_argument(
        "--namespace", help="with --run: only in this namespace (default: everywhere)"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="how long to wait (default: 600)",
    )
    parser.set_defaults(run=_with_exit_codes(commands.delete))


def _add_nodes(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = _parser(
        verbs,
        "nodes",
        "simulated nodes",
        "Create simulated nodes with GPUs; needs KWOK on the cluster.",
    )
    _cluster(parser)
    parser.add_argument("--count", type=int, default=100, help="nodes (default: 100)")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs a node (default: 8)")
    parser.add_argument("--remove", action="store_true", help="delete the simulated nodes")
    parser.set_defaults(run=_with_exit_codes(commands.nodes))


def _add_simulate(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    about = "Play KubeVirt, Run:ai or a storage class with KWOK Stages and minimal CRDs, on a cluster that has none of them."
    parser = _parser(verbs, "simulate", "play KubeVirt, Run:ai or storage", about)
    _cluster(parser)
    parser.add_argument(
        "system",
        choices=("kubevirt", "runai", "storage"),
        help="storage: the class perfdag-simulated, whose claims are bound",
    )
    parser.add_argument(
        "--delay",
        action="append",
        default=[],
        metavar="STAGE=MS[-MS]",
        help="delay of a stage, uniform from-to",
    )
    parser.add_argument(
        "--failures", type=int, default=0, metavar="PERCENT", help="share of VMIs that fail"
    )
    parser.add_argument("--remove", action="store_true", help="take the Stages and CRDs away again")
    parser.set_defaults(run=_with_exit_codes(commands.simulate))


def _add_vmi(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    about = "Create VMIs, wait until they run, delete them, and report the times. Exit 3 if a gate is breached or has no data."
    parser = _parser(verbs, "vmi", "VMI bursts, ladders, steady state, capacity", about)
    _folder(parser)
    _cluster(parser)
    parser.add_argument("scenario", choices=("burst", "ladder", "steady", "capacity"))
    parser.add_argument(
        "--template",
        default="vmi",
        metavar="NAME|FILE",
        help="vmi, vm, vmirs or a YAML file (default: vmi)",
    )
    _variables(parser)
    parser.add_argument(
        "--count",
        type=int,
        nargs="+",
        default=[100],
        help="VMIs; several for a ladder; the limit for capacity",
    )
    parser.add_argument(
        "--replicas",
        type=int,
        default=1,
        help="VMIs per object, with --template vmirs (default: 1)",
    )
    parser.add_argument("--step", type=int, help="capacity: VMIs added per step (default: 100)")
    parser.add_argument("--churn", type=int, help="steady: VMIs replaced at a time (default: 5)")
    parser.add_argument(
        "--pause", type=float, help="steady: seconds between replacements (default: 20)"
    )
    parser.add_argument("--duration", type=float, help="steady: seconds (default: 300)")
    parser.add_argument(
        "--cooldown", type=float, help="ladder: seconds between bursts (default: 60)"
    )
    parser.add_argument(
        "--per-node", type=int, default=200, help="VMIs a node at most (default: 200)"
    )
    parser.add_argument(
        "--parallel", type=int, default=20, help="creations in flight (default: 20)"
    )
    parser.add_argument(
        "--namespace",
        nargs="+",
        default=["perfdag-vmi"],
        help="namespaces, used in turn (default: perfdag-vmi)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=900.0,
        help="seconds to wait for start, and for deletion (default: 900)",
    )
    about = "add a gate to `api_p99 < 1` and `api_list_p99 < 30`, or replace one of them; also RATIO * METRIC"
    parser.add_argument(
        "--gate", action="append", default=[], metavar="'METRIC < VALUE'", help=about
    )
    parser.add_argument("--no-api-gates", action="store_true", help="omit the default API gates")
    parser.add_argument(
        "--no-primer", action="store_true", help="do not run a VMI before the measurement"
    )
    parser.add_argument(
        "--prometheus", metavar="URL", help="query CPU, memory and work queues of KubeVirt here"
    )
    parser.add_argument(
        "--prometheus-token-file", metavar="FILE", help="file with a bearer token for Prometheus"
    )
    parser.add_argument(
        "--prometheus-ca-file", metavar="FILE", help="file with the CA certificate of Prometheus"
    )
    _lock(parser)
    _arrivals(parser)
    parser.set_defaults(run=_with_exit_codes(scenarios.vmi))


_SCENARIOS = {
    "gated": (
        "the scheduler alone",
        "Create pods with a scheduling gate, release them together, and report the pods scheduled per second.",
    ),
    "fill": (
        "fill every GPU",
        "Fill every free GPU, then create one pod too many, which must be refused.",
    ),
    "fragmentation": (
        "measure GPU packing",
        "Take half of all GPUs with one-GPU pods, then count the whole nodes that are still free.",
    ),
    "preemption": (
        "measure preemption",
        "Fill all GPUs at low priority, then measure the wait and the evictions of high-priority pods.",
    ),
    "gang": (
        "all-or-nothing placement",
        "Create more gangs than fit; those that fit must be placed whole. Needs Volcano or KAI.",
    ),
    "reclaim": (
        "reclaim between queues",
        "Fill all GPUs from one queue, then let another reclaim its half. Needs Volcano or KAI.",
    ),
}


def _add_scenario(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    summary: str,
    about: str,
) -> None:
    """A scenario of the benchmark `scale`, from a laptop."""
    parser = _parser(verbs, name, summary, f"{about} Exit 3 if a gate is breached or has no data.")
    _folder(parser)
    _cluster(parser)
    if name in ("gated", "preemption", "gang"):
        what = {
            "gated": "pods",
            "preemption": "pods at high priority",
            "gang": "gangs; at least one more than fits is made",
        }[name]
        parser.add_argument("--count", type=int, default=100, help=f"{what} (default: 100)")
    if name == "gang":
        parser.add_argument("--workers", type=int, default=2, help="pods of a gang (default: 2)")
    if name != "fragmentation":
        parser.add_argument("-g", "--gpus", type=int, default=1, help="GPUs a pod (default: 1)")
    parser.add_argument(
        "--parallel", type=int, default=20, help="creations in flight (default: 20)"
    )
    parser.add_argument(
        "--namespace",
        nargs="+",
        default=["perfdag-scale"],
        help="namespaces, used in turn (default: perfdag-scale)",
    )
    parser.add_argument(
        "--timeout", type=float, default=900.0, help="seconds for each wait (default: 900)"
    )
    parser.add_argument(
        "--gate",
        action="append",
        default=[],
        metavar="'METRIC < VALUE'",
        help="also RATIO * METRIC",
    )
    _lock(parser)
    parser.set_defaults(run=_with_exit_codes(scenarios.scenario), scenario=name)


def _with_exit_codes(
    work: Callable[[argparse.Namespace], int],
) -> Callable[[argparse.Namespace], int]:
    """Print user and cluster errors in one line and return their exit code."""

    def run(args: argparse.Namespace) -> int:
        from perfdag.kube.client import KubeError
        from perfdag.steps.scale.scenarios.base import ScenarioUnavailableError

        try:
            return work(args)
        except (
            ValueError,
            ScenarioUnavailableError,
        ) as error:  # TemplateError, SettingsError, TooDenseError, a bad schedule or gate
            print(f"perfdag scale: {error}", file=sys.stderr)
            return 2
        except KubeError as error:
            print(f"perfdag scale: {error}", file=sys.stderr)
            return 2 if 400 <= error.status < 500 and error.status not in (401, 408, 429) else 4

    return run
