"""`errands send`: send a message to an agent, and print its answer as it arrives and what to do next."""

from __future__ import annotations

import mimetypes
import shlex
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import UNSET
from typer import Argument, Option

from errands.cli.failures import ExitCode, UsageError, command, exit_code_of
from errands.cli.options import AllowOrigins, ApiKeyOption, AsJson, Headers, RemoteAgent, Timeout, Token, Url
from errands.cli.printing import clean, describe_part, lines_of, note, out, print_event, print_json
from errands.client import AgentCapabilityError, ClientResult, StreamEvent
from errands.client.conversation import MessageOptions
from errands.client.results import text_pieces
from errands.model.core import Part, TaskArtifactUpdateEvent, text_of
from errands.model.marks import exposed_values, incomplete_reason
from errands.policy.reviews import asked_in

_ENDED_BADLY = {"failed": "The task failed", "canceled": "The task was canceled", "rejected": "The agent declined"}
_INCOMPLETE = {
    "length": "the model reached its greatest answer length",
    "content_filter": "the model provider withheld the rest",
}


@command
async def send(
    url: Url,
    text: Annotated[str | None, Argument(metavar="TEXT", help="The message; - reads it from stdin.")] = None,
    task: Annotated[str | None, Option(metavar="ID", help="Answer this task, which waits for input.")] = None,
    context: Annotated[str | None, Option(metavar="ID", help="Send it in this context.")] = None,
    file: Annotated[
        list[Path] | None, Option(metavar="PATH", exists=True, dir_okay=False, help="Send this file; may be repeated.")
    ] = None,
    data: Annotated[list[str] | None, Option(metavar="JSON", help="Send this JSON value; may be repeated.")] = None,
    accept: Annotated[list[str] | None, Option(metavar="TYPE", help="Accept this media type; may be repeated.")] = None,
    message_id: Annotated[
        str | None, Option(metavar="ID", help="Repeat the message with this id, which may not have arrived.")
    ] = None,
    stream: Annotated[
        bool | None,
        Option("--stream/--no-stream", help="Require streaming, or a single answer.", show_default="as the agent does"),
    ] = None,
    no_wait: Annotated[
        bool, Option("--no-wait", help="Print the task's id as soon as the message is accepted.")
    ] = False,
    as_json: AsJson = False,
    header: Headers = None,
    token: Token = None,
    api_key: ApiKeyOption = None,
    allow_origin: AllowOrigins = None,
    timeout: Timeout = None,
) -> ExitCode:
    """Send a message to an agent and show its answer as it arrives.

    With --json the final task or message is printed, with --stream --json one event per line.

    Example:

        errands send http://localhost:8000 "hello"
    """
    if stream and no_wait:
        raise UsageError("--no-wait and --stream exclude each other: a stream is followed until the turn ends")
    parts = _parts_of(text, file or [], data or [])
    options = MessageOptions(
        task_id=task, context_id=context, accepted_output_modes=accept or None, message_id=message_id
    )
    remote = RemoteAgent(url, header, token, api_key, allow_origin)
    printer = AnswerPrinter()
    async with remote.client() as client:
        asked = client.wanted_credentials
        can_stream = client.capabilities.streaming
        if stream and not can_stream:
            raise AgentCapabilityError(client.agent_name, "streaming")
        if stream and as_json:
            state = ""
            async with aclosing(client.stream(parts, **options)) as events:
                async for event in events:
                    print_event(event)
                    state = event.state or state
            return exit_code_of(state)
        if can_stream and stream is not False and not as_json and not no_wait:
            conversation = client.conversation()
            await printer.follow(conversation.stream(parts, **options), continues=task is not None)
            result = conversation.history[-1].result
        else:
            result = await client.send(parts, blocking=not no_wait, **options)
    if as_json:
        print_json(result.raw_task or result.raw_message)
    else:
        if no_wait:
            out().print(clean(result.task_id))
        else:
            printer.conclude(result)
        _advise(result, remote, asked)
    return exit_code_of(result.state)


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
    parts += map(file_part, files)
    if not parts:
        raise UsageError('there is nothing to send: add a text such as "hello", --file PATH or --data JSON')
    return parts


def file_part(path: Path) -> Part:
    """Return a file as it is sent. Raises `OSError`."""
    media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return Part(raw=path.read_bytes(), filename=path.name, media_type=media_type)


class AnswerPrinter:
    """Prints an answer for a person at a terminal, as it arrives."""

    def __init__(self) -> None:
        self._is_in_line = False
        self._artifact_id: str | None = None
        #: Whether something of the answer was printed while it arrived.
        self._has_printed = False

    async def follow(self, events: AsyncGenerator[StreamEvent, None], *, continues: bool) -> None:
        """Print events as they arrive; the event that ends the stream is left to `conclude`."""
        async with aclosing(text_pieces(self._watched(events), continues=continues)) as pieces:
            async for piece in pieces:
                self._piece(piece)

    async def _watched(self, events: AsyncGenerator[StreamEvent, None]) -> AsyncGenerator[StreamEvent, None]:
        """Pass the events on, and print everything about them but their text."""
        async with aclosing(events):
            async for event in events:
                if event.kind == "message" or (event.is_final and event.kind == "task" and not self._has_printed):
                    continue
                if isinstance(event.raw, TaskArtifactUpdateEvent):
                    if event.artifact_id != self._artifact_id:
                        self._end()
                    self._artifact_id = event.artifact_id
                    for line in filter(None, map(describe_part, event.raw.artifact.parts)):
                        self._line(line)
                elif event.kind == "status" and event.state == "working" and event.text:
                    if sys.stdout.isatty():
                        self._end()
                    note(event.text, "dim")
                self._has_printed = True
                yield replace(event, is_final=False)

    def conclude(self, result: ClientResult) -> None:
        """Print the rest of the answer and its outcome."""
        if not self._has_printed:
            direct = [result.raw_message.parts] if result.raw_message is not None else []
            for parts in (*direct, *(artifact.parts for artifact in result.artifacts)):
                for line in lines_of(parts):
                    self._line(line)
        self._end()
        message = result.raw_task.status.message if result.raw_task is not None else None
        parts = message.parts if message is not None else []
        reason = text_of(parts)
        if result.state in _ENDED_BADLY:
            outcome = _ENDED_BADLY[result.state]
            note(f"{outcome}: {reason}" if reason else f"{outcome}.")
        elif reason and all(reason != artifact.text for artifact in result.artifacts):
            # An answer that was streamed as an artifact may be in the status, too.
            self._line(reason)
        if (why := incomplete_reason(message)) is not None:
            note(f"The answer is incomplete: {_INCOMPLETE.get(why, why)}.")
        for part in parts:
            if exposed_values(part) is not None and (values := describe_part(part)):
                note(values, "dim")

    def _piece(self, text: str) -> None:
        text = clean(text)
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._is_in_line = not text.endswith("\n")

    def _line(self, text: str) -> None:
        self._end()
        self._piece(text + "\n")

    def _end(self) -> None:
        if self._is_in_line:
            self._piece("\n")


def note_authorization(wanted: dict[str, Any]) -> None:
    """Print how an agent wants the user to authorize the task."""
    for name, label in (("schemes", "Accepted"), ("credentialsHint", "Wanted"), ("authUrl", "Get it at")):
        if value := wanted.get(name):
            note(f"{label}: {', '.join(map(str, value)) if isinstance(value, list) else value}", "dim")


def _advise(result: ClientResult, remote: RemoteAgent, asked: str) -> None:
    """Print what the person can do next; `asked` are the credentials that the card asks for."""
    url, task_id = shlex.quote(remote.url), shlex.quote(result.task_id)
    # Credentials are never printed.
    token = " --token TOKEN" if remote.is_secured else ""
    watch = f"  errands tasks watch {url} {task_id}{token}"
    message = result.raw_task.status.message if result.raw_task is not None else None
    found = next((part.data for part in (message.parts if message else []) if part.data is not UNSET), None)
    wanted = found if isinstance(found, dict) else {}
    if result.input_required and message is not None and (reviewer := asked_in(message)) is not None:
        note(f"The task waits for {reviewer}, who approves or denies it with:")
        if remote.is_secured:
            for word in ("approve", "deny"):
                note(f"  errands send {url} {word} --task {task_id}{token}")
            note("or, with access to the server's task store, with:")
        for word in ("approve", "deny"):
            note(f"  errands reviews {word} {task_id} --by {shlex.quote(reviewer)}")
        note("Follow the task with:")
        note(watch)
    elif result.input_required:
        schema = wanted.get("schema")
        if schema is not None:
            note(f"The answer should match: {msgspec.json.encode(schema).decode()}", "dim")
        data = " --data '{...}'" if isinstance(schema, dict) and schema.get("type") == "object" else ""
        note("The agent waits for your answer. Send it with:")
        note(f"  errands send {url} 'your answer'{data} --task {task_id}{token}")
    elif result.auth_required:
        note_authorization(wanted)
        if asked:
            note(f"The card asks for {asked}", "dim")
        note("The agent waits for your authorization. Send it with:")
        note(f"  errands send {url} 'go on' --task {task_id} --token TOKEN")
    elif result.state in ("submitted", "working"):
        note(f"The task is {result.state}. Follow it with:")
        note(watch)
    elif result.task_id:
        note(f"{result.state}, task {result.task_id}, context {result.context_id}", "dim")
