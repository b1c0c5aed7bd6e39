"""Spans of several processes in one place: those of this one from memory, those of others from files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from tests.waiting import until


class SpanLine(msgspec.Struct, frozen=True):
    """A finished span."""

    name: str
    #: `server`, `client` or `internal`.
    kind: str
    trace: str
    id: str
    #: The id of its parent, "" for a root.
    parent: str
    status: str
    attributes: dict[str, Any]
    #: Nanoseconds.
    start: int
    end: int
    events: list[str] = []

    @property
    def label(self) -> str:
        return f"{self.kind}: {self.name}"


def line_of(span: ReadableSpan) -> SpanLine:
    assert span.context is not None
    return SpanLine(
        name=span.name,
        kind=span.kind.name.lower(),
        trace=f"{span.context.trace_id:032x}",
        id=f"{span.context.span_id:016x}",
        parent="" if span.parent is None else f"{span.parent.span_id:016x}",
        status=span.status.status_code.name,
        attributes=dict(span.attributes or {}),
        start=span.start_time or 0,
        end=span.end_time or 0,
        events=[event.name for event in span.events],
    )


class FileExporter(SpanExporter):
    """Writes each span as a line, at once."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._file.open("ab") as file:
            for span in spans:
                file.write(msgspec.json.encode(line_of(span)) + b"\n")
        return SpanExportResult.SUCCESS


class MemoryExporter(SpanExporter):
    """Keeps the spans of this process while a test wants them."""

    def __init__(self) -> None:
        self.collector: Collector | None = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self.collector is not None:
            self.collector.own += map(line_of, spans)
        return SpanExportResult.SUCCESS


class Collector:
    """What was recorded in one test. Other processes leave `*.spans` in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.own: list[SpanLine] = []

    @property
    def spans(self) -> list[SpanLine]:
        lines = [line for file in sorted(self.folder.rglob("*.spans")) for line in file.read_bytes().splitlines()]
        return [*self.own, *(msgspec.json.decode(line, type=SpanLine) for line in lines)]

    def named(self, label: str) -> list[SpanLine]:
        return [span for span in self.spans if span.label == label]

    def only(self, label: str) -> SpanLine:
        found = self.named(label)
        assert len(found) == 1, [span.label for span in self.spans]
        [span] = found
        return span

    async def has(self, *labels: str) -> None:
        """Waits until there are spans with these labels, as often as they are given."""
        wanted = Counter(labels)
        await until(lambda: Counter(span.label for span in self.spans) >= wanted)

    def check_tree(self) -> None:
        """Checks that all spans are one tree: of one trace, with one root, each below one that was recorded."""
        spans = self.spans
        ids = Counter(span.id for span in spans)
        assert [span for span in spans if ids[span.id] > 1] == []
        assert len({span.trace for span in spans}) == 1
        assert [span.label for span in spans if span.parent and span.parent not in ids] == []
        assert len([span for span in spans if not span.parent]) == 1
        for span in spans:
            assert self.path(span)  # no circle
            assert span.start <= span.end

    def path(self, span: SpanLine) -> list[str]:
        """The labels from the root to a span."""
        by_id = {one.id: one for one in self.spans}
        path = [span.label]
        while span.parent:
            span = by_id[span.parent]
            path.insert(0, span.label)
            assert len(path) <= len(by_id)
        return path

    def below(self, span: SpanLine) -> list[str]:
        """The labels of what is directly below a span, in the order in which it began."""
        return [one.label for one in sorted(self.spans, key=lambda one: one.start) if one.parent == span.id]
