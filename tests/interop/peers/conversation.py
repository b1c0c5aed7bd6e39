"""One conversation with an agent, written once and held by every client with every agent.

A client is brought in as a `Caller`, and what came of each step is compared with `EXPECTED`. This module runs in the
environments of the official SDKs as well, so it imports nothing but the standard library.

What the agents do is said by the first word of a message: see `agent.py`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import traceback
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

#: Seconds after which a step that does not come to its end has failed.
STEP_S = 60.0
#: Seconds without a word: long enough for an agent that is served with `KEEP_ALIVE_S` to say that it is still there.
QUIET_S = 0.5
KEEP_ALIVE_S = "0.1"
ENDED = ("completed", "failed", "canceled", "rejected")

DATA = {"big": 2**53 + 1, "float": 1.5, "list": [1, None, True, "ü"], "nested": {"zero": 0}}
RAW = b"\x00\x01binary\xff"
#: Every character that Python's `splitlines` takes for the end of a line and JSON does not have to escape.
ODD_LINES = "one\x85two\u2028three\u2029four"
FILE_URL = "https://example.com/report.pdf"


@dataclass
class Answer:
    """A task, a message or an event of a stream, in words that both versions of the protocol share."""

    task_id: str = ""
    context_id: str = ""
    #: Such as "input-required"; None for a message or an artifact.
    state: str | None = None
    #: The text of all artifacts, or of the message.
    text: str = ""
    #: The text of the status message.
    said: str = ""
    #: Who spoke and what, oldest first.
    history: list[tuple[str, str]] = field(default_factory=list)
    #: The parts of all artifacts, each as `text_part` and its siblings make them.
    parts: list[dict[str, str]] = field(default_factory=list)
    is_message: bool = False


@dataclass
class Saying:
    """A message to the agent."""

    parts: list[dict[str, str]]
    task_id: str = ""
    context_id: str = ""


class Refused(Exception):
    """The agent answered with an error; `str()` of it is the error's name, as far as the client tells it."""


class Caller(Protocol):
    """A client of some SDK. Errors of the agent are raised as `Refused`."""

    async def card(self) -> dict[str, Any]: ...
    async def extended_card(self) -> dict[str, Any]: ...
    async def send(self, message: Saying, *, wait: bool = True) -> Answer: ...
    def stream(self, message: Saying) -> AsyncIterator[Answer]: ...
    def subscribe(self, task_id: str) -> AsyncIterator[Answer]: ...
    async def get(self, task_id: str, history_length: int | None = None) -> Answer: ...
    async def list(self, context_id: str) -> list[Answer]: ...
    async def cancel(self, task_id: str) -> Answer: ...
    async def set_push(self, task_id: str) -> None: ...


def text_part(text: str) -> dict[str, str]:
    return {"text": text}


def data_part(data: Any) -> dict[str, str]:
    """The value as text, in which 1 and 1.0 are different."""
    return {"data": json.dumps(data, sort_keys=True)}


def raw_part(content: bytes, name: str, media_type: str) -> dict[str, str]:
    return {"raw": base64.b64encode(content).decode(), "name": name, "type": media_type}


def url_part(url: str, name: str, media_type: str) -> dict[str, str]:
    return {"url": url, "name": name, "type": media_type}


ALL_PARTS = [
    text_part("parts"),
    data_part(DATA),
    raw_part(RAW, "raw.bin", "application/octet-stream"),
    url_part(FILE_URL, "report.pdf", "application/pdf"),
]

#: The second is base64 text itself, which must not be taken for a file that was encoded once more than it was.
FILES = [raw_part(RAW, "raw.bin", "application/octet-stream"), raw_part(b"data", "data.txt", "text/plain")]


def saying(text: str, **place: str) -> Saying:
    return Saying([text_part(text)], **place)


async def say(caller: Caller, text: str, *, wait: bool = True, **place: str) -> Answer:
    return await caller.send(saying(text, **place), wait=wait)


async def hold(caller: Caller) -> tuple[str, str]:
    """Begins a task that stays at work. Its id, and the message that lets it end."""
    name = uuid.uuid4().hex
    held = await say(caller, f"hold {name}", wait=False)
    return held.task_id, f"release {name}"


async def until_ended(caller: Caller, task_id: str) -> Answer:
    while (task := await caller.get(task_id)).state not in ENDED:
        await asyncio.sleep(0.02)
    return task


async def refusal(call: Awaitable[Any]) -> str:
    try:
        await call
    except Refused as error:
        return str(error)
    return "was not refused"


async def drained(events: AsyncIterator[Answer]) -> list[Answer]:
    return [event async for event in events]


# Steps


async def card(caller: Caller) -> Any:
    return await caller.card()


async def extended_card(caller: Caller) -> Any:
    return await caller.extended_card()


async def send(caller: Caller) -> Any:
    answer = await say(caller, "echo hello")
    return {"state": answer.state, "text": answer.text, "has context": bool(answer.context_id)}


async def send_without_waiting(caller: Caller) -> Any:
    name = uuid.uuid4().hex
    first = await say(caller, f"hold {name}", wait=False)
    await say(caller, f"release {name}")
    ended = await until_ended(caller, first.task_id)
    return {"at once": first.state in ("submitted", "working"), "later": ended.state, "text": ended.text}


async def stream(caller: Caller) -> Any:
    events = await drained(caller.stream(saying("stream 3")))
    pieces = [event.text for event in events if event.state is None]
    return {"pieces": pieces, "last": events[-1].state, "one task": len({event.task_id for event in events}) == 1}


async def stream_of_odd_lines(caller: Caller) -> Any:
    events = await drained(caller.stream(saying(f"echo {ODD_LINES}")))
    return [event.text for event in events if event.state is None]


async def get(caller: Caller) -> Any:
    sent = await say(caller, "echo to be read")
    task = await caller.get(sent.task_id)
    return {"state": task.state, "text": task.text, "first said": task.history[0]}


async def get_with_less_history(caller: Caller) -> Any:
    asked = await say(caller, "ask me")
    await say(caller, "Lisbon", task_id=asked.task_id)
    return (await caller.get(asked.task_id, history_length=1)).history[-1:]


async def list_by_context(caller: Caller) -> Any:
    first = await say(caller, "echo to be listed")
    # Tasks that end in the same millisecond are listed in any order; this request keeps the two apart.
    await say(caller, "echo elsewhere")
    second = await say(caller, "fail", context_id=first.context_id)
    listed = await caller.list(first.context_id)
    return {
        "the newest first": [task.task_id for task in listed] == [second.task_id, first.task_id],
        "states": [task.state for task in listed],
    }


async def cancel(caller: Caller) -> Any:
    task_id, _ = await hold(caller)
    canceled = await caller.cancel(task_id)
    return {"state": canceled.state, "later": (await caller.get(task_id)).state}


async def cancel_while_streaming(caller: Caller) -> Any:
    async with aclosing(caller.stream(saying(f"hold {uuid.uuid4().hex}"))) as events:  # type: ignore[type-var]
        first = await anext(events)
        canceled = await caller.cancel(first.task_id)
        last = (await drained(events))[-1]
    return {"answer": canceled.state, "last": last.state}


async def resubscribe(caller: Caller) -> Any:
    task_id, release = await hold(caller)
    async with aclosing(caller.subscribe(task_id)) as events:  # type: ignore[type-var]
        first = await anext(events)
        await say(caller, release)
        last = (await drained(events))[-1]
    return {"same task": first.task_id == last.task_id == task_id, "last": last.state}


async def follow_quiet_task(caller: Caller) -> Any:
    name = uuid.uuid4().hex
    resting = await say(caller, f"rest {name}", wait=False)
    async with aclosing(caller.subscribe(resting.task_id)) as events:  # type: ignore[type-var]
        first = await anext(events)
        await asyncio.sleep(QUIET_S)
        await say(caller, f"release {name}")
        last = (await drained(events))[-1]
    return {"same task": first.task_id == last.task_id, "last": last.state}


async def two_turns(caller: Caller) -> Any:
    asked = await say(caller, "ask me")
    # Without the context's id: it follows from the task.
    answered = await say(caller, "Lisbon", task_id=asked.task_id)
    return {
        "asked": (asked.state, asked.said),
        "answered": (answered.state, answered.text),
        "same": asked.task_id == answered.task_id and asked.context_id == answered.context_id,
    }


async def second_turn_as_stream(caller: Caller) -> Any:
    asked = await say(caller, "ask me")
    events = await drained(caller.stream(saying("Lisbon", task_id=asked.task_id)))
    pieces = [event.text for event in events if event.state is None]
    return {"pieces": pieces, "last": events[-1].state, "same": {event.task_id for event in events} == {asked.task_id}}


async def direct_message(caller: Caller) -> Any:
    answer = await say(caller, "direct")
    return {"is message": answer.is_message, "text": answer.text}


async def failure(caller: Caller) -> Any:
    answer = await say(caller, "fail")
    return {"state": answer.state, "said": answer.said}


async def parts_there_and_back(caller: Caller) -> Any:
    return (await caller.send(Saying(ALL_PARTS))).parts


async def files_there_and_back(caller: Caller) -> Any:
    return (await caller.send(Saying([text_part("files"), *FILES]))).parts


async def unknown_task(caller: Caller) -> Any:
    return {
        "get": await refusal(caller.get("no-such-task")),
        "cancel": await refusal(caller.cancel("no-such-task")),
        "send": await refusal(say(caller, "echo", task_id="no-such-task")),
    }


async def ended_task(caller: Caller) -> Any:
    sent = await say(caller, "echo and end")
    return {
        "cancel": await refusal(caller.cancel(sent.task_id)),
        "send": await refusal(say(caller, "echo again", task_id=sent.task_id)),
    }


async def follow_unknown_task(caller: Caller) -> Any:
    return await refusal(drained(caller.subscribe("no-such-task")))


async def follow_ended_task(caller: Caller) -> Any:
    sent = await say(caller, "echo and end")
    return await refusal(drained(caller.subscribe(sent.task_id)))


async def push_not_offered(caller: Caller) -> Any:
    sent = await say(caller, "echo")
    return await refusal(caller.set_push(sent.task_id))


STEPS: dict[str, Callable[[Caller], Awaitable[Any]]] = {
    step.__name__: step
    for step in (
        card,
        extended_card,
        send,
        send_without_waiting,
        stream,
        stream_of_odd_lines,
        get,
        get_with_less_history,
        list_by_context,
        cancel,
        cancel_while_streaming,
        resubscribe,
        follow_quiet_task,
        two_turns,
        second_turn_as_stream,
        direct_message,
        failure,
        parts_there_and_back,
        files_there_and_back,
        unknown_task,
        ended_task,
        follow_unknown_task,
        follow_ended_task,
        push_not_offered,
    )
}

EXPECTED: dict[str, Any] = {
    "card": {"name": "Interop", "skills": 1, "streaming": True},
    "extended_card": {"name": "Interop", "skills": 2, "streaming": True},
    "send": {"state": "completed", "text": "Echo: hello", "has context": True},
    "send_without_waiting": {"at once": True, "later": "completed", "text": "held"},
    "stream": {"pieces": ["0 ", "1 ", "2 "], "last": "completed", "one task": True},
    "stream_of_odd_lines": [f"Echo: {ODD_LINES}"],
    "get": {"state": "completed", "text": "Echo: to be read", "first said": ["user", "echo to be read"]},
    "get_with_less_history": [["user", "Lisbon"]],
    "list_by_context": {"the newest first": True, "states": ["failed", "completed"]},
    "cancel": {"state": "canceled", "later": "canceled"},
    "cancel_while_streaming": {"answer": "canceled", "last": "canceled"},
    "resubscribe": {"same task": True, "last": "completed"},
    "follow_quiet_task": {"same task": True, "last": "completed"},
    "two_turns": {
        "asked": ["input-required", "Which city?"],
        "answered": ["completed", "ask me: Lisbon"],
        "same": True,
    },
    "second_turn_as_stream": {"pieces": ["ask me: Lisbon"], "last": "completed", "same": True},
    "direct_message": {"is message": True, "text": "Directly"},
    "failure": {"state": "failed", "said": "It went wrong"},
    # The parts as they came back, and before them what the agent saw of the data.
    "parts_there_and_back": [{"text": data_part(DATA)["data"]}, *ALL_PARTS],
    "files_there_and_back": FILES,
    "unknown_task": dict.fromkeys(("get", "cancel", "send"), "TaskNotFoundError"),
    "ended_task": {"cancel": "TaskNotCancelableError", "send": "UnsupportedOperationError"},
    "follow_unknown_task": "TaskNotFoundError",
    "follow_ended_task": "UnsupportedOperationError",
    "push_not_offered": "PushNotificationNotSupportedError",
}


async def outcome(caller: Caller, step: str) -> Any:
    """What came of the step, as JSON has it; of one that broke, its traceback."""
    try:
        async with asyncio.timeout(STEP_S):
            return json.loads(json.dumps(await STEPS[step](caller)))
    except Refused as error:
        return f"refused: {error}"
    except TimeoutError:
        return f"took longer than {STEP_S:.0f} s"
    except Exception:
        return traceback.format_exc()


async def play(caller: Caller) -> None:
    """Prints every step and what came of it, a line each."""
    for step in STEPS:
        print(json.dumps({"step": step, "outcome": await outcome(caller, step)}), flush=True)


async def follow(caller: Caller, task_id: str) -> None:
    """Prints every event of a task until it has ended, a line each."""
    async for event in caller.subscribe(task_id):
        print(json.dumps({"state": event.state, "text": event.text}), flush=True)
