"""A suite between two steps of your own; the second one runs also if the suite fails.

python examples/compose.py SUITE | kubectl create -n bench -f -
"""

import sys

from hera.workflows import DAG, Container, Task, Workflow

from perfdag.workflows import RESTRICTED, dump, measure

if len(sys.argv) != 2:
    sys.exit(__doc__)
step = {"image": "localhost/perfdag-base:1", "command": ["echo"], "pod_spec_patch": RESTRICTED}
with Workflow(
    generate_name="composed-", entrypoint="all", service_account_name="perfdag-measure"
) as workflow:
    tune = Container(name="tune", args=["tune the nodes"], **step)
    reset = Container(name="reset", args=["reset the nodes"], **step)
    with DAG(name="all", fail_fast=False):
        Task(name="prepare", template=tune) >> measure(sys.argv[1])
        always = "measure.Succeeded || measure.Failed || measure.Errored || measure.Omitted"
        Task(name="tidy", template=reset, depends=always)
sys.stdout.write(dump([workflow.to_dict()]))
