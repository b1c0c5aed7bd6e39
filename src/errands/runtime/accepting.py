"""Accepting messages: a new task, an answer to a question, or one more message for a task that is at work."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import msgspec

from errands import lifecycle
from errands.clock import to_iso
from errands.errors import (
    ConcurrencyError,
    ContextMismatchError,
    DuplicateMessageError,
    LeaseLostError,
    OverloadedError,
    PayloadTooLargeError,
    TaskNotFoundError,
    TaskTerminalStateError,
    UnavailableError,
)
from errands.model.base import encode, shallow_copy
from errands.model.core import (
    INPUT_REQUIRED,
    PAUSED_STATES,
    SETTLED_STATES,
    SUBMITTED,
    TERMINAL_STATES,
    WORKING,
    Message,
    StreamResponse,
    Task,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from errands.model.log import (
    LEASE,
    NEW,
    PLAIN,
    READY,
    STREAMED_KINDS,
    Change,
    Draft,
    ListQuery,
    RequestOptions,
    StoredTask,
)
from errands.model.requests import SendMessageConfiguration, SendMessageRequest
from errands.runtime.adapter import WorkerAdapter
from errands.runtime.call import CallContext, StreamItem
from errands.runtime.depth import told_depth
from errands.runtime.executor.ids import Identifiers
from errands.runtime.intake import check_message, receipt_of
from errands.runtime.journal import Batch, Journal, new_id, status_update
from errands.runtime.pressure import Pressure
from errands.runtime.settings import Settings
from errands.runtime.streams import answer

#: Messages that wait in one task at most.
MOST_WAITING = 1000
#: So many times the largest body may the messages of a task have: it is read whole, again and again.
MOST_BODIES = 10


class Accepted(msgspec.Struct, gc=False):
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
            return [answer(self.stored)]
        return [
            StreamItem(version, draft.data)
            for version, draft in enumerate(self.drafts, 1)
            if draft.kind in STREAMED_KINDS
        ]


def check_context(message: Message, stored: StoredTask) -> None:
    """Raises `ContextMismatchError` when the message names another context than that of its task."""
    if message.context_id and message.context_id != stored.task.context_id:
        raise ContextMismatchError(
            f"Task {message.task_id} belongs to another context than {message.context_id}", field="message.contextId"
        )


class Acceptor:
    """Makes one change of every message, and has the task taken up in the same commit when there is room."""

    def __init__(
        self,
        journal: Journal,
        adapter: WorkerAdapter,
        *,
        input_modes: list[str],
        settings: Settings,
        identifiers: Identifiers | None,
    ) -> None:
        self._journal = journal
        self._engine = journal.engine
        self._adapter = adapter
        self._input_modes = input_modes
        self._identifiers = identifiers
        self._pressure = Pressure(journal.engine, adapter.agent, settings.max_queue_age)
        self._most_bytes = MOST_BODIES * settings.max_body_bytes
        self._receipts_last = int(settings.idempotency_window * 1000)
        self._answers_by_context = settings.answer_by_context

    def new_task_id(self, message: Message) -> str:
        return new_id() if self._identifiers is None else self._identifiers.new_task(message.context_id)

    def _new_context_id(self, task_id: str) -> str:
        return new_id() if self._identifiers is None else self._identifiers.new_context(task_id)

    async def accept(self, request: SendMessageRequest, call: CallContext, task_id: str) -> Accepted:
        """Puts a message into the log: a new task gets this id. Raises whatever is wrong with it."""
        self.check_open()
        receipt = receipt_of(request.message)
        try:
            if request.message.task_id:
                return await self._continue(request, call, receipt)
            check_message(request.message, self._input_modes)
            if request.message.context_id and (self._answers_by_context or call.answers_by_context):
                answered = await self._answer_in_context(request, call, receipt)
                if answered is not None:
                    return answered
            return await self._create(request, call, receipt, task_id)
        except DuplicateMessageError as error:
            stored = await self._engine.load(error.task_id, call.scope)
            return Accepted(stored)

    def check_open(self) -> None:
        """Raises `UnavailableError` while the server stops."""
        if self._adapter.draining:
            raise UnavailableError("The server is shutting down; send the message again in a moment")

    async def create(self, request: SendMessageRequest, call: CallContext, task_id: str) -> Accepted:
        """A new task of this id, also while the server stops. Raises `ConcurrencyError` when there is one."""
        check_message(request.message, self._input_modes)
        return await self._create(request, call, receipt_of(request.message), task_id)

    def _create(
        self, request: SendMessageRequest, call: CallContext, receipt: bytes, task_id: str
    ) -> Coroutine[Any, Any, Accepted]:
        now = self._journal.now()
        context_id = request.message.context_id or self._new_context_id(task_id)
        message = shallow_copy(request.message)
        message.task_id, message.context_id = task_id, context_id
        status = TaskStatus(state=SUBMITTED, timestamp=to_iso(now))
        task = Task(id=task_id, context_id=context_id, status=status, history=[message])
        events = Batch()
        events.add("task", StreamResponse(task=task))
        return self._submit(StoredTask(task=task, head=NEW, scope=call.scope), request, call, receipt, events, now)

    async def _continue(self, request: SendMessageRequest, call: CallContext, receipt: bytes) -> Accepted:
        message = request.message
        assert message.task_id is not None
        while True:
            stored = await self._engine.load(message.task_id, call.scope)
            if stored.damage:
                await self._engine.set_aside(stored)
                raise TaskTerminalStateError(f"Task {message.task_id} is already failed", taskId=message.task_id)
            check_message(message, self._input_modes)
            check_context(message, stored)
            self._check_room(stored, message)
            joined = msgspec.structs.replace(message, context_id=stored.task.context_id)
            try:
                if stored.state in PAUSED_STATES and not stored.head.worker and not stored.head.asks:
                    return await self._resume(stored, joined, request, call, receipt)
                return await self._queue(stored, joined, request, call, receipt)
            except (ConcurrencyError, LeaseLostError):
                continue

    async def _answer_in_context(
        self, request: SendMessageRequest, call: CallContext, receipt: bytes
    ) -> Accepted | None:
        """Takes the message as the answer to the one task of its context that waits for input; None unless one does.

        Of two messages at the same time the first is the answer, and the second finds nothing that waits.
        """
        while (task_id := await self._waiting_in(request.message.context_id or "", call)) is not None:
            try:
                stored = await self._engine.load(task_id, call.scope)
                if stored.state is not INPUT_REQUIRED or stored.head.asks:
                    continue
                message = msgspec.structs.replace(request.message, task_id=task_id)
                self._check_room(stored, message)
                # An executor that has asked holds its task until it returns.
                take = self._queue if stored.head.worker else self._resume
                return await take(stored, message, request, call, receipt)
            except (ConcurrencyError, LeaseLostError, TaskNotFoundError, TaskTerminalStateError):
                continue
        return None

    async def _waiting_in(self, context_id: str, call: CallContext) -> str | None:
        """Return the id of the one task of the context that waits for its owner's input, if it is exactly one."""
        found: list[str] = []
        token = ""
        while len(found) < 2:
            query = ListQuery(scope=call.scope, context_id=context_id, state=INPUT_REQUIRED, page_token=token)
            page = await self._engine.list(query)
            found += [stored.task.id for stored in page.tasks if not stored.head.asks]
            token = page.next_page_token
            if not token:
                break
        return found[0] if len(found) == 1 else None

    def _check_room(self, stored: StoredTask, message: Message) -> None:
        history = stored.task.history or []
        size = len(encode(history))
        if size <= self._most_bytes or stored.state in TERMINAL_STATES:
            return
        # One that was accepted before is not one more.
        if all(said.message_id != message.message_id for said in history):
            raise PayloadTooLargeError(
                f"The messages of task {stored.task.id} have {size} bytes already, and it takes no more than "
                f"{self._most_bytes}; go on in a new task of the same context"
            )

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
        inline = self._adapter.reserve(awaited=call.parent != "")
        # An executor tells itself when it begins.
        starts = inline and not self._adapter.chooses_reply
        if starts:
            working = TaskStatus(state=WORKING, timestamp=task.status.timestamp)
            update = TaskStatusUpdateEvent(task_id=task.id, context_id=task.context_id or "", status=working)
            events.add("status", StreamResponse(status_update=update))
            task = shallow_copy(task)
            task.status = working
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
            # What is handed down is part of a task that was taken.
            if not stored.head.version and not call.parent:
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
        if stored.head.unread >= MOST_WAITING:
            raise OverloadedError(
                f"{stored.head.unread} messages wait in task {stored.task.id} already; "
                "send this one again when some of them have been dealt with",
                retry_after=60,
            )
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
        depth = call.depth or (told_depth(request.message.metadata) if request.message.metadata else 0)
        if configuration is None:
            if not (request.metadata or call.extensions or call.parent or call.email or depth):
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
            depth=depth,
        )
