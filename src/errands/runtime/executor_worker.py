"""`ExecutorWorker`: runs an `AgentExecutor` as a worker, and `TurnQueue`, to which it publishes."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from errands import errors
from errands.clock import to_iso
from errands.errors import InvalidAgentResponseError
from errands.model import core
from errands.model.log import EventKind
from errands.model.requests import SendMessageConfiguration, SendMessageRequest
from errands.runtime.context import TaskContext
from errands.runtime.executor import (
    AgentExecutor,
    Event,
    EventQueue,
    RequestContext,
    RequestContextBuilder,
    ServerCallContext,
    SimpleRequestContextBuilder,
    User,
    turn_overseer,
)
from errands.runtime.journal import new_id, status_update
from errands.runtime.turn import Turn
from errands.runtime.validation import own_task, reread
from errands.runtime.worker import TurnWorker

logger = logging.getLogger(__name__)


class ExecutorWorker(TurnWorker):
    """Runs an executor's `execute` as a turn, and its `cancel` when the task is to be canceled."""

    chooses_reply: ClassVar[bool] = True

    def __init__(
        self,
        executor: AgentExecutor,
        request_context_builder: RequestContextBuilder | None = None,
        extensions: Iterable[str] = (),
    ) -> None:
        self.executor = executor
        self.builder = request_context_builder or SimpleRequestContextBuilder()
        self.on_interrupted = executor.on_interrupted
        #: The extensions on the agent's card.
        self._extensions = frozenset(extensions)

    async def handle_turn(self, turn: Turn) -> None:
        context = await self._build_context(turn)
        if not turn.is_cancelled:
            queue = TurnQueue(turn, task_known=not _is_untouched(turn.stored.task))
            if await self._execute(turn, context, queue) and await self._conclude(turn, queue):
                return
        await self._cancel(turn, context)

    async def _execute(self, turn: Turn, context: RequestContext, queue: TurnQueue) -> bool:
        """Call `execute`, and return whether it came to its end without being canceled."""
        try:
            await turn.until_cancelled(self.executor.execute(context, queue))
        except (errors.LeaseLostError, errors.TaskTerminalStateError, errors.StorageError):
            raise
        except errors.A2AError as error:
            queue.violation = queue.violation or error
        except Exception as error:
            if not turn.is_cancelled:
                raise
            logger.info("execute of task %s failed while it was canceled", turn.task_id, exc_info=error)
        finally:
            await queue.close()
        return not turn.is_cancelled

    async def _conclude(self, turn: Turn, queue: TurnQueue) -> bool:
        """End the turn of an `execute` that is over; return False if the task is to be canceled instead."""
        refusal = queue.violation
        if refusal is not None:
            logger.error("executor of task %s: %s", turn.task_id, refusal)
        if turn.ended:
            return True
        if isinstance(refusal, InvalidAgentResponseError):
            await turn.give_up(f"The agent gave an invalid response: {refusal}.")
        elif refusal is not None:
            # Other errors of the protocol are written for clients.
            await turn.give_up(refusal.message)
        elif queue.pause is not None:
            return await turn.rest(queue.pause)
        else:
            logger.error("execute of task %s returned without an end", turn.task_id)
            await turn.give_up(
                "The agent returned without finishing the task: an executor must publish a Message, or a state that "
                "ends the task or asks for something, before it returns."
            )
        return True

    async def _cancel(self, turn: Turn, context: RequestContext) -> None:
        """Call `cancel`, unless `execute` has ended the task. Whatever it does, the task is canceled then."""
        if turn.settled or (turn.ended and not await turn.reopen()):
            return
        context.current_task = own_task(turn.task)
        queue = TurnQueue(turn, task_known=True)
        try:
            await self.executor.cancel(context, queue)
        except (errors.LeaseLostError, errors.TaskTerminalStateError, errors.StorageError):
            raise
        except Exception as error:
            logger.error("cancel of task %s failed; the task is canceled anyway", turn.task_id, exc_info=error)
        finally:
            await queue.close()
        if not turn.ended:
            await turn.end(core.TaskState.CANCELED)

    async def _build_context(self, turn: Turn) -> RequestContext:
        ctx, task, scope = TaskContext(turn), turn.stored.task, turn.stored.scope

        async def get_task(task_id: str) -> core.Task | None:
            try:
                return own_task((await turn.journal.engine.load(task_id, scope)).task)
            except errors.TaskNotFoundError:
                return None

        call = ServerCallContext(
            state=turn.request_context,
            user=User(scope.owner),
            tenant=scope.tenant,
            requested_extensions=ctx.requested_extensions,
            activated_extensions=ctx.requested_extensions & self._extensions,
            get_task=get_task,
        )
        options, configuration = turn.options, None
        if options.accepted_output_modes or options.history_length is not None or options.return_immediately:
            configuration = SendMessageConfiguration(
                accepted_output_modes=list(options.accepted_output_modes) or None,
                history_length=options.history_length,
                return_immediately=options.return_immediately,
            )
        request = SendMessageRequest(
            message=ctx.message,
            tenant=scope.tenant or None,
            configuration=configuration,
            metadata=ctx.request_metadata or None,
        )
        current = None if _is_untouched(task) else own_task(task)
        context = await self.builder.build(call, request, ctx.task_id, ctx.context_id, current)
        context.attempt = turn.attempt
        turn_overseer.set(turn.overseen)
        return context


def _is_untouched(task: core.Task) -> bool:
    """Return whether the agent has not written to the task yet, which has its first message only."""
    return (
        task.status.state is core.TaskState.SUBMITTED
        and task.status.message is None
        and len(task.history or ()) <= 1
        and not task.artifacts
        and not task.metadata
    )


class TurnQueue(EventQueue):
    """Checks what an executor publishes and writes it to a turn.

    `task_known` says that the client knows the task already, so that a `Message` comes too late.
    """

    def __init__(self, turn: Turn, *, task_known: bool) -> None:
        self._turn = turn
        self._now = turn.journal.now
        self._task_known = task_known
        self._answered = False
        self._closed = False
        #: The pause that was published last, while nothing has followed it.
        self.pause: core.TaskState | None = None
        #: The error of the first invalid event, or with which the executor refused the request; after it the queue
        #: takes no more events.
        self.violation: errors.A2AError | None = None

    def is_closed(self) -> bool:
        return self._closed or self._turn.refusal is not None

    async def close(self) -> None:
        self._closed = True

    async def enqueue_event(self, event: Event) -> None:
        if (refusal := self._turn.refusal) is not None:
            raise refusal
        if self._closed:
            raise errors.TurnError(
                "The event queue is closed: nothing can be published once execute or cancel has returned"
            )
        if self.violation is not None:
            raise self.violation
        name = type(event).__name__
        try:
            if self._answered:
                raise InvalidAgentResponseError(f"a {name} after a Message: a Message is the whole answer")
            if self._turn.ended:
                raise InvalidAgentResponseError(f"a {name} after a terminal state: the task has ended")
            if isinstance(event, core.Message):
                if self._task_known:
                    raise InvalidAgentResponseError(
                        "a Message after a Task: send words to a task's user in a TaskStatusUpdateEvent"
                    )
                message = reread(self._spoken(event))
                self._answered = True
                await self._turn.end(core.TaskState.COMPLETED, message=message, direct=True)
            elif isinstance(event, core.TaskArtifactUpdateEvent):
                self._check_ids(event.task_id, event.context_id)
                _check_artifact(event.artifact)
                event = msgspec.structs.replace(event, task_id=self._turn.task_id, context_id=self._turn.context_id)
                await self._emit("artifact", core.StreamResponse(artifact_update=event))
            elif isinstance(event, core.TaskStatusUpdateEvent):
                self._check_ids(event.task_id, event.context_id)
                await self._status(self._checked(event.status), event.metadata)
            elif isinstance(event, core.Task):
                await self._task(event)
            else:
                raise InvalidAgentResponseError(
                    "an executor publishes Task, Message, TaskStatusUpdateEvent and TaskArtifactUpdateEvent, "
                    f"not {type(event).__module__}.{name}"
                )
        except InvalidAgentResponseError as error:
            self.violation = error
            raise

    def _check_ids(self, task_id: str | None, context_id: str | None) -> None:
        if task_id and task_id != self._turn.task_id:
            raise InvalidAgentResponseError(f"an event for task {task_id} in the queue of task {self._turn.task_id}")
        if context_id and context_id != self._turn.context_id:
            raise InvalidAgentResponseError(
                f"an event for context {context_id} in the queue of context {self._turn.context_id}"
            )

    async def _status(self, status: core.TaskStatus, metadata: dict[str, Any] | None = None) -> None:
        turn, state = self._turn, status.state
        update = status_update(turn.task_id, turn.context_id, state, self._now(), status.message, metadata)
        if state in core.TERMINAL_STATES:
            last = reread(update).status_update
            assert last is not None
            await self._after_pause()
            await turn.end(state, message=last.status.message, metadata=last.metadata)
            return
        await self._emit("status", update)
        self.pause = state if state in core.PAUSED_STATES else None

    async def _task(self, task: core.Task) -> None:
        """Publish what is new in a task, and its status."""
        self._check_ids(task.id, task.context_id)
        status = self._checked(task.status)
        current = self._turn.task
        known = {message.message_id for message in current.history or ()}
        # Those of the user are in the log before the agent sees them.
        new = (one for one in task.history or () if one.role is core.Role.AGENT and one.message_id not in known)
        said = [self._spoken(message) for message in new]
        artifacts = new_artifacts(current, task)
        for artifact in artifacts:
            _check_artifact(artifact)
        settles = status.state in core.SETTLED_STATES
        if said or task.metadata or not settles:
            shown = msgspec.structs.replace(
                current,
                status=current.status if settles else status,
                history=[*(current.history or ()), *said] or None,
                metadata={**(current.metadata or {}), **(task.metadata or {})} or None,
            )
            await self._emit("task", core.StreamResponse(task=shown))
        for artifact in artifacts:
            update = core.TaskArtifactUpdateEvent(self._turn.task_id, self._turn.context_id, artifact)
            await self._emit("artifact", core.StreamResponse(artifact_update=update))
        if settles:
            await self._status(status)

    async def _emit(self, kind: EventKind, update: core.StreamResponse) -> None:
        update = reread(update)
        await self._after_pause()
        self._task_known = True
        if self._turn.emit(kind, update):
            await self._turn.catch_up()

    async def _after_pause(self) -> None:
        """Make the last pause durable before the task continues, so that clients see it."""
        if self.pause is not None:
            self.pause = None
            await self._turn.catch_up()

    def _spoken(self, message: core.Message) -> core.Message:
        """Return a message as it is added to the task: of the agent, and with all identifiers."""
        self._check_ids(message.task_id, message.context_id)
        if not message.parts:
            raise InvalidAgentResponseError("a Message without parts: it needs at least one")
        return msgspec.structs.replace(
            message,
            message_id=message.message_id or new_id(),
            role=core.Role.AGENT,
            task_id=self._turn.task_id,
            context_id=self._turn.context_id,
        )

    def _checked(self, status: core.TaskStatus) -> core.TaskStatus:
        """Return a status as it is added to the task, at this server's time."""
        if status.state is core.TaskState.UNSPECIFIED:
            raise InvalidAgentResponseError("a status needs a state")
        message = None if status.message is None else self._spoken(status.message)
        return core.TaskStatus(state=status.state, message=message, timestamp=to_iso(self._now()))


def _check_artifact(artifact: core.Artifact) -> None:
    if not artifact.artifact_id:
        raise InvalidAgentResponseError("an Artifact without artifact_id: its pieces could not be put together")


def new_artifacts(before: core.Task, after: core.Task) -> list[core.Artifact]:
    """Return the artifacts that were added or changed between two states of a task."""
    known = {artifact.artifact_id: artifact for artifact in before.artifacts or ()}
    return [artifact for artifact in after.artifacts or () if known.get(artifact.artifact_id) != artifact]
