"""Reviews: the question of `review(user)`, the answer of the one user who is asked, and how it reaches the task.

Question and answer are in the task's history with the mark `REVIEW`, so that the agent does not take them as messages.
`ReviewDesk` lists and answers reviews for programs that have only the store, such as the command line.
`ReviewingTaskManager` does so for callers of the protocol, who may be asked to review another caller's task.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import UNSET

from errands import errors, lifecycle
from errands.clock import to_iso
from errands.engines.base import Engine
from errands.model import core
from errands.model.base import encode
from errands.model.log import READY, AskingQuery, Change, StoredTask
from errands.model.marks import REVIEW, is_review
from errands.model.requests import GetTaskRequest, SendMessageRequest, SendMessageResponse, SubscribeToTaskRequest
from errands.policy import records
from errands.policy.cel.session import Call
from errands.policy.records import Answered, AnyRecord, OutputHeld, Waiting
from errands.policy.run import stored_records
from errands.runtime.call import CallContext
from errands.runtime.executor import Identifiers
from errands.runtime.journal import Batch, Journal, new_id, status_update
from errands.runtime.pool import WorkerPool
from errands.runtime.settings import Settings
from errands.runtime.streams import EventStream, StreamItem, snapshot
from errands.runtime.submission import Submission, check_context, check_message, receipt_of
from errands.runtime.task_manager import TaskManager

logger = logging.getLogger(__name__)

#: How much of a subject a question shows: as data, in bytes of JSON, and in its text, in characters.
SUBJECT_BYTES = 16_000
SUBJECT_CHARACTERS = 1_000

_ANSWER = re.compile(r"\s*(approved?|yes|deny|denied|no)(?![^\s:;,.!-])[\s:;,.!-]*(.*)", re.IGNORECASE | re.DOTALL)
_HOW_TO_ANSWER = (
    'answer with a text that begins with "approve" or "deny", or with a data part such as '
    '{"approved": true, "comment": "looks good"}'
)
_decode = msgspec.json.Decoder(core.StreamResponse).decode


# Questions


def reviewer(user: str) -> str:
    """Return the name of a user as reviews compare it: e-mail addresses without regard to case."""
    name = user.strip()
    return name.lower() if "@" in name else name


def reviewer_of(call: Call) -> str:
    """Return the user that `review(user)` asks. Raises `ValueError` when it names none."""
    user = call.arguments[0] if call.arguments else None
    if not isinstance(user, str) or not reviewer(user):
        raise ValueError(f"{call}: name the user who is to review, by id or e-mail address")
    return reviewer(user)


def asked_in(message: core.Message) -> str | None:
    """Return the user that the question of a review asks, as the message says, which may come from any agent."""
    mark = (message.metadata or {}).get(REVIEW)
    user = mark.get("user") if isinstance(mark, dict) else None
    return user if isinstance(user, str) else None


def review_message(
    call: Call,
    subject: Any,
    *,
    task_id: str,
    context_id: str | None,
    function: str | None = None,
    held: bool = False,
) -> core.Message:
    """Return the question of `review(user)`.

    `subject` is what is to be reviewed, as JSON: the arguments of a call of `function`, or something else. The question
    does not show it when the task's owner must not see it yet and it is `held`; see `revealed`.
    """
    user = reviewer_of(call)
    if held:
        parts = [core.Part(text=f"Waiting for a review by {user}.")]
    else:
        encoded = encode(subject)
        review = {"user": user, **({"function": function} if function else {}), "subject": subject}
        if len(encoded) > SUBJECT_BYTES:
            review |= {"subject": encoded[:SUBJECT_BYTES].decode(errors="ignore") + "…", "truncated": True}
        words = subject if isinstance(subject, str) else encoded.decode()
        if len(words) > SUBJECT_CHARACTERS:
            words = words[:SUBJECT_CHARACTERS] + "…"
        about = f"{function} {words}" if function else words
        text = f"Waiting for a review by {user}: {about}\nThe answer is approve or deny, and a comment if there is one."
        parts = [core.Part(text=text), core.Part(data={"review": review}, media_type="application/json")]
    return core.Message(
        message_id=new_id(),
        role=core.Role.AGENT,
        parts=parts,
        task_id=task_id,
        context_id=context_id,
        metadata={REVIEW: {"user": user, "held": True} if held else {"user": user}},
    )


# Answers


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to a review."""

    approved: bool
    comment: str | None = ""

    def __str__(self) -> str:
        word = "approved" if self.approved else "denied"
        return f"{word}: {self.comment}" if self.comment else word


def verdict_message(
    verdict: Verdict, by: str, *, task_id: str, context_id: str | None, message_id: str = ""
) -> core.Message:
    """Return the answer as the history keeps it."""
    return core.Message(
        message_id=message_id or new_id(),
        role=core.Role.USER,
        parts=[core.Part(text=str(verdict))],
        task_id=task_id,
        context_id=context_id,
        metadata={REVIEW: {"user": by, "approved": verdict.approved}},
    )


def read_verdict(message: core.Message) -> Verdict:
    """Return the answer in a message: its data part or else its text. Raises `InvalidParamsError`."""
    data = [part.data for part in message.parts if part.data is not UNSET]
    text = core.text_of(message.parts).strip()
    with suppress(ValueError, msgspec.ValidationError):
        if data:
            [answer] = (msgspec.convert(one, Verdict) for one in data)
            return Verdict(answer.approved, (answer.comment or text).strip())
        if (match := _ANSWER.fullmatch(text)) is not None:
            return Verdict(match[1].lower() in ("approve", "approved", "yes"), match[2].strip())
    problem = f"Task {message.task_id} waits for your review: {_HOW_TO_ANSWER}. Nothing has changed"
    raise errors.InvalidParamsError(problem, field="message.parts")


# The desk


class Review(msgspec.Struct, frozen=True, kw_only=True):
    """A task that waits for a review."""

    task_id: str
    context_id: str | None
    agent: str
    owner: str
    tenant: str
    #: The only user who may answer.
    user: str
    #: Since when it waits, in milliseconds.
    since: int
    #: The function whose call is reviewed; empty when it is not a call.
    function: str = ""
    #: What is reviewed, such as the arguments of the call; None when the task does not say.
    subject: Any
    text: str

    @classmethod
    def of(cls, stored: StoredTask) -> Review:
        """Return the review that a task waits for, as the user who is asked sees it."""
        message = stored.task.status.message
        parts = [] if message is None else message.parts
        data = (part.data for part in parts if part.data is not UNSET and isinstance(part.data, dict))
        asked: dict[str, Any] = next((one["review"] for one in data if isinstance(one.get("review"), dict)), {})
        return cls(
            task_id=stored.task.id,
            context_id=stored.task.context_id,
            agent=stored.scope.agent,
            owner=stored.scope.owner,
            tenant=stored.scope.tenant,
            user=stored.head.asks,
            since=stored.head.status_at,
            function=asked.get("function", ""),
            subject=asked.get("subject"),
            text=core.text_of(parts),
        )


Reviews = list[Review]


class ReviewDesk:
    """Lists the tasks that wait for a review, and writes the answers."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._engine = journal.engine

    async def list(self, *, agent: str | None = None, user: str | None = None, limit: int = 1000) -> Reviews:
        """Return the reviews of all owners that are pending, the longest waiting first."""
        users = None if user is None else (reviewer(user),)
        query = AskingQuery(agent=agent, users=users, limit=limit)
        return [Review.of(await revealed(self._engine, stored)) for stored in await self._engine.asking(query)]

    async def answer(
        self, task_id: str, approved: bool, *, by: str, comment: str = "", since: int | None = None
    ) -> StoredTask:
        """Answer the review that `task_id` waits for, as `by`, who must be the one that is asked.

        `since` is that of `settle`. Raises `PermissionDeniedError` when another user is asked, and
        `UnsupportedOperationError` when the task does not wait for a review.
        """
        query = AskingQuery(task_id=task_id, users=(reviewer(by),))
        if not await self._engine.asking(query) and (others := await self._engine.asking(AskingQuery(task_id=task_id))):
            asked = others[0].head.asks
            raise errors.PermissionDeniedError(
                f"Task {task_id} waits for a review by {asked}, not by {by}; only {asked} may answer"
            )
        return await self.settle(query, Verdict(approved, comment.strip()), since=since)

    async def settle(
        self,
        query: AskingQuery,
        verdict: Verdict,
        *,
        message_id: str = "",
        receipt: bytes | None = None,
        receipt_since: int = 0,
        since: int | None = None,
    ) -> StoredTask:
        """Answer the one task that `query` finds: it is submitted again, and its next turn finds the answer.

        `since` is when the review that was read began (`Review.since`), if that is known: a task may ask again.

        Message, record, state and queueing are one commit, so of two answers one is written and the other raises
        `UnsupportedOperationError`, as does one that comes too late. The task is returned without its artifacts.
        """
        while True:
            found = await self._engine.asking(query)
            if not found:
                raise errors.UnsupportedOperationError(
                    f"Task {query.task_id} does not wait for a review: it has been answered, the task has ended, or "
                    "the task does not exist",
                    taskId=query.task_id,
                )
            if since is not None and found[0].head.status_at != since:
                raise errors.UnsupportedOperationError(
                    f"Task {query.task_id} waits for another review by now: read it before you answer",
                    taskId=query.task_id,
                )
            try:
                return await self._settle(found[0], verdict, message_id, receipt, receipt_since)
            except errors.ConcurrencyError:
                # The owner may have sent a message meanwhile; the task still waits then.
                continue

    async def _settle(
        self, stored: StoredTask, verdict: Verdict, message_id: str, receipt: bytes | None, receipt_since: int
    ) -> StoredTask:
        task, by, now = stored.task, stored.head.asks, self._journal.now()
        waiting = await self._waiting(stored)
        message = verdict_message(verdict, by, task_id=task.id, context_id=task.context_id, message_id=message_id)
        answered = Answered(
            at=to_iso(now),
            call=waiting.call,
            key=waiting.key,
            value=verdict.approved,
            by=by,
            message_id=message.message_id,
        )
        events = Batch()
        events.add("status", status_update(task.id, task.context_id or "", core.SUBMITTED, now))
        events.add("message", core.StreamResponse(message=message))
        events.note(records.encode(answered))
        change = Change(
            task_id=task.id,
            scope=stored.scope,
            events=events.drafts,
            expected=stored.version,
            receipt=receipt,
            receipt_since=receipt_since,
            at=now,
            state=core.SUBMITTED,
            work=READY,
            due_at=now,
        )
        head = await self._journal.commit(change)
        return StoredTask(task=lifecycle.fold_updates(task, events.updates), head=head, scope=stored.scope)

    async def _waiting(self, stored: StoredTask) -> Waiting:
        """Return the record of what the task waits for."""
        task, by = stored.task, stored.head.asks
        try:
            waiting = open_review(await stored_records(self._engine, task.id, stored.scope), by)
        except errors.DamagedTaskError as error:
            await self._engine.set_aside(stored)
            logger.error("task %s waited for a review and ends as failed: %s", task.id, error)
            raise errors.UnsupportedOperationError(
                f"What task {task.id} waits for cannot be read, so it has failed", taskId=task.id
            ) from None
        if waiting is not None:
            return waiting
        if (await self._engine.load(task.id, stored.scope)).version != stored.version:
            raise errors.ConcurrencyError(f"task {task.id} was answered meanwhile")
        raise errors.UnsupportedOperationError(
            f"Task {task.id} waits for {by}, but its log does not say for what, so it cannot go on. Cancel it",
            taskId=task.id,
        )


async def revealed(engine: Engine, stored: StoredTask) -> StoredTask:
    """Return the task as the user who is asked sees it: with what is held back from its owner."""
    question = stored.task.status.message
    if question is None or not is_review(question) or not (question.metadata or {})[REVIEW].get("held"):
        return stored
    try:
        known = await stored_records(engine, stored.task.id, stored.scope)
    except errors.DamagedTaskError:
        # Without it, the other pending reviews could not be listed. An answer is refused.
        return stored
    waiting = open_review(known, stored.head.asks)
    if waiting is None:
        return stored
    held = next((record.values for record in reversed(known) if isinstance(record, OutputHeld)), None)
    subject = held if waiting.subject is None else waiting.subject
    message = review_message(waiting.call, subject, task_id=stored.task.id, context_id=stored.task.context_id)
    message.message_id = question.message_id
    status = msgspec.structs.replace(stored.task.status, message=message)
    return msgspec.structs.replace(stored, task=msgspec.structs.replace(stored.task, status=status))


def open_review(known: Iterable[AnyRecord], user: str) -> Waiting | None:
    """Return the first review by `user` that has no answer yet."""
    waiting: dict[tuple[str, str], Waiting] = {}
    for record in known:
        if isinstance(record, Waiting) and reviewer_of(record.call) == user:
            waiting.setdefault((record.key, record.call.key), record)
        elif isinstance(record, Answered):
            waiting.pop((record.key, record.call.key), None)
    return next(iter(waiting.values()), None)


# Reviewers


class ReviewingTaskManager(TaskManager):
    """The operations of one agent, with access for reviewers.

    A caller who is asked to review another caller's task sees its status and can answer it, and nothing else.
    """

    def __init__(
        self,
        pool: WorkerPool,
        agent: str,
        *,
        input_modes: list[str],
        settings: Settings,
        identifiers: Identifiers | None = None,
        inner: Collection[str] = (),
    ) -> None:
        """`inner` are agents that only this server reaches. Reviews of their tasks are answered here, too."""
        super().__init__(pool, agent, input_modes=input_modes, settings=settings, identifiers=identifiers)
        self._journal = pool.handlers[agent].journal
        self._desk = ReviewDesk(self._journal)
        self._inner = inner

    async def _send_to_task(self, request: SendMessageRequest, call: CallContext) -> SendMessageResponse:
        try:
            return await self._send(request, call, request.message.task_id or "")
        except errors.TaskNotFoundError:
            answered = await self._answer_of_another(request.message, call)
            if answered is None:
                raise
            return SendMessageResponse(task=shown_to_reviewer(answered.task))

    async def _stream_to_task(self, request: SendMessageRequest, call: CallContext) -> EventStream:
        try:
            return self._follow(await self._continue(request, call), request)
        except errors.TaskNotFoundError:
            answered = await self._answer_of_another(request.message, call)
            if answered is None:
                raise
            return self._follow_as_reviewer(answered, core.SETTLED_STATES)

    async def get_task(self, request: GetTaskRequest, call: CallContext) -> core.Task:
        try:
            return await super().get_task(request, call)
        except errors.TaskNotFoundError:
            asking = await self._asking(request.id, call)
            if asking is None:
                raise
            return shown_to_reviewer((await revealed(self._engine, asking)).task)

    async def subscribe_to_task(self, request: SubscribeToTaskRequest, call: CallContext) -> EventStream:
        try:
            return await super().subscribe_to_task(request, call)
        except errors.TaskNotFoundError:
            asking = await self._asking(request.id, call)
            if asking is None:
                raise
            until = core.SETTLED_STATES if call.ends_at_pause else core.TERMINAL_STATES
            return self._follow_as_reviewer(await revealed(self._engine, asking), until)

    async def _load(self, task_id: str, call: CallContext) -> StoredTask:
        stored = await call.load(self._engine, task_id)
        is_asked = bool(stored.head.asks) and stored.head.asks in names_of(call)
        return await revealed(self._engine, stored) if is_asked else stored

    async def _continue(self, request: SendMessageRequest, call: CallContext) -> Submission:
        """Take a message to the caller's own task as the answer, if the task asks the caller."""
        message = request.message
        if message.task_id and names_of(call):
            asking = await self._asking(message.task_id, call)
            if asking is not None and asking.scope == call.scope:
                await self._answer(asking, message, call, receipt_of(message))
                return Submission(await self._engine.load(message.task_id, call.scope))
        return await self._submitter.submit(request, call, message.task_id or "")

    async def _answer_of_another(self, message: core.Message, call: CallContext) -> StoredTask | None:
        """Answer the review that another caller's task waits for; None when the caller is not asked."""
        asking = await self._asking(message.task_id, call) if message.task_id else None
        if asking is None:
            return None
        # Engines keep receipts apart by owner, and the task belongs to another one.
        answered = await self._answer(asking, message, call, None)
        if call.on_accepted is not None:
            call.on_accepted()
        return answered

    async def _answer(
        self, asking: StoredTask, message: core.Message, call: CallContext, receipt: bytes | None
    ) -> StoredTask:
        self._submitter.check_open()
        # A review is not for the agent, so the input modes of the agent do not matter.
        check_message(message, [])
        check_context(message, asking)
        return await self._desk.settle(
            AskingQuery(
                task_id=asking.task.id, tenant=call.scope.tenant, agent=asking.scope.agent, users=names_of(call)
            ),
            read_verdict(message),
            message_id=message.message_id,
            receipt=receipt,
            receipt_since=self._journal.now() - int(self._settings.idempotency_window * 1000),
        )

    async def _asking(self, task_id: str, call: CallContext) -> StoredTask | None:
        """Return the task if it waits for a review by the caller, without its artifacts."""
        if not (users := names_of(call)):
            return None
        query = AskingQuery(task_id=task_id, tenant=call.scope.tenant, users=users)
        for found in await self._engine.asking(query):
            if found.scope.agent == call.scope.agent or found.scope.agent in self._inner:
                return found
        return None

    def _follow_as_reviewer(self, stored: StoredTask, until: frozenset[core.TaskState]) -> EventStream:
        stream = self._streams.follow(stored, until, [snapshot(stored)])

        async def batches() -> AsyncIterator[list[StreamItem]]:
            is_first = True
            async for items in stream:
                shown = [one for one in (_shown_item(item, is_first) for item in items) if one is not None]
                if shown or not items:
                    yield shown
                is_first = False

        return EventStream(batches(), stream.close)


def shown_to_reviewer(task: core.Task) -> core.Task:
    """Return what a reviewer sees of a task: what was said to others and what it made stays with its owner."""
    return core.Task(id=task.id, context_id=task.context_id, status=task.status)


def _shown_item(item: StreamItem, is_first: bool) -> StreamItem | None:
    """Return what a reviewer sees of an event: the question, and then which states the task goes through."""
    response = _decode(item.data)
    if response.task is not None:
        task = shown_to_reviewer(response.task)
        task = task if is_first else msgspec.structs.replace(task, status=_without_message(task.status))
        return item._replace(data=encode(core.StreamResponse(task=task)))
    if response.status_update is not None:
        status = _without_message(response.status_update.status)
        update = msgspec.structs.replace(response.status_update, status=status, metadata=None)
        return item._replace(data=encode(core.StreamResponse(status_update=update)))
    return None


def _without_message(status: core.TaskStatus) -> core.TaskStatus:
    return core.TaskStatus(state=status.state, timestamp=status.timestamp)


def names_of(call: CallContext) -> tuple[str, ...]:
    """Return the names under which the caller may be asked."""
    return tuple(reviewer(name) for name in (call.caller, call.email) if name)
