"""Progress on stderr, in a terminal, of what takes longer than two seconds."""

from __future__ import annotations

import asyncio
import sys
from types import TracebackType
from typing import Self

from rich.status import Status

from errands.cli.printing import counted, err

#: Seconds before anything is shown.
PATIENCE = 2.0


class SlowWork:
    """An asynchronous context manager around work that may take long; `advance` counts what is done."""

    def __init__(self, doing: str, unit: str = "", *, prints: bool = False, patience: float = PATIENCE) -> None:
        """`doing` is a word such as "Exporting", `unit` what is counted, such as "task".

        Work that `prints` lines on stdout meanwhile shows no progress between them, if both go to a terminal.
        """
        self._is_shown = sys.stderr.isatty() and not (prints and sys.stdout.isatty())
        self._doing = doing
        self._unit = unit
        self._patience = patience
        self._count = 0
        self._shown: asyncio.Task[None] | None = None

    def advance(self, count: int = 1) -> None:
        """Note that so much more is done."""
        self._count += count

    async def __aenter__(self) -> Self:
        if self._is_shown:
            self._shown = asyncio.create_task(self._show())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown is not None:
            self._shown.cancel()
            await asyncio.wait([self._shown])

    async def _show(self) -> None:
        await asyncio.sleep(self._patience)
        with Status(self._words(), console=err()) as status:
            while True:
                await asyncio.sleep(0.1)
                status.update(self._words())

    def _words(self) -> str:
        return f"{self._doing}: {counted(self._count, self._unit)}" if self._unit else f"{self._doing} …"
