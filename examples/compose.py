"""A DAG of one's own around a perfdag suite: prepare, measure, then tell. Prints a Workflow for `kubectl create -f -`.

python examples/compose.py suites/quick.yaml s3://bench/results | kubectl create -n bench -f -
The store is named here: parameters of a Workflow do not fall back on those of the templates that its tasks refer to. So is what else the
installation was told: IMAGES (--images), LOCK_NAMESPACE (--lock-namespace), CLUSTER_SCOPE=1 (--cluster-scope).
"""

import base64
import json
import os
import sys

from hera.workflows import DAG, Container, Parameter, Task, Workflow
from hera.workflows import models as m

from perfdag import suite
from perfdag.cli.render import inline
from perfdag.podspec import LABEL, image, restricted
from perfdag.workflows.emit import dump
from perfdag.workflows.templates import Installation, template

IMAGES = os.environ.get("IMAGES", "localhost/perfdag-{name}:1")
LOCK = os.environ.get("LOCK_NAMESPACE", "perfdag")


def of_perfdag(name: str) -> m.TemplateRef:
    """A template of the installation."""
    return m.TemplateRef(name="perfdag", template=name, cluster_scope=os.environ.get("CLUSTER_SCOPE") == "1" or None)


loaded = suite.load(sys.argv[1])
installed = template(Installation(store=sys.argv[2], lock_namespace=LOCK))
given = {each.name: each.value for each in installed.arguments or []}
given["suite"] = base64.b64encode(inline(loaded).encode()).decode()

with Workflow(
    generate_name="composed-",
    labels={f"{LABEL}/suite": loaded.suite.name},  # so that `perfdag status` and `delete` know it
    entrypoint="all",
    service_account_name="perfdag-run",
    arguments=[Parameter(name=name, value=value) for name, value in given.items()],
    hooks={"exit": m.LifecycleHook(template_ref=of_perfdag("finish"))},
    # what a task does not inherit from the template it refers to: one measuring run at a time, what is kept for how long, no sidecars
    synchronization=installed.synchronization,
    active_deadline_seconds=installed.active_deadline_seconds,
    ttl_strategy=installed.ttl_strategy,
    pod_gc=installed.pod_gc,
    pod_metadata=installed.pod_metadata,
) as workflow:
    say = Container(
        name="say",
        image=image("base", IMAGES),
        command=["echo"],
        args=["{{inputs.parameters.text}}"],
        inputs=[Parameter(name="text")],
        pod_spec_patch=json.dumps(restricted()),  # Argo's own containers as PodSecurity `restricted` wants them
    )
    with DAG(name="all"):
        before = Task(name="before", template=say, arguments={"text": "tune the nodes here"})
        measure = Task(name="measure", template_ref=of_perfdag("run"))
        after = Task(name="after", template=say, arguments={"text": "undo it here"})
        before >> measure >> after

sys.stdout.write(dump([workflow.to_dict()]))
