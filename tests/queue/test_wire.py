"""Messages cut anywhere, of any content, in both framings."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfdag.steps.queue import wire

TEXT = st.text(max_size=12)
MESSAGES = st.fixed_dictionaries(
    {
        "Queue": TEXT,
        "Args": st.none() | st.lists(TEXT, max_size=3),
        "Limit": st.floats(0, 1e6) | st.integers(0, 9),
        "Empty": st.booleans(),
    }
)


@settings(max_examples=40)
@given(MESSAGES, st.booleans(), st.booleans())
def test_every_cut_of_a_message_is_incomplete(
    message: wire.Message, pretty: bool, escaped: bool
) -> None:
    text = json.dumps(message, indent="\t" if pretty else None, ensure_ascii=escaped)
    data = text.encode()
    assert wire.decode(data) == message
    for end in range(len(data)):
        with pytest.raises(wire.IncompleteError):
            wire.decode(data[:end])


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    with contextlib.suppress(wire.MalformedError):
        assert isinstance(wire.decode(data), dict)


@given(TEXT, st.text(max_size=3000))
def test_replies_fit_what_the_original_reads(node: str, error: str) -> None:
    data = wire.fit_original({**wire.failure(error), "Node": node})
    assert len(data) <= wire.ORIGINAL_BYTES
    assert error.startswith(wire.decode(data)["Error"])


@pytest.mark.parametrize(
    "message",
    [
        {"Runtime": "1"},
        {"Retcode": True},
        {"Error": 3},
        {"Timeout": float("inf")},
        {"Pod": []},
        {"Runtime": -0.5},
    ],
)
def test_replies_of_a_wrong_type_are_refused(message: wire.Message) -> None:
    with pytest.raises(wire.MalformedError):
        wire.reply(message)


def test_one_verdict() -> None:
    good = wire.reply({"Node": "n"})
    assert wire.succeeded(good)
    for worse in ({"Retcode": 1}, {"Timeout": 2.0}, {"Error": "x"}):
        assert not wire.succeeded({**good, **worse})


@pytest.mark.parametrize(
    "data",
    [
        b'{"Args": ["\\ud800"]}',
        b'{"Id": 123456789012345678901234567890}',
        b'{"Id": NaN}',
        b'\xef\xbb\xbf{"Id": 1}',
    ],
)
def test_what_is_taken_can_be_passed_on(data: bytes) -> None:
    assert wire.decode(wire.encode(wire.decode(data))).keys() == wire.decode(data).keys()
