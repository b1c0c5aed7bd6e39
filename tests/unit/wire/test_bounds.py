"""How deep a body may be nested, and how many values it may hold."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from errands.errors import InvalidRequestError, PayloadTooLargeError
from errands.model.base import encode
from errands.operations import OPERATIONS
from errands.wire import v1_0
from errands.wire.bounds import MAX_DEPTH, check_json, check_outline

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(alphabet='[]{}"\\ab', max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=60,
)

MANY = 10_000_000


def nested(depth: int, inside: object = 1) -> object:
    for level in range(depth):
        inside = [inside] if level % 2 else {"a": inside}
    return inside


def is_taken(body: bytes, max_values: int = MANY) -> bool:
    try:
        check_json(body, max_values)
    except InvalidRequestError:
        return False
    return True


@pytest.mark.parametrize("depth", [0, 1, MAX_DEPTH - 1, MAX_DEPTH])
def test_a_body_up_to_the_bound_is_taken(depth: int) -> None:
    assert is_taken(encode(nested(depth)))
    assert depth == 0 or is_taken(encode(nested(depth - 1, ["[[[[{{{{" * 100] * 200)))


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 10_000])
def test_a_deeper_one_is_refused(depth: int) -> None:
    with pytest.raises(InvalidRequestError, match="nested too deeply"):
        check_json(b"[" * depth + b"]" * depth, MANY)


def test_brackets_in_strings_do_not_count() -> None:
    assert is_taken(encode({"text": "[{" * 1000 + '\\"' + "[" * 1000}))


def test_a_body_that_is_no_json_but_opens_too_much_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        check_json(b"[" * 100_000, MANY)


@given(JSON)
def test_what_is_not_deep_is_taken_whatever_it_is(value: object) -> None:
    assert is_taken(encode([value] * 40))


@given(JSON, st.integers(MAX_DEPTH - 3, MAX_DEPTH + 3))
def test_what_is_taken_is_what_has_no_more_levels_than_the_bound(value: object, depth: int) -> None:
    assert is_taken(encode(nested(depth, value))) is (depth + levels(value) <= MAX_DEPTH)


def levels(value: object) -> int:
    if not isinstance(value, list | dict):
        return 0
    inside = value.values() if isinstance(value, dict) else value
    return 1 + max(map(levels, inside), default=0)


@pytest.mark.parametrize("piece", [b'\\"', b'"', b'["]', b'"\\', b"[]", b"[" * 90 + b"]" * 90], ids=repr)
def test_no_body_is_looked_at_more_than_a_few_times(piece: bytes) -> None:
    """Looking again from each quote on, it would take hours."""
    assert not is_taken(b"[" * (MAX_DEPTH + 1) + b'"' + piece * (2_000_000 // len(piece)))


@pytest.mark.parametrize("before", range(12))
@pytest.mark.parametrize(
    "text", ['"\\' * 50_000, "[{,\\" * 50_000, 'é"' * 50_000], ids=["quotes", "brackets", "others"]
)
def test_a_string_is_one_wherever_the_pieces_end_that_are_looked_at(text: str, before: int) -> None:
    body = b" " * before + encode([text, nested(MAX_DEPTH - 1)] + [1] * 10)
    assert is_taken(body, max_values=200)
    assert not is_taken(body, max_values=100)
    assert not is_taken(b"[" + body + b"]")


def test_what_closes_more_than_it_opens_is_left_to_the_decoder_at_once() -> None:
    body = b"[" * MAX_DEPTH + b"]" * 30_000_000
    began = time.thread_time()
    assert is_taken(b"[" + body[1:] + b"[")
    assert time.thread_time() - began < 0.5


def values(value: object) -> int:
    """How many members and items there are, at every level."""
    if not isinstance(value, list | dict):
        return 0
    inside = list(value.values() if isinstance(value, dict) else value)
    return len(inside) + sum(map(values, inside))


@given(JSON)
def test_values_are_the_members_of_objects_and_the_items_of_arrays(value: object) -> None:
    count = values([value] * 3)
    empty = encode([value] * 3).count(b"[]") + encode([value] * 3).count(b"{}")  # each may count as one
    assert is_taken(encode([value] * 3), max_values=count + empty)
    assert count == 3 or not is_taken(encode([value] * 3), max_values=count - 1)


def test_commas_and_brackets_in_texts_are_not_values() -> None:
    assert is_taken(encode({"text": '[{,"\\' * 1000}), max_values=1)


@pytest.mark.parametrize("piece", [b"1,", b'"",', b'"":1,', b"[],", b"{},", b'{"":[]},', b","], ids=repr)
def test_a_body_of_nothing_but_small_values_is_refused(piece: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="max_message_values"):
        check_json(b"[" + piece * (2_000_000 // len(piece)), max_values=100_000)


@pytest.mark.parametrize("text", ["_" * 2_000_000, "a_" * 1_000_000, '_"' * 500_000, '_" ' * 500_000], ids=len)
def test_reading_takes_time_in_proportion_to_a_text(text: str) -> None:
    """Looking for keys in snake_case took hours for a text of underscores."""
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
    request = v1_0.JSON.read_request(OPERATIONS["SendMessage"], encode({"message": message}))
    assert request.message.parts[0].text == text


@pytest.mark.parametrize("name", ["parts", "content"])
def test_parts_are_counted_without_decoding_them(name: str) -> None:
    body = b'{"message":{"%b":[%b]}}' % (name.encode(), b",".join([b"{}"] * 11))
    check_outline(body, 11)
    with pytest.raises(PayloadTooLargeError, match="max_message_parts"):
        check_outline(body, 10)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"message":1}', b'{"message":{"parts":"x"}}', b"\xff"])
def test_a_request_of_another_form_is_left_to_the_dialect(body: bytes) -> None:
    check_outline(body, 0)
