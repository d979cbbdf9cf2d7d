"""Two variants on a real cluster: one gang measures them in turn."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from perfdag.plan import stored_duet
from perfdag.results.run_store import stored_plan, variants
from perfdag.results.schema import load_rows
from perfdag.store.s3 import open_store

from .conftest import Namespace, samples_of

pytestmark = [pytest.mark.argo, pytest.mark.slow]
BLOCKS = 8


def _suite(folder: Path, name: str, seconds: float, placement: str) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(
        "name: sides\npending_limit: 90s\nentries:\n  - benchmark: command\n    hosts: {count: 2"
        f", placement: {placement}}}\n"
        f"    params: {{argv: [sleep, '{seconds}'], expected: {seconds}}}\n"
    )
    return path


def test_one_gang_measures_both_variants_in_turn(bench: Namespace, tmp_path: Path) -> None:
    placement = bench.spread()
    a = _suite(tmp_path, "a", 0.5, placement)
    b = _suite(tmp_path, "b", 1.5, placement)
    result = bench.perfdag("ab", str(a), str(b), "--blocks", str(BLOCKS), "--submit", "--watch")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "worse" in result.stdout
    run_id = result.stdout.split()[1]
    store = open_store(bench.store)
    duet = stored_duet(*variants(store, stored_plan(store, run_id)))
    rows = load_rows(store, suites=["sides"], runs=[duet.a.run_id, duet.b.run_id]).to_pylist()
    rows = samples_of([row for row in rows if row["benchmark"] == "command"])
    assert [row["status"] for row in rows] == ["ok"] * (BLOCKS * 4)
    turns = sorted((row["started_at"], row["finished_at"], row["variant"]) for row in rows)
    assert "".join(variant for _, _, variant in turns) == "".join(duet.blocks)
    assert all(before[1] <= after[0] for before, after in pairwise(turns)), "two samples at once"
    assert len({tuple(row["nodes"]) for row in rows}) == 1
    assert {row["same_node"] for row in rows} == {placement == "any"}
    pods = bench.objects("Pod", labels=f"perfdag/run={duet.a.run_id},perfdag/rank")
    assert sorted(pod["metadata"]["labels"]["perfdag/rank"] for pod in pods) == ["0", "1"]
    outcome = json.loads(store.get(f"runs/{duet.a.run_id}/ab.json"))
    assert (
        1.2 < outcome["series"][0]["paired"]["effect"] < 2.2
    )  # 1.5 s against 0.5 s, on a machine that may be busy
    # a finished one is shown again from here, and nothing is measured for it
    again = bench.perfdag("ab", "--resume", run_id, "--store", bench.store, "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["series"] == outcome["series"]
