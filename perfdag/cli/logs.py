"""`perfdag logs`: what the pods of a run said."""

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfdag.kube.client import Kube

EPILOG = """examples:
  perfdag logs last --namespace bench
  perfdag logs last --namespace bench --batch 3 --tail 20
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    from perfdag.cli.status import add_run

    parser = sub.add_parser(
        "logs",
        help="what the pods of a run said",
        description="The logs of a run's pods, each line with its pod. Pods are kept for a while after they end; what was measured is in the store.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run(parser)
    parser.add_argument("--batch", type=int, help="only the pods of this batch")
    parser.add_argument("--tail", type=int, help="only the last lines of each pod")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the logs; 2 where there is no such run."""
    from perfdag.app.cluster.view import NoRun
    from perfdag.exit_codes import EXIT_INPUT
    from perfdag.kube import client as kube

    try:
        kube.run(lambda client: _print(client, args))
    except NoRun as error:
        print(f"perfdag logs: {error}", file=sys.stderr)
        return EXIT_INPUT
    return 0


async def _print(client: "Kube", args: argparse.Namespace) -> None:
    from perfdag.app.cluster.view import argos, find, view
    from perfdag.kube.client import KubeError

    workflow = await find(client, args.name, args.namespace)
    seen = await view(client, workflow["metadata"]["name"], args.namespace)
    for pod in sorted(
        seen.pods,
        key=lambda each: (each.batch if each.batch is not None else -1, each.rank or 0, each.name),
    ):
        if args.batch is not None and pod.batch != args.batch:
            continue
        label = (
            pod.name
            if pod.batch is None
            else f"batch {pod.batch} rank {pod.rank} attempt {pod.attempt}"
        )
        if pod.trouble:
            print(f"{label}: {pod.trouble}")
        try:
            async for line in client.logs(
                pod.name, args.namespace, container="main", tail=args.tail
            ):
                if not argos(line):
                    print(f"{label}: {line}")
        except KubeError as error:
            print(f"{label}: no log: {error}", file=sys.stderr)
