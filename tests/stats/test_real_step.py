"""A real one: iperf3 over a loopback of its own, slowed by 12 % with `tc` after fifteen runs, is
found with date and size.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perfdag.store.open import open_store

SUITE = """\
name: slowed
repetitions: 1
entries:
  - benchmark: iperf
    params: {duration: 1s}
"""
SHAPED = "dev lo root tbf rate {}mbit burst 256k latency 50ms"
NIGHTS = f"""\
import subprocess
from perfdag.cli import main

subprocess.run("ip link set lo up && tc qdisc add {SHAPED.format(200)}", shell=True, check=True)
for night in range(20):
    if night == 15:
        subprocess.run("tc qdisc change {SHAPED.format(176)}", shell=True, check=True)
    assert main(["run", "suite.yaml", "--no-report"]) == 0
"""


def _able() -> bool:
    if any(shutil.which(tool) is None for tool in ("iperf3", "tc", "ip", "unshare")):
        return False
    words = f"ip link set lo up && tc qdisc add {SHAPED.format(200)}"
    return subprocess.run(["unshare", "-n", "sh", "-c", words], capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(
    not _able(), reason="needs root, iperf3, and tc with tbf in a network namespace"
)
def test_an_iperf_slowed_on_purpose_is_found(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE)
    ran = subprocess.run(
        ["unshare", "-n", sys.executable, "-c", NIGHTS],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, (ran.stderr[-2000:], ran.stdout[-2000:])
    runs = sorted(
        key.split("/")[-1].removesuffix(".parquet")
        for key in open_store(str(tmp_path / "perfdag-results")).list("results")
    )
    assert len(runs) == 20
    history = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from perfdag.cli import main; sys.exit(main(sys.argv[1:]))",
            "history",
            "slowed",
            "--json",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    series = json.loads(history.stdout)["series"]
    [throughput] = [line for line in series if line["metric"] == "throughput"]
    [change] = throughput["changes"]
    assert change["run"] == runs[15]  # the right date
    assert change["word"] == "worse"
    true = 176 / 200 - 1
    # Other programs on the machine move single runs by 1 or 2 %.
    assert change["effect"] == pytest.approx(true, abs=0.03)
    low, high = sorted((change["low"], change["high"]))
    assert low - 0.02 <= true <= high + 0.02
