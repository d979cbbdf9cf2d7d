"""One performance run at a time: a Lease that the running one renews; a second waits its turn."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from perfdag.kube import Kube, KubeError
from perfdag.steps.scale import tasks
from perfdag.steps.scale.templates import RUN_LABEL

NAME = "perfdag-performance-run"
LIFE = 30
"""Seconds after which a Lease that nobody renews is free."""
NAMESPACE = "default"
"""Where the Lease is: runs from a laptop and from pods of any namespace must find the same one."""


class LockTimeoutError(KubeError):
    """Another performance run still holds the cluster."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "Locked", message)


class ExclusiveRun:
    """`async with`: hold the Lease; waits up to `timeout` seconds for another run to end or to stop renewing it.

    It is in `namespace`, where we have no rights there (an installation for one namespace) in our own. A holder has stopped where the
    Lease was not renewed for LIFE seconds while we looked: what its clock says is not compared with ours. Raises LockTimeoutError naming the
    holder; KubeError. `lost` says afterwards who took the cluster meanwhile, if anybody did.
    """

    def __init__(
        self,
        kube: Kube,
        run: str,
        timeout: float,
        told: Callable[[str], None] = lambda text: None,
        *,
        namespace: str = NAMESPACE,
    ) -> None:
        self._kube, self._run, self._namespace, self._timeout, self._told = (
            kube,
            run,
            namespace,
            timeout,
            told,
        )
        self._task: asyncio.Task[None] | None = None
        self._seen: tuple[Any, Any] = (None, None)
        self._since = 0.0
        self.lost = ""

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
            await tasks.end([self._task])
        leases = await self._kube.resource("coordination.k8s.io/v1", "Lease")
        with suppress(KubeError):
            there = await self._kube.get(leases, NAME, self._namespace)
            if self._ours(there):
                await self._kube.delete(leases, NAME, self._namespace)

    def _body(self) -> dict[str, Any]:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        spec = {"holderIdentity": self._run, "leaseDurationSeconds": LIFE, "renewTime": now}
        metadata = {
            "name": NAME,
            "labels": {RUN_LABEL: self._run},
        }  # deleted with all else of a run that was killed
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": spec,
        }

    def _ours(self, lease: dict[str, Any]) -> bool:
        """Whether we still hold it; told once where another took it."""
        holder = lease["spec"].get("holderIdentity")
        if holder == self._run:
            return True
        if not self.lost:
            self.lost = (
                f"performance run {holder} took the cluster meanwhile: figures of both are mixed"
            )
            self._told(self.lost)
        return False

    async def _take(self) -> str | None:
        """None where the lease is ours now, else who holds it."""
        leases = await self._kube.resource("coordination.k8s.io/v1", "Lease")
        try:
            there = await self._kube.create(
                self._body(), self._namespace
            )  # after a retry it may be another's: all runs are one field manager
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
        holder = spec.get("holderIdentity")
        if holder == self._run:
            return None
        if self._alive(holder, spec.get("renewTime")):
            return str(holder)
        body = self._body()
        body["metadata"]["resourceVersion"] = there["metadata"][
            "resourceVersion"
        ]  # only one of two takers gets through
        try:
            await self._kube.request("PUT", leases.path(self._namespace, NAME), json=body)
        except KubeError as error:
            if error.status in (404, 409):
                return str(holder)
            raise
        return None

    def _alive(self, holder: Any, renewed: Any) -> bool:
        """Whether the Lease was renewed in the LIFE seconds before now, by our own clock, or we have not looked for so long."""
        now = time.monotonic()
        if self._seen != (holder, renewed):
            self._seen, self._since = (holder, renewed), now
        return now - self._since <= LIFE

    async def _renew(self) -> None:
        leases = await self._kube.resource("coordination.k8s.io/v1", "Lease")
        while True:
            await asyncio.sleep(LIFE / 3)
            with suppress(KubeError):
                try:
                    there = await self._kube.get(leases, NAME, self._namespace)
                except KubeError as error:
                    if error.status != 404:
                        raise
                    there = await self._kube.create(
                        self._body(), self._namespace
                    )  # somebody deleted it, and nobody has taken it
                if not self._ours(
                    there
                ):  # it had expired and another took it: it is not ours to keep alive
                    return
                there["spec"]["renewTime"] = self._body()["spec"]["renewTime"]
                await self._kube.request(
                    "PUT", leases.path(self._namespace, NAME), json=there
                )  # refused where it changed hands since
