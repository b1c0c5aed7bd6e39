"""Evaluations that would hold the process are told beforehand, made in another one, and ended in time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from errands import Part, TaskContext
from errands.policy import cel
from errands.policy.cel import CelError, Session, Suspended, Variables, evaluate, scopes
from errands.policy.cel.child import Request
from errands.policy.cel.evaluators import (
    MAX_BYTES,
    MAX_LOOPED_BYTES,
    Evaluators,
    _Evaluator,
    is_long,
    use_evaluators,
)
from errands.policy.cel.values import MOST_SEEN, as_seen, is_cut
from errands.policy.context_object import Context
from errands.policy.records import CapabilityFinished, Decided, InputArrived, Started
from errands.policy.template import compile_template
from errands.runtime.settings import Settings
from tests.unit.oversight.support import around, before, reason, serving
from tests.unit.policy.support import NOW, a_run
from tests.unit.support import Agent, ThreadedAgent

pytestmark = pytest.mark.anyio

#: For messages with more values than a server takes by default.
ANY_VALUES = Settings(storage="memory", max_message_values=10_000_000)
#: Nearly as much text as a request may have.
GREATEST = "a" * (Settings().max_body_bytes - 10_000)
NUMBERS = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"
#: 10,000 times a search that takes a second, if anybody let it.
HOSTILE = f"{NUMBERS}.all(a, {NUMBERS}.all(b, {NUMBERS}.all(c, !{{0}}.matches('(a?){{{{30}}}}z'))))"


def nested(levels: int) -> Any:
    value: Any = {}
    for number in range(levels - 1):
        value = {"a": value} if number % 2 else [value]
    return value


def a_message(text: str, parts: int = 1) -> dict[str, Any]:
    return {"message": [{"mimeType": "text/plain", "text": text}] * parts}


def long(source: str, input: Any, session: Session | None = None) -> bool:  # noqa: A002 - the language's word
    program = cel.compile(scopes.BEFORE, source)
    return is_long(program, Variables(a_run().plain(), input=input), session or Session(NOW))


@pytest.mark.parametrize(
    ("source", "length"),
    [
        ("input.message[0].text.contains('password')", 200_000),
        ("size(input.message) > 0 && context.user.id != ''", 200_000),
        ("context.capabilities.slack_post.count_successful < 20", 5_000_000),
        ("input.message.exists(part, has(part.text) && part.text.contains('password'))", 30_000),
        ("!input.message.exists(part, part.text.matches('[0-9]{4}-[0-9]{4}'))", 30_000),
        ("['a', 'b', 'c'].all(word, !input.message[0].text.contains(word))", 30_000),
    ],
)
def test_what_policies_usually_ask_is_evaluated_on_the_spot(source: str, length: int) -> None:
    assert not long(source, a_message("a" * length))


@pytest.mark.parametrize(
    ("source", "input"),
    [
        ("input.message[0].text.contains('password')", a_message("a" * MAX_BYTES)),
        ("input.text.contains(input.word)", {"text": "a" * 800_000, "word": "a" * 400_000 + "b"}),
        ("input.message[0].text.matches('(a?){900}z')", a_message("a" * MAX_LOOPED_BYTES)),
        ("input.message[0].text.matches(input.message[0].mimeType)", a_message("a" * MAX_LOOPED_BYTES)),
        ("input.message.all(p, input.message.all(q, p.text != q.text))", a_message("a" * 400, parts=100)),
        ("['a', 'b', 'c'].all(word, !input.message[0].text.contains(word))", a_message("a" * 1_000_000)),
        ("[1, 2].map(n, input.message[0].text + input.message[0].text).size() > 1", a_message("a" * 300_000)),
        ("input.rows[0] == 1", {"rows": list(range(MOST_SEEN))}),
    ],
)
def test_what_looks_at_much_is_evaluated_elsewhere(source: str, input: Any) -> None:  # noqa: A002
    assert long(source, input)


def test_what_calls_have_given_counts_too() -> None:
    program = cel.compile(scopes.TOOL_WITH_MOUNT, "mount.read('notes').contains('x')")
    session, variables = Session(NOW), Variables({}, input={})
    assert not is_long(program, variables, session)
    with pytest.raises(Suspended) as suspended:
        cel.run(program, variables, session)
    session.settle(suspended.value.call, "a" * MAX_BYTES)
    assert is_long(program, variables, session)


# In another process


@pytest.fixture
async def evaluators(anyio_backend: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Evaluators]:
    """They get every expression, however little it looks at."""
    monkeypatch.setattr("errands.policy.cel.evaluators.MAX_BYTES", -1)
    monkeypatch.setattr("errands.policy.cel.evaluators.MAX_LOOPED_BYTES", -1)
    made = Evaluators(timeout=30, most=1)
    yield made
    await made.close()


async def elsewhere(evaluators: Evaluators, program: cel.Program, variables: Variables, session: Session) -> Any:
    """The value, from another process however short it is."""
    found: Any = await evaluate(program, variables, session)

    async def there() -> Any:
        use_evaluators(evaluators)
        return await evaluate(program, variables, session)

    assert await asyncio.create_task(there()) == found
    assert evaluators._idle
    return found


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("context.user.id + input.name + now", f"annx{NOW}"),
        ("c.cap.slack_post.count_successful", 0),
        ("c.cap.slack_post.count_successful + context.capabilities._meta.count", 3),
        ("has(event) || !has(input.none)", True),
        ("context.cap != {} && context != {}", True),
        ("[input].map(one, one.put('b', 1))", [{"b": 1, "name": "x"}]),
    ],
)
async def test_an_expression_gives_the_same_in_another_process(evaluators: Evaluators, source: str, value: Any) -> None:
    variables = Variables(a_run().plain(), input={"name": "x"})
    assert await elsewhere(evaluators, cel.compile(scopes.BEFORE, source), variables, Session(NOW)) == value


async def test_calls_of_a_long_expression_are_made_here(evaluators: Evaluators) -> None:
    program = cel.compile(scopes.BEFORE, "review('bob') && !review('eve')", condition=True)
    asked: list[str] = []

    async def perform(call: cel.Call) -> bool:
        asked.append(call.arguments[0])
        return asked[-1] == "bob"

    use_evaluators(evaluators)
    variables = Variables(a_run().plain(), input={})
    assert await evaluate(program, variables, Session(NOW), perform=perform, place="before[0]") is True
    assert asked == ["bob", "eve"]


async def test_an_error_in_another_process_is_an_error_here(evaluators: Evaluators) -> None:
    use_evaluators(evaluators)
    for source, problem in (("input.none == 1", "Key not found"), ("input.name", "must be true or false, not string")):
        program = cel.compile(scopes.BEFORE, source, condition=True)
        with pytest.raises(CelError, match=problem):
            await evaluate(program, Variables({}, input={"name": "x"}), Session(NOW))


async def test_a_process_that_is_killed_amid_a_long_answer_is_gone_though_nobody_reads_the_rest() -> None:
    evaluator = await _Evaluator.start(512 * 1024 * 1024)
    request = Request(
        scope=scopes.BEFORE, source="input", values={"input": "a" * 4_000_000}, session=Session(NOW), seconds=30
    )
    await evaluator.write(request)
    # From then on it has taken all that it takes before somebody reads.
    while not evaluator.reader._paused:  # type: ignore[attr-defined]
        await asyncio.sleep(0.01)
    await evaluator.kill()
    assert evaluator.process.returncode is not None


# A hostile message


class Beats:
    """The beats of the event loop, and of a thread beside it. A machine that is busy or stands still stops both."""

    def __init__(self) -> None:
        #: Seconds of computing, in the thread of the loop, between two beats of the loop.
        self.computed: list[float] = []
        #: Beats of the other thread between two beats of the loop.
        self.missed: list[int] = []
        self._others = 0
        self._last = time.thread_time(), 0
        self._over = threading.Event()

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(0.01)
            self._note()

    def _note(self) -> None:
        now = time.thread_time(), self._others
        self.computed.append(now[0] - self._last[0])
        self.missed.append(now[1] - self._last[1])
        self._last = now

    def beat_beside(self) -> None:
        while not self._over.wait(0.01):
            self._others += 1

    def end(self) -> None:
        self._note()
        self._over.set()

    @property
    def is_held_up(self) -> bool:
        """Whether the loop did nothing else for a while: an evaluation in its midst takes minutes."""
        return max(self.computed) > 10 or max(self.missed) > 1500


@contextmanager
def heartbeat() -> Iterator[Beats]:
    beats = Beats()
    beating = asyncio.get_running_loop().create_task(beats.beat())
    beside = threading.Thread(target=beats.beat_beside)
    beside.start()
    try:
        yield beats
    finally:
        beating.cancel()
        beats.end()
        beside.join()


async def finish(ctx: TaskContext) -> None:
    await ctx.complete("Done.")


async def test_the_loop_beats_while_the_greatest_message_meets_a_costly_guardrail() -> None:
    rule = before({"assert": HOSTILE.format("input.message[0].text"), "error_message": "No."})
    async with serving(Agent(finish), policy=rule) as server:
        with heartbeat() as beats:
            result = await server.client.send(GREATEST)
        assert (result.state, result.text, reason(result)) == ("rejected", "No.", "restricted")
        [decided] = [record for record in await server.records(result) if isinstance(record, Decided)]
        assert decided.outcome == "error: lock_task"
        assert "it took longer than 2 s" in decided.detail
        assert len(beats.computed) > 5
        assert not beats.is_held_up
        assert (await server.client.send("short")).text == "Done."


@pytest.mark.parametrize("kind", [Agent, ThreadedAgent])
async def test_the_loop_beats_while_a_call_with_a_long_text_meets_a_costly_step(kind: Any) -> None:
    async def pay(ctx: TaskContext) -> None:
        async with ctx.capability("pay", {"text": GREATEST}):
            raise AssertionError("it is blocked")

    def pay_in_a_thread(ctx: Any) -> None:
        with ctx.capability("pay", {"text": GREATEST}):
            raise AssertionError("it is blocked")

    worker = kind(pay if kind is Agent else pay_in_a_thread)
    rule = around("pay", before=[{"assert": HOSTILE.format("input.text"), "error_message": "No."}])
    async with serving(worker, policy=rule) as server:
        with heartbeat() as beats:
            result = await server.client.send("go")
        assert (result.state, result.text) == ("failed", "No.")
        assert not beats.is_held_up


async def test_millions_of_values_are_not_looked_into_and_fail_what_expects_a_list() -> None:
    rows = [0] * 3_000_000
    async with serving(Agent(finish), settings=ANY_VALUES) as server:
        with heartbeat() as unwatched:
            assert (await server.client.send([Part(data={"rows": rows})])).text == "Done."
    rule = before({"assert": "input.message[0].data.rows.all(row, row == 0)", "error_message": "No."})
    async with serving(Agent(finish), policy=rule, settings=ANY_VALUES) as server:
        with heartbeat() as beats:
            result = await server.client.send([Part(data={"rows": rows})])
        assert (result.state, result.text) == ("rejected", "No.")
        # To read and write the message is work enough; to look into it would be many times as much.
        assert sum(beats.computed) < 5 * sum(unwatched.computed)
        assert (await server.client.send([Part(data={"rows": rows[:1000]})])).text == "Done."


def test_lists_and_maps_beyond_so_many_values_are_text() -> None:
    many = [1] * MOST_SEEN
    assert as_seen({"a": many, "b": {"c": 1}}) == {"a": msgspec.json.encode(many).decode(), "b": '{"c":1}'}
    few = {"a": [1] * (MOST_SEEN - 4), "b": {"c": 1}}
    assert as_seen(few) == few
    assert as_seen([[[]] * MOST_SEEN, "x"])[1] == "x"


@pytest.mark.parametrize(
    ("value", "cut"),
    [
        ([1] * MOST_SEEN, False),
        ([1] * (MOST_SEEN + 1), True),
        ([[1] * 100] * (MOST_SEEN // 101), False),
        ([[1] * 100] * (MOST_SEEN // 100), True),
        ({"a": {str(n): n for n in range(MOST_SEEN)}}, True),
        (nested(64), False),
        (nested(65), True),
        ("a" * MOST_SEEN * 2, False),
        (None, False),
    ],
)
def test_what_is_seen_as_it_is_and_what_is_not(value: Any, cut: bool) -> None:
    assert is_cut(value) is cut
    assert cut is (as_seen(value) != value)


# Values that are too large to be seen


@pytest.mark.parametrize(
    "source", ["input.to != ['boss']", "input.to == ['boss']", "has(input.to)", "size(input.rows) > 0"]
)
@pytest.mark.parametrize("size", [0, MOST_SEEN + 1])
async def test_an_expression_fails_that_names_a_value_too_large_to_be_seen_as_it_is(source: str, size: int) -> None:
    program = cel.compile(scopes.BEFORE, source, condition=True)
    variables = Variables(a_run().plain(), input={"rows": [0] * size, "to": ["boss"]})
    if not size:
        assert await evaluate(program, variables, Session(NOW)) is (source in ("input.to == ['boss']", "has(input.to)"))
        return
    with pytest.raises(CelError, match=r"input has more than 200,000 values .*: send less at once"):
        await evaluate(program, variables, Session(NOW))


def a_long_run() -> Context:
    """An input and a result of which expressions cannot see all, and another function."""
    current = Context(Started(at=NOW, agent="a", user="ann", functions=("search", "pay")))
    rows = [0] * (MOST_SEEN + 1)
    current.take(
        InputArrived(at=NOW, values={"message": [], "to": ["boss"], "rows": rows}, message_id="1"),
        CapabilityFinished(at=NOW, call="1", function="search", arguments={"q": "x"}, output={"rows": rows}),
        CapabilityFinished(at=NOW, call="2", function="pay", arguments={"to": "boss"}, output="ok"),
    )
    return current


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("context.input[0].rows != ['boss']", "input"),
        ("c.input.last().to == ['boss']", "input"),
        ("!(context.input.exists(one, one.to != ['boss']))", "input"),
        ("size(context.input[0].rows) > 5", "input"),
        ("context.input.size() + size(context.input[0].rows) > 5", "input"),
        ("context.capabilities.search.outputs.last().rows != []", "capabilities.search"),
        ("c.cap.search.outputs != []", "capabilities.search"),
        ("context.capabilities['search'].outputs != []", "capabilities.search"),
        ("!('x' in c.cap.search.inputs)", "capabilities.search"),
        ("context.capabilities.search != context.capabilities.pay", "capabilities.search"),
        ("context.capabilities.exists(name, name == 'nobody')", "capabilities.search"),
        ("context['input'] != []", "input"),
        ("context[r'input'] != []", "(input|capabilities.search)"),
        ("context.capabilities.search['outputs'] != []", "capabilities.search"),
        ("context.capabilities.search['out' + 'puts'] != []", "capabilities.search"),
        ("context.capabilities.search['out\\x70uts'] != []", "capabilities.search"),
        ("'x' in context.capabilities[input.name].outputs", "capabilities.search"),
        ("'x' in context.capabilities['search']['outputs'][0]", "capabilities.search"),
        ("size(context.capabilities.search.outputs[0].rows) > 5", "capabilities.search"),
        ("has(context.capabilities.search.outputs[0].rows)", "capabilities.search"),
        ("'x' in context.input", "input"),
        ("'x' in [context.capabilities]", "capabilities.search"),
        ("[context].exists(one, one.input != [])", "(input|capabilities.search)"),
    ],
)
async def test_an_expression_fails_that_looks_into_a_part_of_the_context_that_is_cut(source: str, part: str) -> None:
    program = cel.compile(scopes.BEFORE, source, condition=True)
    with pytest.raises(CelError, match=rf"context\.{part} holds more than 200,000 values or 64 levels at once"):
        await evaluate(program, Variables(a_long_run().plain(), input={}), Session(NOW))


@pytest.mark.parametrize(
    "source",
    [
        "size(context.input) == 1 && context.input.size() == 1",
        "context.output == [] && context.user.id == 'ann' && size(c.output) == 0",
        "context.capabilities.search.count_successful == 1 && c.cap.search.timestamps.size() == 1",
        "context.capabilities._meta.count == 2",
        "context.capabilities['search'].count_successful == 1 && c['cap'][\"pay\"].count_successful == 1",
        "'search' in context.capabilities && !('none' in c.cap) && 'outputs' in context.capabilities.search",
        "has(context.capabilities.search) && has(context.capabilities.search.outputs) && has(context.input)",
        "size(context.capabilities.search.outputs) == 1 && context.capabilities['search'].inputs.size() == 1",
        "size(context.capabilities) == 3 && size(context.capabilities.search) > 0",
        "context.capabilities['pay'].outputs.last() == 'ok'",
        "context.capabilities.pay.inputs.last().to == 'boss' && c.cap.pay.outputs == ['ok']",
    ],
)
async def test_what_does_not_look_into_it_goes_on(source: str) -> None:
    program = cel.compile(scopes.BEFORE, source, condition=True)
    assert await evaluate(program, Variables(a_long_run().plain(), input={}), Session(NOW)) is True


async def test_a_prompt_is_written_also_beside_what_it_cannot_see() -> None:
    prompt = compile_template(scopes.PROMPT, "For {context.input[0].to[0]}, who sent {size(context.input)}.")
    assert await prompt.text(Variables(a_long_run().plain()), Session(NOW)) == "For boss, who sent 1."


@pytest.mark.parametrize("source", ["input.message[0].data != {}", "context.input[0] != {}", "!has(input.rows)"])
@pytest.mark.parametrize("value", [[0] * (MOST_SEEN + 1), nested(65)], ids=["many values", "many levels"])
async def test_a_policy_that_compares_what_it_cannot_see_refuses_it(source: str, value: Any) -> None:
    rule = before({"assert": source, "error_message": "No."})
    async with serving(Agent(finish), policy=rule, settings=ANY_VALUES) as server:
        result = await server.client.send([Part(data={"rows": value})])
        assert (result.state, result.text) == ("rejected", "No.")
        assert (await server.client.send([Part(data={"rows": [0]})])).text == "Done."
