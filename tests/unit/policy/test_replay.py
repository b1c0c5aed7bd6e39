"""Calls inside of expressions: noted, performed once, and replayed, also by another process."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from errands.errors import ConfigurationError
from errands.policy import cel
from errands.policy.cel import (
    Call,
    CallFailed,
    CelError,
    Session,
    Suspended,
    Variables,
    evaluate,
    run,
    scopes,
)
from errands.policy.cel.session import MAX_CALLS
from tests.unit.policy.support import NOW

pytestmark = pytest.mark.anyio
SCRIPT = scopes.script(["search", "fetch"], mount=True)


class World:
    """Performs calls by a table, and keeps a list of them."""

    def __init__(self, **results: Any) -> None:
        self.results = results
        self.made: list[str] = []

    async def perform(self, call: Call) -> Any:
        self.made.append(str(call))
        result = self.results[call.function.replace(".", "_")]
        return result(*call.arguments) if callable(result) else result


def stored(session: Session) -> Session:
    """As after a restart."""
    return msgspec.json.decode(msgspec.json.encode(session), type=Session)


async def outcome(source: str, world: World, scope: scopes.NameScope = scopes.TOOL_WITH_MOUNT, **values: Any) -> Any:
    """Evaluates with a restart before each call is performed."""
    session = Session(NOW)
    program = cel.compile(scope, source)
    while True:
        try:
            return run(program, Variables({}, **values), session)
        except Suspended as suspended:
            session = stored(session)
            session.settle(suspended.call, await world.perform(suspended.call))


@pytest.mark.parametrize(
    ("source", "value", "made"),
    [
        ("input.amount <= 100 || review('bob')", True, []),
        ("input.amount > 100 && review('bob')", False, []),
        ("input.amount > 100 ? review('bob') : true", True, []),
        ("review('no') || review('ok')", True, ['review("no")', 'review("ok")']),
        ("review('no') && review('ok')", False, ['review("no")']),
        ("review('ok') || true", True, ['review("ok")']),
        ("['a', 'b'].map(k, mount.read(k))", ["<a>", "<b>"], ['mount.read("a")', 'mount.read("b")']),
        (
            "mount.read('a') + mount.read('b') + mount.read('a')",
            "<a><b><a>",
            ['mount.read("a")', 'mount.read("b")', 'mount.read("a")'],
        ),
        ("mount.write('a', mount.read('b'))", "a=<b>", ['mount.read("b")', 'mount.write("a", "<b>")']),
    ],
)
async def test_calls_are_made_in_order_and_only_when_they_are_reached(source: str, value: Any, made: list[str]) -> None:
    world = World(
        review=lambda user: user == "ok",
        mount_read=lambda path: f"<{path}>",
        mount_write=lambda path, text: f"{path}={text}",
    )
    assert await outcome(source, world, input={"amount": 50}) == value
    assert world.made == made


async def test_equal_calls_are_told_apart_by_their_number() -> None:
    numbers = iter([1, 2, 3])
    world = World(search=lambda arguments: next(numbers))
    assert await outcome("[search({}), search({}), search({})]", world, SCRIPT) == [1, 2, 3]


async def test_a_script_composes_capabilities_and_files() -> None:
    world = World(
        search=lambda arguments: {"hits": [f"{arguments['q']}1", f"{arguments['q']}2"]},
        fetch=lambda arguments: {"doc": arguments},
        file=lambda path: {"name": path, "mimeType": "application/pdf"},
    )
    source = "search({'q': 'x'}).hits.map(hit, fetch({'id': hit, 'as': file('report.pdf')}).doc.id)"
    assert await outcome(source, world, SCRIPT) == ["x1", "x2"]
    assert world.made[:2] == ['search({"q":"x"})', 'file("report.pdf")']
    assert len(world.made) == 5


async def test_evaluate_makes_the_calls_itself_when_it_may() -> None:
    world = World(review=True)
    session = Session(NOW)
    program = cel.compile(scopes.BEFORE, "review('bob')", condition=True)
    assert await evaluate(program, Variables({}), session, perform=world.perform) is True
    assert await evaluate(program, Variables({}), stored(session), perform=world.perform) is True
    assert world.made == ['review("bob")']


async def test_without_somebody_to_perform_it_stops() -> None:
    with pytest.raises(Suspended) as caught:
        await evaluate(cel.compile(scopes.BEFORE, "review('bob')"), Variables({}), Session(NOW))
    assert caught.value.call == Call("review", ("bob",))
    assert str(caught.value) == 'waits for review("bob")'


async def test_a_performer_may_suspend_and_nothing_that_finished_is_lost() -> None:
    made: list[str] = []

    async def perform(call: Call) -> Any:
        made.append(call.function)
        if call.function == "review":
            raise Suspended(call)
        return "text"

    session = Session(NOW)
    program = cel.compile(scopes.TOOL_WITH_MOUNT, "mount.read('a') == 'text' && review('bob')")
    with pytest.raises(Suspended) as caught:
        await evaluate(program, Variables({}), session, perform=perform)
    session = stored(session)
    session.settle(caught.value.call, False)
    assert await evaluate(program, Variables({}), session, perform=perform) is False
    assert made == ["mount.read", "review"]


async def test_a_failed_call_is_an_error_and_is_not_made_again() -> None:
    made: list[Call] = []

    async def perform(call: Call) -> Any:
        made.append(call)
        raise CallFailed("no such file")

    session = Session(NOW)
    program = cel.compile(scopes.TOOL_WITH_MOUNT, "mount.read('a')")
    for _ in range(2):
        with pytest.raises(CelError, match=r"mount\.read: no such file"):
            await evaluate(program, Variables({}), session, perform=perform)
        session = stored(session)
    assert len(made) == 1


async def test_a_call_that_broke_off_may_be_made_again() -> None:
    async def perform(call: Call) -> Any:
        raise ConnectionError

    session = Session(NOW)
    with pytest.raises(ConnectionError):
        await evaluate(cel.compile(scopes.BEFORE, "review('bob')"), Variables({}), session, perform=perform)
    assert session.finished == {}


async def test_now_does_not_move_while_a_session_lasts() -> None:
    session = stored(Session(NOW))
    assert run(cel.compile(scopes.BEFORE, "now"), Variables({}), session) == NOW


async def test_a_review_that_gives_no_bool_is_an_error() -> None:
    session = Session(NOW)
    session.settle(Call("review", ("bob",)), "yes")
    with pytest.raises(CelError, match="Expected BOOL"):
        run(cel.compile(scopes.BEFORE, "review('bob')"), Variables({}), session)


async def test_several_expressions_share_a_session_without_sharing_calls() -> None:
    session = Session(NOW)
    program = cel.compile(scopes.BEFORE, "review('bob')")
    session.settle(Call("review", ("bob",), 0, "before[0]"), True)
    assert run(program, Variables({}), session, place="before[0]") is True
    with pytest.raises(Suspended):
        run(program, Variables({}), session, place="before[1]")


async def test_a_capability_takes_one_map() -> None:
    with pytest.raises(CelError, match=r"search\(\) takes one map"):
        run(cel.compile(SCRIPT, "search('x')"), Variables(), Session(NOW))


@pytest.mark.holds_the_loop("the calls of this test answer at once, so the evaluation never waits")
async def test_the_number_of_calls_is_bounded() -> None:
    world = World(search=1)
    numbers = ",".join(str(n) for n in range(MAX_CALLS + 1))
    program = cel.compile(SCRIPT, f"[{numbers}].map(n, search({{'n': n}}))")
    with pytest.raises(CelError, match=f"more than {MAX_CALLS} calls"):
        await evaluate(program, Variables(), Session(NOW), perform=world.perform)
    assert len(world.made) == MAX_CALLS


@pytest.mark.parametrize("name", ["size", "a-b", "in", "map", "1a", "file", "has", "é"])
def test_a_capability_whose_name_the_language_keeps_cannot_be_scripted(name: str) -> None:
    with pytest.raises(ConfigurationError, match="rename the capability"):
        scopes.script([name])
