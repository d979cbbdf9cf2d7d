"""One performance run at a time: a Lease that the running one renews; a second waits its turn."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from perfdag.kube import Kube, KubeError
from perfdag.steps.scale.stages import unix_ns

NAME = "perfdag-performance-run"
LIFE = 30
NAMESPACE = "default"
"""Where the Lease is: runs from a laptop and from pods of any namespace must find the same one."""


class LockTimeoutError(KubeError):
    """Another performance run still holds the cluster."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "Locked", message)


class ExclusiveRun:
    """`async with`: hold the Lease; waits up to `timeout` seconds for another run to end or to stop renewing it.

    It is in `namespace`, where we have no rights there (an installation for one namespace) in our own. Raises LockTimeoutError naming the
    holder; KubeError.
    """

    def __init__(
        self, kube: Kube, run: str, timeout: float, told: Callable[[str], None] = lambda text: None, *, namespace: str = NAMESPACE
    ) -> None:
        self._kube, self._run, self._namespace, self._timeout, self._told = kube, run, namespace, timeout, told
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "ExclusiveRun":
        deadline, said = time.monotonic() + self._timeout, False
        while (holder := await self._take()) is not None:
            if not said:
                self._told(f"waiting for performance run {holder} to end")
                said = True
            if time.monotonic() >= deadline:
                raise LockTimeoutError(
                    f"performance run {holder} still holds the cluster after {self._timeout:g} s; wait for it, or delete lease {NAME}"
                )
            await asyncio.sleep(min(1.0, max(0.05, deadline - time.monotonic())))
        self._task = asyncio.create_task(self._renew())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        leases = await self._kube.resource("coordination.k8s.io/v1", "Lease")
        with suppress(KubeError):
            there = await self._kube.get(leases, NAME, self._namespace)
            if there["spec"].get("holderIdentity") == self._run:
                await self._kube.delete(leases, NAME, self._namespace)

    def _body(self) -> dict[str, Any]:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        spec = {"holderIdentity": self._run, "leaseDurationSeconds": LIFE, "renewTime": now}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": NAME}, "spec": spec}

    async def _take(self) -> str | None:
        """None where the lease is ours now, else who holds it."""
        leases = await self._kube.resource("coordination.k8s.io/v1", "Lease")
        try:
            await self._kube.create(self._body(), self._namespace)
            return None
        except KubeError as error:
            if error.status == 403 and self._namespace != self._kube.namespace:
                self._namespace = self._kube.namespace
                return await self._take()
            if error.reason != "AlreadyExists":
                raise
        try:
            there = await self._kube.get(leases, NAME, self._namespace)
        except KubeError as error:
            if error.status == 404:
                return "that just ended"
            raise
        spec = there["spec"]
        age = time.time() - unix_ns(spec.get("renewTime")) / 1e9
        if age <= LIFE:
            return str(spec.get("holderIdentity"))
        body = self._body()
        body["metadata"]["resourceVersion"] = there["metadata"]["resourceVersion"]  # only one of two takers gets through
        try:
            await self._kube.request("PUT", leases.path(self._namespace, NAME), json=body)
        except KubeError as error:
            if error.status in (404, 409):
                return str(spec.get("holderIdentity"))
            raise
        return None

    async def _renew(self) -> None:
        leases = await self._kube.resource("coordination.k8s.io/v1", "Lease")
        while True:
            await asyncio.sleep(LIFE / 3)
            with suppress(KubeError):
                there = await self._kube.get(leases, NAME, self._namespace)
                if there["spec"].get("holderIdentity") != self._run:  # it had expired and another took it: it is not ours to keep alive
                    self._told(
                        f"performance run {there['spec'].get('holderIdentity')} took the cluster meanwhile: figures of both are mixed"
                    )
                    return
                there["spec"]["renewTime"] = self._body()["spec"]["renewTime"]
                await self._kube.request("PUT", leases.path(self._namespace, NAME), json=there)  # refused where it changed hands since
