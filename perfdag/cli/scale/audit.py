"""`perfdag scale audit`: KubeVirt's audit figures of a past window."""

import argparse
from pathlib import Path

from perfdag.cli.options import print_now
from perfdag.cli.scale.command_options import add_command


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "audit",
        "audit a past time window",
        "Write the figures of KubeVirt's perfscale-audit for any past window, from Prometheus.",
    )
    parser.add_argument("--prometheus", metavar="URL", required=True, help="Prometheus of KubeVirt")
    parser.add_argument("--prometheus-token-file", metavar="FILE", help="file with a bearer token")
    parser.add_argument("--prometheus-ca-file", metavar="FILE", help="file with the CA certificate")
    parser.add_argument(
        "--from", dest="start", metavar="TIME", required=True, help="as 2026-11-23T08:00:00Z"
    )
    parser.add_argument("--to", dest="end", metavar="TIME", help="end of the window (default: now)")
    parser.add_argument(
        "-o",
        "--output-dir",
        type=Path,
        default=Path("logs"),
        metavar="DIR",
        help="folder of perf-audit-results.json (default: logs)",
    )
    parser.set_defaults(command_run=run)


def run(args: argparse.Namespace) -> int:
    """Audit the window."""
    import time

    from perfdag.app.scale import audit
    from perfdag.exit_codes import EXIT_OK
    from perfdag.kube.prometheus import Prometheus

    start = audit.unix_time(args.start)
    end = audit.unix_time(args.end) if args.end else time.time()
    prometheus = Prometheus(args.prometheus, args.prometheus_token_file, args.prometheus_ca_file)
    print_now(f"wrote {audit.audit(prometheus, start, end, args.output_dir)}")
    return EXIT_OK
