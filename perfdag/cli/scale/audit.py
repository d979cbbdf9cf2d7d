"""`perfdag scale audit`: KubeVirt's audit figures of a past window."""

import argparse
from pathlib import Path

from perfdag.cli.options import log, print_now
from perfdag.cli.scale.command_options import add_command


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "audit",
        "audit a past time window",
        "Write the figures of KubeVirt's perfscale-audit for any past window, from Prometheus.",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="configuration of perfscale-audit, JSON"
    )
    parser.add_argument("--prometheus", metavar="URL", help="Prometheus of KubeVirt")
    parser.add_argument("--prometheus-token-file", metavar="FILE", help="file with a bearer token")
    parser.add_argument("--prometheus-ca-file", metavar="FILE", help="file with the CA certificate")
    parser.add_argument("--from", dest="start", metavar="TIME", help="as 2026-11-23T08:00:00Z")
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
    """Audit the window. Return 3 for a threshold that is exceeded or has no data."""
    from perfdag.app.scale import audit
    from perfdag.app.scale.perfscale import AuditConfig, read_audit
    from perfdag.exit_codes import EXIT_GATE, EXIT_OK
    from perfdag.kube.prometheus import Prometheus

    config, notes = read_audit(args.config) if args.config else (AuditConfig(), [])
    url = args.prometheus or config.url
    if not url or not (args.start or args.config):
        raise ValueError("give --prometheus and --from, or a --config of perfscale-audit")
    for note in notes:
        log(f"not kept: {note}")
    start, end = audit.window(config)
    end = audit.unix_time(args.end) if args.end else end
    start = audit.unix_time(args.start) if args.start else start
    prometheus = Prometheus(url, args.prometheus_token_file, args.prometheus_ca_file, config.token)
    gates = audit.thresholds(config)
    path, verdicts = audit.audit(prometheus, start, end, args.output_dir, gates)
    for verdict in verdicts:
        print_now(str(verdict))
    print_now(f"wrote {path}")
    return EXIT_OK if all(verdict.passed for verdict in verdicts) else EXIT_GATE
