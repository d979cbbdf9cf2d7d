"""A suite on a schedule: two CronWorkflows and the ConfigMap that they read.

python examples/nightly.py NAMESPACE | kubectl apply -f -
"""

import sys

from perfdag import Entry, Suite
from perfdag.workflows import dump, schedule

if len(sys.argv) != 2:
    sys.exit(__doc__)
sleep = Entry(benchmark="command", params={"argv": ["sleep", "0.1"], "expected": 0.1})
suite = Suite(name="nightly", repetitions=5, entries=[sleep])
sys.stdout.write(dump(schedule(suite, "41 4 * * *", namespace=sys.argv[1])))
