"""The tree keeps its shape: which room may import which, what is packaged, what every benchmark declares."""

import ast
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from perfdag.benchmark import contract

ROOT = Path(__file__).parent.parent
ROOMS = ("steps", "workflows", "charts")
BASE_UNITS = {"s", "B", "B/s", "bit/s", "1/s", "1", "Hz", "W", "J", "degC", "currency"}


def modules() -> list[tuple[str, Path]]:
    """(room, file) of every module of the product."""
    core = [
        ("cli" if file.name == "__main__.py" else "core", file)
        for file in sorted((ROOT / "perfdag").glob("*.py"))
    ]
    core += [("core", file) for file in sorted((ROOT / "perfdag/stats").rglob("*.py"))]
    core += [("cli", file) for file in sorted((ROOT / "perfdag/cli").rglob("*.py"))]
    return core + [(room, file) for room in ROOMS for file in sorted((ROOT / room).rglob("*.py"))]


def imported(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize(
    ("room", "file"),
    modules(),
    ids=lambda each: each if isinstance(each, str) else str(each.relative_to(ROOT)),
)
def test_arrows_between_rooms(room: str, file: Path) -> None:
    names = imported(file)
    bare = {name for name in names if name.split(".")[0] in ROOMS}
    assert not bare, f"import perfdag.{bare}, not the bare folder"
    rooms = {
        name.split(".")[1]
        for name in names
        if name.startswith("perfdag.") and name.split(".")[1] in {*ROOMS, "cli"}
    }
    allowed = {"core": set(), "cli": {*ROOMS, "cli"}}.get(room, {room})
    assert rooms <= allowed, f"{room} must not import {sorted(rooms - allowed)}"
    if room in ("core", "steps"):
        assert not {name.split(".")[0] for name in names} & {"hera", "matplotlib"}, (
            "a step's image has neither Hera nor matplotlib"
        )


def test_a_distribution_holds_every_module_once(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    for kind in ("sdist", "wheel"):
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(tmp_path)],
            cwd=ROOT,
            check=True,
            env=environment,
            capture_output=True,
        )
    wheel = {
        name
        for name in zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
        if name.endswith(".py")
    }
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        sdist = {name.split("/", 1)[1] for name in archive.getnames() if name.endswith(".py")}
    here = {str(file.relative_to(ROOT)) for file in (ROOT / "perfdag").rglob("*.py")}
    here |= {
        f"perfdag/{file.relative_to(ROOT)}"
        for room in ROOMS
        for file in (ROOT / room).rglob("*.py")
    }
    assert wheel == here
    assert sdist == here


@pytest.mark.parametrize("name", contract.names())
def test_every_benchmark_declares_what_people_need(name: str) -> None:
    found = contract.get(name)
    assert found.name == name
    assert re.search(r"\bstart", found.clock()), (
        f"{name}: its docstring needs a Clock: paragraph that says what starts the clock"
    )
    assert re.search(r"\b(stop|end)", found.clock()), f"{name}: and what stops it"
    assert found.summary().endswith(".")
    assert found.metrics, name
    assert any(metric.headline for metric in found.metrics)
    assert len({metric.name for metric in found.metrics}) == len(found.metrics)
    for metric in found.metrics:
        assert metric.unit in BASE_UNITS, (
            f"{name}.{metric.name}: {metric.unit} is not an SI base unit"
        )
        assert metric.better in {"higher", "lower", "none"}
        assert metric.about
    for key, field in found.Params.model_fields.items():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", key), f"{name}.{key}"
        assert key not in {"network", "hosts", "resources", "volume"}, (
            f"{name}.{key} hides a key of the shape"
        )
        assert field.annotation is not None


def test_no_module_is_a_drawer() -> None:
    names = {file.stem for _, file in modules()}
    assert not names & {"utils", "util", "common", "manager", "helpers", "misc"}


def test_lock_files_name_no_host() -> None:
    for lock in (ROOT / "requirements").glob("*.txt"):
        text = lock.read_text()
        assert "://" not in text, lock
        assert "--hash=sha256:" in text
