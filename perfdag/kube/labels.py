"""Labels and annotations of the objects of a run."""

LABEL = "perfdag"

UNRECOVERABLE = f"{LABEL}/unrecoverable"
"""Annotation of a Workflow: its owner (`perfdag.steps.runner.step_state.owner`), then the batches that no retry
can repair, between commas. The watchdog writes it, the retryStrategy of a batch reads it."""

WATCHDOG_DONE = f"{LABEL}/watchdog-done"
"""Annotation of a Workflow: its uid, once its watchdog saw the last batch end and some fail.

Argo creates no other watchdog then until `argo retry`, where the next watchdog's first look removes it.
A watchdog evicted before that look is not created again: Argo calls it Failed."""

STEP, BEGAN, ENDED = f"{LABEL}/step", "began", "ended"
"""Annotation of a Workflow: its uid, the step that began last, and its state: BEGAN while it runs,
ENDED once it failed by itself."""
