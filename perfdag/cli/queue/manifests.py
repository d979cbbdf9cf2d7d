"""`perfdag queue manifests`: the Kubernetes objects of a set of queues."""

import argparse

from perfdag.cli.options import log, print_json
from perfdag.cli.queue.program_options import add_program

EXAMPLES = """\
  perfdag queue manifests --queue 'sleep=sleep 2' | kubectl apply -f -
  perfdag queue manifests examples/queues.yaml
"""


def add(programs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the program."""
    parser = add_program(
        programs, "manifests", "print the Kubernetes objects of a set of queues", EXAMPLES
    )
    parser.add_argument("file", nargs="?", help="YAML with the queues")
    parser.add_argument(
        "--queue",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="one more queue; repeat the option to add more",
    )
    parser.add_argument("--namespace", help="namespace of all objects")
    parser.add_argument("--image", help="image of frontend, clients and backends")
    parser.add_argument(
        "--monitor", metavar="NAMESPACE", help="add a ServiceMonitor for the Prometheus there"
    )
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of the file")
    parser.set_defaults(program_run=run)


def run(args: argparse.Namespace) -> int:
    """Print the objects as YAML, or the schema as JSON."""
    from perfdag.app.queue import manifests

    if args.schema:
        print_json(manifests.schema())
        return 0
    yaml = manifests.render(args.file, args.queue, args.namespace, args.image, args.monitor, log)
    print(yaml, end="")
    return 0
