"""Create objects on a schedule and record when they were due, sent and answered.

Due times are fixed before the run (open loop). `parallel` submitters share one connection pool. In
an open loop a submitter waits for the due time of the next object. If all are busy, the object is
sent late and the lag is reported, but the next ones are not delayed. Times are Unix ns of this
process's clock (objects.now_ns). Objects are sent to the API server, or to a program that reads
manifests.
"""

import asyncio
import os
import re
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale.objects import Template, now_ns

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


Submit = Callable[[Sequence[bytes], str], Awaitable[str]]
"""Create the documents of one object in a namespace, in order, and return the UID of the last; an
empty string if it is unknown. Raises KubeError."""


async def api_submitter(kube: Kube, template: Template) -> Submit:
    """Return what POSTs to the API server. Raises KubeError for a kind that it does not know."""
    for document in template.documents:
        await kube.path(document.path)

    async def submit(bodies: Sequence[bytes], namespace: str) -> str:
        for body in bodies:
            created = await kube.create(orjson.loads(body), namespace)
        return str(created["metadata"]["uid"])

    return submit


def program_submitter(command: Sequence[str], timeout: float = 60.0) -> Submit:
    """Return what runs a program, such as kubectl, that reads manifests on standard input.

    `{name}`, `{namespace}` and `{project}` in its arguments are those of the object. Its start-up
    is part of the submission time, as in Run:ai's scale test tool.
    """

    async def submit(bodies: Sequence[bytes], namespace: str) -> str:
        items = [orjson.loads(body) for body in bodies]
        fields = {
            "{name}": items[-1]["metadata"]["name"],
            "{namespace}": namespace,
            "{project}": namespace.removeprefix("runai-"),
        }
        argv = [
            re.sub(r"{\w+}", lambda match: fields.get(match[0], match[0]), text) for text in command
        ]
        manifest = orjson.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
            )
        except OSError as error:
            text = f"{argv[0]} cannot be run: {error.strerror}"
            raise KubeError(0, "Submitter", text, "install it, or use --submitter api") from None
        try:
            _, err = await asyncio.wait_for(process.communicate(manifest), timeout)
        except TimeoutError:
            raise KubeError(0, "Timeout", f"{argv[0]} did not end in {timeout:g} s") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # what it started holds its pipes
                await process.wait()
        if process.returncode:
            text = " ".join(err.decode(errors="replace").split())[-300:]
            raise KubeError(0, "Submitter", f"{argv[0]}: {text}")
        return ""

    return submit


RATE_SHARE = 0.98
"""Share of its rate that an open loop must reach, unless nothing was late."""
LATE = 0.1
"""Lag in seconds that 99 of 100 objects may have for the schedule to count as held."""


def connections(parallel: int) -> int:
    """Return the number of connections for `parallel` creations and all other requests.

    A creation that waited for a connection would be measured as slow.
    """
    return max(100, parallel + 20)


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


def without_name(text: str, name: str) -> str:
    """Replace the object's name and derived names, so that equal causes have equal texts."""
    if name:
        text = re.sub(rf"\b([a-z0-9]+-)*{re.escape(name)}(-[a-z0-9]+)*\b", "NAME", text)
    return text[:300]


@dataclass
class Batch:
    """Submissions by index, and the schedule of their due times."""

    schedule: Schedule
    submissions: list[Submission]

    @property
    def created(self) -> list[Submission]:
        """The submissions that the server (or the submitter) accepted."""
        return [item for item in self.submissions if item.answered_ns and not item.error]

    def summary(self) -> dict[str, Any]:
        """Return rates (objects/s), lags (s), failures by message, and whether it was on time.

        `held` and `rate_share` are None for a closed loop. `rate_share` is None too if all objects
        were due at once. A schedule that was only partly sent was not held.
        """
        sent = [item for item in self.submissions if item.started_ns]
        done = self.created
        span = (max(item.answered_ns for item in done) - sent[0].started_ns) / 1e9 if done else 0.0
        lags = sorted((item.started_ns - item.intended_ns) / 1e9 for item in sent)
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
        paced = self.schedule.open_loop
        return {
            "planned": len(self.submissions),
            "created": len(done),
            "failed": len(sent) - len(done),
            "not_sent": len(self.submissions) - len(sent),
            "create_rate_per_s": len(done) / span if span else None,
            "seconds": span,
            "lag_p99_s": late if lags and paced else None,
            "rate_share": share if paced else None,
            "held": on_schedule if paced else None,
            "errors": dict(causes.most_common(10)),
        }


def _span(moments: Iterable[int]) -> float:
    """Seconds from the first to the last of moments in ns; 0 without any."""
    times = list(moments)
    return (max(times) - min(times)) / 1e9 if times else 0.0


def plan(
    run: str, count: int, namespaces: Sequence[str], schedule: Schedule, first: int = 0
) -> Batch:
    """Return `count` submissions that are due from now on, in the namespaces in turn.

    Names are `<run>-<index>`, with indices from `first`.
    """
    start = now_ns()
    submissions = []
    for index, offset in enumerate(schedule.offsets(count), first):
        namespace = namespaces[(index - first) % len(namespaces)]
        due_ns = start + round(offset * 1e9)
        submissions.append(Submission(index, f"{run}-{index}", namespace, due_ns))
    return Batch(schedule, submissions)


async def generate(submit: Submit, template: Template, batch: Batch, parallel: int) -> None:
    """Create the objects of a batch with at most `parallel` in flight, and note it there.

    A failed object keeps its error, and the others continue.
    """
    queue = iter(batch.submissions)

    async def worker() -> None:
        for item in queue:
            await asyncio.sleep(max(0.0, (item.intended_ns - now_ns()) / 1e9))
            if not batch.schedule.open_loop:
                item.intended_ns = now_ns()  # a closed loop has no time to be late for
            bodies = [
                document.render(item.name, item.namespace, item.index)
                for document in template.documents
            ]
            item.started_ns = now_ns()
            try:
                item.uid = await submit(bodies, item.namespace)
            except KubeError as error:
                item.error = str(error)
            item.answered_ns = now_ns()

    await asyncio.gather(*(worker() for _ in range(max(1, min(parallel, len(batch.submissions))))))
