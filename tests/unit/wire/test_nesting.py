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
