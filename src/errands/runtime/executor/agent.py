"""`AgentExecutor`: what a person subclasses who thinks in requests and events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

from errands.runtime.executor.queue import EventQueue
from errands.runtime.executor.request import RequestContext


class AgentExecutor(ABC):
    """An agent as a pair of functions over a request and a queue of events.

    For one task `execute` is never called twice at a time. An exception that it lets pass fails the task.
    """

    #: What becomes of an execution whose process died: run it again, or fail the task.
    on_interrupted: Literal["redeliver", "fail"] = "redeliver"

    @abstractmethod
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Works on one request and publishes what comes of it.

        Either one `Message`, which is the whole answer, or a `Task` and any number of status and artifact updates.
        Before it returns it publishes a terminal state, or asks for something: after `INPUT_REQUIRED` it returns
        and is called again with the user's answer; after `AUTH_REQUIRED` it may return in the same way, or wait
        for an authentication that happens elsewhere and go on. Once it has returned the queue takes no more.

        A cancel raises `asyncio.CancelledError` here, and then `cancel` is called.
        """

    @abstractmethod
    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Lets go of what the task holds elsewhere, and may publish `CANCELED` with some words.

        The task is canceled when this returns, raises or takes too long, whatever was published before.
        """
