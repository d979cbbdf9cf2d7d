"""Golden rows: what each recording became when it was written down, exactly.

`PERFDAG_REGENERATE=1 pytest tests/test_golden.py` writes them anew (tests/golden/README.md).
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.recorded.recordings import OUTCOMES

GOLDEN = Path(__file__).parent / "golden"


def compare(file: Path, found: dict[str, Any]) -> None:
    """Compare what was found with a golden file, or write the file."""
    rows = ",\n".join(json.dumps(row, sort_keys=True) for row in found["rows"])
    head = json.dumps({key: value for key, value in found.items() if key != "rows"})
    text = f'{head[:-1]}{", " if len(head) > 2 else ""}"rows": [\n{rows}\n]}}\n'
    if os.environ.get("PERFDAG_REGENERATE"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert json.loads(text) == json.loads(file.read_text())


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_recording_has_its_golden_rows(name: str) -> None:
    compare(GOLDEN / "recordings" / f"{name}.json", OUTCOMES[name]())


def test_every_golden_file_has_its_recording() -> None:
    folder = GOLDEN / "recordings"
    files = {str(file.relative_to(folder))[: -len(".json")] for file in folder.rglob("*.json")}
    assert files == set(OUTCOMES)
