"""rdma-bandwidth: bandwidth and message rate over RDMA verbs (ib_{write,read,send,atomic}_bw)."""

import re
from typing import ClassVar, Self

from pydantic import Field, model_validator

from perfdag.benchmark.contract import Metric, Output
from perfdag.outcome import Failed, Measurement
from perfdag.steps.rdma import perftest, report
from perfdag.steps.rdma.params import RdmaParams

# MB of old versions and MiB of new ones are both 2^20 bytes (perftest's --help); Gb is 10^9 bits.
_KEYS = ("MsgSize", "n_iterations", "BW_peak", "BW_average", "MsgRate")
_SHARED_DEPTH = 512
"""DEF_RX_SEND of perftest, limited by the iterations."""
_UNITS = {"MB": 8 * 2**20, "MiB": 8 * 2**20, "Gb": 1e9}


class BandwidthParams(RdmaParams):
    """Options of ib_*_bw: one run for all sizes, or one for each size."""

    qps: int = Field(
        1,
        ge=1,
        le=16384,
        description="queue pairs; more spread traffic, for example over the ports of a bond",
    )
    bidirectional: bool = Field(
        False, description="both sides send; the sum of both directions is reported"
    )

    @model_validator(mode="after")
    def _shared_queue(self) -> Self:
        depth = _SHARED_DEPTH if self.duration is not None else min(_SHARED_DEPTH, self.iterations)
        if self.mode == "send" and self.connection == "XRC" and self.qps > depth:
            raise ValueError(
                f"qps {self.qps}: XRC shares one receive queue of {depth} messages here, and"
                f" each needs one; use {depth} or fewer"
            )
        return self


class RdmaBandwidth(perftest.Rdma[BandwidthParams]):
    """RDMA bandwidth by message size, with perftest.

    Clock: perftest's cycle counter on the sending side. It starts when the first message of a
    size is posted and stops at the completion of the last one. With `duration` it covers the
    middle of that time, without a margin at both ends.
    """

    name: ClassVar[str] = "rdma-bandwidth"
    suffix: ClassVar[str] = "bw"
    Params: ClassVar[type[BandwidthParams]] = BandwidthParams
    coords: ClassVar[tuple[str, ...]] = ("message_bytes",)
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric(
            "highest_bandwidth",
            "bit/s",
            "higher",
            "highest average bandwidth over all sizes",
            headline=True,
            nominal=True,
        ),
        Metric(
            "bandwidth",
            "bit/s",
            "higher",
            "bandwidth by message size: mean, and the peak of single completions (max)",
        ),
        Metric("message_rate", "1/s", "higher", "messages a second by message size"),
    )

    def directions(self, params: BandwidthParams) -> int:
        return 2 if params.bidirectional else 1

    def queue_pairs(self, params: BandwidthParams) -> int:
        return params.qps * (super().queue_pairs(params) if params.bidirectional else 1)

    def messages(self, params: BandwidthParams) -> int:
        return params.iterations * params.qps * (2 if params.bidirectional else 1)

    def own_arguments(self, params: BandwidthParams) -> list[str]:
        return ["-q", str(params.qps), "--report_gbits", *(["-b"] if params.bidirectional else [])]

    def parse(self, output: Output, params: BandwidthParams) -> list[Measurement]:
        rows = report.rows_of(output, params, _KEYS)
        report.check_sizes(params, [int(values[0]) for _, values in rows], output.texts)
        best = max(_average(header, values) for header, values in rows)
        if best <= 0:
            raise Failed("perftest reports no bandwidth", output.texts)
        measurements = [Measurement("highest_bandwidth", best)]
        for header, (size, iterations, peak, _, rate) in rows:
            coords = {"message_bytes": int(size)}
            average = _average(header, [size, iterations, peak, _, rate])
            measurements.append(Measurement("bandwidth", average, "mean", coords, int(iterations)))
            # 0: perftest omits the peak with `duration` and above 20,000 iterations.
            if peak > 0:
                measurements.append(
                    Measurement("bandwidth", peak * _unit(header), "max", coords, int(iterations))
                )
            measurements.append(
                Measurement("message_rate", rate * 1e6, "mean", coords, int(iterations))
            )
        return self.judged(output, params, measurements)


def _unit(header: str) -> float:
    """Return the factor to bit/s. JSON has no header and, by --report_gbits, reports Gb/s."""
    if not header:
        return _UNITS["Gb"]
    match = re.search(r"BW average\[(\w+)/sec\]", header)
    if match is None or match[1] not in _UNITS:
        raise Failed(f"perftest's table has no unit of bandwidth that is known: {header.strip()}")
    return _UNITS[match[1]]


def _average(header: str, values: list[float]) -> float:
    return values[3] * _unit(header)
