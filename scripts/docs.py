"""Build the documentation as a site: docs.py FOLDER. Needs Zensical.

The site has the pages of the repository, and a page for each benchmark. Exit with 1 if a link is
broken, or a page does not explain a placeholder.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml
from sample_charts import picture

from perfdag.commands.benchmarks import Description, describe_benchmarks
from perfdag.suite.load import load_suite

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md", "CHANGELOG.md")
NAVIGATION = {
    "Start": {
        "perfdag": "README.md",
        "Install": "docs/install.md",
        "First run": "docs/first-run.md",
        "Write a suite": "docs/suites.md",
        "Read a report": "docs/report.md",
        "First cluster": "docs/first-cluster.md",
        "Install on a cluster": "docs/cluster.md",
    },
    "Guides": {
        "Which benchmark?": "docs/choose.md",
        "Compare two settings": "docs/compare.md",
        "A kernel setting": "docs/kernel-setting.md",
        "Did it get slower?": "docs/regressions.md",
        "Nightly gate": "docs/nightly.md",
        "In CI": "docs/ci.md",
        "Pages over all runs": "docs/site.md",
        "Measure between nodes": "docs/several-nodes.md",
        "Find a slow node": "docs/slow-node.md",
        "GPUs": "docs/gpu.md",
        "Scripts in Python": "docs/scripts.md",
        "Add a benchmark": "docs/adding-a-benchmark.md",
        "Helm": "docs/helm.md",
        "Without internet access": "docs/air-gapped.md",
        "Published figures": "docs/published-figures.md",
        "Monitoring": "docs/monitoring.md",
        "Upgrade": "docs/upgrade.md",
        "Troubleshooting": "docs/troubleshooting.md",
    },
    "Families": {
        "Scale": "docs/scale.md",
        "Queues": "docs/queue.md",
        "ResNet-50": "docs/resnet50.md",
    },
    "Coming from": {
        "kube-perftest": "docs/kube-perftest.md",
        "kube-burner": "docs/from-kube-burner.md",
        "Run:ai's scale test": "docs/from-runai.md",
        "KubeVirt's perfscale": "docs/from-perfscale.md",
        "Intel's tester": "docs/from-intel.md",
        "hyperfine, pytest-benchmark, asv": "docs/from-other-tools.md",
    },
    "Concepts": {
        "Verdicts": "docs/statistics.md",
        "Trust": "docs/trust.md",
        "Architecture": "docs/architecture.md",
        "Decisions": "docs/decisions.md",
        "Glossary": "docs/glossary.md",
    },
    "Reference": {
        "Command line": "docs/reference/cli.md",
        "Keys of a suite": "docs/reference/suite.md",
        "Store and rows": "docs/results.md",
        "Why a sample is missing": "docs/missing-samples.md",
        "Rights": "docs/reference/rights.md",
        "Verification": "docs/verification.md",
        "Contributing": "CONTRIBUTING.md",
        "Code of conduct": "CODE_OF_CONDUCT.md",
        "Security": "SECURITY.md",
        "Changelog": "CHANGELOG.md",
    },
}
STYLE = "docs/style.css"
WIDE = "@media (min-width: 45em) { .md-typeset td:first-child code { white-space: nowrap; } }\n"
_LINK = re.compile(r"\]\(([^)#:\s]+)")


def example_suite(name: str) -> str:
    """Return a suite with one entry of a benchmark, from the first suite that measures it."""
    entry: dict[str, Any] = {"benchmark": name}
    for file in sorted((ROOT / "suites").glob("*.yaml")):
        for source in load_suite(file).sources:
            if source.entry.benchmark == name and len(entry) == 1:
                entry = source.raw
    if name == "command" and len(entry) == 1:
        entry["params"] = {"argv": ["sleep", "0.1"]}
    suite = {"name": f"{name}-example", "repetitions": 3, "entries": [entry]}
    return yaml.safe_dump(suite, sort_keys=False)


def benchmark_page(item: Description) -> str:
    """Return the page of a benchmark, from its declaration."""
    lines = [f"# {item['name']}", "", item["summary"], "", f"**Clock**: {item['clock']}", ""]
    if item["tools"]:
        tools = ", ".join(f"`{tool['program']}`" for tool in item["tools"])
        lines += [f"**Tools**: {tools}", ""]
    lines += [f"![Chart of {item['name']}]({item['name']}.svg)", ""]
    lines += ["The chart shows sample figures, which nobody measured.", ""]
    lines += ["## Metrics", "", "| metric | unit | better | what |", "|---|---|---|---|"]
    for metric in item["metrics"]:
        name = f"**`{metric['name']}`**" if metric["headline"] else f"`{metric['name']}`"
        lines.append(
            f"| {name} | {metric['unit']} | {metric['better']} | {_cell(metric['about'])} |"
        )
    lines += ["", "Headline metrics are bold.", "", "## Parameters", ""]
    lines += ["| parameter | values | default | what |", "|---|---|---|---|"]
    for param in item["params"]:
        default = "required" if param["required"] else f"`{param['default']}`"
        about, values = _cell(param["about"]), _cell(param["allowed"])
        lines.append(f"| `{param['name']}` | {values} | {default} | {about} |")
    return "\n".join(
        [*lines, "", "## A suite", "", "```yaml", example_suite(item["name"]) + "```", ""]
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def stage(target: Path) -> None:
    """Write the sources of the site: pages, the files that they link to, and generated pages."""
    for page in [*(ROOT / name for name in PAGES), *(ROOT / "docs").rglob("*")]:
        if page.is_file():
            _copy(page, target)
        if page.suffix == ".md":
            for link in _LINK.findall(page.read_text()):
                target_page = (page.parent / link).resolve()
                if target_page.is_file() and target_page.is_relative_to(ROOT.resolve()):
                    _copy(target_page, target)
    folder = target / "docs/benchmarks"
    folder.mkdir()
    table = target / "docs/reference/benchmarks.md"
    text = table.read_text()
    for item in describe_benchmarks():
        (folder / f"{item['name']}.md").write_text(benchmark_page(item))
        row = f"| `{item['name']}` |"
        text = text.replace(row, f"| [`{item['name']}`](../benchmarks/{item['name']}.md) |")
        (folder / f"{item['name']}.svg").write_bytes(picture(item["name"]))
    table.write_text(text)
    (target / STYLE).write_text(WIDE)


def _copy(file: Path, target: Path) -> None:
    copy = target / file.resolve().relative_to(ROOT.resolve())
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, copy)


def configuration() -> str:
    """Return the configuration of Zensical. No page loads anything from another host."""
    pages = {item["name"]: f"docs/benchmarks/{item['name']}.md" for item in describe_benchmarks()}
    benchmarks = {"All": "docs/reference/benchmarks.md", **pages}
    sections = {**NAVIGATION, "Benchmarks": benchmarks}
    navigation = ", ".join(
        f'{{"{section}" = [{", ".join(f"""{{"{t}" = "{p}"}}""" for t, p in pages.items())}]}}'
        for section, pages in sections.items()
    )
    return (
        '[project]\nsite_name = "perfdag"\ndocs_dir = "source"\nsite_dir = "site"\n'
        f'use_directory_urls = false\nnav = [{navigation}]\nextra_css = ["{STYLE}"]\n'
        '[project.theme]\nfont = false\nfeatures = ["navigation.sections"]\n'
    )


class _Page(HTMLParser):
    """The links of a page, and the names that links can go to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if key in ("href", "src") and value:
                self.links.append(value)
            elif key in ("id", "name") and value:
                self.names.add(value)


def broken_links(site: Path) -> Iterator[str]:
    """Yield a line for each link of a page to a file or an anchor of the site that is not there."""
    pages = {file.resolve(): _Page(file.read_text()) for file in site.rglob("*.html")}
    for file, page in pages.items():
        if file.name == "404.html":  # its links are absolute
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            anchors = pages[target].names if target in pages else set()
            anchor = unquote(parts.fragment)
            if not target.is_file() or (anchor and target in pages and anchor not in anchors):
                yield f"{file.relative_to(site.resolve())}: broken link {link}"


def unexplained_placeholders(text: str) -> list[str]:
    """Return words of capitals, such as RUN, in the commands of a page that its text lacks.

    A variable of the shell (`NAME=value`, `$NAME`) is none, and neither is what a program printed.
    """
    fence = r"^```{}\n(?:.*\n)*?```"
    text = re.sub(fence.format(r"(?!yaml|sh)\w+"), "", text, flags=re.M)
    blocks = re.compile(rf"^ {{4,}}\S.*|{fence.format('(?:yaml|sh)')}", re.M)
    code, prose = "\n".join(blocks.findall(text)), blocks.sub("", text)
    code = re.sub(r" # .*|\$\{\{.*?\}\}", "", code)
    words = dict.fromkeys(re.findall(r"(?<![\w$.{%<'-])[A-Z]{2,}(?![\w=.'-])", code))
    return [word for word in words if not re.search(rf"\b{word}\b", prose)]


def main(folder: Path) -> int:
    """Build the site in FOLDER/site; return 1 if a page has a broken link or an open question."""
    shutil.rmtree(folder, ignore_errors=True)
    stage(folder / "source")
    (folder / "zensical.toml").write_text(configuration())
    zensical = Path(sys.executable).with_name("zensical")
    subprocess.run([zensical, "build"], cwd=folder, check=True)
    faults = sorted(set(broken_links(folder / "site")))
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for word in unexplained_placeholders(page.read_text()):
            faults.append(f"{page.relative_to(ROOT)}: what is {word}?")
    sys.stderr.write("".join(f"{line}\n" for line in faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
