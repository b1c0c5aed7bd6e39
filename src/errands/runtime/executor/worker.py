"""`ExecutorWorker`: runs an `AgentExecutor` as a worker."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import ClassVar

from errands.errors import (
    A2AError,
    InvalidAgentResponseError,
    LeaseLostError,
    StorageError,
    TaskNotFoundError,
    TaskTerminalStateError,
)
from errands.model.core import CANCELED, SUBMITTED, Task
from errands.model.requests import SendMessageConfiguration, SendMessageRequest
from errands.runtime.context import TaskContext
from errands.runtime.executor.agent import AgentExecutor
from errands.runtime.executor.call import ServerCallContext, User
from errands.runtime.executor.publishing import TurnQueue
from errands.runtime.executor.request import (
    RequestContext,
    RequestContextBuilder,
    SimpleRequestContextBuilder,
    turn_overseer,
)
from errands.runtime.turn import Turn
from errands.runtime.validation import own_task
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
            if await self._execute(turn, context, queue) and await _conclude(turn, queue):
                return
        await self._cancel(turn, context)

    async def _execute(self, turn: Turn, context: RequestContext, queue: TurnQueue) -> bool:
        """Call `execute`, and return whether it came to its end without being canceled."""
        try:
            await turn.until_cancelled(self.executor.execute(context, queue))
        except (LeaseLostError, TaskTerminalStateError, StorageError):
            raise
        except A2AError as error:
            queue.violation = queue.violation or error
        except Exception as error:
            if not turn.is_cancelled:
                raise
            logger.info("execute of task %s failed while it was canceled", turn.task_id, exc_info=error)
        finally:
            await queue.close()
        return not turn.is_cancelled

    async def _cancel(self, turn: Turn, context: RequestContext) -> None:
        """Call `cancel`, unless `execute` has ended the task. Whatever it does, the task is canceled then."""
        if turn.settled or (turn.ended and not await turn.reopen()):
            return
        context.current_task = own_task(turn.task)
        queue = TurnQueue(turn, task_known=True)
        try:
            await self.executor.cancel(context, queue)
        except (LeaseLostError, TaskTerminalStateError, StorageError):
            raise
        except Exception as error:
            logger.error("cancel of task %s failed; the task is canceled anyway", turn.task_id, exc_info=error)
        finally:
            await queue.close()
        if not turn.ended:
            await turn.end(CANCELED)

    async def _build_context(self, turn: Turn) -> RequestContext:
        ctx, task, scope = TaskContext(turn), turn.stored.task, turn.stored.scope

        async def get_task(task_id: str) -> Task | None:
            try:
                return own_task((await turn.journal.engine.load(task_id, scope)).task)
            except TaskNotFoundError:
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


async def _conclude(turn: Turn, queue: TurnQueue) -> bool:
    """End the turn of an `execute` that is over; return False if the task is to be canceled instead."""
    if queue.violation is not None:
        logger.error("executor of task %s: %s", turn.task_id, queue.violation)
    if turn.ended:
        return True
    if queue.violation is not None:
        await turn.give_up(_words(queue.violation))
    elif queue.pause is not None:
        return await turn.rest(queue.pause)
    else:
        logger.error("execute of task %s returned without an end", turn.task_id)
        await turn.give_up(
            "The agent returned without finishing the task: an executor must publish a Message, or a state that "
            "ends the task or asks for something, before it returns."
        )
    return True


def _is_untouched(task: Task) -> bool:
    """Return whether the agent has not written to the task yet, which has its first message only."""
    return (
        task.status.state is SUBMITTED
        and task.status.message is None
        and len(task.history or ()) <= 1
        and not task.artifacts
        and not task.metadata
    )


def _words(refusal: A2AError) -> str:
    """Return the text for the client; errors of the protocol are written for clients."""
    if isinstance(refusal, InvalidAgentResponseError):
        return f"The agent gave an invalid response: {refusal}."
    return refusal.message
