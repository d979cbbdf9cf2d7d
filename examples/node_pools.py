"""A suite with an entry for each node pool, which are labels of nodes.

python examples/node_pools.py LABEL=VALUE... | kubectl create -n bench -f -
"""

import sys

from hera.workflows import DAG, Workflow

from perfdag import Entry, Suite
from perfdag.workflows import dump, measure

if not sys.argv[1:]:
    sys.exit(__doc__)
entries = [
    Entry(
        name=f"pool-{number}",
        benchmark="command",
        params={"argv": ["python3", "-c", "sum(range(10**7))"]},
        node_selector=dict([pool.split("=")]),
    )
    for number, pool in enumerate(sys.argv[1:])
]
with Workflow(generate_name="pools-", entrypoint="all") as workflow, DAG(name="all"):
    measure(Suite(name="pools", repetitions=3, entries=entries))
sys.stdout.write(dump([workflow.to_dict()]))
