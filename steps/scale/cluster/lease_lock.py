"""One performance run at a time: a Lease that the running one renews; a second waits its turn."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from perfdag import signals
from perfdag.kube.client import Kube, KubeError
from perfdag.kube.config import ignore_status
from perfdag.steps.scale.model.templates import RUN_LABEL

NAME = "perfdag-performance-run"
LIFE = 30
"""Seconds without renewal after which a Lease is free."""
NAMESPACE = "default"
"""Namespace of the Lease: runs on a laptop and in pods of any namespace must share one."""


class LockTimeoutError(KubeError):
    """Another performance run still holds the cluster."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "Locked", message)


class ExclusiveRun:
    """Hold the Lease of performance runs; wait up to `timeout` seconds for another run.

    Without rights in NAMESPACE, our own namespace is used. A holder has stopped if it did not
    renew the Lease for LIFE seconds by our clock. `lost` describes a run that took the Lease over.
    Raises LockTimeoutError, KubeError.
    """

    def __init__(
        self,
        kube: Kube,
        run: str,
        timeout: float,
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._kube, self._run, self._timeout, self._log = kube, run, timeout, log
        self._namespace = NAMESPACE
        self._task: asyncio.Task[None] | None = None
        self._seen: tuple[Any, Any] = (None, None)
        self._since = 0.0
        self.lost = ""

    async def __aenter__(self) -> "ExclusiveRun":
        deadline, announced = time.monotonic() + self._timeout, False
        while (holder := await self.try_acquire()) is not None:
            if not announced:
                self._log(f"waiting for performance run {holder} to end")
                announced = True
            if time.monotonic() >= deadline:
                raise LockTimeoutError(
                    f"performance run {holder} still holds the cluster after {self._timeout:g} s; "
                    f"wait for it, or delete lease {NAME}"
                )
            await asyncio.sleep(min(1.0, max(0.05, deadline - time.monotonic())))
        self._task = asyncio.create_task(self.renew())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task:
            await signals.cancel([self._task])
        leases = await self._kube.resource("coordination.k8s.io/v1", "Lease")
        with suppress(KubeError):
            lease = await self._kube.get(leases, NAME, self._namespace)
            if self._ours(lease):
                await self._kube.delete(leases, NAME, self._namespace)

    def _body(self) -> dict[str, Any]:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        spec = {"holderIdentity": self._run, "leaseDurationSeconds": LIFE, "renewTime": now}
        # The label lets `scale delete --run` find it.
        metadata = {"name": NAME, "labels": {RUN_LABEL: self._run}}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": spec,
        }

    def _ours(self, lease: dict[str, Any]) -> bool:
        """Return whether we still hold the Lease, and log its loss once."""
        holder = lease["spec"].get("holderIdentity")
        if holder == self._run:
            return True
        if not self.lost:
            self.lost = (
                f"performance run {holder} took the cluster over: the figures of both runs are "
                "mixed"
            )
            self._log(self.lost)
        return False

    async def try_acquire(self) -> str | None:
        """Take the Lease and return None, or return its holder."""
        leases = await self._kube.resource("coordination.k8s.io/v1", "Lease")
        try:
            # After a retry it may be another run's Lease: all runs are one field manager.
            lease = await self._kube.create(self._body(), self._namespace)
        except KubeError as error:
            if error.status == 403 and self._namespace != self._kube.namespace:
                self._namespace = self._kube.namespace
                return await self.try_acquire()
            if error.reason != "AlreadyExists":
                raise
            try:
                lease = await self._kube.get(leases, NAME, self._namespace)
            except KubeError as error:
                if error.status == 404:
                    return "that just ended"
                raise
        spec = lease["spec"]
        holder = spec.get("holderIdentity")
        if holder == self._run:
            return None
        if self._alive(holder, spec.get("renewTime")):
            return str(holder)
        body = self._body()
        # With the resource version, only one of two takers succeeds.
        body["metadata"]["resourceVersion"] = lease["metadata"]["resourceVersion"]
        with ignore_status(404, 409):
            await self._kube.request("PUT", leases.path(self._namespace, NAME), json=body)
            return None
        return str(holder)

    def _alive(self, holder: Any, renewed: Any) -> bool:
        """Return whether the Lease was renewed in the last LIFE seconds by our own clock."""
        now = time.monotonic()
        if self._seen != (holder, renewed):
            self._seen, self._since = (holder, renewed), now
        return now - self._since <= LIFE

    async def renew(self) -> None:
        leases = await self._kube.resource("coordination.k8s.io/v1", "Lease")
        while True:
            await asyncio.sleep(LIFE / 3)
            with suppress(KubeError):
                try:
                    lease = await self._kube.get(leases, NAME, self._namespace)
                except KubeError as error:
                    if error.status != 404:
                        raise
                    lease = await self._kube.create(self._body(), self._namespace)
                if not self._ours(lease):  # it expired, and another run took it
                    return
                lease["spec"]["renewTime"] = self._body()["spec"]["renewTime"]
                # The server refuses it if the holder changed.
                await self._kube.request("PUT", leases.path(self._namespace, NAME), json=lease)


async def require_ended(kube: Kube, run: str) -> None:
    """Raise KubeError if the run renews the Lease of performance runs. Takes up to 12 seconds."""
    leases = await kube.resource("coordination.k8s.io/v1", "Lease")

    async def renewed() -> Any:
        """Return when the run renewed the Lease, None if it does not hold it."""
        with ignore_status(403, 404):
            spec = (await kube.get(leases, NAME, NAMESPACE))["spec"]
            holder = str(spec.get("holderIdentity"))
            return spec.get("renewTime") if run == holder or run.startswith(f"{holder}-") else None
        return None

    first, deadline = await renewed(), time.monotonic() + 0.4 * LIFE
    while first and time.monotonic() < deadline and (now := await renewed()):
        if now != first:
            raise KubeError(
                409, "InProgress", f"run {run} renews its Lease", "end it, or wait for it"
            )
        await asyncio.sleep(LIFE / 60)
