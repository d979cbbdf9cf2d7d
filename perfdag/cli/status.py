"""`perfdag status`: show the progress of a run on a cluster."""

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
        help="show the progress of a run on a cluster",
        description="Show the progress, the batch under way, the pods and what keeps them from running.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run(parser)
    parser.add_argument(
        "--watch", action="store_true", help="follow the run to its end and return its exit code"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a run on a cluster."""
    parser.add_argument("name", metavar="RUN", help="run id, name of its Workflow, or `last`")
    parser.add_argument(
        "--namespace",
        "-n",
        default="perfdag",
        help="namespace of the installation (default: perfdag)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the progress; return 2 where there is no such run."""
    import asyncio

    from perfdag.app.cluster.view import NoRun, View, find, last_line, view
    from perfdag.cli.submit import describe, follow
    from perfdag.exit_codes import EXIT_INPUT
    from perfdag.kube import client as kube

    async def look(client: kube.Kube) -> tuple[View, str | None]:
        workflow = await find(client, args.name, args.namespace)
        view_now = await view(client, workflow["metadata"]["name"], args.namespace)
        return view_now, await last_line(client, view_now, args.namespace)

    try:
        seen, line = kube.run(look)
    except NoRun as error:
        print(f"perfdag status: {error}", file=sys.stderr)
        return EXIT_INPUT
    if args.watch:
        return asyncio.run(follow(seen.name, args.namespace))
    if args.json:
        import orjson

        done, total = seen.progress or (None, None)
        state = {
            "run_id": seen.run_id,
            "workflow": seen.name,
            "phase": seen.phase,
            "message": seen.message,
            "done": done,
            "samples": total,
            "current": line,
            "seconds_left": seen.seconds_left(),
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
        print(orjson.dumps(state, option=orjson.OPT_INDENT_2).decode())
        return 0
    print(f"run {seen.run_id or '(no plan yet)'}, workflow {seen.name}")
    print(describe(seen, seen.seconds(), line))
    return 0
