"""A slow node among pairs is named wherever a user looks, and fails the gate where asked."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from perfdag.benchmark import registry
from perfdag.benchmark.contract import Measurement
from perfdag.plan import make_plan
from perfdag.results.collect import collect
from perfdag.results.samples import SampleRecord, as_rows, now, sample_key
from perfdag.store.base import FolderStore
from perfdag.suite.load import parse_suite
from tests.conftest import CommandLine

PAIRS = "name: net\nentries:\n  - {benchmark: iperf, hosts: {count: 5, pairs: all}}\n"
FORBIDDEN = PAIRS + "checks:\n  - {metric: throughput, slow_node: 20%}\n"
SENTENCE = "Node node-5 is slow: iperf throughput -87 %"


def measure(folder: Path, suite: str, night: int = 1) -> None:
    """Store a run of all pairs of five nodes, of which node-5 has 2 Gbit/s and the others 15."""
    store = FolderStore(str(folder))
    plan = make_plan(parse_suite(suite), run_id=f"202611{night:02}T020000Z-00000000")
    for position, (index, repetition) in enumerate(plan.order):
        point = plan.points[index]
        assert point.pair is not None
        nodes = [f"node-{host + 1}" for host in (point.pair.first, point.pair.second)]
        rate = (2e9 if "node-5" in nodes else 15e9) * (1 + index / 1000)
        rows = as_rows(registry.get("iperf"), [Measurement("throughput", rate)])
        sample = SampleRecord(
            point.id, repetition, "ok", rows=rows, nodes=nodes, started_at=now(),
            finished_at=now(), benchmark_version="1",
        )  # fmt: skip
        store.put(sample_key(plan.run_id, plan.key(position)), sample.dump())
    store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
    collect(store, plan)


def test_show_report_and_the_finish_step_name_it_before_the_first_run(
    tmp_path: Path,
    cli: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    termination_message: Path,
) -> None:
    measure(tmp_path / "store", PAIRS)
    assert (
        cli(["show", "last", "--store", "store"]).out.splitlines()[-1] == f"{SENTENCE} (first run)"
    )
    monkeypatch.setattr("perfdag.kube.patch.STORE", str(tmp_path / "store"))
    monkeypatch.setenv("PERFDAG_STORE", "claim://bench")
    monkeypatch.setenv("PERFDAG_RUN", "20261101T020000Z-00000000")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none.yaml"))
    assert SENTENCE in cli(["step", "finish"]).out
    assert termination_message.read_text() == SENTENCE
    [report] = Path("store").glob("runs/*/report.html")
    banner = report.read_text().partition('class="sentence bad">')[2].partition("</div>")[0]
    assert banner.startswith(SENTENCE.replace(" %", "\u00a0%"))
    assert "first run: the next one is compared with it" in banner


@pytest.mark.parametrize(
    ("suite", "code", "word", "tag"),
    [(PAIRS, 0, "slow", "skipped"), (FORBIDDEN, 3, "what", "failure")],
)
def test_check_names_it_and_fails_where_the_suite_asks(
    tmp_path: Path, cli: CommandLine, suite: str, code: int, word: str, tag: str
) -> None:
    measure(tmp_path / "store", suite)
    files = ["--junit", "check.xml", "--markdown", "check.md"]
    lines = cli(["check", "last", "--store", "store", *files], code).out.splitlines()
    [at] = [at for at, line in enumerate(lines) if line.endswith(": -87 % against the others")]
    assert lines[at].startswith(f"{word:8}iperf throughput, node node-5: ")
    assert at < lines.index("verdict first run: there is none before it to compare with")
    heading = Path("check.md").read_text().splitlines()[0]
    slow = "iperf throughput, node node-5: -87 % against the others (first run)"
    assert heading == f"### net: gate {'FAILED' if code else 'passed'}: {slow}"
    case = ElementTree.parse("check.xml").find(".//testcase[@classname='net.slow']")
    assert case is not None
    assert case.get("name") == "iperf throughput, node node-5"
    assert [child.tag for child in case] == [tag]


def test_one_that_is_accepted_is_told_no_more(tmp_path: Path, cli: CommandLine) -> None:
    measure(tmp_path / "store", FORBIDDEN)
    accept = "{series: 'iperf throughput node node-5', run: 20261101T020000Z-00000000, reason: ...}"
    assert accept in cli(["check", "last", "--store", "store"], 3).out
    Path("acks.yaml").write_text(f"acks:\n  - {accept}\n")
    assert "slow " not in cli(["check", "last", "--store", "store"]).out
    cli(["acks", "set", "acks.yaml", "--store", "store"])
    last = cli(["show", "last", "--store", "store"]).out.splitlines()[-1]
    assert last == "15.1 Gbit/s (first run)"


def test_three_hosts_are_too_few_to_tell(tmp_path: Path, cli: CommandLine) -> None:
    measure(tmp_path / "store", FORBIDDEN.replace("count: 5", "count: 3"))
    output = cli(["check", "last", "--store", "store", "--json"]).out
    assert "a slow host needs at least 4 hosts to be named" in output
