"""Messages cut anywhere and of any content."""

import contextlib
import json

import pytest
from hypothesis import given, settings, strategies as st

from perfdag.steps.queue import protocol
from perfdag.steps.queue.protocol import ITEM, REPLY, REQUEST

TEXT = st.text(max_size=12)
MESSAGES = st.fixed_dictionaries(
    {
        "Error": TEXT,
        "Args": st.none() | st.lists(TEXT, max_size=3),
        "Limit": st.floats(0, 1e6) | st.integers(0, 9),
        "Empty": st.booleans(),
        "Running": st.integers(0, 99),
    }
)


@settings(max_examples=15)  # each with hundreds of cuts
@given(MESSAGES, st.booleans(), st.booleans())
def test_every_cut_of_a_message_is_incomplete(
    message: protocol.Message, pretty: bool, escaped: bool
) -> None:
    text = json.dumps(message, indent="\t" if pretty else None, ensure_ascii=escaped)
    data = text.encode()
    assert protocol.decode(data, ITEM) == message
    for end in range(len(data)):
        with pytest.raises(protocol.IncompleteError):
            protocol.decode(data[:end], ITEM)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    with contextlib.suppress(protocol.MalformedError):
        assert protocol.decode(data, REQUEST).keys() == REQUEST.keys()


@given(TEXT, st.text(max_size=3000))
def test_replies_fit_what_the_original_reads(node: str, error: str) -> None:
    data = protocol.encode_reply({**REPLY, "Error": error, "Node": node})
    assert len(data) <= protocol.MOST_BYTES
    assert error.startswith(protocol.decode(data, REPLY)["Error"])


def test_fields_are_checked_in_any_case_with_defaults() -> None:
    taken = protocol.decode(b'{"RUNTIME": 2, "node": "n", "Pod": null, "other": []}', REPLY)
    assert taken == {**REPLY, "Runtime": 2, "Node": "n"}
    for field in (
        "Runtime:'1'",
        "Retcode:true",
        "Error:3",
        "Timeout:1e999",
        "Pod:[]",
        "Runtime:-1",
    ):
        name, value = field.replace("'", '"').split(":")
        with pytest.raises(protocol.MalformedError, match=name):
            protocol.decode(f'{{"{name}": {value}}}'.encode(), REPLY)


@pytest.mark.parametrize("worse", [{}, {"Retcode": 1}, {"Timeout": 2.0}, {"Error": "x"}])
def test_a_success_has_no_return_code_error_or_timeout(worse: dict[str, object]) -> None:
    assert protocol.succeeded({**REPLY, **worse}) is not bool(worse)


@pytest.mark.parametrize("text", ["", "9999", "host:", "host:x", "host:70000"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        protocol.address(text)
    assert protocol.address(":9997") == protocol.Address("", 9997)
    assert str(protocol.address("[::1]:5")) == "[::1]:5"
