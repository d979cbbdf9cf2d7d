"""scripts/torch: what it makes of the tests of the real model, with an interpreter that only
says what pytest would.
"""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "torch"
SKIPPED = (
    "SKIPPED [1] tests/resnet50/test_model.py:12: torch is not installed: pip install "
    "'perfdag[torch]'"
)
CHECKOUT = (
    "SKIPPED [1] tests/steps/test_torchbench.py:239: PERFDAG_TORCHBENCH names no checkout of "
    "pytorch/benchmark"
)


@pytest.mark.parametrize(
    ("said", "code", "ends"),
    [
        ("20 passed", 0, 0),
        (CHECKOUT, 0, 0),
        (SKIPPED, 0, 1),
        ("1 failed", 1, 1),
        ("no tests ran", 5, 5),
    ],
)
def test_a_skip_for_want_of_torch_fails(said: str, code: int, ends: int, tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit 0\necho "{said}"\nexit {code}\n')
    python.chmod(0o755)
    done = subprocess.run(
        [SCRIPT, "python3", tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == ends, done.stderr
    assert said in done.stdout


def test_without_room_it_is_skipped_and_said(tmp_path: Path) -> None:
    df = tmp_path / "df"
    df.write_text(
        '#!/bin/sh\necho "Filesystem 1024-blocks Used Available Capacity Mounted on"\n'
        'echo "disk 9 9 7000000 9% /"\n'
    )
    df.chmod(0o755)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(
        [SCRIPT, "python3", tmp_path / "none"],
        env=path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert (
        "SKIPPED: PyTorch takes 8 GB and 6 GB are free here; the real model was NOT tested"
        in done.stderr
    )
