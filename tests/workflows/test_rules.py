"""What is printed for others is never written by Hera's own writer of YAML."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_nothing_is_written_by_heras_own_writer() -> None:
    files = [
        file
        for room in ("workflows", "examples", "perfdag/cli", "benchmarks")
        for file in (ROOT / room).rglob("*.py")
    ]
    assert files
    assert [str(file) for file in files if re.search(r"\bto_(yaml|file)\(", file.read_text())] == []
