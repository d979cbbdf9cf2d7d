"""`perfdag install`: install the templates and rights on a cluster."""

import argparse

from perfdag.cli.cluster.installation_options import add_installation, installation_of
from perfdag.kube.patch import LEVELS
from perfdag.signals import EXIT_OK

EPILOG = """examples:
  perfdag install --namespace bench --store s3://bench/results \\
      --create-namespace
  perfdag install --namespace bench --store claim://results \\
      --images 'registry.example/{name}:1.0'
  perfdag install --namespace bench --store s3://bench/results \\
      --namespaced --dry-run
"""


def add_install(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "install",
        description="Apply the WorkflowTemplate, service accounts and Roles to the cluster of the "
        "current context (KUBECONFIG). It is safe to run again.\n\nName all options each time: an "
        "option that is left out returns to its default (images, pull secrets, lock, --allow ...), "
        "and the objects of its old value are deleted. Priority classes and a "
        "ClusterWorkflowTemplate stay, because other namespaces may use them.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_installation(parser)
    parser.add_argument(
        "--create-namespace", action="store_true", help="create the namespace if it does not exist"
    )
    parser.add_argument(
        "--pod-security",
        default=LEVELS[0],
        choices=LEVELS,
        metavar="LEVEL",
        help="Pod Security level that a created namespace enforces: restricted (default), baseline "
        "or privileged. Who may submit there may run any pod that it admits (docs/cluster.md)",
    )
    parser.add_argument(
        "--keep-secret",
        action="store_true",
        help="do not create the store's Secret from this shell's AWS_* variables",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="let the API server check the objects; change nothing",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Install perfdag."""
    from perfdag.app.cluster.installation import install

    install(
        installation_of(args),
        create_namespace=args.create_namespace,
        pod_security=args.pod_security,
        keep_secret=args.keep_secret,
        dry_run=args.dry_run,
    )
    print(f"next: perfdag submit suites/quick.yaml --namespace {args.namespace} --watch")
    return EXIT_OK
