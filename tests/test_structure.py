"""The tree keeps its shape: import circles, packages, declarations.

The arrows between rooms are contracts of import-linter in pyproject.toml; `make lint` checks them.
"""

import ast
import graphlib
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("steps", "workflows", "charts")


def product_modules() -> dict[str, Path]:
    """Return the file of every module of the product by its dotted name."""
    modules = {}
    for folder in ("perfdag", *FOLDERS):
        for file in sorted((ROOT / folder).rglob("*.py")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            if parts[:1] == ("perfdag",) and len(parts) > 2 and parts[1] in FOLDERS:
                continue  # the links to the folders at the top
            name = ".".join(parts if folder == "perfdag" else ("perfdag", *parts))
            modules[name.removesuffix(".__init__")] = file
    return modules


MODULES = product_modules()


def imports_of(file: Path) -> set[str]:
    """Return the product modules that a file imports, inside functions and for types included."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                names.add(submodule if submodule in MODULES else node.module)
    return names & MODULES.keys()


def test_no_import_circle() -> None:
    graph = {name: imports_of(file) - {name} for name, file in MODULES.items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_the_drawing_of_the_rooms_is_the_contract() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    layers = tools["importlinter"]["contracts"][0]["layers"]
    rooms = [layer.replace("perfdag.", "") for layer in layers]
    blocks = re.findall(r"```text\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S)
    drawings = [[line.partition("  ")[0] for line in each.splitlines()] for each in blocks]
    assert rooms in drawings


def test_top_folders_are_imported_through_perfdag() -> None:
    wrong = re.compile(rf"^\s*(?:from|import) (?:{'|'.join(FOLDERS)})\b", re.M)
    assert not [name for name, file in MODULES.items() if wrong.search(file.read_text())]


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
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    wheel = {name for name in names if name.endswith(".py")}
    suites = {f"perfdag/suites/{file.name}" for file in (ROOT / "suites").glob("*.yaml")}
    assert suites <= set(names)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        sdist = {name.split("/", 1)[1] for name in archive.getnames() if name.endswith(".py")}
    here = {str(file.relative_to(ROOT)) for file in (ROOT / "perfdag").rglob("*.py")}
    here |= {
        f"perfdag/{file.relative_to(ROOT)}"
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*.py")
    }
    assert wheel == here
    assert sdist == here


def test_a_measuring_pod_needs_no_library_of_analysis() -> None:
    """Its images are small: only the last step and the one that plans rechecks have these."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    modules = {value.partition(":")[0] for value in points["perfdag.benchmarks"].values()}
    steps = {f"perfdag.steps.pods.{name}" for name in ("lead", "peer", "plan", "watchdog")}
    code = (
        "import sys, importlib\n"
        "for name in 'jinja2', 'matplotlib', 'numpy', 'pyarrow', 'rich': sys.modules[name] = None\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "from perfdag.commands.main import main\n"
        "sys.exit(main(['step', 'watchdog', '--pending', '1s']))"
    )
    argv = [sys.executable, "-c", code, *sorted(modules | steps)]
    result = subprocess.run(argv, env={"HOME": "/"}, capture_output=True, text=True, check=False)
    assert result.stderr.startswith("perfdag step: no cluster: "), result.stderr
