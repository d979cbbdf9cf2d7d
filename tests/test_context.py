"""Values of Prometheus over each sample: rows that a check can use, one line for what it
refuses.
"""

import json
import socket
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfdag.cli import main
from perfdag.results.runs import load_plan
from perfdag.steps.runner.plan import check_context
from perfdag.store.folder import FolderStore
from perfdag.suite.yaml_document import BadDocument
from tests.fakes.http_server import QuietHandler, serving

from .prometheus import needs_prometheus, prometheus
from .test_pairs import rows

SUITE = """\
name: s
context:
  - {name: node_cpu, query: 'avg(rate(cpu{instance=~"$nodes"}[5s]))'}
  - {name: drops, query: 'sum by (device) (drops)', unit: 1/s}
entries:
  - benchmark: command
    params: {argv: [sleep, '1']}
checks:
  - {metric: node_cpu, op: <, value: 0.5}
"""


class Answers(QuietHandler):
    """A Prometheus with two series of drops, which refuses what it cannot parse."""

    queries: list[dict[str, str]]

    def do_GET(self) -> None:  # noqa: N802
        _, _, text = self.path.partition("?")
        query = dict(urllib.parse.parse_qsl(text))
        self.queries.append(query)
        start = float(query.get("start", "0"))
        if "drops" in query["query"]:
            series = [({"device": "eth0"}, ["1", "3"]), ({"device": "eth1"}, ["NaN", "NaN"])]
        else:
            series = [({}, ["0.75", "0.25"])]
        body: dict[str, Any] = {"status": "success", "data": {"result": []}}
        body["data"]["result"] = [
            {"metric": labels, "values": [[start + i, value] for i, value in enumerate(values)]}
            for labels, values in series
        ]
        if "broken" in query["query"]:
            body = {"status": "error", "error": "parse error: unexpected end"}
        self.send_response(400 if "error" in body else 200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())


@pytest.fixture
def url() -> Iterator[str]:
    Answers.queries = []
    with serving(Answers) as url:
        yield url


def run(tmp_path: Path, text: str, *options: str) -> int:
    (tmp_path / "s.yaml").write_text(text)
    words = ["run", str(tmp_path / "s.yaml"), "--store", str(tmp_path / "store"), "--no-report"]
    return main([*words, *options])


def test_the_mean_over_a_sample_is_a_row_that_a_check_uses(tmp_path: Path, url: str) -> None:
    assert run(tmp_path, SUITE, "--prometheus", url) == 3, "0.5 is not below 0.5"
    store = FolderStore(str(tmp_path / "store"))
    plan = load_plan(store, "last")
    table = rows(store, plan)
    result = {row["metric"]: row for row in table}
    assert (result["node_cpu"]["value"], result["node_cpu"]["coords"]) == (0.5, "{}")
    drops = [row for row in table if row["metric"] == "drops"]
    assert [(row["value"], row["coords"], row["unit"]) for row in drops] == [
        (2.0, '{"device":"eth0"}', "1/s")
    ], "a series without a value has no row"
    (window,) = [
        query for query in Answers.queries if "rate(" in query["query"] and "start" in query
    ]
    assert 0.9 < float(window["end"]) - float(window["start"]) < 5
    assert "$nodes" not in window["query"]
    assert main(["check", "last", "--store", store.root]) == 3
    count = len(Answers.queries)
    assert main(["report", "last", "--store", store.root]) == 0
    assert len(Answers.queries) == count, "the samples have their values"


def test_without_an_address_the_samples_have_no_context(tmp_path: Path) -> None:
    assert run(tmp_path, SUITE) == 3, "the check has no data"
    store = FolderStore(str(tmp_path / "store"))
    assert "node_cpu" not in {row["metric"] for row in rows(store, load_plan(store, "last"))}


def test_what_prometheus_refuses_is_one_line_before_anything_is_measured(
    tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = SUITE.replace("sum by (device) (drops)", "broken(")
    assert run(tmp_path, broken, "--prometheus", url) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("refuses the query drops: parse error: unexpected end")
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    assert run(tmp_path, SUITE, "--prometheus", nobody) == 4
    assert "no answer from Prometheus" in capsys.readouterr().err
    assert run(tmp_path, SUITE, "--prometheus", "http://u:secret@x") == 2
    assert run(tmp_path, SUITE.replace("metric: node_cpu", "metric: node_gpu")) == 2
    assert not (tmp_path / "store").exists()


def test_the_plan_step_refuses_what_prometheus_refuses(tmp_path: Path, url: str) -> None:
    assert run(tmp_path, SUITE, "--prometheus", url) == 3
    plan = load_plan(FolderStore(str(tmp_path / "store")), "last")
    check_context(plan)
    plan.options["context"][0]["query"] = "broken("
    with pytest.raises(BadDocument, match="refuses the query node_cpu: parse error"):
        check_context(plan)


@pytest.mark.slow
@needs_prometheus
def test_a_real_prometheus_gives_its_values_over_a_sample(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        SUITE.replace('avg(rate(cpu{instance=~"$nodes"}[5s]))', "up")
        .replace("sum by (device) (drops)", "sum(rate(process_cpu_seconds_total[5s]))")
        .replace("'1'", "'3'")
    )
    with prometheus(tmp_path, "127.0.0.1") as url:
        assert run(tmp_path, text, "--prometheus", url) == 3
        store = FolderStore(str(tmp_path / "store"))
        result = {row["metric"]: row for row in rows(store, load_plan(store, "last"))}
        assert result["node_cpu"]["value"] == 1.0
        assert json.loads(result["node_cpu"]["coords"])["job"] == "own"
        assert 0 <= result["drops"]["value"] < 2
        assert result["drops"]["n"] >= 3
        capsys.readouterr()
        assert run(tmp_path, text.replace("query: 'up'", "query: 'up('"), "--prometheus", url) == 2
        assert "refuses the query node_cpu: " in capsys.readouterr().err
