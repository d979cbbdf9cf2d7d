"""Create objects on a schedule and record when they were due, sent and answered.

Due times are fixed before the run (open loop). `parallel` submitters share one connection pool. In
an open loop a submitter waits for the due time of the next object. If all are busy, the object is
sent late and the lag is reported, but the next ones are not delayed. Times are time.monotonic_ns()
of this process. Objects are sent to the API server, or to a program that reads manifests.
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
from typing import Any, Literal, Protocol

import orjson

from perfdag.kube.client import Kube, KubeError, Resource
from perfdag.steps.scale.objects import Template

Arrival = Literal["closed", "constant", "batch"]


@dataclass(frozen=True)
class Schedule:
    """How submissions arrive.

    closed: as fast as `parallel` submitters can. constant: `rate` objects/s. batch: `size` at once
    every `delay` seconds. Raises ValueError without a rate or delay that is needed.
    """

    arrival: Arrival = "closed"
    rate: float = 0.0
    size: int = 1
    delay: float = 0.0

    def __post_init__(self) -> None:
        if self.arrival == "constant" and not self.rate > 0:
            raise ValueError("arrival constant needs a rate above 0 objects/s")
        if self.arrival == "batch" and not self.delay > 0:
            raise ValueError("arrival batch needs a delay above 0 s")

    @property
    def open_loop(self) -> bool:
        """False where the system sets the pace."""
        return self.arrival != "closed"

    def offsets(self, count: int) -> list[float]:
        """Seconds from the start, one an object, in order; all 0 for closed."""
        if self.arrival == "constant":
            return [index / self.rate for index in range(count)]
        return [index // self.size * self.delay for index in range(count)]

    def span(self, count: int) -> float:
        """Return the seconds from the first to the last of `count` objects; 0 for closed."""
        return self.offsets(count)[-1] if count else 0.0


class Submitter(Protocol):
    """A way to create the documents of one object, in order."""

    async def submit(self, bodies: Sequence[bytes], namespace: str, tally: Counter[str]) -> str:
        """Create them and return the UID of the last, or an empty string if it is unknown.

        Counts retries by cause in `tally`. Raises KubeError.
        """
        ...


class ApiSubmitter:
    """POST to the API server. `resources` are the kinds of the template's documents."""

    def __init__(self, kube: Kube, resources: Sequence[Resource]) -> None:
        self._kube, self._resources = kube, resources

    @classmethod
    async def open(cls, kube: Kube, template: Template) -> "ApiSubmitter":
        """Look up the kinds of the template. Raises KubeError for an unknown kind."""
        kinds = [(document.api_version, document.kind) for document in template.documents]
        return cls(kube, [await kube.resource(*kind) for kind in kinds])

    async def submit(self, bodies: Sequence[bytes], namespace: str, tally: Counter[str]) -> str:
        """See Submitter. A conflict after a retry is our own create whose answer was lost."""
        uid = ""
        for resource, body in zip(self._resources, bodies, strict=True):
            path, before = resource.path(namespace), tally.total()
            try:
                _, _, data = await self._kube.raw("POST", path, body=body, tally=tally)
            except KubeError as error:
                if error.reason != "AlreadyExists" or tally.total() == before:
                    raise
                name = orjson.loads(body)["metadata"]["name"]
                _, _, data = await self._kube.raw("GET", f"{path}/{name}")
            uid = orjson.loads(data)["metadata"]["uid"]
        return uid


class CommandSubmitter:
    """A program that reads manifests on standard input, such as kubectl.

    Its start-up is part of the submission time, as in Run:ai's scale test tool.
    """

    def __init__(
        self, kube: Kube, argv: Sequence[str], timeout: float = 60.0, reads_input: bool = True
    ) -> None:
        self._kube, self.argv, self._timeout, self._reads = kube, list(argv), timeout, reads_input

    async def submit(self, bodies: Sequence[bytes], namespace: str, tally: Counter[str]) -> str:
        """See Submitter. Placeholders in argv: {name}, {namespace}, {project}."""
        items = [orjson.loads(body) for body in bodies]
        fields = {
            "{name}": items[-1]["metadata"]["name"],
            "{namespace}": namespace,
            "{project}": namespace.removeprefix("runai-"),
        }
        argv = [
            re.sub(r"{\w+}", lambda match: fields.get(match[0], match[0]), word)
            for word in self.argv
        ]
        text = orjson.dumps({"apiVersion": "v1", "kind": "List", "items": items})
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


RATE_SHARE = 0.98
"""Share of its rate that an open loop must reach, unless nothing was late."""
EXTRA_CONNECTIONS = 20
"""Connections for watches, the lock and lists."""
LATE = 0.1
"""Lag in seconds that 99 of 100 objects may have for the schedule to count as held."""


def connections(parallel: int) -> int:
    """Return the number of connections for `parallel` creations and all other requests.

    A creation that waited for a connection would be measured as slow.
    """
    return max(100, parallel + EXTRA_CONNECTIONS)


@dataclass(slots=True)
class Submission:
    """One object. `started_ns` and `answered_ns` are 0 if not sent; `error` is empty if created."""

    index: int
    name: str
    namespace: str
    intended_ns: int
    started_ns: int = 0
    answered_ns: int = 0
    uid: str = ""
    error: str = ""

    @property
    def lag(self) -> float:
        """Seconds it was sent after its time."""
        return (self.started_ns - self.intended_ns) / 1e9 if self.started_ns else 0.0


def without_name(text: str, name: str) -> str:
    """Replace the object's name and derived names, so that equal causes have equal texts."""
    return (
        re.sub(rf"\b([a-z0-9]+-)*{re.escape(name)}(-[a-z0-9]+)*\b", "NAME", text)[:300]
        if name
        else text[:300]
    )


@dataclass
class GeneratorResult:
    """The output of a generator: submissions by index, and the start (wall clock, monotonic)."""

    run: str
    submissions: list[Submission]
    started_wall: float
    started_ns: int
    retries: Counter[str] = field(default_factory=Counter)
    """Retries by cause (an HTTP status, timeout, connection), those of failed objects included."""

    def wall(self, monotonic_ns: int) -> float:
        """Unix time of a monotonic moment of this process."""
        return self.started_wall + (monotonic_ns - self.started_ns) / 1e9

    @property
    def created(self) -> list[Submission]:
        """The submissions that the server (or the submitter) accepted."""
        return [item for item in self.submissions if item.answered_ns and not item.error]

    def summary(self, schedule: Schedule) -> dict[str, Any]:
        """Return rates (objects/s), lags (s), failures by message, and whether it was on time.

        `held` and `rate_share` are None for a closed loop. `rate_share` is None too if all objects
        were due at once. A schedule that was only partly sent was not held.
        """
        sent, done = [item for item in self.submissions if item.started_ns], self.created
        span = 0.0
        if done:
            span = (max(item.answered_ns for item in done) - sent[0].started_ns) / 1e9
        lags = sorted(item.lag for item in sent)
        planned = _span(item.intended_ns for item in sent)
        took = _span(item.started_ns for item in sent)
        share = min(1.0, planned / took if took else 1.0) if planned else None
        late = lags[-(-99 * len(lags) // 100) - 1] if lags else 0.0
        on_schedule = len(sent) == len(self.submissions) and (
            late <= LATE or (share is not None and share >= RATE_SHARE)
        )
        causes = Counter(
            without_name(item.error, item.name) for item in self.submissions if item.error
        )
        return {
            "planned": len(self.submissions),
            "created": len(done),
            "failed": len(sent) - len(done),
            "not_sent": len(self.submissions) - len(sent),
            "retries": dict(self.retries),
            "create_rate_per_s": len(done) / span if span else None,
            "seconds": span,
            "lag_p99_s": late if lags and schedule.open_loop else None,
            "rate_share": share if schedule.open_loop else None,
            "held": on_schedule if schedule.open_loop else None,
            "errors": dict(causes.most_common(10)),
        }


def _span(moments: Iterable[int]) -> float:
    """Seconds from the first to the last of moments in ns; 0 without any."""
    times = list(moments)
    return (max(times) - min(times)) / 1e9 if times else 0.0


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
    on_plan: Callable[[GeneratorResult], None] | None = None,
) -> GeneratorResult:
    """Create `count` objects with at most `parallel` in flight, spread over the namespaces in turn.

    Names are `<prefix or run>-<index>`, with indices from `first`. A failed object keeps its error,
    and the others continue. `on_plan` gets the result before anything is sent, so that an
    interrupted caller knows what may exist.
    """
    start_wall, start = time.time(), time.monotonic_ns()
    # The offset between Unix time and the monotonic clock is fixed here for all later times.
    items = [
        Submission(
            first + i,
            f"{prefix or run}-{first + i}",
            namespaces[i % len(namespaces)],
            start + round(at * 1e9),
        )
        for i, at in enumerate(schedule.offsets(count))
    ]
    done = GeneratorResult(run, items, start_wall, start)
    if on_plan:
        on_plan(done)
    queue = iter(items)

    async def worker() -> None:
        for item in queue:
            await asyncio.sleep(max(0.0, (item.intended_ns - time.monotonic_ns()) / 1e9))
            if not schedule.open_loop:
                item.intended_ns = time.monotonic_ns()  # a closed loop has no time to be late for
            bodies = [
                document.render(item.name, item.namespace, item.index)
                for document in template.documents
            ]
            item.started_ns = time.monotonic_ns()
            tally: Counter[str] = Counter()
            try:
                item.uid = await submitter.submit(bodies, item.namespace, tally)
            except KubeError as error:
                item.error = str(error)
            item.answered_ns = time.monotonic_ns()
            done.retries += tally

    await asyncio.gather(*(worker() for _ in range(max(1, min(parallel, count)))))
    return done
