"""Submit a suite to a cluster, or continue a run there."""

import base64
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from perfdag.app.cluster import template
from perfdag.app.cluster.manifest_suite import report_missing_gpus
from perfdag.app.cluster.resume import SubmittedRun, resumable_run
from perfdag.benchmark import registry
from perfdag.plan.plan import Plan, make_plan, place_hosts
from perfdag.results.runs import store_plan
from perfdag.steps.runner.limits import check_size
from perfdag.store.base import StoreError
from perfdag.store.open import check_cluster_address, on_cluster, open_store
from perfdag.suite.load import load_suite
from perfdag.suite.model import LoadedSuite
from perfdag.workflows.runs import suite_parameter

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Submission:
    """A suite file as the user submits it: its namespace, settings and choice of points."""

    file: str
    namespace: str
    settings: Sequence[str] = ()
    only: Sequence[str] = ()

    def plan(self) -> tuple[LoadedSuite, Plan]:
        """Load and plan the suite, so that a bad one creates nothing. Raises BadDocument."""
        loaded = load_suite(self.file, self.settings)
        plan = place_hosts(make_plan(loaded, only=self.only))
        check_size(plan)
        # Before its first step, the plan already names the place where the run may continue.
        plan.where = {"namespace": self.namespace}
        return loaded, plan

    def parameters(self, loaded: LoadedSuite) -> dict[str, str]:
        """Return the parameters that carry the suite in its Workflow. Raises BadDocument."""
        parameters = {"suite": suite_parameter(loaded)}
        if self.settings or self.only:
            options = orjson.dumps({"settings": self.settings, "only": self.only})
            parameters["options"] = base64.b64encode(options).decode()
        return parameters


def submit_suite(submission: Submission, root: str | None) -> tuple[str, str]:
    """Submit a suite; return the run id and the name of its Workflow.

    `root` is the store that the user named. Raises BadDocument, CommandError,
    KubeError.
    """
    loaded, plan = submission.plan()
    report_missing_gpus(plan)
    report_other_packages(plan)
    installed = template.installed_template(submission.namespace)
    store = run_store(root, loaded.suite.store, installed.parameters.get("store") or "")
    parameters = {}
    if not _put_plan(plan, store):
        parameters = submission.parameters(loaded)
    priority = int(plan.options.get("priority", 0))
    run = SubmittedRun(plan.run_id, store, plan.suite, priority)
    return run.run_id, _start(installed, run, parameters)


def report_other_packages(plan: Plan) -> None:
    """Report benchmarks of other packages, which perfdag's own images do not have."""
    for name in sorted({point.benchmark for point in plan.points}):
        package = registry.package(name)
        if package.partition(" ")[0] != "perfdag":
            logger.info(
                f"benchmark {name} is of package {package}: the images need it "
                "(images/build --with WHEEL_OR_PATH); perfdag doctor --cluster asks them"
            )


def resume_run(name: str, namespace: str, root: str | None) -> tuple[str, str]:
    """Continue a run; return its id and the name of its new Workflow.

    Raises CommandError, StoreError, KubeError.
    """
    installed = template.installed_template(namespace)
    default_store = installed.parameters.get("store") or ""
    run = resumable_run(name, namespace, root, default_store)
    check_cluster_address(run.store)
    return run.run_id, _start(installed, run, {})


def _start(
    installed: template.InstalledTemplate, run: SubmittedRun, parameters: dict[str, str]
) -> str:
    parameters = {"run": run.run_id, "store": run.store, **parameters}
    return installed.start(run.suite, parameters, run.priority)


def run_store(root: str | None, suite_store: str | None, default_store: str) -> str:
    """Return the store of a new run: the user's, else the suite's, else the installation's.

    The suite's store counts only if pods can reach it. Raises AddressError if the pods cannot
    reach the store.
    """
    return check_cluster_address(
        root or (suite_store if suite_store and on_cluster(suite_store) else default_store)
    )


def _put_plan(plan: Plan, root: str) -> bool:
    """Store the plan if this machine reaches the store; return whether it did."""
    if root.startswith("claim://"):
        return False
    try:
        store_plan(open_store(root), plan)
    except StoreError as error:
        logger.info(
            f"this machine cannot reach the store ({error}); the Workflow carries the suite"
        )
        return False
    return True
