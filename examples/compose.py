"""Print a Workflow with a DAG of your own around a perfdag suite: prepare, measure, tidy up.

A task does not inherit the parameters of the template that it refers to, so the Workflow sets them.
For an installation with other options, set LOCK_NAMESPACE=team, CLUSTER_SCOPE=1 or IMAGES=...

python examples/compose.py suites/quick.yaml s3://bench/results | kubectl create -n bench -f -
"""

import base64
import json
import os
import sys

from hera.workflows import DAG, Container, Task, Workflow
from hera.workflows import models as m

from perfdag.app.cluster.manifest_suite import suite_text
from perfdag.kube.podspec import restricted
from perfdag.suite.load import load_suite
from perfdag.workflows.emit import dump
from perfdag.workflows.templates import Installation, template

loaded, scope = load_suite(sys.argv[1]), os.environ.get("CLUSTER_SCOPE") == "1" or None
installed = template(
    Installation(store=sys.argv[2], lock_namespace=os.environ.get("LOCK_NAMESPACE", "perfdag"))
)
parameters = {parameter.name: parameter.value for parameter in installed.arguments} | {
    "suite": base64.b64encode(suite_text(loaded).encode()).decode()
}
not_inherited = (
    "service_account_name",
    "synchronization",
    "active_deadline_seconds",
    "ttl_strategy",
    "pod_gc",
    "pod_metadata",
    "workflow_metadata",
)
run, finish = (
    m.TemplateRef(name="perfdag", template=name, cluster_scope=scope) for name in ("run", "finish")
)
hooks = {"exit": m.LifecycleHook(template_ref=finish)}
labels = {"perfdag/suite": loaded.suite.name}  # so that `perfdag status` and `delete` know it
with Workflow(
    generate_name="composed-", labels=labels, entrypoint="all", arguments=parameters, hooks=hooks
) as workflow:
    for name in not_inherited:  # for example: one measuring run at a time, no sidecars
        setattr(workflow, name, getattr(installed, name))
    image = os.environ.get("IMAGES", "localhost/perfdag-{name}:1").replace("{name}", "base")
    # the security context that PodSecurity `restricted` requires of Argo's own containers
    security = json.dumps(restricted())
    echo = Container(
        name="echo", image=image, command=["echo"], args=["tune the nodes"], pod_spec_patch=security
    )
    with DAG(name="all"):
        (
            Task(name="before", template=echo)
            >> Task(name="measure", template_ref=run)
            >> Task(name="after", template=echo)
        )
sys.stdout.write(dump([workflow.to_dict()]))
