"""`ExecutorWorker`: an executor as the worker it is to the rest of the runtime."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
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
from errands.runtime.executor.request import RequestContext, RequestContextBuilder, SimpleRequestContextBuilder
from errands.runtime.validation import own_task
from errands.runtime.worker import Worker

logger = logging.getLogger(__name__)


class ExecutorWorker(Worker):
    """Runs an executor's `execute` as a turn, and its `cancel` when the task is wanted canceled."""

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
        #: What the agent's card has.
        self._extensions = frozenset(extensions)

    async def handle(self, ctx: TaskContext) -> None:
        context = await self._context(ctx)
        if not ctx.is_cancelled:
            queue = TurnQueue(ctx._turn, ctx._journal, task_known=not _is_untouched(ctx._stored.task))
            if await self._execute(ctx, context, queue) and await self._conclude(ctx, queue):
                return
        await self._cancel(ctx, context)

    async def _execute(self, ctx: TaskContext, context: RequestContext, queue: TurnQueue) -> bool:
        """Whether it came to its end without being canceled."""
        # A task of its own, so that a cancel interrupts `execute` and nothing else.
        running = asyncio.ensure_future(self.executor.execute(context, queue))
        ctx._on_cancel = running.cancel
        try:
            await running
        except asyncio.CancelledError:
            if not ctx.is_cancelled or _is_stopped():
                raise
        except (LeaseLostError, TaskTerminalStateError, StorageError):
            raise
        except A2AError as error:
            queue.violation = queue.violation or error
        except Exception as error:
            if not ctx.is_cancelled:
                raise
            logger.info("execute of task %s failed while it was canceled", ctx.task_id, exc_info=error)
        finally:
            ctx._on_cancel = None
            await queue.close()
        return not ctx.is_cancelled

    async def _conclude(self, ctx: TaskContext, queue: TurnQueue) -> bool:
        """Ends the turn of an `execute` that is over; false when the task is wanted canceled instead."""
        if queue.violation is not None:
            logger.error("executor of task %s: %s", ctx.task_id, queue.violation)
        if ctx.turn_ended:
            return True
        if queue.violation is not None:
            await ctx._give_up(_words(queue.violation))
        elif queue.pause is not None:
            return await ctx._turn.rest(queue.pause)
        else:
            logger.error("execute of task %s returned without an end", ctx.task_id)
            await ctx._give_up(
                "The agent returned without finishing the task: an executor must publish a Message, or a state that "
                "ends the task or asks for something, before it returns."
            )
        return True

    async def _cancel(self, ctx: TaskContext, context: RequestContext) -> None:
        """Calls `cancel`, unless `execute` had ended the task before. Whatever it does, the task is canceled then."""
        turn = ctx._turn
        if turn.settled or (turn.ended and not await turn.reopen()):
            return
        context.current_task = own_task(turn.task)
        queue = TurnQueue(turn, ctx._journal, task_known=True)
        try:
            await self.executor.cancel(context, queue)
        except (LeaseLostError, TaskTerminalStateError, StorageError):
            raise
        except Exception as error:
            logger.error("cancel of task %s failed; the task is canceled all the same", ctx.task_id, exc_info=error)
        finally:
            await queue.close()
        if not turn.ended:
            await turn.end(CANCELED)

    async def _context(self, ctx: TaskContext) -> RequestContext:
        call = ServerCallContext(
            state=ctx.request_context,
            user=User(ctx.owner),
            tenant=ctx.tenant,
            requested_extensions=ctx.requested_extensions,
            activated_extensions=ctx.requested_extensions & self._extensions,
            get_task=_tasks_of(ctx),
        )
        task = ctx._stored.task
        context = await self.builder.build(
            call, _request(ctx), ctx.task_id, ctx.context_id, None if _is_untouched(task) else own_task(task)
        )
        context.attempt = ctx.attempt
        context._recorder = ctx._overseen
        return context


def _tasks_of(ctx: TaskContext) -> Callable[[str], Awaitable[Task | None]]:
    """Finds the caller's other tasks."""

    async def get_task(task_id: str) -> Task | None:
        try:
            return own_task((await ctx._journal.engine.load(task_id, ctx._stored.scope)).task)
        except TaskNotFoundError:
            return None

    return get_task


def _request(ctx: TaskContext) -> SendMessageRequest:
    options = ctx._options
    configuration = None
    if options.accepted_output_modes or options.history_length is not None or options.return_immediately:
        configuration = SendMessageConfiguration(
            accepted_output_modes=list(options.accepted_output_modes) or None,
            history_length=options.history_length,
            return_immediately=options.return_immediately,
        )
    return SendMessageRequest(
        message=ctx.message,
        tenant=ctx.tenant or None,
        configuration=configuration,
        metadata=ctx.request_metadata or None,
    )


def _is_untouched(task: Task) -> bool:
    """Whether nobody has written to the task but us: its first message is all there is."""
    return (
        task.status.state is SUBMITTED
        and task.status.message is None
        and len(task.history or ()) <= 1
        and not task.artifacts
        and not task.metadata
    )


def _words(refusal: A2AError) -> str:
    """What the client is told: errors of the protocol are made to be shown."""
    if isinstance(refusal, InvalidAgentResponseError):
        return f"The agent gave an invalid response: {refusal}."
    return refusal.message


def _is_stopped() -> bool:
    """Whether the turn itself is to stop, and not only what it waits for."""
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0
