"""The operations of the protocol on tasks, named as in the specification and free of any binding."""

from __future__ import annotations

from functools import partial

import msgspec

from errands.clock import from_iso
from errands.engines.base import Expectation
from errands.errors import (
    ConcurrencyError,
    DuplicateMessageError,
    InvalidParamsError,
    UnsupportedOperationError,
)
from errands.lifecycle import trim
from errands.model.core import (
    COMPLETED,
    SETTLED_STATES,
    SUBMITTED,
    TERMINAL_STATES,
    UNSPECIFIED,
    Message,
    Task,
)
from errands.model.log import (
    ListQuery,
    StoredTask,
)
from errands.model.requests import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    ListTasksResponse,
    SendMessageRequest,
    SendMessageResponse,
    SubscribeToTaskRequest,
)
from errands.runtime.call import CallContext, EventStream
from errands.runtime.cancellation import Canceler
from errands.runtime.executor.ids import Identifiers
from errands.runtime.executor.reply import chosen, first_published
from errands.runtime.pool import WorkerPool
from errands.runtime.settings import Settings
from errands.runtime.streams import Streams, snapshot, trim_item
from errands.runtime.submission import Submission, Submitter


class TaskManager:
    """The operations of one agent: each takes a request and the call behind it, and raises `A2AError`."""

    def __init__(
        self,
        pool: WorkerPool,
        agent: str,
        *,
        input_modes: list[str],
        settings: Settings,
        identifiers: Identifiers | None = None,
    ) -> None:
        handler = pool.handlers[agent]
        self._engine = handler.journal.engine
        self._settings = settings
        self._chooses_reply = handler.chooses_reply
        self._canceler = Canceler(pool, agent, settings)
        pool.on_sweep(self._canceler.end_abandoned)
        self._submitter = Submitter(pool, agent, input_modes=input_modes, settings=settings, identifiers=identifiers)
        self._streams = Streams(self._engine, settings.keep_alive)

    # SendMessage, SendStreamingMessage

    async def send_message(self, request: SendMessageRequest, call: CallContext) -> SendMessageResponse:
        """Accepts the message and, unless the client wants to go on at once, waits for the turn's end."""
        configuration = request.configuration
        wait = configuration is None or not configuration.return_immediately
        task_id = request.message.task_id or self._submitter.new_task_id(request.message)
        with self._engine.expect(task_id, call.scope, SETTLED_STATES) as expectation:
            accepted = await self._submit(request, call, task_id)
            if call.on_accepted is not None:
                call.on_accepted()
            stored = accepted.stored
            if wait and (stored.head.state not in SETTLED_STATES or accepted.queued):
                if stored.task.id != task_id:
                    settled = await self._wait_elsewhere(accepted, call)
                elif accepted.queued:
                    settled = await self._wait_for_turn(accepted, expectation)
                else:
                    settled = await expectation.wait(stored.head.version, self._settings.blocking_timeout)
                stored = settled or await self._engine.load(stored.task.id, call.scope)
            elif not wait and self._is_to_choose(accepted):
                stored = await first_published(self._engine, stored, self._settings.blocking_timeout)
        if stored.head.direct and stored.head.state is COMPLETED:
            return SendMessageResponse(message=stored.task.status.message)
        if configuration is None:
            return SendMessageResponse(task=stored.task)
        return SendMessageResponse(task=trim(stored.task, configuration.history_length))

    async def _submit(self, request: SendMessageRequest, call: CallContext, task_id: str) -> Submission:
        return await self._submitter.submit(request, call, task_id)

    async def _wait_elsewhere(self, accepted: Submission, call: CallContext) -> StoredTask | None:
        """Wait for a task that was there before: the same message began it, or this one answers it by its context."""
        task_id = accepted.stored.task.id
        with self._engine.expect(task_id, call.scope, SETTLED_STATES) as expectation:
            accepted.stored = await self._engine.load(task_id, call.scope)
            return await self._wait_for_turn(accepted, expectation)

    async def _wait_for_turn(self, accepted: Submission, expectation: Expectation) -> StoredTask | None:
        """The task once it has come to a message that waited, and settled; None when the time is up."""
        while not accepted.settled:
            settled = await expectation.wait(accepted.stored.version, self._settings.blocking_timeout)
            if settled is None:
                return None
            accepted.stored = settled
        return accepted.stored

    def _is_to_choose(self, accepted: Submission) -> bool:
        """Whether the agent has yet to say if it answers with a task or with a message."""
        return self._chooses_reply and accepted.stored.state is SUBMITTED and not accepted.queued

    async def send_streaming_message(self, request: SendMessageRequest, call: CallContext) -> EventStream:
        """Accepts the message and shows the task and everything that happens until the turn has ended."""
        accepted = await self._submit(
            request, call, request.message.task_id or self._submitter.new_task_id(request.message)
        )
        length = request.configuration.history_length if request.configuration else None
        shape = None if length is None else partial(trim_item, history_length=length)
        first = accepted.first if shape is None else [shape(item) for item in accepted.first]
        stored, chooses = accepted.stored, self._is_to_choose(accepted)
        stream = self._streams.follow(
            stored,
            call,
            stored.version,
            first,
            SETTLED_STATES,
            caught_up=True,
            waits=not accepted.settled,
            chooses=chooses,
        )
        return chosen(self._engine, stored, stream, shape) if chooses else stream

    # For delegation

    async def take_on(self, message: Message, call: CallContext, task_id: str) -> StoredTask:
        """Return the task of this id: created with its first message, or found if it was created before.

        It is created even while the server stops; it then waits for another process, or for the next start.
        """
        try:
            return (await self._submitter.create(SendMessageRequest(message=message), call, task_id)).stored
        except (ConcurrencyError, DuplicateMessageError):
            return await self._engine.load(task_id, call.scope)

    async def wait_until_settled(self, task_id: str, call: CallContext, after: int = 0) -> StoredTask:
        """Return the task once it has ended or paused at a version above `after`, however long that takes.

        Any process may work on it. Raise `TaskNotFoundError`.
        """
        while True:
            with self._engine.expect(task_id, call.scope, SETTLED_STATES) as expectation:
                stored = await self._engine.load(task_id, call.scope)
                if stored.state in SETTLED_STATES and stored.version > after:
                    return stored
                # None: waits end when the server stops, though turns that wait may have some time left.
                if (settled := await expectation.wait(max(stored.version, after), None)) is not None:
                    return settled

    # GetTask, ListTasks

    async def get_task(self, request: GetTaskRequest, call: CallContext) -> Task:
        """The task, with as much of its history as was asked for. Raises `TaskNotFoundError`."""
        return trim((await self._load(request.id, call)).task, request.history_length)

    async def _load(self, task_id: str, call: CallContext) -> StoredTask:
        """Return the caller's task as the caller may see it. Raise `TaskNotFoundError`."""
        return await self._engine.load(task_id, call.scope)

    async def list_tasks(self, request: ListTasksRequest, call: CallContext) -> ListTasksResponse:
        """One page of the caller's tasks. Raises `InvalidParamsError` for a time or a token that is none."""
        after = None
        if request.status_timestamp_after:
            try:
                after = from_iso(request.status_timestamp_after)
            except (ValueError, OverflowError):
                raise InvalidParamsError(
                    "statusTimestampAfter must be an ISO 8601 time such as 2026-01-31T12:00:00Z",
                    field="statusTimestampAfter",
                ) from None
        size = request.page_size or 50
        query = ListQuery(
            scope=call.scope,
            context_id=request.context_id or None,
            state=None if request.status in (None, UNSPECIFIED) else request.status,
            status_after=after,
            page_size=size,
            page_token=request.page_token or "",
            with_artifacts=bool(request.include_artifacts),
        )
        page = await self._engine.list(query)
        tasks = [trim(stored.task, request.history_length) for stored in page.tasks]
        if request.include_artifacts:
            tasks = [msgspec.structs.replace(task, artifacts=task.artifacts or []) for task in tasks]
        else:
            tasks = [msgspec.structs.replace(task, artifacts=None) for task in tasks]
        return ListTasksResponse(
            tasks=tasks, next_page_token=page.next_page_token, page_size=size, total_size=page.total_size
        )

    # CancelTask

    async def cancel_task(self, request: CancelTaskRequest, call: CallContext) -> Task:
        """Cancels at once what does not run; asks a running worker, and forces it after the grace period."""
        return await self._canceler.cancel(request.id, call)

    # SubscribeToTask

    async def subscribe_to_task(self, request: SubscribeToTaskRequest, call: CallContext) -> EventStream:
        """The task as it is and what happens until it has ended; with `Last-Event-ID`, what was missed and on."""
        stored = await self._load(request.id, call)
        after = call.last_event_id
        until = SETTLED_STATES if call.ends_at_pause else TERMINAL_STATES
        if after is not None and after <= stored.version and not stored.damage:
            return self._streams.follow(stored, call, after, [], until)
        # One who was cut off is told how a damaged task ended; the log may not say so.
        if stored.state in TERMINAL_STATES and (after is None or not stored.damage):
            raise UnsupportedOperationError(
                f"Task is already {stored.state.short}: there is nothing to wait for; get the task instead",
                taskId=request.id,
            )
        first = [snapshot(stored)]
        return self._streams.follow(stored, call, stored.version, first, until)
