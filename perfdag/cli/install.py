"""`perfdag install`: templates and rights on a cluster."""

import argparse
import os
import sys
from typing import Any

EPILOG = """examples:
  perfdag install --namespace bench --store s3://bench/results --create-namespace
  perfdag install --namespace bench --store claim://results --images 'registry.example/bench/perfdag-{name}:1.0'
  perfdag install --namespace bench --store s3://bench/results --namespaced --dry-run
"""
STORE_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_ENDPOINT_URL")


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    from perfdag.cli.render import add_installation

    parser = sub.add_parser(
        "install",
        help="put the templates and rights on a cluster",
        description="Apply the WorkflowTemplate, service accounts and Roles to the cluster of the current context (KUBECONFIG). Safe to run again:\n"
        "give all options that are to hold, for one that is left out goes back to its default (images, pull secrets, lock, --allow ...).",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_installation(parser)
    parser.add_argument("--create-namespace", action="store_true", help="make the namespace where it is not there")
    parser.add_argument("--keep-secret", action="store_true", help="do not make the store's Secret from this shell's AWS_* variables")
    parser.add_argument("--dry-run", action="store_true", help="let the API server check everything, change nothing")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Install; 2 for bad input, 4 where the cluster is out of reach or refuses."""
    from perfdag import kube
    from perfdag.cli import EXIT_INPUT, claims
    from perfdag.cli.render import base, installation

    if not args.store.startswith(("s3://", "claim://")):
        print(
            "perfdag install: --store s3://bucket/prefix or claim://NAME is needed: pods share no folder with this machine", file=sys.stderr
        )
        return EXIT_INPUT
    try:
        objects = base(installation(args))
    except ValueError as error:
        print(f"perfdag install: {error}", file=sys.stderr)
        return EXIT_INPUT
    if args.create_namespace:
        objects.insert(0, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": args.namespace}})
    secret = store_secret(args)
    if secret:
        objects.append(secret)
    kube.run(lambda client: _apply(client, objects, args.dry_run))
    for each in objects:
        print(f"{'checked' if args.dry_run else 'applied'}  {each['kind']} {each['metadata']['name']}")
    found = kube.run(lambda client: claims.findings(client, args.namespace, args.store, args.parallel_batches))
    for finding in found:
        print(f"perfdag install: {finding.what}: {finding.do}", file=sys.stderr)
    print(f"next: perfdag submit suites/quick.yaml --namespace {args.namespace} --watch")
    return 0


def store_secret(args: argparse.Namespace) -> dict[str, Any] | None:
    """The Secret with the S3 keys of this shell; None where there are none, or it is somebody else's."""
    keys = {name: os.environ[name] for name in STORE_KEYS if os.environ.get(name)}
    if not args.store.startswith("s3://") or args.keep_secret or "AWS_SECRET_ACCESS_KEY" not in keys:
        return None
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": args.store_secret, "namespace": args.namespace},
        "type": "Opaque",
        "stringData": keys,
    }


async def _apply(client: Any, objects: list[dict[str, Any]], dry_run: bool) -> None:
    for each in objects:
        if dry_run:
            resource = await client.resource(each["apiVersion"], each["kind"])
            path = resource.path(each["metadata"].get("namespace"), each["metadata"]["name"])
            params = {"fieldManager": "perfdag", "force": "true", "dryRun": "All"}
            await client.request("PATCH", path, json=each, params=params, content_type="application/apply-patch+yaml")
        else:
            await client.apply(each)
