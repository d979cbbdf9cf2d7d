"""A benchmark of another package: what is checked where it is loaded, and a new one from
`perfdag new`.
"""

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfdag.benchmark import registry
from perfdag.benchmark.contract import Benchmark, Metric, Params, Tool
from perfdag.benchmark.registry import mistakes
from perfdag.commands.doctor import of_images
from perfdag.commands.main import main
from perfdag.steps.command import Command
from tests.conftest import CommandLine

ROOT = Path(__file__).parent.parent
ODD = '''
from perfdag.benchmark import registry
from perfdag.benchmark.contract import Benchmark, Metric, Output, Params
from perfdag.benchmark.contract import Measurement

class Odd(Benchmark[Params]):
    """Nothing.

    Clock: starts at noon and stops there.
    """
    metrics = (Metric("figure", "s", "lower", "a figure", headline=True),)
    def seconds(self, params): return 0.1
    def run(self, gang, params):
        gang.output = Output({"stdout": "1"})
        PARSE
'''
NAMED = ODD.replace("Benchmark[Params]", "Benchmark[Named]").replace(
    "class Odd",
    "from pydantic import Field\n\n"
    "class Named(Params):\n    to: str = Field('a', pattern='^[a-z]+$')\n\nclass Odd",
)
"""Its parameter has a pattern without words."""


def install(site: Path, name: str, code: str, cls: str = "Odd") -> None:
    """Put a package with one benchmark into a folder, as an installer would."""
    module, info = f"perfdag_{name}", site / f"perfdag_{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (site / f"{module}.py").write_text(code)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: perfdag-{name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[perfdag.benchmarks]\n{name} = {module}:{cls}\n")


def perfdag(site: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(site), "COLUMNS": "200"}
    argv = [sys.executable, "-m", "perfdag", *words]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose packages this process has installed."""

    def forget() -> None:
        for cached in (registry.benchmark_entry_points, registry.names, registry.get):
            cached.cache_clear()
        for module in [name for name in sys.modules if name.startswith("perfdag_")]:
            del sys.modules[module]

    monkeypatch.syspath_prepend(tmp_path / "site")
    forget()
    yield tmp_path / "site"
    monkeypatch.undo()
    forget()


def declared(**changes: Any) -> type[Benchmark[Any]]:
    return type("Changed", (Command,), {"__doc__": Command.__doc__, **changes})


class NetworkParams(Params):
    network: int = 1


class CapitalParams(Params):
    Size: int = 1


WALL = Command.metrics[0]
NoParams = type("NoParams", (Benchmark,), {"__doc__": Command.__doc__, "metrics": (WALL,)})


@pytest.mark.parametrize(
    ("benchmark", "text"),
    [
        (declared(), ""),
        ("a text", "is 'a text', not a subclass of"),
        (declared(__doc__="Wall time."), "has no `Clock:` paragraph"),
        (
            declared(tools=(Tool("dd", {"apt-get": "coreutils"}),)),
            "has the tool dd in 'apt-get'; package managers are apt, dnf",
        ),
        (declared(metrics=()), "has no headline metric"),
        (declared(metrics=(WALL, WALL)), "declares the metric wall_time 2 times"),
        (
            declared(metrics=(Metric("wall", "ms", "lower", "", headline=True),)),
            "has the metric wall in 'ms'; SI base units are 1, s, B",
        ),
        (
            declared(metrics=(Metric("wall", "s", "less", "", headline=True),)),  # type: ignore[arg-type]
            "has the metric wall with better='less'",
        ),
        (NoParams, "has no parameters; derive it from Benchmark[P]"),
        (declared(Params=NetworkParams), "has the parameter network, which is a key of the shape"),
        (declared(Params=CapitalParams), "has the parameter Size; a name has a-z"),
    ],
)
def test_a_mistake_of_a_declaration_is_one_sentence(benchmark: Any, text: str) -> None:
    result = next(mistakes(benchmark), "")
    assert result.startswith(text)
    assert bool(result) == bool(text)


def test_a_broken_package_breaks_no_other(site: Path, tmp_path: Path, cli: CommandLine) -> None:
    install(site, "broken", "import no_such_module")
    install(site, "useless", ODD.replace("headline=True", ""))
    install(site, "named", NAMED)
    sentences = [
        "benchmark broken of package perfdag-broken 1.0 cannot be used: ModuleNotFoundError",
        "benchmark useless of package perfdag-useless 1.0 has no headline metric",
    ]
    listed = cli(["benchmarks"])
    assert "iperf" in listed.out
    assert len(listed.err.splitlines()) == 2
    assert all(sentence in listed.err for sentence in sentences)
    assert sentences[0] in cli(["benchmarks", "broken"], 2).err
    assert " ^[a-z]+$ " in cli(["benchmarks", "named"]).out
    suite = tmp_path / "suite.yaml"
    suite.write_text("name: s\nentries:\n  - benchmark: broken\n  - benchmark: useless\n")
    refused = cli(["plan", str(suite)], 2).err
    assert refused.count("\n") == 2
    assert f"{suite}:3: entries[0].benchmark: {sentences[0]}" in refused
    suite.write_text("name: s\nentries:\n  - {benchmark: command, params: {argv: ['true']}}\n")
    cli(["run", str(suite), "--no-report"])
    schema = json.loads(cli(["plan", "--schema"]).out)
    assert "broken" not in schema["$defs"]["Entry"]["properties"]["benchmark"]


@pytest.mark.parametrize(
    ("parse", "error", "kept"),
    [
        (
            "return [Measurement('figur', 1.0)]",
            "no metric 'figur' is declared, only figure",
            False,
        ),
        (
            "return [Measurement('figure', float('nan'))]",
            "figure cannot be nan s: it is a number from 0 to inf",
            False,
        ),
        ("return {}['none']", "KeyError: 'none'", True),
    ],
)
def test_a_faulty_parser_gives_a_failed_sample(
    site: Path, cli: CommandLine, parse: str, error: str, kept: bool
) -> None:
    install(site, "odd", ODD.replace("PARSE", parse))
    Path("suite.yaml").write_text("name: s\nentries:\n  - benchmark: odd\n")
    cli(["run", "suite.yaml", "--store", "store", "--no-report"], 1)
    [part] = [
        json.loads(file.read_bytes())
        for file in Path().glob("store/runs/*/parts/*.json")
        if not file.name.startswith("canary")
    ]
    assert (part["status"], part["error"]) == ("failed", error)
    assert part["texts"]["stdout"] == "1"
    assert ("perfdag_odd.py" in part["texts"].get("traceback", "")) == kept


def new_package(folder: Path, name: str) -> Path:
    """Write a new benchmark, build its wheel and unpack it as an installer does."""
    assert main(["new", name, "--folder", str(folder / "package")]) == 0
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")]
    subprocess.run(argv, cwd=folder / "package", check=True, capture_output=True)
    [wheel] = (folder / "dist").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def test_a_new_benchmark_is_installed_measured_and_tested_as_written(tmp_path: Path) -> None:
    site = new_package(tmp_path, "mem-copy")
    assert (site / "perfdag_mem_copy/Containerfile").exists()
    code = (site / "perfdag_mem_copy/__init__.py").read_text()
    page = (ROOT / "docs/adding-a-benchmark.md").read_text()
    assert [block in code for block in re.findall(r"```python\n(.*?)```", page, re.S)] == [True]
    suite = str(tmp_path / "package/suite.yaml")
    words = ("run", suite, "--store", str(tmp_path / "store"), "--no-report")
    ran = perfdag(site, *words)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"block=64KiB +throughput +[\d.]+ .* [kMG]?B/s +3  ok", ran.stdout), ran.stdout
    described = perfdag(site, "benchmarks", "mem-copy")
    assert re.search(r"^throughput +B/s +higher", described.stdout, re.M)
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    for _ in range(2):  # the first run records, the second reads the recording
        tested = subprocess.run(
            argv,
            cwd=tmp_path / "package",
            env={**os.environ, "PYTHONPATH": str(site)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert tested.returncode == 0, tested.stdout
    assert list((tmp_path / "package/tests/recorded").glob("short.*"))


def test_a_name_that_cannot_be_used_writes_nothing(tmp_path: Path, cli: CommandLine) -> None:
    (tmp_path / "perfdag-there").mkdir()
    for name, text in (
        ("Sysbench", "begins with a letter"),
        ("iperf", "has a benchmark iperf; rename yours"),
        ("there", "perfdag-there exists"),
    ):
        assert text in cli(["new", name], 2).err
    assert [path.name for path in tmp_path.iterdir()] == ["perfdag-there"]


def test_the_image_is_asked_which_benchmarks_it_has() -> None:
    names = ("iperf", "mem-copy")
    [lacking] = of_images("x\nbenchmarks: fio iperf\n", names)
    assert (lacking.state, lacking.what) == ("missing", "the images have no benchmark mem-copy")
    assert "images/build --with" in lacking.do
    [has] = of_images("benchmarks: fio iperf mem-copy", names)
    assert has.state == "ok"
