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
        text = event.text
        if not text or event.artifact_id is None:
            return
        if event.gap:
            text = self._rest(event.artifact_id, text)
        else:
            told = self._told.setdefault(event.artifact_id, [])
            if not event.append:
                told.clear()
            told.append(text)
        if text:
            self._has_told = True
            yield text

    def _snapshot(self, task: Task, skip: bool) -> Iterator[str]:
        for artifact in map(ArtifactInfo.from_artifact, task.artifacts or ()):
            rest = self._rest(artifact.artifact_id, artifact.text or "")
            if rest and not skip:
                self._has_told = True
                yield rest

    def _rest(self, artifact_id: str, text: str) -> str:
        """What a whole artifact holds beyond what was told; one that was replaced is told anew."""
        rest = text.removeprefix("".join(self._told.get(artifact_id, ())))
        self._told[artifact_id] = [text]
        return rest


def _words(event: StreamEvent) -> str | None:
    if not isinstance(event.raw, Task):
        return event.text
    said = event.raw.status.message
    return text_of(said.parts, "") if said is not None else None
