"""Expressions that want to cost a lot are stopped quickly."""

from __future__ import annotations

import time
import tracemalloc
from itertools import pairwise

import pytest

from errands.policy import cel
from errands.policy.cel import Call, CelError, Session, Variables, run, scopes
from tests.unit.policy.support import NOW, value_of

#: Of computing, not of waiting for a busy machine; what is not stopped takes minutes or all memory.
SECONDS = 10.0

LIST = {"l": list(range(1000)), "s": "x" * 1000}


@pytest.mark.parametrize(
    "source",
    [
        "(" * 500 + "1" + ")" * 500,
        "[" * 500 + "]" * 500,
        "{'a':" * 500 + "1" + "}" * 500,
        "1" + "+1" * 4000,
        "true?1:" * 2000 + "1",
        "input" + ".a" * 4000,
        "input" + "[0]" * 4000,
        "[1].map(x," * 60 + "x" + ")" * 60,
        "x" * 1_000_000,
        "[].all(a," * 1700,
        "'''" + "\\a" * 7000,
        '"""' + "\\a" * 7000 + '""',
        "r'" * 7000,
        "['x']" + ".map(x, x + x)" * 29,
        "['x']" + ".map(x, x + x + x + x)" * 14,
        "[[1]]" + ".map(x, [x, x])" * 29 + " == 1",
        "".join(f"[{old}+{old}].exists({new}, " for old, new in pairwise(["'x'", *"abcdefghi"])) + "i == 'y'" + ")" * 9,
        "input.l.all(x, input.l.all(y, input.l.all(z, x + y + z >= 0)))",
        "input.l.map(x, input.l.map(y, [x, y]))",
        "input.l.map(x, input.l)",
        "input.l.filter(x, input.l.exists(y, input.s.matches('(.*x){10}z')))",
    ],
    ids=lambda source: source[:30],
)
def test_it_is_stopped_quickly(source: str) -> None:
    begun = time.thread_time()
    with pytest.raises(CelError):
        value_of(source, context={}, input=LIST)
    assert time.thread_time() - begun < SECONDS


def test_a_small_expression_for_a_huge_result_is_refused_before_it_is_built() -> None:
    tracemalloc.start()
    with pytest.raises(CelError, match="more than"):
        value_of("input.l.map(x, input.l)", context={}, input=LIST)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000_000


@pytest.mark.parametrize(
    ("source", "items"),
    [
        ("size(input.map(x, x)) > 0", 2000),
        ("size(input.filter(x, x >= 0)) > 0", 2000),
        ("size((input + input).filter(x, x >= 0)) > 0", 1000),
        ("size([input].map(x, x + x)[0].map(x, x)) > 0", 1000),
        ("input.all(x, x >= 0)", 9000),
    ],
)
def test_data_that_would_make_a_loop_costly_is_refused_with_a_number(source: str, items: int) -> None:
    assert value_of(source, context={}, input=[1] * items) is True
    with pytest.raises(CelError):
        value_of(source, context={}, input=[1] * (items + 1001))


def test_results_of_calls_count_as_data() -> None:
    session = Session(NOW)
    session.settle(Call("search", ({},)), [1] * 3000)
    program = cel.compile(scopes.script(["search"]), "search({}).map(x, x)")
    with pytest.raises(CelError, match=r"a list of 3,000 items.*all and exists take longer ones"):
        run(program, Variables(), session)


def test_a_regular_expression_cannot_blow_up() -> None:
    begun = time.thread_time()
    assert value_of("input.s.matches('(x+x+)+y')", context={}, input=LIST) is False
    assert time.thread_time() - begun < SECONDS


def test_a_script_has_to_be_short() -> None:
    with pytest.raises(CelError, match="4,804 characters are too many") as caught:
        value_of("true || " * 600 + "true", scopes.script([]))
    assert caught.value.hint == "at most 4,000 are taken"


@pytest.mark.parametrize(
    "source",
    [
        "input.items.filter(x, x.price > 3 && x.price < 9 && x.name != '' && x.name != 'b').size() == 0",
        "input.items.map(x, {'name': x.name, 'price': x.price, 'twice': x.price * 2, 'a': x.name + '!'}).size() == 1",
        "input.items.all(x, x.a.all(y, y > 0)) && input.items.exists(x, x.name == 'a' || x.name == 'b')",
        "input.items.map(x, [x.name, x.name]).map(y, y + y).map(z, size(z)) == [4]",
    ],
)
def test_what_people_write_is_not_taken_for_hostile(source: str) -> None:
    assert value_of(source, context={}, input={"items": [{"name": "a", "price": 1, "a": [1, 2]}]}) is True
