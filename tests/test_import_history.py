"""`perfdag import history`: runs from a CSV file, whatever is in it."""

import math
import re
import textwrap
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from perfdag.commands.imports.history import time_of
from perfdag.commands.main import main
from perfdag.results.schema import load_rows
from perfdag.store.base import FolderStore
from perfdag.units import NEVER_ALERTS
from tests.conftest import CommandLine

HEADER = "time,series,value,unit,better\n"
HOW = "write `higher` or `lower` into the column `better`"


def history_of(text: str, cli: CommandLine, code: int = 0) -> tuple[list[str], list[list[object]]]:
    """Import a file; return the lines on stderr, and (time, series, value, unit) of each row."""
    Path("boot.csv").write_text(HEADER + text)
    lines = cli(["import", "history", "boot.csv"], code).err.splitlines()
    rows = load_rows(FolderStore("perfdag-results")).to_pylist()
    columns = ("entry", "value", "unit", "better", "repetition", "status")
    return (
        [line.removeprefix("boot.csv: ") for line in lines],
        [[f"{row['started_at']:%d%H}", *(row[name] for name in columns)] for row in rows],
    )


@pytest.mark.parametrize(
    ("text", "lines", "rows"),
    [
        pytest.param(
            "2026-01-02,a,1,s,lower\n2026-01-02T02:00+02:00,b,2MB,B,higher\n"
            "1767312000,b,3,MiB/s,higher\n",
            [
                "line 3: value '2MB' is no number; kept as an invalid sample of b",
                "line 4: b in MiB/s, first in B; kept as b (B/s)",
            ],
            [
                ["0200", "a", 1.0, "s", "lower", 1, "ok"],
                ["0200", "b", None, "B", "higher", 1, "invalid"],
                ["0200", "b (B/s)", 3 * 2.0**20, "B/s", "higher", 1, "ok"],
            ],
            id="equal times of several series are one run",
        ),
        pytest.param(
            "2026-01-02,a,1,ms,\n2026-01-02 00:00:00.9,a,2,,\n2026-01-01,a,3,s,\n",
            [f"a: {NEVER_ALERTS}; {HOW}"],
            [
                ["0100", "a", 3.0, "s", "none", 1, "ok"],
                ["0200", "a", 0.001, "s", "none", 1, "ok"],
                ["0200", "a", 0.002, "s", "none", 2, "ok"],
            ],
            id="equal times of one series, and a clock that went back",
        ),
        pytest.param(
            "2026-01-01,a,nan,points,lower\n2026-01-02,,1e999,points,up\n2026-01-03,a,7,,higher\n",
            [
                f"boot: {NEVER_ALERTS}; {HOW}",
                "line 2: value 'nan' is no number; kept as an invalid sample of a",
                "line 3: no series; kept as series boot",
                "line 3: boot is better 'up'; taken as none",
                "line 3: value '1e999' is no number; kept as an invalid sample of boot",
                "line 4: a is better 'higher'; taken as lower",
            ],
            [
                ["0100", "a", None, "points", "lower", 1, "invalid"],
                ["0200", "boot", None, "points", "none", 1, "invalid"],
                ["0300", "a", 7.0, "points", "lower", 1, "ok"],
            ],
            id="no numbers, a unit of their own, and a direction that changes",
        ),
    ],
)
def test_what_is_unusual_is_one_line_and_nothing_is_lost(
    text: str, lines: list[str], rows: list[list[object]], cli: CommandLine
) -> None:
    assert history_of(text, cli) == (lines, rows)


def test_of_a_rate_more_is_better_unless_the_file_says_otherwise(cli: CommandLine) -> None:
    units = {"a": "ops/s", "b": "MB/sec", "c": "tps", "d": "ms", "e": "1/s"}
    lines = [
        f"2026-01-01,{name},1,{unit},{'none' * (name == 'e')}\n" for name, unit in units.items()
    ]
    notes, rows = history_of("".join(lines), cli)
    assert notes == [f"d, e: {NEVER_ALERTS}; {HOW}"]
    assert [row[4] for row in rows] == ["higher", "higher", "higher", "none", "none"]
    assert f"d; e: {NEVER_ALERTS}\n" in cli(["check", "last"]).out


def test_a_revision_and_facts_are_causes_and_another_column_is_named(cli: CommandLine) -> None:
    lines = ["time,series,value,unit,better,revision,fact.kernel,commit"]
    for day in range(1, 21):
        value, build, kernel = (10, "b1", "6.1") if day < 15 else (13, "b2", "6.8")
        lines.append(f"2026-01-{day:02},boot,{value},s,lower,{build},{kernel},x")
    Path("boot.csv").write_text("\n".join(lines))
    noted = cli(["import", "history", "boot.csv"]).err
    assert noted.startswith("boot.csv: not read: column commit; a commit belongs into `revision`")
    changed = "changed revision b1 -> b2; kernel 6.1 -> 6.8"
    assert changed in cli(["history", "boot"]).out
    assert changed in cli(["check", "b2"], 3).out


def test_a_line_without_a_time_is_left_out_and_is_exit_code_1(cli: CommandLine) -> None:
    no_times = ("soon", "1699-01-01", "26120107", "9999999999", "123456", "20261399120000")
    text = "".join(f"{time},a,1,s,lower\n" for time in ("2026-01-01", *no_times))
    lines, rows = history_of(text, cli, 1)
    assert lines == [
        f"line {number}: '{time}' is no time from 2000 to tomorrow; left out"
        for number, time in enumerate(no_times, 3)
    ]
    assert len(rows) == 1


def test_a_time_of_digits_is_what_lies_from_2000_to_tomorrow() -> None:
    epochs = ("1767366000", "1767366000123", "1767366000123456", "1767366000123456789")
    for time in ("20260102150000", "202601021500", "2026-01-02T15:00Z", *epochs):
        assert time_of(time) == datetime(2026, 1, 2, 15, tzinfo=UTC), time
    assert time_of("20260102") == datetime(2026, 1, 2, tzinfo=UTC)


def test_files_of_one_name_overwrite_nothing_of_each_other(cli: CommandLine) -> None:
    def imported(file: str, text: str, code: int = 0) -> str:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text(HEADER + text)
        return cli(["import", "history", file, "--suite", "nightly"], code).err

    imported("cpu/results.csv", "2026-01-02,cpu,10,,lower\n2026-01-03,cpu,11,,lower\n")
    for _ in range(2):
        assert (
            imported("mem/results.csv", "2026-01-02,mem,5,,lower\n2026-01-03,mem,6,,lower\n") == ""
        )
    assert imported("cpu/results.csv", "2026-01-02,cpu,10,,lower\n2026-01-04,cpu,11,,lower\n") == ""
    error = imported("other/results.csv", "2026-01-05,cpu,7,,\n2026-01-02,cpu,9,,\n", 2)
    assert "20260102T000000Z-" in error
    assert "in the store has other values of cpu; rename the file" in error
    rows = load_rows(FolderStore("perfdag-results")).to_pylist()
    values = sorted((row["entry"], f"{row['started_at']:%d}", row["value"]) for row in rows)
    assert values == [
        *(("cpu", "02", 10.0), ("cpu", "03", 11.0), ("cpu", "04", 11.0)),
        *(("mem", "02", 5.0), ("mem", "03", 6.0)),
    ]


def test_names_that_become_one_are_no_one_suite(cli: CommandLine) -> None:
    for name in ("net a", "net_a", "net-a"):
        Path(f"{name}.csv").write_text(f"{HEADER}2026-01-02,boot,1,,\n")
    for _ in range(2):
        assert "suite net-a" in cli(["import", "history", "net a.csv"]).out
    error = cli(["import", "history", "net_a.csv"], 2).err
    assert "suite net-a has runs of another file, such as 20260102T000000Z-" in error
    cli(["import", "history", "net_a.csv", "--suite", "net-a"])
    cli(["import", "history", "net-a.csv"])


def test_at_most_so_many_lines_are_about_a_file(cli: CommandLine) -> None:
    assert history_of("2026-01-01,a,x,s,lower\n" * 30, cli)[0][-1] == "and 10 more lines"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "boot.csv: it is empty"),
        (
            "date,value\n",
            "boot.csv: no column time, series; the columns are time, series, value, unit, better, "
            "revision, and the file has date, value",
        ),
        (
            "time;series;value\n",
            "boot.csv: columns are separated by commas, not by ';', and the file has "
            "time;series;value",
        ),
        (f"{HEADER}x,a,1,s,\n", "boot.csv: no line has a time, so nothing was stored"),
        (f"{HEADER}2026-01-01,{'a' * 200_000},1,s,", "field larger than field limit"),
    ],
)
def test_a_file_without_a_history_is_refused(text: str, message: str, cli: CommandLine) -> None:
    Path("boot.csv").write_text(text)
    assert message in cli(["import", "history", "boot.csv"], 2).err
    absent = cli(["import", "history", "absent.csv"], 2).err
    assert absent == "perfdag import: absent.csv: No such file or directory\n"
    assert "--suite: at most 40" in cli(["import", "history", "boot.csv", "--suite", "A/B"], 2).err


def test_the_history_of_the_docs_passes_its_first_check(cli: CommandLine) -> None:
    page = Path(__file__).parent.parent.joinpath("docs/regressions.md").read_text()
    text = re.search(r"boot:\n\n(.*?)\n\n", page.replace("`boot`", "boot"), re.S)
    assert text is not None
    header, *lines = textwrap.dedent(text[1]).splitlines()
    more = [f"2026-11-{day:02},boot,12.2,s,lower,a1b2" for day in range(3, 10)]
    for number in (0, 7):
        Path("boot.csv").write_text("\n".join([f"{header},commit", *lines, *more[:number]]))
        assert "boot.csv: not read: column commit" in cli(["import", "history", "boot.csv"]).err
        assert "gate passed" in cli(["check", "last"]).out


def test_every_verb_knows_an_imported_history(cli: CommandLine) -> None:
    lines = [
        f"{1767225600 + 86400 * night},boot,{1 + 0.4 * (night >= 30) + night % 3 / 100},s,lower"
        for night in range(40)
    ]
    Path("Nightly boot.csv").write_text(HEADER + "\n".join(lines))
    store = FolderStore("perfdag-results")
    printed = cli(["import", "history", "Nightly boot.csv"])
    assert printed.out.startswith(
        "40 runs, 40 values, suite nightly-boot, store ./perfdag-results;"
    )
    assert printed.err == ""
    files = {key: store.get(key) for key in store.list("results")}
    cli(["import", "history", "Nightly boot.csv"])
    assert {key: store.get(key) for key in store.list("results")} == files
    [series] = orjson.loads(cli(["history", "nightly-boot", "--json"]).out)["series"]
    assert len(series["values"]) == 40
    assert [step["run"][:8] for step in series["steps"]] == ["20260131"]
    assert "boot value" in cli(["check", "last"], 3).out
    assert "worse" in cli(["compare", "last~15", "last", "--suite", "nightly-boot"]).out
    assert orjson.loads(cli(["show", "last", "--json"]).out)["statuses"] == {"ok": 1}
    assert main(["report", "last"]) == 0
    assert main(["site"]) == 0
    assert "import" in cli(["ls"]).out
    assert cli(["prune", "--keep", "1h"]).out.endswith("40 runs removed\n")


@given(
    lines=st.lists(
        st.tuples(
            st.sampled_from(["2026-01-01", "2026-01-01T00:00:00.5Z", "1767225600", "", "x"]),
            st.sampled_from(["a", "b", "", "a (B)", "\x1b[31m"])
            | st.text("ab ,'\"\0\n", max_size=4),
            st.floats().map(str) | st.sampled_from(["", "1e308", "x"]),
            st.sampled_from(["", "s", "ms", "B", "PiB", "%", "points"]),
            st.sampled_from(["", "lower", "higher", "none", "up"]),
        ),
        max_size=12,
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_line_with_a_time_is_a_row(
    lines: list[tuple[str, ...]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    quoted = (
        ",".join(f'"{text.replace(chr(34), chr(34) * 2)}"' for text in line) for line in lines
    )
    (folder / "f.csv").write_text(HEADER + "".join(f"{line}\n" for line in quoted))
    dated = [line for line in lines if line[0] not in ("", "x")]
    code = 2 if not dated else 1 if len(dated) < len(lines) else 0
    assert main(["import", "history", str(folder / "f.csv"), "--store", str(folder / "s")]) == code
    rows = load_rows(FolderStore(str(folder / "s"))).to_pylist()
    finite = [value for value in (row["value"] for row in rows) if value is not None]
    assert len(rows) == len(dated)
    assert len({row["sample_id"] for row in rows}) == len(rows)
    assert all(map(math.isfinite, finite))
