"""`perfdag plan` and `run`, and suites in Python: what is measured, and its run on this machine.

`perfdag.Suite` is the class of this module.
"""

import argparse
import contextlib
import errno
import logging
import re
import shlex
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from perfdag.commands.options import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_REACH,
    JSON,
    ONLY,
    SET,
    CommandError,
    check_resume,
    end_once,
    log_to_stderr,
    option,
    print_json,
    verb,
)
from perfdag.identity import canonical
from perfdag.plan.plan import Plan, make_plan, place_hosts
from perfdag.results.runs import (
    ANY,
    put_plan,
    put_rechecks,
    resume_command,
    with_learned_times,
)
from perfdag.results.samples import (
    budget_spent,
    delete_damaged_samples,
    forget_reasons,
    stored_samples,
    write_reason,
)
from perfdag.shape import Shape
from perfdag.steps.loop import LocalPool, MeasuringLoop, needs_cluster
from perfdag.store.base import Store, StoreError
from perfdag.store.s3 import open_store
from perfdag.suite import model
from perfdag.suite.document import BadDocument
from perfdag.suite.load import command_suite, load_model, load_suite, model_text
from perfdag.terminal import Progress, text_table
from perfdag.units import plural, short_seconds

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from perfdag.analysis.gate_result import GateResult
    from perfdag.commands.results import RunResult


@verb(
    "plan",
    "Check a suite and show its points, shapes, batches, hosts and expected time. "
    "A bad suite is refused with all its errors.",
    """
    examples:
      perfdag plan suites/quick.yaml
      perfdag plan suites/quick.yaml --json
      perfdag plan suites/quick.yaml --only 'fio*'
      perfdag plan --schema
    """,
    option("suite", nargs="?", metavar="SUITE", help="suite file"),
    SET,
    ONLY,
    JSON,
    option(
        "--schema",
        action="store_true",
        help="print the JSON schema of suite files, for editors",
    ),
)
def show_plan(args: argparse.Namespace) -> int:
    """Print the plan or the schema."""
    if args.schema:
        options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS
        print(orjson.dumps(model.json_schema(), option=options).decode())
        return EXIT_OK
    if args.suite is None:
        raise CommandError("name a suite file, or --schema")
    from perfdag.steps.pods.plan import kinds_of

    loaded = load_suite(args.suite, args.settings)
    plan = make_plan(loaded, only=args.only)
    with contextlib.suppress(StoreError):
        store = open_store(loaded.suite.store, patience=1.0)
        plan = with_learned_times(store, plan, ANY)
    print(plan.dump().decode() if args.json else plan_text(plan))
    try:
        kinds_of(plan)
    except BadDocument as error:  # `submit` and `render` would refuse it
        for each in error.problems:
            logger.info(f"note: a cluster does not take it: {each.text}")
    return EXIT_OK


MAX_POINTS = 40
"""Points that the table shows; JSON has all of them."""


def plan_text(plan: Plan) -> str:
    """Return the first points of a plan as a table, then its size, shapes, pairs and time."""
    headings = ("point", "entry", "shape", "repetitions", "a sample", "what varies")
    rows = [
        (
            point.id,
            point.entry,
            str(point.shape),
            f"{point.repetitions}" + (f" to {point.until.max_repetitions}" if point.until else ""),
            short_seconds(point.seconds),
            point.label,
        )
        for point in plan.points[:MAX_POINTS]
    ]
    lines = [text_table(headings, rows, right=(2, 3, 4))]
    if (more := len(plan.points) - MAX_POINTS) > 0:
        lines.append(f"... and {more:,} more (--json shows all)")
    hosts = max((shape.hosts.count for shape in plan.shapes), default=1)
    merged = f" ({plural(plan.merged, 'equal one')} merged)" if plan.merged else ""
    lines.append(
        f"\n{plural(len(plan.points), 'point')}{merged}, {plural(len(plan.order), 'sample')}, "
        f"{plural(len(plan.shapes), 'shape')}, {plural(len(plan.batches), 'batch')} on a cluster, "
        f"at most {plural(hosts, 'host')} at once"
    )
    shapes = enumerate(zip(plan.shapes, place_hosts(plan).shapes, strict=True))
    lines += [f"shape {number}: {_shape(*both)}" for number, both in shapes]
    seconds = short_seconds(plan.seconds())
    lines.append(f"expected {seconds}; each round is shuffled, from seed {plan.seed}")
    return "\n".join(lines)


def _shape(shape: Shape, on_cluster: Shape) -> str:
    """Return a shape as text, with the default placement where the suite sets none."""
    data = shape.data()
    texts = (value if isinstance(value, str) else canonical(value) for value in data.values())
    text = ", ".join(f"{key} {text}" for key, text in zip(data, texts, strict=True)) or "plain"
    if shape == on_cluster:
        return text
    return f"{text}; placement on a cluster: {on_cluster.hosts.placement}"


@verb(
    "run",
    "Measure every point of a suite on this machine. Each sample is stored as it "
    "ends. Then collect the run, draw its charts and write its report. If the suite has "
    "`checks`, the run is checked as `perfdag check` does. The words after `--` are a command "
    "whose wall time is measured 10 times; it needs no suite, and `perfdag open last` draws "
    "its report. Two commands with `:::` between them are measured in turn and compared.",
    """
    examples:
      perfdag run suites/quick.yaml
      perfdag run suites/quick.yaml --dry-run
      perfdag run suites/quick.yaml --only 'iperf*' \\
          --set iperf.duration=2s --set repetitions=5
      perfdag run suites/quick.yaml --store s3://bench/results
      perfdag run --resume last
      perfdag run -- sleep 0.1
      perfdag run --set repetitions=50 -- sleep 0.1
      perfdag run -- sleep 0.1 ::: sleep 0.2
    """,
    option(
        "suite",
        nargs="?",
        metavar="SUITE",
        help="suite file; not needed with --resume or a command",
    ),
    SET,
    ONLY,
    option(
        "--store",
        metavar="ROOT",
        help="folder or s3://bucket/prefix (default: the suite's, else ./perfdag-results)",
    ),
    option(
        "--resume",
        metavar="RUN",
        help="continue this run of --store (`last`: the newest): measure only what is not "
        "stored yet",
    ),
    option("--dry-run", action="store_true", help="print the plan and stop"),
    JSON,
    option(
        "--no-recheck",
        action="store_true",
        help="do not measure points again that are beyond their level for the worse",
    ),
    option("--no-report", action="store_true", help="collect only; no charts"),
    usage="perfdag run [OPTION ...] [SUITE | -- COMMAND ... [::: COMMAND ...]]",
    takes_command=True,
)
def run(args: argparse.Namespace) -> int:
    """Run or resume a suite; return the exit code."""
    check_resume(args)
    if args.command and args.suite:
        raise CommandError("name a suite file or a command after `--`, not both")
    if args.suite and not Path(args.suite).exists() and shutil.which(args.suite):
        raise CommandError(
            f"{args.suite} is no suite file; to measure a command: perfdag run -- {args.suite}"
        )
    root: str | None = args.store
    if args.resume is not None:
        from perfdag.commands.results import read_run

        runs, plan = read_run(root, args.resume)
        _check_resumable(runs.store, plan, root or "")
    else:
        command: list[str] = args.command
        if command and (text := absent_program(command[0])):
            raise CommandError(text)
        if command:
            loaded = command_suite(command, args.settings)
        else:
            loaded = load_suite(args.suite, args.settings)
        plan = make_plan(loaded, only=args.only)
        if not command:
            refuse_absent_programs(loaded, plan)
        root = root or loaded.suite.store
    if args.dry_run:
        print(plan.dump().decode() if args.json else plan_text(plan))
        return EXIT_OK
    result = run_plan(
        plan,
        root,
        resumed=args.resume is not None,
        # The table says all of one command, and drawing takes longer than measuring it.
        charts=not (args.no_report or args.command),
        recheck=not args.no_recheck,
    )
    if args.json:
        print_json(result.data())
    else:
        print(result)
    return result.exit_code


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


def _check_resumable(store: Store, plan: Plan, root: str) -> None:
    """Raise CommandError if `perfdag run` cannot continue this run."""
    check_samples(store, plan)
    if plan.trigger == "ab":
        why = f"{plan.run_id} is one variant of `perfdag ab`, which measures both variants in turn"
    elif plan.where:
        why = f"{plan.run_id} was measured on a cluster; this machine cannot add samples to it"
    else:
        return
    raise CommandError(f"{why}; continue it: {resume_command(plan, root)}")


def check_samples(store: Store, plan: Plan) -> None:
    """Raise CommandError if a run cannot be resumed because only its rows are left.

    Raises StoreError.
    """
    from perfdag.results.collect import kept_rows

    stored = stored_samples(store, plan.run_id)
    if not stored and kept_rows(store, plan, stored) is not None:
        raise CommandError(
            f"run {plan.run_id} was collected and its samples are stored no more: "
            "its rows stay as they are, and it cannot be resumed"
        )


def run_plan(
    plan: Plan,
    root: str | None,
    *,
    resumed: bool = False,
    charts: bool = True,
    recheck: bool = True,
) -> "RunResult":
    """Measure what store `root` does not have yet, then collect, judge and report the run.

    With `recheck`, points that are suspicious against their history are measured again.
    Raises CommandError if the run ends before its last sample.
    """
    store, stored = open_store(root), ""
    with only_process(plan):
        if resumed:
            prepare_resume(store, plan.run_id)
            planned = {plan.key(at) for at in range(len(plan.order))}
            stored = f" ({len(planned & stored_samples(store, plan.run_id))} stored)"
        else:
            plan = with_learned_times(store, plan, None)
            put_plan(store, plan)
        samples = f"{plural(len(plan.points), 'point')}, {plural(len(plan.order), 'sample')}"
        logger.info(f"run {plan.run_id}: {samples}{stored}, store {store.root}")
        command = resume_command(plan, root or "")
        with resumable(command):
            measure_turns(store, {"": plan}, [("", range(len(plan.order)))])
        from perfdag.commands.results import finish_run

        again = partial(measure_again, store, plan, command) if recheck else None
        return finish_run(store, plan, charts=charts, publishes=True, recheck=again)


def measure_again(store: Store, plan: Plan, command: str, gate: "GateResult") -> None:
    """Measure the suspicious points of a run twice more, as two runs. `command` resumes the run.

    Raises StoreError, and CommandError if it is interrupted.
    """
    from perfdag.results.collect import collect

    logger.info(f"suspicious, measured again: {', '.join(line.name for line in gate.suspects)}")
    points = {line.info.point for line in gate.suspects}
    for again in put_rechecks(store, plan, points):
        with resumable(command):
            measure_turns(store, {"": again}, [("", range(len(again.order)))])
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


def prepare_resume(store: Store, run_id: str) -> None:
    """Forget why samples of the run are missing, and delete damaged ones. Raises StoreError."""
    forget_reasons(store, run_id)
    if damaged := delete_damaged_samples(store, run_id):
        some = ", ".join(damaged[:5])
        logger.info(f"unreadable, measured again: {plural(len(damaged), 'sample')} ({some})")


def measure_turns(
    store: Store, plans: Mapping[str, Plan], turns: Iterable[tuple[str, Sequence[int]]]
) -> None:
    """Measure the samples that are not stored yet, within the budget of the plans.

    A turn is the name of a plan and positions in its order.
    """
    budget = next(iter(plans.values())).budget
    deadline = time.monotonic() + budget if budget else None
    with Progress(*plans.values()).shown() as progress:
        pool = LocalPool()
        loops = {name: MeasuringLoop(plan, store, pool, progress) for name, plan in plans.items()}
        for name, positions in turns:
            progress.variant = name and f"{name} "
            if not loops[name].measure(positions, deadline=deadline):
                reason = budget_spent(budget or 0)
                for plan in plans.values():
                    write_reason(store, plan.run_id, reason)
                return


@contextlib.contextmanager
def only_process(plan: Plan) -> Iterator[None]:
    """Let no other process of this machine measure or remove a run. Raises CommandError.

    The lock is an address that Linux frees with the process. Other systems have none and lock
    nothing.
    """
    with socket.socket(socket.AF_UNIX) as holder:
        try:
            holder.bind(f"\0perfdag-{plan.run_id}")
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise CommandError(
                    f"another process of this machine measures run {plan.run_id}; "
                    "wait for it, or end it with Ctrl-C"
                ) from None
        yield


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
    ) -> "RunResult":
        """Measure the suite on this machine, as `perfdag run` does, and return its result.

        `store` is a folder or an address (default: the store of the suite, else
        ./perfdag-results). Progress goes to the logger `perfdag`, and to standard error unless that
        has a handler. Raises BadDocument, StoreError, and CommandError if the run ends
        before its last sample.
        """
        root = self.store if store is None else str(store)
        log_to_stderr()
        before = signal.getsignal(signal.SIGTERM)
        try:
            return run_plan(self.plan(only), root, charts=charts)
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)

    def save(self, file: str | Path) -> None:
        """Write the suite as a file that `perfdag run` and `perfdag submit` read.

        Raises BadDocument if the suite has an error, and OSError.
        """
        self.plan()
        Path(file).write_text(model_text(self), encoding="utf-8")
