"""What a pod of a run knows of its run, from its environment, and how it reports its end."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from perfdag.hosts.local import hidden
from perfdag.kube.client import KubeError, Object, run_with_client, status_of
from perfdag.kube.patch import (
    DESCRIPTION,
    MESSAGE,
    REPORT,
    RUN,
    STEP,
    STEP_BEGAN,
    STEP_ENDED,
    STEP_REFUSED,
    STORE_VARIABLES,
    SUITE,
    VERDICT,
    Context,
    store_root,
)
from perfdag.kube.pods import WORKFLOWS
from perfdag.plan import Plan, is_run_id, new_run_id
from perfdag.redaction import redact, register
from perfdag.results.run_store import report_key, run_folder
from perfdag.store.base import NotStoredError, Store, StoreError, check_cluster_address
from perfdag.store.s3 import open_store, print_wait
from perfdag.suite.document import BadDocument, Problem

EXIT_RETRYABLE = 75
"""EX_TEMPFAIL: another attempt may succeed."""


def refuse(text: str) -> BadDocument:
    """Return an error of the input, which ends the step with exit code 2."""
    return BadDocument([Problem("refused", text, file="suite")])


def exit_retryable(number: int, frame: FrameType | None) -> None:
    """Exit on a signal so that Argo tries again. A signal handler."""
    raise SystemExit(EXIT_RETRYABLE)


PATIENCE = 300.0
"""Seconds for which a write is repeated while the store is out of reach."""
PENDING_GRACE = 10
"""Seconds that Argo lets pods be Pending beyond the suite's pending_limit.

The watchdog enforces the limit itself and records the reason.
"""


@dataclass(frozen=True, kw_only=True)
class PodContext(Context):
    """The environment of a pod of a run; a text is empty if its variable is not set.

    The plan step makes the patches of measuring pods from its own.
    """

    workflow: str
    trigger: str
    namespace: str
    node: str
    addresses: tuple[str, ...]
    """Its addresses of every family; the first is that of the cluster's main family."""
    allowed: tuple[str, ...] = ()
    """Benchmarks whose Kubernetes rights this installation grants."""
    network_policy: bool = False
    """Whether a NetworkPolicy of this installation selects measuring pods."""

    @property
    def root(self) -> str:
        """The address of the store in this pod. Raises BadDocument, StoreError."""
        if not is_run_id(self.run_id):
            raise refuse(f"{self.run_id!r}: a run id is such as 20260101T020000Z-0a1b2c3d")
        check_cluster_address(self.store)
        return store_root(self.store)

    def services_key(self, batch: int) -> str:
        """Return the key of the addresses and ports of the Services of a batch, by rank.

        Measuring pods have no right to read Services, and read the store.
        """
        return f"{run_folder(self.run_id)}/services/{self.workflow_uid}-b{batch}.json"

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

    created = of("WORKFLOW_CREATED")
    moment = datetime.fromisoformat(created) if created else datetime.now(UTC)
    return PodContext(
        store=of("STORE"),
        run_id=of("RUN") or new_run_id(moment, of("WORKFLOW_UID") or None),
        workflow=of("WORKFLOW"),
        workflow_uid=of("WORKFLOW_UID"),
        trigger="cron" if of("CRON") else "manual",
        images=of("IMAGES"),
        namespace=of("NAMESPACE"),
        node=of("NODE"),
        addresses=tuple(of("IPS").split(",")),
        allowed=tuple(of("ALLOWED").split()),
        account=of("ACCOUNT"),
        pull_policy=of("PULL_POLICY") or "IfNotPresent",
        store_secret=of("ENV_FROM"),
        network_policy=bool(of("NETWORK_POLICY")),
    )


def take_store_variables() -> None:
    """Take the variables of the store's Secrets, which measured processes do not get.

    They come with a prefix that tells their names, whatever else the Secrets have.
    """
    names = [name for name in os.environ if name.startswith(STORE_VARIABLES)]
    for name in names:
        variable = name.removeprefix(STORE_VARIABLES)
        os.environ[variable] = os.environ.pop(name)
        hidden.add(variable)
        if not variable.startswith("AWS_"):  # a region or an address is no secret
            register([os.environ[variable]])


TERMINATION_MESSAGE = Path(MESSAGE)


def explain_end(text: str) -> None:
    """Make a text, in one line, the message of this pod."""
    if TERMINATION_MESSAGE.is_file():  # not on a laptop
        TERMINATION_MESSAGE.write_text(" ".join(redact(text).split())[:1000])


def run_step(context: PodContext, name: str, work: Callable[[], int]) -> int:
    """Run a step and return its exit code; record its state on the Workflow.

    A step that fails by itself would fail again. One that is evicted or killed records no end, and
    Argo runs it again.
    """
    _record(context, name, STEP_BEGAN)
    try:
        code = work()
    except Exception as error:
        first, *others = error.problems if isinstance(error, BadDocument) else [error]
        explain_end(f"{first} (and {len(others)} more)" if others else str(first))
        # without a plan there is nothing to finish
        refused = isinstance(error, BadDocument | StoreError)
        _record(context, name, STEP_REFUSED if refused else STEP_ENDED)
        raise
    if code:
        _record(context, name, STEP_ENDED)
    return code


def _record(context: PodContext, name: str, state: str) -> None:
    # without the record Argo repeats the step only where it ended early
    annotations = {STEP: f"{context.workflow_uid} {name} {state}"}
    _patch_workflow(context, {"annotations": annotations}, f"that {name} {state}")


def label_workflow(
    context: PodContext, plan: Plan, store: Store, verdict: str, sentence: str
) -> None:
    """Put the verdict, the report's address, the run id and the suite on the run's Workflow.

    `perfdag submit` sets the labels of a run at once; a Workflow that was created otherwise gets
    them here. Argo's UI shows the sentence about the run below the name of the Workflow. The report
    becomes an artifact where Argo has a repository for it. Raises StoreError.
    """
    report = report_key(plan.run_id)
    annotations = {"perfdag/run": plan.run_id, "perfdag/report": store.url(report)}
    if sentence:
        annotations[DESCRIPTION] = redact(sentence)
    labels = {RUN: plan.run_id, SUITE: plan.suite, VERDICT: verdict}
    workflow = _patch_workflow(
        context, {"annotations": annotations, "labels": labels}, "its report"
    )
    reference = status_of(workflow).get("artifactRepositoryRef") or {}
    if reference.get("artifactRepository"):  # without one, Argo fails a step that has a file
        with suppress(NotStoredError):
            Path(REPORT).write_bytes(store.get(report))


def _patch_workflow(context: PodContext, metadata: Object, text: str) -> Object:
    """Merge metadata into those of the run's Workflow and return it.

    An error of the API server is printed, with the `text` about what is not recorded, and the
    Workflow is empty.
    """
    body = {"metadata": metadata}
    try:
        return run_with_client(
            lambda kube: kube.patch(WORKFLOWS, context.workflow, body, context.namespace)
        )
    except KubeError as error:
        print(f"cannot record on the workflow {text}: {error}", file=sys.stderr)  # noqa: T201
        return {}


def clock_deadline(store: Store, plan: Plan) -> float | None:
    """Return when the budget is spent, in monotonic seconds; None: no budget. Raises StoreError.

    The first gang of a Workflow starts the clock of its run.
    """
    if not plan.budget:
        return None
    try:
        began = float(store.get(_clock_key(plan.run_id)))
    except NotStoredError:
        began = time.time()
        store.put(_clock_key(plan.run_id), f"{began:.3f}\n".encode())
    return time.monotonic() + plan.budget - (time.time() - began)


def end_clock(store: Store, run_id: str) -> None:
    """Stop the clock of a run; the next gang starts it again. Raises StoreError."""
    store.delete(_clock_key(run_id))


def _clock_key(run_id: str) -> str:
    return f"{run_folder(run_id)}/clock"
