"""How fast the lead of a wide gang connects to its peers, and what memory a peer costs it.

    python benchmarks/gang.py --namespace bench [--hosts 60]

Needs perfdag installed in the namespace, the image base, and kubectl. The pods share the cluster's
nodes. Seconds are from the start of the last pod's container to the lead's log line, by the nodes'
clocks. Memory is the PSS of the lead's ssh processes and the RSS of its Python, divided by the
peers. Exit 1 where a limit is not held.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

import orjson
from limits import at_most

CONNECT_S, PEER_MB = 30.0, 5.0
MEMORY = (
    "for p in /proc/[0-9]*; do read -r name <$p/comm; "
    "case $name in ssh) grep ^Pss: $p/smaps_rollup;; perfdag|python*) grep ^VmRSS: "
    "$p/status;; esac; done; true"
)


def kubectl(*words: str) -> str:
    """Return the output of kubectl."""
    return subprocess.run(["kubectl", *words], stdout=subprocess.PIPE, text=True, check=True).stdout


def submit(namespace: str, hosts: int) -> str:
    """Submit a gang that sleeps for a minute; return the Workflow's name."""
    with tempfile.TemporaryDirectory() as folder:
        suite = Path(folder) / "gang.yaml"
        suite.write_text(
            f"name: gang\nentries:\n  - benchmark: command\n    hosts: {{count: {hosts}}}\n"
            "    params: {argv: [sleep, '60'], expected: 60}\n"
        )
        argv = [sys.executable, "-m", "perfdag", "submit", str(suite), "-n", namespace]
        output = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout
    return output.split("workflow ")[1].split()[0]


def main() -> int:
    """Measure one gang; 1 where a limit is not held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--hosts", type=int, default=60)
    words = parser.parse_args()
    of = ("-n", words.namespace)
    workflow = submit(words.namespace, words.hosts)
    labels = f"workflows.argoproj.io/workflow={workflow},perfdag/measuring=true"
    deadline = time.monotonic() + 600
    while True:
        lead = kubectl("get", "pods", *of, "-l", f"{labels},perfdag/rank=0", "-o", "name").strip()
        log = subprocess.run(
            ["kubectl", "logs", *of, "--timestamps", "-c", "main", lead or "none"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        if line := re.search(r"^(\S+) connected to (\d+) peers in (.*) s$", log, re.MULTILINE):
            break
        if time.monotonic() > deadline:
            print(log, file=sys.stderr)
            raise SystemExit("the lead did not connect within 600 s")
        time.sleep(1)
    memory = kubectl("exec", *of, "-c", "main", lead, "--", "sh", "-c", MEMORY)
    kilobytes = {
        name: [int(value) for value in re.findall(rf"{name}:\s*(\d+)", memory)]
        for name in ("Pss", "VmRSS")
    }
    pods = orjson.loads(kubectl("get", "pods", *of, "-l", labels, "-o", "json"))["items"]
    starts = [
        datetime.fromisoformat(state["state"]["running"]["startedAt"])
        for pod in pods
        for state in pod["status"]["containerStatuses"]
        if state["name"] == "main"
    ]
    connection = datetime.fromisoformat(f"{line[1][:19]}+00:00")
    peers = int(line[2])
    print(
        f"{words.hosts} pods started within "
        f"{(max(starts) - min(starts)).total_seconds():.0f} s; connecting took {line[3]} s"
    )
    ok = at_most(
        "connected after the last pod ran",
        (connection - max(starts)).total_seconds(),
        CONNECT_S,
        "s",
    )
    ok &= at_most("ssh of the lead, per peer", sum(kilobytes["Pss"]) / 1024 / peers, PEER_MB, "MB")
    with_lead = (sum(kilobytes["Pss"]) + sum(kilobytes["VmRSS"])) / 1024 / peers
    ok &= at_most("with its Python", with_lead, PEER_MB, "MB")
    print(f"    {len(kilobytes['Pss'])} ssh processes, {len(kilobytes['VmRSS'])} of Python")
    kubectl("delete", "workflow", *of, workflow)
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
