"""The site of the documentation: generated pages, and the search for broken links."""

import importlib
import re
import sys
import tomllib
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import TypeAdapter

from perfdag import shape
from perfdag.analysis.gate import put_acks
from perfdag.benchmark import registry
from perfdag.plan import make_plan
from perfdag.results.schema import SAMPLES
from perfdag.store.base import FolderStore
from perfdag.suite import model
from perfdag.suite.load import parse_suite
from perfdag.suite.model import Check
from tests.test_readme import PAGES

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
docs: Any = importlib.import_module("docs")
reference: Any = importlib.import_module("reference")


@pytest.mark.parametrize("name", registry.names())
def test_the_suite_on_the_page_of_a_benchmark_can_be_planned(name: str) -> None:
    plan = make_plan(parse_suite(docs.example_suite(name)))
    assert {point.benchmark for point in plan.points} == {name}


def test_the_columns_of_a_row_are_on_the_page_of_the_store() -> None:
    page = PAGES[ROOT / "docs/results.md"]
    assert [name for name in SAMPLES.names if f"`{name}`" not in page] == []


def test_the_page_of_the_installation_names_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listing = PAGES[ROOT / "docs/install.md"].partition("extras in brackets")[2]
    listed = re.findall(r"^- (`[^:]*`):", listing, re.M)
    assert {name for names in listed for name in re.findall(r"`([^`]+)`", names)} < set(
        project["optional-dependencies"]
    )


YAML = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page, text in PAGES.items()
    if page.name != "ci.md"  # tests/test_ci_templates.py runs these
    for number, block in enumerate(re.findall(r"^```yaml\n(.*?)^```", text, re.S | re.M))
]


def suites_of(block: str) -> list[str]:
    """Return whole suites from a block of YAML: a suite, its entries, or keys of one entry."""
    block = re.sub(r"^#.*\n", "", block)
    first = block.split(":", 1)[0].strip()
    if first in ("name", "entries", "- benchmark", "- name"):
        head = "" if first == "name" else "name: example\n"
        head += "entries:\n" if first.startswith("-") else ""
        tail = "entries: [{benchmark: command, params: {argv: [sleep, '1']}}]\n"
        return [head + block + (tail if "benchmark:" not in block else "")]
    if first == "checks":
        return []
    fio = "{benchmark: fio, params: {rw: read}}"
    benchmark = yaml.safe_load(fio if first == "volume" else "{benchmark: iperf}")
    parts = [yaml.safe_load(part) for part in re.split(r"^(?=\w)", block, flags=re.M) if part]
    return [
        yaml.safe_dump({"name": "example", "entries": [{**benchmark, **part}]}) for part in parts
    ]


@pytest.mark.parametrize("block", YAML)
def test_every_block_of_yaml_is_a_suite_that_can_be_planned(block: str) -> None:
    if block.startswith("acks:"):
        Path("acks.yaml").write_text(block)
        assert put_acks(FolderStore("store"), "acks.yaml")
        return
    for check in yaml.safe_load(block).get("checks", []) if block.startswith("checks:") else []:
        Check.model_validate(check)
    for text in suites_of(block):
        assert make_plan(parse_suite(text)).points


FOREIGN = {"--service-account-max-token-expiration", "--endpoint-url", "--map-by", "--with"}
FOREIGN |= {
    "--no-cache",
    "--report_gbits",
    "--system",
    "--use_cuda",
    "--point",
    "--max-consolidation-preemptees",
}
"""Options of other programs, and of images/build, that stand alone in the text of a page."""


def test_every_option_in_the_text_of_a_page_is_one_of_perfdag() -> None:
    known = set(re.findall(r"--[a-z][\w-]+", reference.command_line_page())) | FOREIGN
    for page, text in PAGES.items():
        for code in re.findall(r"`(?!pip |images/|benchmarks/|python )([^`\n]+)`", text):
            named = set(re.findall(r"(?<![\w-])--[a-z][\w-]+", code))
            assert named <= known, f"{page.name}: {code}"


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_pages_of_the_reference_are_current(name: str) -> None:
    page = (ROOT / f"docs/reference/{name}.md").read_text()
    assert page == reference.PAGES[name](), "make generated"


def test_the_examples_of_the_reference_are_valid() -> None:
    for part, examples in reference.EXAMPLES.items():
        kind: Any = getattr(model, part, getattr(shape, part, None))
        for key, text in examples.items():
            field = kind.model_fields[key]
            allowed: Any = Annotated[field.annotation, *(field.metadata or [None])]
            TypeAdapter(allowed).validate_python(yaml.safe_load(text))


def test_a_placeholder_that_a_page_does_not_explain_is_named() -> None:
    page = "Run\n\n    perfdag rm RUN --store $ROOT\n    FOO=1 perfdag show THAT\n\nTHAT is one.\n"
    assert docs.unexplained_placeholders(page) == ["RUN"]


def test_a_broken_link_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="top"></h1><a href="b.html"></a><a href="b.html#there"></a><a href="#top"></a>'
        '<a href="https://example.org/x"></a><a href="c.html"></a><a href="b.html#gone"></a>'
        '<img src="picture.png"><a href="folder/"></a>'
    )
    (tmp_path / "b.html").write_text('<p id="there">')
    (tmp_path / "folder").mkdir()
    assert list(docs.broken_links(tmp_path)) == [
        "a.html: broken link c.html",
        "a.html: broken link b.html#gone",
        "a.html: broken link picture.png",
        "a.html: broken link folder/",
    ]
