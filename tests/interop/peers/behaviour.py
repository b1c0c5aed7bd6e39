"""What the agent of the interoperability tests does, written once for every SDK it is served with.

An SDK is brought in as a `Turn`. Like `conversation`, this imports nothing but the standard library.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from typing import Protocol

NAME = "Interop"
DESCRIPTION = "Does what the first word of a message says."
#: Seconds between two signs of life of a held task.
TICK_S = 0.02


class Turn(Protocol):
    """One message to the agent and the means to answer it."""

    @property
    def first_text(self) -> str | None:
        """What the task began with, when this is not its first message."""

    @property
    def text(self) -> str: ...
    @property
    def parts(self) -> list[dict[str, str]]:
        """The message's parts, in the words of `conversation`."""

    @property
    def is_cancelled(self) -> bool: ...

    async def artifact(self, name: str, part: dict[str, str], *, append: bool = False, last: bool = True) -> None: ...
    async def status(self, text: str) -> None: ...
    async def complete(self) -> None: ...
    async def ask(self, question: str) -> None: ...
    async def reply(self, text: str) -> None:
        """Answers with a message instead of a task."""

    async def fail(self, reason: str) -> None: ...


class Behaviour:
    def __init__(self) -> None:
        self._released: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def act(self, turn: Turn) -> None:
        if turn.first_text is not None:
            await turn.artifact("answer", {"text": f"{turn.first_text}: {turn.text}"})
            await turn.complete()
            return
        command, _, rest = turn.text.partition(" ")
        await getattr(self, f"_{command}")(turn, rest)

    async def _echo(self, turn: Turn, rest: str) -> None:
        await turn.artifact("answer", {"text": f"Echo: {rest}"})
        await turn.complete()

    async def _stream(self, turn: Turn, rest: str) -> None:
        last = int(rest) - 1
        for index in range(last + 1):
            await turn.artifact("answer", {"text": f"{index} "}, append=index > 0, last=index == last)
        await turn.complete()

    async def _ask(self, turn: Turn, _rest: str) -> None:
        await turn.ask("Which city?")

    async def _direct(self, turn: Turn, _rest: str) -> None:
        await turn.reply("Directly")

    async def _fail(self, turn: Turn, _rest: str) -> None:
        await turn.fail("It went wrong")

    async def _hold(self, turn: Turn, rest: str) -> None:
        """Works until another task releases it, or until it is cancelled."""
        await turn.artifact("answer", {"text": "held"})
        while not self._released[rest].is_set():
            if turn.is_cancelled:
                return
            await turn.status("held")
            await asyncio.sleep(TICK_S)
        await turn.complete()

    async def _rest(self, turn: Turn, rest: str) -> None:
        """As `_hold`, without a sign of life."""
        await turn.artifact("answer", {"text": "held"})
        while not self._released[rest].is_set() and not turn.is_cancelled:
            await asyncio.sleep(TICK_S)
        await turn.complete()

    async def _release(self, turn: Turn, rest: str) -> None:
        self._released[rest].set()
        await turn.complete()

    async def _parts(self, turn: Turn, _rest: str) -> None:
        """Shows what it saw of the data, and gives every part back."""
        seen = next(part["data"] for part in turn.parts if "data" in part)
        await turn.artifact("seen", {"text": json.dumps(json.loads(seen), sort_keys=True)})
        for number, part in enumerate(turn.parts):
            await turn.artifact(f"part-{number}", part)
        await turn.complete()

    async def _files(self, turn: Turn, _rest: str) -> None:
        for number, part in enumerate(part for part in turn.parts if "raw" in part):
            await turn.artifact(f"file-{number}", part)
        await turn.complete()
