"""Kubernetes quantities and CPU lists: the grammar, and what a suite with a wrong one is told."""

from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdag.cli import main
from perfdag.quantities import parse_cpu_list, parse_quantity
from tests.conftest import CommandLine

SUITE = "name: s\nentries:\n  - benchmark: {name}\n    resources: {{{resource}}}\n"


@pytest.mark.parametrize(
    ("name", "resource"),
    [
        ("imb", "memory: 1Ei"),
        ("imb", "memory: 8e18"),
        ("openfoam", "memory: 4000000000000m"),
        ("openfoam", "memory: 5000000000000000000n"),
    ],
)
def test_plan_reads_every_kind_of_quantity(name: str, resource: str, tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(SUITE.format(name=name, resource=resource))
    assert main(["plan", str(file)]) == 0


@pytest.mark.parametrize(
    ("name", "resource", "text"),
    [
        ("imb", "memory: 1m", "entries[0].params: messages of "),
        ("openfoam", "memory: 1E-3", "entries[0].params: 1,000,000 cells need "),
        (
            "command",
            "memory: -1Gi",
            (
                "entries[0].resources.memory: not a quantity of Kubernetes: '-1Gi'; write it as "
                "2, 500m, 4Gi or 1e3"
            ),
        ),
        (
            "command",
            "memory: 8Ei",
            (
                "entries[0].resources.memory: 8Ei is more than 2^63 - 1, the largest quantity of "
                "Kubernetes"
            ),
        ),
        (
            "command",
            "memory: 1e40",
            (
                "entries[0].resources.memory: 1e40 is more than 2^63 - 1, the largest quantity "
                "of Kubernetes"
            ),
        ),
        (
            "command",
            "example.com/gpu: 1e40",
            "entries[0].resources.example.com/gpu: 1e40 is more than 2^63 - 1",
        ),
        (
            "command",
            "example.com/gpu: 1500m",
            "entries[0].resources: example.com/gpu: 1500m: devices are whole",
        ),
        (
            "command",
            f"cpu: 1e{'9' * 30}",
            "entries[0].resources.cpu: not a quantity of Kubernetes: '1e999",
        ),
    ],
)
def test_a_wrong_quantity_is_one_line_with_its_place(
    name: str, resource: str, text: str, tmp_path: Path, cli: CommandLine
) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(
        SUITE.format(name=name, resource=resource)
        + ("    params: {argv: [ls]}\n" if name == "command" else "")
    )
    (line,) = cli(["plan", str(file)], 2).err.splitlines()
    assert line.removeprefix(f"{file}:").partition(": ")[2].startswith(text)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        (2, "2"), (0.5, "0.5"), ("500m", "0.5"), ("1n", "1e-9"), ("3u", "3e-6"), ("1k", "1000"), (".5M", "5e5"), ("1.G", "1e9"),  # noqa: E501
        ("1T", "1e12"), ("1P", "1e15"), ("1E", "1e18"), ("1Ki", "1024"), ("1.5Gi", "1610612736"), ("7Ei", "8070450532247928832"),  # noqa: E501
        ("1e3", "1000"), ("1E3", "1000"), ("1e+3", "1000"), ("12E-1", "1.2"), ("0", "0"),
    ],
)  # fmt: skip
def test_quantities_follow_the_grammar_of_kubernetes(text: str | float, amount: str) -> None:
    assert parse_quantity(text) == Decimal(amount)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "m",
        "ten",
        "1 Gi",
        "+1",
        "-1",
        "1GiB",
        "1K",
        "1ki",
        "1kk",
        "1ee3",
        "1e",
        "0x10",
        "nan",
        "inf",
        "1\n",
    ],
)
def test_other_text_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity of Kubernetes"):
        parse_quantity(text)


@given(
    st.integers(0, 8 * 1024 - 1),
    st.sampled_from(list(enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"), start=1))),
)
def test_a_binary_suffix_is_a_power_of_1024(number: int, suffix: tuple[int, str]) -> None:
    power, name = suffix
    if number * 1024**power < 2**63:
        assert parse_quantity(f"{number}{name}") == number * 1024**power


@pytest.mark.parametrize(("text", "cpus"), [("0", {0}), ("2-3", {2, 3}), ("0-2,5", {0, 1, 2, 5})])
def test_cpu_lists(text: str, cpus: set[int]) -> None:
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("3-2", "3-2 ends before it begins: 2-3"),
        ("8192", "CPUs are numbered from 0 to at most 8191"),
    ],
)
def test_a_cpu_list_that_no_machine_has_is_refused(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        parse_cpu_list(text)
