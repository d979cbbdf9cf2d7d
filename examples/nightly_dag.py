"""A DAG of your own on a schedule: Hera's CronWorkflow around a suite.

python examples/nightly_dag.py SUITE | kubectl create -n bench -f -
"""

import sys

from hera.workflows import DAG, Container, CronWorkflow, Task

from perfdag.workflows import RESTRICTED, dump, measure

if len(sys.argv) != 2:
    sys.exit(__doc__)
step = {"image": "localhost/perfdag-base:1", "command": ["echo"], "pod_spec_patch": RESTRICTED}
with CronWorkflow(
    name="nightly-dag",
    schedules=["41 3 * * *"],
    timezone="Etc/UTC",
    entrypoint="all",
    service_account_name="perfdag-measure",
) as workflow:
    drain = Container(name="drain", args=["drain the other jobs"], **step)
    with DAG(name="all"):
        Task(name="drain", template=drain) >> measure(sys.argv[1])
sys.stdout.write(dump([workflow.to_dict()]))
