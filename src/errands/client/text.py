"""The text of a stream, piece by piece."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from errands.client.result import ArtifactInfo, StreamEvent
from errands.model.core import Task, text_of


async def text_pieces(events: AsyncGenerator[StreamEvent, None], *, continues: bool) -> AsyncGenerator[str, None]:
    """Artifact text as it comes; the words of the last status or message when there was no artifact text.

    `continues`: the stream continues a task, whose text from before is not told again.
    """
    teller = _Teller(continues)
    async with aclosing(events):
        async for event in events:
            for piece in teller.tell(event):
                yield piece


class _Teller:
    def __init__(self, continues: bool) -> None:
        self._skip_first_snapshot = continues
        self._told: dict[str, list[str]] = {}
        self._has_told = False

    def tell(self, event: StreamEvent) -> Iterator[str]:
        skip, self._skip_first_snapshot = self._skip_first_snapshot and not event.is_final, False
        if event.kind == "artifact":
            yield from self._artifact(event)
        elif event.kind == "task" and isinstance(event.raw, Task):
            yield from self._snapshot(event.raw, skip)
        if event.kind != "artifact" and event.is_final and not self._has_told and (words := _words(event)):
            yield words

    def _artifact(self, event: StreamEvent) -> Iterator[str]:
        if not event.text or event.artifact_id is None:
            return
        told = self._told.setdefault(event.artifact_id, [])
        if not event.append:
            told.clear()
        told.append(event.text)
        self._has_told = True
        yield event.text

    def _snapshot(self, task: Task, skip: bool) -> Iterator[str]:
        """What a snapshot holds beyond what was told; an artifact that was replaced is told anew."""
        for artifact in map(ArtifactInfo.from_artifact, task.artifacts or ()):
            text = artifact.text or ""
            rest = text.removeprefix("".join(self._told.get(artifact.artifact_id, ())))
            self._told[artifact.artifact_id] = [text]
            if rest and not skip:
                self._has_told = True
                yield rest


def _words(event: StreamEvent) -> str | None:
    if not isinstance(event.raw, Task):
        return event.text
    said = event.raw.status.message
    return text_of(said.parts, "") if said is not None else None
