"""One benchmark with its permutations as a task, without a suite file.

python examples/one_benchmark.py STORE | kubectl create -n bench -f -
"""

import sys

from hera.workflows import DAG, Workflow

from perfdag import Entry
from perfdag.workflows import dump, measure

entry = Entry(
    benchmark="iperf",
    params={"duration": "1s"},
    permutations={"product": {"streams": [1, 4], "hosts.placement": ["spread", "packed"]}},
)
with Workflow(generate_name="iperf-", entrypoint="all") as workflow, DAG(name="all"):
    measure(entry, store=sys.argv[1])
sys.stdout.write(dump([workflow.to_dict()]))
