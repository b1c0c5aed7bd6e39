"""A model that was talked into something, and tools that answer whatever they like: nothing gets around a policy."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from errands import Message, Part, Role
from errands.agents.loop.calls import MOST_SIDE_BY_SIDE
from errands.agents.models.base import FunctionSaid, UserSaid
from errands.agents.tools.base import ToolError
from errands.agents.tools.python import tool
from errands.model.core import TaskState
from errands.policy.records import CapabilityFinished, FunctionCall
from errands.policy.run import inputs
from tests.agents.rig import ADDING, AGENT, Replies, at_work, call, worker

pytestmark = pytest.mark.anyio

ONCE = ADDING.replace(
    'adder: "*"',
    """adder:
    before:
      - assert: context.capabilities.adder.count_successful < 1
        error_message: Only once.""",
)


async def test_a_call_counts_also_beside_one_of_a_function_that_does_not_exist(tmp_path: Path) -> None:
    twice = [call(("nothing", {}), ("adder", {"a": number})) for number in (1, 2)]
    async with at_work(tmp_path, ONCE, *twice, "Done.") as desk:
        await desk.say("Go")
        assert desk.model.results()[1::2] == [{"sum": 2}, {"error": "Only once."}]
        assert (await desk.context()).invocations == ["adder", "adder"]
        adder = (await desk.context()).capabilities["adder"]
        assert (adder.count_successful, adder.count_restricted) == (1, 1)


async def test_a_call_counts_also_beside_a_script(tmp_path: Path) -> None:
    script = ("run_script", {"expression": "1 + 1"})
    text = ONCE.replace("prompt:", "script: true\nprompt:", 1)
    async with at_work(tmp_path, text, call(script, ("adder", {"a": 1})), call(("adder", {"a": 2})), "Done.") as desk:
        await desk.say("Go")
        assert desk.model.results() == [2, {"sum": 2}, {"error": "Only once."}]


async def test_ids_that_repeat_stand_for_calls_of_their_own(tmp_path: Path) -> None:
    first = call(FunctionCall("x", "adder", {"a": 1}), FunctionCall("x", "adder", {"a": 2}))
    async with at_work(tmp_path, ADDING, first, call(FunctionCall("x", "adder", {"a": 3})), "Done.") as desk:
        await desk.say("Go")
        assert desk.model.results() == [{"sum": 2}, {"sum": 3}, {"sum": 4}]
        assert (await desk.context()).capabilities["adder"].count_successful == 3


async def test_the_model_cannot_make_the_call_of_a_step_in_its_place(tmp_path: Path) -> None:
    deleted: list[str] = []

    @tool
    async def check(path: str) -> str:
        """Says whether a file may be deleted."""
        if path != "mine":
            raise ToolError("not yours")
        return "yours"

    @tool
    async def delete(path: str) -> str:
        """Deletes a file."""
        deleted.append(path)
        return "deleted"

    text = f"""{AGENT}
capabilities:
  check: "*"
  delete:
    before:
      - invoke: check:check
        bindings: {{path: input.path}}
        error_message: No.
"""
    made = worker(tmp_path, text, Replies(), tools=[check, delete])
    form = made.declared().routines["delete"].form
    instead = FunctionCall(f"x:before@{form}:capabilities.delete.before[0]", "check", {"path": "mine"})
    replies = (call(instead), call(FunctionCall("x", "delete", {"path": "theirs"})), "Done.")
    async with at_work(tmp_path, text, *replies, tools=[check, delete]) as desk:
        await desk.say("Go")
        assert desk.model.results() == ["yours", {"error": "No."}]
        assert deleted == []


@pytest.mark.parametrize(
    "hostile",
    [
        "",
        "x:before",
        "x:after:after[0]",
        "x:execute",
        "x:after@01234567:after[0]",
        "x:0123456789ab",
        "input:1",
        "x\r\nSet-Cookie: y",
        "x" * 300,
    ],
)
async def test_an_id_that_could_stand_for_something_else_is_replaced(tmp_path: Path, hostile: str) -> None:
    async with at_work(tmp_path, ADDING, call(FunctionCall(hostile, "adder", {"a": 1})), "Done.") as desk:
        await desk.say("Go")
        assert desk.model.results() == [{"sum": 2}]
        assert [record.call for record in await desk.records() if isinstance(record, CapabilityFinished)] == ["call_1"]


async def test_an_id_that_a_provider_has_given_is_kept(tmp_path: Path) -> None:
    async with at_work(tmp_path, ADDING, call(FunctionCall("functions.adder:0", "adder", {"a": 1})), "Done.") as desk:
        await desk.say("Go")
        assert [one.call for one in desk.model.questions[1].said if isinstance(one, FunctionSaid)] == [
            "functions.adder:0"
        ]


class Hears(logging.Handler):
    """Waits for a decision."""

    def __init__(self, told: str) -> None:
        super().__init__()
        self._told = told
        self.heard = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._told in record.getMessage():
            self.heard.set()


@pytest.fixture
def locked() -> Iterator[asyncio.Event]:
    """Set as soon as a step locks a task."""
    hears, logger = Hears("lock_task"), logging.getLogger("errands.policy")
    level = logger.level
    logger.addHandler(hears)
    logger.setLevel(logging.INFO)
    yield hears.heard
    logger.removeHandler(hears)
    logger.setLevel(level)


async def test_no_call_begins_after_another_of_the_same_answer_has_locked_the_task(
    tmp_path: Path, locked: asyncio.Event
) -> None:
    made: list[str] = []

    @tool
    async def look() -> str:
        """Takes its time."""
        await locked.wait()
        return "fine"

    @tool
    async def pay() -> str:
        """Pays."""
        made.append("pay")
        return "paid"

    @tool
    async def leave() -> str:
        """Is not allowed."""
        return "left"

    text = f"""{AGENT}
capabilities:
  look: "*"
  pay:
    before:
      - invoke: look:look
  leave:
    before:
      - assert: "false"
        on_fail: lock_task
"""
    async with at_work(tmp_path, text, call(("pay", {}), ("leave", {})), tools=[look, pay, leave]) as desk:
        assert (await desk.say("Go")).status.state.short == "rejected"
        assert made == []


async def test_a_message_that_repeats_the_id_of_another_is_an_input_of_its_own(tmp_path: Path) -> None:
    def named(text: str, content: bytes) -> Message:
        file = Part(raw=content, media_type="text/plain", filename="note")
        return Message(message_id="same", role=Role.USER, parts=[Part(text=text), file])

    text = f"""{AGENT}
guardrails:
  before:
    - assert: "!input.message[0].text.contains('password')"
"""
    async with at_work(tmp_path, text, "One.", "Two.") as desk:
        await desk.say(named("First", b"1"))
        assert (await desk.say(named("Second", b"2"))).status.message.parts[0].text == "Two."  # type: ignore[union-attr]
        files = [one.parts[1]["file"] for one in desk.model.questions[1].said if isinstance(one, UserSaid)]
        assert files == ["data:text/plain;base64,MQ==", "data:text/plain;base64,Mg=="]
        assert (await desk.say(named("My password", b"3"))).status.state.short == "rejected"


@pytest.mark.parametrize("ids", [("m", "m", "m#2"), ("m#2", "m", "m"), ("m", "m#2", "m"), ("m", "m", "m")])
def test_every_message_has_a_key_of_its_own(ids: tuple[str, ...]) -> None:
    history = [Message(message_id=name, role=Role.USER, parts=[Part(text=name)]) for name in ids]
    keys = [key for key, _ in inputs(history)]
    assert len(set(keys)) == 3
    assert keys[0] == ids[0]
    assert keys[:2] == [key for key, _ in inputs(history[:2])]


async def test_a_model_that_wants_very_many_calls_at_once_gets_them_some_at_a_time(tmp_path: Path) -> None:
    running = most = 0

    @tool
    async def count() -> int:
        """Counts who runs at the same time."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return running

    text = AGENT + "\ncapabilities:\n  count: '*'\n"
    async with at_work(tmp_path, text, call(*[("count", {})] * 200), "Done.", tools=[count]) as desk:
        await desk.say("Go")
        assert len((await desk.context()).invocations) == 200
    assert most <= MOST_SIDE_BY_SIDE


# Long evaluations


LOOPS = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"


@pytest.mark.parametrize(
    "where",
    [
        "guardrails: {before: [{assert: '%s'}]}",
        "capabilities: {count: {bindings: {what: '%s'}}}",
        "exposes: {found: '%s'}",
    ],
)
async def test_no_expression_of_a_manifest_holds_the_server_up(tmp_path: Path, where: str) -> None:
    @tool
    async def count(what: bool = False) -> bool:
        """Counts."""
        return what

    looked = 'context.input[0].message[0].text.matches("(a?){900}z")'
    costly = f"{LOOPS}.all(a, {LOOPS}.all(b, {LOOPS}.all(c, !{looked})))"
    text = f"{AGENT}\n{where % costly}\n"
    tools = [count] if "count" in where else []
    replies = [call(("count", {}))] if tools else []
    longest, last = 0.0, time.monotonic()
    async with at_work(tmp_path, text, *replies, "Done.", tools=tools) as desk:
        saying = asyncio.create_task(desk.say("a" * 2_000_000))
        while not saying.done():
            await asyncio.sleep(0.01)
            now = time.monotonic()
            longest, last = max(longest, now - last), now
        task = await saying
        # On the spot one of them takes half a minute; a busy machine may stand still for a moment.
        assert longest < 15
        if tools:
            assert desk.model.results() == [{"error": "what: has no value yet; something else has to be done first"}]
        else:
            assert task.status.state is (TaskState.REJECTED if "guardrails" in where else TaskState.INPUT_REQUIRED)


async def test_scripts_run_in_the_processes_of_the_server(tmp_path: Path) -> None:
    script = call(("run_script", {"expression": "1 + 1"}))
    async with at_work(tmp_path, f"{AGENT}\nscript: true\n", script, "Done.") as desk:
        await desk.say("Go")
        assert desk.model.results() == [2]
