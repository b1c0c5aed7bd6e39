"""`errands send`: send a message to an agent, and print its answer as it arrives and what to do next."""

from __future__ import annotations

import mimetypes
import shlex
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from msgspec import UNSET

from errands.agents.exposed import exposed_values, incomplete_reason
from errands.cli.failures import ExitCode, UsageError, command, exit_code_of
from errands.cli.options import AsJson, Headers, RemoteAgent, Timeout, Token, Url
from errands.cli.printing import StreamPrinter, clean, describe_part, err, out, print_event, print_json
from errands.client import A2AClient, AgentCapabilityError, ClientResult, StreamEvent
from errands.client.conversation import MessageOptions
from errands.client.results import text_pieces
from errands.model.core import Message, Part, TaskArtifactUpdateEvent, text_of
from errands.policy.reviews import asked_in

Text = Annotated[
    str | None, typer.Argument(metavar="TEXT", help="The message; - reads it from stdin.", show_default=False)
]
Task = Annotated[str | None, typer.Option("--task", metavar="ID", help="Answer this task, which waits for input.")]
Context = Annotated[str | None, typer.Option("--context", metavar="ID", help="Send it in this context.")]
Files = Annotated[
    list[Path] | None,
    typer.Option("--file", metavar="PATH", exists=True, dir_okay=False, help="Send this file; may be repeated."),
]
Data = Annotated[
    list[str] | None, typer.Option("--data", metavar="JSON", help="Send this JSON value; may be repeated.")
]
Accept = Annotated[
    list[str] | None, typer.Option("--accept", metavar="TYPE", help="Accept this media type; may be repeated.")
]
MessageId = Annotated[
    str | None,
    typer.Option("--message-id", metavar="ID", help="Repeat the message with this id, which may not have arrived."),
]
Stream = Annotated[
    bool | None,
    typer.Option(
        "--stream/--no-stream", help="Require streaming, or a single answer.", show_default="as the agent does"
    ),
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Print the task's id as soon as the message is accepted.")]

_ENDED_BADLY = {"failed": "The task failed", "canceled": "The task was canceled", "rejected": "The agent declined"}
_INCOMPLETE = {
    "length": "the model reached its greatest answer length",
    "content_filter": "the model provider withheld the rest",
}


@dataclass(frozen=True)
class OutgoingMessage:
    """A message to send, and how to wait for the answer."""

    parts: list[Part]
    options: MessageOptions
    #: None: as the agent does.
    stream: bool | None
    wait: bool


@command
async def send(
    url: Url,
    text: Text = None,
    task: Task = None,
    context: Context = None,
    file: Files = None,
    data: Data = None,
    accept: Accept = None,
    message_id: MessageId = None,
    stream: Stream = None,
    no_wait: NoWait = False,
    as_json: AsJson = False,
    header: Headers = None,
    token: Token = None,
    timeout: Timeout = None,
) -> ExitCode:
    """Send a message to an agent and show its answer as it arrives.

    With --json the final task or message is printed, with --stream --json one event per line.

    Example:

        errands send http://localhost:8000 "hello"
    """
    if stream and no_wait:
        raise UsageError("--no-wait and --stream exclude each other: a stream is followed until the turn ends")
    options = MessageOptions(
        task_id=task, context_id=context, accepted_output_modes=accept or None, message_id=message_id
    )
    outgoing = OutgoingMessage(_parts_of(text, file or [], data or []), options, stream, not no_wait)
    remote = RemoteAgent(url, header, token)
    async with remote.client() as client:
        if stream and not client.capabilities.streaming:
            raise AgentCapabilityError(client.agent_name, "streaming")
        if as_json:
            return await _print_json_answer(client, outgoing)
        return await _print_answer(client, outgoing, AnswerPrinter(remote))


def _parts_of(text: str | None, files: list[Path], data: list[str]) -> list[Part]:
    """Return the parts of the message: text first, then JSON values, then files. Raises `UsageError`."""
    if text == "-":
        text = sys.stdin.read()
    parts = [] if text is None else [Part(text=text)]
    for value in data:
        try:
            parts.append(Part(data=msgspec.json.decode(value), media_type="application/json"))
        except msgspec.DecodeError as error:
            raise UsageError(f"--data {value!r} is not JSON ({error}); quote it as in --data '{{\"a\": 1}}'") from None
    for path in files:
        media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        parts.append(Part(raw=path.read_bytes(), filename=path.name, media_type=media_type))
    if not parts:
        raise UsageError('there is nothing to send: add a text such as "hello", --file PATH or --data JSON')
    return parts


async def _print_json_answer(client: A2AClient, outgoing: OutgoingMessage) -> ExitCode:
    if outgoing.stream:
        state = ""
        async with aclosing(client.stream(outgoing.parts, **outgoing.options)) as events:
            async for event in events:
                print_event(event)
                state = event.state or state
        return exit_code_of(state)
    result = await client.send(outgoing.parts, blocking=outgoing.wait, **outgoing.options)
    print_json(result.raw_task or result.raw_message)
    return exit_code_of(result.state)


async def _print_answer(client: A2AClient, outgoing: OutgoingMessage, printer: AnswerPrinter) -> ExitCode:
    if not outgoing.wait:
        result = await client.send(outgoing.parts, blocking=False, **outgoing.options)
        out().print(clean(result.task_id))
        printer.advise(result)
        return exit_code_of(result.state)
    streams = client.capabilities.streaming if outgoing.stream is None else outgoing.stream
    if not streams:
        return printer.conclude(await client.send(outgoing.parts, **outgoing.options))
    conversation = client.conversation()
    events = conversation.stream(outgoing.parts, **outgoing.options)
    await printer.follow(events, continues=outgoing.options.get("task_id") is not None)
    return printer.conclude(conversation.history[-1].result)


class AnswerPrinter:
    """Prints an answer for a person at a terminal."""

    def __init__(self, remote: RemoteAgent) -> None:
        self._remote = remote
        self._printer = StreamPrinter()
        self._artifact_id: str | None = None
        #: Whether something of the answer was printed while it arrived.
        self._has_printed = False

    async def follow(self, events: AsyncGenerator[StreamEvent, None], *, continues: bool) -> None:
        """Print events as they arrive; the event that ends the stream is left to `conclude`."""
        async with aclosing(text_pieces(self._watched(events), continues=continues)) as pieces:
            async for piece in pieces:
                self._printer.piece(piece)

    async def _watched(self, events: AsyncGenerator[StreamEvent, None]) -> AsyncGenerator[StreamEvent, None]:
        """Pass the events on, and print everything about them but their text."""
        async with aclosing(events):
            async for event in events:
                if event.kind == "message" or (event.is_final and event.kind == "task" and not self._has_printed):
                    continue
                if isinstance(event.raw, TaskArtifactUpdateEvent):
                    if event.artifact_id != self._artifact_id:
                        self._printer.end()
                    self._artifact_id = event.artifact_id
                    for line in filter(None, map(describe_part, event.raw.artifact.parts)):
                        self._printer.line(line)
                elif event.kind == "status" and event.state == "working" and event.text:
                    self._printer.note(event.text)
                self._has_printed = True
                yield replace(event, is_final=False)

    def conclude(self, result: ClientResult) -> ExitCode:
        """Print the rest of the answer, its outcome and what to do next."""
        if not self._has_printed:
            for line in _whole_answer(result):
                self._printer.line(line)
        self._printer.end()
        message = _status_message(result)
        parts = message.parts if message is not None else []
        reason = text_of(parts)
        if result.state in _ENDED_BADLY:
            outcome = _ENDED_BADLY[result.state]
            err().print(clean(f"{outcome}: {reason}" if reason else f"{outcome}."))
        elif reason and all(reason != artifact.text for artifact in result.artifacts):
            # An answer that was streamed as an artifact may be in the status, too.
            self._printer.line(reason)
        if (why := incomplete_reason(message)) is not None:
            err().print(clean(f"The answer is incomplete: {_INCOMPLETE.get(why, why)}."))
        for part in parts:
            if exposed_values(part) is not None and (values := describe_part(part)):
                err().print(clean(values), style="dim")
        self.advise(result)
        return exit_code_of(result.state)

    def advise(self, result: ClientResult) -> None:
        """Print what the person can do next."""
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
        message = _status_message(result)
        reviewer = asked_in(message) if message is not None else None
        if reviewer is not None:
            self._advise_review(result, reviewer)
            return
        wanted = _status_data(result)
        schema = wanted.get("schema") if isinstance(wanted, dict) else None
        if schema is not None:
            err().print(clean(f"The answer should match: {msgspec.json.encode(schema).decode()}"), style="dim")
        data = " --data '{...}'" if isinstance(schema, dict) and schema.get("type") == "object" else ""
        err().print("The agent waits for your answer. Send it with:")
        err().print(f"  {self._command('send')} 'your answer'{data} --task {result.task_id}{self._credentials}")

    def _advise_review(self, result: ClientResult, reviewer: str) -> None:
        err().print(clean(f"The task waits for {reviewer}, who approves or denies it with:"))
        if self._remote.is_secured:
            for word in ("approve", "deny"):
                err().print(f"  {self._command('send', word)} --task {result.task_id} --token TOKEN")
            err().print("or, with access to the server's task store, with:")
        for word in ("approve", "deny"):
            err().print(clean(f"  errands reviews {word} {shlex.join([result.task_id, '--by', reviewer])}"))
        err().print("Follow the task with:")
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


def _whole_answer(result: ClientResult) -> Iterator[str]:
    """Yield the lines of an answer that arrived at once."""
    lists = [result.raw_message.parts] if result.raw_message is not None else []
    for parts in (*lists, *(artifact.parts for artifact in result.artifacts)):
        if text := text_of(parts, ""):
            yield text
        yield from filter(None, map(describe_part, parts))


def _status_message(result: ClientResult) -> Message | None:
    return result.raw_task.status.message if result.raw_task is not None else None


def _status_data(result: ClientResult) -> Any:
    message = _status_message(result)
    return next((part.data for part in (message.parts if message else []) if part.data is not UNSET), None)
