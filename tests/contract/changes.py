"""Building the changes that the contract is tested with, and the clock they take their time from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from errands.clock import Clock, to_iso
from errands.engines.base import Engine
from errands.engines.subscriptions import Subscription
from errands.model.base import encode
from errands.model.core import (
    Artifact,
    Message,
    Part,
    Role,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
    text_of,
)
from errands.model.log import Change, Draft, Event, Head, ListQuery, Scope, StoredTask, Work

AGENT = "agent"
ME = Scope("tenant", "me", AGENT)
SOMEBODY_ELSE = Scope("tenant", "somebody else", AGENT)
OTHER_TENANT = Scope("other tenant", "me", AGENT)
OTHER_AGENT = Scope("tenant", "me", "another agent")
WORKER = "worker"
LEASE_MS = 30_000


class ManualClock:
    """Time that passes when a test says so."""

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, ms: int) -> int:
        self.now += ms
        return self.now


class Changes:
    """What the runtime writes, in its plainest form. Every field of `Change` can be given by name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def create(self, task_id: str = "t", **fields: Any) -> Change:
        """A new task that is ready to be claimed."""
        return self._change(
            task_id,
            [task_draft(task_id, fields.get("context_id", context_of(task_id)), self._clock())],
            fields,
            expected=0,
            state=TaskState.SUBMITTED,
            work=Work.READY,
            due_at=self._clock(),
            unread=1,
            context_id=context_of(task_id),
        )

    def start(self, task_id: str = "t", **fields: Any) -> Change:
        """A new task that `WORKER` holds from the beginning, at version 2 and attempt 1."""
        context_id = fields.get("context_id", context_of(task_id))
        return self._change(
            task_id,
            [
                task_draft(task_id, context_id, self._clock()),
                status_draft(task_id, TaskState.WORKING, self._clock()),
            ],
            fields,
            expected=0,
            state=TaskState.WORKING,
            work=Work.LEASE,
            worker=WORKER,
            due_at=self._clock() + LEASE_MS,
            unread=1,
            context_id=context_of(task_id),
        )

    def chunk(self, task_id: str = "t", text: str = "x", **fields: Any) -> Change:
        return self._change(task_id, [chunk_draft(task_id, text)], fields)

    def status(self, task_id: str, state: TaskState, text: str | None = None, **fields: Any) -> Change:
        return self._change(task_id, [status_draft(task_id, state, self._clock(), text)], fields, state=state)

    def working(self, task_id: str = "t", **fields: Any) -> Change:
        return self.status(task_id, TaskState.WORKING, **fields)

    def complete(self, task_id: str = "t", **fields: Any) -> Change:
        return self.status(task_id, TaskState.COMPLETED, **{"work": Work.IDLE, "unread": -1, **fields})

    def ask(self, task_id: str = "t", **fields: Any) -> Change:
        return self.status(task_id, TaskState.INPUT_REQUIRED, "which?", **{"work": Work.IDLE, "unread": -1, **fields})

    def answer(self, task_id: str = "t", **fields: Any) -> Change:
        """The user's answer: the task is ready again."""
        return self._change(
            task_id,
            [status_draft(task_id, TaskState.SUBMITTED, self._clock()), message_draft(task_id, "this one")],
            fields,
            state=TaskState.SUBMITTED,
            work=Work.READY,
            due_at=self._clock(),
            unread=1,
        )

    def cancel(self, task_id: str = "t", **fields: Any) -> Change:
        return self._change(task_id, [Draft("cancel", b"{}")], fields, cancel_requested=True)

    def move(self, task_id: str = "t", **fields: Any) -> Change:
        """A change without events."""
        return self._change(task_id, [], fields)

    def _change(self, task_id: str, events: Sequence[Draft], fields: dict[str, Any], **usual: Any) -> Change:
        usual |= {"task_id": task_id, "scope": ME, "at": self._clock(), "events": tuple(events)}
        return Change(**usual | fields)


def context_of(task_id: str) -> str:
    return f"context of {task_id}"


def message(text: str) -> Message:
    return Message(message_id=f"m-{text}", role=Role.USER, parts=[Part(text=text)])


def task_draft(task_id: str, context_id: str, at: int) -> Draft:
    status = TaskStatus(state=TaskState.SUBMITTED, timestamp=to_iso(at))
    task = Task(id=task_id, context_id=context_id, status=status, history=[message("hello")])
    return Draft("task", encode(StreamResponse(task=task)))


def status_draft(task_id: str, state: TaskState, at: int, text: str | None = None) -> Draft:
    status = TaskStatus(state=state, timestamp=to_iso(at), message=None if text is None else message(text))
    update = TaskStatusUpdateEvent(task_id=task_id, context_id=context_of(task_id), status=status)
    return Draft("status", encode(StreamResponse(status_update=update)))


def message_draft(task_id: str, text: str) -> Draft:
    return Draft("message", encode(StreamResponse(message=message(text))))


def chunk_draft(task_id: str, text: str) -> Draft:
    return artifact_draft(task_id, Artifact(artifact_id="a", parts=[Part(text=text)]), append=True)


def artifact_draft(task_id: str, artifact: Artifact, *, append: bool) -> Draft:
    update = TaskArtifactUpdateEvent(task_id=task_id, context_id=context_of(task_id), artifact=artifact, append=append)
    return Draft("artifact", encode(StreamResponse(artifact_update=update)))


def text_in(stored: StoredTask) -> str:
    """The text of the task's artifacts."""
    return "".join(text_of(artifact.parts, "") for artifact in stored.task.artifacts or ())


async def log_of(engine: Engine, task_id: str = "t", scope: Scope = ME) -> list[Event]:
    """The whole log of a task, read piece by piece."""
    events: list[Event] = []
    while piece := (await engine.read(task_id, scope, events[-1].version if events else 0)).events:
        events += piece
    return events


async def collect(subscription: Subscription, upto: int) -> list[int]:
    """The versions that a subscription shows until it has come to `upto`."""
    versions: list[int] = []
    while not versions or versions[-1] < upto:
        events = await subscription.next()
        assert events is not None, "the subscription ended early"
        versions += [event.version for event in events]
    return versions


async def whole_life(engine: Engine, changes: Changes, clock: Clock) -> None:
    """All that a server does with a store, once, with an engine that keeps nothing after the end."""
    await engine.commit(changes.create(receipt=b"digest"))
    (stored,) = await engine.claim(WORKER, [AGENT], 1, clock() + LEASE_MS)
    subscription = engine.subscribe("t", ME, 0)
    await engine.commit(changes.working(fence=stored.head.attempt))
    await engine.commit(changes.complete(fence=stored.head.attempt, context=b"value"))
    assert await collect(subscription, 3) == [1, 2, 3]
    subscription.close()
    assert (await engine.list(ListQuery(scope=ME))).total_size == 1
    assert await engine.sweep() == 1


def versions(results: Iterable[object]) -> list[int | None]:
    """Return the versions to which commits led; None for an error or another result."""
    return [result.version if isinstance(result, Head) else None for result in results]
