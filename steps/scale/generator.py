"""Creates objects on a schedule and keeps, for each, when it was meant to go, when it went and what came back.

`parallel` submitters share one connection pool. In an open loop each waits for the next object's time; when all are busy the next
goes late, which is kept as its lag and reported, never hidden. Times are time.monotonic_ns() of this process.
"""

import asyncio
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import orjson

from perfdag.kube import Kube, KubeError
from perfdag.steps.scale import clock
from perfdag.steps.scale.schedule import Schedule
from perfdag.steps.scale.templates import Template

HELD = 0.98
"""An open loop that reaches less than this share of its rate did not hold it, unless nothing was late."""
BESIDE = 20
"""Connections for watches, the lock and lists."""
LATE = 0.1
"""Seconds: where 99 of 100 objects went at most so late, the schedule was held. Of a single batch this is all that can be said."""


def connections(parallel: int) -> int:
    """Connections for so many creations in flight and for what goes beside them (all beats on their way among it): a creation that waits for one of
    ours would count it as the server's time."""
    return max(100, parallel + clock.IN_FLIGHT + BESIDE)


@dataclass(slots=True)
class Submission:
    """One object. `started_ns`, `answered_ns` are 0 where it was never sent; `error` is empty where it was created."""

    index: int
    name: str
    namespace: str
    intended_ns: int
    started_ns: int = 0
    answered_ns: int = 0
    uid: str = ""
    retries: int = 0
    error: str = ""

    @property
    def lag(self) -> float:
        """Seconds it was sent after its time."""
        return (self.started_ns - self.intended_ns) / 1e9 if self.started_ns else 0.0


class Submitter(Protocol):
    """A way to create the documents of one object, in order."""

    async def submit(self, bodies: Sequence[bytes], namespace: str, tally: Counter[str]) -> str:
        """Create them; returns the UID of the last (empty where it is not told), and counts retries in `tally` by cause. Raises KubeError."""
        ...


class ApiSubmitter:
    """POST to the API server. `paths` are the collections of the template's documents."""

    def __init__(self, kube: Kube, resources: Sequence[Any]) -> None:
        self._kube, self._resources = kube, resources
        self._paths: dict[str, list[str]] = {}

    @classmethod
    async def open(cls, kube: Kube, template: Template) -> "ApiSubmitter":
        """Look up the kinds of the template. Raises KubeError where the cluster does not have one."""
        return cls(
            kube, [await kube.resource(each.api_version, each.kind) for each in template.documents]
        )

    async def submit(self, bodies: Sequence[bytes], namespace: str, tally: Counter[str]) -> str:
        """See Submitter. A conflict after a retry is our own create whose answer was lost."""
        paths = self._paths.get(namespace) or [each.path(namespace) for each in self._resources]
        self._paths[namespace] = paths
        uid = ""
        for path, body in zip(paths, bodies, strict=True):
            before = tally.total()
            try:
                _, _, data = await self._kube.raw("POST", path, body=body, tally=tally)
            except KubeError as error:
                if error.reason != "AlreadyExists" or tally.total() == before:
                    raise
                name = orjson.loads(body)["metadata"]["name"]
                _, _, data = await self._kube.raw("GET", f"{path}/{name}")
            uid = uid_of(data)
        return uid


def uid_of(data: bytes) -> str:
    """metadata.uid of an object's JSON."""
    uid: str = orjson.loads(data)["metadata"]["uid"]
    return uid


class CommandSubmitter:
    """kubectl or another program that reads manifests on its standard input; its start is part of the submit time, as
    in the seed's tool."""

    def __init__(
        self, kube: Kube, argv: Sequence[str], timeout: float = 60.0, reads_input: bool = True
    ) -> None:
        self._kube, self._argv, self._timeout, self._reads = kube, list(argv), timeout, reads_input

    async def submit(self, bodies: Sequence[bytes], namespace: str, tally: Counter[str]) -> str:
        """See Submitter. Placeholders in argv: {name}, {namespace}, {project}."""
        last = orjson.loads(bodies[-1])
        words = {
            "name": last["metadata"]["name"],
            "namespace": namespace,
            "project": namespace.removeprefix("runai-"),
        }
        argv = [_fill(word, words) for word in self._argv]
        text = orjson.dumps(
            {"apiVersion": "v1", "kind": "List", "items": [orjson.loads(body) for body in bodies]}
        )
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
            )
        except OSError as error:
            raise KubeError(
                0,
                "Submitter",
                f"{argv[0]} cannot be run: {error.strerror}",
                "install it, or use --submitter api",
            ) from None
        try:
            _, err = await asyncio.wait_for(
                process.communicate(text if self._reads else None), self._timeout
            )
        except TimeoutError:
            raise KubeError(0, "Timeout", f"{argv[0]} did not end in {self._timeout:g} s") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # what it started holds its pipes
                await process.wait()
        if process.returncode:
            raise KubeError(
                0,
                "Submitter",
                f"{argv[0]}: {' '.join(err.decode(errors='replace').split())[-300:]}",
            )
        return ""


def nameless(text: str, name: str) -> str:
    """A message without the object's name and what is made from it, so that equal causes are equal texts."""
    return (
        re.sub(rf"\b([a-z0-9]+-)*{re.escape(name)}(-[a-z0-9]+)*\b", "NAME", text)[:300]
        if name
        else text[:300]
    )


def _fill(word: str, words: dict[str, str]) -> str:
    for key, value in words.items():
        word = word.replace("{" + key + "}", value)
    return word


@dataclass
class Submitted:
    """What a generator did: the submissions in order of their index, and when it started (wall clock, monotonic)."""

    run: str
    submissions: list[Submission]
    started_wall: float
    started_ns: int
    retries: Counter[str] = field(default_factory=Counter)
    """By cause: an HTTP status (429 ...), timeout, connection; those of objects that failed in the end too."""

    def wall(self, monotonic_ns: int) -> float:
        """Unix time of a monotonic moment of this process."""
        return self.started_wall + (monotonic_ns - self.started_ns) / 1e9

    @property
    def created(self) -> list[Submission]:
        """Those the server (or the submitter) accepted."""
        return [each for each in self.submissions if each.answered_ns and not each.error]

    def summary(self, schedule: Schedule) -> dict[str, Any]:
        """Rates in objects/s, lags in seconds, failures by message, and whether the schedule was held (None: a closed loop).

        `rate_share` is of what was sent; it is None too where all of that was due at once, which has no rate. A schedule of which a part was
        never sent was not held.
        """
        sent = [each for each in self.submissions if each.started_ns]
        done = self.created
        span = (
            (max(each.answered_ns for each in done) - min(each.started_ns for each in sent)) / 1e9
            if done
            else 0.0
        )
        lags = sorted(each.lag for each in sent)
        planned, took = (
            _span(each.intended_ns for each in sent),
            _span(each.started_ns for each in sent),
        )
        share = (1.0 if took <= planned else planned / took) if planned else None
        late = lags[min(len(lags) - 1, -(-99 * len(lags) // 100) - 1)] if lags else 0.0
        held = len(sent) == len(self.submissions) and (
            late <= LATE or (share is not None and share >= HELD)
        )
        causes = Counter(nameless(each.error, each.name) for each in self.submissions if each.error)
        return {
            "planned": len(self.submissions),
            "created": len(done),
            "failed": len(sent) - len(done),
            "not_sent": len(self.submissions) - len(sent),
            "retries": dict(self.retries),
            "create_rate_per_s": len(done) / span if span else None,
            "seconds": span,
            "lag_median_s": lags[len(lags) // 2] if lags and schedule.open_loop else None,
            "lag_p99_s": late if lags and schedule.open_loop else None,
            "rate_share": share if schedule.open_loop else None,
            "held": held if schedule.open_loop else None,
            "errors": dict(causes.most_common(10)),
        }


def _span(moments: Iterable[int]) -> float:
    """Seconds from the first to the last of moments in ns; 0 without any."""
    found = list(moments)
    return (max(found) - min(found)) / 1e9 if found else 0.0


async def generate(
    submitter: Submitter,
    template: Template,
    count: int,
    namespaces: Sequence[str],
    schedule: Schedule,
    parallel: int,
    *,
    run: str,
    first: int = 0,
    prefix: str = "",
    on_plan: Callable[[Submitted], None] | None = None,
    on_submit: Callable[[Submission], None] | None = None,
) -> Submitted:
    """Create `count` objects, `parallel` at most in flight, spread over the namespaces in turn.

    Names are `<prefix or run>-<index>`, indices from `first`. A refused or timed-out object is kept with its error and the rest go
    on. `on_plan` gets what is returned before anything is sent: who is interrupted knows then what may be there.
    """
    start_wall, start = time.time(), time.monotonic_ns()
    # gaps between Unix time and the monotonic clock are fixed here, so every later stamp is on one clock
    items = [
        Submission(
            first + i,
            f"{prefix or run}-{first + i}",
            namespaces[i % len(namespaces)],
            start + round(at * 1e9),
        )
        for i, at in enumerate(schedule.offsets(count))
    ]
    done = Submitted(run, items, start_wall, start)
    if on_plan:
        on_plan(done)
    queue = iter(items)

    async def worker() -> None:
        for item in queue:
            await _until(item.intended_ns)
            if not schedule.open_loop:
                item.intended_ns = time.monotonic_ns()  # a closed loop has no time to be late for
            intended = _rfc3339(done.wall(item.intended_ns))
            bodies = [
                each.render(item.name, item.namespace, item.index, intended)
                for each in template.documents
            ]
            item.started_ns = time.monotonic_ns()
            tally: Counter[str] = Counter()
            try:
                item.uid = await submitter.submit(bodies, item.namespace, tally)
            except KubeError as error:
                item.error = str(error)
            item.answered_ns = time.monotonic_ns()
            item.retries = tally.total()
            done.retries += tally
            if on_submit:
                on_submit(item)

    await asyncio.gather(*(worker() for _ in range(max(1, min(parallel, count)))))
    return done


async def _until(moment_ns: int) -> None:
    """Sleep until a monotonic moment; the event loop's timer is good to about 1 ms."""
    left = (moment_ns - time.monotonic_ns()) / 1e9
    if left > 0:
        await asyncio.sleep(left)


def _rfc3339(wall: float) -> str:
    return (
        datetime.fromtimestamp(wall, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    )
