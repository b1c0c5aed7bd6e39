"""How deep a body may be nested."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from errands.errors import InvalidRequestError
from errands.model.base import encode
from errands.wire.nesting import MAX_DEPTH, check_depth

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(alphabet='[]{}"\\ab', max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=60,
)


def nested(depth: int, inside: object = 1) -> object:
    for level in range(depth):
        inside = [inside] if level % 2 else {"a": inside}
    return inside


def is_taken(body: bytes) -> bool:
    try:
        check_depth(body)
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
        check_depth(b"[" * depth + b"]" * depth)


def test_brackets_in_strings_do_not_count() -> None:
    assert is_taken(encode({"text": "[{" * 1000 + '\\"' + "[" * 1000}))


def test_a_body_that_is_no_json_but_opens_too_much_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        check_depth(b"[" * 100_000)


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
