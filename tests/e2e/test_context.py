"""Values of a real Prometheus over the samples that pods measure."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.prometheus import needs_prometheus, prometheus

from .conftest import Namespace

pytestmark = [pytest.mark.argo, pytest.mark.slow, needs_prometheus]
SUITE = """\
name: context
repetitions: 2
context:
  - {name: scraped, query: 'up{node=~"$nodes"}'}
  - {name: server_cpu, query: 'max(rate(process_cpu_seconds_total[5s]))'}
entries:
  - {benchmark: command, hosts: {count: 2}, params: {argv: [sleep, '4']}}
checks:
  - {metric: server_cpu, op: '>=', value: 0}
  - {metric: scraped, op: '>', value: 1}
"""


@pytest.fixture
def url(bench: Namespace, tmp_path: Path) -> Iterator[str]:
    """The address of a Prometheus that pods reach as they reach S3, a target for each node."""
    here = urlsplit(os.environ["AWS_ENDPOINT_URL"]).hostname or ""
    with prometheus(tmp_path, here, bench.nodes()) as address:
        yield address


def test_values_over_each_sample_are_rows_that_a_check_uses(bench: Namespace, url: str) -> None:
    run = bench.measure(SUITE, "--prometheus", url)
    assert {row["status"] for row in run.rows} == {"ok"}, run.errors()
    assert run.exit_code == 3, "1 is not above 1"
    assert "scraped" in run.output
    for repetition in (1, 2):
        of_sample = [row for row in run.rows if row["repetition"] == repetition]
        (cpu,) = [row for row in of_sample if row["metric"] == "server_cpu"]
        assert 0 <= cpu["value"] < 2
        assert cpu["n"] >= 4, "a value each second"
        scraped = [row for row in of_sample if row["metric"] == "scraped"]
        assert {row["value"] for row in scraped} == {1.0}
        nodes = sorted(json.loads(row["coords"])["node"] for row in scraped)
        assert nodes == sorted(set(cpu["nodes"])), "the nodes of the sample, and no other"


def test_a_query_that_prometheus_refuses_is_one_line_and_nothing_is_measured(
    bench: Namespace, url: str
) -> None:
    name = bench.submit(SUITE.replace('up{node=~"$nodes"}', "up("), "--prometheus", url)
    result = bench.watch(name)
    assert result.returncode == 2, result.stdout + result.stderr
    (line,) = [each for each in result.stdout.splitlines() if "refuses" in each]
    assert "refuses the query scraped: " in line
    assert "parse error: unclosed left parenthesis" in line
    assert bench.stored(bench.run_id(name)) == set()
