"""Due times of objects, in seconds from the start and fixed before the run (open loop).

A late submission does not delay the next ones. The generator reports its lag.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

Arrival = Literal["closed", "constant", "poisson", "burst", "ramp", "batch"]


@dataclass(frozen=True)
class Schedule:
    """How submissions arrive.

    closed: as fast as `parallel` submitters can. constant, poisson: `rate` objects/s (Poisson:
    exponential gaps from `seed`). burst: `burst` at once, `rate` objects/s on average. ramp: from 0
    linearly to `rate`. batch: `burst` at once every `delay` seconds. Raises ValueError for missing,
    invalid or unused values.
    """

    arrival: Arrival = "closed"
    rate: float = 0.0
    burst: int = 1
    delay: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.arrival in ("constant", "poisson", "burst", "ramp") and not self.rate > 0:
            raise ValueError(f"arrival {self.arrival} needs a rate above 0 objects/s")
        if self.arrival == "batch" and not self.delay > 0:
            raise ValueError("arrival batch needs a delay above 0 s")
        if self.arrival in ("closed", "batch") and self.rate:
            raise ValueError(
                f"arrival {self.arrival} takes no rate; constant, poisson, burst and ramp do"
            )
        if self.arrival != "batch" and self.delay:
            raise ValueError(f"arrival {self.arrival} has no delay; a delay goes with batch")
        if self.arrival != "poisson" and self.seed:
            raise ValueError(f"arrival {self.arrival} has no seed; a seed goes with poisson")
        if self.arrival in ("burst", "batch") and self.burst < 1:
            raise ValueError(f"arrival {self.arrival} needs a burst of 1 or more")

    @property
    def open_loop(self) -> bool:
        """False where the system sets the pace."""
        return self.arrival != "closed"

    def offsets(self, count: int) -> list[float]:
        """Seconds from the start, one an object, in order; all 0 for closed."""
        return list(islice(self._all(count), count))

    def span(self, count: int) -> float:
        """Return the seconds from the first to the last of `count` objects; 0 for closed."""
        return self.offsets(count)[-1] if count else 0.0

    def _all(self, count: int) -> Iterator[float]:
        draw = random.Random(self.seed)
        at = 0.0
        for index in range(count):
            if self.arrival == "closed":
                yield 0.0
            elif self.arrival == "constant":
                yield index / self.rate
            elif self.arrival == "poisson":
                yield at
                at += draw.expovariate(self.rate)
            elif self.arrival == "burst":
                yield index // self.burst * (self.burst / self.rate)
            elif (
                self.arrival == "ramp"
            ):  # the rate grows linearly, so submissions grow with the square of time
                yield (2.0 * count / self.rate) * (index / count) ** 0.5
            else:
                yield index // self.burst * self.delay
