"""Quantities of Kubernetes, CPU lists, and quantities as people write them."""

import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from perfdag.benchmark.registry import display_unit
from perfdag.identity import canonical
from perfdag.results.labels import has_name, setting
from perfdag.units import (
    bits_per_second,
    parse_cpu_list,
    parse_quantity,
    seconds,
    short,
    short_seconds,
    size_bytes,
    to_base,
)
from tests.conftest import CommandLine

PEOPLE = {
    "usec": ("s", 1e-6),
    "\N{GREEK SMALL LETTER MU}s": ("s", 1e-6),
    "\N{MICRO SIGN}secs": ("s", 1e-6),
    "msecs": ("s", 1e-3),
    "secs": ("s", 1),
    "MB/sec": ("B/s", 1e6),
    "MBytes/sec": ("B/s", 1e6),
    "KiB/s": ("B/s", 1024),
    "MBps": ("B/s", 1e6),
    "Mbps": ("bit/s", 1e6),
    "Gbits/sec": ("bit/s", 1e9),
    "1/sec": ("1/s", 1),
}


@pytest.mark.parametrize("unit", PEOPLE)
def test_units_are_read_as_people_and_tools_write_them(unit: str) -> None:
    assert to_base(unit) == PEOPLE[unit]


def test_durations_and_rates_of_a_suite_take_the_same_spellings() -> None:
    assert seconds("90 secs") == 90
    assert seconds("3\N{GREEK SMALL LETTER MU}s") == pytest.approx(3e-6)
    assert bits_per_second("10Gbps") == 1e10


SUITE = "name: s\nentries:\n  - benchmark: {name}\n    resources: {{{resource}}}\n"


@pytest.mark.parametrize(
    ("name", "resource", "text"),
    [
        (
            "openfoam",
            "memory: 1m",
            "entries[0].resources: memory: 1m: bytes are whole, and m is a thousandth; write 100Mi",
        ),
        ("openfoam", "memory: 100Mi", "entries[0].params: 1,000,000 cells need "),
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


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (seconds, "10s", 10),
        (seconds, "500ms", 0.5),
        (seconds, "5m", 300),
        (seconds, "2h", 7200),
        (seconds, "1.5 s", 1.5),
        (seconds, 3, 3),
        (seconds, "250us", 0.00025),
        (seconds, "1d", 86400),
        (size_bytes, "4KiB", 4096),
        (size_bytes, "1MB", 10**6),
        (size_bytes, "1GiB", 2**30),
        (size_bytes, "4Ki", 4096),
        (size_bytes, "512", 512),
        (size_bytes, 7, 7),
        (size_bytes, "1.5KiB", 1536),
        (size_bytes, "1kB", 1000),
        (bits_per_second, "10Gbit/s", 10**10),
        (bits_per_second, 5, 5),
    ],
)
def test_quantities_as_people_write_them(
    read: Callable[[object], float], text: str | int, value: float
) -> None:
    assert read(text) == pytest.approx(value)


@pytest.mark.parametrize(
    "text", ["", "ten", "1 XB", "-1s", "nan", "inf", "1e999", True, None, [], "0x10", "1,5s", "1s2"]
)
@pytest.mark.parametrize("read", [seconds, size_bytes, bits_per_second])
def test_nonsense_is_refused(text: object, read: object) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read(text)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("read", "text", "meant"),
    [
        (size_bytes, "4k", "4KiB or 4kB"),
        (size_bytes, "1g", "1GiB or 1GB"),
        (size_bytes, "1.5gb", "1.5GB"),
        (size_bytes, "64 kib", "64KiB"),
        (seconds, "10S", "10s"),
        (bits_per_second, "10G", "10Gbit/s"),
        (bits_per_second, "10 Gb", "10Gbit/s"),
    ],
)
def test_a_wrong_unit_names_the_one_that_may_be_meant(
    read: Callable[[object], float], text: str, meant: str
) -> None:
    with pytest.raises(ValueError, match=f"unknown unit .*; did you mean {re.escape(meant)}\\? a "):
        read(text)


@pytest.mark.parametrize(
    ("read", "text"), [(size_bytes, "1 XB"), (seconds, "10 parsecs"), (seconds, "0")]
)
def test_a_unit_that_is_like_none_names_none(read: Callable[[object], float], text: str) -> None:
    with pytest.raises(ValueError, match=r"unknown unit '.*takes [^;]*$"):
        read(text)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (23.41e9, "bit/s", "23.4 Gbit/s"),
        (8.12e-4, "s", "812 µs"),
        (0.25, "s", "250 ms"),
        (4096, "B", "4 KiB"),
        (4096, "B/s", "4.1 kB/s"),
        (1500, "1/s", "1.5 kop/s"),
        (46180, "IOPS", "46.2 kIOPS"),
        (0.0703, display_unit("resnet50-overhead", "overhead", "1"), "7.03 %"),
        (7, display_unit("iperf", "retransmits", "1"), "7"),
        (46180, "points", "46200 points"),
        (999.7e6, "B/s", "1000 MB/s"),
        (0.5, "1", "0.5"),
        (None, "s", "-"),
        (0.0, "s", "0 µs"),
    ],
)
def test_values_for_people(value: float | None, unit: str, text: str) -> None:
    assert short(value, unit) == text


@pytest.mark.parametrize(
    ("benchmark", "name", "value", "text"),
    [
        ("fio", "bs", 4096, "4KiB"),
        ("fio", "bs", 4097, "4097"),
        ("fio", "volume.size", 1 << 30, "1GiB"),
        ("iperf", "rate", 50_000_000, "50Mbit/s"),
        ("rdma-bandwidth", "message_bytes", 65536, "64KiB"),
        ("torchbench", "batch_size", 4096, "4096"),
        ("vmi-steady", "rate", 5000, "5000"),
        ("command", "env.matrix_size", "4096", "4096"),
    ],
)
def test_a_setting_has_the_unit_of_its_annotation(
    benchmark: str, name: str, value: object, text: str
) -> None:
    assert setting(benchmark, name, value) == text


def test_a_name_may_have_sizes_as_numbers() -> None:
    name = "disk bs=4KiB rate=50Mbit/s iops direction=read"
    for glob in (name, "disk bs=4096*", "*rate=50000000 iops*", "*KiB*read"):
        assert has_name(name, glob), glob
    assert not has_name(name, "disk bs=409")


def test_durations_for_people() -> None:
    assert [short_seconds(each) for each in (0.85, 12.34, 250, 7500)] == [
        "850 ms",
        "12.3 s",
        "4 min 10 s",
        "2 h 5 min",
    ]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**50), 2**50) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        ),
    )
)
def test_canonical_json_does_not_depend_on_order_or_on_float_or_int(value: object) -> None:
    def other(each: object) -> object:
        if isinstance(each, dict):
            return {key: other(each[key]) for key in reversed(list(each))}
        if isinstance(each, list):
            return [other(inner) for inner in each]
        return float(each) if isinstance(each, int) and not isinstance(each, bool) else each

    assert canonical(value) == canonical(other(value))
