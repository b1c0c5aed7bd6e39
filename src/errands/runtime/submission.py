"""Submitting messages: a new task, an answer to a question, or one more message for a task that is at work.

A message is checked before anything is written, and becomes one change.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import UNSET

from errands import errors, lifecycle, tracing
from errands.clock import to_iso
from errands.engines.base import Engine
from errands.model import core, log
from errands.model.base import encode, shallow_copy
from errands.model.marks import REVIEW, is_review
from errands.model.requests import SendMessageConfiguration, SendMessageRequest
from errands.runtime.blobs import BlobNotFoundError, Blobs
from errands.runtime.call import LARGE, CallContext, LargeReads
from errands.runtime.executor import Identifiers
from errands.runtime.journal import Batch, new_id, status_update
from errands.runtime.pool import WorkerPool
from errands.runtime.push import push_guard, read_config
from errands.runtime.quotas import store_quotas
from errands.runtime.settings import Settings

logger = logging.getLogger(__name__)

#: Bytes of the name that a client gives a conversation: databases index it, and not all take any length.
MAX_CONTEXT_ID = 1000
#: Messages that wait in one task at most.
MAX_WAITING = 1000
#: The messages of a task together may be this many times as large as one body: a task is often read whole.
MAX_BODIES = 10
#: In the metadata of the first message of a task that another server's agent has delegated: how many agents have
#: delegated the work so far, at least 1. Senders may write anything; a false depth only changes how often their own
#: task can be delegated further.
DELEGATION_DEPTH = "errands/delegation-depth"
_MAX_DEPTH = 1_000
#: Milliseconds for which the age of the queue is not asked for again.
_FRESH = 1000
#: A version that no task is at.
NEVER = 2**31 - 1
#: Seconds that a refused client is asked to wait at most.
_MAX_RETRY_AFTER = 30


class Submission(msgspec.Struct, gc=False):
    """A message that is in the log, and the task it went to."""

    stored: log.StoredTask
    #: The events of a new task; none if the message went to an existing one.
    drafts: list[log.Draft] = []
    #: Whether the message waits for a later turn.
    queued: bool = False
    #: Whether the agent has yet to choose between answering with a message and with a task.
    is_undecided: bool = False

    @property
    def settled(self) -> bool:
        """Return whether the turn of the message has ended.

        A task that has paused and still runs has not come to a queued message yet.
        """
        head = self.stored.head
        waits = self.queued and head.unread > 1 and head.worker
        return head.state in core.SETTLED_STATES and not waits


class Submitter:
    """Makes one change of every message of one agent, and has the pool commit and run it."""

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
        self._pool = pool
        self._guard = push_guard(settings)
        self._push_limit = settings.push_configs_per_task
        self._journal = handler.journal
        self._engine = handler.journal.engine
        self._blobs = handler.journal.blobs
        self._chooses_reply = handler.chooses_reply
        self._input_modes = input_modes
        self._identifiers = identifiers
        self._backpressure = Backpressure(self._engine, agent, settings.max_queue_age)
        self._quotas = store_quotas(self._engine, settings, self._blobs)
        self._max_bytes = MAX_BODIES * settings.max_body_bytes
        self._receipt_window = int(settings.idempotency_window * 1000)
        self._answers_by_context = settings.answer_by_context

    def new_task_id(self, message: core.Message) -> str:
        """Return the identifier for a new task that the message begins."""
        return new_id() if self._identifiers is None else self._identifiers.new_task(message.context_id)

    async def submit(self, request: SendMessageRequest, call: CallContext, task_id: str) -> Submission:
        """Put a message into the log; a new task gets this id. Raise whatever is wrong with the message."""
        self.check_open()
        receipt = receipt_of(request.message if self._blobs is None else await self._fingerprint(request.message, call))
        try:
            if request.message.task_id:
                return await self._continue(request, call, receipt)
            check_message(request.message, self._input_modes)
            if request.message.context_id and (self._answers_by_context or call.answers_by_context):
                answered = await self._answer_in_context(request, call, receipt)
                if answered is not None:
                    return answered
            if self._blobs is not None:
                return await self._stow_and_create(self._blobs, request, call, receipt, task_id)
            return await self._create(request, call, receipt, task_id)
        except errors.DuplicateMessageError as error:
            if call.on_repeated is not None:
                await call.on_repeated(error.task_id)
            stored = await call.load(self._engine, error.task_id)
            return Submission(stored, is_undecided=self._chooses_reply and stored.state is core.SUBMITTED)

    def check_open(self) -> None:
        """Raise `UnavailableError` while the server stops."""
        if self._pool.draining:
            raise errors.UnavailableError("The server is shutting down; send the message again in a moment")

    async def create(self, request: SendMessageRequest, call: CallContext, task_id: str) -> Submission:
        """Create a task of this id, even while the server stops. Raise `ConcurrencyError` if there is one."""
        check_message(request.message, self._input_modes)
        receipt = receipt_of(request.message)
        if self._blobs is not None:
            return await self._stow_and_create(self._blobs, request, call, receipt, task_id)
        return await self._create(request, call, receipt, task_id)

    async def _stow_and_create(
        self, blobs: Blobs, request: SendMessageRequest, call: CallContext, receipt: bytes, task_id: str
    ) -> Submission:
        """Create a task after the large files of its message have been moved to the blob store."""
        stowed = await self._stowed(request, call, receipt, task_id)
        try:
            return await self._create(stowed, call, receipt, task_id)
        except (errors.DuplicateMessageError, errors.OverloadedError, errors.QuotaError):
            # The task was not created. After other errors it may exist, and what it does not need is swept later.
            await blobs.discard(stowed.message, request.message, call.scope)
            raise

    async def _fingerprint(self, message: core.Message, call: CallContext) -> core.Message:
        """Return what the receipt of a message is made of. Raise `InvalidParamsError` for a file that is not here."""
        assert self._blobs is not None
        try:
            return await self._blobs.fingerprint(message, call.scope)
        except BlobNotFoundError:
            raise _no_such_file() from None

    async def _stowed(
        self, request: SendMessageRequest, call: CallContext, receipt: bytes, task_id: str
    ) -> SendMessageRequest:
        """Return the request with the large files of its message moved to the blob store."""
        assert self._blobs is not None
        try:
            done = None
            if self._quotas is not None and not call.parent:
                # Before anything is stored: a message that is refused must not leave its files behind.
                size = await self._blobs.added_bytes(request.message, task_id, call.scope)
                since = self._journal.now() - self._receipt_window
                change = log.Change(
                    task_id=task_id, scope=call.scope, at=self._journal.now(), receipt=receipt, receipt_since=since
                )
                done = await self._take_quota(change, call, is_new=False, files=size)
            try:
                message = await self._blobs.stow(request.message, task_id, call.scope)
            finally:
                if done is not None:
                    done()
        except BlobNotFoundError:
            raise _no_such_file() from None
        return request if message is request.message else msgspec.structs.replace(request, message=message)

    def _create(
        self, request: SendMessageRequest, call: CallContext, receipt: bytes, task_id: str
    ) -> Coroutine[Any, Any, Submission]:
        now = self._journal.now()
        context_id = request.message.context_id
        if not context_id:
            context_id = new_id() if self._identifiers is None else self._identifiers.new_context(task_id)
        message = shallow_copy(request.message)
        message.task_id, message.context_id = task_id, context_id
        status = core.TaskStatus(state=core.SUBMITTED, timestamp=to_iso(now))
        task = core.Task(id=task_id, context_id=context_id, status=status, history=[message])
        events = Batch()
        events.add("task", core.StreamResponse(task=task))
        return self._commit(
            log.StoredTask(task=task, head=log.NEW, scope=call.scope), request, call, receipt, events, now
        )

    async def _continue(self, request: SendMessageRequest, call: CallContext, receipt: bytes) -> Submission:
        message = request.message
        assert message.task_id is not None
        while True:
            stored = await call.load(self._engine, message.task_id)
            if stored.damage:
                await self._engine.set_aside(stored)
                raise errors.TaskTerminalStateError(f"Task {message.task_id} is already failed", taskId=message.task_id)
            check_message(message, self._input_modes)
            check_context(message, stored)
            self._check_room(stored, message)
            if self._blobs is not None:
                message = (await self._stowed(request, call, receipt, stored.task.id)).message
            joined = msgspec.structs.replace(message, context_id=stored.task.context_id)
            try:
                if stored.state in core.PAUSED_STATES and not stored.head.worker and not stored.head.asks:
                    return await self._resume(stored, joined, request, call, receipt)
                return await self._queue(stored, joined, request, call, receipt)
            except (errors.ConcurrencyError, errors.LeaseLostError):
                continue

    async def _answer_in_context(
        self, request: SendMessageRequest, call: CallContext, receipt: bytes
    ) -> Submission | None:
        """Submit the message as the answer to the one task of its context that waits for input, or return None.

        Of two messages at the same time the first is the answer, and the second finds no task that waits.
        """
        while (task_id := await self._waiting_in(request.message.context_id or "", call)) is not None:
            try:
                stored = await call.load(self._engine, task_id)
                if stored.state is not core.INPUT_REQUIRED or stored.head.asks:
                    continue
                message = msgspec.structs.replace(request.message, task_id=task_id)
                self._check_room(stored, message)
                if self._blobs is not None:
                    answer = SendMessageRequest(message=message)
                    message = (await self._stowed(answer, call, receipt, task_id)).message
                # An executor that has asked holds its task until it returns.
                take = self._queue if stored.head.worker else self._resume
                return await take(stored, message, request, call, receipt)
            except (
                errors.ConcurrencyError,
                errors.LeaseLostError,
                errors.TaskNotFoundError,
                errors.TaskTerminalStateError,
            ):
                continue
        return None

    async def _waiting_in(self, context_id: str, call: CallContext) -> str | None:
        """Return the id of the one task of the context that waits for its owner's input, if it is exactly one."""
        found: list[str] = []
        token = ""
        while len(found) < 2:
            query = log.ListQuery(scope=call.scope, context_id=context_id, state=core.INPUT_REQUIRED, page_token=token)
            page = await call.list(self._engine, query)
            found += [stored.task.id for stored in page.tasks if not stored.head.asks]
            token = page.next_page_token
            if not token:
                break
        return found[0] if len(found) == 1 else None

    def _check_room(self, stored: log.StoredTask, message: core.Message) -> None:
        history = stored.task.history or []
        size = len(encode(history))
        if size <= self._max_bytes or stored.state in core.TERMINAL_STATES:
            return
        # A message that was accepted before adds nothing.
        if all(said.message_id != message.message_id for said in history):
            raise errors.PayloadTooLargeError(
                f"The messages of task {stored.task.id} have {size} bytes already, and it takes no more than "
                f"{self._max_bytes}; go on in a new task of the same context"
            )

    async def _resume(
        self,
        stored: log.StoredTask,
        message: core.Message,
        request: SendMessageRequest,
        call: CallContext,
        receipt: bytes,
    ) -> Submission:
        """Submit a paused task again, with the answer to its question."""
        now = self._journal.now()
        events = Batch()
        events.add("status", status_update(stored.task.id, stored.task.context_id or "", core.SUBMITTED, now))
        events.add("message", core.StreamResponse(message=message))
        task = lifecycle.fold_updates(stored.task, events.updates)
        resumed = log.StoredTask(task=task, head=stored.head, scope=stored.scope)
        return await self._commit(resumed, request, call, receipt, events, now)

    def _commit(
        self,
        stored: log.StoredTask,
        request: SendMessageRequest,
        call: CallContext,
        receipt: bytes,
        events: Batch,
        now: int,
    ) -> Coroutine[Any, Any, Submission]:
        """Commit a task that has something to do; the pool runs it at once if there is room."""
        if events.size > LARGE and call.large_reads is not None:
            return self._commit_large(call.large_reads, stored, request, call, receipt, events)
        return self._commit_now(stored, request, call, receipt, events, now)

    async def _commit_large(
        self,
        turns: LargeReads,
        stored: log.StoredTask,
        request: SendMessageRequest,
        call: CallContext,
        receipt: bytes,
        events: Batch,
    ) -> Submission:
        """Do so one at a time: small messages would wait behind all large ones that are on their way to the store."""
        async with turns.one_at_a_time(0):
            return await self._commit_now(stored, request, call, receipt, events, self._journal.now())

    async def _commit_now(
        self,
        stored: log.StoredTask,
        request: SendMessageRequest,
        call: CallContext,
        receipt: bytes,
        events: Batch,
        now: int,
    ) -> Submission:
        options = self._options_of(request, call)
        if options is not log.PLAIN and not options.is_plain:
            events.drafts.append(log.Draft("request", encode(options)))
        is_new, task = not stored.head.version, stored.task
        change = log.Change(
            task_id=task.id,
            scope=call.scope,
            events=events.drafts,
            expected=stored.head.version,
            receipt=receipt,
            receipt_since=now - self._receipt_window,
            at=now,
            state=core.SUBMITTED,
            work=log.READY,
            due_at=now,
            unread=1,
            context_id=task.context_id or "",
            push=self._push_of(request, call, task.id),
            push_limit=self._push_limit,
        )
        is_counted = self._quotas is not None and not call.parent
        done = await self._take_quota(change, call, is_new=is_new) if is_counted else None
        try:
            submitted = await self._pool.commit_and_run(
                stored,
                change,
                events,
                message_id=request.message.message_id,
                options=options,
                request_context=call.request_context,
                # What is delegated is part of a task that was accepted.
                admit=self._backpressure.admit if is_new and not call.parent else None,
                is_delegated=call.parent != "",
            )
        finally:
            if done is not None:
                done()
        return Submission(submitted, events.drafts if is_new else [], is_undecided=self._chooses_reply)

    async def _queue(
        self,
        stored: log.StoredTask,
        message: core.Message,
        request: SendMessageRequest,
        call: CallContext,
        receipt: bytes,
    ) -> Submission:
        """Add the message to a task that is at work or waits for a review; it waits for the next turn."""
        if stored.head.unread >= MAX_WAITING:
            raise errors.OverloadedError(
                f"{stored.head.unread} messages wait in task {stored.task.id} already; "
                "send this one again when some of them have been dealt with",
                retry_after=60,
            )
        now = self._journal.now()
        options = self._options_of(request, call)
        drafts = [log.Draft("message", encode(core.StreamResponse(message=message)))]
        if not options.is_plain:
            drafts.append(log.Draft("request", encode(options)))
        change = log.Change(
            task_id=stored.task.id,
            scope=call.scope,
            events=drafts,
            # Once the review is answered, the task may end without a turn for the message.
            expected=stored.version if stored.head.asks else None,
            expected_states=frozenset({stored.state}),
            fence=None if stored.head.asks else stored.pause_fence,
            receipt=receipt,
            receipt_since=now - self._receipt_window,
            at=now,
            unread=1,
            push=self._push_of(request, call, stored.task.id),
            push_limit=self._push_limit,
        )
        if stored.state in core.TERMINAL_STATES:
            # The terminal guard refuses it, but only after a repeated message has been recognised.
            change = msgspec.structs.replace(change, state=core.SUBMITTED)
        with self._pool.keeping_context(stored.task.id, message.message_id, call.request_context):
            is_counted = self._quotas is not None and not call.parent
            done = await self._take_quota(change, call, is_new=False) if is_counted else None
            try:
                await self._journal.commit(change)
            finally:
                if done is not None:
                    done()
        stored = await self._engine.load(stored.task.id, call.scope)
        return Submission(stored, queued=True)

    async def _take_quota(
        self, change: log.Change, call: CallContext, *, is_new: bool, files: int = 0
    ) -> Callable[[], None]:
        """Count a message, or its files, against the quotas of its sender, and return what to call when it is stored.

        Raise a `QuotaError`, but `DuplicateMessageError` for a message that was accepted before.
        """
        assert self._quotas is not None
        try:
            return await self._quotas.take(change, is_new=is_new, names_tenant=call.names_tenant, files=files)
        except errors.QuotaError:
            await check_receipt(self._engine, change)
            raise

    def _push_of(self, request: SendMessageRequest, call: CallContext, task_id: str) -> log.PushConfig | None:
        """Return the webhook that the sender registers for the task."""
        configuration = request.configuration
        if configuration is None or (config := configuration.task_push_notification_config) is None:
            return None
        field = "configuration.taskPushNotificationConfig."
        return read_config(config, task_id, call.protocol, self._guard, field)

    def _options_of(self, request: SendMessageRequest, call: CallContext) -> log.RequestOptions:
        """Return what the sender asked for beside the message; only executors are shown all of it."""
        configuration = request.configuration
        depth = call.depth or (delegation_depth(request.message.metadata) if request.message.metadata else 0)
        trace = None if tracing.tracer is None else tracing.tracer.recorded()
        if configuration is None:
            if not (request.metadata or call.extensions or call.parent or call.email or depth or call.address or trace):
                return log.PLAIN
            configuration = SendMessageConfiguration()
        is_executor = self._chooses_reply
        return log.RequestOptions(
            message_id=request.message.message_id,
            accepted_output_modes=configuration.accepted_output_modes or [],
            metadata=request.metadata or {},
            extensions=call.extensions,
            history_length=configuration.history_length if is_executor else None,
            return_immediately=configuration.return_immediately and is_executor,
            email=call.email,
            parent=call.parent,
            depth=depth,
            caller=call.caller if call.address else "",
            address=call.address,
            trace=trace,
        )


class Backpressure:
    """Refuses new tasks of an agent while its queue is too far behind.

    Only tasks that would have to wait are judged, so one that can be run at once never asks the store.
    """

    def __init__(self, engine: Engine, agent: str, max_age: float | None) -> None:
        self._engine = engine
        self._agent = agent
        self._max_age = max_age
        self._asked_at = -math.inf
        #: Seconds.
        self._age = 0.0
        self._is_behind = False

    async def admit(self, change: log.Change) -> None:
        """Raise `OverloadedError` if the change makes a new task, and the queue is too far behind for it.

        A message that was accepted before still finds its task: that raises `DuplicateMessageError`.
        """
        if self._max_age is None:
            return
        was_behind, self._is_behind = self._is_behind, await self._queue_age() > self._max_age
        if not self._is_behind:
            return
        if not was_behind:
            logger.warning(
                "tasks of %s have waited for %.0f s, longer than max_queue_age allows, so new ones are refused: "
                "start more workers, or find out why those that run claim no tasks",
                self._agent,
                self._age,
            )
        await check_receipt(self._engine, change)
        raise errors.OverloadedError(
            f"Tasks of this agent have waited for {self._age:.0f} s to be taken up, so no new one is accepted now; "
            "send the message again later",
            retry_after=min(max(math.ceil(self._age - self._max_age), 1), _MAX_RETRY_AFTER),
        )

    async def _queue_age(self) -> float:
        now = self._engine.clock()
        if abs(now - self._asked_at) >= _FRESH:  # a clock may be set back
            # Set before the answer has come, so that concurrent requests do not ask again.
            self._asked_at = now
            self._age = (await self._engine.queue_age([self._agent]) or 0) / 1000
        return self._age


async def check_receipt(engine: Engine, change: log.Change) -> None:
    """Raise `DuplicateMessageError` if the message of a change that is refused was accepted before."""
    # The receipt is checked first, and the version always fails.
    known = log.Change(
        task_id=change.task_id,
        scope=change.scope,
        expected=NEVER,
        receipt=change.receipt,
        receipt_since=change.receipt_since,
        at=change.at,
    )
    with suppress(errors.ConcurrencyError):
        await engine.commit(known)


def _no_such_file() -> errors.InvalidParamsError:
    return errors.InvalidParamsError(
        "A part refers to a file that is not kept here, or no longer; upload it again", field="message.parts"
    )


def check_context(message: core.Message, stored: log.StoredTask) -> None:
    """Raise `ContextMismatchError` if the message names another context than that of its task."""
    if message.context_id and message.context_id != stored.task.context_id:
        raise errors.ContextMismatchError(
            f"Task {message.task_id} belongs to another context than {message.context_id}", field="message.contextId"
        )


def check_message(message: core.Message, input_modes: list[str]) -> None:
    """Raise `InvalidParamsError` or `ContentTypeNotSupportedError` for a message that the agent does not accept."""
    if message.role is not core.USER:
        raise errors.InvalidParamsError("message.role must be ROLE_USER", field="message.role")
    if message.metadata and is_review(message):
        raise errors.InvalidParamsError(
            f"message.metadata must not have the key {REVIEW}: only the server sets it", field="message.metadata"
        )
    if message.context_id and len(message.context_id.encode("utf-8", "replace")) > MAX_CONTEXT_ID:
        raise errors.InvalidParamsError(
            f"message.contextId has more than {MAX_CONTEXT_ID} bytes", field="message.contextId"
        )
    for index, part in enumerate(message.parts):
        if part.text is not None and part.media_type is None and "text/plain" in input_modes:
            continue  # nearly every part
        media_type = media_type_of(part)
        if media_type is not None and media_type not in input_modes and not _matches(media_type, input_modes):
            raise errors.ContentTypeNotSupportedError(
                f"This agent does not accept {media_type}; it accepts {', '.join(input_modes)}",
                mediaType=media_type,
                part=index,
            )


def media_type_of(part: core.Part) -> str | None:
    """Return the type that the part names or that follows from its content, or None if it is unknown."""
    if part.media_type:
        return part.media_type.partition(";")[0].strip().lower()
    if part.text is not None:
        return "text/plain"
    if part.data is not UNSET:
        return "application/json"
    return None


def _matches(media_type: str, modes: list[str]) -> bool:
    if not modes:
        return True
    family = media_type.partition("/")[0] + "/*"
    return any(mode.lower() in (media_type, family, "*/*", "*") for mode in modes)


def receipt_of(message: core.Message) -> bytes:
    """Return the digest by which a message that is sent again is recognised.

    Engines keep receipts apart by scope, so the same message of another caller is another message.
    """
    return hashlib.blake2b(encode(message), digest_size=16).digest()


def delegation_depth(metadata: dict[str, Any]) -> int:
    """Return how often the work was delegated, as the metadata of its message says; 0 if that makes no sense."""
    depth = metadata.get(DELEGATION_DEPTH)
    if isinstance(depth, float) and depth.is_integer():
        depth = int(depth)  # some bindings have no integers
    if not isinstance(depth, int) or isinstance(depth, bool):
        return 0
    return min(max(depth, 0), _MAX_DEPTH)
