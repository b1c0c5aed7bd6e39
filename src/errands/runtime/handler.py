"""Calling a worker for one turn, and ending the turn by how the call ended: the same rules for every kind of worker."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import secrets
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from errands import errors, tracing
from errands.model.core import CANCELED, FAILED, INPUT_REQUIRED, Part
from errands.runtime.context import InvalidAnswerError, TaskContext
from errands.runtime.expiry import Expiry
from errands.runtime.journal import Journal
from errands.runtime.oversight import Oversight
from errands.runtime.settings import Settings
from errands.runtime.turn import Turn
from errands.runtime.worker import TurnWorker, Worker

logger = logging.getLogger(__name__)

#: Threads for synchronous handlers at most.
_MAX_THREADS = 64
#: How a message begins that repeats a question.
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
        self._blobs = journal.blobs
        #: The seconds of turns; None if metrics are off.
        self.seconds = None if journal.figures is None else journal.figures.turns(agent)
        self.oversight = oversight
        #: See `Worker.chooses_reply`.
        self.chooses_reply = worker.chooses_reply
        #: See `Worker.hears_cancel`.
        self.hears_cancel = worker.hears_cancel or worker.chooses_reply
        #: Which tasks take, or have waited, too long.
        self.expiry = Expiry(settings.task_timeout, settings.paused_timeout, oversight)
        self._is_overseen = oversight is not None and oversight.is_required
        self._worker = worker
        self._max_attempts = settings.max_attempts
        self._threads: ThreadPoolExecutor | None = None
        self._call: Callable[[Turn], Coroutine[Any, Any, None]] = lambda turn: worker.handle(TaskContext(turn))
        if isinstance(worker, TurnWorker):
            self._call = worker.handle_turn
        elif not inspect.iscoroutinefunction(worker.handle):
            threads = min(settings.max_concurrent_tasks or _MAX_THREADS, _MAX_THREADS)
            self._threads = ThreadPoolExecutor(threads, thread_name_prefix="errands-worker")
            self._call = self._call_in_thread

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def trace(self, tracer: tracing.Tracer, turn: Turn, since: int) -> Coroutine[Any, Any, bool]:
        """Run a turn in a span. `since` is when the task entered the state in which the turn found it.

        A turn is one span, whichever processes work on it: the one that ends the turn records it. What a process did
        before it died belongs to the same span. A message without a trace belongs to one that is not recorded.
        """
        if turn.options.trace is None:
            return tracer.leave_out(self.run(turn))
        return self._trace(tracer, turn, since)

    async def _trace(self, tracer: tracing.Tracer, turn: Turn, since: int) -> bool:
        is_first, head = turn.attempt <= 1, turn.stored.head
        waited = turn.journal.now() - since if is_first else 0
        span = tracer.span(
            "turn",
            self.agent,
            parent=turn.options.trace,
            identity=f"turn\n{turn.task_id}\n{turn.message.message_id}\n{head.attempt_base}",
            began=None if is_first else since,
            task=turn.task_id,
            conversation=turn.context_id or None,
            attempt=turn.attempt,
            worker=head.worker,
            waited=waited / 1000 if waited > 0 else None,
        )
        try:
            with span.active():
                goes_on = await self.run(turn)
        except (errors.TaskTerminalStateError, errors.DamagedTaskError) as error:
            # No other process continues with it.
            span.fail(type(error).__name__, is_fault=isinstance(error, errors.DamagedTaskError))
            span.end()
            raise
        if turn.settled:
            span.note(state=turn.outcome.short)
            if turn.outcome is FAILED:
                span.fail(turn.problem or "failed")
            span.end()
        return goes_on

    async def run(self, turn: Turn) -> bool:
        """Run one turn, and return whether the task continues with another message that was waiting."""
        if turn.attempt > 1 and turn.tries > 1 and not turn.is_cancelled:
            fails = self._worker.on_interrupted == "fail"
            if fails or turn.tries > self._max_attempts:
                times = "" if fails else f" {turn.tries - 1} times"
                await turn.give_up(f"The agent was interrupted{times} while it worked on this task.")
                return False
        if self._is_overseen:
            turn.overseen()
        try:
            if turn.overseer is None:
                if self._blobs is not None:
                    await turn.fetch_files(self._blobs)
                await self._call(turn)
            elif await self._admit(turn):
                if self._blobs is not None:
                    await turn.fetch_files(self._blobs)
                await turn.overseer.supervise(self._call(turn))
            else:
                return turn.continues
        except asyncio.CancelledError:
            await self._stopped(turn)
            return False
        except (errors.LeaseLostError, errors.TaskTerminalStateError, errors.StorageError):
            raise
        except errors.TaskStoppedError as error:
            logger.info("task %s was ended by its policy: %s", turn.task_id, error)
        except Exception as error:
            if isinstance(error, InvalidAnswerError) and not turn.ended:
                await _ask_again(turn, error)
            elif isinstance(error, errors.CapabilityBlockedError) and not turn.ended:
                await turn.give_up(str(error))
            else:
                await _failed(turn, error)
        else:
            if turn.is_cancelled and not turn.ended:
                await turn.end(CANCELED)
            elif not turn.ended:
                logger.error(
                    "handler of task %s returned without a lifecycle call, or without awaiting one", turn.task_id
                )
                await turn.give_up(
                    "The agent returned without finishing the task: a handler must call complete, respond, fail, "
                    "reject, request_input or another lifecycle method before it returns."
                )
        return turn.continues

    async def _admit(self, turn: Turn) -> bool:
        """Return whether the policy lets the worker see the turn; it does not hear of a cancel otherwise, either."""
        assert turn.overseer is not None
        if turn.is_cancelled and self.chooses_reply:
            return True
        if not turn.is_cancelled or self.hears_cancel:
            admitted = await turn.overseer.admit(is_cancelled=turn.is_cancelled)
            if admitted is not None:
                turn.admit(admitted)
                return True
        if turn.is_cancelled and not turn.ended:
            await turn.end(CANCELED)
        return False

    async def _stopped(self, turn: Turn) -> None:
        """End the turn of a handler that was interrupted by `Execution.stop`, or that canceled itself."""
        if turn.stopped == "lost" or turn.settled:
            return
        if turn.ended and not await turn.reopen():
            return
        if turn.stopped == "drain":
            if self._worker.on_interrupted == "fail":
                await turn.give_up("The agent was stopped while it worked on this task.")
            else:
                await turn.give_back()
        elif turn.stopped == "force" or turn.is_cancelled:
            await turn.end(CANCELED)
        else:
            await turn.give_up("The agent canceled its own work.")

    async def _call_in_thread(self, turn: Turn) -> None:
        loop = asyncio.get_running_loop()
        handle: Any = self._worker.handle
        blocking = BlockingTaskContext(TaskContext(turn), loop)

        def call() -> None:
            try:
                handle(blocking)
            except StopIteration as error:
                # A future cannot carry it and would never be done.
                raise RuntimeError("the handler let a StopIteration escape") from error

        # The context's methods see the same context variables as the turn.
        await loop.run_in_executor(self._threads, contextvars.copy_context().run, call)


async def _failed(turn: Turn, error: Exception) -> None:
    if turn.ended:
        if isinstance(error, errors.TurnError):
            logger.error("handler of task %s: %s", turn.task_id, error)
        else:
            logger.error("handler of task %s failed after its turn had ended", turn.task_id, exc_info=error)
        if turn.settled or not await turn.reopen():
            return
    reference = secrets.token_hex(4)
    turn.problem = type(error).__name__
    known = {"correlation": reference}
    logger.error("handler of task %s failed [%s]", turn.task_id, reference, exc_info=error, extra=known)
    await turn.give_up(f"The agent failed unexpectedly (reference {reference}).")


async def _ask_again(turn: Turn, error: InvalidAnswerError) -> None:
    parts: list[Part] = [Part(text=f"{_MISFIT}{error}")]
    question = next((m for m in reversed(TaskContext(turn).history) if m.role == "agent"), None)
    if question is not None:
        parts += [part for part in question.parts if not (part.text or "").startswith(_MISFIT)]
    await turn.end(INPUT_REQUIRED, message=turn.agent_message(parts))


# Handlers that are plain functions


class Blocking:
    """An object for one thread: its coroutine methods block, and `with` takes the place of `async with`."""

    def __init__(self, wrapped: Any, loop: asyncio.AbstractEventLoop) -> None:
        vars(self).update(_wrapped=wrapped, _loop=loop)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._wrapped, name)
        return functools.partial(self._call, value) if inspect.iscoroutinefunction(value) else value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._wrapped, name, value)

    def __enter__(self) -> Self:
        self._call(self._wrapped.__aenter__)
        return self

    def __exit__(self, *error: object) -> None:
        self._call(self._wrapped.__aexit__, *error)

    def _call(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(method(*args, **kwargs), self._loop).result()


class BlockingTaskContext(Blocking):
    """The context for handlers that are plain functions: a `TaskContext` for one thread, with blocking methods.

    Each call runs in the event loop, and only the thread waits for it.
    """

    def __init__(self, ctx: TaskContext, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(ctx, loop)

    def artifact(self, *args: Any, **kwargs: Any) -> Blocking:
        return Blocking(self._wrapped.artifact(*args, **kwargs), self._loop)

    def capability(self, *args: Any, **kwargs: Any) -> Blocking:
        return Blocking(self._wrapped.capability(*args, **kwargs), self._loop)
