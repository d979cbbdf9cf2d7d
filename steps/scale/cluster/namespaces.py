"""Create missing namespaces of a run and delete them at the end."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale.cluster.removal import namespace_of
from perfdag.steps.scale.model.templates import RUN_LABEL

DELETION_PATIENCE = 120.0
"""Seconds to wait for a namespace of an earlier run to be gone."""


@asynccontextmanager
async def own_namespaces(kube: Kube, names: Sequence[str], run: str) -> AsyncIterator[None]:
    """Create missing namespaces, and delete these at the end. Raises KubeError."""
    created: list[str] = []
    try:
        for name in names:
            if await ensure_namespace(kube, name, run):
                created.append(name)
        yield
    finally:
        namespaces = await kube.resource("v1", "Namespace")
        for name in created:
            with suppress(KubeError):
                await kube.delete(namespaces, name)


async def ensure_namespace(
    kube: Kube, name: str, run: str, patience: float = DELETION_PATIENCE
) -> bool:
    """Create a namespace if it is missing, and return whether it was created.

    Waits up to `patience` seconds for a namespace that is being deleted. Raises KubeError.
    """
    deadline = time.monotonic() + patience
    while namespace := await namespace_of(kube, name):
        if not namespace["metadata"].get("deletionTimestamp"):
            return False
        if time.monotonic() >= deadline:
            why = [
                condition["message"]
                for condition in namespace["status"].get("conditions") or []
                if condition["status"] == "True"
            ]
            text = f"namespace {name} is still being deleted after {patience:g} s"
            text += f": {'; '.join(why)}" if why else ""
            raise KubeError(
                0,
                "Terminating",
                " ".join(text.split()),
                "wait for it, fix what blocks it, or use another namespace",
            )
        await asyncio.sleep(0.2)
    try:
        await kube.create(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": name, "labels": {RUN_LABEL: run}},
            }
        )
    except KubeError as error:
        if error.reason != "AlreadyExists":
            raise
        return False  # another run created it, and deletes it
    accounts = await kube.resource("v1", "ServiceAccount")
    for _ in range(100):  # pods are refused until the controller has created the account
        with suppress(KubeError):
            await kube.get(accounts, "default", name)
            break
        await asyncio.sleep(0.05)
    return True
