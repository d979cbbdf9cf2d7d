"""What real tools say beside their figures, and what it means for the sample."""

import pytest

from perfdag.benchmark import registry
from perfdag.benchmark.declarations import find_remarks

SAID = [
    ("fio", "fio: pid=4711, got signal=6", "failed"),
    ("fio", "fio: pid=12, err=28/file:io_u.c:1803, func=io_u error, error=No space left", "failed"),
    ("fio", "fio: terminating on signal 15", "failed"),
    ("iperf", "warning: UDP block size 9000 exceeds TCP MSS 1448, may fragment", "note"),
    ("rdma-latency", "Conflicting CPU frequency values detected: 800 != 3600.", "note"),
    ("resnet50", "3 ERRORS encountered. See detailed log.", "invalid"),
    ("resnet50", "1 warning encountered. See detailed log.", "note"),
    ("openfoam", "--> FOAM Warning : Unbounded initial fields", "note"),
]


@pytest.mark.parametrize(("name", "line", "effect"), SAID)
def test_a_line_beside_the_figures_has_its_effect(name: str, line: str, effect: str) -> None:
    text = f"figures\n{line}\nmore figures\n"
    assert [*find_remarks(registry.get(name).remarks, {"stderr": text})] == [(effect, line)]


def test_a_run_without_errors_has_no_remark() -> None:
    text = "No warnings encountered during test.\n\nNo errors encountered during test.\n"
    assert not [*find_remarks(registry.get("resnet50").remarks, {"mlperf_log_summary": text})]
