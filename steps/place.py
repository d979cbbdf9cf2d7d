"""What a pod of a run is told by its environment: the run, the store, the workflow, itself."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from perfdag.document import BadDocument, Problem
from perfdag.plan import new_run_id
from perfdag.podspec import STORE
from perfdag.store import Store, on_cluster, open_store
from perfdag.units import seconds

PATIENCE = 300.0  # seconds a sample is kept and tried again while the store is away
PENDING_GRACE = 10  # seconds that Argo lets pods be Pending beyond the suite's pending_limit, which the sentry keeps and gives a reason for
KEYS = Path("/perfdag/keys")


@dataclass(frozen=True)
class Here:
    """The environment of a step's pod; texts are empty where the variable is not set."""

    store: str
    run_id: str
    workflow: str
    workflow_uid: str
    trigger: str
    images: str
    namespace: str
    pod: str
    node: str
    address: str
    allowed: tuple[str, ...] = ()
    """Benchmarks whose Kubernetes rights this installation grants."""
    pull_policy: str = "IfNotPresent"
    network_policy: bool = False
    """Whether this installation put a NetworkPolicy around measuring pods."""

    @property
    def claimed(self) -> bool:
        """Whether the store is a claim, which not every pod mounts."""
        return self.store.startswith("claim://")

    def open(self) -> Store:
        """The store, a mounted claim included. Raises StoreError; BadDocument for a store that no other pod would find."""
        if not on_cluster(self.store):
            text = f"{self.store or 'no store'}: pods share no folder; give --store s3://bucket/prefix or claim://NAME"
            raise BadDocument([Problem("suite", 1, "store", text)])
        return open_store(STORE if self.claimed else self.store, PATIENCE)


def here(environment: Mapping[str, str] = os.environ) -> Here:
    """Read it. The run id is made from the workflow's uid and time where none is given, so that every pod of a workflow finds the same."""

    def of(name: str) -> str:
        return environment.get(f"PERFDAG_{name}", "")

    created = (
        datetime.fromisoformat(of("WORKFLOW_CREATED").replace("Z", "+00:00"))
        if of("WORKFLOW_CREATED")
        else datetime.now(UTC)
    )
    run_id = of("RUN") or new_run_id(created, of("WORKFLOW_UID") or None)
    return Here(
        store=of("STORE"),
        run_id=run_id,
        workflow=of("WORKFLOW"),
        workflow_uid=of("WORKFLOW_UID"),
        trigger=of("TRIGGER"),
        images=of("IMAGES"),
        namespace=of("NAMESPACE"),
        pod=of("POD"),
        node=of("NODE"),
        address=of("IP"),
        allowed=tuple(of("ALLOWED").split()),
        pull_policy=of("PULL_POLICY") or "IfNotPresent",
        network_policy=bool(of("NETWORK_POLICY")),
    )


def pending_limit(told: str) -> float:
    """Seconds of the suite's pending_limit, from what Argo is told. Raises ValueError."""
    return seconds(told) - PENDING_GRACE


def scratch_home() -> Path:
    """A folder of this uid for keys and sockets; short, since a socket's path may have 107 bytes."""
    return Path("/tmp/perfdag-ssh")
