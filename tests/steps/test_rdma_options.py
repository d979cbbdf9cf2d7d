"""perftest's extra_args: what a parameter gives, what perfdag reads, and what would take the
next word for its value.
"""

import shutil
import subprocess

import pytest
from pydantic import ValidationError

from perfdag.steps.rdma import options
from perfdag.steps.rdma.bandwidth import BandwidthParams
from perfdag.steps.rdma.latency import LatencyParams


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["; rm -rf /"], "pattern"),
        (["--"], "pattern"),
        (["--tclass=96", "--qp=8"], "--qp=8 is perftest's --qp: set the parameter qps instead"),
        (["-q8"], "parameter qps"),
        (["--iters=5"], "parameter iterations"),
        (["--iter=5"], "--iter=5 is perftest's --iters: set the parameter iterations"),
        (["-b"], "parameter bidirectional"),
        (["-Nb"], "-Nb is perftest's --bidirectional"),
        (["-R"], "parameter rdma_cm"),
        (["--use_cuda_bus_id=0000:03:00.0"], "parameter cuda"),
        (["-p1"], "--port, which would change what is measured or read here; leave it out"),
        (["-C"], "--report-cycles, which"),
        (["--run_infinitely"], "leave it out"),
        (["--out_json_file=/tmp/x"], "leave it out"),
        (["--output=latency"], "leave it out"),
        (["-T"], "write both as one word, such as -T1"),
        (
            ["--tclass"],
            (
                "--tclass takes a value and would take the next word for it; write both as one "
                "word, such as --tclass=1"
            ),
        ),
        (["--retry_count"], "such as --retry_count=1"),
        (["--cq-mod"], "such as --cq-mod=1"),
        (["--tc"], "such as --tc=1"),
    ],
)
def test_what_may_not_be_given_is_refused(changes: list[str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        BandwidthParams(extra_args=changes)


def test_options_that_no_parameter_gives_are_free_and_those_of_bandwidth_are_no_parameters_of_latency() -> (  # noqa: E501
    None
):
    free = [
        "--tclass=96",
        "-T96",
        "-S1",
        "-t512",
        "-e",
        "-N",
        "--ipv6",
        "--qp-timeout=14",
        "--use_cuda_dmabuf",
        "--report-counters=x",
    ]
    assert (
        BandwidthParams(extra_args=free).extra_args
        == LatencyParams(extra_args=free).extra_args
        == free
    )
    with pytest.raises(
        ValidationError, match=r"-q2 is perftest's --qp, which would change .* leave it out"
    ):
        LatencyParams(extra_args=["-q2"])


@pytest.mark.skipif(
    shutil.which("ib_send_bw") is None, reason="needs perftest: apt-get install perftest"
)
def test_the_real_tool_takes_no_value_for_those_that_are_listed_without_one() -> None:
    """-V prints the version where no option before it takes it for its value."""

    def takes(name: str) -> bool | None:
        result = subprocess.run(
            ["ib_send_bw", f"--{name}", "-V"], capture_output=True, text=True, timeout=10
        )
        unknown = "unrecognized option" in result.stderr  # in this version or build
        return None if unknown else "Version:" not in result.stdout

    assert takes("tclass")
    assert [name for name in sorted(options.WITHOUT_VALUE) if takes(name)] == []
