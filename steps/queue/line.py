"""The waiting line of a queue on a cluster, as the gauges of its frontend tell it through the API server's proxy."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfdag.steps.queue.manifests import PORTS
from perfdag.steps.queue.metrics import escape

if TYPE_CHECKING:
    from perfdag.kube import Kube

Line = Callable[[], Awaitable[tuple[int | None, float | None]]]
"""Requests that wait now, and the longest wait in seconds; None where they cannot be had."""
SECONDS = 2.0
"""A frontend is given so long: a look at the replicas waits for it."""
_DEPTH, _WAIT = "hpa_queue_waiting", "hpa_queue_maxwait_seconds"


def frontend_of(containers: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """Service of the frontend and name of the queue, by the options of a backend's command; None where it says no Service and queue."""
    for each in containers:
        words = [*each.get("command", []), *each.get("args", [])]
        host = _option(words, "faddr").rpartition(":")[0]
        queue = _option(words, "name")
        if host and queue and "." not in host:
            return host, queue
    return None


def _option(words: Sequence[str], name: str) -> str:
    for word, after in itertools.pairwise([*words, ""]):
        option, equals, value = word.partition("=")
        if option in (f"-{name}", f"--{name}"):
            return value if equals else after
    return ""


def line_of(kube: Kube, namespace: str, containers: Sequence[Mapping[str, Any]]) -> Line:
    """The line of the queue that these containers serve: None where its frontend is not known or refuses, and after one that did not answer
    in SECONDS, since that holds up the looks."""
    from perfdag.kube import KubeError

    there = frontend_of(containers)

    async def ask() -> tuple[int | None, float | None]:
        nonlocal there
        if there is None:
            return None, None
        service, queue = there
        path = f"/api/v1/namespaces/{namespace}/services/{service}:{PORTS['metrics']}/proxy/metrics"
        try:
            _, _, body = await kube.raw("GET", path, timeout=SECONDS, retries=0)
        except KubeError as error:
            if not error.status:  # no answer in time, and the next would be no faster
                there = None
            return None, None
        return gauges(body.decode(errors="replace"), queue)

    return ask


def gauges(text: str, queue: str) -> tuple[int | None, float | None]:
    """Depth and longest wait (seconds) of a queue in a frontend's metrics; None for what is not there."""
    label, found = f'name="{escape(queue)}"', dict[str, float]()
    for each in text.splitlines():
        name, _, rest = each.partition("{")
        if name in (_DEPTH, _WAIT) and rest.startswith(label):
            found[name] = float(rest.rpartition(" ")[2])
    return int(found[_DEPTH]) if _DEPTH in found else None, found.get(_WAIT)
