"""`perfdag run`: a suite on this machine."""

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdag.hosts.local import LocalHost
    from perfdag.plan.plan import Plan
    from perfdag.shape import Shape
    from perfdag.store.base import Store

EPILOG = """examples:
  perfdag run suites/quick.yaml
  perfdag run suites/quick.yaml --dry-run
  perfdag run suites/quick.yaml --only 'iperf*' --set iperf.duration=2s --set repetitions=5
  perfdag run suites/quick.yaml --store s3://bench/results
  perfdag run --resume last
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "run",
        help="run a suite on this machine",
        description="Measure every point of a suite on this machine, store each sample as it ends, then collect, chart and report.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "suite", nargs="?", metavar="SUITE", help="suite file; not needed with --resume"
    )
    add_suite_options(parser)
    parser.add_argument(
        "--store",
        metavar="ROOT",
        help="folder or s3://bucket/prefix (default: the suite's, else ./perfdag-results)",
    )
    parser.add_argument(
        "--resume",
        metavar="RUN",
        help="continue this run of --store (`last`: its newest), by default of ./perfdag-results: measure only what is not stored yet",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    parser.add_argument("--json", action="store_true", help="the result as JSON on stdout")
    parser.add_argument("--no-report", action="store_true", help="collect only; no charts")
    parser.set_defaults(run=run)


def add_suite_options(parser: argparse.ArgumentParser) -> None:
    """Options that choose and change what of a suite is used."""
    parser.add_argument(
        "--set",
        metavar="ENTRY.PARAM=V",
        action="append",
        default=[],
        dest="settings",
        help="set a parameter, a shape key, or a key of an entry or of the suite",
    )
    parser.add_argument(
        "--only",
        metavar="GLOB",
        action="append",
        default=[],
        help="only points whose entry, `entry/label` or id matches; again: or this",
    )


def run(args: argparse.Namespace) -> int:
    """Run or resume; returns the exit code."""
    from perfdag.exit_codes import EXIT_INPUT, EXIT_INTERRUPTED, EXIT_REACH
    from perfdag.results import missing_reason
    from perfdag.signals import end_once
    from perfdag.store.base import StoreError
    from perfdag.store.open import open_store

    if args.suite is None and args.resume is None:
        print("perfdag run: name a suite file, or --resume RUN", file=sys.stderr)
        return EXIT_INPUT
    if why := beside_resume(args):
        print(f"perfdag run: {why}", file=sys.stderr)
        return EXIT_INPUT
    plan, root = _plan(args)
    if args.resume is not None and (why := _not_by_run(plan, root or "")):
        print(f"perfdag run: {why}", file=sys.stderr)
        return EXIT_INPUT
    if args.dry_run:
        from perfdag.cli.plan import show

        show(plan, as_json=args.json)
        return 0
    store = open_store(root)
    if args.resume is None:
        store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
    else:
        missing_reason.forget_all(store, plan.run_id)
        restore(store, plan)
    end_once()
    again = f"perfdag run --resume {plan.run_id}" + (f" --store {root}" if root else "")
    print(
        f"run {plan.run_id}: {len(plan.points)} points, {len(plan.order)} samples, store {store.root}",
        file=sys.stderr,
    )
    try:
        _measure(plan, store)
    except KeyboardInterrupt:
        print(f"interrupted; what was measured is stored. Continue: {again}", file=sys.stderr)
        return EXIT_INTERRUPTED
    except StoreError as error:
        print(f"perfdag: {error}\nwhat was measured is kept. Continue: {again}", file=sys.stderr)
        return EXIT_REACH
    from perfdag.app.finish import finish

    return finish(store, plan, report=not args.no_report, as_json=args.json)


def beside_resume(args: argparse.Namespace) -> str | None:
    """What cannot stand beside --resume, for the plan of the run is fixed; None where all is well."""
    given = {"SUITE": args.suite, "--set": args.settings, "--only": args.only}
    wrong = [name for name, value in given.items() if value]
    if args.resume is None or not wrong:
        return None
    return (
        f"--resume measures what is left of a run as it was planned; leave out {', '.join(wrong)}"
    )


def _not_by_run(plan: "Plan", root: str) -> str | None:
    """Why a stored run cannot be continued by `run`, and what continues it; None where it can."""
    from perfdag.results.runs import resume_command

    if plan.trigger == "ab":
        why = f"{plan.run_id} is one variant of `perfdag ab`, and both are measured in turn"
    elif plan.where:
        why = f"{plan.run_id} was measured on a cluster, and samples of this machine are not its"
    else:
        return None
    return f"{why}; continue it: {resume_command(plan, root)}"


def _plan(args: argparse.Namespace) -> "tuple[Plan, str | None]":
    """The plan of a new or resumed run, and the store's root. Raises BadDocument, StoreError."""
    from perfdag.plan.plan import make_plan
    from perfdag.results.runs import load_plan
    from perfdag.store.open import open_store
    from perfdag.suite import load

    if args.resume is not None:
        return load_plan(open_store(args.store), args.resume), args.store
    loaded = load.load(args.suite, args.settings)
    plan = make_plan(loaded, only=args.only)
    return plan, args.store or loaded.suite.store


def _measure(plan: "Plan", store: "Store") -> None:
    from perfdag.app.progress import Progress
    from perfdag.results import missing_reason
    from perfdag.steps.measure import MeasuringLoop, Site

    with Progress(plan) as progress:
        lead = MeasuringLoop(
            plan,
            Rescuing(store, plan.run_id),
            Site(hosts_for=local_hosts, refuses=needs_cluster),
            progress,
        )
        deadline = time.monotonic() + plan.budget if plan.budget else None
        if not lead.measure(range(len(plan.order)), deadline=deadline):
            missing_reason.write(
                lead.store, plan.run_id, missing_reason.budget_spent(plan.budget or 0)
            )


def local_hosts(shape: "Shape") -> "Sequence[LocalHost]":
    """This machine as often as the shape asks for hosts, over loopback."""
    from perfdag.hosts.local import LocalHost

    address = "::1" if shape.network.family == "ipv6" else "127.0.0.1"
    return [LocalHost(address) for _ in range(shape.hosts.count)]


def needs_cluster(shape: "Shape") -> str | None:
    """What of a shape this machine alone cannot give, as the reason of a skipped sample; None where it can."""
    network, hosts = shape.network, shape.hosts
    asked = {
        "network.host: false (a pod network)": network.host is False,
        "network.name (Multus)": network.name is not None,
        "network.mtu": network.mtu is not None,
        # what one machine sends to itself passes none of its interfaces, whichever address it is sent to
        "network.interface": network.interface not in (None, "lo") and hosts.count > 1,
        "hosts.placement: spread": hosts.placement == "spread" and hosts.count > 1,
        "hosts.exclusive": hosts.exclusive,
        "resources": bool(shape.resources or shape.hugepages),
        "a volume": shape.volume is not None,
        "node_selector or zones": bool(shape.node_selector or shape.zones),
        # rdma is what a pod must be allowed; on a machine of one's own the benchmark says itself what is lacking
        "privileges": bool(set(shape.privileges) - {"rdma", "block"}),
        "scheduler: volcano": shape.scheduler != "default",
        "runtime_class": shape.runtime_class is not None,
    }
    wanted = [name for name, needed in asked.items() if needed]
    return f"{', '.join(wanted)}: needs a cluster (perfdag submit)" if wanted else None


def _unsaved(run_id: str) -> Path:
    """Where samples are kept that a store did not take. Raises OSError where no temporary folder can be written."""
    return Path(tempfile.gettempdir()) / "perfdag-unsaved" / run_id


class Rescuing:
    """A store that, when it cannot be written, leaves the sample in the temporary folder, where --resume finds it."""

    def __init__(self, store: "Store", run_id: str) -> None:
        self._store, self._run_id = store, run_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, key: str, data: bytes) -> None:
        from perfdag.store.base import StoreError

        try:
            self._store.put(key, data)
        except StoreError:
            if key.startswith(
                f"runs/{self._run_id}/parts/"
            ):  # a note of why others were not measured is no sample
                self._keep(key.rpartition("/")[2], data)
            raise

    def _keep(self, name: str, data: bytes) -> None:
        try:
            folder = _unsaved(self._run_id)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        except OSError as error:
            print(
                f"the last sample could not be kept in a temporary folder either: {error}",
                file=sys.stderr,
            )


def restore(store: "Store", plan: "Plan") -> None:
    """Store samples that an earlier attempt could not, and remove those that are damaged."""
    from perfdag.results.samples import delete_damaged_samples

    with contextlib.suppress(OSError):  # where nothing can be written nothing was kept
        folder = _unsaved(plan.run_id)
        for file in sorted(folder.glob("*.json")):
            store.put(f"runs/{plan.run_id}/parts/{file.name}", file.read_bytes())
            file.unlink()
        folder.rmdir()
    if damaged := delete_damaged_samples(store, plan.run_id):
        print(
            f"{len(damaged)} stored samples cannot be read and are measured again: {', '.join(damaged[:5])}",
            file=sys.stderr,
        )
