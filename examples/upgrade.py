"""Measure, upgrade, measure again, compare, and decide whether the upgrade stays.

python examples/upgrade.py SUITE STORE | kubectl create -n bench -f -
"""

import sys

from hera.workflows import DAG, Container, Parameter, SecretEnvFrom, Task, Workflow

from perfdag.workflows import RESTRICTED, dump, measure

if len(sys.argv) != 3:
    sys.exit(__doc__)
suite, store = sys.argv[1:]
step = {"image": "localhost/perfdag-base:1", "command": ["echo"], "pod_spec_patch": RESTRICTED}
with Workflow(
    generate_name="upgrade-", entrypoint="all", service_account_name="perfdag-measure"
) as workflow:
    upgrade = Container(name="upgrade", args=["upgrade the nodes"], **step)
    keep = Container(name="keep", args=["keep the upgrade"], **step)
    take_back = Container(name="take-back", args=["take the upgrade back"], **step)
    compare = Container(
        name="compare",
        image="localhost/perfdag-finish:1",
        command=["perfdag", "compare", "--gate", "--store", store],
        args=["{{inputs.parameters.before}}", "{{inputs.parameters.after}}"],
        inputs=[Parameter(name="before"), Parameter(name="after")],
        env_from=[SecretEnvFrom(name="perfdag-store")],
        pod_spec_patch=RESTRICTED,
    )
    with DAG(name="all", fail_fast=False):
        before, after = measure(suite, name="before"), measure(suite, name="after")
        runs = {"before": before.get_parameter("run"), "after": after.get_parameter("run")}
        difference = Task(name="compare", template=compare, arguments=runs)
        before >> Task(name="upgrade", template=upgrade) >> after >> difference
        Task(name="keep", template=keep, depends="compare.Succeeded")
        Task(name="take-back", template=take_back, depends="compare.Failed")
sys.stdout.write(dump([workflow.to_dict()]))
