"""How an agent's answer is shown: as it arrives or at once, and what the person can do next."""

from __future__ import annotations

import shlex
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import UNSET

from errands.agents.exposed import exposed_values, incomplete_reason
from errands.cli.failures import ExitCode
from errands.cli.options import Remote
from errands.cli.terminal import Writer, clean, err, print_json
from errands.client import ClientResult, StreamEvent
from errands.client.text import text_pieces
from errands.model.core import Message, Part, TaskArtifactUpdateEvent, text_of
from errands.policy.reviews import asked_in

_FAILED = {"failed": "The task failed", "canceled": "The task was canceled", "rejected": "The agent declined"}
_CUT = {
    "length": "the model reached the greatest length of an answer",
    "content_filter": "the provider has held the rest back",
}
#: The field of a `StreamResponse` that holds an event of this kind.
_FIELDS = {"task": "task", "message": "message", "status": "statusUpdate", "artifact": "artifactUpdate"}


def exit_code_of(state: str) -> ExitCode:
    return ExitCode.FAILED if state in _FAILED else ExitCode.OK


def print_event(event: StreamEvent) -> None:
    """The event on one line: a `StreamResponse` of the protocol, and its id in the stream."""
    print_json({"eventId": event.event_id, _FIELDS[event.kind]: event.raw}, pretty=False)


def describe(part: Part) -> str | None:
    """A part that is no text, on one line."""
    if (values := exposed_values(part)) is not None:
        return ", ".join(f"{name}: {msgspec.json.encode(value).decode()}" for name, value in values.items()) or None
    if part.data is not UNSET:
        return msgspec.json.encode(part.data).decode()
    facts = [part.filename, part.media_type]
    if part.raw is not None:
        facts.append(f"{len(part.raw)} bytes")
    elif part.url is not None:
        facts.append(part.url)
    else:
        return None
    return f"[file: {', '.join(fact for fact in facts if fact)}]"


class AnswerTeller:
    """Tells an answer to a person at a terminal."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._writer = Writer()
        self._artifact_id: str | None = None
        #: Something of the answer was told while it arrived.
        self._told = False

    async def follow(self, events: AsyncGenerator[StreamEvent, None], *, continues: bool) -> None:
        """Tells what arrives; what ends the stream is left to `conclude`."""
        async with aclosing(text_pieces(self._watched(events), continues=continues)) as pieces:
            async for piece in pieces:
                self._writer.piece(piece)

    async def _watched(self, events: AsyncGenerator[StreamEvent, None]) -> AsyncGenerator[StreamEvent, None]:
        async with aclosing(events):
            async for event in events:
                if event.kind == "message" or (event.is_final and event.kind == "task" and not self._told):
                    continue
                self._tell_rest(event)
                self._told = True
                yield replace(event, is_final=False)

    def _tell_rest(self, event: StreamEvent) -> None:
        """Everything about an event but its text."""
        if isinstance(event.raw, TaskArtifactUpdateEvent):
            if event.artifact_id != self._artifact_id:
                self._writer.end()
            self._artifact_id = event.artifact_id
            for line in filter(None, map(describe, event.raw.artifact.parts)):
                self._writer.line(line)
        elif event.kind == "status" and event.state == "working" and event.text:
            self._writer.note(event.text)

    def conclude(self, result: ClientResult) -> ExitCode:
        """Tells the rest of the answer, and what it means."""
        if not self._told:
            for line in _whole(result):
                self._writer.line(line)
        self._writer.end()
        reason = _said(result) if result.raw_task is not None else ""
        if result.state in _FAILED:
            err().print(clean(f"{_FAILED[result.state]}: {reason}" if reason else f"{_FAILED[result.state]}."))
        elif reason and all(reason != artifact.text for artifact in result.artifacts):
            # An answer that was streamed as an artifact may stand in the status, too.
            self._writer.line(reason)
        if (why := incomplete_reason(_status_message(result))) is not None:
            err().print(clean(f"The answer is incomplete: {_CUT.get(why, why)}."))
        for part in _status_parts(result):
            if exposed_values(part) is not None and (values := describe(part)):
                err().print(clean(values), style="dim")
        self.advise(result)
        return exit_code_of(result.state)

    def advise(self, result: ClientResult) -> None:
        """Tells what the person can do next."""
        if result.input_required:
            self._advise_input(result)
        elif result.auth_required:
            self._advise_auth(result)
        elif result.state in ("submitted", "working"):
            err().print(f"The task is {result.state}. Follow it with:")
            err().print(f"  {self._command('tasks watch', result.task_id)}{self._credentials}")
        elif result.task_id:
            err().print(clean(f"{result.state}, task {result.task_id}, context {result.context_id}"), style="dim")

    def _advise_input(self, result: ClientResult) -> None:
        if (reviewer := _reviewer(result)) is not None:
            self._advise_review(result, reviewer)
            return
        wanted = _status_data(result)
        schema = wanted.get("schema") if isinstance(wanted, dict) else None
        if schema is not None:
            err().print(clean(f"The answer should fit: {msgspec.json.encode(schema).decode()}"), style="dim")
        data = " --data '{...}'" if isinstance(schema, dict) and schema.get("type") == "object" else ""
        err().print("The agent waits for your answer. Send it with:")
        err().print(f"  {self._command('send')} 'your answer'{data} --task {result.task_id}{self._credentials}")

    def _advise_review(self, result: ClientResult, reviewer: str) -> None:
        err().print(clean(f"The task waits for {reviewer}, who approves or denies it with:"))
        if self._remote.is_secured:
            for word in ("approve", "deny"):
                err().print(f"  {self._command('send', word)} --task {result.task_id} --token TOKEN")
            err().print("or, where the server keeps its tasks, with:")
        for word in ("approve", "deny"):
            err().print(clean(f"  errands reviews {word} {shlex.join([result.task_id, '--by', reviewer])}"))
        err().print("See what becomes of it with:")
        err().print(f"  {self._command('tasks watch', result.task_id)}{self._credentials}")

    def _advise_auth(self, result: ClientResult) -> None:
        wanted = _status_data(result)
        for name, label in (("schemes", "Accepted"), ("credentialsHint", "Wanted"), ("authUrl", "Get it at")):
            value = wanted.get(name) if isinstance(wanted, dict) else None
            if value:
                text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
                err().print(clean(f"{label}: {text}"), style="dim")
        err().print("The agent waits for your authorization. Send it with:")
        err().print(f"  {self._command('send')} 'go on' --task {result.task_id} --token TOKEN")

    def _command(self, command: str, *arguments: str) -> str:
        return f"errands {command} {shlex.join([self._remote.url, *arguments])}"

    @property
    def _credentials(self) -> str:
        return " --token TOKEN" if self._remote.is_secured else ""


def _whole(result: ClientResult) -> Iterator[str]:
    """An answer that came in one piece."""
    if result.raw_message is not None:
        yield from _lines(result.raw_message.parts)
    for artifact in result.artifacts:
        yield from _lines(artifact.parts)


def _lines(parts: list[Part]) -> Iterator[str]:
    if text := text_of(parts, ""):
        yield text
    yield from filter(None, map(describe, parts))


def _said(result: ClientResult) -> str:
    return text_of(_status_parts(result))


def _status_message(result: ClientResult) -> Message | None:
    return result.raw_task.status.message if result.raw_task is not None else None


def _status_parts(result: ClientResult) -> list[Part]:
    message = _status_message(result)
    return message.parts if message is not None else []


def _status_data(result: ClientResult) -> Any:
    return next((part.data for part in _status_parts(result) if part.data is not UNSET), None)


def _reviewer(result: ClientResult) -> str | None:
    """Whose review the task waits for, if it does."""
    message = _status_message(result)
    return asked_in(message) if message is not None else None
