"""Open a store by its address."""

from perfdag.store.base import Store, StoreError
from perfdag.store.folder import FolderStore
from perfdag.store.s3 import S3Store

DEFAULT_ROOT = "./perfdag-results"


def on_cluster(root: str | None) -> bool:
    """Return whether pods of a cluster can use the store."""
    return (root or "").startswith(("s3://", "claim://"))


def open_store(root: str | None, patience: float = 10.0) -> Store:
    """Return the store in a folder or at an s3:// address.

    A failing request to S3 is retried for `patience` seconds. Raises StoreError.
    """
    root = root or DEFAULT_ROOT
    if root.startswith("claim://"):
        raise StoreError(
            f"{root} is a claim of a cluster; here use a folder or s3://, "
            "or run the command in a pod that mounts it"
        )
    if root.startswith("s3://"):
        return S3Store(root, patience)
    if "://" in root:
        raise StoreError(f"{root}: a store is a folder or s3://bucket/prefix")
    return FolderStore(root)
