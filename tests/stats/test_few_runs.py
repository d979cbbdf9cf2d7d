"""Verdicts of new users: compare with hardly any past runs, on stores of real Parquet files."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from perfdag.cli import main
from perfdag.store.base import Store
from perfdag.store.open import open_store
from tests.conftest import CommandLine
from tests.stats.synthetic import put, rows, run_id


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    folder = str(tmp_path / "store")
    store = open_store(folder if request.param == "folder" else request.getfixturevalue("s3_root"))
    yield store
    for key in ("results", "rollups", "alerts"):
        store.delete(key)


def test_a_drop_of_84_percent_is_called_without_history(store: Store, cli: CommandLine) -> None:
    put(store, rows(0, {"streams=1": [11.2e9, 11.5e9, 12.1e9]}))
    put(store, rows(1, {"streams=1": [1.5e9, 1.9e9, 2.6e9]}))
    command = ["compare", "last~1", "last", "--store", store.root]
    out = " ".join(cli([*command, "--gate"], 3).out.split())
    assert "-83.5 %" in out
    assert "worse (noise assumed)" in out
    assert "better (noise assumed)" in cli(["compare", "last", "last~1", "--store", store.root]).out


@pytest.mark.parametrize("store", ["folder"], indirect=True)
def test_similar_series_lend_their_noise(store: Store, cli: CommandLine) -> None:
    rng = np.random.default_rng(0)
    points = [f"streams={n}" for n in range(10)]
    for night in range(4):
        values = {point: [1e10 * np.exp(rng.normal(0, 0.02))] for point in points}
        if night == 3:
            values["streams=7"] = [7e9]
        put(store, rows(night, values))
    out = " ".join(cli(["compare", run_id(2), run_id(3), "--store", store.root]).out.split())
    assert out.count("worse (noise pooled over 10 series, 20 degrees of freedom)") == 1
    assert "1 worse, 9 no difference shown" in out


def test_a_step_of_33_percent_after_eight_runs_opens_the_gate_and_stays_open(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(1)
    codes = {}
    for night in range(20):
        level = 1e-3 * (1.33 if night >= 8 else 1.0) * np.exp(rng.normal(0, 0.02))
        values = {"streams=1": level * np.exp(rng.normal(0, 0.01, 3))}
        put(store, rows(night, values, metric="latency", unit="s", better="lower"))
        codes[night] = main(["check", "last", "--store", store.root])
    assert codes == {night: 3 if night >= 10 else 0 for night in range(20)}
    out = capsys.readouterr().out
    assert out.count("(reported before)") == 9
    accept = f"acks:\n  - {{series: 'iperf *', run: {run_id(8)}, reason: new kernel}}\n"
    store.put("acks.yaml", accept.encode())
    assert main(["check", "last", "--store", store.root]) == 0
    store.delete("acks.yaml")
