"""PraisonAI's dialect: what a message may look like, and the task that it is answered with."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from errands import TaskContext, TaskState, Worker
from errands.testing import serve
from errands.wire.praisonai import STATES
from tests.interaction.agents import Asks, Direct, Echo, Gated, Parrot, Replies, card
from tests.interaction.praisonai import praison, say, texts

pytestmark = pytest.mark.anyio


async def test_a_send_answers_with_a_task_in_which_both_sides_have_spoken(storage: str) -> None:
    async with praison(Echo(), storage=storage) as client:
        task = await client.send("Analyze this")
        assert set(task) == {"id", "contextId", "status", "artifacts", "history"}
        assert task["status"]["state"] == "completed"
        assert task["status"]["timestamp"].endswith("+00:00")
        assert task["artifacts"] == [{"artifactId": "final-answer", "parts": [{"text": "Echo: Analyze this"}]}]
        assert [(m["role"], texts(m)) for m in task["history"]] == [
            ("user", ["Analyze this"]),
            ("agent", ["Echo: Analyze this"]),
        ]
        assert await client.result("tasks/get", {"id": task["id"]}) == task


async def test_an_answer_that_is_a_message_is_an_artifact_too() -> None:
    class Responds(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            await ctx.respond("Done.")

    async with praison(Responds()) as client:
        task = await client.send()
        assert texts(task["artifacts"][0]) == ["Done."]
        assert [m["role"] for m in task["history"]] == ["user", "agent"]


async def test_the_message_of_an_executor_is_a_task_here_too() -> None:
    async with praison(serve(Replies())) as client:
        assert texts((await client.send("hi"))["artifacts"][0]) == ["You said hi"]
        events = await client.stream("hi")
    assert [event.event for event in events] == ["task.artifact", "task.status", "done"]


async def test_a_direct_reply_is_a_task_here() -> None:
    async with praison(Direct()) as client:
        task = await client.send()
        assert task["status"]["state"] == "completed"
        assert texts(task["artifacts"][0]) == ["You said hi"]
        assert texts(task["history"][-1]) == ["You said hi"]
        assert await client.result("tasks/get", {"id": task["id"]}) == task


async def test_the_context_is_always_returned_and_kept() -> None:
    async with praison(Echo()) as client:
        first = await client.send("one", contextId=None)
        second = await client.send("two", contextId=first["contextId"])
        assert second["contextId"] == first["contextId"]
        assert second["id"] != first["id"]


async def test_messages_without_an_id_are_different_messages() -> None:
    async with praison(Echo()) as client:
        first, second = await client.send("same", contextId="c"), await client.send("same", contextId="c")
        assert first["id"] != second["id"]
        assert first["history"][0]["messageId"] != second["history"][0]["messageId"]


async def test_a_message_that_is_sent_again_with_its_id_is_worked_on_once() -> None:
    async with praison(Echo()) as client:
        first, again = await client.send(messageId="m-1"), await client.send(messageId="m-1")
        assert first == again
        assert first["history"][0]["messageId"] == "m-1"


@pytest.mark.parametrize("key", ["returnImmediately", "return_immediately"])
async def test_who_wants_to_go_on_at_once_can(key: str) -> None:
    worker = Gated()
    async with praison(worker) as client:
        task = await client.send(configuration={key: True})
        assert task["status"]["state"] in {"submitted", "working"}
        worker.gate.set()


async def test_a_question_is_answered_by_naming_its_task() -> None:
    async with praison(Asks()) as client:
        asked = await client.send("hello")
        assert asked["status"]["state"] == "input_required"
        assert texts(asked["status"]["message"]) == ["Which language?"]
        answered = await client.send("French", taskId=asked["id"])
        assert (answered["id"], answered["status"]["state"]) == (asked["id"], "completed")
        assert [m["role"] for m in answered["history"]] == ["user", "agent", "user", "agent"]
        code, message = await client.refused("message/send", {"message": say("more", taskId=asked["id"])})
        assert code < 0
        assert "completed" in message or "terminal" in message


async def test_every_state_has_its_spelling() -> None:
    assert set(TaskState) == set(STATES)
    assert set(STATES.values()) == {
        "submitted",
        "working",
        "completed",
        "failed",
        "cancelled",
        "input_required",
        "auth_required",
    }


@pytest.mark.parametrize(("ending", "state"), [("fail", "failed"), ("reject", "failed"), ("auth", "auth_required")])
async def test_a_task_that_does_not_complete_says_how_it_ended_and_why(ending: str, state: str) -> None:
    class Ends(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            if ending == "fail":
                await ctx.fail("No key.")
            elif ending == "reject":
                await ctx.reject("No key.")
            else:
                await ctx.request_auth("No key.")

    async with praison(Ends()) as client:
        status = (await client.send())["status"]
        assert status["state"] == state
        assert "No key." in texts(status["message"])[0]


IMAGE = base64.b64encode(b"\x89PNG").decode()


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ({"text": "a"}, [{"text": "a"}]),
        ({"kind": "text", "text": "a"}, [{"text": "a"}]),
        ({"type": "text", "text": "a", "metadata": {"k": 1}}, [{"text": "a"}]),
        ({"url": "https://x.test/a"}, [{"fileWithUri": "https://x.test/a"}]),
        (
            {"fileWithUri": "https://x.test/a", "media_type": "image/png", "filename": "a.png"},
            [{"fileWithUri": "https://x.test/a", "mediaType": "image/png", "name": "a.png"}],
        ),
        (
            {"kind": "file", "file": {"uri": "https://x.test/a", "mimeType": "image/png", "name": "a.png"}},
            [{"fileWithUri": "https://x.test/a", "mediaType": "image/png", "name": "a.png"}],
        ),
        (
            {"kind": "file", "file": {"bytes": IMAGE, "mimeType": "image/png"}},
            [{"fileWithBytes": IMAGE, "mediaType": "image/png"}],
        ),
        ({"raw": IMAGE, "mediaType": "image/png"}, [{"fileWithBytes": IMAGE, "mediaType": "image/png"}]),
        ({"fileWithBytes": IMAGE}, [{"fileWithBytes": IMAGE}]),
        ({"data": {"n": 2**53 + 1}}, [{"data": {"n": 2**53 + 1}}]),
        ({"text": "a", "data": {"b": 1}}, [{"text": "a"}, {"data": {"b": 1}}]),
    ],
)
async def test_a_part_is_what_its_keys_say_and_nothing_of_it_is_dropped(
    sent: dict[str, Any], shown: list[dict[str, Any]]
) -> None:
    async with praison(Parrot(), agent_card=card(input_modes=["*/*"])) as client:
        task = await client.result("message/send", {"message": {"role": "user", "parts": [sent]}})
        assert [without(part, "metadata") for part in task["history"][0]["parts"]] == shown
        assert task["history"][0]["parts"][0].get("metadata") == sent.get("metadata")
        given = [without(part, "metadata") for artifact in task["artifacts"] for part in artifact["parts"]]
        assert given == shown


def without(fields: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != name}


async def test_what_comes_with_a_message_reaches_the_worker() -> None:
    seen: list[Any] = []

    class Looks(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            seen.extend([ctx.metadata, ctx.accepts("image/png")])
            await ctx.complete("ok")

    async with praison(Looks()) as client:
        message = say(metadata={"a": 1}, extensions={"https://e.test": "1"}, referenceTaskIds=["t-0"])
        configuration = {"acceptContentTypes": ["text/plain"]}
        params = {"message": message, "configuration": configuration, "metadata": {"b": 2}}
        task = await client.result("message/send", params)
        assert task["history"][0]["metadata"] == {"a": 1}
        assert task["history"][0]["extensions"] == {"https://e.test": ""}
        assert task["history"][0]["referenceTaskIds"] == ["t-0"]
        assert seen == [{"a": 1}, False]


@pytest.mark.parametrize("fields", [{"role": None}, {"role": "ROLE_USER"}])
async def test_the_role_may_be_left_out_or_spelled_as_in_1_0(fields: dict[str, Any]) -> None:
    message = {key: value for key, value in {**say(), **fields}.items() if value is not None}
    async with praison(Echo()) as client:
        assert (await client.result("message/send", {"message": message}))["history"][0]["role"] == "user"
