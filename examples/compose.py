"""A suite between two steps of your own.

python examples/compose.py SUITE STORE | kubectl create -n bench -f -
"""

import sys

from hera.workflows import DAG, Container, Task, Workflow

from perfdag.workflows import RESTRICTED, dump, measure

step = {"image": "localhost/perfdag-base:1", "command": ["echo"], "pod_spec_patch": RESTRICTED}
with Workflow(generate_name="composed-", entrypoint="all") as workflow:
    tune = Container(name="tune", args=["tune the nodes"], **step)
    reset = Container(name="reset", args=["reset the nodes"], **step)
    with DAG(name="all"):
        prepare, tidy = Task(name="prepare", template=tune), Task(name="tidy", template=reset)
        prepare >> measure(sys.argv[1], store=sys.argv[2]) >> tidy
sys.stdout.write(dump([workflow.to_dict()]))
