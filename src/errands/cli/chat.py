"""`errands chat`: talk with an agent in a terminal, turn after turn in one conversation."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import importlib
import mimetypes
import shlex
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import UNSET
from typer import Option

from errands.cli.failures import ExitCode, command, explained
from errands.cli.options import AllowOrigins, ApiKeyOption, Headers, RemoteAgent, Token, Url
from errands.cli.printing import clean, note, one_line
from errands.cli.send import AnswerPrinter, file_part, note_authorization
from errands.client import A2AClient, A2AClientError, BearerToken, ClientResult, StreamEvent, StreamInterruptedError
from errands.client.conversation import Conversation
from errands.errors import A2AError
from errands.model.core import Message, Part
from errands.policy.reviews import asked_in

_HELP = """/file PATH  attach a file to the next message; may be repeated
/new        begin a new conversation
/quit       leave; so does Ctrl-D
//text      a message that begins with a slash
Ctrl-C cancels the running task; pressed again, it leaves."""
#: Seconds between polls of an agent that does not stream, and between attempts to follow a task again.
_POLL = 0.3
_PAUSES = (1.0, 2.0, 5.0)
#: Bytes of the largest file that is saved.
_MOST_BYTES = 2**30
#: The types of a form's fields that are written as JSON.
_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


@command
def chat(
    url: Url,
    context: Annotated[str | None, Option(metavar="ID", help="Continue this conversation.")] = None,
    header: Headers = None,
    token: Token = None,
    api_key: ApiKeyOption = None,
    allow_origin: AllowOrigins = None,
) -> ExitCode:
    """Talk with an agent: answers are shown as they arrive, and questions are answered in place.

    /file PATH attaches a file, /new begins a new conversation, /quit leaves. Ctrl-C cancels the running task.

    Example:

        errands chat http://localhost:8000
    """
    remote = RemoteAgent(url, header, token, api_key, allow_origin)
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")  # history and editing for `input`
    with asyncio.Runner() as runner:
        # The user should soon see that a connection is lost; the chat itself keeps trying.
        terminal = ChatTerminal(runner, remote.client(max_retries=1), remote)
        try:
            return terminal.talk(context)
        finally:
            terminal.close()


class ChatTerminal:
    """The loop of a chat: reads lines between turns, and prints the answers.

    The event loop only runs during a turn. Ctrl-C then cancels the turn; pressed again, it interrupts the program. See
    `asyncio.Runner`.
    """

    def __init__(self, runner: asyncio.Runner, client: A2AClient, remote: RemoteAgent) -> None:
        self._runner = runner
        self._client = client
        self._remote = remote
        self._conversation = Conversation(client)
        self._is_terminal = sys.stdin.isatty()
        self._attached: list[Part] = []
        #: The files that were already offered: task, artifact or message, and position.
        self._offered: set[tuple[str, str, int]] = set()
        #: The task of the current turn, and the last of its events that was seen.
        self._task_id: str | None = None
        self._event_id: str | None = None
        #: The token that was entered when the agent asked for authorization.
        self._credentials: list[BearerToken] | None = None
        self._state = ""

    def talk(self, context_id: str | None) -> ExitCode:
        """Read lines until the user leaves."""
        self._runner.run(self._client.connect())
        self._conversation = self._client.conversation(context_id=context_id)
        if self._is_terminal:
            note(f"{self._client.agent_name}. /help shows what can be typed here.", "dim")
        try:
            while (line := self._ask("answer> " if self._is_waiting else "you> ")) is not None:
                if line == "/quit":
                    break
                self._handle(line)
        finally:
            if self._is_terminal and (context := self._conversation.context_id) is not None:
                token = " --token TOKEN" if self._remote.is_secured else ""
                url = shlex.quote(self._remote.url)
                note(f"Continue with: errands chat {url} --context {shlex.quote(context)}{token}", "dim")
        return ExitCode.OK

    def close(self) -> None:
        self._runner.run(self._client.close())

    @property
    def _is_waiting(self) -> bool:
        return self._state in ("input-required", "auth-required")

    def _ask(self, prompt: str) -> str | None:
        """Return the next line, or None at the end of the input. The prompt is shown in a terminal only."""
        try:
            return input(prompt if self._is_terminal else "").strip()
        except EOFError:
            if self._is_terminal:
                note("")
            return None

    def _handle(self, line: str) -> None:
        """Run the command in a line, or send it as a message."""
        word, _, rest = line.partition(" ")
        if not line and not self._attached:
            return
        if line.startswith("//"):
            self._say([Part(text=line[1:])])
        elif word == "/file":
            path = Path(rest.strip().strip("'\"")).expanduser()
            try:
                part = file_part(path)
            except OSError as error:
                note(f"{path} cannot be read ({error.strerror}).")
            else:
                self._attached.append(part)
                note(f"{part.filename} ({len(part.raw or b'')} bytes) is attached to the next message.", "dim")
        elif word == "/new":
            self._conversation, self._state, self._attached = self._client.conversation(), "", []
            note("A new conversation.", "dim")
        elif word == "/help":
            note(_HELP, "dim")
        elif line.startswith("/"):
            note(f"unknown command {word}: /help shows the commands, and // begins a message with a slash")
        else:
            self._say([Part(text=line)] if line else [])

    def _say(self, parts: list[Part]) -> None:
        """Send a message with the attached files, and continue while the agent asks the user to fill in a form."""
        wanted: list[Part] | None = [*parts, *self._attached]
        self._attached = []
        while wanted is not None:
            result = self._runner.run(self._turn(wanted))
            wanted = None if result is None else self._react(result)

    def _react(self, result: ClientResult) -> list[Part] | None:
        """Offer files, and ask the user for what the agent wants. Return the answer; None without a question."""
        self._offer_files(result)
        message = result.raw_task.status.message if result.raw_task is not None else None
        if message is None or not self._is_terminal:
            return None
        found = next((part.data for part in message.parts if part.data is not UNSET), None)
        wanted = found if isinstance(found, dict) else {}
        if result.auth_required:
            return self._authorize(wanted)
        if not result.input_required:
            return None
        if (reviewer := asked_in(message)) is not None:
            note(f"The task waits for {reviewer}: answer approve or deny, if that is you.", "dim")
            return None
        schema = wanted.get("schema")
        if isinstance(schema, dict):
            properties = schema.get("properties")
            if schema.get("type") == "object" and isinstance(properties, dict) and properties:
                value = self._fill(properties, _list(schema.get("required")))
                return None if value is None else [Part(data=value, media_type="application/json")]
            note(f"The answer should match: {msgspec.json.encode(schema).decode()}", "dim")
        return None

    # Turns, on the event loop

    async def _turn(self, parts: list[Part]) -> ClientResult | None:
        """Send a message and follow its task. Return None if it was canceled, or if the agent could not be asked."""
        self._task_id, self._event_id = None, None
        try:
            result = await self._exchange(parts)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            await self._cancel()
            return None
        except (A2AError, A2AClientError) as error:
            note(explained(error), "red")
            return None
        self._state = result.state
        return result

    async def _exchange(self, parts: list[Part]) -> ClientResult:
        printer, conversation = AnswerPrinter(), self._conversation
        continues = self._is_waiting
        if not self._client.capabilities.streaming:
            result = await conversation.send(parts, blocking=False, credentials=self._credentials)
            self._task_id = result.task_id
            while result.state in ("submitted", "working"):
                await asyncio.sleep(_POLL)
                result = await self._client.get_task(result.task_id, credentials=self._credentials)
            self._continue_after(result)
        else:
            try:
                events = conversation.stream(parts, credentials=self._credentials)
                await printer.follow(self._noted(events), continues=continues)
                result = conversation.history[-1].result
            except StreamInterruptedError as error:
                result = await self._follow_again(error, printer)
        printer.conclude(result)
        return result

    async def _noted(self, events: AsyncGenerator[StreamEvent, None]) -> AsyncGenerator[StreamEvent, None]:
        """Pass events on, and remember their task and the last event."""
        async with aclosing(events):
            async for event in events:
                self._task_id = event.task_id or self._task_id
                self._event_id = event.event_id or self._event_id
                yield event

    async def _follow_again(self, error: StreamInterruptedError, printer: AnswerPrinter) -> ClientResult:
        """Follow a task whose stream broke off. Try again until the agent can be reached."""
        self._task_id, last = error.task_id, error.last_event_id
        tries = 0
        while True:
            pause = _PAUSES[min(tries, len(_PAUSES) - 1)]
            note(f"The connection was lost; trying again in {pause:g} s. Ctrl-C cancels the task.", "dim")
            await asyncio.sleep(pause)
            tries += 1
            try:
                events = self._client.subscribe(error.task_id, last_event_id=last, credentials=self._credentials)
                await printer.follow(self._noted(_until_settled(events)), continues=True)
                result = await self._client.get_task(error.task_id, credentials=self._credentials)
            except A2AClientError:
                last = self._event_id or last
            else:
                self._continue_after(result)
                return result

    def _continue_after(self, result: ClientResult) -> None:
        """Continue the conversation after a task that was followed in another way than by its own stream."""
        waits = result.input_required or result.auth_required
        self._conversation = self._client.conversation(
            context_id=result.context_id or self._conversation.context_id, task_id=result.task_id if waits else None
        )

    async def _cancel(self) -> None:
        """Cancel the task of the turn, and say how it ended."""
        sys.stdout.write("\n")
        self._state = ""
        if self._task_id is None:
            note("Stopped. The agent has not answered yet and may still work: see `errands tasks list URL`.", "dim")
            return
        note("Canceling. Ctrl-C leaves at once.", "dim")
        try:
            result = await self._client.cancel(self._task_id, credentials=self._credentials)
        except (A2AError, A2AClientError) as error:
            note(explained(error), "red")
            return
        self._continue_after(result)
        note(f"The task is {result.state}.")

    # What the agent asks for and sends, between turns

    def _authorize(self, wanted: dict[str, Any]) -> list[Part] | None:
        """Ask for a token. Without one, the user has authorized the task elsewhere."""
        note_authorization(wanted)
        try:
            token = getpass.getpass("token (not shown; empty to continue without one)> ").strip()
        except EOFError:
            return None
        if token:
            self._credentials = [BearerToken(token)]
        return [Part(text="go on")]

    def _fill(self, properties: dict[str, Any], required: list[Any]) -> dict[str, Any] | None:
        """Ask for each property of an object. Return None at the end of the input. The schema comes from the agent."""
        filled: dict[str, Any] = {}
        for name, field in properties.items():
            field = field if isinstance(field, dict) else {}
            kind = str(field.get("type", "any"))
            if choices := _list(field.get("enum")):
                kind = " | ".join(map(str, choices))
            label = one_line(f"{name} ({kind}{'' if name in required else ', optional'})", 100)
            if description := field.get("description"):
                note(one_line(str(description), 200), "dim")
            while True:
                text = self._ask(f"{label}> ")
                if text is None:
                    return None
                if not text and name not in required:
                    break
                try:
                    filled[name] = _read_field(text, field)
                    break
                except ValueError as error:
                    note(f"{name} {error}")
        return filled

    def _offer_files(self, result: ClientResult) -> None:
        message = result.raw_message or (result.raw_task.status.message if result.raw_task is not None else None)
        sources = [(artifact.artifact_id, artifact.parts) for artifact in result.artifacts]
        if isinstance(message, Message):
            sources.append((message.message_id, message.parts))
        for source, parts in sources:
            for position, part in enumerate(parts):
                place = result.task_id, source, position
                if (part.raw is None and part.url is None) or place in self._offered:
                    continue
                self._offered.add(place)
                path, size = _free_path(part), f" ({len(part.raw)} bytes)" if part.raw is not None else ""
                question = f"save {path.name}{size} in this folder? [y/N] "
                if not self._is_terminal or (self._ask(question) or "").lower() not in ("y", "yes"):
                    continue
                saving = self._client.download_to(part, path, max_bytes=_MOST_BYTES, credentials=self._credentials)
                try:
                    self._runner.run(saving)
                except (A2AError, A2AClientError) as error:
                    note(explained(error), "red")
                except OSError as error:
                    note(f"{path} cannot be written ({error.strerror}).")
                else:
                    note(f"Saved as {path}.", "dim")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


async def _until_settled(events: AsyncGenerator[StreamEvent, None]) -> AsyncGenerator[StreamEvent, None]:
    """Pass events on until the turn is over, because a subscription continues while a task is paused."""
    async with aclosing(events):
        async for event in events:
            yield event
            if event.is_final and event.kind != "artifact":
                return


def _read_field(text: str, field: dict[str, Any]) -> Any:
    """Return the value that was typed for a field. Raises `ValueError` that says what is expected."""
    if choices := _list(field.get("enum")):
        for choice in choices:
            if text == str(choice):
                return choice
        raise ValueError(f"is one of {', '.join(map(str, choices))}")
    kind = field.get("type")
    if kind == "string":
        if not text:
            raise ValueError("is needed")
        return text
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        if kind is None:
            return text
        raise ValueError(f"is of type {kind}, such as {_SAMPLES.get(str(kind), 'null')}") from None
    expected = _JSON_TYPES.get(str(kind))
    if expected is not None and (not isinstance(value, expected) or (isinstance(value, bool) and kind != "boolean")):
        raise ValueError(f"is of type {kind}, such as {_SAMPLES[str(kind)]}")
    return value


_SAMPLES = {"integer": "3", "number": "2.5", "boolean": "true", "array": '["a", "b"]', "object": '{"a": 1}'}


def _free_path(part: Part) -> Path:
    """Return the path of a new file in this folder for a file from the agent, whose name is not trusted."""
    name = " ".join(clean(part.filename or "").replace("\\", "/").rpartition("/")[2].split()).lstrip(".")
    # Systems allow names of 255 bytes; a number and the suffix of an unfinished file are added.
    name = name[:100].encode()[:200].decode(errors="ignore")
    if not name:
        name = f"file{mimetypes.guess_extension(part.media_type or '') or ''}"
    path, number = Path(name), 1
    while path.exists():
        path = path.with_name(f"{Path(name).stem}-{number}{Path(name).suffix}")
        number += 1
    return path
