"""`perfdag status`: where a run on a cluster stands."""

import argparse
import sys

EPILOG = """examples:
  perfdag status last --namespace bench
  perfdag status 20260101T020000Z-0a1b2c3d --namespace bench --watch
  perfdag status last --namespace bench --json
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "status",
        help="where a run on a cluster stands",
        description="Samples done, the batch under way, pods and what keeps them from running.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run(parser)
    parser.add_argument(
        "--watch", action="store_true", help="follow it to the end; ends with the run's exit code"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=run)


def add_run(parser: argparse.ArgumentParser) -> None:
    """Arguments that name a run on a cluster."""
    parser.add_argument("name", metavar="RUN", help="run id, name of its Workflow, or `last`")
    parser.add_argument(
        "--namespace",
        "-n",
        default="perfdag",
        help="namespace of the installation (default: perfdag)",
    )


def run(args: argparse.Namespace) -> int:
    """Print one line and the troubles; 2 where there is no such run."""
    import asyncio

    from perfdag import kube
    from perfdag.cli import EXIT_INPUT
    from perfdag.cli.cluster_run import NoRun, View, find, view
    from perfdag.cli.standing import Counter
    from perfdag.cli.submit import describe, follow

    async def look(client: kube.Kube) -> View:
        workflow = await find(client, args.name, args.namespace)
        return await view(client, workflow["metadata"]["name"], args.namespace)

    try:
        seen = kube.run(look)
    except NoRun as error:
        print(f"perfdag status: {error}", file=sys.stderr)
        return EXIT_INPUT
    if args.watch:
        return asyncio.run(follow(seen.name, args.namespace))
    counter = Counter(seen.parameter("store"))
    if args.json:
        import orjson

        standing = counter.count(seen.run_id, seen.batches)
        told = {
            "run_id": seen.run_id,
            "workflow": seen.name,
            "phase": seen.phase,
            "message": seen.message,
            "done": standing.done if standing else None,
            "samples": standing.total if standing else None,
            "current": standing.current if standing else None,
            "seconds_left": standing.left if standing else None,
            "exit_code": seen.exit_code(),
            "troubles": seen.troubles(),
            "pods": [
                {
                    "name": pod.name,
                    "batch": pod.batch,
                    "phase": pod.phase,
                    "node": pod.node,
                    "trouble": pod.trouble,
                }
                for pod in seen.pods
            ],
        }
        print(orjson.dumps(told, option=orjson.OPT_INDENT_2).decode())
        return 0
    print(f"run {seen.run_id or '(no plan yet)'}, workflow {seen.name}")
    print(describe(seen, counter, seen.seconds()))
    return 0
