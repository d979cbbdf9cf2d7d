"""Parameters of imb."""

import math
from typing import Literal

from pydantic import Field, model_validator

from perfdag.benchmark.contract import Params
from perfdag.benchmark.rules import refuse
from perfdag.steps.imb import operations
from perfdag.steps.imb.operations import BANDS, COLLECTIVES, KNOWN, PAIRS, REDUCTIONS, SYNCS
from perfdag.units import PositiveDuration

GIB = 2**30
OPENMPI_PROGRAM = "/opt/imb/IMB-MPI1"
"""IMB-MPI1 of the image imb-openmpi."""


class ImbParams(Params):
    """Parameters of one IMB-MPI1 run."""

    benchmark: Literal[KNOWN] = Field("PingPong", description="one of IMB-MPI1's benchmarks")  # type: ignore[valid-type]
    ranks: int = Field(2, ge=2, le=65536, description="MPI processes")
    ranks_per_host: int | None = Field(
        None, ge=1, description="default: all on one host for shm, else half on each of two hosts"
    )
    transport: Literal["tcp", "shm", "rdma"] = Field(
        "tcp", description="requested, then verified in what MPI reports"
    )
    min_log: int = Field(
        0,
        ge=0,
        le=30,
        description="smallest message is 2^min_log bytes; 0 bytes always come first",
    )
    max_log: int = Field(22, ge=0, le=30, description="largest message is 2^max_log bytes")
    iterations: int = Field(1000, ge=1, le=10**7, description="most repetitions of a message size")
    time_per_size: PositiveDuration = Field(
        10.0, le=3600, description="seconds after which IMB cuts the repetitions of a size"
    )
    mpi: Literal["intel", "openmpi"] = Field(
        "intel", description="MPI distribution; openmpi has an image of its own, imb-openmpi"
    )
    program: str | None = Field(
        None,
        pattern=r"^/",
        description=f"path of IMB-MPI1 for mpi: openmpi; default {OPENMPI_PROGRAM}",
    )
    oversubscribe: bool = Field(
        False, description="allow more ranks than CPUs; they then spin against each other"
    )

    @model_validator(mode="after")
    def _possible(self) -> "ImbParams":
        refuse(
            (
                self.benchmark in REDUCTIONS and self.max_log < 2,
                f"{self.benchmark} works on 4-byte floats; max_log is at least 2",
            ),
            (
                self.min_log > self.max_log,
                f"min_log {self.min_log} is above max_log {self.max_log}",
            ),
            (
                self.ranks_per_host is not None and self.ranks % self.ranks_per_host,
                f"ranks {self.ranks} is not a multiple of ranks_per_host {self.ranks_per_host}",
            ),
            (
                self.benchmark in PAIRS and self.ranks != 2,
                f"{self.benchmark} runs between exactly 2 ranks, not {self.ranks}",
            ),
            (
                self.benchmark in BANDS and self.ranks % 2,
                f"{self.benchmark} needs an even number of ranks, not {self.ranks}",
            ),
            (
                self.program is not None and self.mpi == "intel",
                "program belongs to mpi: openmpi; intel brings its own",
            ),
        )
        if operations.too_large(self.benchmark, self.ranks, 2**self.max_log):
            largest = next(
                log
                for log in range(29, -1, -1)
                if not operations.too_large(self.benchmark, self.ranks, 2**log)
            )
            raise ValueError(
                f"max_log {self.max_log}: IMB cannot count ranks x size of {self.benchmark}"
                f" then; at most {largest} with {self.ranks} ranks"
            )
        return self

    def hosts(self) -> int:
        """Return the number of hosts that the ranks are spread over."""
        if self.transport == "shm":
            return 1
        return 2 if self.ranks_per_host is None else self.ranks // self.ranks_per_host

    def sizes(self) -> list[int]:
        """Return the message sizes in bytes that -msglog min:max measures.

        Zero comes first, then powers of two. Reductions work on whole 4-byte floats.
        """
        smallest = max(self.min_log, 2) if self.benchmark in REDUCTIONS else self.min_log
        return [0, *(2**log for log in range(smallest, self.max_log + 1))]

    def rounds(self) -> int:
        """Estimate how many messages a rank exchanges one after the other in an operation.

        It is one with each other rank, or one a level along a tree of all ranks.
        """
        if self.benchmark in (*operations.EXCHANGES, *operations.SPREADS):
            return self.ranks - 1
        return math.ceil(math.log2(self.ranks)) if self.benchmark in (*COLLECTIVES, *SYNCS) else 1

    def memory(self) -> int:
        """Return the bytes of a rank's buffers at the largest size."""
        return operations.buffers(self.benchmark, self.ranks) << self.max_log
