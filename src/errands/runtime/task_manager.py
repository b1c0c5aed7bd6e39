"""The operations of the protocol on tasks, named as in the specification and free of any binding."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Coroutine
from functools import partial
from typing import Any

import msgspec

from errands import lifecycle
from errands.clock import from_iso, to_iso
from errands.engines.base import Expectation
from errands.errors import (
    ConcurrencyError,
    ContextMismatchError,
    DuplicateMessageError,
    InvalidParamsError,
    LeaseLostError,
    UnavailableError,
    UnsupportedOperationError,
)
from errands.lifecycle import trim
from errands.model.base import encode
from errands.model.core import (
    COMPLETED,
    PAUSED_STATES,
    SETTLED_STATES,
    SUBMITTED,
    TERMINAL_STATES,
    UNSPECIFIED,
    WORKING,
    Message,
    StreamResponse,
    Task,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from errands.model.log import (
    LEASE,
    PLAIN,
    READY,
    STREAMED_KINDS,
    Change,
    Draft,
    Event,
    Head,
    ListQuery,
    RequestOptions,
    StoredTask,
)
from errands.model.requests import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    ListTasksResponse,
    SendMessageConfiguration,
    SendMessageRequest,
    SendMessageResponse,
    SubscribeToTaskRequest,
)
from errands.runtime.adapter import WorkerAdapter
from errands.runtime.call import CallContext, EventStream, StreamItem, streamed
from errands.runtime.canceling import Canceler
from errands.runtime.executor.ids import Identifiers
from errands.runtime.executor.reply import chosen, first_published
from errands.runtime.intake import check_message, receipt_of
from errands.runtime.journal import Batch, Journal, new_id, status_update
from errands.runtime.pressure import Pressure
from errands.runtime.reviewers import Reviewers, is_guest, reduced, shown
from errands.runtime.settings import Settings

_decode_stream = msgspec.json.Decoder(StreamResponse).decode


class Accepted(msgspec.Struct):
    """A message that is in the log: the task it went to and the events that came of it."""

    stored: StoredTask
    #: The events of a new task; none when the message went to a task that was there before.
    drafts: list[Draft] = []
    #: The message waits for a later turn.
    queued: bool = False

    @property
    def version(self) -> int:
        """The log up to here is known to the caller."""
        return self.stored.version

    @property
    def settled(self) -> bool:
        """Whether the task as it stands is the answer. One that paused while it runs on has not come to a message
        that waits."""
        head = self.stored.head
        waits = self.queued and head.unread > 1 and head.worker
        return head.state in SETTLED_STATES and not waits

    @property
    def first(self) -> list[StreamItem]:
        """What a stream shows first."""
        if not self.drafts:
            return [_snapshot(self.stored)]
        return [
            StreamItem(version, draft.data)
            for version, draft in enumerate(self.drafts, 1)
            if draft.kind in STREAMED_KINDS
        ]


class TaskManager:
    def __init__(
        self,
        journal: Journal,
        adapter: WorkerAdapter,
        *,
        input_modes: list[str],
        settings: Settings,
        identifiers: Identifiers | None = None,
        inner: Collection[str] = (),
    ) -> None:
        """`inner` are agents beside this one: nobody outside reaches them, but their reviews are answered here."""
        self._journal = journal
        self._engine = journal.engine
        self._adapter = adapter
        self._input_modes = input_modes
        self._settings = settings
        self._identifiers = identifiers
        self._canceler = Canceler(journal, adapter, settings)
        self._pressure = Pressure(journal.engine, adapter.agent, settings.max_queue_age)
        self._reviewers = Reviewers(journal, inner)
        self._receipts_last = int(settings.idempotency_window * 1000)

    # SendMessage, SendStreamingMessage

    async def send_message(self, request: SendMessageRequest, call: CallContext) -> SendMessageResponse:
        """Accepts the message and, unless the client wants to go on at once, waits for the turn's end."""
        configuration = request.configuration
        wait = configuration is None or not configuration.return_immediately
        task_id = request.message.task_id or self._new_task_id(request.message)
        with self._engine.expect(task_id, call.scope, SETTLED_STATES) as expectation:
            accepted = await self._accept(request, call, task_id)
            if call.on_accepted is not None:
                call.on_accepted()
            stored = accepted.stored
            if is_guest(stored, call):
                return SendMessageResponse(task=shown(stored.task))
            if wait and (stored.head.state not in SETTLED_STATES or accepted.queued):
                if stored.task.id != task_id:
                    settled = await self._wait_for_first(stored, call)
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

    async def _wait_for_first(self, stored: StoredTask, call: CallContext) -> StoredTask | None:
        """The same message came before: the answer is that of its task."""
        return await self._engine.wait_for_state(
            stored.task.id, call.scope, SETTLED_STATES, self._settings.blocking_timeout
        )

    async def _wait_for_turn(self, accepted: Accepted, expectation: Expectation) -> StoredTask | None:
        """The task once it has come to a message that waited, and settled; None when the time is up."""
        while not accepted.settled:
            settled = await expectation.wait(accepted.version, self._settings.blocking_timeout)
            if settled is None:
                return None
            accepted.stored = settled
        return accepted.stored

    def _is_to_choose(self, accepted: Accepted) -> bool:
        """Whether the agent has yet to say if it answers with a task or with a message."""
        return self._adapter.chooses_reply and accepted.stored.state is SUBMITTED and not accepted.queued

    async def send_streaming_message(self, request: SendMessageRequest, call: CallContext) -> EventStream:
        """Accepts the message and shows the task and everything that happens until the turn has ended."""
        accepted = await self._accept(request, call, request.message.task_id or self._new_task_id(request.message))
        if is_guest(accepted.stored, call):
            return self._guest_stream(accepted.stored, SETTLED_STATES)
        length = request.configuration.history_length if request.configuration else None
        shape = None if length is None else partial(_trim_item, history_length=length)
        first = accepted.first if shape is None else [shape(item) for item in accepted.first]
        stored, waits = accepted.stored, not accepted.settled
        stream = self._stream(stored, call, stored.version, first, SETTLED_STATES, caught_up=True, waits=waits)
        return chosen(self._engine, stored, stream, shape) if self._is_to_choose(accepted) else stream

    def _new_task_id(self, message: Message) -> str:
        return new_id() if self._identifiers is None else self._identifiers.new_task(message.context_id)

    def _new_context_id(self, task_id: str) -> str:
        return new_id() if self._identifiers is None else self._identifiers.new_context(task_id)

    async def _accept(self, request: SendMessageRequest, call: CallContext, task_id: str) -> Accepted:
        if self._adapter.draining:
            raise UnavailableError("The server is shutting down; send the message again in a moment")
        receipt = receipt_of(request.message)
        try:
            if request.message.task_id:
                return await self._continue(request, call, receipt)
            check_message(request.message, self._input_modes)
            return await self._create(request, call, receipt, task_id)
        except DuplicateMessageError as error:
            stored = await self._engine.load(error.task_id, call.scope)
            return Accepted(stored)

    def _create(
        self, request: SendMessageRequest, call: CallContext, receipt: bytes, task_id: str
    ) -> Coroutine[Any, Any, Accepted]:
        now = self._journal.now()
        context_id = request.message.context_id or self._new_context_id(task_id)
        message = msgspec.structs.replace(request.message, task_id=task_id, context_id=context_id)
        status = TaskStatus(state=SUBMITTED, timestamp=to_iso(now))
        task = Task(id=task_id, context_id=context_id, status=status, history=[message])
        events = Batch()
        events.add("task", StreamResponse(task=task))
        return self._submit(StoredTask(task=task, head=Head(), scope=call.scope), request, call, receipt, events, now)

    async def _continue(self, request: SendMessageRequest, call: CallContext, receipt: bytes) -> Accepted:
        message = request.message
        assert message.task_id is not None
        while True:
            stored = await self._reviewers.load(message.task_id, call)
            reviews = self._reviewers.is_asked(stored, call)
            # A review is not for the agent, so what the agent takes does not matter.
            check_message(message, [] if reviews else self._input_modes)
            if message.context_id and message.context_id != stored.task.context_id:
                raise ContextMismatchError(
                    f"Task {message.task_id} belongs to another context than {message.context_id}",
                    field="message.contextId",
                )
            if reviews:
                since = self._journal.now() - self._receipts_last
                return Accepted(await self._reviewers.answer(stored, message, call, receipt, since))
            joined = msgspec.structs.replace(message, context_id=stored.task.context_id)
            try:
                if stored.state in PAUSED_STATES and not stored.head.worker and not stored.head.asks:
                    return await self._resume(stored, joined, request, call, receipt)
                return await self._queue(stored, joined, request, call, receipt)
            except (ConcurrencyError, LeaseLostError):
                continue

    async def _resume(
        self,
        stored: StoredTask,
        message: Message,
        request: SendMessageRequest,
        call: CallContext,
        receipt: bytes,
    ) -> Accepted:
        """The answer to a question: the task is submitted again."""
        now = self._journal.now()
        events = Batch()
        events.add("status", status_update(stored.task.id, stored.task.context_id or "", SUBMITTED, now))
        events.add("message", StreamResponse(message=message))
        task = lifecycle.fold_updates(stored.task, events.updates)
        resumed = StoredTask(task=task, head=stored.head, scope=stored.scope)
        return await self._submit(resumed, request, call, receipt, events, now)

    async def _submit(
        self,
        stored: StoredTask,
        request: SendMessageRequest,
        call: CallContext,
        receipt: bytes,
        events: Batch,
        now: int,
    ) -> Accepted:
        """Commits a task that has something to do, and takes it up in the same commit when there is room."""
        options = self._options_of(request, call)
        if options is not PLAIN and not options.is_plain:
            events.drafts.append(Draft("request", encode(options)))
        task = stored.task
        inline = self._adapter.reserve()
        # An executor tells itself when it begins.
        starts = inline and not self._adapter.chooses_reply
        if starts:
            working = TaskStatus(state=WORKING, timestamp=to_iso(now))
            update = TaskStatusUpdateEvent(task_id=task.id, context_id=task.context_id or "", status=working)
            events.add("status", StreamResponse(status_update=update))
            task = msgspec.structs.replace(task, status=working)
        change = Change(
            task_id=task.id,
            scope=call.scope,
            events=events.drafts,
            expected=stored.head.version,
            receipt=receipt,
            receipt_since=now - self._receipts_last,
            at=now,
            state=WORKING if starts else SUBMITTED,
            work=LEASE if inline else READY,
            due_at=self._adapter.lease_until(now) if inline else now,
            worker=self._adapter.worker_id if inline else "",
            unread=1,
            context_id=task.context_id or "",
        )
        if inline:
            try:
                await self._journal.commit(change, events.updates)
            except BaseException:
                self._adapter.release()
                raise
        else:
            if not stored.head.version:
                await self._pressure.admit(change)
            with self._adapter.queueing(task.id, request.message.message_id, call.request_context):
                await self._journal.commit(change, events.updates)
        accepted = StoredTask(task=task, head=lifecycle.advance(stored.head, change), scope=call.scope)
        if inline:
            self._adapter.start(accepted, now, options=options, request_context=call.request_context)
        return Accepted(accepted, [] if stored.head.version else events.drafts)

    async def _queue(
        self,
        stored: StoredTask,
        message: Message,
        request: SendMessageRequest,
        call: CallContext,
        receipt: bytes,
    ) -> Accepted:
        """A message to a task that is at work, or waits for somebody's review, waits for its next turn."""
        now = self._journal.now()
        options = self._options_of(request, call)
        drafts = [Draft("message", encode(StreamResponse(message=message)))]
        if not options.is_plain:
            drafts.append(Draft("request", encode(options)))
        change = Change(
            task_id=stored.task.id,
            scope=call.scope,
            events=drafts,
            # Once the review is answered, nobody may be there any more to come to the message.
            expected=stored.version if stored.head.asks else None,
            expected_states=frozenset({stored.state}),
            fence=None if stored.head.asks else stored.pause_fence,
            receipt=receipt,
            receipt_since=now - self._receipts_last,
            at=now,
            unread=1,
        )
        if stored.state in TERMINAL_STATES:
            # The terminal guard refuses it, but not before a repeated message has been recognised.
            change = msgspec.structs.replace(change, state=SUBMITTED)
        with self._adapter.keeping(stored.task.id, message.message_id, call.request_context):
            await self._journal.commit(change)
        stored = await self._engine.load(stored.task.id, call.scope)
        return Accepted(stored, queued=True)

    def _options_of(self, request: SendMessageRequest, call: CallContext) -> RequestOptions:
        configuration = request.configuration
        if configuration is None:
            if not (request.metadata or call.extensions or call.parent or call.email):
                return PLAIN
            configuration = SendMessageConfiguration()
        whole = self._adapter.chooses_reply
        return RequestOptions(
            message_id=request.message.message_id,
            accepted_output_modes=configuration.accepted_output_modes or [],
            metadata=request.metadata or {},
            extensions=call.extensions,
            history_length=configuration.history_length if whole else None,
            return_immediately=configuration.return_immediately and whole,
            email=call.email,
            parent=call.parent,
            depth=call.depth,
        )

    # From inside

    async def take_on(self, message: Message, call: CallContext, task_id: str) -> StoredTask:
        """The task of this id, which another task determines: created with its first message, or found.

        While the server stops it is created all the same; it then waits for another process or another time.
        """
        request = SendMessageRequest(message=message)
        check_message(message, self._input_modes)
        try:
            return (await self._create(request, call, receipt_of(message), task_id)).stored
        except (ConcurrencyError, DuplicateMessageError):
            return await self._engine.load(task_id, call.scope)

    async def wait_until_settled(self, task_id: str, call: CallContext, after: int = 0) -> StoredTask:
        """The task once it has ended or waits for something, at a version above `after`; however long that takes.

        Whichever process works on it. Raises `TaskNotFoundError`.
        """
        while True:
            with self._engine.expect(task_id, call.scope, SETTLED_STATES) as expectation:
                stored = await self._engine.load(task_id, call.scope)
                if stored.state in SETTLED_STATES and stored.version > after:
                    return stored
                # None: waits are ended when the server stops, though turns that wait may have some time left.
                if (settled := await expectation.wait(max(stored.version, after), None)) is not None:
                    return settled

    # GetTask, ListTasks

    async def get_task(self, request: GetTaskRequest, call: CallContext) -> Task:
        stored = await self._reviewers.load(request.id, call)
        return shown(stored.task) if is_guest(stored, call) else trim(stored.task, request.history_length)

    async def list_tasks(self, request: ListTasksRequest, call: CallContext) -> ListTasksResponse:
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
        stored = await self._reviewers.load(request.id, call)
        after = call.last_event_id
        until = SETTLED_STATES if call.ends_at_pause else TERMINAL_STATES
        if is_guest(stored, call):
            return self._guest_stream(stored, until)
        if after is not None and after <= stored.version:
            return self._stream(stored, call, after, [], until)
        if stored.state in TERMINAL_STATES:
            raise UnsupportedOperationError(
                f"Task is already {stored.state.short}: there is nothing to wait for; get the task instead",
                taskId=request.id,
            )
        return self._stream(stored, call, stored.version, [_snapshot(stored)], until)

    def _stream(
        self,
        stored: StoredTask,
        call: CallContext,
        after: int,
        first: list[StreamItem],
        until: frozenset[TaskState],
        *,
        caught_up: bool = False,
        waits: bool = False,
    ) -> EventStream:
        subscription = self._engine.subscribe(stored.task.id, call.scope, after, caught_up=caught_up)

        async def batches() -> AsyncIterator[list[StreamItem]]:
            try:
                if first:
                    yield first
                if stored.state in until and after >= stored.version and not waits:
                    return
                while (events := await subscription.next(self._settings.keep_alive)) is not None:
                    items = streamed(events, STREAMED_KINDS)
                    if items or not events:
                        yield items
                    if _settles(events, until):
                        return
                if subscription.gap:
                    async for batch in self._after_gap(stored, call, until):
                        yield batch
            finally:
                subscription.close()

        return EventStream(batches(), subscription.close)

    def _guest_stream(self, stored: StoredTask, until: frozenset[TaskState]) -> EventStream:
        """What a reviewer sees of somebody else's task."""
        return reduced(self._stream(stored, CallContext(stored.scope), stored.version, [_snapshot(stored)], until))

    async def _after_gap(
        self, stored: StoredTask, call: CallContext, until: frozenset[TaskState]
    ) -> AsyncIterator[list[StreamItem]]:
        current = await self._engine.load(stored.task.id, call.scope)
        yield [_snapshot(current)._replace(gap=True)]
        if current.state not in until:
            async for batch in self._stream(current, call, current.version, [], until):
                yield batch


def _trim_item(item: StreamItem, history_length: int) -> StreamItem:
    response = _decode_stream(item.data)
    if response.task is None:
        return item
    trimmed = StreamResponse(task=trim(response.task, history_length))
    return item._replace(data=encode(trimmed))


def _snapshot(stored: StoredTask) -> StreamItem:
    return StreamItem(stored.version, encode(StreamResponse(task=stored.task)))


def _settles(events: list[Event], until: frozenset[TaskState]) -> bool:
    """Whether the last status among these events ends the stream."""
    for event in reversed(events):
        if event.kind in ("status", "task"):
            update = _decode_stream(event.data)
            changed = update.status_update or update.task
            return changed is not None and changed.status.state in until
    return False
