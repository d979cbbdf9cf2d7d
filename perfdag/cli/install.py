"""`perfdag install`: templates and rights on a cluster."""

import argparse
import base64
import os
import sys
from typing import TYPE_CHECKING

from perfdag.kube.objects import Object

if TYPE_CHECKING:
    from perfdag.app.cluster.prune import Found
    from perfdag.kube.client import Kube

EPILOG = """examples:
  perfdag install --namespace bench --store s3://bench/results --create-namespace
  perfdag install --namespace bench --store claim://results --images 'registry.example/bench/perfdag-{name}:1.0'
  perfdag install --namespace bench --store s3://bench/results --namespaced --dry-run
"""
STORE_KEYS = {
    "AWS_ACCESS_KEY_ID": ("AWS_ACCESS_KEY_ID",),
    "AWS_SECRET_ACCESS_KEY": ("AWS_SECRET_ACCESS_KEY",),
    "AWS_SESSION_TOKEN": ("AWS_SESSION_TOKEN",),
    "AWS_REGION": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "AWS_ENDPOINT_URL": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
}
"""Keys of the Secret, and what of this shell is in each: the first that is set, as `perfdag.store.base` takes them."""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    from perfdag.cli.render import add_installation

    parser = sub.add_parser(
        "install",
        help="put the templates and rights on a cluster",
        description="Apply the WorkflowTemplate, service accounts and Roles to the cluster of the current context (KUBECONFIG). Safe to run again:\n"
        "give all options that are to hold, for one that is left out goes back to its default (images, pull secrets, lock, --allow ...), and\n"
        "what it made before is deleted. Priority classes and a ClusterWorkflowTemplate, which other namespaces may use, stay.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_installation(parser)
    parser.add_argument(
        "--create-namespace", action="store_true", help="make the namespace where it is not there"
    )
    parser.add_argument(
        "--keep-secret",
        action="store_true",
        help="do not make the store's Secret from this shell's AWS_* variables",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="let the API server check everything, change nothing"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Install; 2 for bad input, 4 where the cluster is out of reach or refuses."""
    from perfdag.app.doctor import store_claim
    from perfdag.cli.render import base, installation
    from perfdag.exit_codes import EXIT_INPUT
    from perfdag.kube import client as kube

    if not args.store.startswith(("s3://", "claim://")):
        print(
            "perfdag install: --store s3://bucket/prefix or claim://NAME is needed: pods share no folder with this machine",
            file=sys.stderr,
        )
        return EXIT_INPUT
    try:
        objects = base(installation(args))
    except ValueError as error:
        print(f"perfdag install: {error}", file=sys.stderr)
        return EXIT_INPUT
    if args.create_namespace:
        objects.insert(
            0, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": args.namespace}}
        )
    secret = store_secret(args)
    left = kube.run(
        lambda client: _install(client, args, [*objects, *([secret] if secret else [])])
    )
    for note in secret_notes(args, secret):
        print(f"perfdag install: {note}", file=sys.stderr)
    if left.unknown:
        print(
            f"perfdag install: may not list {', '.join(left.unknown)}: what is left out of these may still be there",
            file=sys.stderr,
        )
    found = kube.run(
        lambda client: store_claim.findings(
            client, args.namespace, args.store, args.parallel_batches
        )
    )
    for finding in found:
        print(f"perfdag install: {finding.what}: {finding.do}", file=sys.stderr)
    print(f"next: perfdag submit suites/quick.yaml --namespace {args.namespace} --watch")
    return 0


async def _install(client: "Kube", args: argparse.Namespace, objects: list[Object]) -> "Found":
    """Apply the objects, delete what is left out of them, and say each; a dry run only says it. Raises KubeError."""
    from perfdag.app.cluster import prune

    for each in objects:
        await _apply(client, each, args.dry_run)
        print(
            f"{'checked' if args.dry_run else 'applied'}  {each['kind']} {each['metadata']['name']}"
        )
    found = prune.Found(args.namespace, objects)
    await found.look(client)
    for each in found.left_out:
        if not args.dry_run:
            await prune.delete(client, each, args.namespace)
        print(
            f"{'would delete' if args.dry_run else 'deleted'}  {each['kind']} {each['metadata']['name']}"
        )
    for name in await prune.other_scope(client, args.namespace, args.cluster_scope):
        scope = "with" if args.cluster_scope else "without"
        print(
            f"perfdag install: schedule {name} uses templates of the other scope: render it again {scope} --cluster-scope",
            file=sys.stderr,
        )
    return found


async def _apply(client: "Kube", body: Object, dry_run: bool) -> None:
    resource = await client.resource(body["apiVersion"], body["kind"])
    name, namespace = body["metadata"]["name"], body["metadata"].get("namespace")
    if dry_run:
        params = {"fieldManager": "perfdag", "force": "true", "dryRun": "All"}
        path = resource.path(namespace, name)
        await client.request(
            "PATCH", path, json=body, params=params, content_type="application/apply-patch+yaml"
        )
        return
    await client.apply(body)
    if body["kind"] == "Secret":
        await _forget_keys(client, body)


async def _forget_keys(client: "Kube", secret: Object) -> None:
    """Remove the store's keys that the Secret is not to have: those that somebody else put there, or an older version as `stringData`, are
    not this manager's to leave out. Raises KubeError.
    """
    known = {each for names in STORE_KEYS.values() for each in names}
    without = {"data": dict.fromkeys(sorted(known - secret["data"].keys()))}
    resource = await client.resource(secret["apiVersion"], secret["kind"])
    await client.patch(
        resource, secret["metadata"]["name"], without, secret["metadata"]["namespace"]
    )


def store_secret(args: argparse.Namespace) -> Object | None:
    """The Secret with the S3 keys of this shell; None where there are none, or it is somebody else's."""
    told = {
        key: next((os.environ[name] for name in names if os.environ.get(name)), None)
        for key, names in STORE_KEYS.items()
    }
    if (
        not args.store.startswith("s3://")
        or args.keep_secret
        or not (told["AWS_ACCESS_KEY_ID"] and told["AWS_SECRET_ACCESS_KEY"])
    ):
        return None
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": args.store_secret, "namespace": args.namespace},
        "type": "Opaque",
        "data": {
            key: base64.b64encode(value.encode()).decode() for key, value in told.items() if value
        },
    }


def secret_notes(args: argparse.Namespace, secret: Object | None) -> list[str]:
    """What is to know of the store's Secret: that none was made, or that its keys end."""
    if secret is None and args.store.startswith("s3://") and not args.keep_secret:
        why = "this shell has no AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (those of ~/.aws are not copied)"
        return [
            f"no Secret {args.store_secret} was made, for {why}; pods use the one that is there, or a role"
        ]
    if secret and "AWS_SESSION_TOKEN" in secret["data"]:
        do = "for a schedule give keys that last, or a role and --keep-secret"
        return [
            f"the keys in Secret {args.store_secret} are temporary (AWS_SESSION_TOKEN), and runs fail when they end; {do}"
        ]
    return []
