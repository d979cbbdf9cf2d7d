"""One measuring run at a time has the cluster, also of two installations that share a lock: the
older first, the more urgent before it.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from .conftest import Namespace, installed, sleeps

pytestmark = [pytest.mark.argo, pytest.mark.slow]


@pytest.fixture(scope="module")
def beside(restricted: Namespace) -> Iterator[Namespace]:
    """A second installation that waits for the lock of the first."""
    with installed("restricted", "--lock-namespace", restricted.name) as namespace:
        yield namespace


def test_runs_of_two_installations_take_turns_and_the_urgent_one_goes_first(
    bench: Namespace, beside: Namespace, tmp_path: Path
) -> None:
    first = bench.submit(
        sleeps(tmp_path, points=4, seconds=18.0, hosts=1)
    )  # still measuring when the last of the others waits
    suite = sleeps(tmp_path, points=2, hosts=1)
    bench.until(lambda: bench.stored(bench.run_id(first)), 120, "sample of the first run")
    second = beside.submit(suite)
    beside.until(
        lambda: "lock" in beside.perfdag("status", second).stdout.lower(),
        60,
        "word on what is waited for",
    )
    urgent = bench.submit(suite, "--set", "priority=5")
    assert len(bench.stored(bench.run_id(first))) < 4, (
        "the first run ended before all others waited: this machine was too slow to submit them"
    )
    spans = {}
    for place, name in ((bench, first), (beside, second), (bench, urgent)):
        assert place.watch(name, timeout=500).returncode == 0
        rows = place.rows(place.run_id(name))
        spans[name] = (
            min(row["started_at"] for row in rows),
            max(row["finished_at"] for row in rows),
        )
    order = sorted(spans, key=lambda name: spans[name][0])
    assert order == [first, urgent, second]
    assert all(spans[before][1] <= spans[after][0] for before, after in pairwise(order)), (
        "two runs at once"
    )
