"""The Secret with the S3 keys of a store, made of this shell's variables."""

import base64
import os

from perfdag.kube.client import Kube, Object

STORE_KEYS = {
    "AWS_ACCESS_KEY_ID": ("AWS_ACCESS_KEY_ID",),
    "AWS_SECRET_ACCESS_KEY": ("AWS_SECRET_ACCESS_KEY",),
    "AWS_SESSION_TOKEN": ("AWS_SESSION_TOKEN",),
    "AWS_REGION": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "AWS_ENDPOINT_URL": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
}
"""Keys of the Secret, and the variables that each is read from: the first one that is set wins, as
in `perfdag.store.s3`."""


def store_secret(name: str, namespace: str) -> Object | None:
    """Return the Secret with the S3 keys of this shell; None if the shell has none."""
    values = {
        key: next((os.environ[name] for name in names if os.environ.get(name)), None)
        for key, names in STORE_KEYS.items()
    }
    if not (values["AWS_ACCESS_KEY_ID"] and values["AWS_SECRET_ACCESS_KEY"]):
        return None
    data = {
        key: base64.b64encode(value.encode()).decode() for key, value in values.items() if value
    }
    metadata = {"name": name, "namespace": namespace}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": "Opaque",
        "data": data,
    }


def secret_notes(name: str, secret: Object | None) -> list[str]:
    """Return why the Secret was not created, or that its keys expire, if either is so."""
    if secret is None:
        return [
            f"Secret {name} was not created: this shell has no AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY (those of ~/.aws are not copied); "
            "pods use the Secret that exists, or a role"
        ]
    if "AWS_SESSION_TOKEN" in secret["data"]:
        return [
            f"the keys in Secret {name} are temporary (AWS_SESSION_TOKEN), and runs fail when they "
            "expire; for a schedule use permanent keys, or a role and --keep-secret"
        ]
    return []


async def remove_old_keys(client: Kube, secret: Object) -> None:
    """Remove the store's keys that the Secret no longer has.

    Server-side apply leaves keys that another field manager set. Raises KubeError.
    """
    known = {name for names in STORE_KEYS.values() for name in names}
    patch = {"data": dict.fromkeys(sorted(known - secret["data"].keys()))}
    metadata = secret["metadata"]
    resource = await client.resource("v1", "Secret")
    await client.patch(resource, metadata["name"], patch, metadata["namespace"])
