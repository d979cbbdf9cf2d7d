"""Labels and annotations of the objects of a run."""

LABEL = "perfdag"
RUN, SUITE = f"{LABEL}/run", f"{LABEL}/suite"
"""Labels: the run that an object belongs to, and its suite."""
BENCHMARK, ENTRY = f"{LABEL}/benchmark", f"{LABEL}/entry"
"""Labels of a measuring pod: what it measures."""
STORE = f"{LABEL}/store"
"""Annotation of a WorkflowTemplate: the address of the store of its installation."""
BATCH, ATTEMPT, RANK = f"{LABEL}/batch", f"{LABEL}/attempt", f"{LABEL}/rank"
"""Labels of a measuring pod: numbers from 0."""
ROLE = f"{LABEL}/role"
"""Label of a pod: its step. It is "measure" in a batch."""
MEASURING = f"{LABEL}/measuring"
"""Label of every measuring pod, with the value "true"."""
UNRECOVERABLE = f"{LABEL}/unrecoverable"
"""Annotation of a Workflow: its owner and the numbers of the batches that no retry can repair.

The watchdog writes it, and the retryStrategy of a batch reads it. The owner is that of
`perfdag.steps.runner.step_state.owner`."""
WATCHDOG_DONE = f"{LABEL}/watchdog-done"
"""Annotation of a Workflow: its uid, once its watchdog saw the last batch end and some fail.

Argo then creates no other watchdog until `argo retry`. The next watchdog removes the annotation
when it starts to watch. If it is evicted before that, Argo does not create it again, and its step
is Failed."""
STEP, STEP_BEGAN, STEP_ENDED, STEP_REFUSED = f"{LABEL}/step", "began", "ended", "refused"
"""Annotation of a Workflow: its uid, the step that began last, and the state of the step.

The state is STEP_BEGAN while the step runs, and STEP_ENDED once it failed by itself. It is
STEP_REFUSED if the step refused the run: then Argo creates no other pod."""
