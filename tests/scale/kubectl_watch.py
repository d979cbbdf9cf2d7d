"""An independent watch: `kubectl get --watch` in a process of its own."""

import contextlib
import os
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterator

DIRECT = {**os.environ}
"""The environment without a proxy that a fixture names in KUBECONFIG later."""


class Watch:
    """What `kubectl get --watch` printed, and when: (uid, stage) -> first Unix time."""

    def __init__(self, kind: str, namespace: str) -> None:
        columns = "{.type} {.object.metadata.uid} {.object.status.phase}|{.object.spec.nodeName}|"
        columns += "{.object.metadata.ownerReferences[0].uid}"
        self.seen: dict[tuple[str, str], float] = {}
        self.pods = defaultdict[str, set[str]](set)
        """Objects by their owner."""
        argv = ["kubectl", "get", kind, "-n", namespace, "--watch", "--output-watch-events"]
        self._process = subprocess.Popen(
            [*argv, "-o", "jsonpath=" + columns + '{"\\n"}'],
            stdout=subprocess.PIPE,
            text=True,
            env=DIRECT,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            now = time.time()
            change, uid, state = line.rstrip("\n").split(" ", 2)
            phase, node, owner = state.split("|")
            self.pods[owner].add(uid)
            for stage in ("created", phase.lower(), "scheduled" if node else ""):
                self.seen.setdefault((uid, stage), now)
            if change == "DELETED":
                self.seen.setdefault((uid, "gone"), now)

    def between(self, uid: str, start: str, end: str) -> float:
        return self.seen[uid, end] - self.seen[uid, start]

    def last(self, owner: str, stage: str) -> float:
        """When the last pod of a workload reached a stage."""
        return max(self.seen[uid, stage] for uid in self.pods[owner])

    def close(self) -> None:
        ended = self._process.poll()
        self._process.terminate()
        self._process.wait()
        assert ended is None, "the API server ended kubectl's watch: times after that are missing"


@contextlib.contextmanager
def watching(kind: str, namespace: str) -> Iterator[Watch]:
    watch = Watch(kind, namespace)
    time.sleep(1.0)
    try:
        yield watch
    finally:
        watch.close()
