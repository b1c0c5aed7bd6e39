"""The loop: input, model, calls, answer, and again; what the model is shown of it, and what the caller."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from errands.agents.models.base import Answer, FunctionSaid, ModelError, ModelSaid, Question, UserSaid
from errands.agents.tools.base import BrokenToolError, ToolError
from errands.agents.tools.python import tool
from errands.model.core import Message, Part, Role, Task
from errands.model.requests import SendMessageRequest
from errands.policy.records import CapabilityFinished, FunctionCall
from errands.runtime.call import CallContext
from errands.runtime.settings import Settings
from tests.agents.rig import ADDING, AGENT, at_work, call, say, told

pytestmark = pytest.mark.anyio


def state(task: Task) -> str:
    return task.status.state.short


async def test_the_answer_is_the_status_message_and_the_artifact_and_the_task_waits_for_more(
    tmp_path: Path, storage: str
) -> None:
    async with at_work(tmp_path, AGENT, "Hello there.", storage=storage) as desk:
        task = await desk.say("Hi")
        assert (state(task), told(task)) == ("input-required", "Hello there.")
        assert [[part.text for part in artifact.parts] for artifact in task.artifacts or ()] == [["Hello there."]]
        assert desk.model.questions[0].system == "You are a clerk."
        assert desk.model.questions[0].said == (UserSaid([{"mimeType": "text/plain", "text": "Hi"}]),)


async def test_a_follow_up_goes_on_in_the_same_conversation(tmp_path: Path, storage: str) -> None:
    async with at_work(tmp_path, AGENT, "One.", "Two.", storage=storage) as desk:
        await desk.say("First")
        task = await desk.say("Second")
        assert told(task) == "Two."
        assert [artifact.artifact_id for artifact in task.artifacts or ()] == ["answer"]
        said = desk.model.questions[1].said
        assert [type(one) for one in said] == [UserSaid, ModelSaid, UserSaid]
        context = await desk.context()
        assert context.turns == ["input", "llm", "input", "llm"]
        assert [entry["message"][0]["text"] for entry in context.output] == ["One.", "Two."]


async def test_tokens_are_streamed_as_chunks_of_the_artifact(tmp_path: Path) -> None:
    async with at_work(tmp_path, AGENT, "one two three") as desk:
        pieces = [event.text async for event in desk.client.stream("count") if event.kind == "artifact"]
        assert [piece for piece in pieces if piece] == ["one", " two", " three"]


async def test_a_function_is_called_and_its_result_goes_back_to_the_model(tmp_path: Path, storage: str) -> None:
    async with at_work(tmp_path, ADDING, call(("adder", {"a": 2})), "It is 3.", storage=storage) as desk:
        task = await desk.say("2 + 1?")
        assert told(task) == "It is 3."
        assert [offer.name for offer in desk.model.questions[0].offers] == ["adder"]
        assert desk.model.results() == [{"sum": 3}]
        adder = (await desk.context()).capabilities["adder"]
        assert (adder.count_successful, adder.inputs, adder.outputs) == (1, [{"a": 2, "b": 1}], [{"sum": 3}])
        assert (await desk.context()).turns == ["input", "llm", "capability", "llm"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "a: is missing"),
        ({"a": "two"}, 'a: "two" is not of type "integer"'),
        ({"a": 1, "c": 2}, "c: is unknown"),
    ],
)
async def test_arguments_that_do_not_fit_are_told_to_the_model_and_the_task_goes_on(
    tmp_path: Path, arguments: dict[str, Any], problem: str
) -> None:
    async with at_work(tmp_path, ADDING, call(("adder", arguments)), "Sorry.") as desk:
        assert told(await desk.say("?")) == "Sorry."
        assert problem in desk.model.results()[0]["error"]
        adder = (await desk.context()).capabilities["adder"]
        assert (adder.count_errored, adder.outputs) == (1, [None])


async def test_arguments_that_are_no_json_are_told_to_the_model(tmp_path: Path) -> None:
    async with at_work(tmp_path, ADDING, call(FunctionCall("x", "adder", None, "{oops")), "Sorry.") as desk:
        await desk.say("?")
        assert desk.model.results() == [{"error": "the arguments are not a JSON object"}]


async def test_a_call_that_was_cut_is_told_to_the_model_and_not_made(tmp_path: Path) -> None:
    cut = call(FunctionCall("x", "adder", None, '{"a": 1'), incomplete="length")
    async with at_work(tmp_path, ADDING, cut, "Sorry.") as desk:
        await desk.say("?")
        told = "the arguments are not a JSON object, because the answer was cut off before its end; write less"
        assert desk.model.results() == [{"error": told}]


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_an_answer_that_is_not_whole_says_so(tmp_path: Path, storage: str, reason: str) -> None:
    async with at_work(tmp_path, AGENT, say("It is", incomplete=reason), "It is so.", storage=storage) as desk:
        task = await desk.say("Is it?")
        assert (state(task), told(task)) == ("input-required", "It is")
        assert task.status.message is not None
        assert task.status.message.metadata == {"incomplete": reason}
        task = await desk.say("Go on.")
        assert task.status.message is not None
        assert (told(task), task.status.message.metadata) == ("It is so.", None)


def _plain(task: Task) -> str:
    """What a caller is told, without the reference by which an operator finds the rest in the log."""
    words, reference, _ = told(task).partition(" (reference ")
    assert reference
    return words


def breaks_off(_: Question) -> Answer:
    raise ModelError("the answer of openai at http://10.0.0.1/v1 broke off before its end", broke_off=True)


async def test_an_answer_that_breaks_off_leaves_the_conversation_open(
    tmp_path: Path, storage: str, caplog: pytest.LogCaptureFixture
) -> None:
    replies: list[Any] = [call(("adder_add", {"a": 1})), breaks_off, "Two.", breaks_off, "Four."]
    async with at_work(tmp_path, ADDING, *replies, storage=storage) as desk:
        task = await desk.say("What is 1 + 1?")
        assert state(task) == "input-required"
        assert _plain(task) == "The answer broke off; send your message again, or another"
        assert "10.0.0.1" not in told(task)
        assert "10.0.0.1" in caplog.text
        assert told(await desk.say("Please!")) == "Two."
        # What was said and called before is not forgotten.
        said = desk.model.questions[-1].said
        assert [type(one).__name__ for one in said] == ["UserSaid", "ModelSaid", "FunctionSaid", "UserSaid"]
        assert state(await desk.say("And 2 + 2?")) == "input-required"
        assert told(await desk.say("And 2 + 2?")) == "Four."


@pytest.mark.parametrize(
    ("error", "plain"),
    [
        (ModelError("the key at http://10.0.0.1 is wrong: set KEY"), "The model of this agent could not be asked"),
        (
            ModelError("begin anew at 10.0.0.1", for_caller="The conversation is too long"),
            "The conversation is too long",
        ),
    ],
)
async def test_what_is_wrong_with_a_model_is_told_to_the_operator_and_not_to_the_caller(
    tmp_path: Path, error: ModelError, plain: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: Question) -> Answer:
        raise error

    async with at_work(tmp_path, AGENT, fails) as desk:
        task = await desk.say("Hello?")
    assert (state(task), _plain(task)) == ("failed", plain)
    assert "10.0.0.1" in caplog.text


@pytest.mark.parametrize("nothing", ["", " \n"])
async def test_a_model_that_says_nothing_ends_the_task_and_its_tokens_count(tmp_path: Path, nothing: str) -> None:
    async with at_work(tmp_path, AGENT, say(nothing, prompt_tokens=3)) as desk:
        task = await desk.say("Hello?")
        assert (state(task), told(task)) == ("failed", "The model answered without a word and without a call.")
        assert task.status.message is not None
        assert task.status.message.metadata == {"reason": "errored"}
        assert (await desk.context()).prompt_tokens == 3


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize("value", [nested(70), {"rows": [0] * 200_001}], ids=["many levels", "many values"])
@pytest.mark.parametrize("parameter", ["", "parameters: {properties: {doc: {type: object, default: {}}}}\n"])
async def test_a_message_with_more_in_it_than_can_be_seen_is_refused_and_the_task_goes_on(
    tmp_path: Path, value: dict[str, Any], parameter: str
) -> None:
    server = {"settings": Settings(max_message_values=1_000_000)}
    async with at_work(tmp_path, AGENT + parameter, "Hi.", "Bye.", server=server) as desk:
        await desk.say("Hello")
        task = await desk.say([Part(text="See this"), Part(data={"doc": value})])
        assert (state(task), "more than 200,000 values or 64 levels" in told(task)) == ("input-required", True)
        assert told(await desk.say("Then not.")) == "Bye."
        assert len(desk.model.questions) == 2


async def test_a_prompt_that_names_a_result_is_written_also_when_that_is_very_large(tmp_path: Path) -> None:
    @tool
    async def table() -> dict[str, Any]:
        """Gives a table."""
        return {"title": "Sales", "rows": [0] * 200_001}

    prompt = "'The table: {context.capabilities.table.outputs.map(one, one.title)}'"
    text = AGENT.replace("You are a clerk.", prompt) + 'capabilities: {table: "*"}\n'
    async with at_work(tmp_path, text, call(("table", {})), "Done.", tools=[table]) as desk:
        assert told(await desk.say("Go")) == "Done."
        assert desk.model.questions[-1].system == 'The table: ["Sales"]'


@pytest.mark.parametrize("beside", ["The sum is 2; I note it down.", ""])
@pytest.mark.parametrize("nothing", ["", " \n"])
async def test_a_model_that_adds_nothing_to_results_has_answered_with_what_it_said_last(
    tmp_path: Path, storage: str, beside: str, nothing: str
) -> None:
    adding = call(("adder", {"a": 1}), text=beside)
    async with at_work(tmp_path, ADDING, "Hello.", adding, nothing, "You are welcome.", storage=storage) as desk:
        await desk.say("Hello!")
        task = await desk.say("Add")
        assert (state(task), told(task)) == ("input-required", beside)
        assert task.artifacts is not None
        assert "".join(part.text or "" for part in task.artifacts[0].parts) == beside
        assert told(await desk.say("Thanks")) == "You are welcome."
        said = desk.model.questions[-1].said
        assert all(one.text.strip() or one.calls for one in said if isinstance(one, ModelSaid))


async def test_a_model_that_was_cut_to_nothing_after_results_ends_the_task(tmp_path: Path) -> None:
    adding = call(("adder", {"a": 1}), text="One moment.")
    async with at_work(tmp_path, ADDING, adding, say("", incomplete="length")) as desk:
        assert state(await desk.say("Add")) == "failed"


async def test_a_function_that_does_not_exist_is_told_to_the_model(tmp_path: Path) -> None:
    async with at_work(tmp_path, ADDING, call(("subtract", {})), "Sorry.") as desk:
        await desk.say("?")
        assert desk.model.results() == [{"error": "unknown function 'subtract'; available: adder"}]
        context = await desk.context()
        assert context.turns == ["input", "llm", "capability", "llm"]
        assert "subtract" not in context.capabilities


TWO = AGENT + "\ncapabilities:\n  first: '*'\n  second: '*'\n"


async def test_several_calls_of_one_answer_run_side_by_side_and_count_in_the_models_order(
    tmp_path: Path, storage: str
) -> None:
    second_has_run = asyncio.Event()

    @tool
    async def first() -> str:
        """Waits for the second."""
        await second_has_run.wait()
        return "first"

    @tool
    async def second() -> str:
        """Lets the first go on."""
        second_has_run.set()
        return "second"

    replies = (call(("first", {}), ("second", {})), "Done.")
    async with at_work(tmp_path, TWO, *replies, tools=[first, second], storage=storage) as desk:
        await desk.say("Go")
        assert (await desk.context()).invocations == ["first", "second"]
        said = desk.model.questions[1].said
        assert [one.content for one in said if isinstance(one, FunctionSaid)] == ["first", "second"]
        finished = [record for record in await desk.records() if isinstance(record, CapabilityFinished)]
        assert [record.function for record in finished] == ["second", "first"]


async def test_calls_of_a_synchronous_tool_run_one_after_the_other(tmp_path: Path) -> None:
    running: list[str] = []

    @tool(synchronous=True)
    async def count(name: str) -> list[str]:
        """Says who runs beside it."""
        running.append(name)
        await asyncio.sleep(0)
        beside = list(running)
        running.remove(name)
        return beside

    text = AGENT + "\ncapabilities:\n  count: '*'\n"
    replies = (call(*(("count", {"name": name}) for name in "abc")), "Done.")
    async with at_work(tmp_path, text, *replies, tools=[count]) as desk:
        await desk.say("Go")
        assert desk.model.results() == [["a"], ["b"], ["c"]]


async def test_an_error_of_a_tool_goes_to_the_model_and_never_ends_the_task(tmp_path: Path) -> None:
    @tool
    async def flaky() -> str:
        """Fails."""
        raise ToolError("the service says 503")

    text = AGENT + "\ncapabilities:\n  flaky: '*'\n"
    async with at_work(tmp_path, text, call(("flaky", {})), "Later.", tools=[flaky]) as desk:
        assert state(await desk.say("Go")) == "input-required"
        assert desk.model.results() == [{"error": "the service says 503"}]
        assert (await desk.context()).capabilities["flaky"].count_errored == 1


async def test_a_tool_that_cannot_work_ends_the_task(
    tmp_path: Path, storage: str, caplog: pytest.LogCaptureFixture
) -> None:
    @tool
    async def broken() -> str:
        """Cannot work."""
        raise BrokenToolError("nobody answers at shop.example")

    text = AGENT + "\ncapabilities:\n  broken: '*'\n"
    async with at_work(tmp_path, text, call(("broken", {})), tools=[broken], storage=storage) as desk:
        task = await desk.say("Go")
        assert (state(task), _plain(task)) == ("failed", "broken cannot be used")
        assert "nobody answers at shop.example" in caplog.text
        assert task.status.message is not None
        assert task.status.message.metadata == {"reason": "errored"}


async def test_exposed_values_come_with_every_answer(tmp_path: Path) -> None:
    text = ADDING + ""
    text = text.replace("capabilities:", "exposes: {sums: context.capabilities.adder.count_successful}\ncapabilities:")
    async with at_work(tmp_path, text, call(("adder", {"a": 1})), "2.") as desk:
        task = await desk.say("1 + 1?")
        assert task.status.message is not None
        assert task.status.message.parts[1].data == {"exposes": {"sums": 1}}
        assert (await desk.context()).output[0]["sums"] == 1


async def test_a_value_that_cannot_be_had_is_null_and_the_log_does_not_repeat_what_was_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = AGENT + "\nexposes: {found: 'context.capabilities[output.message[0].text]'}\n"
    async with at_work(tmp_path, text, "a-secret") as desk:
        await desk.say("Hi")
        assert (await desk.context()).output[0]["found"] is None
        assert "found is exposed as null" in caplog.text
        assert "a-secret" not in caplog.text


PARAMETERS = (
    AGENT
    + """
parameters:
  properties:
    ticket: {type: integer}
    language: {type: string, enum: [en, de], default: en}
"""
)


async def test_parameters_come_as_a_data_part_and_stay(tmp_path: Path) -> None:
    text = PARAMETERS.replace("You are a clerk.", "Ticket {context.input[0].ticket}, {context.input[0].language}.")
    async with at_work(tmp_path, text, "One.", "Two.") as desk:
        await desk.say([Part(text="Help"), Part(data={"ticket": 7})])
        await desk.say("More")
        assert desk.model.questions[0].system == "Ticket 7, en."
        context = await desk.context()
        assert [(entry["ticket"], entry["language"]) for entry in context.input] == [(7, "en"), (7, "en")]


async def test_an_input_without_a_required_parameter_is_refused_with_the_schema_and_can_be_sent_again(
    tmp_path: Path,
) -> None:
    async with at_work(tmp_path, PARAMETERS, "Hello.") as desk:
        task = await desk.say("Help")
        assert state(task) == "input-required"
        assert "ticket: is missing" in told(task)
        assert task.status.message is not None
        shape: Any = task.status.message.parts[1].data
        assert shape["schema"]["required"] == ["ticket"]
        assert desk.model.questions == []
        assert told(await desk.say([Part(text="Help"), Part(data={"ticket": 7})])) == "Hello."
        assert len((await desk.context()).input) == 1


async def test_an_agent_that_closes_after_an_answer_completes_the_task(tmp_path: Path) -> None:
    async with at_work(tmp_path, AGENT + "\nclose_after: 1\n", "Bye.") as desk:
        assert state(await desk.say("Hi")) == "completed"


async def test_tokens_are_counted(tmp_path: Path) -> None:
    replies = (say("One.", prompt_tokens=10, completion_tokens=2), say("Two.", prompt_tokens=20, completion_tokens=3))
    async with at_work(tmp_path, AGENT, *replies) as desk:
        await desk.say("1")
        await desk.say("2")
        tokens = (await desk.context()).plain()["llm"]["tokens"]
        assert tokens == {"total": 35, "prompt": 30, "completion": 5}


async def test_the_bytes_of_a_file_reach_the_model_and_are_stored_once(tmp_path: Path) -> None:
    async with at_work(tmp_path, AGENT, "A cat.", "Still a cat.") as desk:
        await desk.say([Part(text="What is it?"), Part(raw=b"\x89PNG", media_type="text/plain", filename="cat.png")])
        await desk.say("Sure?")
        for question in desk.model.questions:
            [_, image] = question.said[0].parts  # type: ignore[union-attr]
            assert image["file"] == "data:text/plain;base64,iVBORw=="
        [_, kept] = (await desk.context()).input[0]["message"]
        assert (kept["filename"], kept["sizeBytes"], "data:" in kept["file"]) == ("cat.png", 4, False)


async def test_metadata_reaches_neither_the_model_nor_tools_nor_expressions(tmp_path: Path) -> None:
    called: list[Any] = []

    @tool
    async def look(text: str) -> str:
        """Looks."""
        called.append(text)
        return "seen"

    secret = {"note": "psst"}
    part = Part(text="hello", metadata=secret, filename="hello.txt")
    message = Message(message_id="m", role=Role.USER, parts=[part], metadata=secret, extensions=["urn:psst"])
    text = f"{AGENT}\ncapabilities: {{look: '*'}}\nexposes: {{everything: context}}\n"
    async with at_work(tmp_path, text, call(("look", {"text": "it"})), "Done.", tools=[look]) as desk:
        request = SendMessageRequest(message=message, metadata=secret)
        response = await desk.server.task_manager.send_message(request, CallContext(scope=desk.server.scope()))
        desk.task = task = response.task
        assert task is not None
        told = [*desk.model.questions, *called, *await desk.records(), task.status]
        assert b"psst" not in msgspec.json.encode(told)
        assert b"hello.txt" in msgspec.json.encode(desk.model.questions)
        assert b"psst" in msgspec.json.encode(task.history)
