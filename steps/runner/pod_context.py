"""The context of a pod of a run, from its environment: the run, the store, the Workflow."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from perfdag.kube.patch import STORE
from perfdag.plan.plan import is_run_id, new_run_id
from perfdag.steps.runner.limits import refuse
from perfdag.store.base import Store, check_cluster_address, open_store
from perfdag.store.s3 import print_wait
from perfdag.units import seconds

EXIT_RETRYABLE = 75
"""EX_TEMPFAIL: another attempt may succeed."""
EXIT_REFUSED = 77
"""EX_NOPERM: another attempt would be refused too."""


def exit_retryable(number: int, frame: FrameType | None) -> None:
    """Exit on a signal so that Argo tries again. A signal handler."""
    raise SystemExit(EXIT_RETRYABLE)


PATIENCE = 300.0
"""Seconds for which a write is repeated while the store is out of reach."""
PENDING_GRACE = 10
"""Seconds that Argo lets pods be Pending beyond the suite's pending_limit.

The watchdog enforces the limit itself and records the reason.
"""


@dataclass(frozen=True)
class PodContext:
    """The environment of a pod of a run; a text is empty if its variable is not set."""

    store: str
    run_id: str
    workflow: str
    workflow_uid: str
    trigger: str
    images: str
    namespace: str
    pod: str
    node: str
    addresses: tuple[str, ...]
    """Its addresses of every family; the first is that of the cluster's main family."""
    allowed: tuple[str, ...] = ()
    """Benchmarks whose Kubernetes rights this installation grants."""
    account: str = ""
    """The ServiceAccount of a benchmark with rights of its own, in its pods."""
    pull_policy: str = "IfNotPresent"
    network_policy: bool = False
    """Whether a NetworkPolicy of this installation selects measuring pods."""

    @property
    def claimed(self) -> bool:
        """Whether the store is a PersistentVolumeClaim, which only some pods mount."""
        return self.store.startswith("claim://")

    @property
    def address(self) -> str:
        """The address of the cluster's main family."""
        return self.addresses[0]

    @property
    def where(self) -> dict[str, str]:
        """Provenance of a sample that this run measures."""
        return {
            "store": self.store,
            "namespace": self.namespace,
            "workflow_uid": self.workflow_uid,
        }

    @property
    def root(self) -> str:
        """The address of the store in this pod. Raises BadDocument, StoreError."""
        if not is_run_id(self.run_id):
            raise refuse(f"{self.run_id!r}: a run id is such as 20260101T020000Z-0a1b2c3d")
        check_cluster_address(self.store)
        if not self.claimed:
            return self.store
        if not Path(STORE).is_dir():
            raise refuse(f"{self.store} is not mounted: it is not the claim of install --store")
        return STORE

    def open(self) -> Store:
        """Open the store. Raises BadDocument, StoreError."""
        return open_store(self.root, PATIENCE, print_wait)


def from_environment(environment: Mapping[str, str] = os.environ) -> PodContext:
    """Read the context.

    Without a run id, the uid and the creation time of the Workflow give one: all its pods compute
    the same.
    """

    def of(name: str) -> str:
        return environment.get(f"PERFDAG_{name}", "")

    created = (
        datetime.fromisoformat(of("WORKFLOW_CREATED").replace("Z", "+00:00"))
        if of("WORKFLOW_CREATED")
        else datetime.now(UTC)
    )
    run_id = of("RUN") or new_run_id(created, of("WORKFLOW_UID") or None)
    return PodContext(
        store=of("STORE"),
        run_id=run_id,
        workflow=of("WORKFLOW"),
        workflow_uid=of("WORKFLOW_UID"),
        trigger="cron" if of("CRON") else "manual",
        images=of("IMAGES"),
        namespace=of("NAMESPACE"),
        pod=of("POD"),
        node=of("NODE"),
        addresses=tuple(of("IPS").split(",")),
        allowed=tuple(of("ALLOWED").split()),
        account=of("ACCOUNT"),
        pull_policy=of("PULL_POLICY") or "IfNotPresent",
        network_policy=bool(of("NETWORK_POLICY")),
    )


def pending_limit(timeout: str) -> float:
    """Return the suite's pending_limit in seconds, from Argo's pendingTimeout.

    Raises ValueError.
    """
    return seconds(timeout) - PENDING_GRACE


def scratch_home() -> Path:
    """Return the folder of this uid for keys and sockets: short, as socket paths have 107 bytes."""
    return Path("/tmp/perfdag-ssh")
