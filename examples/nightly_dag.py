"""A DAG of your own on a schedule: Hera's CronWorkflow around a suite.

python examples/nightly_dag.py SUITE STORE | kubectl create -n bench -f -
"""

import sys

from hera.workflows import DAG, Container, CronWorkflow, Task

from perfdag.workflows import RESTRICTED, dump, measure

step = {"image": "localhost/perfdag-base:1", "command": ["echo"], "pod_spec_patch": RESTRICTED}
with CronWorkflow(
    name="nightly-dag", schedules=["41 3 * * *"], timezone="Etc/UTC", entrypoint="all"
) as workflow:
    drain = Container(name="drain", args=["drain the other jobs"], **step)
    with DAG(name="all"):
        Task(name="drain", template=drain) >> measure(sys.argv[1], store=sys.argv[2])
sys.stdout.write(dump([workflow.to_dict()]))
