"""`open_store`: the store at an address."""

from collections.abc import Callable

from perfdag.store.base import DEFAULT_ROOT, AddressError, Store, check_address


def open_store(
    root: str | None, patience: float = 10.0, on_wait: Callable[[float], None] | None = None
) -> Store:
    """Return the store in a folder or at an s3:// address.

    A failing request to S3 is retried for `patience` seconds; `on_wait` is as in S3Store. Raises
    StoreError.
    """
    root = check_address(root or DEFAULT_ROOT)
    if root.startswith("claim://"):
        raise AddressError(
            f"{root} is a claim of a cluster; here use a folder or s3://, "
            "or run the command in a pod that mounts it"
        )
    if root.startswith("s3://"):
        from perfdag.store.s3 import S3Store

        return S3Store(root, patience, on_wait)
    from perfdag.store.folder import FolderStore

    return FolderStore(root)
