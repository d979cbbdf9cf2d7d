"""Options beside those that perfdag sets: in short and long form, with their value or cut."""

import pytest
from pydantic import ValidationError

from perfdag.benchmark import registry

REFUSED = [
    ("iperf", ["--reverse"], "use the parameter reverse"),
    ("iperf", ["-R"], "use the parameter reverse"),
    ("iperf", ["--rev"], "use the parameter reverse"),
    ("iperf", ["--no-delay", "-P4"], "use the parameter streams"),
    ("iperf", ["--parallel=4"], "use the parameter streams"),
    ("iperf", ["-P", "4"], "use the parameter streams"),
    ("iperf", ["--logfile=/tmp/iperf.log"], "it would change the output of iperf3"),
    ("iperf", ["-n", "1G"], "it would change the end of iperf3"),
    ("iperf", ["-F/dev/sda"], "so that a disk is measured"),
    ("rdma-bandwidth", ["-b"], "use the parameter bidirectional"),
    ("rdma-bandwidth", ["-s", "65536"], "use the parameter sizes"),
    ("rdma-latency", ["-C"], "it would change the units of perftest"),
    ("rdma-latency", ["--report-histogram"], "it would change the table of perftest"),
]


@pytest.mark.parametrize(("name", "arguments", "reason"), REFUSED)
def test_an_option_that_perfdag_sets_or_reads_is_refused(
    name: str, arguments: list[str], reason: str
) -> None:
    with pytest.raises(ValidationError, match=reason):
        registry.get(name).Params(extra_args=arguments)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("iperf", ["--tos=0x60", "--no-delay", "-N", "--dont-fragment", "--cport", "5000"]),
        ("rdma-bandwidth", ["--tclass=96", "-F", "--use_cuda=0", "-t", "256", "-Q1"]),
    ],
)
def test_other_options_are_free(name: str, arguments: list[str]) -> None:
    assert registry.get(name).Params(extra_args=arguments).model_dump()["extra_args"] == arguments
