"""A DAG of one's own around a perfdag suite: prepare, measure, then tell. Prints a Workflow for `kubectl create -f -`.

python examples/compose.py suites/quick.yaml | kubectl create -n bench -f -
"""

import base64
import sys
from pathlib import Path

from hera.workflows import DAG, Container, Parameter, Task, Workflow
from hera.workflows import models as m

from perfdag.workflows.emit import dump
from perfdag.workflows.templates import Installation, template

suite = base64.b64encode(Path(sys.argv[1]).read_bytes()).decode()
installed = template(Installation())
given = {each.name: each.value for each in installed.arguments or []} | {"suite": suite}

with Workflow(
    generate_name="composed-",
    entrypoint="all",
    service_account_name="perfdag-run",
    arguments=[Parameter(name=name, value=value) for name, value in given.items()],
    hooks={"exit": m.LifecycleHook(template_ref=m.TemplateRef(name="perfdag", template="finish"))},
) as workflow:
    say = Container(
        name="say", image="localhost/perfdag-base:1", command=["echo"], args=["{{inputs.parameters.text}}"], inputs=[Parameter(name="text")]
    )
    with DAG(name="all"):
        before = Task(name="before", template=say, arguments={"text": "tune the nodes here"})
        measure = Task(name="measure", template_ref=m.TemplateRef(name="perfdag", template="run"))
        after = Task(name="after", template=say, arguments={"text": "undo it here"})
        before >> measure >> after

sys.stdout.write(dump([workflow.to_dict()]))
