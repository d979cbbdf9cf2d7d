"""rdma-latency: latency over RDMA verbs (ib_write_lat, ib_read_lat, ib_send_lat, ib_atomic_lat)."""

from typing import ClassVar, Self

from pydantic import model_validator

from perfdag.benchmark.contract import Metric, Output
from perfdag.outcome import Failed, Measurement
from perfdag.stats.percentiles import needed
from perfdag.steps.rdma import perftest, report
from perfdag.steps.rdma.params import RdmaParams

_KEYS = (
    "MsgSize",
    "n_iterations",
    "t_min",
    "t_max",
    "t_typical",
    "t_avg",
    "t_stdev",
    "percentile_99",
    "percentile_99.9",
)
_KEYS_TIMED = ("MsgSize", "n_iterations", "t_avg", "tps_average")
_COLUMNS = ("min", "max", "p50", "mean", "stdev", "p99", "p99.9")
# p99.9 is an exception. perftest reports it for its default of 1000 iterations, and users look
# for it, although needed(0.999) asks for 4,603.
_NEEDED = {"p99": needed(0.99), "p99.9": 1000}


class LatencyParams(RdmaParams):
    """Options of ib_*_lat: one run for all sizes, or one for each size."""

    @model_validator(mode="after")
    def _host_memory(self) -> Self:
        if self.cuda is not None and self.mode == "write":
            raise ValueError(
                "cuda: ib_write_lat polls its buffer, which it cannot in a GPU's memory;"
                " use mode: read or send, or leave cuda out"
            )
        return self


class RdmaLatency(perftest.Rdma[LatencyParams]):
    """RDMA latency by message size, with perftest.

    p99 is left out below 459 iterations. p99.9 is perftest's own, from its default of 1000
    iterations on. Below 4,603 iterations it is little more than the second largest value.

    Clock: perftest's cycle counter on the client. It starts when a message is posted. It stops at
    its completion (read, atomic) or at the answer (write, send), where half of the round trip is
    reported.
    """

    name: ClassVar[str] = "rdma-latency"
    suffix: ClassVar[str] = "lat"
    Params: ClassVar[type[LatencyParams]] = LatencyParams
    coords: ClassVar[tuple[str, ...]] = ("message_bytes",)
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric(
            "lowest_latency",
            "s",
            "lower",
            "typical latency of the smallest message (with `duration` its mean)",
            headline=True,
        ),
        Metric(
            "latency",
            "s",
            "lower",
            "latency by message size: min, p50 (perftest's typical), max, mean, stdev, p99, p99.9",
        ),
        Metric(
            "exchange_rate", "1/s", "higher", "exchanges a second by message size, with `duration`"
        ),
    )

    def parse(self, output: Output, params: LatencyParams) -> list[Measurement]:
        timed = params.duration is not None
        table = report.rows_of(output, params, _KEYS_TIMED if timed else _KEYS)
        if unknown := next(
            (header for header, _ in table if header and "t_avg[usec]" not in header), None
        ):
            raise Failed(
                f"perftest's table has latencies in another unit than usec: {unknown.strip()}",
                output.texts,
            )
        rows = [values for _, values in table]
        report.check_sizes(params, [int(values[0]) for values in rows], output.texts)
        rows.sort()
        typical = rows[0][2 if timed else 4]
        if typical <= 0:
            raise Failed("perftest reports a latency of zero", output.texts)
        measurements = [
            Measurement("lowest_latency", typical * 1e-6, coords={"message_bytes": int(rows[0][0])})
        ]
        for size, iterations, *values in rows:
            coords, n = {"message_bytes": int(size)}, int(iterations)
            if timed:
                measurements.append(Measurement("latency", values[0] * 1e-6, "mean", coords, n))
                measurements.append(Measurement("exchange_rate", values[1], "mean", coords, n))
                continue
            if not values[0] <= values[2] <= values[1]:
                raise Failed(
                    f"perftest's row of {size:.0f} bytes is out of order: min {values[0]},"
                    f" typical {values[2]}, max {values[1]}",
                    output.texts,
                )
            for stat, value in zip(_COLUMNS, values, strict=True):
                if n >= _NEEDED.get(stat, 0):
                    measurements.append(Measurement("latency", value * 1e-6, stat, coords, n))
        return self.judged(output, params, measurements)
