"""`perfdag scale`: workloads and VMIs at scale, on the cluster that KUBECONFIG names."""

import argparse
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from perfdag.kube import Kube
    from perfdag.steps.scale.schedule import Schedule

T = TypeVar("T")
Sub = "argparse._SubParsersAction[argparse.ArgumentParser]"

EPILOG = """examples:
  perfdag scale nodes --count 1000 --gpus 8
  perfdag scale simulate kubevirt --delay vmi-running=800-3300
  perfdag scale vmi burst --count 100 -o out0
  perfdag scale submit -t training -n 2000 -p 5 --delay 1 -o out1
  perfdag scale sample -t training -o out1
  perfdag scale plot --skip-errors -o out1
  perfdag scale submit -t distributed -n 1000 --num-workers 7 --pvc -p 1 --delay 5 -o out2
  perfdag scale plot --skip-errors --plot detailed -o out2
"""
_PLOTS = ("general", "detailed", "timeline", "scurves", "ecdf", "order")
_TYPES = ("training", "distributed", "interactive")


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb and its sub-verbs."""
    parser = _parser(sub, "scale", "workloads and VMIs at scale", "Create objects on a schedule and measure every stage of their life.")
    parser.epilog = EPILOG
    verbs = parser.add_subparsers(dest="scale", metavar="COMMAND", required=True)
    _add_submit(verbs)
    _add_sample(verbs)
    _add_plot(verbs)
    _add_delete(verbs)
    _add_nodes(verbs)
    _add_simulate(verbs)
    _add_vmi(verbs)


def _parser(sub: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, summary: str, about: str) -> argparse.ArgumentParser:
    return sub.add_parser(name, help=summary, description=about, formatter_class=argparse.RawDescriptionHelpFormatter)


def _folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output-dir", type=Path, metavar="DIR", help="folder of the files (default: logs)")
    parser.add_argument("--settings", type=Path, metavar="FILE", help="YAML of settings: submitter, project, backend_times ...")


def _cluster(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--context", help="context of the kubeconfig")


def _arrivals(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arrival", choices=("closed", "constant", "poisson", "burst", "ramp"), help="how objects arrive")
    parser.add_argument("--rate", type=float, default=0.0, metavar="PER_S", help="objects a second of an open loop")
    parser.add_argument("--burst", type=int, metavar="N", help="objects at once, with --arrival burst")
    parser.add_argument("--seed", type=int, default=0, help="seed of Poisson arrivals")


def _add_submit(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = _parser(verbs, "submit", "create workloads", "Create workloads on a schedule; writes submitted.json and run.json.")
    _folder(parser)
    _cluster(parser)
    parser.add_argument("-t", "--workload-type", choices=_TYPES, default="training", help="workload type (default: training)")
    parser.add_argument("--template", metavar="NAME|FILE", help="instead of -t: vm, vmi, vmirs, pod, job, pytorchjob or a YAML file")
    parser.add_argument("-n", "--num-workloads", type=int, required=True, help="workloads to submit")
    parser.add_argument("-p", "--num-processes", type=int, default=8, help="submissions in parallel (default: 8)")
    parser.add_argument("--num-workers", type=int, default=1, help="workers of a distributed workload (default: 1)")
    parser.add_argument("-g", "--num-gpus", default="1", help="GPUs a pod (default: 1)")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds between batches of -p, on an absolute schedule (default: 0)")
    parser.add_argument("--project", help="project to submit to (default: project-0)")
    parser.add_argument("--pvc", action="store_true", help="add a claim to each workload")
    parser.add_argument("--namespace", help="instead of runai-<project>")
    parser.add_argument("--create-namespace", action="store_true", help="create the namespace where it is missing")
    parser.add_argument("--submitter", choices=("api", "kubectl", "runai-cli"), help="how to submit (default: api)")
    parser.add_argument("--var", action="append", default=[], metavar="NAME=VALUE", help="a placeholder of the template")
    _arrivals(parser)
    parser.set_defaults(run=_safely(_submit))


def _add_sample(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    about = "See how far the workloads are; writes sampled.json and stages.parquet. Can be repeated, also while submitting."
    parser = _parser(verbs, "sample", "see how far they are", about)
    _folder(parser)
    _cluster(parser)
    parser.add_argument("-t", "--workload-type", choices=_TYPES, help="checked against what was submitted")
    parser.add_argument("-p", "--project", help="checked against what was submitted")
    parser.add_argument(
        "--watch", type=float, metavar="SECONDS", help="stay until all are ready, at most so long; times below 1 s need this"
    )
    parser.set_defaults(run=_safely(_sample))


def _add_plot(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = _parser(verbs, "plot", "draw it", "Write times.csv and general.png or detailed.png from submitted.json and sampled.json.")
    _folder(parser)
    parser.add_argument(
        "--plot",
        choices=_PLOTS,
        default="general",
        help="plot type (default: general); timeline, scurves, ecdf and order need stages.parquet",
    )
    parser.add_argument(
        "--skip-errors", action=argparse.BooleanOptionalAction, default=True, help="leave out workloads with erroneous times (default)"
    )
    parser.add_argument("--head", type=int, metavar="N", help="only the first N workloads")
    parser.add_argument("--tail", type=int, metavar="N", help="only the last N workloads")
    parser.set_defaults(run=_safely(_plot))


def _add_delete(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = _parser(verbs, "delete", "delete the workloads", "Delete a run's workloads and wait until none is left.")
    _folder(parser)
    _cluster(parser)
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help="how long to wait (default: 600)")
    parser.set_defaults(run=_safely(_delete))


def _add_nodes(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = _parser(verbs, "nodes", "simulated nodes", "Make simulated nodes with GPUs; needs KWOK on the cluster.")
    _cluster(parser)
    parser.add_argument("--count", type=int, default=100, help="nodes (default: 100)")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs a node (default: 8)")
    parser.add_argument("--remove", action="store_true", help="delete the simulated nodes")
    parser.set_defaults(run=_safely(_nodes))


def _add_simulate(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    about = "Play KubeVirt or Run:ai with KWOK Stages and minimal CRDs, on a cluster that has neither."
    parser = _parser(verbs, "simulate", "play KubeVirt or Run:ai", about)
    _cluster(parser)
    parser.add_argument("system", choices=("kubevirt", "runai"))
    parser.add_argument("--delay", action="append", default=[], metavar="STAGE=MS[-MS]", help="delay of a stage, uniform from-to")
    parser.add_argument("--failures", type=int, default=0, metavar="PERCENT", help="share of VMIs that fail")
    parser.add_argument("--remove", action="store_true", help="take the Stages and CRDs away again")
    parser.set_defaults(run=_safely(_simulate))


def _add_vmi(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    about = "Create VMIs, wait until they run, delete them, and say what it took. Exit 3 where a gate is breached or has no data."
    parser = _parser(verbs, "vmi", "VMI bursts, ladders, steady state, capacity", about)
    _folder(parser)
    _cluster(parser)
    parser.add_argument("scenario", choices=("burst", "ladder", "steady", "capacity"))
    parser.add_argument("--template", default="vmi", metavar="NAME|FILE", help="vmi, vm, vmirs or a YAML file (default: vmi)")
    parser.add_argument("--count", type=int, nargs="+", default=[100], help="VMIs; several for a ladder; the limit for capacity")
    parser.add_argument("--step", type=int, default=100, help="capacity: VMIs more each time (default: 100)")
    parser.add_argument("--churn", type=int, default=5, help="steady: VMIs replaced at a time (default: 5)")
    parser.add_argument("--pause", type=float, default=20.0, help="steady: seconds between replacements (default: 20)")
    parser.add_argument("--duration", type=float, default=300.0, help="steady: seconds (default: 300)")
    parser.add_argument("--cooldown", type=float, default=60.0, help="ladder: seconds between bursts (default: 60)")
    parser.add_argument("--per-node", type=int, default=200, help="VMIs a node at most (default: 200)")
    parser.add_argument("--parallel", type=int, default=20, help="creations in flight (default: 20)")
    parser.add_argument("--namespace", default="perfdag-vmi", help="namespace (default: perfdag-vmi)")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for all to run, and to be gone (default: 900)")
    parser.add_argument("--gate", action="append", default=[], metavar="'METRIC < VALUE'", help="beside `api_p99 < 1`; also RATIO * METRIC")
    parser.add_argument("--no-primer", action="store_true", help="no VMI before the clock starts")
    parser.add_argument("--prometheus", metavar="URL", help="KubeVirt's CPU, memory and work queues from here")
    parser.add_argument("--lock-timeout", type=float, default=3600.0, help="seconds to wait for another performance run (default: 3600)")
    _arrivals(parser)
    parser.set_defaults(run=_safely(_vmi))


def _safely(work: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """Errors of the user or of the cluster as one line and the right exit code."""

    def run(args: argparse.Namespace) -> int:
        from perfdag.kube import KubeError

        try:
            return work(args)
        except ValueError as error:  # TemplateError, SettingsError, TooDenseError, a bad schedule or gate
            print(f"perfdag scale: {error}", file=sys.stderr)
            return 2
        except KubeError as error:
            print(f"perfdag scale: {error}", file=sys.stderr)
            return 2 if 400 <= error.status < 500 and error.status not in (401, 408, 429) else 4

    return run


def _on_cluster(args: argparse.Namespace, work: "Callable[[Kube], Awaitable[T]]", connections: int = 100) -> T:
    from perfdag.kube import run

    return run(work, context=args.context, connections=connections)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _settings(args: argparse.Namespace) -> Any:
    from perfdag.steps.scale.runai import read_settings

    settings = read_settings(args.settings)
    args.output_dir = args.output_dir or Path(settings.output_dir)
    return settings


def _schedule(args: argparse.Namespace, parallel: int, delay: float = 0.0) -> "Schedule":
    from perfdag.steps.scale.schedule import Arrival, Schedule

    arrival: Arrival = args.arrival or ("batch" if delay > 0 else "constant" if args.rate else "closed")
    if args.arrival and delay > 0:
        raise ValueError("--delay makes batches of -p; leave it out with --arrival, which takes --rate")
    return Schedule(arrival, args.rate, args.burst or parallel, delay, args.seed)


def _submit(args: argparse.Namespace) -> int:
    from perfdag.steps.scale.commands import Order, submit

    settings = _settings(args)
    settings.project = args.project or settings.project
    settings.submitter = args.submitter or settings.submitter
    pairs = [text.partition("=") for text in args.var]
    if args.num_workloads < 1 or args.num_processes < 1 or any(not middle for _, middle, _ in pairs):
        raise ValueError("-n and -p are 1 or more, and --var is NAME=VALUE")
    order = Order(
        template=args.template or args.workload_type,
        count=args.num_workloads,
        parallel=args.num_processes,
        schedule=_schedule(args, args.num_processes, args.delay),
        folder=args.output_dir,
        settings=settings,
        workers=args.num_workers,
        gpus=args.num_gpus,
        pvc=args.pvc,
        namespace=args.namespace,
        create_namespace=args.create_namespace,
        variables={name: value for name, _, value in pairs},
        tell=_tell,
    )
    file = _on_cluster(args, lambda kube: submit(kube, order), max(100, args.num_processes))
    told = file.generator
    print(f"run {file.run}: {told['created']} of {told['planned']} created in {told['seconds']:.1f} s", end="")
    print(f" ({told['create_rate_per_s']:.0f}/s)" if told["create_rate_per_s"] else "")
    if told["held"] is False:
        print(f"the schedule was not held: {told['rate_share']:.0%} of its rate, lag p99 {told['lag_p99_s']:.3f} s", file=sys.stderr)
    for text, count in told["errors"].items():
        print(f"{count} failed: {text}", file=sys.stderr)
    return 1 if told["failed"] or told["not_sent"] else 0


def _sample(args: argparse.Namespace) -> int:
    from perfdag.steps.scale.commands import sample

    settings = _settings(args)
    got = _on_cluster(args, lambda kube: sample(kube, args.output_dir, settings, args.watch, _tell))
    kind = {"training": "TrainingWorkload", "distributed": "DistributedWorkload", "interactive": "InteractiveWorkload"}
    if args.workload_type and kind[args.workload_type] != got.file.kind:
        raise ValueError(f"{args.output_dir} holds {got.file.kind}, not {args.workload_type}")
    if args.project and args.project != got.file.project:
        raise ValueError(f"{args.output_dir} was submitted to project {got.file.project}, not {args.project}")
    print(f"{got.scheduled} scheduled, {got.waiting} waiting, of {len(got.file.submissions)} submitted")
    if got.absent:
        print(f"not on this cluster, so not observed: {', '.join(got.absent)}", file=sys.stderr)
    _print_stages(got.rows)
    return 0


def _print_stages(rows: list[Any]) -> None:
    from perfdag.steps.scale.summary import summaries
    from perfdag.units import short

    simulated = any(row.simulated for row in rows)
    print(f"{'stage':<24}{'since':<20}{'ok':>6}{'never':>7}{'unseen':>8}{'median':>12}{'p95':>12}{'p99':>12}   +-")
    for each in summaries(rows):
        values = "".join(f"{short(value, 's'):>12}" for value in (each.p50, each.p95, each.p99))
        never = each.censored + each.failed
        error = short(each.resolution_s, "s") if each.resolution_s is not None else "-"
        print(f"{each.stage:<24}{each.since:<20}{each.ok:>6}{never:>7}{each.unobserved:>8}{values}   {error}")
    if simulated:
        print("simulated nodes: these are figures of the control plane alone")


def _plot(args: argparse.Namespace) -> int:
    from perfdag.charts import scale as charts
    from perfdag.charts.style import to_bytes
    from perfdag.steps.scale import runai

    _settings(args)
    if args.plot not in ("general", "detailed"):
        return _plot_stages(args)
    times = runai.read_times(args.output_dir)
    runai.write_csv(args.output_dir / "times.csv", times)
    chosen = runai.select(times, args.skip_errors, args.head, args.tail)
    left_out = [each.excluded for each in times if each.excluded]
    for reason in sorted(set(left_out)):
        print(f"{left_out.count(reason)} of {len(times)} {'left out' if args.skip_errors else 'flagged'}: {reason}", file=sys.stderr)
    if not chosen:
        print("no data to plot", file=sys.stderr)
        return 1
    deltas = [(str(each.info["submitTimestamp"]), each.deltas) for each in chosen]
    figure = charts.general(deltas) if args.plot == "general" else charts.detailed(deltas)
    path = args.output_dir / f"{args.plot}.png"
    path.write_bytes(to_bytes(figure)[1])
    print(f"{path} and {args.output_dir / 'times.csv'}: {len(chosen)} workloads")
    return 0


def _plot_stages(args: argparse.Namespace) -> int:
    import pyarrow.parquet as pq

    from perfdag.charts import scale as charts
    from perfdag.charts.style import to_bytes

    source = args.output_dir / "stages.parquet"
    if not source.exists():
        raise ValueError(f"no {source}; run `perfdag scale sample -o {args.output_dir}` or `perfdag scale vmi` first")
    draw = {"timeline": charts.timeline, "scurves": charts.s_curves, "ecdf": charts.ecdf, "order": charts.by_order}[args.plot]
    path = args.output_dir / f"{args.plot}.png"
    path.write_bytes(to_bytes(draw(charts.stages_of(pq.read_table(source).to_pylist())))[1])
    print(path)
    return 0


def _delete(args: argparse.Namespace) -> int:
    from perfdag.steps.scale.commands import delete

    _settings(args)
    left = _on_cluster(args, lambda kube: delete(kube, args.output_dir, 20, args.timeout))
    print(f"{left} left" if left else "all deleted")
    return 1 if left else 0


def _nodes(args: argparse.Namespace) -> int:
    from perfdag.steps.scale import simulate

    async def work(kube: "Kube") -> int:
        if args.remove:
            print(f"{await simulate.remove_nodes(kube)} nodes deleted")
            return 0
        made = await simulate.make_nodes(kube, args.count, args.gpus)
        if not await simulate.nodes_ready(kube, args.count):
            raise ValueError("the nodes do not become Ready; is KWOK running and managing nodes annotated kwok.x-k8s.io/node=fake?")
        print(f"{made} nodes made, {args.count} Ready, {args.gpus} GPUs each")
        return 0

    return _on_cluster(args, work)


def _simulate(args: argparse.Namespace) -> int:
    from perfdag.steps.scale import simulate

    delays = {name: (low, high) for name, low, high in map(simulate.parse_delay, args.delay)}
    if not 0 <= args.failures <= 100:
        raise ValueError("--failures is a percentage, 0 to 100")

    async def work(kube: "Kube") -> int:
        if args.remove:
            await simulate.remove(kube, args.system)
            print(f"{args.system} is no longer simulated")
        else:
            print(f"{args.system} simulated: {', '.join(await simulate.install(kube, args.system, delays, args.failures))}")
        return 0

    return _on_cluster(args, work)


def _vmi(args: argparse.Namespace) -> int:
    from perfdag.steps.scale import gates, table, vmi
    from perfdag.steps.scale.run_vmi import Ask, measure

    _settings(args)
    spec = vmi.Spec(
        template=args.template,
        namespaces=[args.namespace],
        schedule=_schedule(args, args.parallel),
        parallel=args.parallel,
        per_node=args.per_node,
        primer=not args.no_primer,
        timeout=args.timeout,
        gates=[gates.parse("api_p99 < 1"), *map(gates.parse, args.gate)],
        tell=_tell,
    )
    ask = Ask(
        args.scenario, args.count, args.step, args.churn, args.pause, args.duration, args.cooldown, args.lock_timeout, args.prometheus
    )
    outcome = _on_cluster(args, lambda kube: measure(kube, spec, ask))
    args.output_dir.mkdir(parents=True, exist_ok=True)
    for result in outcome.results:
        print(f"{result.scenario} of {result.count}, run {result.run}")
        _print_stages(result.rows)
        for text in result.facts["notes"]:
            print(text, file=sys.stderr)
        for verdict in result.verdicts:
            print(verdict)
    if outcome.capacity is not None:
        print(f"capacity: {outcome.capacity} VMIs passed every gate")
    rows = [row for result in outcome.results for row in result.rows]
    table.write_rows(args.output_dir / "stages.parquet", rows)
    table.write_json(args.output_dir / "perf-audit-results.json", table.audit(outcome.results))
    table.write_json(
        args.output_dir / "summary.json", [{"figures": r.figures, "facts": r.facts, "calls": r.calls} for r in outcome.results]
    )
    if args.scenario != "capacity" and any(result.breached for result in outcome.results):
        return 3
    bad = [r for r in outcome.results if r.figures["success_ratio"] != 1.0 or r.figures["left_behind"]]
    return 1 if bad and args.scenario != "capacity" else 0
