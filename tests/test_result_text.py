"""The table of a run: width, names, units and colours, in a pipe and on a terminal."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from perfdag.plan import make_plan
from perfdag.results.collect import CollectionResult
from perfdag.results.summary import summarise
from perfdag.runs.finish import Run
from perfdag.suite.load import parse_suite
from tests.charts import rows
from tests.conftest import CommandLine
from tests.fakes.terminal import on_a_terminal

SHOW = ["show", "last"]
SUITE = """
name: colours
retries: 0
entries:
  - {benchmark: command, name: good, params: {argv: [sleep, '0.01'], expected: 0.01}}
  - {benchmark: command, name: bad, params: {argv: ['false']}}
"""
FIGURES = (
    (("iops", "1/s", 812.0), ("bandwidth", "B/s", 3.2e6)),
    (("iops", "1/s", 16950.0), ("bandwidth", "B/s", 6.943e7)),
)


def result_with(label: str) -> Run:
    """Return a run of two points of fio, with two metrics in two directions, and a skipped one."""
    samples = [
        rows.sample(
            "fio",
            {"rw": f"{label}{point}"},
            repetition,
            [
                rows.throughput(
                    value * (1 + repetition / 100), metric=metric, unit=unit, coords=coords
                )
                for metric, unit, value in FIGURES[point]
                for coords in ({"direction": "read"}, {"direction": "write"})
            ],
        )
        for point in (0, 1)
        for repetition in (1, 2)
    ]
    skipped = rows.sample("latency", {}, 1, [], status="skipped", error="no netperf, " * 12)
    table = rows.table(*samples, skipped)
    plan = make_plan(parse_suite(SUITE))
    return Run(plan, summarise(table), CollectionResult("results/x"), "store/results/x")


@pytest.mark.parametrize("label", ["short", "a-long-value-of-this-param-" * 2])
def test_a_table_fits_80_columns_and_names_a_point_once(
    label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert max(map(len, str(result_with(label)).splitlines())) > 80, "folded in a pipe"
    monkeypatch.setenv("COLUMNS", "80")
    text = str(result_with(label)).partition("\n5 ok")[0].partition("\n4 ok")[0]
    assert max(map(len, text.splitlines())) <= 80
    for point in (0, 1):
        assert len(re.findall(rf"rw={label}{point}\b", text)) == 1
    # Each value keeps its three digits.
    assert re.search(r"read IOPS +8\d\d .* IOPS +2 +ok", text)
    assert re.search(r"read IOPS +17\.\d+ .* kIOPS +2 +ok", text)
    assert [line for line in text.splitlines() if re.fullmatch(r"\w+", line)] == ["fio", "latency"]
    assert text.split().count("netperf,") == 12


OWN = r"""
name: own
entries:
  - benchmark: command
    params:
      argv: [echo, 120 of them]
      metrics: {rate: {regex: '(\d+) of', unit: 1/s, better: higher}}
    permutations: {product: {env.matrix_size: ['4096', '8192']}}
"""


def test_a_note_of_samples_stands_once_below_the_table() -> None:
    run = result_with("p")
    table = run.summary.table
    env = json.dumps({"sample": {"notes": ["read: too few I/Os"]}})
    at = table.schema.get_field_index("env")
    noted = table.set_column(at, "env", pa.array([env] * table.num_rows))
    text = str(replace(run, summary=summarise(noted)))
    assert text.count("\nnote    fio: read: too few I/Os\n") == 1


def test_what_a_user_names_has_no_unit_of_a_shipped_benchmark(cli: CommandLine) -> None:
    Path("suite.yaml").write_text(OWN)
    cli(["run", "suite.yaml", "--set", "repetitions=1"])
    text = cli([*SHOW]).out
    assert re.search(r"env.matrix_size=4096 +rate +120 .* op/s ", text), text
    assert "samples/s" not in text


def test_failures_are_red_on_a_terminal_only(cli: CommandLine) -> None:
    Path("suite.yaml").write_text(SUITE)
    cli(["run", "suite.yaml", "--no-report"], 1)
    text = on_a_terminal(SHOW, "stdout", 80, 1)
    failed = next(line for line in text.splitlines() if "failed\x1b" in line)
    good = next(line for line in text.splitlines() if "wall time" in line)
    assert "\x1b[1;31m" in failed
    assert "\x1b" not in good
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert max(len(line) for line in plain.splitlines() if not line.startswith("rows")) <= 80
    piped = cli(SHOW, 1).out
    assert "\x1b" not in piped
    trust = re.search(r"^trust   .*$", piped, re.M)
    narrow = on_a_terminal(SHOW, "stdout", 40, 1, NO_COLOR="1")
    assert not re.search(r"\x1b\[[\d;]*3\dm", narrow)
    assert trust
    assert trust[0] in re.sub(r"\r\n {8}(?=\S)", " ", narrow)
