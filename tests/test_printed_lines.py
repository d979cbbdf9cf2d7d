"""What is printed to be pasted does what it says, whatever the names of series and stores."""

import csv
import re
import shlex
from pathlib import Path

import pytest

from tests.conftest import CommandLine

NAMES = (
    *("test_sort[1000]", "!neg[!a]", "it's", 'he said "hi"', "a: b", "{a} #1", "back\\slash"),
    *(
        "x*y",
        "p?q",
        "time_x('float64', 10)",
        "test[ü-日本]",
        "- x",
        "null",
        "%h & $(id)",
        "a, b: [c",
    ),
)
STORE = "my store's"


def write_history(file: str, names: tuple[str, ...]) -> None:
    with Path(file).open("w", newline="") as out:
        lines = csv.writer(out)
        lines.writerow(["time", "series", "value", "unit", "better"])
        for name in names:
            lines.writerows(
                [f"2026-01-{day:02}", name, 10 if day < 12 else 13, "s", "lower"]
                for day in range(1, 21)
            )


@pytest.mark.parametrize("name", NAMES)
def test_every_line_of_an_alert_can_be_pasted(name: str, cli: CommandLine) -> None:
    write_history("old.csv", (name,))
    imported = cli(["import", "history", "old.csv", "--store", STORE]).out
    [shown] = re.findall(r"; perfdag (history .*) shows them", imported)
    assert name in cli(shlex.split(shown)).out
    alert = cli(["check", "last", "--store", STORE], 3).out
    [compare] = re.findall(r"   perfdag (compare .*)$", alert, re.M)
    assert name in cli(shlex.split(compare)).out
    assert name in cli(["history", "old", "--only", f"{name} value", "--store", STORE]).out
    [accept] = re.findall(r"^accept  in acks.yaml: (.*)$", alert, re.M)
    Path("acks.yaml").write_text(f"acks:\n  - {accept}\n")
    cli(["check", "last", "--store", STORE])


def test_the_name_of_a_series_is_no_glob_for_another(cli: CommandLine) -> None:
    write_history("old.csv", ("x*y", "xzy"))
    cli(["import", "history", "old.csv", "--store", STORE])
    run = "20260112T000000Z"
    Path("acks.yaml").write_text(f"acks: [{{series: 'x*y value', run: {run}, reason: new}}]\n")
    alert = cli(["check", "last", "--store", STORE], 3).out
    assert "WORSE old/xzy +" in alert
    assert "x*y" not in alert
