"""The template that checks the age of the newest run of a suite, and its CronWorkflow."""

from hera.workflows import Parameter

from perfdag.kube.client import Object
from perfdag.kube.patch import step_pod_patch
from perfdag.workflows.containers import (
    ASIDE,
    Installation,
    container,
    cron_workflow,
    installed_template,
    labels,
    pod_fields,
    with_store,
)

NAME = "perfdag-age"
SCHEDULE = "17 12 * * *"
DEADLINE = 900  # seconds that a check may take


def template(installation: Installation) -> Object:
    """Return the template, in the scope of the installation: one pod, which takes no lock."""
    with installed_template(
        installation,
        NAME,
        "Fails if the newest run of a suite is too old.",
        entrypoint="age-pod",
        service_account_name="perfdag-measure",
        arguments=[
            Parameter(name="suitename", description="name of the suite"),
            Parameter(
                name="maxage",
                description="age above which the newest run is too old, for example 26h",
            ),
            Parameter(
                name="store",
                value=installation.store,
                description="s3://bucket/prefix or claim://NAME",
            ),
        ],
        **pod_fields(installation),
    ) as w:
        container(
            installation,
            "age-pod",
            ("suitename", "maxage"),
            image=installation.image("finish"),
            args=["step", "age"],
            active_deadline_seconds=DEADLINE,
            affinity=ASIDE,
            labels=labels("age"),
            pod_spec_patch=with_store(
                installation, step_pod_patch({"cpu": "100m", "memory": "256Mi"})
            ),
        )
    document: Object = w.to_dict()
    document["spec"]["templates"][0]["pendingTimeout"] = f"{installation.pending_limit}s"
    return document


def cron(
    namespace: str, suite: str, max_age: int, store: str = "", cluster_scope: bool = False
) -> Object:
    """Return a CronWorkflow that fails daily while the newest run is older than `max_age` s."""
    parameters = {"suitename": suite, "maxage": f"{max_age}s"} | ({"store": store} if store else {})
    workflow = cron_workflow(
        f"perfdag-{suite}-age",
        namespace,
        suite,
        NAME,
        parameters,
        cluster_scope,
        schedules=[SCHEDULE],
        successful_jobs_history_limit=1,
        failed_jobs_history_limit=3,
    )
    document: Object = workflow.to_dict()
    return document
