"""A suite on a schedule: two CronWorkflows and the ConfigMap that they read.

python examples/nightly.py STORE NAMESPACE | kubectl apply -f -
"""

import sys

from perfdag import Entry, Suite
from perfdag.workflows import dump, schedule

store, namespace = sys.argv[1:]
sleep = Entry(benchmark="command", params={"argv": ["sleep", "0.1"], "expected": 0.1})
suite = Suite(name="nightly", repetitions=5, entries=[sleep])
manifests = schedule(suite, "41 4 * * *", namespace=namespace, store=store)
sys.stdout.write(dump(manifests))
