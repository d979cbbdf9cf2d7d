"""Labels and annotations that perfdag writes or reads on objects of a cluster."""

LABEL = "perfdag"
RUN, SUITE = f"{LABEL}/run", f"{LABEL}/suite"
"""Labels: the run that an object belongs to, and its suite."""
STORE_ADDRESS = f"{LABEL}/store"
"""Annotation of a WorkflowTemplate: the address of the store of its installation."""
BATCH, ATTEMPT, RANK = f"{LABEL}/batch", f"{LABEL}/attempt", f"{LABEL}/rank"
"""Labels of a measuring pod: numbers from 0."""
ROLE = f"{LABEL}/role"
"""Label of a pod: its step. It is "measure" in a batch."""
MEASURING = f"{LABEL}/measuring"
"""Label of every measuring pod, with the value "true"."""
STEP, STEP_BEGAN, STEP_ENDED, STEP_REFUSED = f"{LABEL}/step", "began", "ended", "refused"
"""Annotation of a Workflow: its uid, the step that began last, and the state of the step.

The state is STEP_BEGAN while the step runs, and STEP_ENDED once it failed by itself. It is
STEP_REFUSED if the step refused the run: then Argo creates no other pod."""
HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
LEVEL = "pod-security.kubernetes.io/enforce"
"""The label of a namespace that names its level."""
