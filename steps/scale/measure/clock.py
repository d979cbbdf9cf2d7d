"""The offset between this machine's clock and the API server's.

The server's clock is read from its HTTP Date header, whose tick is caught within a few ms.
"""

import asyncio
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from perfdag.kube.client import Kube, KubeError

DRIFT = 0.1
"""Clock drift in seconds above which a run gets a note. API times have whole seconds."""


@dataclass(frozen=True)
class Offset:
    """Server clock minus local clock in seconds, accurate to +- `bound` seconds."""

    seconds: float
    bound: float


async def server_offset(kube: Kube) -> Offset:
    """Measure the offset at a tick of the server's Date header. Raises KubeError.

    Takes 1 to 2 s and about 100 requests.
    """
    previous, before = None, 0.0
    deadline = time.monotonic() + 3.0
    while time.monotonic() < deadline:
        start = time.time()
        _, headers, _ = await kube.raw("GET", "/version")
        end = time.time()
        second = parsedate_to_datetime(headers["Date"]).timestamp()
        if previous is not None and second > previous:
            # `second` began between the middle of the last request and the end of this one.
            middle, half = (before + end) / 2, (end - before) / 2
            return Offset(second - middle, half)
        previous, before = second, start
        await asyncio.sleep(0.01)
    raise KubeError(
        0, "Clock", "the API server's Date header does not tick", "is a proxy answering for it?"
    )


async def drift(kube: Kube, start: Offset) -> tuple[dict[str, float], str]:
    """Return the drift since `start` and its bound (s), with a note if it matters.

    Takes as long as server_offset. Does not raise.
    """
    try:
        end = await server_offset(kube)
    except KubeError as error:
        return {}, f"whether the API server's clock moved against ours is not known: {error}"
    moved, bound = end.seconds - start.seconds, end.bound + start.bound
    note = (
        f"the API server's clock moved by {moved:+.3f} s against ours during the run: its times "
        "are off by as much"
    )
    return {"server_clock_drift_s": moved, "server_clock_drift_bound_s": bound}, note if abs(
        moved
    ) - bound > DRIFT else ""
