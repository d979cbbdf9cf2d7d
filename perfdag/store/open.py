"""The address of a store, and opening it."""

import re
from collections.abc import Callable

from perfdag.store.base import KEY_NAME, AddressError, Store
from perfdag.store.folder import FolderStore
from perfdag.store.s3 import S3Store

DEFAULT_ROOT = "./perfdag-results"
BUCKET = r"s3://[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?(/" + KEY_NAME + ")*/?"
CLAIM = r"claim://[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
CLUSTER_ADDRESS = f"({BUCKET}|{CLAIM})"
"""The addresses of stores that pods can use. Argo matches them too, so this is RE2 syntax."""
_FORMS = {
    "s3://": (
        BUCKET,
        "s3://bucket/prefix, where the bucket has a-z, 0-9, . and -, and the names of the prefix "
        "have letters, digits and _ . = - and begin with a letter, a digit or _",
    ),
    "claim://": (CLAIM, "claim://NAME, where the name has 1 to 63 of a-z, 0-9 and -"),
}


def check_address(root: str) -> str:
    """Return the address of a store. Raises AddressError for one that no store can have.

    Every text without `://` is a folder.
    """
    scheme, separator, _ = root.partition("://")
    pattern, form = _FORMS.get(scheme + separator, ("", "a folder or s3://bucket/prefix"))
    if separator and not re.fullmatch(pattern, root):
        raise AddressError(f"{root[:200]!r}: a store is {form}")
    return root


def check_cluster_address(root: str) -> str:
    """Return the address of a store that pods can use. Raises AddressError for any other text."""
    if not on_cluster(root):
        raise AddressError(
            f"{root[:200] or 'no store'}: pods share no folder with this machine; "
            "give --store s3://bucket/prefix or claim://NAME"
        )
    return check_address(root)


def on_cluster(root: str | None) -> bool:
    """Return whether pods of a cluster can use the store."""
    return (root or "").startswith(("s3://", "claim://"))


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
        return S3Store(root, patience, on_wait)
    return FolderStore(root)
