"""Quantities as people write them."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdag.digest import canonical
from perfdag.units import bits_per_second, seconds, short, short_seconds, size_bytes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10s", 10),
        ("500ms", 0.5),
        ("5m", 300),
        ("2h", 7200),
        ("1.5 s", 1.5),
        (3, 3),
        ("250us", 0.00025),
        ("1d", 86400),
        ("0", None),
    ],
)
def test_seconds(text: str | int, value: float | None) -> None:
    if value is None:
        with pytest.raises(ValueError, match="unknown unit ''"):
            seconds(text)
    else:
        assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4KiB", 4096),
        ("1MB", 10**6),
        ("1GiB", 2**30),
        ("4Ki", 4096),
        ("512", 512),
        (7, 7),
        ("1.5KiB", 1536),
        ("1kB", 1000),
    ],
)
def test_sizes(text: str | int, value: int) -> None:
    assert size_bytes(text) == value


def test_bit_rates() -> None:
    assert bits_per_second("10Gbit/s") == 10**10
    assert bits_per_second(5) == 5


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
        (size_bytes, "4 gigs", "4Gi"),
        (seconds, "10S", "10s"),
        (seconds, "5 mins", "5min"),
        (bits_per_second, "10G", "10Gbit/s"),
        (bits_per_second, "10 Gb", "10Gbit/s"),
        (bits_per_second, "10gbps", "10Gbit/s"),
    ],
)
def test_a_wrong_unit_names_the_one_that_may_be_meant(
    read: Callable[[object], float], text: str, meant: str
) -> None:
    with pytest.raises(ValueError, match=f"unknown unit .*; did you mean {re.escape(meant)}\\?$"):
        read(text)


@pytest.mark.parametrize(
    ("read", "text"), [(size_bytes, "1 XB"), (seconds, "10 parsecs"), (seconds, "0")]
)
def test_a_unit_that_is_like_none_names_none(read: Callable[[object], float], text: str) -> None:
    with pytest.raises(ValueError, match=r"takes [^;]*$"):
        read(text)


@given(st.integers(0, 10**15))
def test_a_size_survives_its_text(value: int) -> None:
    assert size_bytes(str(value)) == value
    assert size_bytes(f"{value}B") == value


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (23.41e9, "bit/s", "23.41 Gbit/s"),
        (8.12e-4, "s", "812 us"),
        (0.25, "s", "250 ms"),
        (4096, "B", "4 KiB"),
        (4096, "B/s", "4.096 kB/s"),
        (1500, "1/s", "1.5 k/s"),
        (12, "1/s", "12 /s"),
        (0.5, "1", "0.5"),
        (None, "s", "-"),
        (0.0, "s", "0 us"),
    ],
)
def test_values_for_people(value: float | None, unit: str, text: str) -> None:
    assert short(value, unit) == text


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


@pytest.mark.parametrize("whole", [0, 1, 10**15, 2**53 - 1, 9 * 10**15])
def test_canonical_json_of_whole_floats_at_any_size(whole: int) -> None:
    assert canonical({"a": [float(whole)], "b": -float(whole)}) == f'{{"a":[{whole}],"b":{-whole}}}'
