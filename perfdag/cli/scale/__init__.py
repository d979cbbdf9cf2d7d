"""`perfdag scale`: workloads and VMIs at scale."""

import argparse

from perfdag.cli.scale import audit, nodes, pods, vmi, workloads

EPILOG = """examples:
  perfdag scale nodes --count 1000 --gpus 8
  perfdag scale vmi burst --count 100 -o out0
  perfdag scale gated --count 1000 -g 0 -o out3
  perfdag scale submit -t training -n 2000 -p 5 --delay 1 -o out1
  perfdag scale sample -t training -o out1
  perfdag scale plot --skip-errors -o out1
  perfdag scale submit -t distributed -n 1000 --num-workers 7 \\
      --pvc -p 1 --delay 5 -o out2
  perfdag scale plot --skip-errors --plot detailed -o out2
  perfdag scale audit --prometheus http://prometheus:9090 \\
      --from 2026-11-23T08:00:00Z -o out6
  perfdag scale delete --run r1121120501-a1b2c3
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb and its commands."""
    parser = sub.add_parser(
        "scale",
        description="Create objects on a schedule and measure every stage of their life.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="scale", metavar="COMMAND", required=True)
    for module in (workloads, nodes, vmi, pods, audit):
        module.add(commands)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run a command. Bad values and requests that the API server refuses are input errors."""
    from perfdag.app.errors import CommandError
    from perfdag.exit_codes import EXIT_INPUT, EXIT_REACH
    from perfdag.kube.client import KubeError

    try:
        code: int = args.command_run(args)
    except ValueError as error:
        raise CommandError(str(error)) from None
    except KubeError as error:
        refused = 400 <= error.status < 500 and error.status not in (401, 408, 429)
        raise CommandError(str(error), EXIT_INPUT if refused else EXIT_REACH) from None
    return code
