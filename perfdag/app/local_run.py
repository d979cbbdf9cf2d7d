"""Measure a suite on this machine: plan or resume a run, measure it, store its samples.

Modules of Parquet are imported on use: pyarrow takes 40 MB that what is measured may need.
"""

import contextlib
import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from perfdag.app.errors import CommandError
from perfdag.app.new_suite import command_suite
from perfdag.app.terminal.progress import Progress
from perfdag.hosts.local import LocalHost
from perfdag.plan.plan import Plan, make_plan
from perfdag.results import missing_reason
from perfdag.results.durations import with_learned_times
from perfdag.results.run_lock import run_lock
from perfdag.results.runs import resume_command, store_plan
from perfdag.results.samples import delete_damaged_samples, stored_samples
from perfdag.shape import ACROSS, Resources, Shape
from perfdag.signals import EXIT_INTERRUPTED, EXIT_REACH, end_once
from perfdag.steps.measure import MeasuringLoop, ProgressListener
from perfdag.steps.site import Site
from perfdag.store.base import Store, StoreError
from perfdag.store.open import open_store
from perfdag.suite.candidate import ProblemCounter
from perfdag.suite.load import load_suite
from perfdag.suite.model import LoadedSuite
from perfdag.suite.yaml_document import BadDocument
from perfdag.units import plural

if TYPE_CHECKING:
    from perfdag.app.finish import RunResult
    from perfdag.regress.result import GateResult


@dataclass(frozen=True)
class LocalRun:
    """A planned run of this machine; `root` is its store as the user or the suite names it."""

    plan: Plan
    root: str | None
    resumed: bool


def plan_run(
    suite: str | None,
    settings: Sequence[str],
    only: Sequence[str],
    root: str | None,
    resume: str | None,
    report: Callable[[str], None],
    command: Sequence[str] = (),
) -> LocalRun:
    """Plan a new run of `suite` or `command`, or read the plan of the stored run `resume`.

    Raises BadDocument, StoreError, CommandError.
    """
    if resume is not None:
        from perfdag.app.runs import read_run

        store, plan = read_run(root, resume, report)
        _check_resumable(store, plan, root or "")
        return LocalRun(plan, root, True)
    if command and (text := absent_program(command[0])):
        raise CommandError(text)
    loaded = command_suite(command, settings) if command else load_suite(suite or "", settings)
    plan = make_plan(loaded, only=only)
    refuse_absent_programs(loaded, plan)
    return LocalRun(plan, root or loaded.suite.store, False)


def refuse_absent_programs(loaded: LoadedSuite, plan: Plan) -> None:
    """Raise BadDocument for commands of a plan whose program this machine does not have.

    Those of optional entries, and of shapes that need a cluster, are skipped as they run.
    """
    sources = {source.name: source for source in loaded.sources}
    problems = ProblemCounter()
    for point in plan.points:
        if point.benchmark != "command" or point.optional:
            continue
        advice = "install it, or say `optional: true` beside `benchmark`"
        text = absent_program(point.params["argv"][0], advice)
        if text and not needs_cluster(Shape.model_validate(plan.shapes[point.shape])):
            source = sources[point.entry]
            path = ("argv",) if source.is_set(("argv",)) else ("params", "argv")
            problems.add(source, path, text)
    if mistakes := problems.problems():
        raise BadDocument(mistakes)


def absent_program(program: str, advice: str = "install it") -> str:
    """Return that this machine does not have a program and what to do, or an empty text."""
    if shutil.which(program):
        return ""
    if re.search(r"[\s|<>&;]", program):
        advice = f"no shell reads it, so write bash -c {shlex.quote(program)}"
    return f"no program {program!r} here; {advice}"


def _check_resumable(store: Store, plan: Plan, root: str) -> None:
    """Raise CommandError if `perfdag run` cannot continue this run."""
    from perfdag.app.runs import check_samples

    check_samples(store, plan)
    if plan.trigger == "ab":
        why = f"{plan.run_id} is one variant of `perfdag ab`, which measures both variants in turn"
    elif plan.where:
        why = f"{plan.run_id} was measured on a cluster; this machine cannot add samples to it"
    else:
        return
    raise CommandError(f"{why}; continue it: {resume_command(plan, root)}")


def run_plan(
    run: LocalRun, report: Callable[[str], None], *, charts: bool = True, recheck: bool = True
) -> "RunResult":
    """Measure what is not stored yet, then collect, judge and report the run.

    With `recheck`, points that are suspicious against their history are measured again. `report`
    receives lines of progress. Raises CommandError if the run ends before its last sample.
    """
    with only_process(run.plan):
        return _measure_and_finish(run, report, charts, recheck)


def _measure_and_finish(
    run: LocalRun, report: Callable[[str], None], charts: bool, recheck: bool
) -> "RunResult":
    plan, store, stored = run.plan, open_store(run.root), ""
    if run.resumed:
        prepare_resume(store, plan.run_id, report)
        planned = {plan.key(at) for at in range(len(plan.order))}
        stored = f" ({len(planned & stored_samples(store, plan.run_id))} stored)"
    else:
        plan = with_learned_times(store, plan, None)
        store_plan(store, plan)
    samples = f"{plural(len(plan.points), 'point')}, {plural(len(plan.order), 'sample')}{stored}"
    report(f"run {plan.run_id}: {samples}, store {store.root}")
    command = f"perfdag run --resume {plan.run_id}" + (f" --store {run.root}" if run.root else "")
    with resumable(command):
        measure_plan(plan, store, report)
    from perfdag.app.finish import finish_run

    again = partial(measure_again, store, plan, command, report) if recheck else None
    return finish_run(store, plan, report, charts=charts, recheck=again)


def measure_again(
    store: Store, plan: Plan, command: str, report: Callable[[str], None], gate: "GateResult"
) -> None:
    """Measure the suspicious points of a run twice more, as two runs. `command` resumes the run.

    Raises StoreError, and CommandError if it is interrupted.
    """
    from perfdag.results.collect import collect
    from perfdag.results.rechecks import store_rechecks

    names = ", ".join(line.name for line in gate.suspects)
    report(f"suspicious, measured again: {names}")
    points = {line.info.point for line in gate.suspects}
    for again in store_rechecks(store, plan, points):
        with resumable(command):
            measure_plan(again, store, report)
        collect(store, again)


@contextlib.contextmanager
def resumable(command: str) -> Iterator[None]:
    """Turn an interrupt or an error of the store into a CommandError that names `command`.

    SIGTERM ends the run as Ctrl-C does.
    """
    end_once()
    try:
        yield
    except KeyboardInterrupt:
        message = f"interrupted; all finished samples are stored. Continue: {command}"
        raise CommandError(message, EXIT_INTERRUPTED) from None
    except StoreError as error:
        message = f"{error}\nall samples before it are stored. Continue: {command}"
        raise CommandError(message, EXIT_REACH) from None


def prepare_resume(store: Store, run_id: str, report: Callable[[str], None]) -> None:
    """Forget why samples of the run are missing, and delete damaged ones. Raises StoreError."""
    missing_reason.forget_all(store, run_id)
    if damaged := delete_damaged_samples(store, run_id):
        some = ", ".join(damaged[:5])
        report(f"unreadable, measured again: {plural(len(damaged), 'sample')} ({some})")


def measure_plan(plan: Plan, store: Store, report: Callable[[str], None]) -> None:
    """Measure the samples of a plan that are not stored yet, within its budget."""
    with Progress(plan, report) as progress:
        loop = measuring_loop(plan, store, progress)
        deadline = time.monotonic() + plan.budget if plan.budget else None
        if not loop.measure(range(len(plan.order)), deadline=deadline):
            reason = missing_reason.budget_spent(plan.budget or 0)
            missing_reason.write(store, plan.run_id, reason)


@contextlib.contextmanager
def only_process(plan: Plan) -> Iterator[None]:
    """Let no other process of this machine measure or remove a run. Raises CommandError."""
    with run_lock(plan.run_id) as alone:
        if not alone:
            raise CommandError(
                f"another process of this machine measures run {plan.run_id}; "
                "wait for it, or end it with Ctrl-C"
            )
        yield


def measuring_loop(plan: Plan, store: Store, listener: ProgressListener) -> MeasuringLoop:
    """Return the loop that measures a plan on this machine."""
    site = Site(hosts_for=local_hosts, refuses=needs_cluster)
    return MeasuringLoop(plan, store, site, listener)


def local_hosts(shape: Shape) -> Sequence[LocalHost]:
    """Return this machine once for each host of the shape, at its loopback address."""
    address = "::1" if shape.network.family == "ipv6" else "127.0.0.1"
    return [LocalHost(address) for _ in range(shape.hosts.count)]


def needs_cluster(shape: Shape) -> str | None:
    """Return why one machine cannot provide a shape, as the reason of a skipped sample, or None."""
    network, hosts = shape.network, shape.hosts
    requests = {
        "network.host: false (a pod network)": network.host is False,
        f"network.path: {network.path}": network.forwarded,
        "network.name (Multus)": network.name is not None,
        "network.mtu": network.mtu is not None,
        # Traffic of a machine to itself passes none of its interfaces, whatever the address.
        "network.interface": network.interface not in (None, "lo") and hosts.count > 1,
        "hosts.placement: spread": hosts.placement == "spread" and hosts.count > 1,
        "hosts.exclusive": hosts.exclusive,
        "hosts.roles": hosts.roles is not None,
        "hosts.pairs: across-zones": hosts.pairs == ACROSS,
        "resources": shape.resources != Resources() or bool(shape.hugepages),
        "a volume": shape.volume is not None,
        "node_selector or zones": bool(shape.node_selector or shape.zones),
        # `rdma` is a permission of a pod. On a machine the benchmark itself reports what is absent.
        "privileges": bool(set(shape.privileges) - {"rdma", "block"}),
        "scheduler: volcano": shape.scheduler != "default",
        "runtime_class": shape.runtime_class is not None,
    }
    reasons = [name for name, requested in requests.items() if requested]
    return f"{', '.join(reasons)}: needs a cluster (perfdag submit)" if reasons else None
