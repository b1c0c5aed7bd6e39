"""Following a task over as many connections as it takes: each event once, until the turn or the task ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Set
from contextlib import aclosing, suppress
from dataclasses import replace

from errands import tracing
from errands.client.agent_session import AgentSession, Received, TransientError, final_error
from errands.client.errors import A2AClientError, AgentUnreachableError, AnswerLostError, StreamInterruptedError
from errands.client.results import StreamEvent, moment_of
from errands.errors import InvalidParamsError, TaskNotFoundError, UnavailableError, UnsupportedOperationError
from errands.lifecycle import fold_updates, join_text
from errands.model import core
from errands.model.core import Message, StreamResponse, Task, TaskState
from errands.model.requests import GetTaskRequest, SendMessageRequest, SubscribeToTaskRequest

#: Seconds between two looks at a task: at first, and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
#: An event id with more digits than this is not a position in a log.
_MOST_DIGITS = 18
#: Bounds on what is kept of a stream that continues for days.
_MOST_UPDATES = 1024
_MOST_OPAQUE_IDS = 10_000


async def wait_until(
    session: AgentSession,
    task: Task,
    states: Set[TaskState],
    *,
    timeout: float | None,
    history_length: int | None = None,
    message_id: str | None = None,
) -> Task:
    """Return the task once it is in one of these states, or as it was when `timeout` is over or it cannot be seen.

    Some agents answer a blocking send, or a cancel, before they are done. Not all of them stream, so the task is
    asked for again and again. Raises `AnswerLostError` when the agent cannot be asked: it has the request already,
    so an error that says otherwise would be wrong.
    """
    pause = _FIRST_PAUSE
    request = GetTaskRequest(id=task.id, history_length=history_length)
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            # An agent that does not know the state may never know it.
            while task.status.state not in states and task.status.state is not core.UNSPECIFIED:
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, _LONGEST_PAUSE)
                try:
                    task = await session.call("GetTask", request)
                except TaskNotFoundError:
                    break  # a reviewer sees a task until it is answered, and other agents may delete what has ended
                except (AgentUnreachableError, AnswerLostError, UnavailableError) as error:
                    why = f"the agent works on task {task.id} and could not be asked for it ({error})"
                    raise AnswerLostError(why, message_id=message_id) from error
    return task


class TaskStream:
    """One stream as its reader sees it.

    Given a `request` it sends it and follows one turn: it ends when the task has ended or is paused, whether
    the agent closes the stream there or not. Given a `task_id` it subscribes and follows the task to its
    end; when the task is paused it stays for as long as the agent keeps the stream open.
    """

    def __init__(
        self,
        session: AgentSession,
        *,
        request: SendMessageRequest | None = None,
        task_id: str | None = None,
        last_event_id: str | None = None,
        idle_timeout: float | None = None,
    ) -> None:
        session.require("streaming")
        if request is None:
            session.require_operation("SubscribeToTask")
        self._session = session
        self._request = request
        self._idle_timeout = idle_timeout
        self._seen = SeenTask(task_id, last_event_id)
        # The first snapshot of a continued task may still show the pause that the message is about to end.
        self._ignore_pause = request is not None and request.message.task_id is not None

    def events(self) -> AsyncGenerator[StreamEvent, None]:
        """Yield the events. Raises `StreamInterruptedError` or `AnswerLostError` when it has been cut off too often."""
        if tracing.tracer is None:
            return self._events()
        return tracing.within(
            lambda: self._session.span("SubscribeToTask" if self._request is None else "SendStreamingMessage"),
            self._events(),
        )

    async def _events(self) -> AsyncGenerator[StreamEvent, None]:
        failures = 0
        while True:
            progressed, failure = False, None
            try:
                async with aclosing(self._connection()) as events:
                    async for event in events:
                        progressed = True
                        ends, event = self._judge(event)
                        yield event
                        if ends:
                            return
                if self._seen.state in core.PAUSED_STATES:
                    return
            except TransientError as error:
                failure = error
            failures = 1 if progressed else failures + 1
            # A message that may have been accepted is not sent again: that could do the work twice.
            is_uncertain = self._is_sending and (failure is None or failure.reached)
            if is_uncertain or self._session.retry.is_spent(failures, failure, streaming=True):
                cause = failure.cause if failure else None
                if self._request is not None and self._is_sending:
                    message_id = self._request.message.message_id
                    if failure is None:
                        raise AnswerLostError("the stream ended before its first event", message_id=message_id)
                    raise final_error(failure, message_id) from cause
                why = str(failure) if failure is not None else "the agent closed it before the task had ended"
                raise StreamInterruptedError(self._seen.task_id or "", self._seen.last_event_id, why) from cause
            await self._session.retry.pause(failures, failure)

    async def _connection(self) -> AsyncGenerator[StreamEvent, None]:
        """Yield what is new on one connection."""
        opening, ended = True, None
        try:
            async with aclosing(self._open()) as incoming:
                async for received in incoming:
                    if self._seen.admit(received, opening=opening):
                        yield StreamEvent.from_response(received.response, event_id=received.event_id, gap=received.gap)
                    opening = False
        except (UnsupportedOperationError, InvalidParamsError, TransientError) as refusal:
            if self._is_sending or not opening or (ended := await self._ended(refusal)) is None:
                raise
        if opening and not self._is_sending:
            # Refused, or closed without an event: usually because the task has ended.
            snapshot = Received(StreamResponse(task=ended or await self._load()))
            if self._seen.admit(snapshot, opening=True):
                yield StreamEvent.from_response(snapshot.response)

    async def _ended(self, refusal: Exception) -> Task | None:
        """Return the task if subscribing failed because it has already ended. Some agents just close the connection.

        Raises `TaskNotFoundError` when there is no such task, which agents refuse in the same way.
        """
        if isinstance(refusal, TransientError) and not (refusal.reached and self._seen.is_empty):
            return None  # more likely a cut like any other
        try:
            task = await self._load()
        except A2AClientError:
            return None
        is_over = isinstance(refusal, UnsupportedOperationError) or task.status.state in core.TERMINAL_STATES
        return task if is_over else None

    def _open(self) -> AsyncGenerator[Received, None]:
        if self._request is not None and self._is_sending:
            return self._session.stream("SendStreamingMessage", self._request, idle_timeout=self._idle_timeout)
        return self._session.stream(
            "SubscribeToTask",
            SubscribeToTaskRequest(id=self._seen.task_id or ""),
            last_event_id=self._seen.last_event_id,
            idle_timeout=self._idle_timeout,
        )

    async def _load(self) -> Task:
        task: Task = await self._session.call("GetTask", GetTaskRequest(id=self._seen.task_id or ""))
        return task

    @property
    def _is_sending(self) -> bool:
        """Return whether nothing has come back yet for the message."""
        return self._request is not None and self._seen.is_empty

    def _judge(self, event: StreamEvent) -> tuple[bool, StreamEvent]:
        """Return whether the reader's stream ends with this event, and the event as the reader should see it."""
        if event.kind == "message":
            return self._seen.message is not None, event
        ignore_pause, self._ignore_pause = self._ignore_pause, False
        if event.kind == "artifact" or not event.is_final:
            return False, event
        if self._seen.state in core.TERMINAL_STATES:
            return True, event
        if event.kind == "task" and ignore_pause:
            return False, replace(event, is_final=False)
        return self._request is not None, event


class SeenTask:
    """What a client has seen of one task, to recognise events that are repeated after a stream was cut.

    There are three kinds of agents. Where event ids are positions in the task's log, as in errands, they are compared.
    Where there are none, or none that mean anything elsewhere, a new stream opens with a snapshot of the task, which
    is compared with the events so far. And some agents number anew on every connection.
    """

    def __init__(self, task_id: str | None = None, last_event_id: str | None = None) -> None:
        self.task_id = task_id
        self.last_event_id = last_event_id
        self.state = TaskState.UNSPECIFIED
        #: The agent's direct answer, when it made no task.
        self.message: Message | None = None
        self._first: Task | None = None
        self._base: Task | None = None
        # Folded only when needed: folding at every chunk would cost the whole text each time.
        self._updates: list[StreamResponse] = []
        self._position = _number(last_event_id)
        self._opaque_ids: dict[str, None] = {}

    @property
    def is_empty(self) -> bool:
        return self._base is None and self.message is None

    def task(self) -> Task | None:
        """Return the task with everything seen so far, or None before the first event."""
        if self._base is not None and self._updates:
            self._base = fold_updates(self._base, self._updates)
            self._updates = []
        return self._base

    def admit(self, received: Received, *, opening: bool) -> bool:
        """Take the event in unless it was seen before, and return whether it is new.

        `opening` says that it is the first one of a connection.
        """
        event_id, number, last = received.event_id, _number(received.event_id), self._position
        snapshot = received.response.task if opening and not received.gap else None
        if snapshot is None:
            is_repeat = event_id in self._opaque_ids if number is None or last is None else number <= last
            is_new = received.gap or not is_repeat
        elif self._is_replay(snapshot, event_id):
            return False
        else:
            is_new = self._differs(snapshot)
        if is_new:
            self._take(received.response)
        if (is_new or snapshot is not None) and event_id is not None:
            self.last_event_id, self._position = event_id, number
            if number is None:
                self._opaque_ids[event_id] = None
                if len(self._opaque_ids) > _MOST_OPAQUE_IDS:
                    del self._opaque_ids[next(iter(self._opaque_ids))]
        return is_new

    def _is_replay(self, snapshot: Task, event_id: str | None) -> bool:
        """Return whether a stream opens with a task older than ours: the agent repeats all events from the first.

        A snapshot with a lower number that is not older comes from an agent that counts anew per connection.
        """
        known, number = self.task(), _number(event_id)
        if known is None:
            return False
        if number is None or self._position is None:
            return event_id in self._opaque_ids
        if number >= self._position:
            return False
        before, after = moment_of(snapshot.status.timestamp), moment_of(known.status.timestamp)
        if before is None or after is None or before == after:
            sizes = {artifact.artifact_id: _size(artifact) for artifact in snapshot.artifacts or ()}
            is_older = any(sizes.get(made.artifact_id, -1) < _size(made) for made in known.artifacts or ())
        else:
            is_older = before < after
        return is_older or (snapshot == self._first and self._differs(snapshot))

    def _differs(self, snapshot: Task) -> bool:
        known = self.task()
        return known is None or _essence(known) != _essence(snapshot)

    def _take(self, response: StreamResponse) -> None:
        if response.task is not None:
            self._first = self._first or response.task
            self._base, self._updates = response.task, []
            self.task_id, self.state = response.task.id, response.task.status.state
            return
        if response.message is not None and self._base is None:
            self.message = response.message
            return
        update = response.status_update or response.artifact_update
        if update is not None and self._base is None:
            self.task_id = update.task_id
            self._base = Task(
                id=update.task_id,
                context_id=update.context_id,
                status=core.TaskStatus(state=TaskState.UNSPECIFIED),
            )
        if response.status_update is not None:
            self.state = response.status_update.status.state
        self._updates.append(response)
        if len(self._updates) >= _MOST_UPDATES:
            self.task()


def _number(event_id: str | None) -> int | None:
    if event_id is None or not (event_id.isascii() and event_id.isdecimal()) or len(event_id) > _MOST_DIGITS:
        return None
    return int(event_id)


def _essence(task: Task) -> tuple[object, ...]:
    """Return what a reader of the stream would see: not the history, and not where text happened to be cut."""
    return (
        task.status.state,
        task.status.message,
        task.metadata,
        {artifact.artifact_id: (join_text(artifact.parts), artifact.name) for artifact in task.artifacts or ()},
    )


def _size(artifact: core.Artifact) -> int:
    return sum(len(part.text) if part.text is not None else 1 for part in artifact.parts)
