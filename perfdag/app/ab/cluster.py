"""`perfdag ab --submit`: both variants on the same nodes of a cluster, and the end of such a run in its last step."""

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfdag.plan.plan import Plan
    from perfdag.store.base import Store


def submit(args: argparse.Namespace) -> int:
    """Store both plans and create the Workflow; with --watch follow it. Exit 2 for bad input, 4 where nothing is installed.

    Raises BadDocument, StoreError, KubeError.
    """
    from perfdag.app.cluster import template
    from perfdag.app.cluster.watch import follow_run
    from perfdag.cli.ab import prepared
    from perfdag.cli.options import log
    from perfdag.exit_codes import EXIT_INPUT
    from perfdag.plan.ab import on_cluster
    from perfdag.steps.runner.limits import check_size
    from perfdag.store.open import open_store

    place = template.installed_template(args.namespace)
    args.store = args.store or place.parameters.get("store")
    if not str(args.store).startswith("s3://"):
        print(
            f"perfdag ab: --submit needs an s3:// store that is reached from here, not {args.store}: both plans are in it",
            file=sys.stderr,
        )
        return EXIT_INPUT
    made = prepared(args)
    if isinstance(made, str):
        print(f"perfdag ab: {made}", file=sys.stderr)
        return EXIT_INPUT
    duet, _ = made
    if args.resume is None:
        duet = on_cluster(duet)
        check_size(duet.a)
        store = open_store(args.store)
        for plan in (duet.a, duet.b):
            store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
    elif not duet.a.options.get("cluster"):
        print(
            f"perfdag ab: {args.resume} was measured on one machine; resume it there, without --submit",
            file=sys.stderr,
        )
        return EXIT_INPUT
    elif args.within is not None:  # the last step on the cluster holds B against what the plan says
        open_store(args.store).put(f"runs/{duet.a.run_id}/plan.json", duet.a.dump())
    told = {"run": duet.a.run_id, "store": args.store}
    name = place.start(duet.a.suite, told, int(duet.a.options.get("priority", 0)))
    print(
        f"ab {duet.a.run_id} and {duet.b.run_id}, workflow {name} in namespace {args.namespace}",
        flush=True,
    )
    if args.watch:
        return asyncio.run(follow_run(name, args.namespace, print, log))
    print(
        f"follow it: perfdag status {name} --namespace {args.namespace}\nthen:      perfdag ab --resume {duet.a.run_id} --store {args.store}"
    )
    return 0


def finish(store: "Store", plan: "Plan") -> int:
    """The last step of such a run: both variants collected and reported, the outcome printed and stored; exit 0, 1 or 3."""
    from perfdag.app.finish import write_report
    from perfdag.cli.ab import conclude
    from perfdag.cli.options import log
    from perfdag.results.collect import collect
    from perfdag.results.schema import load
    from perfdag.steps.runner.duet import recalled

    duet = recalled(store, plan)
    for each in (duet.a, duet.b):
        collect(store, each)
        table = load(store, suites=[each.suite], runs=[each.run_id])
        write_report(store, each, table, log)
    return conclude(store, duet)
