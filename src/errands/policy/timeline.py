"""The timeline of a task: its log as spans of time that a person can read. A pure function of the log.

A model call, a tool call or a review is one span, regardless of its number of events; the pieces of an artifact are one
span for each attempt. A timeline has at most `MAX_SPANS` spans: in a longer one, the oldest are folded, those without a
problem first, into one span for each lane that counts them.

Logs may be long, so a `TimelineFold` takes them in pieces and does not keep events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import field

from errands.clock import from_iso
from errands.model.base import UNREADABLE, encode
from errands.model.core import (
    PAUSED_STATES,
    SETTLED_STATES,
    TERMINAL_STATES,
    Message,
    Role,
    StreamResponse,
    TaskState,
    TaskStatus,
    text_of,
)
from errands.model.log import CancelRequest, Event, LeaseRecord, RequestOptions, StoredTask
from errands.model.marks import REVIEW, is_review
from errands.policy import records

Lane = Literal["attempt", "model", "tool", "policy", "people", "output", "state", "message"]
Outcome = Literal["ok", "failed", "refused", "asked", "waiting", "running", "info"]

#: The most spans of one timeline, including folded ones.
MAX_SPANS = 400
#: The most characters of a text, and of JSON, that a span shows.
SHOWN = 1000
#: Characters of a title.
TITLE = 160
#: Bytes of all spans above which their details are cut further.
MOST_BYTES = 2 * 2**20
#: The number of attempts and children that a timeline names, the newest ones.
MAX_NAMED = 100
#: The number of open calls, reviews and artifacts that are remembered, the newest ones.
_REMEMBERED = 1000
_MORE = "more-"

_LANES: tuple[Lane, ...] = ("attempt", "model", "tool", "policy", "people", "output", "state", "message")
_STATE_OUTCOMES: dict[TaskState, Outcome] = {
    TaskState.SUBMITTED: "waiting",
    TaskState.WORKING: "running",
    TaskState.INPUT_REQUIRED: "waiting",
    TaskState.AUTH_REQUIRED: "waiting",
    TaskState.COMPLETED: "ok",
    TaskState.FAILED: "failed",
    TaskState.REJECTED: "refused",
    TaskState.CANCELED: "info",
    TaskState.UNSPECIFIED: "info",
}
_TROUBLE = frozenset({TaskState.FAILED, TaskState.REJECTED})


class TimelineSpan(msgspec.Struct, kw_only=True, rename="camel"):
    """Something that took some time, or happened at one moment. Times are in milliseconds since 1970."""

    id: str
    lane: Lane
    #: The versions of its first and its last event.
    first: int = field(name="from")
    last: int = field(name="to")
    at: int
    #: When it ended; None while it lasts.
    until: int | None
    title: str
    detail: dict[str, Any] = field(default_factory=dict)
    outcome: Outcome = "info"
    problem: bool = False
    #: The ids of the spans that led to it.
    causes: list[str] = field(default_factory=list)
    #: The attempt that it belongs to; 0 before the first.
    attempt: int = 0

    def end(self, event: Event, outcome: Outcome, *, at: int | None = None, problem: bool = False) -> None:
        """End the span with an event and an outcome."""
        self.last = max(self.last, event.version)
        self.until = max(self.at, event.at if at is None else at)
        self.outcome, self.problem = outcome, self.problem or problem


class Attempt(msgspec.Struct, kw_only=True, rename="camel"):
    """A lease of the task: one run of its handler, or a part of one if it was lost."""

    attempt: int
    worker: str
    at: int
    until: int | None = None
    #: Why it was taken; see `LeaseRecord`.
    cause: str
    #: How it ended: `done`, `lost` (it expired), or `given back`; "" while it lasts.
    end: str = ""


class Timeline(msgspec.Struct, kw_only=True, rename="camel"):
    """The spans of a log, or of a part of it, in the order of their first events."""

    #: The version of the last event that was read.
    version: int
    #: Whether events before or between those that were read are no longer kept.
    gap: bool
    #: The times of the first and the last event; None without any.
    start: int | None
    end: int | None
    spans: list[TimelineSpan]
    attempts: list[Attempt]
    #: How many events or records of each kind have no span.
    hidden: dict[str, int]
    #: The tasks to which it has delegated work.
    children: list[str]
    #: What was left out, and how much of it: `contents` that the reader may not see, and `details` of spans that were
    #: cut because all of them together are large.
    left_out: dict[str, int] = field(default_factory=dict)


K = TypeVar("K")
V = TypeVar("V")


class TimelineFold:
    """Builds a timeline: `take` the events in their order, then ask for the `timeline`.

    Without `contents`, it shows what happened when, but not what was said, passed to tools or decided about.
    """

    def __init__(self, *, contents: bool = True) -> None:
        self._contents = contents
        self._spans: list[TimelineSpan] = []
        #: One span for each lane, in place of those that were folded.
        self._folded: dict[Lane, TimelineSpan] = {}
        self._attempts: list[Attempt] = []
        self._attempt: TimelineSpan | None = None
        self._state: TimelineSpan | None = None
        self._state_of: TaskState | None = None
        self._calls: dict[str, TimelineSpan] = {}
        #: The model call that asked for a call, and what was decided about it, by the id of the call.
        self._askers: dict[str, str] = {}
        self._decisions: dict[str, list[str]] = {}
        self._reviews: dict[tuple[str, str], TimelineSpan] = {}
        self._artifacts: dict[str, TimelineSpan] = {}
        self._messages: dict[str, TimelineSpan] = {}
        self._senders: dict[str, RequestOptions] = {}
        self._children: dict[str, None] = {}
        self._hidden: Counter[str] = Counter()
        #: How many spans of each lane an event has led to.
        self._numbers: Counter[Lane] = Counter()
        self._numbered = -1
        self._version = 0
        self._start: int | None = None
        self._end = 0

    def take(self, events: Iterable[Event]) -> None:
        """Add events. Those that cannot be read get a span that says so."""
        for event in events:
            self._start = event.at if self._start is None else self._start
            self._version, self._end = event.version, event.at
            if event.lease is not None:
                self._lease(event, event.lease)
            try:
                self._take(event)
            except UNREADABLE:
                self._add(event, "state", "an event that cannot be read", {"kind": event.kind}, "failed", problem=True)

    def timeline(self, stored: StoredTask, *, gap: bool = False) -> Timeline:
        """Return the timeline so far. `stored` says who holds the task now."""
        self._fold_oldest(MAX_SPANS - len(_LANES))
        head = stored.head
        if self._attempt is not None and self._attempt.until is None and self._version >= head.version:
            if head.worker:
                self._attempt.detail["leaseUntil"] = head.due_at
            else:
                self._attempt.until = max(self._attempt.at, self._end)
        spans = sorted([*self._folded.values(), *self._spans], key=lambda span: span.first)
        left_out = {} if self._contents else {"contents": 1}
        if len(encode(spans)) > MOST_BYTES:
            left_out["details"] = len(spans)
            for span in spans:
                calls = span.detail.pop("calls", None)
                span.detail = {name: shown(value, TITLE) for name, value in span.detail.items()}
                if calls is not None:
                    span.detail["calls"] = [{"id": call["id"], "name": call["name"]} for call in calls[:5]]
        known = {span.id for span in spans}
        for span in spans:
            span.causes = [cause for cause in dict.fromkeys(span.causes) if cause in known][:MAX_NAMED]
        return Timeline(
            version=self._version or head.version,
            gap=gap,
            start=self._start,
            end=None if self._start is None else self._end,
            spans=spans,
            attempts=self._attempts[-MAX_NAMED:],
            hidden=dict(self._hidden),
            children=list(self._children)[-MAX_NAMED:],
            left_out=left_out,
        )

    # One event

    def _take(self, event: Event) -> None:
        if event.kind == "record":
            self._record(event, records.decode(event.data))
        elif event.kind == "artifact":
            self._artifact(event, _decode_artifact(event.data).artifact_update)
        elif event.kind == "request":
            self._request(event, _decode_options(event.data))
        elif event.kind == "cancel":
            asked = _decode_cancel(event.data)
            detail = self._contents_of(by=asked.caller, address=asked.address)
            self._add(event, "people", "asked to cancel the task", detail, "asked")
        else:
            update = _decode_event(event.data)
            if update.task is not None:
                for message in (update.task.history or ())[-MAX_NAMED:]:
                    if message.message_id not in self._messages:
                        self._message(event, message)
                self._status(event, update.task.status)
            elif update.status_update is not None:
                self._status(event, update.status_update.status)
            elif update.message is not None:
                self._message(event, update.message)

    def _lease(self, event: Event, lease: LeaseRecord) -> None:
        is_lost = lease.cause == "expired"
        if self._attempts and not self._attempts[-1].end:
            before = self._attempts[-1]
            before.end, before.until = (
                {"expired": "lost", "given back": "given back"}.get(lease.cause, "done"),
                event.at,
            )
            if self._attempt is not None and self._attempt.until is None:
                self._attempt.end(event, "failed" if is_lost else "info", problem=is_lost)
                self._attempt.detail["end"] = before.end
        # The name of a worker contains that of its machine.
        worker = lease.worker[:TITLE] if self._contents else ""
        self._attempts.append(Attempt(attempt=lease.attempt, worker=worker, at=event.at, cause=lease.cause))
        del self._attempts[: -2 * MAX_NAMED]
        self._artifacts.clear()
        detail = {"worker": worker, "cause": lease.cause, "leaseUntil": lease.until}
        title = f"attempt {lease.attempt}{f' by {_words(worker)}' if worker else ''}"
        self._attempt = self._add(event, "attempt", title, detail, "running", is_open=True, number=lease.attempt)

    def _status(self, event: Event, status: TaskStatus) -> None:
        state = status.state
        text = text_of(status.message.parts) if status.message is not None else ""
        if self._state is not None and self._state_of is state and state not in SETTLED_STATES:
            # A progress report of a working task.
            self._state.last = event.version
            self._state.detail["updates"] = self._state.detail.get("updates", 0) + 1
            if text:
                self._state.detail |= self._contents_of(message=text)
            return
        if self._state is not None and self._state.until is None:
            self._state.end(event, "info")
        detail: dict[str, Any] = {"state": state.short}
        if text:
            detail |= self._contents_of(message=text)
        self._state_of = state
        self._state = self._add(
            event,
            "state",
            state.short,
            detail,
            _STATE_OUTCOMES[state],
            problem=state in _TROUBLE,
            is_open=state not in TERMINAL_STATES,
        )
        if state in SETTLED_STATES:
            if self._attempts and not self._attempts[-1].end:
                self._attempts[-1].end, self._attempts[-1].until = "done", event.at
            if self._attempt is not None and self._attempt.until is None:
                outcome: Outcome = "failed" if state is TaskState.FAILED else "ok"
                self._attempt.end(event, outcome, problem=state is TaskState.FAILED)
                self._attempt.detail["end"] = "done"
                self._attempt.detail.pop("leaseUntil", None)
            if state in TERMINAL_STATES:
                for wait in self._reviews.values():
                    if wait.until is None:
                        wait.end(event, "info")
        if status.message is not None and state in PAUSED_STATES and not is_review(status.message):
            self._message(event, status.message)

    def _message(self, event: Event, message: Message) -> None:
        mark = (message.metadata or {}).get(REVIEW) if is_review(message) else None
        if mark is not None:
            self._hidden["review"] += 1
            return
        who = "agent" if message.role is Role.AGENT else "user"
        text = text_of(message.parts)
        detail: dict[str, Any] = {"role": who, "messageId": message.message_id[:TITLE], "parts": len(message.parts)}
        detail |= self._contents_of(text=text)
        if (sender := self._senders.pop(message.message_id, None)) is not None:
            detail |= self._sender(sender)
        title = f"{who}: {_words(text) or f'{len(message.parts)} parts'}"
        span = self._add(event, "message", title, detail, "asked" if who == "agent" else "info")
        _remember(self._messages, message.message_id, span)

    def _request(self, event: Event, options: RequestOptions) -> None:
        self._hidden["request"] += 1
        span = self._messages.get(options.message_id)
        if span is None:
            _remember(self._senders, options.message_id, options)
        else:
            span.last = max(span.last, event.version)
            span.detail |= self._sender(options)

    def _sender(self, options: RequestOptions) -> dict[str, Any]:
        said = {
            "caller": options.caller,
            "address": options.address,
            "email": options.email,
            "parent": options.parent,
            "metadata": options.metadata,
        }
        return self._contents_of(**{name: value for name, value in said.items() if value})

    def _artifact(self, event: Event, update: _ArtifactUpdate) -> None:
        artifact = update.artifact
        characters = sum(len(part.text) for part in artifact.parts if part.text is not None)
        span = self._artifacts.get(artifact.artifact_id)
        if span is None:
            name = _words(artifact.name or artifact.artifact_id)
            detail: dict[str, Any] = {
                "artifact": artifact.artifact_id[:TITLE],
                "name": name,
                "first": event.version,
                "last": event.version,
                "count": 0,
                "bytes": 0,
                "chars": 0,
            }
            span = self._add(event, "output", name, detail, "running", is_open=True)
            _remember(self._artifacts, artifact.artifact_id, span)
        span.detail["last"], span.detail["count"] = event.version, span.detail["count"] + 1
        span.detail["bytes"] += len(event.data)
        # A piece that is not appended replaces what was there.
        span.detail["chars"] = characters + (span.detail["chars"] if update.append else 0)
        span.end(event, "ok" if update.last_chunk else "info")

    # Records

    def _record(self, event: Event, record: records.AnyRecord) -> None:
        match record:
            case records.ModelCalled():
                self._model(event, record)
            case records.CapabilityBegan():
                self._began(event, record)
            case records.CapabilityFinished() | records.CapabilityErrored() | records.CapabilityRestricted():
                self._finished(event, record)
            case records.CapabilityShown():
                self._shown(event, record)
            case records.DelegationBegan():
                self._delegated(event, record)
            case records.Decided():
                self._decided(event, record)
            case records.Waiting():
                self._waiting(event, record)
            case records.Answered():
                self._answered(event, record)
            case records.InputRefused():
                self._add(
                    event, "policy", "input refused", self._contents_of(reason=record.reason), "refused", problem=True
                )
            case records.Ended():
                title = f"ended by policy: {record.reason}"
                self._add(event, "policy", title, self._contents_of(detail=record.detail), "failed", problem=True)
            case _:
                self._hidden[str(type(record).__struct_config__.tag)] += 1

    def _model(self, event: Event, record: records.ModelCalled) -> None:
        detail: dict[str, Any] = {
            "model": record.model[:TITLE],
            "prompt": record.prompt,
            "completion": record.completion,
            "firstTokenAt": _moment(record.first_token_at, None),
            "calls": [
                {
                    "id": call.id[:TITLE],
                    "name": call.name[:TITLE],
                    **self._contents_of(arguments=call.arguments or call.raw),
                }
                for call in record.calls[:20]
            ],
        }
        if len(record.calls) > 20:
            detail["moreCalls"] = len(record.calls) - 20
        if record.text:
            detail |= self._contents_of(text=record.text)
        if record.incomplete:
            detail["incomplete"] = record.incomplete
        words = ", ".join(_words(call.name) for call in record.calls[:5])
        title = f"{_words(record.model) or 'model'}{f' asks for {words}' if words else ' answers'}"
        is_cut = record.incomplete is not None
        span = self._add(
            event, "model", title, detail, "failed" if is_cut else "ok", problem=is_cut, at=_moment(record.at, event.at)
        )
        span.until = max(span.at, _moment(record.ended_at, event.at) or 0)
        for call in record.calls:
            _remember(self._askers, call.id, span.id)

    def _call(self, event: Event, record: Any) -> TimelineSpan:
        """Return a new span for a call."""
        arguments = _text(record.arguments, TITLE) if self._contents and record.arguments else ""
        detail: dict[str, Any] = {"call": record.call[:TITLE], "function": record.function[:TITLE]}
        detail["caller"] = record.caller
        detail |= self._contents_of(arguments=record.arguments)
        causes = [cause for cause in [self._askers.get(record.call)] if cause is not None]
        causes += self._decisions.get(record.call, ())
        title = _words(f"{record.function}({arguments})")
        at = _moment(record.at, event.at)
        span = self._add(event, "tool", title, detail, "running", is_open=True, at=at, causes=causes)
        _remember(self._calls, record.call, span)
        return span

    def _began(self, event: Event, record: records.CapabilityBegan) -> None:
        before = self._calls.get(record.call)
        span = self._call(event, record)
        if before is not None and before.attempt != span.attempt:
            span.detail["repeats"] = before.id
            if before.until is None:
                # The process that made the call was lost, so it is unknown whether the call was executed.
                before.end(event, "info", problem=True)
                before.detail["unknown"] = True

    def _finished(self, event: Event, record: records.CallEnded) -> None:
        span = self._calls.get(record.call)
        if span is None or span.until is not None:
            span = self._call(event, record)
        if isinstance(record, records.CapabilityFinished):
            span.detail |= self._contents_of(output=record.output)
            span.end(event, "ok", at=_moment(record.ended_at, event.at))
        elif isinstance(record, records.CapabilityErrored):
            span.detail |= {"executed": record.executed, **self._contents_of(error=record.error)}
            span.end(event, "failed", at=_moment(record.ended_at, event.at), problem=True)
        else:
            span.detail |= self._contents_of(reason=record.reason)
            span.end(event, "refused", problem=True)
        if not isinstance(record, records.CapabilityRestricted) and record.task_id:
            self._child(span, record.task_id)

    def _shown(self, event: Event, record: records.CapabilityShown) -> None:
        span = self._calls.get(record.call)
        if span is None:
            self._hidden["shown"] += 1
            return
        span.last = max(span.last, event.version)
        span.detail |= self._contents_of(shown=record.content)

    def _delegated(self, event: Event, record: records.DelegationBegan) -> None:
        span = self._calls.get(record.call)
        if span is None:
            self._hidden["delegated"] += 1
            _remember(self._children, record.task_id[:TITLE], None)
            return
        span.last = max(span.last, event.version)
        self._child(span, record.task_id)

    def _child(self, span: TimelineSpan, task_id: str) -> None:
        span.detail["child"] = task_id[:TITLE]
        _remember(self._children, task_id[:TITLE], None)

    def _decided(self, event: Event, record: records.Decided) -> None:
        outcome, problem = _verdict(record.outcome)
        detail: dict[str, Any] = {"step": record.step[:TITLE], "action": record.action, "outcome": record.outcome}
        if record.policy:
            detail["policy"] = record.policy[:TITLE]
        if record.call:
            detail["call"] = record.call[:TITLE]
        detail |= self._contents_of(detail=record.detail)
        asker = self._askers.get(record.call) if record.call else None
        causes = [] if asker is None else [asker]
        title = _words(f"{record.step} {record.outcome}")
        at = _moment(record.at, event.at)
        span = self._add(event, "policy", title, detail, outcome, problem=problem, at=at, causes=causes)
        if record.call:
            made = self._calls.get(record.call)
            if made is not None and made.until is None:
                made.causes.append(span.id)
            elif made is not None:
                span.causes.append(made.id)
            known = self._decisions.get(record.call, [])
            _remember(self._decisions, record.call, [*known, span.id][-MAX_NAMED:])

    def _waiting(self, event: Event, record: records.Waiting) -> None:
        call = record.call
        user = str(call.arguments[0]) if call.function == "review" and call.arguments else ""
        detail: dict[str, Any] = {"user": user[:TITLE], "place": call.place[:TITLE]}
        detail |= self._contents_of(subject=record.subject, call=str(call))
        title = f"review by {_words(user)}" if user else f"waits for {_words(call.function)}"
        lane: Lane = "people" if user else "policy"
        span = self._add(event, lane, title, detail, "waiting", is_open=True, at=_moment(record.at, event.at))
        _remember(self._reviews, (record.key, call.key), span)

    def _answered(self, event: Event, record: records.Answered) -> None:
        span = self._reviews.pop((record.key, record.call.key), None)
        if span is None:
            self._hidden["answered"] += 1
            return
        outcome: Outcome = "failed" if record.error is not None else "refused" if record.value is False else "ok"
        if record.by:
            word = {"ok": "approved", "refused": "denied"}.get(outcome, outcome)
            span.title, span.detail["by"] = f"{span.title}: {word}", record.by[:TITLE]
        span.detail |= self._contents_of(value=record.value, **({"error": record.error} if record.error else {}))
        span.end(event, outcome, at=_moment(record.at, event.at), problem=outcome != "ok")

    # Spans

    def _contents_of(self, **contents: Any) -> dict[str, Any]:
        """Return contents as they are shown, or an empty result if the reader may not see them."""
        return {name: shown(value) for name, value in contents.items()} if self._contents else {}

    def _add(
        self,
        event: Event,
        lane: Lane,
        title: str,
        detail: dict[str, Any],
        outcome: Outcome,
        *,
        problem: bool = False,
        is_open: bool = False,
        at: int | None = None,
        causes: Sequence[str] = (),
        number: int | None = None,
    ) -> TimelineSpan:
        at = event.at if at is None else at
        attempt = self._attempts[-1].attempt if number is None and self._attempts else number or 0
        # The id is the same whenever the log is read. An event may lead to several spans.
        if event.version != self._numbered:
            self._numbered = event.version
            self._numbers.clear()
        self._numbers[lane] += 1
        suffix = f"-{self._numbers[lane]}" if self._numbers[lane] > 1 else ""
        span = TimelineSpan(
            id=f"{event.version}-{lane}{suffix}",
            lane=lane,
            first=event.version,
            last=event.version,
            at=at,
            until=None if is_open else max(at, event.at),
            title=title[:TITLE],
            detail=detail,
            outcome=outcome,
            problem=problem,
            causes=list(causes),
            attempt=attempt,
        )
        self._spans.append(span)
        if len(self._spans) > 2 * MAX_SPANS:
            self._fold_oldest(MAX_SPANS)
        return span

    def _fold_oldest(self, keep: int) -> None:
        """Fold spans until there are no more than `keep`: problems, attempts and open ones are folded last."""
        surplus = len(self._spans) - keep
        if surplus <= 0:
            return

        def weight(index: int) -> tuple[int, int]:
            span = self._spans[index]
            is_main = span.lane in ("attempt", "state", "message", "people")
            return (span.until is None) + 2 * is_main + 4 * span.problem, index

        chosen = set(sorted(range(len(self._spans)), key=weight)[:surplus])
        for span in (self._spans[index] for index in sorted(chosen)):
            until = span.at if span.until is None else span.until
            more = self._folded.get(span.lane)
            if more is None:
                more = self._folded[span.lane] = TimelineSpan(
                    id=f"{_MORE}{span.lane}",
                    lane=span.lane,
                    first=span.first,
                    last=span.last,
                    at=span.at,
                    until=until,
                    title="",
                    detail={"count": 0, "problems": 0},
                )
            more.first, more.last = min(more.first, span.first), max(more.last, span.last)
            more.at, more.until = min(more.at, span.at), max(more.until or 0, until)
            more.detail["count"] += 1
            more.detail["problems"] += span.problem
            more.problem = more.problem or span.problem
            more.title = f"{more.detail['count']} more"
        self._spans = [span for index, span in enumerate(self._spans) if index not in chosen]


class _ArtifactText(msgspec.Struct, rename="camel", gc=False):
    text: str | None = None


class _ArtifactPiece(msgspec.Struct, rename="camel", gc=False):
    artifact_id: str
    name: str | None = None
    parts: list[_ArtifactText] = []


class _ArtifactUpdate(msgspec.Struct, rename="camel", gc=False):
    artifact: _ArtifactPiece
    append: bool = False
    last_chunk: bool = False


class _ArtifactEvent(msgspec.Struct, rename="camel", gc=False):
    """The part of an artifact event that a timeline reads. There may be very many, and their contents are not shown."""

    artifact_update: _ArtifactUpdate


_decode_artifact = msgspec.json.Decoder(_ArtifactEvent).decode
_decode_event = msgspec.json.Decoder(StreamResponse).decode
_decode_options = msgspec.json.Decoder(RequestOptions).decode
_decode_cancel = msgspec.json.Decoder(CancelRequest).decode


def shown(value: Any, most: int = SHOWN) -> Any:
    """Return a JSON value for display. A long one is cut, and becomes a text."""
    if isinstance(value, str):
        return value if len(value) <= most else f"{value[:most]}…"
    if value is None or isinstance(value, bool | int | float):
        return value
    return value if len(encode(value)) <= most else _text(value, most)


def _text(value: Any, most: int) -> str:
    text = value if isinstance(value, str) else encode(value).decode()
    return text if len(text) <= most else f"{text[:most]}…"


def _words(text: str) -> str:
    """Return the beginning of a text on one line."""
    return " ".join(text[: 4 * TITLE].split())[:TITLE]


def _moment(text: str, otherwise: int | None) -> int | None:
    """Return the time in a record, or `otherwise` if it has none or an invalid one."""
    try:
        return from_iso(text) if text else otherwise
    except (ValueError, OverflowError):
        return otherwise


def _verdict(outcome: str) -> tuple[Outcome, bool]:
    """Return the outcome of a decision's span, and whether it is a problem."""
    word, _, on_fail = outcome.partition(": ")
    if word == "passed":
        return "ok", False
    if word == "error":
        return "failed", True
    return ("info", False) if on_fail == "continue" else ("refused", True)


def _remember(known: dict[K, V], key: K, value: V) -> None:
    known.pop(key, None)
    known[key] = value
    if len(known) > _REMEMBERED:
        del known[next(iter(known))]
