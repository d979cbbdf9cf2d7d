"""`command` with `metrics`: figures that any tool prints."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from perfdag.benchmark.contract import Failed
from perfdag.commands.main import main
from perfdag.plan import make_plan
from perfdag.results.schema import load_rows
from perfdag.steps.command import CommandParams, Figure
from perfdag.store.s3 import open_store
from perfdag.suite.document import BadDocument
from perfdag.suite.load import parse_suite
from perfdag.units import to_base

ROOT = Path(__file__).parents[2]
PRINTED = {"jobs": [{"read": {"bw": 12.5, "ok": True}}]}


def suite(metrics: str, checks: str = "") -> str:
    program = f"print('rate: 3 MiB/s'); print('rate: 4 MiB/s'); print({json.dumps(PRINTED)!r})"
    return (
        f"name: s\n{checks}entries:\n  - benchmark: command\n    params:\n"
        f"      argv: [python3, -c, {json.dumps(program.partition('; print({')[0])}]\n"
        f"      metrics: {metrics}\n"
    )


def rows() -> list[dict[str, Any]]:
    table = load_rows(open_store("store")).to_pylist()
    return [row for row in table if row["benchmark"] == "command"]


def test_a_figure_of_the_output_is_the_headline() -> None:
    checks = "checks:\n  - {metric: rate, op: '>', value: 1MiB/s}\n"
    text = suite("{rate: {regex: 'rate: ([0-9]+)', unit: MiB/s, better: higher}}", checks)
    Path("suite.yaml").write_text(text)
    assert main(["run", "suite.yaml", "--store", "store", "--no-report"]) == 0
    rate, wall_time, cpu_time, *_ = rows()
    assert (rate["metric"], rate["value"], rate["unit"]) == ("rate", 4 * 2**20, "B/s")
    assert (rate["better"], rate["headline"]) == ("higher", True)
    assert (wall_time["metric"], wall_time["headline"]) == ("wall_time", False)
    assert (cpu_time["metric"], cpu_time["headline"]) == ("cpu_time", False)
    assert cpu_time["value"] > 0


@pytest.mark.parametrize(
    ("figure", "better", "point"),
    [
        ("unit: 1/s", "higher", "6add44b1cc7deb45"),
        ("unit: 1/s, better: none", "none", "6add44b1cc7deb45"),
        ("unit: ms", "none", "087768c66eea7ff7"),
        ("unit: 1/s, better: lower", "lower", None),
    ],
)
def test_a_rate_is_better_higher_unless_said_otherwise(
    figure: str, better: str, point: str | None
) -> None:
    """Points keep the ids that they had when the direction of a rate had to be said."""
    text = suite(f"{{rate: {{regex: 'rate: ([0-9]+)', {figure}}}}}")
    [planned] = make_plan(parse_suite(text)).points
    [rate, _] = CommandParams.declared(planned.params)
    assert rate.better == better
    assert planned.id == (point or planned.id)


def test_a_figure_that_is_not_printed_fails_the_sample() -> None:
    Path("suite.yaml").write_text(suite("{rate: {regex: 'speed: ([0-9]+)'}}"))
    assert main(["run", "suite.yaml", "--store", "store", "--no-report"]) == 1
    [row] = rows()
    assert (row["status"], row["error"]) == (
        "failed",
        "metrics.rate: nothing matches 'speed: ([0-9]+)'",
    )


@pytest.mark.parametrize(
    ("figure", "texts", "value"),
    [
        ({"regex": r"took (\S+) ms", "unit": "ms"}, {"stdout": "", "stderr": "took 5 ms"}, 0.005),
        ({"regex": "took (.*)", "unit": "s"}, {"stdout": "took 5 ms\n"}, 0.005),
        ({"regex": "x=(.*)"}, {"stdout": "x=nan"}, "'nan' is no number"),
        ({"regex": "^x=(.*)$"}, {"stdout": "x=1\nx=2\n"}, 2.0),
        # a unit that moves with the figure is read with it
        ({"regex": r", ([\d.]+)", "unit": "MB/s"}, {"stdout": "in 1 s, 1.1 GB/s\n"}, 1.1e9),
        ({"regex": r", ([\d.]+)", "unit": "MB/s"}, {"stdout": "in 1 s, 976 MB/s\n"}, 976e6),
        ({"regex": r"took ([\d.]+)", "unit": "s"}, {"stdout": "took 12 \u03bcsecs"}, 12e-6),
        ({"regex": r"size ([\d.]+)", "unit": "KiB"}, {"stdout": "size 4KB"}, 4096),
        ({"regex": r"size ([\d.]+)", "unit": "B"}, {"stdout": "size 4 blocks of 1 MB"}, 4),
        ({"json": "x", "unit": "ms"}, {"stdout": '{"x": "2.5 s"}'}, 2.5),
        ({"json": "x"}, {"stdout": '{"x": "1,5"}'}, "'1,5' is no number"),
        ({"json": "jobs.0.read.bw"}, {"stdout": json.dumps(PRINTED)}, 12.5),
        ({"json": "jobs.-1.read.bw"}, {"stdout": f"\ufeff {json.dumps(PRINTED, indent=1)}"}, 12.5),
        ({"json": "a.99.000000.b"}, {"stdout": '{"a": {"99.000000": {"b": 4711}}}'}, 4711),
        ({"json": "a.b.c"}, {"stdout": '{"a.b": {"c": 1}, "a": {"b.c": 2, "b": {}}}'}, 2),
        ({"json": "0.x"}, {"stdout": '[WARN] a\n[1] b\nfio: c\n[{"x": 3}]\nbye\n'}, 3),
        ({"json": "x"}, {"stdout": '{"x": 1}\n{"x": 2}\n'}, "2 reports, and not one"),
        ({"json": "x"}, {"stdout": '{"x": [\n{"x": 1}\n'}, "printed no JSON"),
        ({"json": "jobs.1.read.bw"}, {"stdout": json.dumps(PRINTED)}, "no 'jobs.1.read.bw'"),
        ({"json": "jobs.0.read.ok"}, {"stdout": json.dumps(PRINTED)}, "is no number"),
        ({"json": "jobs"}, {"stdout": json.dumps(PRINTED)}, "is no number"),
        ({"json": "jobs.0.read.bw"}, {"stdout": json.dumps(PRINTED)[:20]}, "line 1 column"),
        ({"regex": "x=(.*)"}, {"stdout": "x=1,5"}, "'1,5' is no number"),
    ],
)
def test_where_a_figure_is_read(
    figure: dict[str, str], texts: dict[str, str], value: float | str
) -> None:
    read = Figure.model_validate(figure).read
    if isinstance(value, str):
        with pytest.raises((ValueError, Failed), match=re.escape(value)):
            read(texts)
    else:
        assert read(texts) == pytest.approx(value)


@pytest.mark.parametrize(
    ("metrics", "text"),
    [
        ("{rate: {}}", "give either regex or json"),
        ("{rate: {regex: x, json: y}}", "give either regex or json"),
        ("{rate: {regex: 'x'}}", "regex has 0 groups"),
        ("{rate: {regex: '(x'}}", "regex: missing )"),
        ("{rate: {regex: '(x)', unit: furlong}}", "unknown unit 'furlong'; write one such as"),
        ("{rate: {regex: '(x)', better: more}}", "higher"),
        ("{wall_time: {regex: '(x)'}}", "use another name"),
        ("{'a b': {regex: '(x)'}}", "metrics"),
    ],
)
def test_a_mistake_is_named_before_anything_runs(metrics: str, text: str) -> None:
    with pytest.raises(BadDocument, match=re.escape(text)):
        make_plan(parse_suite(suite(metrics)))


def test_a_check_of_a_figure_that_is_not_there_is_refused() -> None:
    checks = "checks:\n  - {metric: speed, op: '>', value: 1}\n"
    with pytest.raises(BadDocument, match=r"; there are wall_time, .*, rate"):
        make_plan(parse_suite(suite("{rate: {regex: '(x)'}}", checks)))


def test_a_command_without_metrics_keeps_the_id_of_its_point() -> None:
    [point] = make_plan(parse_suite(suite("{}"))).points
    assert "metrics" not in point.params


def test_the_unit_of_a_tool_becomes_a_base_unit() -> None:
    for unit, base, factor in (
        ("1", "1", 1),
        ("us", "s", 1e-6),
        ("kB/s", "B/s", 1000),
        ("KiB", "B", 1024),
        ("Gbit/s", "bit/s", 1e9),
        ("1/s", "1/s", 1),
        ("W", "W", 1),
    ):
        assert to_base(unit) == (base, factor)
    for unit in ("", "/s", "furlong", "s/s"):
        with pytest.raises(ValueError, match="unknown unit"):
            to_base(unit)


def test_the_suite_of_the_page_can_be_planned() -> None:
    page = (ROOT / "docs/suites.md").read_text()
    [text] = [block for block in re.findall(r"```yaml\n(.*?)```", page, re.S) if "openssl" in block]
    [point] = make_plan(parse_suite(text)).points
    figure = Figure.model_validate(point.params["metrics"]["throughput"])
    assert figure.read({"stdout": "sha256          415105.02k\n"}) == pytest.approx(415105020)


@pytest.mark.parametrize("operator", ["|", "&&", ">"])
def test_an_operator_of_a_shell_is_refused(operator: str) -> None:
    with pytest.raises(ValidationError, match="no shell reads"):
        CommandParams(argv=["echo", "x", operator, "wc"])
    CommandParams(argv=["bash", "-c", f"echo x {operator} wc"])
    CommandParams(argv=["test", "b", operator, "a"])
