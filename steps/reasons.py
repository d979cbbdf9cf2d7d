"""Why the samples of a batch have no part, as its sentry says it: noted in the store, or on the Workflow until the last step has the store."""

import re
from typing import Any

from perfdag.confirming import plan_of_batch
from perfdag.kube import Kube, run
from perfdag.notes import write_note
from perfdag.plan import Plan
from perfdag.runs import load_plan, variants
from perfdag.steps.marks import of_annotations
from perfdag.steps.place import Here
from perfdag.store import Store

Object = dict[str, Any]


class InStore:
    """Notes of a run's batches in its store."""

    def __init__(self, plan: Plan, store: Store) -> None:
        self._plan, self._store = plan, store

    def __call__(self, batch: int, reason: str) -> None:
        """Note it in the plan that the batch belongs to, and in both where two variants are measured side by side: without the pods of
        one neither is measured. Those that confirm are planned while the sentry stands. Raises StoreError.
        """
        if self._plan.trigger == "ab":
            said = _of_variant(reason, self._plan.shape_of(batch).hosts.count)
            for each in variants(self._store, self._plan):
                write_note(self._store, each.run_id, f"batch-{batch}", "failed", said, [batch])
            return
        if batch >= len(self._plan.batches) and "confirmed" not in self._plan.options:
            self._plan = load_plan(self._store, self._plan.run_id)
        plan, index = plan_of_batch(self._store, self._plan, batch)
        write_note(self._store, plan.run_id, f"batch-{index}", "failed", reason, [index])


def _of_variant(reason: str, pods: int) -> str:
    """The reason with the variant of the pod that it tells of, `pods` a side: by its rank."""
    return re.sub(
        r"^pod of rank (\d+)",
        lambda found: f"{found[0]} (variant {'AB'[int(found[1]) >= pods]})",
        reason,
    )


def hand_over(here: Here, store: Store, plan: Plan) -> None:
    """Put the notes of a sentry that had no store into it. Raises StoreError, KubeError."""

    async def read(kube: Kube) -> Object:
        return await kube.get(
            await kube.resource("argoproj.io/v1alpha1", "Workflow"), here.workflow, here.namespace
        )

    put = InStore(plan, store)
    for batch, reason in of_annotations(run(read))[1].items():
        put(batch, reason)
