"""Following a task over as many connections as it takes: each event once, until the turn or the task ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Set
from contextlib import aclosing, suppress
from dataclasses import replace

from errands.client.errors import A2AClientError, AgentUnreachableError, AnswerLostError, StreamInterruptedError
from errands.client.ledger import Ledger
from errands.client.result import StreamEvent
from errands.client.session import Session, final_error
from errands.client.transport import Received, TransientError
from errands.errors import InvalidParamsError, TaskNotFoundError, UnavailableError, UnsupportedOperationError
from errands.model.core import PAUSED_STATES, TERMINAL_STATES, UNSPECIFIED, StreamResponse, Task, TaskState
from errands.model.requests import GetTaskRequest, SendMessageRequest, SubscribeToTaskRequest

#: Seconds between two looks at a task: at first, and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


async def wait_until(
    session: Session,
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
            while task.status.state not in states and task.status.state is not UNSPECIFIED:
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


class Follower:
    """One stream as its reader sees it.

    Given a `request` it sends it and follows one turn: it ends when the task has ended or is paused, whether
    the agent closes the stream there or not. Given a `task_id` it subscribes and follows the task to its
    end; when the task is paused it stays for as long as the agent keeps the stream open.
    """

    def __init__(
        self,
        session: Session,
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
        self._ledger = Ledger(task_id, last_event_id)
        # The first snapshot of a continued task may still show the pause that the message is about to end.
        self._ignore_pause = request is not None and request.message.task_id is not None

    async def events(self) -> AsyncGenerator[StreamEvent, None]:
        """The events. Raises `StreamInterruptedError` or `AnswerLostError` when it has been cut off too often."""
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
                if self._ledger.state in PAUSED_STATES:
                    return
            except TransientError as error:
                failure = error
            failures = 1 if progressed else failures + 1
            if self._is_uncertain(failure) or self._session.retry.is_spent(failures, failure, streaming=True):
                raise self._interruption(failure) from (failure.cause if failure else None)
            await self._session.retry.pause(failures, failure)

    async def _connection(self) -> AsyncGenerator[StreamEvent, None]:
        """The news of one connection."""
        opening, ended = True, None
        try:
            async with aclosing(self._open()) as incoming:
                async for received in incoming:
                    if self._ledger.admit(received, opening=opening):
                        yield StreamEvent.from_response(received.response, event_id=received.event_id, gap=received.gap)
                    opening = False
        except (UnsupportedOperationError, InvalidParamsError, TransientError) as refusal:
            if self._is_sending or not opening or (ended := await self._ended(refusal)) is None:
                raise
        if opening and not self._is_sending:
            # Refused, or closed without a word: the usual reason is that the task has ended.
            snapshot = Received(StreamResponse(task=ended or await self._load()))
            if self._ledger.admit(snapshot, opening=True):
                yield StreamEvent.from_response(snapshot.response)

    async def _ended(self, refusal: Exception) -> Task | None:
        """The task, if that it has ended is why we may not subscribe; some agents just cut the connection then.

        Raises `TaskNotFoundError` when there is no such task, which is told in the same way.
        """
        if isinstance(refusal, TransientError) and not (refusal.reached and self._ledger.is_empty):
            return None  # more likely a cut like any other
        try:
            task = await self._load()
        except A2AClientError:
            return None
        is_over = isinstance(refusal, UnsupportedOperationError) or task.status.state in TERMINAL_STATES
        return task if is_over else None

    def _open(self) -> AsyncGenerator[Received, None]:
        ledger = self._ledger
        if self._request is not None and self._is_sending:
            return self._session.stream("SendStreamingMessage", self._request, idle_timeout=self._idle_timeout)
        return self._session.stream(
            "SubscribeToTask",
            SubscribeToTaskRequest(id=ledger.task_id or ""),
            last_event_id=ledger.last_event_id,
            idle_timeout=self._idle_timeout,
        )

    async def _load(self) -> Task:
        task: Task = await self._session.call("GetTask", GetTaskRequest(id=self._ledger.task_id or ""))
        return task

    @property
    def _is_sending(self) -> bool:
        """Nothing has come back yet for the message."""
        return self._request is not None and self._ledger.is_empty

    def _judge(self, event: StreamEvent) -> tuple[bool, StreamEvent]:
        """Whether the reader's stream ends with this event, and the event as the reader should see it."""
        if event.kind == "message":
            return self._ledger.message is not None, event
        ignore_pause, self._ignore_pause = self._ignore_pause, False
        if event.kind == "artifact" or not event.is_final:
            return False, event
        if self._ledger.state in TERMINAL_STATES:
            return True, event
        if event.kind == "task" and ignore_pause:
            return False, replace(event, is_final=False)
        return self._request is not None, event

    def _is_uncertain(self, failure: TransientError | None) -> bool:
        """Whether a message may or may not have been accepted: sending it again could do the work twice."""
        return self._is_sending and (failure is None or failure.reached)

    def _interruption(self, failure: TransientError | None) -> Exception:
        ledger = self._ledger
        if self._request is not None and self._is_sending:
            message_id = self._request.message.message_id
            if failure is None:
                return AnswerLostError("the stream ended before its first event", message_id=message_id)
            return final_error(failure, message_id)
        why = str(failure) if failure is not None else "the agent closed it before the task had ended"
        return StreamInterruptedError(ledger.task_id or "", ledger.last_event_id, why)
