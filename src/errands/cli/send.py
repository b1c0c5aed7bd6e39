"""`errands send`: a message to an agent, and its answer."""

from __future__ import annotations

import mimetypes
import sys
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from errands.cli.answers import AnswerTeller, exit_code_of, print_event
from errands.cli.failures import ExitCode, UsageError, run
from errands.cli.options import AsJson, Headers, Remote, Timeout, Token, Url
from errands.cli.terminal import clean, out, print_json
from errands.client import A2AClient, AgentCapabilityError, ClientResult
from errands.client.compose import MessageOptions
from errands.model.core import Part

Text = Annotated[
    str | None, typer.Argument(metavar="TEXT", help="What to say; - reads it from stdin.", show_default=False)
]
Task = Annotated[str | None, typer.Option("--task", metavar="ID", help="Answer this task, which waits for it.")]
Context = Annotated[str | None, typer.Option("--context", metavar="ID", help="Say it in this conversation.")]
Files = Annotated[
    list[Path] | None,
    typer.Option("--file", metavar="PATH", exists=True, dir_okay=False, help="Send this file; several are possible."),
]
Data = Annotated[
    list[str] | None, typer.Option("--data", metavar="JSON", help="Send this JSON value; several are possible.")
]
Accept = Annotated[
    list[str] | None, typer.Option("--accept", metavar="TYPE", help="Accept this media type; several are possible.")
]
MessageId = Annotated[
    str | None,
    typer.Option("--message-id", metavar="ID", help="Send a message again that may not have arrived: by its id."),
]
Stream = Annotated[
    bool | None,
    typer.Option(
        "--stream/--no-stream", help="Insist on streaming or on one answer.", show_default="as the agent does"
    ),
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Print the task's id as soon as the message is accepted.")]


@dataclass(frozen=True)
class Outgoing:
    """What to send, and how to show what comes back."""

    parts: list[Part]
    options: MessageOptions
    #: None: as the agent does.
    stream: bool | None
    wait: bool
    as_json: bool


def send(
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
) -> None:
    """Send a message to an agent and show its answer as it arrives.

    With --json the final task or message is printed, with --stream --json one event a line.

    Example:

        errands send http://localhost:8000 "hello"
    """
    options = MessageOptions(
        task_id=task, context_id=context, accepted_output_modes=accept or None, message_id=message_id
    )
    run(_send(Remote(url, header, token), text, file or [], data or [], options, stream, not no_wait, as_json), timeout)


async def _send(
    remote: Remote,
    text: str | None,
    files: list[Path],
    data: list[str],
    options: MessageOptions,
    stream: bool | None,
    wait: bool,
    as_json: bool,
) -> ExitCode:
    if stream and not wait:
        raise UsageError("--no-wait and --stream exclude each other: a stream is followed until the turn ends")
    outgoing = Outgoing(parts_of(text, files, data), options, stream, wait, as_json)
    async with remote.client() as client:
        if stream and not client.capabilities.streaming:
            raise AgentCapabilityError(client.agent_name, "streaming")
        if as_json:
            return await _print(client, outgoing)
        return await _tell(client, outgoing, AnswerTeller(remote))


def parts_of(text: str | None, files: list[Path], data: list[str]) -> list[Part]:
    """The message in parts: text first, then JSON values, then files. Raises `UsageError`."""
    if text == "-":
        text = sys.stdin.read()
    parts = [] if text is None else [Part(text=text)]
    parts += [Part(data=_parse(value), media_type="application/json") for value in data]
    for path in files:
        media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        parts.append(Part(raw=path.read_bytes(), filename=path.name, media_type=media_type))
    if not parts:
        raise UsageError('there is nothing to send: add a text such as "hello", --file PATH or --data JSON')
    return parts


def _parse(value: str) -> object:
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError as error:
        raise UsageError(f"--data {value!r} is not JSON ({error}); quote it as in --data '{{\"a\": 1}}'") from None


async def _print(client: A2AClient, outgoing: Outgoing) -> ExitCode:
    """For other programs."""
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


async def _tell(client: A2AClient, outgoing: Outgoing, teller: AnswerTeller) -> ExitCode:
    """For people."""
    if not outgoing.wait:
        result = await client.send(outgoing.parts, blocking=False, **outgoing.options)
        out().print(clean(result.task_id))
        teller.advise(result)
        return exit_code_of(result.state)
    streams = client.capabilities.streaming if outgoing.stream is None else outgoing.stream
    if not streams:
        return teller.conclude(await client.send(outgoing.parts, **outgoing.options))
    return teller.conclude(await _follow(client, outgoing, teller))


async def _follow(client: A2AClient, outgoing: Outgoing, teller: AnswerTeller) -> ClientResult:
    conversation = client.conversation()
    events = conversation.stream(outgoing.parts, **outgoing.options)
    await teller.follow(events, continues=outgoing.options.get("task_id") is not None)
    return conversation.history[-1].result
