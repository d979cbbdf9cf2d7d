"""A run on this machine: `perfdag.Suite`, what it measures, and how it goes on."""

import contextlib
import errno
import os
import re
import shlex
import shutil
import socket
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from perfdag.hosts.base import Failed
from perfdag.hosts.facts import read_text
from perfdag.hosts.local import LocalHost, descendants
from perfdag.plan import Duet, Plan, make_plan, with_first_blocks, with_revisions
from perfdag.redaction import logger
from perfdag.results.run_store import (
    put_plan,
    put_rechecks,
    resume_command,
    with_history,
    with_learned_times,
)
from perfdag.results.samples import (
    budget_spent,
    delete_damaged_samples,
    forget_reasons,
    stored_samples,
    write_reason,
)
from perfdag.runs import RunError
from perfdag.signals import EXIT_REACH
from perfdag.steps.loop import LocalPool, MeasuringLoop, needs_cluster
from perfdag.store.base import Store, StoreError
from perfdag.store.s3 import open_store
from perfdag.suite import model
from perfdag.suite.document import BadDocument
from perfdag.suite.load import load_model, load_suite, model_text
from perfdag.terminal import Progress
from perfdag.units import plural, short_seconds

MOST_SECONDS = 60.0
"""Seconds for a command that makes a variant of the machine."""
TURNS = 4
"""Turns of a block, ABBA or BAAB."""

if TYPE_CHECKING:
    from perfdag.analysis.compare import DuetResult
    from perfdag.analysis.gate_result import GateResult
    from perfdag.runs.finish import Run


def refuse_absent_programs(loaded: model.LoadedSuite, plan: Plan) -> None:
    """Raise BadDocument for commands of a plan whose program this machine does not have.

    Those of optional entries, and of shapes that need a cluster, are skipped as they run.
    """
    sources = {source.name: source for source in loaded.sources}
    problems = []
    for point in plan.points:
        if point.benchmark != "command" or point.optional:
            continue
        advice = "install it, or say `optional: true` beside `benchmark`"
        text = absent_program(point.params["argv"][0], advice)
        if text and not needs_cluster(plan.shapes[point.shape]):
            source = sources[point.entry]
            path = ("argv",) if source.is_set(("argv",)) else ("params", "argv")
            problems.append(source.problem(path, "no-program", text))
    if problems:
        raise BadDocument(problems)


def absent_program(program: str, advice: str = "install it") -> str:
    """Return that this machine does not have a program and what to do, or an empty text."""
    if shutil.which(program):
        return ""
    if re.search(r"[\s|<>&;]", program):
        advice = f"no shell reads it, so write bash -c {shlex.quote(program)}"
    return f"no program {program!r} here; {advice}"


def refuse_to_resume(store: Store, plan: Plan, root: str) -> None:
    """Raise RunError if `perfdag run` cannot continue this run."""
    check_samples(store, plan)
    if plan.trigger == "ab":
        reason = "is one variant of `perfdag ab`, which measures both variants in turn"
    elif plan.where:
        reason = "was measured on a cluster; this machine cannot add samples to it"
    else:
        return
    raise RunError(f"{plan.run_id} {reason}; continue it: {resume_command(plan, root)}")


def check_samples(store: Store, plan: Plan) -> None:
    """Raise RunError if a run cannot be resumed because only its rows are left.

    Raises StoreError.
    """
    from perfdag.results.collect import kept_rows

    stored = stored_samples(store, plan.run_id)
    if not stored and kept_rows(store, plan, stored) is not None:
        raise RunError(
            f"run {plan.run_id} was collected and its samples are stored no more: "
            "its rows stay as they are, and it cannot be resumed"
        )


def run_plan(
    plan: Plan,
    root: str | None,
    *,
    resume: bool = False,
    charts: bool = True,
    recheck: bool = True,
    history: str | None = None,
    force: bool = False,
) -> "Run":
    """Measure what store `root` does not have yet, then collect, judge and report the run.

    With `recheck`, points that are suspicious against their history are measured again. `history`
    is the store of the earlier runs, if it is another one. With `force` it does not wait for
    another run of this machine.
    Raises RunError if the run ends before its last sample.
    """
    store = open_store(root)
    stored = ""
    with only_process(plan), alone_on_machine(force) as beside:
        if resume:
            prepare_resume(store, plan.run_id)
            stored = f" ({len(plan.keys() & stored_samples(store, plan.run_id))} stored)"
        else:
            plan = with_learned_times(store, plan, None)
            put_plan(store, plan)
        samples = f"{plural(len(plan.points), 'point')}, {plural(len(plan.order), 'sample')}"
        logger.info(f"run {plan.run_id}: {samples}{stored}, store {store.root}")
        command = resume_command(plan, root or "")
        with resumable(command):
            measure_turns(store, {"": plan}, [("", range(len(plan.order)))], beside)
        from perfdag.runs.finish import finish_run

        again = partial(measure_again, store, plan, command, beside) if recheck else None
        judged: Store = with_history(store, history, plan) if history else store
        return finish_run(judged, plan, charts=charts, publishes=True, recheck=again)


def measure_again(
    store: Store, plan: Plan, command: str, beside: Callable[[], str], gate: "GateResult"
) -> None:
    """Measure the suspicious points of a run twice more, as two runs. `command` resumes the run.

    Raises StoreError, and RunError if it is interrupted.
    """
    from perfdag.results.collect import collect

    logger.info(f"suspicious, measured again: {', '.join(line.label for line in gate.suspects)}")
    points = {line.info.point for line in gate.suspects}
    for again in put_rechecks(store, plan, points):
        with resumable(command):
            measure_turns(store, {"": again}, [("", range(len(again.order)))], beside)
        collect(store, again)


@contextlib.contextmanager
def resumable(command: str) -> Iterator[None]:
    """Name `command` where an interrupt or an error of the store ends a run. Raises RunError."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted; all finished samples are stored. Continue: {command}"
        ) from None
    except StoreError as error:
        raise RunError(
            f"{error}\nall samples before it are stored. Continue: {command}", EXIT_REACH
        ) from None


def prepare_resume(store: Store, run_id: str) -> None:
    """Forget why samples of the run are missing, and delete damaged ones. Raises StoreError."""
    forget_reasons(store, run_id)
    if damaged := delete_damaged_samples(store, run_id):
        names = ", ".join(damaged[:5])
        logger.info(f"unreadable, measured again: {plural(len(damaged), 'sample')} ({names})")


def measure_turns(
    store: Store,
    plans: Mapping[str, Plan],
    turns: Iterable[tuple[str, Sequence[int]]],
    beside: Callable[[], str] = str,
) -> None:
    """Measure the samples that are not stored yet, within the budget of the plans.

    A turn is the name of a plan and positions in its order. `beside` tells what else measures.
    """
    budget = next(iter(plans.values())).budget
    deadline = time.monotonic() + budget if budget else None
    with Progress(*plans.values()).shown() as progress:
        pool = LocalPool(beside=beside)
        loops = {name: MeasuringLoop(plan, store, pool, progress) for name, plan in plans.items()}
        for name, positions in turns:
            progress.variant = name and f"{name} "
            if not loops[name].measure(positions, deadline=deadline):
                reason = budget_spent(budget or 0)
                for plan in plans.values():
                    write_reason(store, plan.run_id, reason)
                return


def measure_duet(
    duet: Duet,
    root: str | None,
    resume: bool = False,
    *,
    everything: bool = False,
    force: bool = False,
) -> tuple[Store, "DuetResult"]:
    """Measure what is not stored yet, then compare. Return the store and the outcome.

    A duet that is looked at more than once ends when it is decided, and keeps the blocks until
    then. Raises RunError where a command that makes a variant fails, or the run ends early.
    """
    store = open_store(root)
    plans = (duet.a, duet.b)
    if not duet.a.options.cluster:
        with only_process(duet.a), only_process(duet.b), alone_on_machine(force) as beside:
            if not resume:  # before anything is stored of a run that would fail
                _make(duet.b)
                _make(duet.a)
            for plan in plans:
                if resume:
                    prepare_resume(store, plan.run_id)
                else:
                    put_plan(store, plan)
            expected = short_seconds(sum(plan.seconds() for plan in plans))
            samples = sum(len(plan.order) for plan in plans)
            size = f"{plural(len(duet.blocks), 'block')}, {samples} samples, about {expected}"
            logger.info(f"ab {duet.a.run_id} and {duet.b.run_id}: {size}")
            planned: Iterable[tuple[str, list[int]]] = duet.turns()
            if duet.a.options.looks > 1:
                planned = _until_decided(store, duet, planned)
            made = contextlib.closing(_made(store, duet, planned))
            with resumable(resume_command(duet.a, root or "")), made as turns:
                measure_turns(store, {"A": duet.a, "B": duet.b}, turns, beside)
            if duet.a.options.looks > 1:
                duet = _measured_blocks(store, duet)
    from perfdag.runs.duet import compare_so_far

    return store, compare_so_far(store, duet, everything=everything)


def _until_decided(
    store: Store, duet: Duet, turns: Iterable[tuple[str, list[int]]]
) -> Iterator[tuple[str, list[int]]]:
    """Yield the turns of a duet until it is decided after one of LOOKS. Raises StoreError."""
    from perfdag.runs.duet import compare_so_far
    from perfdag.stats.paired import LOOKS

    for number, turn in enumerate(turns, -1):  # the warm-up comes first
        yield turn
        blocks, rest = divmod(number, TURNS)
        if rest or blocks not in LOOKS:
            continue
        if compare_so_far(store, with_first_blocks(duet, blocks)).decided:
            return
        for plan in (duet.a, duet.b):  # an interrupted run goes on with all blocks
            put_plan(store, plan)


def _measured_blocks(store: Store, duet: Duet) -> Duet:
    """Keep the blocks of a duet that were measured, and store its plans without the others.

    Raises RunError where there is none, and StoreError.
    """
    stored_of_a = stored_samples(store, duet.a.run_id)
    stored_of_b = stored_samples(store, duet.b.run_id)
    for count in range(len(duet.blocks), 0, -1):
        measured = with_first_blocks(duet, count)
        if measured.a.keys() <= stored_of_a and measured.b.keys() <= stored_of_b:
            break
    else:
        raise RunError("--for: not one block was measured in that time; give more")
    for plan in (measured.a, measured.b):
        plan.budget = None
        forget_reasons(store, plan.run_id)
        put_plan(store, plan)
    return measured


def _made(
    store: Store, duet: Duet, turns: Iterable[tuple[str, list[int]]]
) -> Generator[tuple[str, list[int]], None, None]:
    """Yield the turns of a duet, and make a variant of the machine before the first of its turns.

    A turn whose samples are stored needs none. The machine is left as variant A, whatever ends the
    turns. Raises RunError, StoreError.
    """
    plans = {"A": duet.a, "B": duet.b}
    stored = {name: stored_samples(store, plan.run_id) for name, plan in plans.items()}
    last = ""
    try:
        for name, positions in turns:
            plan = plans[name]
            is_left = any(plan.key(position) not in stored[name] for position in positions)
            if is_left and name != last:
                _make(plan)
                last = name
            yield name, positions
    finally:
        if last == "B":
            _make(duet.a)


def _make(plan: Plan) -> None:
    """Run the command that makes a variant, if it has one. Raises RunError where it fails."""
    if not plan.options.do:
        return
    try:
        LocalHost().run(["sh", "-c", plan.options.do], timeout=MOST_SECONDS).check(plan.options.do)
    except Failed as error:
        raise RunError(f"--{(plan.variant or '').lower()}-do: {error}") from None


@contextlib.contextmanager
def only_process(plan: Plan) -> Iterator[None]:
    """Let no other process of this machine measure or remove a run. Raises RunError.

    The lock is an address that Linux frees with the process. Other systems have none and lock
    nothing.
    """
    with socket.socket(socket.AF_UNIX) as holder:
        if not _bound(holder, f"\0perfdag-{plan.run_id}"):
            raise RunError(
                f"another process of this machine measures run {plan.run_id}; "
                "wait for it, or end it with Ctrl-C"
            )
        yield


MEASURING = f"\0perfdag-measures-{os.getuid()}"
"""The address that a run of this user holds while it measures.

Each that measures holds one more, with its process and its command, which the kernel lists.
"""
wait = partial(time.sleep, 1.0)
"""Waits between two looks whether the other run has ended."""


@contextlib.contextmanager
def alone_on_machine(force: bool = False) -> Iterator[Callable[[], str]]:
    """Wait until no other run of this user measures here. Yield what tells who measures beside it.

    With `force`, or below a command that the other run measures, this one goes on beside it. Linux
    frees an address with its process. A pod is alone in its network, and takes none; so does no
    process with PERFDAG_LOCK=none.
    """
    if os.environ.get("PERFDAG_LOCK") == "none" or "KUBERNETES_SERVICE_HOST" in os.environ:
        yield lambda: ""
        return
    name = _address()
    with socket.socket(socket.AF_UNIX) as holder, socket.socket(socket.AF_UNIX) as named:
        waiting = False
        while not _bound(holder, MEASURING) and not force:
            measuring = _measuring()
            if any(os.getpid() in descendants(pid) for pid in measuring):
                break  # the run above this one measures it, and is not disturbed
            if not waiting:
                runs = ", ".join(measuring.values()) or "another run"
                logger.info(f"waits for {runs}, which measures on this machine; --force does not")
            waiting = True
            wait()
        else:
            _bound(named, name)
        beside = partial(_beside, os.getpid())
        if text := beside():
            logger.warning(f"{text} measures here too, and each disturbs the other")
        yield beside


def _bound(holder: socket.socket, address: str) -> bool:
    """Return whether an address is ours now, or this system has no such addresses."""
    try:
        holder.bind(address)
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True


def _address() -> str:
    """Return the address that names this process and its command."""
    arguments = (read_text(Path("/proc/self/cmdline")) or "").split("\0")[1:]
    command = re.sub(r"[\s,]+", " ", " ".join(arguments)).strip().encode()[-60:]
    return f"{MEASURING} {os.getpid()} {command.decode(errors='ignore')}"


def _measuring() -> dict[int, str]:
    """Return the commands that measure here, by process."""
    listed = read_text(Path("/proc/net/unix")) or ""
    runs = re.findall(rf"@{re.escape(MEASURING[1:])} (\d+) (.*)", listed)
    return {int(pid): f"{command} (pid {pid})" for pid, command in runs}


def _beside(pid: int) -> str:
    """Return the runs that measure beside this process, as noise of a sample."""
    return ", ".join(f"other-run {name}" for at, name in _measuring().items() if at != pid)


class Suite(model.Suite):
    """A suite of benchmarks, with the keys of a suite file as arguments."""

    @classmethod
    def read(cls, file: str | Path) -> "Suite":
        """Return the suite of a file. Raises BadDocument."""
        return cls.model_validate(load_suite(file).document.data)

    def plan(self, only: Sequence[str] = ()) -> Plan:
        """Return the points and the order of their samples. Raises BadDocument.

        `only` are patterns of points, as in `perfdag run --only`.
        """
        return make_plan(load_model(self), only=only)

    def run(
        self, store: str | Path | None = None, *, only: Sequence[str] = (), charts: bool = True
    ) -> "Run":
        """Measure the suite on this machine, as `perfdag run` does, and return its result.

        `store` is a folder or an address (default: the store of the suite, else
        ./perfdag-results). Progress goes to the logger `perfdag`. Raises BadDocument for a wrong
        suite, StoreError, and RunError if the run ends before its last sample. Ctrl-C raises
        KeyboardInterrupt, whose text is the command that goes on.
        """
        root = self.store if store is None else str(store)
        return run_plan(with_revisions(self.plan(only), load_model(self)), root, charts=charts)

    def submit(self, namespace: str = "perfdag", *, only: Sequence[str] = ()) -> str:
        """Start a run of the suite on the cluster of the current context; return the run id.

        `namespace` has an installation of perfdag, whose store gets the results. Raises
        BadDocument for a wrong suite, RunError where there is no such installation, and KubeError,
        which is a PerfdagError too.
        """
        from perfdag.runs.cluster import submit_suite

        run_id, _ = submit_suite(load_model(self), namespace, only=only)
        return run_id

    def save(self, file: str | Path) -> None:
        """Write the suite as a file that `perfdag run` and `perfdag submit` read.

        Raises BadDocument if the suite has an error, and OSError.
        """
        self.plan()
        Path(file).write_text(model_text(self), encoding="utf-8")
