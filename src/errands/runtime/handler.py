"""Calling a worker for one turn, and ending the turn by how the call ended: the same rules for every kind of worker."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from errands.errors import (
    CapabilityBlockedError,
    LeaseLostError,
    StorageError,
    TaskStoppedError,
    TaskTerminalStateError,
    TurnError,
)
from errands.model.core import CANCELED, INPUT_REQUIRED, Message, Part, Role
from errands.runtime.blocking import BlockingTaskContext
from errands.runtime.context import TaskContext
from errands.runtime.expiry import Expiry
from errands.runtime.journal import Journal, new_id
from errands.runtime.oversight import Oversight
from errands.runtime.settings import Settings
from errands.runtime.turn_input import InvalidAnswerError
from errands.runtime.worker import Worker, is_async

if TYPE_CHECKING:
    from errands.runtime.pool import Execution

logger = logging.getLogger(__name__)

#: Threads for synchronous handlers at most.
_MAX_THREADS = 64
#: How a message begins that asks again.
_MISFIT = "That answer does not fit: "


class Handler:
    """One agent as the pool sees it: its worker, where its changes are written, and the policy it is held to."""

    def __init__(
        self,
        agent: str,
        worker: Worker,
        journal: Journal,
        settings: Settings,
        oversight: Oversight | None = None,
    ) -> None:
        self.agent = agent
        self.journal = journal
        self.oversight = oversight
        #: See `Worker.chooses_reply`.
        self.chooses_reply = worker.chooses_reply
        #: See `Worker.hears_cancel`.
        self.hears_cancel = worker.hears_cancel or worker.chooses_reply
        #: Which paused tasks have waited too long.
        self.expiry = Expiry(settings.paused_timeout, oversight)
        self._worker = worker
        self._max_attempts = settings.max_attempts
        self._threads: ThreadPoolExecutor | None = None
        if not is_async(worker):
            threads = min(settings.max_concurrent_tasks or _MAX_THREADS, _MAX_THREADS)
            self._threads = ThreadPoolExecutor(threads, thread_name_prefix="errands-worker")

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, execution: Execution, ctx: TaskContext) -> bool:
        """One turn; true when the task goes on with another message that was waiting."""
        if ctx.attempt > 1 and not await self._may_try_again(ctx):
            return False
        try:
            if ctx._overseer is None and self._threads is None:
                # Nearly always, so it costs no frame.
                await self._worker.handle(ctx)
            elif not await self._admit(ctx):
                return ctx._turn.continues
            else:
                await self._handle(ctx)
        except asyncio.CancelledError:
            await self._stopped(execution, ctx)
            return False
        except (LeaseLostError, TaskTerminalStateError, StorageError):
            raise
        except TaskStoppedError as error:
            logger.info("task %s was ended by its policy: %s", ctx.task_id, error)
        except Exception as error:
            if isinstance(error, InvalidAnswerError) and not ctx.turn_ended:
                await self._ask_again(ctx, error)
            elif isinstance(error, CapabilityBlockedError) and not ctx.turn_ended:
                await ctx._give_up(str(error))
            else:
                await self._failed(ctx, error)
        else:
            if not ctx._turn.ended:
                await self._returned(ctx)
        return ctx._turn.continues

    async def _admit(self, ctx: TaskContext) -> bool:
        """Whether the worker is to see the turn: not without its policy, not even to be told of a cancel."""
        if ctx._overseer is None or (ctx.is_cancelled and self._worker.chooses_reply):
            return True
        admitted = (not ctx.is_cancelled or self._worker.hears_cancel) and await ctx._admit()
        if not admitted and ctx.is_cancelled and not ctx.turn_ended:
            await ctx._turn.end(CANCELED)
        return admitted

    async def _handle(self, ctx: TaskContext) -> None:
        handling = self._worker.handle(ctx) if self._threads is None else self._handle_in_thread(ctx)
        await (handling if ctx._overseer is None else ctx._overseer.supervise(handling))

    async def _handle_in_thread(self, ctx: TaskContext) -> None:
        loop = asyncio.get_running_loop()
        # What it asks of the context is done as the turn would do it.
        call = functools.partial(contextvars.copy_context().run, _call, self._worker, BlockingTaskContext(ctx, loop))
        await loop.run_in_executor(self._threads, call)

    async def _may_try_again(self, ctx: TaskContext) -> bool:
        tries = ctx._tries
        if tries <= 1 or ctx.is_cancelled:
            return True
        if self._worker.on_interrupted == "fail":
            await ctx._give_up("The agent was interrupted while it worked on this task.")
            return False
        if tries > self._max_attempts:
            await ctx._give_up(f"The agent was interrupted {tries - 1} times while it worked on this task.")
            return False
        return True

    async def _returned(self, ctx: TaskContext) -> None:
        if ctx.is_cancelled:
            await ctx._turn.end(CANCELED)
            return
        logger.error("handler of task %s returned without a lifecycle call, or without awaiting one", ctx.task_id)
        await ctx._give_up(
            "The agent returned without finishing the task: a handler must call complete, respond, fail, "
            "reject, request_input or another lifecycle method before it returns."
        )

    async def _failed(self, ctx: TaskContext, error: Exception) -> None:
        if ctx.turn_ended:
            if isinstance(error, TurnError):
                logger.error("handler of task %s: %s", ctx.task_id, error)
            else:
                logger.error("handler of task %s failed after its turn had ended", ctx.task_id, exc_info=error)
            if ctx._turn.settled or not await ctx._turn.reopen():
                return
        reference = secrets.token_hex(4)
        logger.error("handler of task %s failed [%s]", ctx.task_id, reference, exc_info=error)
        await ctx._give_up(f"The agent failed unexpectedly (reference {reference}).")

    async def _ask_again(self, ctx: TaskContext, error: InvalidAnswerError) -> None:
        question = next((m for m in reversed(ctx.history) if m.role == "agent"), None)
        parts: list[Part] = [Part(text=f"{_MISFIT}{error}")]
        if question is not None:
            parts += [part for part in question.parts if not (part.text or "").startswith(_MISFIT)]
        message = Message(
            message_id=new_id(),
            role=Role.AGENT,
            parts=parts,
            task_id=ctx.task_id,
            context_id=ctx.context_id,
        )
        await ctx._turn.end(INPUT_REQUIRED, message=message)

    async def _stopped(self, execution: Execution, ctx: TaskContext) -> None:
        """The handler was interrupted by `Execution.stop`, or canceled itself."""
        turn = ctx._turn
        if execution.stopped == "lost" or turn.settled:
            return
        if turn.ended and not await turn.reopen():
            return
        if execution.stopped == "drain":
            if self._worker.on_interrupted == "fail":
                await ctx._give_up("The agent was stopped while it worked on this task.")
            else:
                await turn.give_back()
        elif execution.stopped == "force" or ctx.is_cancelled:
            await turn.end(CANCELED)
        else:
            await ctx._give_up("The agent canceled its own work.")


def _call(worker: Worker, ctx: Any) -> None:
    handle: Any = worker.handle
    try:
        handle(ctx)
    except StopIteration as error:
        # A future cannot carry it and would never be done.
        raise RuntimeError("the handler let a StopIteration escape") from error
