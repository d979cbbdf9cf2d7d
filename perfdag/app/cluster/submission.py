"""Submit a suite to a cluster, or continue a run there."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from perfdag.app.cluster import template
from perfdag.app.cluster.render import report_missing_gpus
from perfdag.app.cluster.resume import resumable_run
from perfdag.app.cluster.template import NewRun
from perfdag.benchmark import registry
from perfdag.commands.options import CommandError
from perfdag.plan.plan import Plan, make_plan, place_hosts
from perfdag.steps.runner.limits import kinds_of
from perfdag.store.open import check_cluster_address, on_cluster
from perfdag.suite.load import load_suite
from perfdag.suite.model import LoadedSuite

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
        kinds_of(plan)
        return loaded, plan


def submit_suite(submission: Submission) -> tuple[str, str]:
    """Submit a suite; return the run id and the name of its Workflow.

    Raises BadDocument, CommandError, KubeError.
    """
    loaded, plan = submission.plan()
    report_missing_gpus(plan)
    report_other_packages(plan)
    installed = template.installed_template(submission.namespace)
    own = loaded.suite.store
    if own and on_cluster(own) and own != installed.store:
        raise CommandError(
            f"the suite has the store {own}, and the installation of namespace "
            f"{submission.namespace} the store {installed.store}: submit it to the namespace of "
            f"another installation (perfdag install --namespace ... --store {own})"
        )
    priority = plan.options.priority
    run = NewRun(
        plan.run_id,
        plan.suite,
        priority,
        loaded,
        tuple(submission.settings),
        tuple(submission.only),
    )
    return run.run_id, installed.start(run)


def report_other_packages(plan: Plan) -> None:
    """Report benchmarks of other packages, which perfdag's own images do not have."""
    for name in sorted({point.benchmark for point in plan.points}):
        package = registry.package(name)
        if package.partition(" ")[0] != "perfdag":
            logger.info(
                f"benchmark {name} is of package {package}: the images need it "
                "(images/build --with WHEEL_OR_PATH); perfdag doctor --cluster asks them"
            )


def resume_run(name: str, namespace: str) -> tuple[str, str]:
    """Continue a run; return its id and the name of its new Workflow.

    Raises CommandError, StoreError, KubeError.
    """
    installed = template.installed_template(namespace)
    check_cluster_address(installed.store)
    run = resumable_run(name, namespace, installed.store)
    return run.run_id, installed.start(run)
