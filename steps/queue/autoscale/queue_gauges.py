"""The gauges of a queue on a cluster, read from its frontend through the API server's proxy."""

import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from perfdag.kube.client import Kube, KubeError
from perfdag.steps.queue.frontend.exposition import escape
from perfdag.steps.queue.manifests.deployments import PORTS

GaugeReader = Callable[[], Awaitable[tuple[int | None, float | None]]]
"""Returns the requests that wait and the age of the oldest in seconds; None if unknown."""
TIMEOUT_SECONDS = 2.0
"""Time of a frontend to answer: samples of the replicas wait for it."""
_DEPTH, _WAIT = "hpa_queue_waiting", "hpa_queue_oldest_seconds"


def find_frontend(containers: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """Return the frontend's Service and the queue, as a backend's command names them.

    None if it does not.
    """
    for container in containers:
        command = [*container.get("command", []), *container.get("args", [])]
        host = _option(command, "faddr").rpartition(":")[0]
        queue = _option(command, "name")
        if host and queue and "." not in host:
            return host, queue
    return None


def _option(command: Sequence[str], name: str) -> str:
    for word, after in itertools.pairwise([*command, ""]):
        option, equals, value = word.partition("=")
        if option in (f"-{name}", f"--{name}"):
            return value if equals else after
    return ""


def queue_gauges(
    kube: Kube, namespace: str, containers: Sequence[Mapping[str, Any]]
) -> GaugeReader:
    """Return a reader of the gauges of the queue that these containers serve.

    It returns None for both if the frontend is unknown or refuses, and always after a time-out:
    waiting
    again would delay the samples.
    """
    frontend = find_frontend(containers)

    async def read() -> tuple[int | None, float | None]:
        nonlocal frontend
        if frontend is None:
            return None, None
        service, queue = frontend
        path = f"/api/v1/namespaces/{namespace}/services/{service}:{PORTS['metrics']}/proxy/metrics"
        try:
            _, _, body = await kube.raw("GET", path, timeout=TIMEOUT_SECONDS, retries=0)
        except KubeError as error:
            if not error.status:  # no answer in time
                frontend = None
            return None, None
        return parse_gauges(body.decode(errors="replace"), queue)

    return read


def parse_gauges(text: str, queue: str) -> tuple[int | None, float | None]:
    """Return depth and age of the oldest request (seconds) of a queue in a frontend's metrics.

    None if absent.
    """
    label, values = f'name="{escape(queue)}"', dict[str, float]()
    for line in text.splitlines():
        name, _, rest = line.partition("{")
        if name in (_DEPTH, _WAIT) and rest.startswith(label):
            values[name] = float(rest.rpartition(" ")[2])
    return int(values[_DEPTH]) if _DEPTH in values else None, values.get(_WAIT)
