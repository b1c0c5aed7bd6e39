"""Values are counted in the bytes of a message, as many as its JSON has."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.types import a2a_pb2
from hypothesis import given
from hypothesis import strategies as st

from errands.errors import InvalidParamsError, PayloadTooLargeError
from errands.wire.proto.json_values import check_message, fill_value

pb: Any = a2a_pb2

SCALARS = st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=50)
#: The fields around the data: message, messageId, role, parts, and the part's data.
AROUND = 5


def request_with(data: Any) -> bytes:
    request = pb.SendMessageRequest(message=pb.Message(message_id="m", role=pb.ROLE_USER))
    fill_value(request.message.parts.add().data, data)
    raw: bytes = request.SerializeToString()
    return raw


def count(data: Any) -> int:
    """Members of objects and items of arrays, at every level."""
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return len(inner) + sum(map(count, inner))


@given(JSON)
def test_every_member_and_every_item_counts_once(data: Any) -> None:
    raw, expected = request_with(data), AROUND + count(data)
    check_message(pb.SendMessageRequest.DESCRIPTOR, raw, expected)
    with pytest.raises(PayloadTooLargeError, match="JSON values"):
        check_message(pb.SendMessageRequest.DESCRIPTOR, raw, expected - 1)


@pytest.mark.parametrize(
    "field",
    [
        b"\x2a\x00",  # parts
        b"\x2a\x02\x0a\x00",  # parts with a text
        b"\x3a\x00",  # extensions
        b"\x32\x00",  # the metadata, again and again
        b"\x32\x02\x0a\x00",  # members of the metadata without a name
        b"\x20\x01",  # the role, again and again
        b"\xf8\x7f\x01",  # fields that nobody knows
        b"\x2a\x06\x22\x04\x0a\x00\x0a\x00",  # a value with two texts
    ],
)
def test_what_is_repeated_counts_whatever_it_is(field: bytes) -> None:
    inner = field * 1000
    raw = b"\x12" + bytes([len(inner) & 0x7F | 0x80, len(inner) >> 7]) + inner
    pb.SendMessageRequest.FromString(raw)
    with pytest.raises(PayloadTooLargeError):
        check_message(pb.SendMessageRequest.DESCRIPTOR, raw, 999)


@given(st.binary())
def test_any_bytes_are_counted_or_refused(raw: bytes) -> None:
    try:
        check_message(pb.SendMessageRequest.DESCRIPTOR, raw, 10)
    except (InvalidParamsError, PayloadTooLargeError):
        return


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_message_that_is_cut_is_refused(cut: int) -> None:
    raw = request_with({"a": [1, 2, "text"]})[:-cut]
    with pytest.raises(InvalidParamsError, match="not a valid"):
        check_message(pb.SendMessageRequest.DESCRIPTOR, raw, 100)
