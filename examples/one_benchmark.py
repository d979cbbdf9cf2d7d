"""Two benchmarks with their permutations, one after the other, without a suite file.

python examples/one_benchmark.py | kubectl create -n bench -f -
"""

import sys

from hera.workflows import Steps, Workflow

from perfdag.workflows import benchmark, dump

pair = {"count": 2, "placement": "spread"}
with Workflow(generate_name="network-", entrypoint="all") as workflow, Steps(name="all"):
    benchmark("iperf", duration="1s", streams=[1, 4], hosts=pair)
    benchmark("latency", duration="1s", test=["TCP_RR", "UDP_RR"], hosts=pair)
sys.stdout.write(dump([workflow.to_dict()]))
